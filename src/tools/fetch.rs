//! `fetch`: the source text behind a citation: a chunk with its neighbours, a whole document, or lines of one.
//!
//! Texts are those of the store, verbatim: what was in the file when it was last ingested, `stale` tells if it still is.

use std::path::Path;

use jiff::Timestamp;
use serde_json::Value;
use unicode_normalization::UnicodeNormalization;

use super::args::Args;
use super::freshness::Judge;
use super::search::time_text;
use crate::config::Config;
use crate::error::{Error, Result};
use crate::ingest::decode::source_offset;
use crate::ingest::{PARSER_VERSION, chunk, document_path};
use crate::kb::Kb;
use crate::model::Id;
use crate::store::{ChunkRow, DocumentRow, Reader};
use crate::wire::{
    ChunkInspection, ChunkInspectionV1, DocSummary, DocSummaryV1, FetchBody, FetchResult, FetchResultV1, SourceSpan,
};

/// What to fetch, validated.
#[derive(Debug, Clone, PartialEq)]
pub struct Input {
    pub target: Target,
    /// Chunks to show before and after a chunk.
    pub context: usize,
    /// Of a document only these.
    pub lines: Option<Lines>,
    /// Four characters of text a token.
    pub max_tokens: Option<usize>,
}

#[derive(Debug, Clone, PartialEq)]
pub enum Target {
    Chunk(Id),
    Document(Id),
    /// A chunk or a document, whichever has the id.
    Either(Id),
    /// As hits show it, or absolute. Only one of all sources may have it.
    Path {
        path: String,
        source: Option<String>,
    },
}

/// 1-based lines of the source file, inclusive.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Lines {
    pub start: u32,
    /// None: to the end.
    pub end: Option<u32>,
}

impl Input {
    pub fn from_json(value: Value) -> Result<Input> {
        let mut args = Args::new(value)?;
        let chunk = args.id("chunk_id")?.map(Target::Chunk);
        let document = args.id("doc_id")?.map(Target::Document);
        let path = args.text("path")?;
        let uri = args.text("uri")?;
        let source = args.text("source")?;
        let context = args.whole("context", 0..=MAX_CONTEXT)?.unwrap_or(0) as usize;
        let start = args.whole("line_start", 1..=u64::from(u32::MAX))?.map(|line| line as u32);
        let end = args.whole("line_end", 1..=u64::from(u32::MAX))?.map(|line| line as u32);
        let max_tokens = args.whole("max_tokens", 1..=u64::MAX)?.map(|tokens| tokens as usize);
        args.finish()?;

        let mut lines = (start.is_some() || end.is_some()).then_some(Lines { start: start.unwrap_or(1), end });
        let mut named: Vec<Target> = chunk.into_iter().chain(document).collect();
        for (name, text) in [("path", path), ("uri", uri)] {
            let Some(text) = text else { continue };
            let (rest, cited) = split_lines(&text);
            if cited.is_some() && lines.is_some() {
                return Err(Error::input(name, "it names lines, and so do line_start and line_end"));
            }
            lines = cited.or(lines);
            named.push(target(name, rest, source.clone())?);
        }
        let target = match (named.pop(), named.is_empty()) {
            (Some(target), true) => target,
            (found, _) => {
                let reason = if found.is_some() { "more than one of them is given" } else { "it is missing" };
                let hint = "Give exactly one of chunk_id, doc_id, path and uri.";
                return Err(Error::input_hint("chunk_id, doc_id, path or uri", reason, hint));
            }
        };
        if source.is_some() && !matches!(target, Target::Path { .. }) {
            return Err(Error::input_hint("source", "an id needs none", "Give it with a path only."));
        }
        if let Some(Lines { start, end: Some(end) }) = lines
            && end < start
        {
            return Err(Error::input("line_end", format!("line {end} comes before line {start}")));
        }
        match &target {
            Target::Chunk(id) if lines.is_some() => Err(chunk_lines(*id)),
            Target::Document(_) | Target::Path { .. } if context > 0 => Err(document_context()),
            _ => Ok(Input { target, context, lines, max_tokens }),
        }
    }
}

pub fn run(kb: &Kb, input: &Input) -> Result<FetchResult> {
    kb.read_store(|store| {
        if store.revision()? == 0 {
            return Err(kb.not_indexed());
        }
        match &input.target {
            Target::Chunk(id) => match store.chunk_by_id(*id)? {
                Some(found) => chunk(kb, store, input, &found),
                None => Err(Error::ChunkNotFound { id: id.to_string() }),
            },
            Target::Document(id) => match store.document_by_id(*id)? {
                Some(found) => document(kb, store, input, &found),
                None => Err(Error::DocNotFound { id: id.to_string() }),
            },
            Target::Either(id) => match (store.chunk_by_id(*id)?, store.document_by_id(*id)?) {
                (Some(_), _) if input.lines.is_some() => Err(chunk_lines(*id)),
                (Some(found), _) => chunk(kb, store, input, &found),
                (None, Some(_)) if input.context > 0 => Err(document_context()),
                (None, Some(found)) => document(kb, store, input, &found),
                (None, None) => Err(Error::DocNotFound { id: id.to_string() }),
            },
            Target::Path { path, source } => {
                document(kb, store, input, &at_path(&kb.config, store, path, source.as_deref())?)
            }
        }
    })
}

const MAX_CONTEXT: u64 = 20;

const CHARS_A_TOKEN: usize = 4;

/// What a URI or a path names, its lines apart.
fn target(name: &str, text: &str, source: Option<String>) -> Result<Target> {
    let id = |hex: &str| {
        let wrong = || Error::input_hint(name, format!("{hex:?} is not an id"), "An id is 32 hex digits.");
        Id::parse(hex).ok_or_else(wrong)
    };
    if let Some(hex) = text.strip_prefix("kebab://doc/") {
        return id(hex).map(Target::Document);
    }
    if let Some(hex) = text.strip_prefix("kebab://chunk/") {
        return id(hex).map(Target::Chunk);
    }
    if name == "uri"
        && source.is_none()
        && let Some(id) = Id::parse(text)
    {
        return Ok(Target::Either(id));
    }
    if text.is_empty() {
        return Err(Error::input_hint(name, "it is empty", "Name a document, as hits show its path."));
    }
    Ok(Target::Path { path: text.to_owned(), source })
}

/// Parts `notes.md#L12-L34` into the path and the lines. Any other fragment is part of the name.
fn split_lines(text: &str) -> (&str, Option<Lines>) {
    let number = |text: &str| text.bytes().all(|b| b.is_ascii_digit()).then(|| text.parse().ok().filter(|n| *n > 0))?;
    let lines = |fragment: &str| {
        let range = fragment.strip_prefix('L')?;
        let (start, end) = range.split_once('-').unwrap_or((range, range));
        let end = end.strip_prefix('L').unwrap_or(end);
        Some(Lines { start: number(start)?, end: Some(number(end)?) })
    };
    match text.rsplit_once('#') {
        Some((path, fragment)) => lines(fragment).map_or((text, None), |lines| (path, Some(lines))),
        None => (text, None),
    }
}

fn chunk_lines(id: Id) -> Error {
    Error::SpanNotSupported { id: id.to_string(), reason: "a chunk is fetched whole".into() }
}

fn document_context() -> Error {
    Error::input_hint("context", "only a chunk has neighbours", "Leave it out, or give a chunk_id.")
}

fn at_path(config: &Config, store: &Reader, path: &str, source: Option<&str>) -> Result<DocumentRow> {
    let (path, source) = match below_root(config, path, source) {
        Some((path, source)) => (path, Some(source)),
        None => (path.strip_prefix("./").unwrap_or(path).nfc().collect(), source),
    };
    let mut found = store.documents_at(&path)?;
    found.retain(|document| source.is_none_or(|source| document.source == source));
    match (found.pop(), found.is_empty()) {
        (Some(only), true) => Ok(only),
        (None, _) => Err(Error::DocNotFound { id: path }),
        (Some(last), false) => {
            let sources: Vec<String> = found.into_iter().chain([last]).map(|document| document.source).collect();
            let reason = format!("{path} is in several: {}", sources.join(", "));
            Err(Error::input_hint("source", reason, "Add the source of the one you mean."))
        }
    }
}

/// The name and the source of a document that is given by an absolute path.
fn below_root<'c>(config: &'c Config, path: &str, source: Option<&str>) -> Option<(String, &'c str)> {
    let path = Path::new(path);
    let mut sources = config.sources.iter().filter(|known| source.is_none_or(|source| known.id == source));
    sources.find_map(|known| Some((document_path(path.strip_prefix(&known.root).ok()?), &known.id[..])))
}

fn chunk(kb: &Kb, store: &Reader, input: &Input, found: &ChunkRow) -> Result<FetchResult> {
    let document = store.document(found.document)?;
    let text = store.text(document.row, 0..store.text_len(document.row)?)?;
    let all = if input.context > 0 { store.chunks_of(document.row)? } else { Vec::new() };
    let at = all.iter().position(|chunk| chunk.row == found.row).unwrap_or(0);
    let before = &all[at.saturating_sub(input.context)..at];
    let after = if all.is_empty() { &[][..] } else { &all[at + 1..(at + 1 + input.context).min(all.len())] };

    let mut budget = Budget::new(input.max_tokens);
    let own = budget.cut(&text[found.chunk.bytes.clone()]);
    // The nearest first, in turn on both sides; a side ends where one does not fit.
    let (mut first, mut last) = (before.len(), 0);
    let (mut open_before, mut open_after) = (true, true);
    let mut fits = |chunk: &ChunkRow| budget.take(&text[chunk.chunk.bytes.clone()]);
    for _ in 0..input.context {
        open_before = open_before && first > 0 && fits(&before[first - 1]);
        first -= usize::from(open_before);
        open_after = open_after && last < after.len() && fits(&after[last]);
        last += usize::from(open_after);
    }
    let inspect = |chunk: &ChunkRow, shown: &str| inspection(&document, &text, chunk, shown);
    let whole = |chunk: &ChunkRow| inspect(chunk, &text[chunk.chunk.bytes.clone()]);
    let body = FetchBody::Chunk {
        chunk: inspect(found, own),
        context_before: before[first..].iter().map(whole).collect(),
        context_after: after[..last].iter().map(whole).collect(),
    };
    result(kb, store, &document, budget.truncated, body)
}

fn document(kb: &Kb, store: &Reader, input: &Input, document: &DocumentRow) -> Result<FetchResult> {
    let text = store.text(document.row, 0..store.text_len(document.row)?)?;
    let mut budget = Budget::new(input.max_tokens);
    let body = match input.lines {
        None => FetchBody::Doc { text: budget.cut(&text).to_owned(), doc: summary(store, document)? },
        Some(lines) => span(&text, lines, &mut budget)?,
    };
    result(kb, store, document, budget.truncated, body)
}

/// With their line ends, so that spans put together give the file again.
fn span(text: &str, lines: Lines, budget: &mut Budget) -> Result<FetchBody> {
    let mut from = None;
    let (mut to, mut last) = (0, 0);
    let mut at = 0;
    for (line, number) in text.split_inclusive('\n').zip(1u32..) {
        if number == lines.start {
            from = Some(at);
        }
        at += line.len();
        last = number;
        if lines.end.is_none_or(|end| number <= end) {
            to = at;
        }
    }
    let Some(from) = from else {
        let count = if last == 1 { "1 line".to_owned() } else { format!("{last} lines") };
        let reason = format!("line {} is behind the end: the document has {count}", lines.start);
        return Err(Error::input_hint("line_start", reason, "Ask for lines that are there."));
    };
    let shown = budget.cut(&text[from..to]);
    let effective_end = lines.start + shown.split_inclusive('\n').count().max(1) as u32 - 1;
    Ok(FetchBody::Span {
        text: shown.to_owned(),
        line_start: lines.start,
        line_end: lines.end.unwrap_or(last),
        effective_end,
    })
}

fn result(kb: &Kb, store: &Reader, document: &DocumentRow, truncated: bool, body: FetchBody) -> Result<FetchResult> {
    let judge = Judge::new(&kb.config, store, Timestamp::now())?;
    Ok(FetchResult {
        schema_version: FetchResultV1,
        doc_id: document.doc_id,
        doc_path: document.path.clone(),
        indexed_at: time_text(document.indexed_ns),
        stale: judge.judge(document).is_stale(),
        truncated,
        body,
    })
}

fn summary(store: &Reader, document: &DocumentRow) -> Result<DocSummary> {
    Ok(DocSummary {
        schema_version: DocSummaryV1,
        doc_id: document.doc_id,
        doc_path: document.path.clone(),
        title: document.title.clone(),
        lang: document.lang.clone(),
        tags: document.tags.clone(),
        trust_level: document.trust,
        source_type: document.source_type.clone(),
        source_uri: store.given(document.row)?.source_uri,
        source_id: document.source.clone(),
        byte_len: document.size,
        chunk_count: document.chunk_count,
        created_at: document.created.clone(),
        updated_at: document.updated.clone(),
        parser_version: PARSER_VERSION,
        chunker_version: chunk::VERSION,
    })
}

/// `text` is the document's, `shown` what of the chunk's is to be seen; the span is that of the whole chunk.
fn inspection(document: &DocumentRow, text: &str, found: &ChunkRow, shown: &str) -> ChunkInspection {
    let chunk = &found.chunk;
    let offset = |byte| source_offset(text, byte, document.encoding, document.bom);
    ChunkInspection {
        schema_version: ChunkInspectionV1,
        chunk_id: found.chunk_id,
        doc_id: document.doc_id,
        doc_path: document.path.clone(),
        heading_path: chunk.heading_path.clone(),
        text: shown.to_owned(),
        source_spans: vec![SourceSpan {
            byte_start: offset(chunk.bytes.start),
            byte_end: offset(chunk.bytes.end),
            line_start: chunk.lines.0,
            line_end: chunk.lines.1,
        }],
        token_estimate: chunk.tokens,
        chunker_version: chunk::VERSION,
    }
}

/// How many characters may still be shown.
struct Budget {
    left: usize,
    truncated: bool,
}

impl Budget {
    fn new(max_tokens: Option<usize>) -> Budget {
        Budget { left: max_tokens.map_or(usize::MAX, |tokens| tokens.saturating_mul(CHARS_A_TOKEN)), truncated: false }
    }

    /// As much as fits, cut behind a line where that costs less than half of it.
    fn cut<'t>(&mut self, text: &'t str) -> &'t str {
        let Some((end, _)) = text.char_indices().nth(self.left) else {
            self.left -= text.chars().count();
            return text;
        };
        (self.left, self.truncated) = (0, true);
        // A long line behind a short one is cut, lest most of the budget go unused.
        match text[..end].rfind('\n') {
            Some(line_end) if line_end >= end / 2 => &text[..line_end + 1],
            _ => &text[..end],
        }
    }

    /// True if all of it fits.
    fn take(&mut self, text: &str) -> bool {
        let chars = text.chars().count();
        let fits = chars <= self.left;
        self.left -= if fits { chars } else { 0 };
        self.truncated |= !fits;
        fits
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const ID: &str = "000102030405060708090a0b0c0d0e0f";

    fn read(value: Value) -> Result<Input, String> {
        Input::from_json(value).map_err(|error| error.to_string())
    }

    fn at(path: &str) -> Target {
        Target::Path { path: path.into(), source: None }
    }

    #[test]
    fn every_way_to_name_a_passage_is_understood() {
        let id = Id::parse(ID).unwrap();
        let lines = |start, end| Some(Lines { start, end });
        for (value, target, expected) in [
            (json!({"chunk_id": ID}), Target::Chunk(id), None),
            (json!({"doc_id": ID, "line_end": "7"}), Target::Document(id), lines(1, Some(7))),
            (json!({"path": "a.md", "line_start": 3}), at("a.md"), lines(3, None)),
            (json!({"path": "a.md#L3-L9"}), at("a.md"), lines(3, Some(9))),
            (json!({"uri": "a b/c#.md#L3"}), at("a b/c#.md"), lines(3, Some(3))),
            (json!({"uri": "a.md#L3-9"}), at("a.md"), lines(3, Some(9))),
            (json!({"uri": "a.md#L0"}), at("a.md#L0"), None),
            (json!({"uri": "a.md#Lx-L9"}), at("a.md#Lx-L9"), None),
            (json!({"uri": "a.md#L+3"}), at("a.md#L+3"), None),
            (json!({"uri": "a.md#section"}), at("a.md#section"), None),
            (json!({"uri": ID}), Target::Either(id), None),
            (json!({"path": ID}), at(ID), None),
            (json!({"uri": format!("kebab://doc/{ID}#L2-L4")}), Target::Document(id), lines(2, Some(4))),
            (json!({"uri": format!("kebab://chunk/{ID}")}), Target::Chunk(id), None),
        ] {
            let input = read(value.clone()).unwrap();
            assert_eq!((input.target, input.lines), (target, expected), "{value}");
        }
    }

    #[test]
    fn what_cannot_be_meant_is_refused() {
        for (value, message) in [
            (json!({}), "chunk_id, doc_id, path or uri: it is missing"),
            (json!({"doc_id": ID, "path": "a"}), "chunk_id, doc_id, path or uri: more than one of them is given"),
            (json!({"chunk_id": "12"}), "chunk_id: \"12\" is not an id"),
            (json!({"uri": "kebab://doc/12"}), "uri: \"12\" is not an id"),
            (json!({"path": ""}), "path: it is empty"),
            (json!({"path": "a#L1", "line_start": 2}), "path: it names lines, and so do line_start and line_end"),
            (json!({"path": "a", "line_start": 3, "line_end": 2}), "line_end: line 2 comes before line 3"),
            (json!({"path": "a#L3-L2"}), "line_end: line 2 comes before line 3"),
            (json!({"doc_id": ID, "source": "x"}), "source: an id needs none"),
            (json!({"doc_id": ID, "context": 1}), "context: only a chunk has neighbours"),
            (json!({"chunk_id": ID, "line_start": 1}), &format!("span of {ID}: a chunk is fetched whole")),
            (json!({"chunk_id": ID, "context": 21}), "context: a whole number from 0 to 20 is needed, found 21"),
            (json!({"doc": ID}), "doc: no such argument"),
        ] {
            assert_eq!(read(value).unwrap_err(), message);
        }
    }

    fn lines(
        text: &str,
        start: u32,
        end: Option<u32>,
        max_tokens: Option<usize>,
    ) -> Result<(String, u32, u32), String> {
        match span(text, Lines { start, end }, &mut Budget::new(max_tokens)).map_err(|error| error.to_string())? {
            FetchBody::Span { text, line_end, effective_end, .. } => Ok((text, line_end, effective_end)),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn spans_are_lines_of_the_file() {
        let text = "one\r\ntwo\n\nfour";
        let ok = |text: &str, end, effective| Ok((text.to_owned(), end, effective));
        assert_eq!(lines(text, 1, Some(2), None), ok("one\r\ntwo\n", 2, 2));
        assert_eq!(lines(text, 3, Some(3), None), ok("\n", 3, 3));
        assert_eq!(lines(text, 4, Some(9), None), ok("four", 9, 4));
        assert_eq!(lines(text, 2, None, None), ok("two\n\nfour", 4, 4));
        assert_eq!(lines("one\n", 1, Some(5), None), ok("one\n", 5, 1));
        let behind = |line, count| Err(format!("line_start: line {line} is behind the end: the document has {count}"));
        assert_eq!(lines(text, 5, None, None), behind(5, "4 lines"));
        assert_eq!(lines("one\n", 2, None, None), behind(2, "1 line"));
        assert_eq!(lines("", 1, None, None), behind(1, "0 lines"));
        assert_eq!(lines(text, 1, None, Some(2)), ok("one\r\n", 4, 1));
        assert_eq!(lines("한글 문서의 첫 줄", 1, None, Some(1)), ok("한글 문", 1, 1));
    }

    #[test]
    fn a_budget_counts_characters() {
        let mut budget = Budget::new(Some(2));
        assert_eq!((budget.cut("한글한글"), budget.left, budget.truncated), ("한글한글", 4, false));
        assert!(budget.take("abcd"));
        assert!(!budget.take("e"));
        assert!(budget.truncated);
        assert_eq!(Budget::new(None).cut("abc"), "abc");
        assert_eq!(Budget::new(Some(1)).cut("ab\ncd"), "ab\n");
        assert_eq!(Budget::new(Some(1)).cut("a\nbcde"), "a\nbc");
    }
}
