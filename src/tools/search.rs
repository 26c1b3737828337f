//! `search`: the best passages for a query, with citations.

use std::time::Instant;

use globset::{GlobBuilder, GlobMatcher};
use jiff::Timestamp;
use serde_json::Value;
use unicode_normalization::UnicodeNormalization;

use super::args::Args;
use super::freshness::{Freshness, Judge};
use super::hybrid::{Findings, Found, Means, find};
use super::rank::{Texts, needle};
use super::rerank::rerank;
use super::with_repair;
use crate::error::{Error, Result};
use crate::index;
use crate::index::lexical::Query;
use crate::index::snippet::{Match, Matcher, window};
use crate::ingest::parse::seems_markup;
use crate::ingest::{chunk, nanoseconds};
use crate::kb::{Kb, View};
use crate::model::{Filter, Media, Mode, Rows, Trust};
use crate::store::{ChunkRow, DocumentRow};
use crate::wire::{
    Citation, FusionInput, Hit, Retrieval, SearchHitV1, SearchResponse, SearchResponseV1, Timing, Trace, TraceEntry,
};

/// A search, validated.
#[derive(Debug, Clone, Default)]
pub struct SearchInput {
    pub query: String,
    pub mode: Option<Mode>,
    /// None: the configured default.
    pub k: Option<usize>,
    pub max_tokens: Option<usize>,
    pub snippet_chars: Option<usize>,
    pub cursor: Option<String>,
    pub trace: bool,
    pub filter: Filter,
    pub drop_weak: bool,
}

impl SearchInput {
    pub fn from_json(value: Value) -> Result<SearchInput> {
        let mut args = Args::new(value)?;
        args.alias("tags", "tag");
        let query = args.required_text("query")?;
        let whole = |value: Option<u64>| value.map(|number| number as usize);
        let input = SearchInput {
            mode: args.word("mode", Mode::parse, &Mode::choices())?,
            k: whole(args.whole("k", 1..=MAX_K)?),
            max_tokens: whole(args.whole("max_tokens", 1..=u64::MAX)?),
            snippet_chars: whole(args.whole("snippet_chars", 1..=MAX_SNIPPET_CHARS)?),
            cursor: args.text("cursor")?,
            trace: args.flag("trace")?,
            filter: Filter {
                tags: args.list("tag")?,
                lang: args.text("lang")?.map(|lang| primary_tag(&lang)),
                path_glob: glob(&mut args, "path_glob")?,
                trust_min: args.word("trust_min", Trust::parse, &Trust::choices())?,
                media: args
                    .list("media")?
                    .into_iter()
                    .map(|media| if media == "md" { "markdown".into() } else { media })
                    .collect(),
                ingested_after: args.time("ingested_after")?.map(nanoseconds),
                doc_id: args.id("doc_id")?,
                sources: args.list("source")?,
                repos: args.list("repo")?,
                code_langs: args.list("code_lang")?.into_iter().map(|lang| lang.to_lowercase()).collect(),
                exclude_tags: args.list("exclude_tag")?,
                exclude_path_glob: glob(&mut args, "exclude_path_glob")?,
                exclude_doc_ids: args.ids("exclude_doc_id")?,
            },
            drop_weak: args.flag("drop_weak")?,
            query,
        };
        args.finish()?;
        if input.query.trim().is_empty() {
            return Err(Error::input_hint("query", "it is empty", "Ask for at least one word."));
        }
        Ok(input)
    }

    /// What a cursor is bound to, the state of the corpus apart: all that decides which hits there are in which order.
    fn identity(&self) -> String {
        let filter = &self.filter;
        let globs = [&filter.path_glob, &filter.exclude_path_glob]
            .map(|glob| glob.as_ref().map(|glob| glob.glob().glob().to_owned()));
        let rest = Filter { path_glob: None, exclude_path_glob: None, ..filter.clone() };
        format!("{:?}", (&self.query, self.mode(), rest, globs, self.drop_weak))
    }

    pub fn mode(&self) -> Mode {
        self.mode.unwrap_or(Mode::Hybrid)
    }
}

pub const MAX_K: u64 = 100;

const MAX_SNIPPET_CHARS: u64 = 100_000;

/// A hit whose score is below this share of the first hit's is weak.
pub const WEAK_SHARE: f32 = 0.4;

pub fn run(kb: &Kb, input: &SearchInput) -> Result<SearchResponse> {
    with_repair(kb, || kb.read(|view| search(kb, view, input)))
}

fn search(kb: &Kb, view: &View, input: &SearchInput) -> Result<SearchResponse> {
    let started = Instant::now();
    let binding = binding(view, input)?;
    let cursor = input.cursor.as_deref().map(|cursor| parse_cursor(cursor, &binding)).transpose()?;
    let offset = cursor.as_ref().map_or(0, |cursor| cursor.offset);
    let k = input.k.unwrap_or(kb.config.search.default_k);
    let accept = (!input.filter.is_open()).then(|| view.store.select(&input.filter)).transpose()?;
    let query = Query::parse(&input.query);

    let mut hints = Vec::new();
    // One more than the page shows whether another page follows.
    let mut findings = find(kb, view, input, &query, accept.as_ref(), offset + k + 1, &mut hints)?;
    if input.mode() == Mode::Hybrid {
        rerank(kb, view, input, &mut findings, &mut hints)?;
    }
    let means = means_word(kb, &findings.means);
    if cursor.is_some_and(|cursor| cursor.means != means) {
        return Err(Error::StaleCursor);
    }
    if input.drop_weak {
        findings.found.retain(|found| !found.weak);
    }
    let found = &findings.found;

    let mut page = Page::new(kb, view, &query, input)?;
    for (i, found) in found.iter().enumerate().skip(offset).take(k) {
        page.add(i + 1, found, &findings.means)?;
    }
    let truncated = page.fit(input.max_tokens);
    let shown = offset + page.entries.len();
    let next_cursor = (shown < found.len()).then(|| format!("{binding}{means}{shown:08x}"));

    if view.index.chunks() == 0 {
        // Nothing else about the answer matters then.
        hints = vec![
            "The index is empty: no file was found that can be indexed. `kebab-lite ingest --list` says what was skipped."
                .into(),
        ];
    }
    hints.extend(page.stale_hint());
    hints.extend(kb.interrupted().map(|before| {
        format!("The ingest begun at {} was interrupted; this answers from the whole corpus before it. Run `kebab-lite ingest`.", before.since)
    }));
    let hits: Vec<Hit> = page.entries.into_iter().map(|entry| entry.hit).collect();
    let trace = input.trace.then(|| trace(view, &findings)).transpose()?;
    let timing = Timing { total_ms: milliseconds(started), ..findings.timing };
    Ok(SearchResponse {
        schema_version: SearchResponseV1,
        hits,
        next_cursor,
        truncated,
        trace: trace.map(|trace| Trace { timing, ..trace }),
        hint: (!hints.is_empty()).then(|| hints.join(" ")),
    })
}

/// The hits of one page, with what is needed to shorten their snippets.
struct Page<'p> {
    judge: Judge<'p>,
    /// Hits share documents, and looking at a file takes a system call.
    judged: Vec<(u32, Freshness)>,
    matcher: Matcher,
    /// What a query without terms looks for.
    needle: Option<String>,
    snippet_chars: usize,
    texts: Texts<'p>,
    entries: Vec<Entry>,
}

struct Entry {
    hit: Hit,
    text: String,
    matches: Vec<Match>,
    changed: bool,
}

impl<'p> Page<'p> {
    fn new(kb: &'p Kb, view: &'p View<'p>, query: &Query, input: &'p SearchInput) -> Result<Self> {
        Ok(Page {
            judge: Judge::new(&kb.config, view.store, Timestamp::now())?,
            judged: Vec::new(),
            matcher: Matcher::new(query),
            needle: query.terms.is_empty().then(|| needle(&input.query)),
            snippet_chars: input.snippet_chars.unwrap_or(kb.config.search.snippet_chars),
            texts: Texts::new(view),
            entries: Vec::new(),
        })
    }

    fn add(&mut self, rank: usize, found: &Found, means: &Means) -> Result<()> {
        let (document, chunk, text) = self.texts.read(found.rows)?;
        let freshness = match self.judged.iter().find(|(row, _)| *row == document.row) {
            Some((_, freshness)) => *freshness,
            None => {
                let freshness = self.judge.judge(document);
                self.judged.push((document.row, freshness));
                freshness
            }
        };
        let hit = Hit {
            schema_version: SearchHitV1,
            rank,
            score: found.score,
            score_kind: found.kind,
            weak: found.weak,
            chunk_id: chunk.chunk_id,
            doc_id: document.doc_id,
            doc_path: document.path.clone(),
            section_label: section(&chunk),
            citation: citation(document, &chunk),
            heading_path: chunk.chunk.heading_path,
            snippet: String::new(),
            snippet_full_text: false,
            retrieval: Retrieval {
                method: means.method,
                fusion_score: found.fused,
                lexical_score: found.lexical,
                vector_score: found.vector,
                lexical_rank: found.lexical_rank,
                vector_rank: found.vector_rank,
            },
            index_version: index::VERSION,
            embedding_model: found.vector.and_then(|_| means.model.clone()),
            chunker_version: chunk::VERSION,
            indexed_at: time_text(document.indexed_ns),
            stale: freshness.is_stale(),
            repo: document.repo.clone(),
            code_lang: document.code_lang.clone(),
            source_id: document.source.clone(),
            trust_level: document.trust,
        };
        let mut matches = match &self.needle {
            Some(needle) => literal_matches(&text, needle),
            None => self.matcher.matches(&text),
        };
        if document.media == Media::Markdown {
            prefer_words(&text, &mut matches);
        }
        let mut entry = Entry { hit, matches, text, changed: freshness == Freshness::Changed };
        entry.show(self.snippet_chars);
        self.entries.push(entry);
        Ok(())
    }

    /// Shortens snippets, then drops the last hits, until the serialised hits fit the budget or one hit is left.
    fn fit(&mut self, max_tokens: Option<usize>) -> bool {
        let Some(budget) = max_tokens.map(|tokens| tokens.saturating_mul(CHARS_A_TOKEN)) else { return false };
        let size = |entries: &[Entry]| -> usize { entries.iter().map(Entry::chars).sum::<usize>() + 1 + entries.len() };
        // Most answers are far below their budget; that shows without serialising them.
        if self.entries.iter().map(Entry::most_chars).sum::<usize>() <= budget || size(&self.entries) <= budget {
            return false;
        }
        let least = LEAST_SNIPPET_CHARS.min(self.snippet_chars);
        // The longest snippets that fit; sizes grow with the limit, so bisection finds it.
        let (mut low, mut high) = (least, self.snippet_chars);
        while low < high {
            let middle = low + (high - low).div_ceil(2);
            self.entries.iter_mut().for_each(|entry| entry.show(middle));
            match size(&self.entries) <= budget {
                true => low = middle,
                false => high = middle - 1,
            }
        }
        self.entries.iter_mut().for_each(|entry| entry.show(low));
        while self.entries.len() > 1 && size(&self.entries) > budget {
            self.entries.pop();
        }
        true
    }

    fn stale_hint(&self) -> Option<String> {
        let changed = self.entries.iter().filter(|entry| entry.changed).count();
        let all = self.entries.len();
        (changed > 0).then(|| {
            format!("The files of {changed} of {all} hits have changed since; run `kebab-lite ingest` to bring the index up to date.")
        })
    }
}

/// A snippet is opened on a word rather than on the same one in the tag of a logo.
fn prefer_words(text: &str, matches: &mut Vec<Match>) {
    let is_word = |found: &Match| !seems_markup(text, found.range.start);
    if matches.iter().any(is_word) {
        matches.retain(is_word);
    }
}

/// Where a text stands in another, letters of either case alike as far as ASCII goes.
fn literal_matches(text: &str, needle: &str) -> Vec<Match> {
    // Lower-casing ASCII keeps every byte in its place.
    let lower = text.to_ascii_lowercase();
    lower.match_indices(needle).map(|(at, found)| Match { range: at..at + found.len(), terms: vec![0] }).collect()
}

/// A budget counts four characters a token.
const CHARS_A_TOKEN: usize = 4;

const LEAST_SNIPPET_CHARS: usize = 40;

impl Entry {
    fn show(&mut self, limit: usize) {
        let range = window(&self.text, &self.matches, limit);
        self.hit.snippet_full_text = range.len() == self.text.trim().len();
        self.hit.snippet = self.text[range].to_owned();
    }

    /// No serialisation is longer: six characters for each byte of text that varies, and all that does not.
    fn most_chars(&self) -> usize {
        let hit = &self.hit;
        let headings: usize = hit.heading_path.iter().map(|heading| heading.len() + 4).sum();
        let section = hit.section_label.as_ref().map_or(0, String::len);
        let varying = hit.snippet.len() + 3 * hit.doc_path.len() + headings + 2 * section + hit.source_id.len();
        let named = hit.repo.as_ref().map_or(0, String::len) + 2 * hit.code_lang.as_ref().map_or(0, String::len);
        2000 + 6 * (varying + named)
    }

    fn chars(&self) -> usize {
        serde_json::to_string(&self.hit).map_or(0, |json| json.chars().count())
    }
}

/// `ko-KR` → `ko`, as documents are labelled.
fn primary_tag(lang: &str) -> String {
    lang.split(['-', '_']).next().unwrap_or(lang).to_lowercase()
}

fn citation(document: &DocumentRow, chunk: &ChunkRow) -> Citation {
    let (path, (start, end)) = (document.path.clone(), chunk.chunk.lines);
    let uri = format!("{path}#L{start}-L{end}");
    match document.media {
        Media::Code => Citation::Code {
            path,
            line_start: start,
            line_end: end,
            symbol: chunk.chunk.symbol.clone(),
            lang: document.code_lang.clone(),
            uri,
        },
        _ => Citation::Line { path, start, end, section: section(chunk), uri },
    }
}

fn section(chunk: &ChunkRow) -> Option<String> {
    chunk.chunk.symbol.clone().or_else(|| chunk.chunk.heading_path.last().cloned())
}

fn trace(view: &View, findings: &Findings) -> Result<Trace> {
    let entry = |rank: usize, rows: Rows, score: f32| -> Result<TraceEntry> {
        let document = view.store.document(rows.document)?;
        let chunk_id = view.store.chunk(rows.chunk)?.chunk_id;
        Ok(TraceEntry { chunk_id, doc_id: document.doc_id, doc_path: document.path, rank, score })
    };
    let lexical = (1..).zip(&findings.lexical).map(|(rank, scored)| entry(rank, scored.rows, scored.score));
    let vector = (1..).zip(&findings.vector).map(|(rank, near)| entry(rank, near.rows, near.cosine));
    let input = |found: &Found| -> Result<FusionInput> {
        Ok(FusionInput {
            chunk_id: view.store.chunk(found.rows.chunk)?.chunk_id,
            lexical_rank: found.lexical_rank,
            vector_rank: found.vector_rank,
            fusion_score: found.fused,
            lexical_score: found.lexical,
            vector_score: found.vector,
            lexical_evidence: found.evidence.map(|(words, _)| words),
            vector_evidence: found.evidence.map(|(_, meaning)| meaning),
        })
    };
    Ok(Trace {
        lexical: lexical.collect::<Result<_>>()?,
        vector: vector.collect::<Result<_>>()?,
        rrf_inputs: findings.found.iter().map(input).collect::<Result<_>>()?,
        fit: findings.fit.clone(),
        nearest_by: findings.nearest_by,
        timing: Timing::default(),
    })
}

/// Sixteen hex digits that stand for the query, its filters and the state of the corpus.
fn binding(view: &View, input: &SearchInput) -> Result<String> {
    let store = view.store.meta_text("store_id")?;
    let bound = format!("{:?}", (input.identity(), store, view.index.revision));
    Ok(blake3::hash(bound.as_bytes()).to_hex()[..16].to_owned())
}

/// Four hex digits that stand for what the answer was made with.
fn means_word(kb: &Kb, means: &Means) -> String {
    let bound = format!("{:?}", (means, kb.config.search.fusion));
    blake3::hash(bound.as_bytes()).to_hex()[..4].to_owned()
}

struct Cursor {
    means: String,
    offset: usize,
}

fn parse_cursor(cursor: &str, binding: &str) -> Result<Cursor> {
    let rest = cursor.strip_prefix(binding).filter(|rest| rest.len() == 12 && rest.is_ascii());
    let (means, offset) = rest.map(|rest| rest.split_at(4)).ok_or(Error::StaleCursor)?;
    let offset = usize::from_str_radix(offset, 16).map_err(|_| Error::StaleCursor)?;
    Ok(Cursor { means: means.to_owned(), offset })
}

fn glob(args: &mut Args, name: &'static str) -> Result<Option<GlobMatcher>> {
    let Some(pattern) = args.text(name)? else { return Ok(None) };
    // Paths are stored NFC and without a leading `./`; shells complete both.
    let pattern: String = pattern.strip_prefix("./").unwrap_or(&pattern).nfc().collect();
    let built = GlobBuilder::new(&pattern).literal_separator(true).build();
    built.map(|glob| Some(glob.compile_matcher())).map_err(|error| {
        Error::input_hint(
            name,
            error.to_string(),
            "Write it like docs/**/*.md: `*` stays within a folder, `**` does not.",
        )
    })
}

pub fn time_text(nanoseconds: i64) -> String {
    Timestamp::from_nanosecond(i128::from(nanoseconds)).unwrap_or_default().to_string()
}

pub fn milliseconds(since: Instant) -> f64 {
    since.elapsed().as_secs_f64() * 1000.0
}
