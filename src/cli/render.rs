//! Answers as people read them. Whatever comes from a document passes `clean` first.
//!
//! Refuses: the streams themselves, JSON, and anything that is not in the answer.

use std::io::{self, Write};

use indicatif::HumanBytes;
use kebab_lite::index::lexical::Query;
use kebab_lite::index::snippet::Matcher;
use kebab_lite::wire::{
    BulkItem, Citation, Doctor, FetchBody, FetchResult, Hit, IngestItem, IngestReport, IngestResult, Schema,
    SearchResponse, ServerStatus, Trace, TraceEntry,
};
use serde_json::{Map, Value};

use super::text::{Ink, Style, clean, clean_line};

type Out<'a> = &'a mut dyn Write;

/// Hits as ripgrep shows matches: where, then what. Weak ones are folded for a person and shown to a pipe.
pub fn search(out: Out, style: Style, query: &str, response: &SearchResponse) -> io::Result<()> {
    let matcher = Matcher::new(&Query::parse(query));
    let (weak, shown): (Vec<_>, Vec<_>) = response.hits.iter().partition(|hit| hit.weak && style.terminal);
    for (place, hit) in shown.iter().enumerate() {
        if place > 0 {
            writeln!(out)?;
        }
        search_hit(out, style, &matcher, hit)?;
    }
    match weak.len() {
        0 => Ok(()),
        1 => writeln!(out, "\n{}", style.paint(Ink::Dim, "… 1 weaker hit (a pipe or --json shows it)")),
        more => {
            writeln!(out, "\n{}", style.paint(Ink::Dim, &format!("… {more} weaker hits (a pipe or --json shows them)")))
        }
    }
}

fn search_hit(out: Out, style: Style, matcher: &Matcher, hit: &Hit) -> io::Result<()> {
    let (start, end, symbol) = match &hit.citation {
        Citation::Line { start, end, .. } => (start, end, None),
        Citation::Code { line_start, line_end, symbol, .. } => (line_start, line_end, symbol.as_deref()),
    };
    let lines = if start == end { start.to_string() } else { format!("{start}-{end}") };
    let path = style.paint(Ink::Path, &clean_line(&hit.doc_path));
    write!(out, "{path}:{}", style.paint(Ink::Line, &lines))?;
    let headings: Vec<&str> = hit.heading_path.iter().map(String::as_str).chain(symbol).collect();
    if !headings.is_empty() {
        write!(out, "  {}", style.paint(Ink::Dim, &clean_line(&headings.join(" › "))))?;
    }
    if hit.stale {
        write!(out, "  {}", style.paint(Ink::Bad, "stale"))?;
    }
    writeln!(out)?;
    let snippet = clean(&hit.snippet);
    let matches = if style.colour { matcher.matches(&snippet) } else { Vec::new() };
    let painted = style.paint_ranges(Ink::Match, &snippet, matches.into_iter().map(|found| found.range));
    for line in painted.trim_end().lines() {
        writeln!(out, "{}", format!("    {line}").trim_end())?;
    }
    Ok(())
}

/// What stands beside the hits.
pub fn notes(response: &SearchResponse) -> Vec<String> {
    let mut notes = Vec::new();
    if response.hits.is_empty() {
        notes.push("no hits".to_owned());
    }
    if response.truncated {
        notes.push("shortened to fit the token limit".to_owned());
    }
    notes.extend(response.hint.as_ref().map(|hint| format!("hint: {hint}")));
    notes.extend(response.next_cursor.as_ref().map(|cursor| format!("more: --cursor {cursor}")));
    notes
}

pub fn bulk_item(out: Out, style: Style, item: &BulkItem) -> io::Result<()> {
    // What does not parse is shown as it came; the error below says why.
    let object: Option<Map<String, Value>> = serde_json::from_str(item.query.get()).ok();
    let query = object.as_ref().and_then(|object| object.get("query")?.as_str());
    let shown: String = query.unwrap_or(item.query.get()).chars().take(200).collect();
    writeln!(out, "{}", style.paint(Ink::Good, &format!("» {}", clean_line(&shown))))?;
    match &item.outcome {
        Ok(response) => {
            search(out, style, query.unwrap_or_default(), response)?;
            notes(response)
                .iter()
                .try_for_each(|note| writeln!(out, "{}", style.paint(Ink::Dim, &clean_line(note))))?;
            response.trace.as_ref().map_or(Ok(()), |response| trace(out, style, response))
        }
        Err(error) => {
            writeln!(out, "{} {}", style.paint(Ink::Bad, "error:"), clean_line(&error.message))?;
            error.hint.as_ref().map_or(Ok(()), |hint| writeln!(out, "  hint: {}", clean_line(hint)))
        }
    }
}

pub fn trace(out: Out, style: Style, trace: &Trace) -> io::Result<()> {
    let heading = |text: String| style.paint(Ink::Dim, &text);
    let timing = &trace.timing;
    writeln!(out, "\n{}", heading(format!("trace: {:.2} ms", timing.total_ms)))?;
    for (name, entries, ms) in
        [("lexical", &trace.lexical, timing.lexical_ms), ("vector", &trace.vector, timing.vector_ms)]
    {
        writeln!(out, "{}", heading(format!("  {name}: {} candidates, {ms:.2} ms", entries.len())))?;
        for TraceEntry { rank, score, chunk_id, doc_path, .. } in entries {
            writeln!(out, "  {rank:>4}  {score:>8.3}  {chunk_id}  {}", clean_line(doc_path))?;
        }
    }
    for fit in &trace.fit {
        let number = |number: Option<f32>| number.map_or("-".to_owned(), |number| format!("{number:.4}"));
        let (theta, beta) = (number(fit.theta), number(fit.beta));
        let blind = if fit.blind { ", blind" } else { "" };
        let line = format!("  fit of {}: {} chunks, by {}, θ {theta}, β {beta}{blind}", fit.group, fit.chunks, fit.of);
        writeln!(out, "{}", heading(line))?;
    }
    writeln!(out, "{}", heading(format!("  fused: {} inputs, {:.2} ms", trace.rrf_inputs.len(), timing.fusion_ms)))?;
    let rank = |rank: Option<usize>| rank.map_or("-".to_owned(), |rank| rank.to_string());
    let nats = |nats: Option<f32>| nats.map_or(String::new(), |nats| format!(" ({nats:.2})"));
    for input in &trace.rrf_inputs {
        let lexical = rank(input.lexical_rank) + &nats(input.lexical_evidence);
        let vector = rank(input.vector_rank) + &nats(input.vector_evidence);
        writeln!(out, "  {:>14.3}  {}  lexical {lexical}, vector {vector}", input.fusion_score, input.chunk_id)?;
    }
    Ok(())
}

/// `list`: every item; else only the failed ones.
pub fn ingest(out: Out, style: Style, report: &IngestReport, list: bool) -> io::Result<()> {
    let items = report.items.as_deref().unwrap_or_default();
    if list {
        items.iter().try_for_each(|item| ingest_item(out, style, item))?;
    }
    let seconds = report.duration_ms as f64 / 1000.0;
    let root = clean_line(&report.scope.root);
    let stopped = if report.aborted { "stopped: " } else { "" };
    let files = if report.scanned == 1 { "file" } else { "files" };
    writeln!(out, "{stopped}{} {files} in {root}, {seconds:.1} s", report.scanned)?;
    let counts = [
        ("new", report.new),
        ("updated", report.updated),
        ("unchanged", report.unchanged),
        ("removed", report.purged_deleted_files),
        ("skipped", report.skipped),
        ("failed", report.errors),
    ];
    for (name, count) in counts.into_iter().filter(|(_, count)| *count > 0) {
        let name = format!("{name:<9}");
        let painted = if name.starts_with("failed") { style.paint(Ink::Bad, &name) } else { name };
        writeln!(out, "  {painted} {count:>7}")?;
        match painted.trim() {
            _ if list => {}
            "skipped" => skips(out, style, report)?,
            _ => {}
        }
    }
    for item in items.iter().filter(|item| !list && item.error.is_some()) {
        ingest_item(out, style, item)?;
    }
    if let Some(embedding) = &report.embedding {
        let counts =
            [("embedded", embedding.embedded), ("reused", embedding.reused), ("not embedded", embedding.pending)];
        let counts = counts.iter().filter(|(_, count)| *count > 0).map(|(name, count)| format!("{count} {name}"));
        let counts: Vec<String> = counts.collect();
        if !counts.is_empty() {
            writeln!(out, "  passages  {}", counts.join(", "))?;
        }
    }
    report.hint.as_ref().map_or(Ok(()), |hint| writeln!(out, "hint: {}", clean_line(hint)))
}

/// What became of each file.
pub fn ingest_items(out: Out, style: Style, report: &IngestReport) -> io::Result<()> {
    report.items.iter().flatten().try_for_each(|item| ingest_item(out, style, item))?;
    report.hint.as_ref().map_or(Ok(()), |hint| writeln!(out, "hint: {}", clean_line(hint)))
}

/// The text and nothing else: a pipe gets it byte for byte, a terminal what is harmless of it. A chunk ends without its
/// line end, and gets one.
pub fn fetch(out: Out, style: Style, result: &FetchResult) -> io::Result<()> {
    let texts: Vec<&str> = match &result.body {
        FetchBody::Doc { text, .. } | FetchBody::Span { text, .. } => vec![text],
        FetchBody::Chunk { chunk, context_before, context_after } => {
            let chunks = context_before.iter().chain([chunk]).chain(context_after);
            chunks.flat_map(|chunk| [&chunk.text, "\n\n"]).collect()
        }
    };
    let is_chunk = matches!(result.body, FetchBody::Chunk { .. });
    let text = texts.concat();
    let text = if is_chunk { format!("{}\n", text.trim_end_matches('\n')) } else { text };
    match style.terminal {
        false => write!(out, "{text}"),
        true => writeln!(out, "{}", clean(text.strip_suffix('\n').unwrap_or(&text))),
    }
}

fn skips(out: Out, style: Style, report: &IngestReport) -> io::Result<()> {
    for (reason, count) in &report.skipped_by_reason {
        let examples = report.skip_examples.get(reason).map(Vec::as_slice).unwrap_or_default();
        let more = if (examples.len() as u64) < *count { ", …" } else { "" };
        let shown = format!("{}{more}", clean_line(&examples.join(", ")));
        writeln!(out, "    {count:>7} {reason}  {}", style.paint(Ink::Dim, &shown))?;
    }
    Ok(())
}

fn ingest_item(out: Out, style: Style, item: &IngestItem) -> io::Result<()> {
    let (word, ink) = match item.result {
        IngestResult::New => ("new", Ink::Good),
        IngestResult::Updated => ("updated", Ink::Good),
        IngestResult::Unchanged => ("unchanged", Ink::Dim),
        IngestResult::Skipped => ("skipped", Ink::Dim),
        IngestResult::Error => ("failed", Ink::Bad),
        IngestResult::Purged => ("removed", Ink::Dim),
    };
    let path = clean_line(&item.path);
    let why = item.error.as_ref().map(|error| error.message.as_str()).or(item.reason);
    let why = why.map_or(String::new(), |why| format!(": {}", clean_line(why)));
    writeln!(out, "{} {path}{why}", style.paint(ink, &format!("{word:<9}")))
}

pub fn schema(out: Out, style: Style, schema: &Schema) -> io::Result<()> {
    let (models, stats) = (&schema.models, &schema.stats);
    let or_none = |text: Option<&str>| text.unwrap_or("none").to_owned();
    let breakdown = |counts: &std::collections::BTreeMap<String, u64>| {
        let parts: Vec<_> = counts.iter().map(|(name, count)| format!("{} {count}", clean_line(name))).collect();
        if parts.is_empty() { "none".to_owned() } else { parts.join(", ") }
    };
    writeln!(out, "kebab-lite {}", schema.kebab_version)?;
    let index = [
        ("documents", stats.doc_count.to_string()),
        ("chunks", stats.chunk_count.to_string()),
        ("files", stats.asset_count.to_string()),
        ("stale documents", stats.stale_doc_count.to_string()),
        ("last ingest", or_none(stats.last_ingest_at.as_deref())),
        ("revision", models.corpus_revision.to_string()),
        ("store", HumanBytes(stats.index_bytes.sqlite).to_string()),
        ("index", HumanBytes(stats.index_bytes.index).to_string()),
        ("vectors", HumanBytes(stats.index_bytes.vectors).to_string()),
        ("embedded chunks", stats.embedded_chunk_count.to_string()),
        ("kinds", breakdown(&stats.media_breakdown)),
        ("languages", breakdown(&stats.lang_breakdown)),
        ("code", breakdown(&stats.code_lang_breakdown)),
        ("repositories", breakdown(&stats.repo_breakdown)),
    ];
    table(out, style, "index", &index)?;
    let versions = [
        ("parser", models.parser_version.to_owned()),
        ("chunker", models.chunker_version.to_owned()),
        ("index", models.index_version.to_owned()),
        ("embedding", or_none(models.embedding_version.as_deref())),
        ("prompt", or_none(models.prompt_template_version)),
        ("parsers", models.active_parsers.join(", ")),
        ("chunkers", models.active_chunkers.join(", ")),
    ];
    table(out, style, "versions", &versions)?;
    let capabilities: Vec<_> =
        schema.capabilities.iter().map(|(name, on)| (*name, if *on { "yes" } else { "no" }.to_owned())).collect();
    table(out, style, "capabilities", &capabilities)?;
    table(out, style, "wire", &[("schemas", format!("{}, listed by --json", schema.wire.schemas.len()))])
}

fn table(out: Out, style: Style, title: &str, rows: &[(&str, String)]) -> io::Result<()> {
    let width = rows.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    writeln!(out, "\n{}", style.paint(Ink::Path, title))?;
    rows.iter().try_for_each(|(name, value)| writeln!(out, "  {name:<width$}  {value}"))
}

pub fn server(out: Out, style: Style, status: &ServerStatus) -> io::Result<()> {
    if !status.running {
        return writeln!(out, "no server of {} is running", clean_line(&status.root));
    }
    let or_none = |text: &Option<String>| clean_line(text.as_deref().unwrap_or("unknown"));
    let rows = [
        ("url", or_none(&status.url)),
        ("process", status.pid.map_or("unknown".to_owned(), |pid| pid.to_string())),
        ("version", or_none(&status.version)),
        ("root", clean_line(&status.root)),
        ("store", clean_line(&status.store)),
        ("token", clean_line(&status.token_file)),
        ("since", or_none(&status.started_at)),
    ];
    table(out, style, "server", &rows)
}

pub fn doctor(out: Out, style: Style, doctor: &Doctor) -> io::Result<()> {
    let width = doctor.checks.iter().map(|check| check.name.len()).max().unwrap_or(0);
    for check in &doctor.checks {
        let verdict = if check.ok { style.paint(Ink::Good, "ok  ") } else { style.paint(Ink::Bad, "FAIL") };
        writeln!(out, "{verdict}  {:<width$}  {}", check.name, clean_line(&check.detail))?;
        if let Some(hint) = &check.hint {
            writeln!(out, "      {:<width$}  hint: {}", "", clean_line(hint))?;
        }
    }
    writeln!(out, "{}", if doctor.ok { "healthy" } else { "unhealthy" })
}

#[cfg(test)]
mod tests {
    use super::*;
    use kebab_lite::model::{Id, Mode, ScoreKind, Trust};
    use kebab_lite::wire::{Retrieval, SearchHitV1, SearchResponseV1};

    const PLAIN: Style = Style { terminal: false, colour: false };

    fn hit(path: &str, snippet: &str, weak: bool) -> Hit {
        let citation = Citation::Line { path: path.into(), start: 3, end: 9, section: None, uri: String::new() };
        let retrieval = Retrieval {
            method: Mode::Lexical,
            fusion_score: 1.0,
            lexical_score: None,
            vector_score: None,
            lexical_rank: None,
            vector_rank: None,
        };
        Hit {
            schema_version: SearchHitV1,
            rank: 1,
            score: 1.0,
            score_kind: ScoreKind::Bm25,
            weak,
            chunk_id: Id([0; 16]),
            doc_id: Id([0; 16]),
            doc_path: path.into(),
            heading_path: vec!["Guide".into(), "Back\u{1b}[31mups".into()],
            section_label: None,
            snippet: snippet.into(),
            snippet_full_text: true,
            citation,
            retrieval,
            index_version: "",
            embedding_model: None,
            chunker_version: "",
            indexed_at: String::new(),
            stale: false,
            repo: None,
            code_lang: None,
            source_id: String::new(),
            trust_level: Trust::Primary,
        }
    }

    fn response(hits: Vec<Hit>) -> SearchResponse {
        SearchResponse {
            schema_version: SearchResponseV1,
            hits,
            next_cursor: None,
            truncated: false,
            trace: None,
            hint: None,
        }
    }

    fn shown(style: Style, response: &SearchResponse) -> String {
        let mut out = Vec::new();
        search(&mut out, style, "backup", response).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn a_pipe_gets_plain_text_and_every_hit() {
        let answer = response(vec![hit("a.md", "Make a backup.\n\nOften.\n", false), hit("b\u{7}.md", "x", true)]);
        let expected =
            "a.md:3-9  Guide › Backups\n    Make a backup.\n\n    Often.\n\nb.md:3-9  Guide › Backups\n    x\n";
        assert_eq!(shown(PLAIN, &answer), expected);
    }

    #[test]
    fn a_person_sees_matches_marked_and_weak_hits_folded() {
        let answer =
            response(vec![hit("a.md", "Make a backup.", false), hit("b.md", "x", true), hit("c.md", "x", true)]);
        let expected = "\u{1b}[35ma.md\u{1b}[0m:\u{1b}[32m3-9\u{1b}[0m  \u{1b}[2mGuide › Backups\u{1b}[0m\n    \
                        Make a \u{1b}[1;31mbackup\u{1b}[0m.\n\n\u{1b}[2m… 2 weaker hits (a pipe or --json shows them)\u{1b}[0m\n";
        assert_eq!(shown(Style { terminal: true, colour: true }, &answer), expected);
    }

    #[test]
    fn notes_tell_what_the_hits_do_not() {
        let mut answer = response(vec![]);
        assert_eq!(notes(&answer), ["no hits"]);
        answer.truncated = true;
        answer.hint = Some("Lexical only.".into());
        answer.next_cursor = Some("abc".into());
        assert_eq!(
            notes(&answer)[1..],
            ["shortened to fit the token limit", "hint: Lexical only.", "more: --cursor abc"]
        );
    }
}
