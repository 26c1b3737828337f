//! `ask` on the command line: the answer as it comes or when it is whole, its citations, and the sessions.

use std::io::{self, Write};
use std::sync::atomic::Ordering;

use jiff::Timestamp;
use kebab_lite::config::Config;
use kebab_lite::kb::Kb;
use kebab_lite::tools::ask::{self, AskInput, Moment};
use kebab_lite::wire::{
    Answer, AnswerCitation, AnswerEvent, AnswerEventV1, AnswerStep, AskSessions, Citation, Explain, Refusal,
};
use serde_json::Value;

use super::args::AskArgs;
use super::text::{Ink, Style, clean, clean_line};
use super::{Exit, Failure, Outcome, STOP, Session, json_line, stop_on_signal, sync_first, tell};

pub fn run(session: &Session, args: AskArgs, config: Config) -> Outcome {
    let kb = Kb::open_to_the_end(config)?;
    if args.list_sessions || args.forget.is_some() {
        let sessions = ask::sessions::run(&kb, args.forget.as_deref())?;
        session.answer(&sessions, |out, sessions| list(out, session.style, sessions))?;
        return Ok(Exit::Done);
    }
    let (sync, stream) = (args.sync, args.stream);
    let input = AskInput::from_json(Value::Object(args.into_json()))?;
    match sync {
        true => {
            if let Some(exit) = sync_first(session, &kb)? {
                return Ok(exit);
            }
        }
        false => stop_on_signal()?,
    }
    let mut broken = None;
    let mut streamed = String::new();
    let answer = ask::run(&kb, &input, &STOP, &mut |moment| {
        if !stream {
            return;
        }
        let shown = match moment {
            Moment::Retrieved(hits) if session.json => event(AnswerStep::RetrievalDone { hits }),
            Moment::Token(delta) if session.json => event(AnswerStep::Token { delta }),
            Moment::Token(delta) => {
                streamed.push_str(delta);
                say(&clean(delta))
            }
            Moment::Preparing(_) | Moment::Retrieved(_) => Ok(()),
        };
        if let Err(error) = shown {
            // Nobody reads on, so nobody wants the rest.
            broken = Some(error);
            STOP.store(true, Ordering::SeqCst);
        }
    })?;
    if let Some(error) = broken {
        return Err(Failure::Output(error));
    }
    if stream && session.json {
        event(AnswerStep::Final { answer: &answer })?;
    }
    session.answer(&answer, |out, answer| show(out, session.style, answer, &streamed))?;
    if !session.json {
        answer.hint.iter().for_each(|hint| session.note(&format!("hint: {hint}")));
    }
    Ok(match answer.refusal_reason {
        Some(Refusal::LlmStreamAborted) if STOP.load(Ordering::SeqCst) => Exit::Interrupted,
        Some(_) => Exit::Refused,
        None => Exit::Done,
    })
}

fn say(piece: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(piece.as_bytes())?;
    out.flush()
}

/// One line of ndjson on stderr.
fn event(step: AnswerStep) -> io::Result<()> {
    let event = AnswerEvent { schema_version: AnswerEventV1, ts: Timestamp::now().to_string(), event: step };
    let line = json_line(&event).map_err(|error| io::Error::other(error.to_string()))?;
    tell(&line);
    Ok(())
}

/// The answer, then where each mark leads. `streamed` is on the screen already.
fn show(out: &mut dyn Write, style: Style, answer: &Answer, streamed: &str) -> io::Result<()> {
    if !streamed.is_empty() {
        writeln!(out)?;
    }
    match answer.refusal_reason {
        None if streamed.trim() == answer.answer => {}
        // Marks were put in or taken out since.
        None if !streamed.is_empty() => writeln!(out, "\n{}", clean(&answer.answer))?,
        None => writeln!(out, "{}", clean(&answer.answer))?,
        // What came before it on the screen was not confirmed.
        Some(reason) => {
            if !streamed.is_empty() {
                writeln!(out)?;
            }
            let reason = serde_json::to_value(reason).unwrap_or_default();
            let reason = style.paint(Ink::Dim, &format!("({})", reason.as_str().unwrap_or_default()));
            writeln!(out, "{} {reason}", style.paint(Ink::Bad, &answer.answer))?;
        }
    }
    if !answer.citations.is_empty() {
        writeln!(out)?;
    }
    for citation in &answer.citations {
        cited(out, style, citation)?;
    }
    answer.explain.as_ref().map_or(Ok(()), |explain| explained(out, style, explain))
}

fn cited(out: &mut dyn Write, style: Style, cited: &AnswerCitation) -> io::Result<()> {
    let (path, section) = match &cited.citation {
        Citation::Line { path, section, .. } => (path, section.as_deref()),
        Citation::Code { path, symbol, .. } => (path, symbol.as_deref()),
    };
    let (start, end) = cited.citation.lines();
    let lines = if start == end { start.to_string() } else { format!("{start}-{end}") };
    let path = style.paint(Ink::Path, &clean_line(path));
    write!(out, "{} {path}:{}", style.paint(Ink::Good, &cited.marker), style.paint(Ink::Line, &lines))?;
    if let Some(section) = section {
        write!(out, "  {}", style.paint(Ink::Dim, &clean_line(section)))?;
    }
    if cited.stale {
        write!(out, "  {}", style.paint(Ink::Bad, "stale"))?;
    }
    writeln!(out)?;
    for line in cited.text.iter().flat_map(|text| text.trim_end().lines()) {
        writeln!(out, "{}", format!("    {}", clean(line)).trim_end())?;
    }
    Ok(())
}

fn explained(out: &mut dyn Write, style: Style, explain: &Explain) -> io::Result<()> {
    let heading = |text: &str| style.paint(Ink::Dim, text);
    writeln!(out, "\n{} {}", heading("looked up:"), clean_line(&explain.question))?;
    writeln!(out, "{}", heading("passages:  evidence, words held, score, lexical, vector, tokens"))?;
    let number = |value: Option<f32>| value.map_or("-".into(), |value| format!("{value:.3}"));
    for passage in &explain.passages {
        writeln!(
            out,
            "  {:>4}  {:.3}  {:.3}  {:>7.3}  {:>7}  {:>6}  {:>5}  {}",
            passage.marker,
            passage.evidence,
            passage.words_held,
            passage.score,
            number(passage.lexical_score),
            number(passage.vector_score),
            passage.tokens,
            clean_line(&passage.uri)
        )?;
    }
    for message in &explain.prompt {
        writeln!(out, "{}", heading(&format!("prompt, {}:", message.role)))?;
        writeln!(out, "{}", clean(&message.content))?;
    }
    match &explain.reply {
        Some(reply) => writeln!(out, "{}\n{}", heading("reply:"), clean(reply)),
        None => Ok(()),
    }
}

fn list(out: &mut dyn Write, style: Style, sessions: &AskSessions) -> io::Result<()> {
    if sessions.forgotten > 0 {
        writeln!(out, "forgotten")?;
    }
    if sessions.sessions.is_empty() {
        return writeln!(out, "no sessions");
    }
    for session in &sessions.sessions {
        let turns = if session.turns == 1 { "turn" } else { "turns" };
        let used = style.paint(Ink::Dim, &format!("last used {}", session.used_at));
        writeln!(out, "{:<24}  {:>3} {turns:<5}  {used}", session.session_id, session.turns)?;
    }
    Ok(())
}
