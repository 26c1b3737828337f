//! Hits → passages: what a model reads. Chunks that touch become one passage, none comes twice, and a budget of tokens is
//! filled by rank.

use std::collections::BTreeSet;

use crate::error::Result;
use crate::ingest::chunk::estimate_tokens;
use crate::ingest::parse::shown;
use crate::kb::View;
use crate::model::Trust;
use crate::wire::{AnswerCitation, Citation, Hit};

#[derive(Debug, Clone)]
pub struct Passage {
    /// From 1.
    pub number: usize,
    pub path: String,
    pub heading: Vec<String>,
    pub lines: (u32, u32),
    pub trust: Trust,
    pub text: String,
    pub citation: Citation,
    pub indexed_at: String,
    pub stale: bool,
    /// The part of the best chunk that matches most.
    pub excerpt: String,
    /// Of the best of its chunks.
    pub score: f32,
    pub lexical: Option<f32>,
    pub vector: Option<f32>,
    /// The share of the question's words that it holds, by their rarity.
    pub held: f64,
    /// From 0 to 1; see `evidence`.
    pub evidence: f64,
    pub tokens: u32,
    pub chunks: usize,
}

impl Passage {
    pub fn marker(&self) -> String {
        format!("[{}]", self.number)
    }

    pub fn cite(&self, with_text: bool) -> AnswerCitation {
        AnswerCitation {
            marker: self.marker(),
            citation: self.citation.clone(),
            indexed_at: self.indexed_at.clone(),
            stale: self.stale,
            text: with_text.then(|| self.text.clone()),
        }
    }
}

/// Chunks of one document that follow each other.
struct Run<'h> {
    document: u32,
    first: u32,
    last: u32,
    /// The best hit among them.
    hit: &'h Hit,
    tokens: u32,
}

/// `hits` best first. The first passage is there whatever the budget, cut if need be.
pub fn gather(view: &View, hits: &[Hit], budget: usize) -> Result<Vec<Passage>> {
    let mut runs: Vec<Run> = Vec::new();
    let (mut spent, mut seen) = (0, BTreeSet::new());
    for hit in hits {
        // An ingest may have landed since the search.
        let Some(chunk) = view.store.chunk_by_id(hit.chunk_id)? else { continue };
        let text = view.store.text(chunk.document, chunk.chunk.bytes.clone())?;
        // Copies of a file say nothing more.
        if !seen.insert(*blake3::hash(text.trim().as_bytes()).as_bytes()) {
            continue;
        }
        let tokens = estimate_tokens(&text);
        if !runs.is_empty() && spent + tokens as usize > budget {
            break;
        }
        spent += tokens as usize;
        let (document, row) = (chunk.document, chunk.row);
        let run = Run { document, first: row, last: row, hit, tokens };
        match runs
            .iter()
            .position(|known| known.document == document && row + 1 >= known.first && row <= known.last + 1)
        {
            Some(place) => extend(&mut runs, place, run),
            None => runs.push(run),
        }
    }
    runs.into_iter().enumerate().map(|(i, run)| passage(view, i + 1, &run, budget)).collect()
}

/// A chunk may close the gap between two runs.
fn extend(runs: &mut Vec<Run>, place: usize, more: Run) {
    join(&mut runs[place], &more);
    let (document, first, last) = (runs[place].document, runs[place].first, runs[place].last);
    let touches = |run: &Run| run.document == document && run.first <= last + 1 && first <= run.last + 1;
    if let Some(other) = (place + 1..runs.len()).find(|other| touches(&runs[*other])) {
        let other = runs.remove(other);
        join(&mut runs[place], &other);
    }
}

fn join(run: &mut Run, other: &Run) {
    run.first = run.first.min(other.first);
    run.last = run.last.max(other.last);
    run.tokens += other.tokens;
}

fn passage(view: &View, number: usize, run: &Run, budget: usize) -> Result<Passage> {
    let document = view.store.document(run.document)?;
    let first = view.store.chunk(run.first)?;
    let last = if run.last == run.first { first.clone() } else { view.store.chunk(run.last)? };
    // Chunks may overlap: the passage is one stretch of the document.
    let bytes = first.chunk.bytes.start..last.chunk.bytes.end.max(first.chunk.bytes.end);
    let source = view.store.text(run.document, bytes)?;
    let mut text = shown(document.media, &source).into_owned();
    cut(&mut text, budget);
    let lines = (first.chunk.lines.0, last.chunk.lines.1.max(first.chunk.lines.1));
    let hit = run.hit;
    Ok(Passage {
        number,
        path: document.path,
        heading: if first.chunk.heading_path.is_empty() { hit.heading_path.clone() } else { first.chunk.heading_path },
        lines,
        trust: document.trust,
        tokens: estimate_tokens(&text),
        text,
        citation: widened(&hit.citation, lines),
        indexed_at: hit.indexed_at.clone(),
        stale: hit.stale,
        excerpt: hit.snippet.clone(),
        score: hit.score,
        lexical: hit.retrieval.lexical_score,
        vector: hit.retrieval.vector_score,
        held: 0.0,
        evidence: 0.0,
        chunks: (run.last - run.first + 1) as usize,
    })
}

/// At a line's end, where one is near.
fn cut(text: &mut String, budget: usize) {
    while estimate_tokens(text) as usize > budget.max(1) {
        let share = budget.max(1) as f64 / f64::from(estimate_tokens(text));
        let end = text.floor_char_boundary((text.len() as f64 * share * 0.98) as usize);
        let end = text[..end].rfind('\n').filter(|line| *line > end / 2).unwrap_or(end);
        text.truncate(end);
    }
}

/// The citation of a hit over all lines of its passage.
fn widened(citation: &Citation, (first, last): (u32, u32)) -> Citation {
    let to_uri = |path: &str| format!("{path}#L{first}-L{last}");
    match citation.clone() {
        Citation::Line { path, section, .. } => {
            let uri = to_uri(&path);
            Citation::Line { path, start: first, end: last, section, uri }
        }
        Citation::Code { path, symbol, lang, .. } => {
            let uri = to_uri(&path);
            Citation::Code { path, line_start: first, line_end: last, symbol, lang, uri }
        }
    }
}
