//! Chunks → a segment in memory, on the term weights of the `bm25` crate.
//!
//! A posting's impact is the crate's weight tf·(k1+1) / (tf + k1·(1 − b + b·len/avgdl)), k1 1.2, b 0.75, on a scale
//! of 255 to k1+1. Where Hangul makes the two fields differ, it is the mean of the fields' weights: then
//! Σ idf·impact is ½ BM25(grams) + ½ BM25(words).

use std::cell::RefCell;

use bm25::{Embedder, EmbedderBuilder, TokenEmbedder};
use rustc_hash::FxHashMap;

use super::postings::Posting;
use super::segment::{Segment, Writer};
use super::tokenize::{Analyzer, Field, has_hangul};
use crate::error::{Error, Result};
use crate::model::Rows;

/// A term weight of `MAX_WEIGHT` (k1 + 1, its upper bound) is stored as `u8::MAX`.
pub const MAX_WEIGHT: f32 = 2.2;

/// Mean terms a chunk, by field: the `avgdl` of BM25.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Averages {
    pub grams: f32,
    pub words: f32,
}

/// For a corpus of which nothing is known yet.
pub const DEFAULT_AVERAGES: Averages = Averages { grams: 128.0, words: 128.0 };

/// What of a chunk is searched.
#[derive(Debug, Clone, Copy)]
pub struct Passage<'p> {
    pub title: &'p str,
    /// The document has no title but its file's name.
    pub title_is_name: bool,
    pub headings: &'p [String],
    pub symbol: Option<&'p str>,
    pub body: &'p str,
}

impl Passage<'_> {
    /// One text in which the title counts three times a word of the body and headings twice: the body's own
    /// heading line is among it.
    fn write(&self, text: &mut String) {
        text.clear();
        let e = |n: &str, d: usize| std::env::var(n).ok().and_then(|v| v.parse().ok()).unwrap_or(d);
        let times = if self.title_is_name { e("TN", 1) } else { e("TT", 2) };
        for _ in 0..times {
            text.push_str(self.title);
            text.push('\n');
        }
        for heading in self.headings.iter().filter(|heading| *heading != self.title) {
            text.push_str(heading);
            text.push('\n');
        }
        if let Some(symbol) = self.symbol {
            text.push_str(symbol);
            text.push('\n');
        }
        text.push_str(self.body);
    }
}

/// A term's number in the builder of this thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct TermId(u32);

thread_local! {
    /// bm25's `TokenEmbedder` embeds without a receiver, so the terms it meets are numbered here. A builder
    /// empties it when it starts and takes it when it ends, and stays on one thread in between.
    static TERMS: RefCell<FxHashMap<Box<str>, u32>> = RefCell::default();
}

impl TokenEmbedder for TermId {
    type EmbeddingSpace = TermId;

    fn embed(term: &str) -> TermId {
        TERMS.with_borrow_mut(|terms| {
            if let Some(id) = terms.get(term) {
                return TermId(*id);
            }
            let id = terms.len() as u32;
            terms.insert(term.into(), id);
            TermId(id)
        })
    }
}

/// Collects the postings of consecutive chunks. Not `Send`: see `TERMS`.
pub struct Builder {
    grams: Embedder<TermId, Analyzer>,
    words: Embedder<TermId, Analyzer>,
    postings: Vec<(TermId, Posting)>,
    /// For each term, its weight in the current chunk and the field pass that last added to it.
    weights: Vec<(f32, u32)>,
    touched: Vec<TermId>,
    pass: u32,
    /// The text of the current chunk, kept for its capacity.
    text: String,
    chunks: u32,
    terms_seen: [u64; 2],
    not_send: std::marker::PhantomData<*const ()>,
}

impl Builder {
    pub fn new(averages: Averages) -> Builder {
        TERMS.with_borrow_mut(FxHashMap::clear);
        let embedder = |field, avgdl| EmbedderBuilder::with_avgdl(avgdl).tokenizer(Analyzer::new(field)).build();
        Builder {
            grams: embedder(Field::Grams, averages.grams),
            words: embedder(Field::Words, averages.words),
            postings: Vec::new(),
            weights: Vec::new(),
            touched: Vec::new(),
            pass: 0,
            text: String::new(),
            chunks: 0,
            terms_seen: [0; 2],
            not_send: std::marker::PhantomData,
        }
    }

    /// Adds the next chunk.
    pub fn add(&mut self, passage: &Passage) {
        let mut text = std::mem::take(&mut self.text);
        passage.write(&mut text);
        self.add_text(&text);
        self.text = text;
    }

    fn add_text(&mut self, text: &str) {
        let hangul = has_hangul(text);
        let grams = self.grams.embed(text);
        let share = if hangul { 0.5 } else { 1.0 };
        self.fold(&grams.0, share);
        self.terms_seen[0] += grams.len() as u64;
        self.terms_seen[1] += match hangul {
            true => {
                let words = self.words.embed(text);
                self.fold(&words.0, share);
                words.len() as u64
            }
            false => grams.len() as u64,
        };
        for term in self.touched.drain(..) {
            let weight = std::mem::take(&mut self.weights[term.0 as usize].0);
            let impact = (weight / MAX_WEIGHT * 255.0).round().clamp(1.0, 255.0) as u8;
            self.postings.push((term, Posting { ordinal: self.chunks, impact }));
        }
        self.chunks += 1;
    }

    /// The crate gives each occurrence of a term its full weight; it counts once.
    fn fold(&mut self, occurrences: &[bm25::TokenEmbedding<TermId>], share: f32) {
        self.pass += 1;
        for occurrence in occurrences {
            let term = occurrence.index;
            if term.0 as usize >= self.weights.len() {
                self.weights.resize(term.0 as usize + 1, (0.0, 0));
            }
            let (weight, pass) = &mut self.weights[term.0 as usize];
            if *pass != self.pass {
                *pass = self.pass;
                if *weight == 0.0 {
                    self.touched.push(term);
                }
                *weight += share * occurrence.value;
            }
        }
    }

    /// Mean terms a chunk so far.
    pub fn averages(&self) -> Averages {
        let mean = |field: usize, default: f32| match self.chunks {
            0 => default,
            chunks => (self.terms_seen[field] as f32 / chunks as f32).max(1.0),
        };
        Averages { grams: mean(0, DEFAULT_AVERAGES.grams), words: mean(1, DEFAULT_AVERAGES.words) }
    }

    /// The postings, sorted by term; where the chunks are stored is not known yet.
    pub fn finish(self) -> Run {
        let terms = TERMS.take();
        let mut sorted: Vec<(Box<str>, u32)> = terms.into_iter().collect();
        sorted.sort_unstable();
        let mut ends = vec![0usize; sorted.len()];
        self.postings.iter().for_each(|(term, _)| ends[term.0 as usize] += 1);
        let mut start = 0;
        let mut starts = vec![0usize; sorted.len()];
        for (_, id) in &sorted {
            starts[*id as usize] = start;
            start += ends[*id as usize];
        }
        let counts = ends;
        let mut postings = vec![Posting { ordinal: 0, impact: 0 }; self.postings.len()];
        for (term, posting) in &self.postings {
            let slot = &mut starts[term.0 as usize];
            postings[*slot] = *posting;
            *slot += 1;
        }
        let terms = sorted.into_iter().map(|(term, id)| (term, counts[id as usize])).filter(|(_, count)| *count > 0).collect();
        Run { terms, postings, chunks: self.chunks, terms_seen: self.terms_seen }
    }
}

/// The postings of consecutive chunks: each term with the number of its postings, in byte order.
pub struct Run {
    terms: Vec<(Box<str>, usize)>,
    postings: Vec<Posting>,
    chunks: u32,
    /// Terms counted, by field.
    pub terms_seen: [u64; 2],
}

impl Run {
    pub fn chunks(&self) -> usize {
        self.chunks as usize
    }

    /// The segment; `rows` are the stored chunks in the order they were added.
    pub fn into_segment(self, rows: &[Rows]) -> Result<Segment> {
        let written = (|| {
            let mut writer = Writer::new(Vec::new(), rows)?;
            let mut rest = &self.postings[..];
            for (term, count) in &self.terms {
                let (list, after) = rest.split_at(*count);
                writer.term(term.as_bytes(), list)?;
                rest = after;
            }
            writer.finish()
        })();
        Segment::from_bytes(written.map_err(Error::io("write segment", "memory".as_ref()))?)
    }
}
