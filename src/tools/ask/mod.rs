//! `ask`: an answer from the user's documents, each sentence with the passage it is from; or a refusal that says why.
//!
//! ```text
//! question ─ (session: rewritten to stand alone) ─ (multi-hop: its parts) ─► search ─► passages ─ gate ─┐
//! answer ◄─ judge ◄─ model ◄─ prompt ◄──────────────────────────────────────────────────────────────────┤
//! answer ◄─ quotations (extractive, no model) ◄──────────────────────────────────────────────────────────┘
//! ```
//! Retrieval is `search`'s own, so whatever ranks better there answers better here. What can be refused before a model
//! is called costs no call; a turn of a session is stored once the answer is whole.

mod evidence;
mod ground;
mod input;
mod passages;
pub mod prompt;
mod reply;
pub mod sessions;

use std::collections::BTreeSet;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use jiff::Timestamp;

use serde_json::Value;

use super::Context;
use super::search::{self, SearchInput};
use crate::error::{Error, Result};
use crate::ingest::chunk::estimate_tokens;
use crate::ingest::nanoseconds;
use crate::kb::{Kb, Slot};
use crate::llm::{Chat, Llm, Message, Reply, Role};
use crate::model::{Id, Mode};
use crate::store::{Exchange, Sessions};
use crate::wire::{
    Answer, AnswerModel, AnswerRetrieval, AnswerV1, Explain, ExplainedMessage, ExplainedPassage, Hit, Hop, Refusal,
    Usage,
};
use ground::{LEAST_CONFIDENCE, judge, quoted};
pub use input::AskInput;
use passages::{Passage, gather};
use reply::{Held, Ramble};

/// What happens while an answer is made.
pub enum Moment<'m> {
    /// A model is asked for something that is not the answer yet.
    Preparing(&'static str),
    Retrieved(&'m [Hit]),
    /// A further piece of the answer, before it is checked.
    Token(&'m str),
}

type Watch<'w> = &'w mut dyn FnMut(Moment);

/// The longest answer, in tokens.
const MAX_REPLY: usize = 1024;

/// A question rewritten or split into parts.
const MAX_SIDE_REPLY: usize = 200;

/// What a prompt holds beside passages and question.
const PROMPT_TOKENS: usize = 500;

/// How many passages an extractive answer quotes.
const QUOTED: usize = 3;

/// The share of the best passage's evidence that a passage needs to be quoted beside it.
const NEARLY: f64 = 0.75;
/// How long a quotation is at most, in characters.
const QUOTED_CHARS: usize = 400;

pub fn run(kb: &Kb, input: &AskInput, stop: &AtomicBool, watch: Watch) -> Result<Answer> {
    let extractive = input.extractive.unwrap_or(kb.config.rag.extractive);
    let llm = match extractive {
        true => None,
        false => Some(Llm::new(&kb.config.llm).ok_or_else(no_model)?),
    };
    if extractive && input.multi_hop {
        let hint = "Leave one of them out: parts of a question are found by a model.";
        return Err(Error::input_hint("multi_hop", "it does not go together with extractive", hint));
    }
    if input.session_id.is_some() && kb.config.readonly {
        return Err(Error::ReadonlyMode { operation: "a session" });
    }
    let started = Instant::now();
    let timeout = kb.config.llm.as_ref().map_or(Duration::from_secs(60), |llm| llm.request_timeout);
    let deadline = started + timeout;
    let asking = Asking { kb, input, llm, stop, started, deadline };
    let mut draft = Draft::new(input);
    match asking.answer(&mut draft, watch) {
        Ok(()) => {}
        Err(Ending::Refused(reason)) => draft.refusal = Some(reason),
        // Whoever cancelled may still want to know how it ended.
        Err(Ending::Failed(Error::Cancelled)) => draft.refusal = Some(Refusal::LlmStreamAborted),
        Err(Ending::Failed(error)) => return Err(error),
    }
    asking.remember(&mut draft)?;
    Ok(asking.finish(draft))
}

/// As a tool of the protocol: progress tells how far it is, so that nobody takes a slow model for a dead one.
pub fn over_protocol(kb: &Kb, arguments: Value, context: &Context) -> Result<Answer> {
    let input = AskInput::from_json(arguments)?;
    let mut done = 0;
    run(kb, &input, context.stop, &mut |moment| {
        done += 1;
        match moment {
            Moment::Preparing(what) => (context.progress)(done, None, what),
            Moment::Retrieved(hits) => (context.progress)(done, None, &format!("{} passages found", hits.len())),
            Moment::Token(_) => (context.progress)(done, None, "answering"),
        }
    })
}

fn no_model() -> Error {
    Error::ModelUnreachable {
        endpoint: String::new(),
        model: "none".into(),
        cause: "no model is configured to answer questions".into(),
        hint: "Run `ollama pull qwen3:4b`, then `KEBAB_MODELS_LLM_MODEL=qwen3:4b kebab-lite ask …` (or set models.llm.model in the config file); or quote passages without a model: `kebab-lite ask --extractive …`.".into(),
    }
}

/// One call.
struct Asking<'a> {
    kb: &'a Kb,
    input: &'a AskInput,
    /// None quotes passages.
    llm: Option<Llm<'a>>,
    stop: &'a AtomicBool,
    started: Instant,
    /// Over all calls of models.
    deadline: Instant,
}

/// What is known of the answer so far.
struct Draft {
    /// The question as it is looked up.
    question: String,
    revision: u64,
    /// Before this turn.
    history: Vec<Exchange>,
    hops: Option<Vec<Hop>>,
    hits: Vec<Hit>,
    passages: Vec<Passage>,
    prompt: Vec<Message>,
    reply: Option<String>,
    answer: String,
    cited: Vec<usize>,
    confidence: Option<f32>,
    refusal: Option<Refusal>,
    hints: Vec<String>,
    usage: Usage,
}

/// Why no answer came about.
enum Ending {
    Refused(Refusal),
    Failed(Error),
}

impl From<Error> for Ending {
    fn from(error: Error) -> Self {
        Ending::Failed(error)
    }
}

impl Draft {
    fn new(input: &AskInput) -> Draft {
        Draft {
            question: input.search.query.clone(),
            revision: 0,
            history: Vec::new(),
            hops: None,
            hits: Vec::new(),
            passages: Vec::new(),
            prompt: Vec::new(),
            reply: None,
            answer: String::new(),
            cited: Vec::new(),
            confidence: None,
            refusal: None,
            hints: Vec::new(),
            usage: Usage::default(),
        }
    }

    fn top_evidence(&self) -> f64 {
        self.passages.iter().map(|passage| passage.evidence).fold(0.0, f64::max)
    }
}

impl Asking<'_> {
    fn answer(&self, draft: &mut Draft, watch: Watch) -> Result<(), Ending> {
        let (revision, chunks) = match self.kb.read(|view| Ok((view.index.revision, view.index.chunks()))) {
            Err(Error::NotIndexed { found, hint, .. }) if found == "none" => {
                draft.hints.push(hint);
                return Err(Ending::Refused(Refusal::NoIndex));
            }
            other => other?,
        };
        draft.revision = revision;
        if chunks == 0 {
            return Err(Ending::Refused(Refusal::NoChunks));
        }
        if let Some(id) = &self.input.session_id
            && let Some(sessions) = Sessions::open(self.kb.data_dir())?
        {
            draft.history = sessions.turns(id, nanoseconds(Timestamp::now()))?;
        }
        if let (Some(llm), false) = (&self.llm, draft.history.is_empty()) {
            watch(Moment::Preparing("reading the conversation"));
            self.stand_alone(llm, draft)?;
        }
        if let (Some(llm), true) = (&self.llm, self.input.multi_hop) {
            watch(Moment::Preparing("splitting the question"));
            self.split(llm, draft)?;
        }
        self.retrieve(draft)?;
        watch(Moment::Retrieved(&draft.hits));
        self.gather(draft, self.budget(draft))?;
        if draft.passages.is_empty() {
            return Err(Ending::Refused(Refusal::NoChunks));
        }
        if draft.top_evidence() < self.kb.config.rag.score_gate {
            return Err(Ending::Refused(Refusal::ScoreGate));
        }
        match &self.llm {
            Some(llm) => self.ask(llm, draft, watch),
            None => {
                quote(draft);
                Ok(())
            }
        }
    }

    /// A follow-up question in words that stand alone. What a model makes of it that is no question is not used.
    fn stand_alone(&self, llm: &Llm, draft: &mut Draft) -> Result<(), Ending> {
        let question = &self.input.search.query;
        let tag = prompt::tag(
            draft.history.iter().flat_map(|turn| [&turn.question[..], &turn.answer]).chain([&question[..]]),
        );
        let recent = draft.history.len().saturating_sub(REMEMBERED);
        let messages = prompt::stand_alone(question, &draft.history[recent..], &tag);
        let reply = self.chat(llm, &messages, MAX_SIDE_REPLY, draft, &mut |_| true)?;
        if let Some(question) = prompt::rewritten(&reply) {
            draft.question = question;
        }
        Ok(())
    }

    fn split(&self, llm: &Llm, draft: &mut Draft) -> Result<(), Ending> {
        let messages = prompt::parts(&draft.question);
        let reply = self.chat(llm, &messages, MAX_SIDE_REPLY, draft, &mut |_| true)?;
        let parts = prompt::split(&reply).ok_or(Ending::Refused(Refusal::MultiHopDecomposeFailed))?;
        let hop = |question: String| Hop { question, chunks_returned: 0 };
        draft.hops = Some(parts.into_iter().map(hop).collect());
        Ok(())
    }

    /// The hits of the question; of its parts, too, taken in turns, each once.
    fn retrieve(&self, draft: &mut Draft) -> Result<()> {
        let (mut hits, mut hint) = self.search(&draft.question)?;
        let asked = &self.input.search.query;
        if hits.is_empty() && draft.question != *asked {
            // What a model made of it is about nothing here; what was asked may be.
            draft.question.clone_from(asked);
            (hits, hint) = self.search(asked)?;
        }
        draft.hints.extend(hint);
        let mut lists = vec![hits];
        for hop in draft.hops.iter_mut().flatten() {
            let (hits, _) = self.search(&hop.question)?;
            hop.chunks_returned = hits.len();
            lists.push(hits);
        }
        if lists.len() == 1 {
            draft.hits = lists.remove(0);
            return Ok(());
        }
        let mut seen = BTreeSet::new();
        let longest = lists.iter().map(Vec::len).max().unwrap_or(0);
        let mut lists: Vec<_> = lists.into_iter().map(Vec::into_iter).collect();
        for _ in 0..longest {
            // The parts first: they ask for something narrower.
            for hit in lists.iter_mut().rev().filter_map(Iterator::next) {
                if seen.insert(hit.chunk_id) {
                    draft.hits.push(hit);
                }
            }
        }
        Ok(())
    }

    fn search(&self, question: &str) -> Result<(Vec<Hit>, Option<String>)> {
        let input = SearchInput {
            query: question.to_owned(),
            k: Some(self.k()),
            snippet_chars: Some(QUOTED_CHARS),
            ..self.input.search.clone()
        };
        let response = search::run(self.kb, &input)?;
        Ok((response.hits, response.hint))
    }

    fn k(&self) -> usize {
        self.input.search.k.unwrap_or(self.kb.config.search.default_k)
    }

    /// Tokens of passages: what is configured, or what the model has room for beside everything else.
    fn budget(&self, draft: &Draft) -> usize {
        let most = self.kb.config.rag.max_context_tokens;
        let Some(llm) = &self.kb.config.llm else { return most };
        let else_used =
            MAX_REPLY.min(llm.context_tokens / 3) + PROMPT_TOKENS + 2 * estimate_tokens(&draft.question) as usize;
        most.min(llm.context_tokens.saturating_sub(else_used)).max(LEAST_BUDGET)
    }

    fn gather(&self, draft: &mut Draft, budget: usize) -> Result<()> {
        // It has just been used, so it is loaded.
        let measured = matches!(self.kb.embedder(Duration::ZERO), Slot::Ready(model) if model.provider() == "builtin");
        draft.passages = self.kb.read(|view| {
            let mut passages = gather(view, &draft.hits, budget)?;
            let parts = draft.hops.iter().flatten().map(|hop| hop.question.as_str());
            let questions = std::iter::once(draft.question.as_str()).chain(parts);
            evidence::weigh(view, questions, &mut passages, measured)?;
            Ok(passages)
        })?;
        Ok(())
    }

    fn ask(&self, llm: &Llm, draft: &mut Draft, watch: Watch) -> Result<(), Ending> {
        let mut held = Held::default();
        let mut budget = self.budget(draft);
        let (reply, tag) = loop {
            let texts = draft.passages.iter().map(|passage| passage.text.as_str());
            let tag = prompt::tag(texts.chain([draft.question.as_str()]));
            draft.prompt = prompt::answer(&draft.question, &draft.passages, &tag);
            let messages = draft.prompt.clone();
            let mut ramble = Ramble::new(&tag);
            let mut say = |piece: &str| {
                if let Some(piece) = held.pass(piece) {
                    watch(Moment::Token(&piece));
                }
                ramble.goes_on(piece)
            };
            match self.chat(llm, &messages, MAX_REPLY, draft, &mut say) {
                // Tokens are estimated; a model that counts more of them refuses before it begins.
                Err(Ending::Failed(error)) if is_overflow(&error) && budget > LEAST_BUDGET => {
                    budget = (budget / 2).max(LEAST_BUDGET);
                    self.gather(draft, budget)?;
                }
                other => break (other?, tag),
            }
        };
        let texts: Vec<String> = draft.passages.iter().map(judged_text).collect();
        let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
        let verdict = judge(Ramble::before(&reply, &tag), &self.input.search.query, &texts);
        draft.reply = Some(reply);
        draft.confidence = Some(verdict.confidence);
        if verdict.cited.is_empty() || verdict.confidence < LEAST_CONFIDENCE {
            return Err(Ending::Refused(Refusal::LlmSelfJudge));
        }
        if verdict.attributed > 0 {
            draft.hints.push(ATTRIBUTED.into());
        }
        draft.answer = verdict.text;
        draft.cited = verdict.cited;
        Ok(())
    }

    /// The whole text; one that breaks off is a refusal.
    fn chat(
        &self,
        llm: &Llm,
        messages: &[Message],
        max_tokens: usize,
        draft: &mut Draft,
        say: &mut dyn FnMut(&str) -> bool,
    ) -> Result<String, Ending> {
        let (temperature, seed) = (self.input.temperature, self.input.seed);
        let chat = Chat { messages, max_tokens, temperature, seed, deadline: self.deadline };
        let Reply { text, prompt_tokens, completion_tokens, broken } = llm.chat(&chat, self.stop, say)?;
        let estimate = |text: &str| u64::from(estimate_tokens(text));
        let prompted = || messages.iter().map(|message| estimate(&message.content)).sum();
        draft.usage.prompt_tokens += prompt_tokens.unwrap_or_else(prompted);
        draft.usage.completion_tokens += completion_tokens.unwrap_or_else(|| estimate(&text));
        match broken {
            None => Ok(text),
            Some(error) => {
                draft.reply = Some(text);
                if !matches!(error, Error::Cancelled) {
                    draft.hints.push(format!("The model's answer broke off: {error}."));
                }
                Err(Ending::Refused(Refusal::LlmStreamAborted))
            }
        }
    }

    /// Keeps the turn, unless it was broken off.
    fn remember(&self, draft: &mut Draft) -> Result<()> {
        let Some(id) = &self.input.session_id else { return Ok(()) };
        if matches!(draft.refusal, Some(Refusal::LlmStreamAborted | Refusal::NoIndex)) {
            return Ok(());
        }
        let turn = Exchange {
            question: self.input.search.query.clone(),
            stand_alone: draft.question.clone(),
            answer: draft.answer.clone(),
        };
        Sessions::create(self.kb.data_dir())?.add(id, &turn, nanoseconds(Timestamp::now()))
    }

    /// The model whose vectors found any of the hits.
    fn embedding(&self, hits: &[Hit]) -> Option<AnswerModel> {
        let id = hits.iter().find_map(|hit| hit.embedding_model.clone())?;
        // It has just been used, so it is loaded.
        match self.kb.embedder(Duration::ZERO) {
            Slot::Ready(model) => {
                Some(AnswerModel { id, provider: model.provider().into(), dimensions: Some(model.dimensions()) })
            }
            Slot::Off | Slot::Loading | Slot::Failed(_) => None,
        }
    }

    fn finish(&self, draft: Draft) -> Answer {
        let explain = self.input.explain.then(|| explain(&draft));
        let first = draft.hits.first();
        let mode = first.map_or(self.input.search.mode.unwrap_or(Mode::Hybrid), |hit| hit.retrieval.method);
        let identity = format!("{:?}", (&draft.question, self.input.search.mode, self.k(), draft.revision));
        let cited = |passage: &&Passage| draft.cited.contains(&passage.number);
        let answer = match draft.refusal {
            Some(reason) => refusal_text(reason, &self.input.search.query).to_owned(),
            None => draft.answer.clone(),
        };
        let model = match (&self.kb.config.llm, &self.llm) {
            (Some(llm), Some(_)) => {
                AnswerModel { id: llm.model.clone(), provider: llm.provider.to_string(), dimensions: None }
            }
            _ => AnswerModel { id: "extractive".into(), provider: "extractive".into(), dimensions: None },
        };
        Answer {
            schema_version: AnswerV1,
            citations: draft
                .passages
                .iter()
                .filter(cited)
                .map(|passage| passage.cite(self.input.show_citations))
                .collect(),
            grounded: draft.refusal.is_none(),
            refusal_reason: draft.refusal,
            confidence: draft.confidence,
            model,
            embedding: self.embedding(&draft.hits),
            prompt_template_version: prompt::VERSION,
            retrieval: AnswerRetrieval {
                trace_id: Id::of(&[identity.as_bytes()]).to_string(),
                mode,
                k: self.k(),
                score_gate: self.kb.config.rag.score_gate,
                top_score: draft.top_evidence(),
                chunks_returned: draft.hits.len(),
                chunks_used: draft.passages.iter().map(|passage| passage.chunks).sum(),
            },
            usage: Usage { latency_ms: self.started.elapsed().as_millis() as u64, ..draft.usage },
            created_at: Timestamp::now().to_string(),
            session_id: self.input.session_id.clone(),
            hops: draft.hops,
            hint: (!draft.hints.is_empty()).then(|| draft.hints.join(" ")),
            explain,
            answer,
        }
    }
}

/// Turns that a follow-up question may refer to.
const REMEMBERED: usize = 4;

/// Less than this is no context.
const LEAST_BUDGET: usize = 200;

/// The best passages as they stand: grounded by construction. Those that rank first, of those for which nearly as much
/// speaks as for any.
fn quote(draft: &mut Draft) {
    let enough = NEARLY * draft.top_evidence();
    let best: Vec<&Passage> = draft.passages.iter().filter(|passage| passage.evidence >= enough).take(QUOTED).collect();
    let quotations: Vec<String> = best.iter().map(|passage| quoted(&passage.excerpt, &passage.marker())).collect();
    draft.cited = best.iter().map(|passage| passage.number).collect();
    draft.answer = quotations.join("\n\n");
}

/// What a sentence may rest on: a model sees where a passage stands, too.
fn judged_text(passage: &Passage) -> String {
    format!("{}\n{}\n{}", passage.path, passage.heading.join("\n"), passage.text)
}

/// The prompt has more tokens than the model takes.
fn is_overflow(error: &Error) -> bool {
    let Error::ModelUnreachable { cause, .. } = error else { return false };
    let said = cause.to_lowercase();
    said.contains("context")
        && ["exceed", "too long", "maximum", "larger", "overflow", "size"].iter().any(|word| said.contains(word))
}

/// Tells of marks that are not the model's.
const ATTRIBUTED: &str =
    "The model marked some sentences with no passage; those got the mark of the passage that holds their words.";

/// In the language of the question, as far as it can be told.
fn refusal_text(reason: Refusal, question: &str) -> &'static str {
    let korean = prompt::language(question) == "Korean";
    match (reason, korean) {
        (Refusal::NoIndex, false) => "There is no index to answer from.",
        (Refusal::NoIndex, true) => "아직 색인이 없어 답할 수 없습니다.",
        (Refusal::NoChunks, false) => "No document matches the question.",
        (Refusal::NoChunks, true) => "질문과 맞는 문서가 없습니다.",
        (Refusal::ScoreGate, false) => "No document comes close enough to the question to answer from it.",
        (Refusal::ScoreGate, true) => "질문에 답할 만큼 가까운 문서가 없습니다.",
        (Refusal::LlmSelfJudge, false) => "The documents found do not answer the question.",
        (Refusal::LlmSelfJudge, true) => "찾은 문서에는 질문에 대한 답이 없습니다.",
        (Refusal::LlmStreamAborted, false) => "The answer was broken off.",
        (Refusal::LlmStreamAborted, true) => "답변이 도중에 끊겼습니다.",
        (Refusal::MultiHopDecomposeFailed, false) => "The question could not be split into parts.",
        (Refusal::MultiHopDecomposeFailed, true) => "질문을 작은 질문으로 나누지 못했습니다.",
    }
}

fn explain(draft: &Draft) -> Explain {
    let role = |role| match role {
        Role::System => "system",
        Role::User => "user",
    };
    let passage = |passage: &Passage| ExplainedPassage {
        marker: passage.marker(),
        uri: passage.citation.uri().to_owned(),
        score: passage.score,
        lexical_score: passage.lexical,
        vector_score: passage.vector,
        words_held: passage.held,
        evidence: passage.evidence,
        tokens: passage.tokens,
    };
    let message = |message: &Message| ExplainedMessage { role: role(message.role), content: message.content.clone() };
    Explain {
        question: draft.question.clone(),
        passages: draft.passages.iter().map(passage).collect(),
        prompt: draft.prompt.iter().map(message).collect(),
        reply: draft.reply.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn overflows_are_known() {
        let said = |cause: &str| Error::ModelUnreachable {
            endpoint: String::new(),
            model: String::new(),
            cause: cause.into(),
            hint: String::new(),
        };
        assert!(is_overflow(&said("400: the request exceeds the available context size")));
        assert!(is_overflow(&said("400: This model's maximum context length is 4096 tokens")));
        assert!(!is_overflow(&said("500: out of memory")));
    }
}
