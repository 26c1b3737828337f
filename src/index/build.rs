//! Chunks → a segment in memory, on the term weights of the `bm25` crate.
//!
//! A posting's impact is the crate's weight tf·(k1+1) / (tf + k1·(1 − b + b·len/avgdl)), k1 1.2, b 0.75, on a scale
//! of 255 to k1+1. Where Hangul makes the two fields differ, it is the mean of the fields' weights: then
//! Σ idf·impact is ½ BM25(grams) + ½ BM25(words).

use bm25::{Embedder, EmbedderBuilder, Tokenizer};
use rustc_hash::FxHashMap;

use super::postings::Posting;
use super::segment::{Segment, Writer};
use super::tokenize::{self, Analyzer, Field, has_hangul};
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
    /// The title is the file's name, given or for want of another.
    pub title_is_name: bool,
    pub headings: &'p [String],
    pub symbol: Option<&'p str>,
    pub body: &'p str,
}

impl Passage<'_> {
    /// One text in which the title counts three times a word of the body and headings twice, as the body holds its own
    /// heading line; a file's name counts once.
    fn write(&self, text: &mut String) {
        text.clear();
        let times = if self.title_is_name { 1 } else { 2 };
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

/// Collects the postings of consecutive chunks.
pub struct Builder {
    terms: FxHashMap<Box<str>, u32>,
    grams: FieldTerms,
    words: FieldTerms,
    weights: WeightTables,
    postings: Vec<(u32, Posting)>,
    /// For each term, how often it stands in the current chunk, by field.
    counts: Vec<[u32; 2]>,
    touched: Vec<u32>,
    /// The text of the current chunk, kept for its capacity.
    text: String,
    chunks: u32,
    terms_seen: [u64; 2],
}

/// Term weights of one pair of averages: made as lengths of texts occur, and kept from one builder to the next.
pub struct WeightTables {
    grams: Weights,
    words: Weights,
}

impl WeightTables {
    pub fn new(averages: Averages) -> WeightTables {
        WeightTables { grams: Weights::new(averages.grams), words: Weights::new(averages.words) }
    }
}

impl Builder {
    pub fn new(averages: Averages) -> Builder {
        Builder::with(WeightTables::new(averages))
    }

    pub fn with(weights: WeightTables) -> Builder {
        Builder {
            terms: FxHashMap::default(),
            grams: FieldTerms::new(Field::Grams),
            words: FieldTerms::new(Field::Words),
            weights,
            postings: Vec::new(),
            counts: Vec::new(),
            touched: Vec::new(),
            text: String::new(),
            chunks: 0,
            terms_seen: [0; 2],
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
        let two_fields = has_hangul(text);
        let grams = self.count(text, 0);
        let words = if two_fields { self.count(text, 1) } else { grams };
        self.terms_seen[0] += u64::from(grams);
        self.terms_seen[1] += u64::from(words);
        for term in self.touched.drain(..) {
            let [in_grams, in_words] = std::mem::take(&mut self.counts[term as usize]);
            let weight = match two_fields {
                true => 0.5 * (self.weights.grams.get(grams, in_grams) + self.weights.words.get(words, in_words)),
                false => self.weights.grams.get(grams, in_grams),
            };
            let impact = (weight / MAX_WEIGHT * 255.0).round().clamp(1.0, 255.0) as u8;
            self.postings.push((term, Posting { ordinal: self.chunks, impact }));
        }
        self.chunks += 1;
    }

    /// Counts the text's terms in a field and returns how many there are.
    fn count(&mut self, text: &str, field: usize) -> u32 {
        let Builder { terms, grams, words, counts, touched, .. } = self;
        let field_terms = if field == 0 { grams } else { words };
        let mut length = 0;
        for (_, run) in tokenize::words(text) {
            for &term in field_terms.of(run, terms) {
                if term as usize >= counts.len() {
                    counts.resize(term as usize + 1, [0; 2]);
                }
                let count = &mut counts[term as usize];
                if *count == [0; 2] {
                    touched.push(term);
                }
                count[field] += 1;
                length += 1;
            }
        }
        length
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
        self.finish_keeping().0
    }

    /// As `finish`; also gives the weights back.
    pub fn finish_keeping(self) -> (Run, WeightTables) {
        let mut sorted: Vec<(Box<str>, u32)> = self.terms.into_iter().collect();
        sorted.sort_unstable();
        let mut ends = vec![0usize; sorted.len()];
        self.postings.iter().for_each(|(term, _)| ends[*term as usize] += 1);
        let mut start = 0;
        let mut starts = vec![0usize; sorted.len()];
        for (_, id) in &sorted {
            starts[*id as usize] = start;
            start += ends[*id as usize];
        }
        let counts = ends;
        let mut postings = vec![Posting { ordinal: 0, impact: 0 }; self.postings.len()];
        for (term, posting) in &self.postings {
            let slot = &mut starts[*term as usize];
            postings[*slot] = *posting;
            *slot += 1;
        }
        let terms =
            sorted.into_iter().map(|(term, id)| (term, counts[id as usize])).filter(|(_, count)| *count > 0).collect();
        (Run { terms, postings, chunks: self.chunks, terms_seen: self.terms_seen }, self.weights)
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

/// Words → numbers of their terms in one field, each different word analysed once.
struct FieldTerms {
    analyzer: Analyzer,
    /// Where a word's terms lie in `arena`; most words are short, and their bytes are the key.
    short: FxHashMap<u128, (u32, u32)>,
    long: FxHashMap<Box<str>, (u32, u32)>,
    arena: Vec<u32>,
    scratch: String,
}

impl FieldTerms {
    fn new(field: Field) -> FieldTerms {
        FieldTerms {
            analyzer: Analyzer::new(field),
            short: FxHashMap::default(),
            long: FxHashMap::default(),
            arena: Vec::new(),
            scratch: String::new(),
        }
    }

    fn of(&mut self, word: &str, terms: &mut FxHashMap<Box<str>, u32>) -> &[u32] {
        let key = short_key(word);
        let known = match key {
            Some(key) => self.short.get(&key),
            None => self.long.get(word),
        };
        let (start, end) = match known {
            Some(range) => *range,
            None => {
                let range = self.analyse(word, terms);
                match key {
                    Some(key) => drop(self.short.insert(key, range)),
                    None => drop(self.long.insert(word.into(), range)),
                }
                range
            }
        };
        &self.arena[start as usize..end as usize]
    }

    fn analyse(&mut self, word: &str, terms: &mut FxHashMap<Box<str>, u32>) -> (u32, u32) {
        let FieldTerms { analyzer, arena, scratch, .. } = self;
        let start = arena.len() as u32;
        analyzer.run_terms(word, scratch, &mut |term| {
            let next = terms.len() as u32;
            arena.push(match terms.get(term) {
                Some(number) => *number,
                None => *terms.entry(term.into()).or_insert(next),
            });
        });
        (start, arena.len() as u32)
    }
}

/// Up to fifteen bytes and their number.
fn short_key(word: &str) -> Option<u128> {
    let mut key = [0; 16];
    key.get_mut(1..=word.len()).filter(|_| word.len() < 16)?.copy_from_slice(word.as_bytes());
    key[0] = word.len() as u8;
    Some(u128::from_le_bytes(key))
}

/// The crate's weight of a term, which depends only on the text's length and the term's count: for each length that
/// occurs, one embedding of a text of that length gives the weights of all common counts.
struct Weights {
    embedder: Embedder<u32, CountedTerms>,
    /// By length, then by count − 1.
    rows: Vec<Vec<f32>>,
}

impl Weights {
    fn new(avgdl: f32) -> Weights {
        Weights { embedder: EmbedderBuilder::with_avgdl(avgdl).build(), rows: Vec::new() }
    }

    /// The weight of a term that stands `count` times among `length` terms; 0 for no times.
    fn get(&mut self, length: u32, count: u32) -> f32 {
        if count == 0 {
            return 0.0;
        }
        if length as usize >= self.rows.len() {
            self.rows.resize(length as usize + 1, Vec::new());
        }
        let row = &mut self.rows[length as usize];
        if row.is_empty() {
            let counts = common_counts(length);
            let embedding = self.embedder.embed(&format!("{length} {counts}"));
            // Terms come in the order of their counts: one of 1, two of 2, three of 3, …
            row.extend((1..=counts).map(|count| embedding[(count * (count - 1) / 2) as usize].value));
        }
        match row.get(count as usize - 1) {
            Some(weight) => *weight,
            None => self.embedder.embed(&format!("{length} {count} alone"))[0].value,
        }
    }
}

/// The largest n for which a text of `length` terms has room for a term of each count from 1 to n.
fn common_counts(length: u32) -> u32 {
    (1..).take_while(|n| n * (n + 1) / 2 <= length).last().unwrap_or(0)
}

/// Makes up texts of a given length: `"L n"` has L terms, one of each count from 1 to n and the rest alike;
/// `"L n alone"` has one of count n. The rest is a single term whose weight nobody asks for.
#[derive(Default)]
struct CountedTerms;

impl Tokenizer for CountedTerms {
    fn tokenize(&self, plan: &str) -> Vec<String> {
        let mut numbers = plan.split(' ').map_while(|number| number.parse::<usize>().ok());
        let (length, count) = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
        let counts = if plan.ends_with("alone") { count..=count } else { 1..=count };
        let mut terms: Vec<String> = counts.flat_map(|n| std::iter::repeat_n(n.to_string(), n)).collect();
        terms.resize(length.max(terms.len()), String::new());
        terms
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_are_those_of_the_formula() {
        let mut weights = Weights::new(100.0);
        for (length, count) in [(1, 1), (2, 1), (2, 2), (50, 3), (100, 1), (100, 90), (400, 20), (3, 3)] {
            let (tf, norm) = (count as f32, 0.25 + 0.75 * length as f32 / 100.0);
            let expected = tf * 2.2 / (tf + 1.2 * norm);
            let found = weights.get(length, count);
            assert!((found - expected).abs() < 1e-5, "{count} of {length}: {found}, not {expected}");
        }
    }
}
