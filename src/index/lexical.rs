//! Soft-OR BM25: a query's terms, and the best chunks for them.
//!
//! score(d) = Σ idf(t) · count(t in query) · weight(t, d), idf = ln(1 + (N − df + ½)/(df + ½)); weights as in `build`.
//! Sums are integers, so they do not depend on the order of the terms or on what was skipped: the same query
//! gives the same scores on every path.
//!
//! The scan is MaxScore over windows of chunks: a window whose largest possible sum cannot reach the k-th best score
//! so far is passed over; in the others, common terms that cannot reach it by themselves are only looked up for chunks
//! that another term brought in.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use rustc_hash::FxHashMap;

use super::build::MAX_WEIGHT;
use super::postings::{Cursor, Postings, encode};
use super::segment::Segment;
use super::tokenize::{Analyzer, Field, Script, WORD_MARK, phrase_form, script_of};
use super::{Index, Live};
use crate::error::Result;
use crate::model::{Bits, Rows};

/// What a query asks for. Any text is a query; only a pair of double quotes means something: a phrase.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Query {
    /// Distinct terms with the number of times each is asked for, in the order of the query.
    pub terms: Vec<(String, u32)>,
    /// Quoted parts in `phrase_form`.
    pub phrases: Vec<String>,
    /// Nothing stands outside the quotes.
    pub only_phrases: bool,
}

impl Query {
    pub fn parse(text: &str) -> Query {
        let (plain, phrases, only_phrases) = unquote(text);
        let mut query = Query { terms: Vec::new(), phrases, only_phrases };
        let mut places: FxHashMap<String, usize> = FxHashMap::default();
        let mut add = |term: &str| match places.get(term) {
            Some(&place) => query.terms[place].1 += 1,
            None => {
                places.insert(term.to_owned(), query.terms.len());
                query.terms.push((term.to_owned(), 1));
            }
        };
        let mut previous = String::new();
        Analyzer::new(Field::Grams).terms(&plain, |term| {
            // The last character of an unspaced run stands alone in documents; in a query its bigram says more.
            if !(is_single(term) && previous.len() > term.len() && previous.ends_with(term)) {
                add(term);
            }
            previous.replace_range(.., term);
        });
        Analyzer::new(Field::Words).terms(&plain, |term| {
            if term.starts_with(WORD_MARK) {
                add(term);
            }
        });
        query
    }

    /// The terms that a text cannot lack if it holds the phrases: no whole Korean words, which compounds do not have, and
    /// no single characters, which a bigram may hold.
    pub fn of_phrases(phrases: &[String]) -> Query {
        let mut query = Query::default();
        Analyzer::new(Field::Grams).terms(&phrases.join(" "), |term| {
            if !is_single(term) && !query.terms.iter().any(|(known, _)| known == term) {
                query.terms.push((term.to_owned(), 1));
            }
        });
        query
    }
}

/// A chunk with its score, by its rows in the store.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Scored {
    pub score: f32,
    pub rows: Rows,
}

/// Which chunks may be hits; None takes all.
#[derive(Debug, Clone, Copy, Default)]
pub struct Accept<'b> {
    /// Rows of documents.
    pub documents: Option<&'b Bits>,
    /// Rows of chunks.
    pub chunks: Option<&'b Bits>,
}

impl Accept<'_> {
    pub fn is_open(&self) -> bool {
        self.documents.is_none() && self.chunks.is_none()
    }

    pub fn takes(&self, rows: Rows) -> bool {
        self.documents.is_none_or(|taken| taken.has(rows.document as usize))
            && self.chunks.is_none_or(|taken| taken.has(rows.chunk as usize))
    }
}

/// The `limit` best chunks that match at least one term and that `accept` takes, best first;
/// equal scores in the order of the store.
pub fn top(index: &Index, query: &Query, accept: &Accept, limit: usize) -> Result<Vec<Scored>> {
    let terms = weigh(index, query)?;
    let scale = scale(&terms);
    let mut best = Best::new(limit);
    for (i, live) in index.segments.iter().enumerate() {
        scan(live, i, weighted(&terms, i, live.segment.chunks(), scale), accept, &mut best)?;
    }
    let unit = unit(scale);
    let scored = |(sum, place): (u32, Place)| {
        let rows = index.segments[place.segment].segment.rows(place.ordinal)?;
        Ok(Scored { score: sum as f32 * unit, rows })
    };
    best.into_sorted().map(scored).collect()
}

/// The scores of these chunks, as `top` gives them; 0 for one that matches no term or is not live.
pub fn scores_of(index: &Index, query: &Query, chunks: &[Rows]) -> Result<Vec<f32>> {
    let mut scores = vec![0.0; chunks.len()];
    if chunks.is_empty() {
        return Ok(scores);
    }
    let terms = weigh(index, query)?;
    let scale = scale(&terms);
    let mut order: Vec<usize> = (0..chunks.len()).collect();
    order.sort_unstable_by_key(|place| chunks[*place].chunk);
    for (i, live) in index.segments.iter().enumerate() {
        let mut weighted = weighted(&terms, i, live.segment.chunks(), scale);
        for &place in &order {
            let Some(ordinal) = live.segment.ordinal_of(chunks[place].chunk)? else { continue };
            if live.tombstones.has(ordinal as usize) {
                continue;
            }
            let mut sum = 0;
            for Weighted { cursor, weight, .. } in &mut weighted {
                cursor.seek(ordinal);
                if cursor.ordinal() == Some(ordinal) {
                    sum += *weight * u32::from(cursor.impact());
                }
            }
            scores[place] = sum as f32 * unit(scale);
        }
    }
    Ok(scores)
}

/// How much of what a query asks for is written in Hangul and how much in other scripts, by idf; words that occur
/// nowhere count as the rarest.
pub fn mass(index: &Index, query: &Query) -> Result<[f32; 2]> {
    let mut mass = [0.0; 2];
    for (term, count) in &query.terms {
        let mut df = 0;
        for live in &index.segments {
            df += live.segment.postings(term)?.map_or(0, |list| list.len);
        }
        let hangul = term.trim_start_matches(WORD_MARK).chars().next().is_some_and(|c| script_of(c) == Script::Hangul);
        // Hangul is asked for twice, as bigrams and as words, each at half weight.
        let share = if hangul { 0.5 } else { 1.0 };
        mass[usize::from(!hangul)] += share * idf(index, df) * *count as f32;
    }
    Ok(mass)
}

/// The chunks that match every term, in the order of the store. None of the terms: none of the chunks.
pub fn matching_all(index: &Index, query: &Query) -> Result<Vec<Rows>> {
    let mut matching = Vec::new();
    for live in &index.segments {
        let mut cursors = Vec::with_capacity(query.terms.len());
        for (term, _) in &query.terms {
            cursors.extend(live.segment.postings(term)?.map(Cursor::new));
        }
        if cursors.len() < query.terms.len() || cursors.is_empty() {
            continue;
        }
        let mut ordinal = 0;
        while let Some(furthest) = seek_all(&mut cursors, ordinal) {
            if cursors.iter().all(|cursor| cursor.ordinal() == Some(furthest)) {
                if !live.tombstones.has(furthest as usize) {
                    matching.push(live.segment.rows(furthest)?);
                }
                ordinal = furthest + 1;
            } else {
                ordinal = furthest;
            }
        }
    }
    Ok(matching)
}

/// Moves every cursor to `ordinal` or behind it; the furthest place reached, None once a list has ended.
fn seek_all(cursors: &mut [Cursor<'_>], ordinal: u32) -> Option<u32> {
    let mut furthest = ordinal;
    for cursor in cursors {
        cursor.seek(furthest);
        furthest = cursor.ordinal()?;
    }
    Some(furthest)
}

/// A chunk is scored by at most this many terms, the rarest ones: a pasted book must not stall the server.
const MAX_TERMS: usize = 512;

const WINDOW: usize = 4096;

/// A term that occurs, with its list in each segment.
struct Term<'i> {
    lists: Vec<Option<List<'i>>>,
    /// idf · count.
    weight: f32,
}

enum List<'i> {
    Stored(Postings<'i>),
    /// Several stored lists made into one.
    Merged {
        len: usize,
        bytes: Vec<u8>,
    },
}

impl List<'_> {
    fn postings(&self) -> Postings<'_> {
        match self {
            List::Stored(postings) => *postings,
            List::Merged { len, bytes } => Postings::new(*len, bytes),
        }
    }
}

/// ln(1 + (N − df + ½)/(df + ½)).
pub fn idf(index: &Index, df: usize) -> f32 {
    let total = index.chunks() as f32;
    let df = (df as f32).min(total);
    (1.0 + (total - df + 0.5) / (df + 0.5)).ln()
}

/// What each of the query's terms is worth, in their order. One that no chunk holds is worth as much as one that a single
/// chunk holds: in a small corpus it would outweigh all that are found.
pub fn rarity(index: &Index, query: &Query) -> Result<Vec<f32>> {
    let df = |term: &str| -> Result<usize> {
        let mut df = 0;
        for live in &index.segments {
            df += match is_single(term) {
                true => led_by(&live.segment, term)?.map_or(0, |list| list.postings().len),
                false => live.segment.postings(term)?.map_or(0, |list| list.len),
            };
        }
        Ok(df)
    };
    query.terms.iter().map(|(term, count)| Ok(idf(index, df(term)?.max(1)) * *count as f32)).collect()
}

/// The query's terms that occur in the index, weighed.
fn weigh<'i>(index: &'i Index, query: &Query) -> Result<Vec<Term<'i>>> {
    let mut weighed = Vec::with_capacity(query.terms.len());
    for (term, count) in &query.terms {
        let list = |segment: &'i Segment| match is_single(term) {
            true => led_by(segment, term),
            false => Ok(segment.postings(term)?.map(List::Stored)),
        };
        let lists = index.segments.iter().map(|live| list(&live.segment)).collect::<Result<Vec<_>>>()?;
        // Chunks that hold the term, deleted ones that still lie in a segment included, as in N.
        let df = lists.iter().flatten().map(|list| list.postings().len).sum::<usize>();
        if df > 0 {
            weighed.push(Term { lists, weight: idf(index, df) * *count as f32 });
        }
    }
    if weighed.len() > MAX_TERMS {
        weighed.sort_by(|a, b| b.weight.total_cmp(&a.weight));
        weighed.truncate(MAX_TERMS);
    }
    Ok(weighed)
}

/// The chunks that hold a character of an unspaced script, or a Korean word that begins with it: those of the bigrams it
/// leads, each at its largest impact.
fn led_by<'i>(segment: &'i Segment, character: &str) -> Result<Option<List<'i>>> {
    let mut postings = Vec::new();
    for term in segment.terms_with_prefix(character)? {
        if term.chars().count() <= 2
            && let Some(list) = segment.postings(&term)?
        {
            list.for_each(|posting| postings.push(posting));
        }
    }
    postings.sort_unstable_by_key(|posting| (posting.ordinal, std::cmp::Reverse(posting.impact)));
    postings.dedup_by_key(|posting| posting.ordinal);
    let mut bytes = Vec::new();
    encode(&postings, &mut bytes);
    Ok((!postings.is_empty()).then_some(List::Merged { len: postings.len(), bytes }))
}

/// One character of a script whose words are found by bigrams.
fn is_single(term: &str) -> bool {
    let mut chars = term.chars();
    matches!((chars.next(), chars.next()), (Some(c), None) if script_of(c) != Script::Alphabetic)
}

/// The text without its quoting, the quoted parts, and whether they are all there is. An unpaired quote is a character
/// like any other.
fn unquote(text: &str) -> (String, Vec<String>, bool) {
    let straight: String = text.chars().map(|c| if matches!(c, '“' | '”' | '„' | '＂') { '"' } else { c }).collect();
    let parts: Vec<&str> = straight.split('"').collect();
    let pairs = (parts.len() - 1) / 2;
    let quoted = |i: usize| i % 2 == 1 && i <= 2 * pairs;
    let (mut phrases, mut only) = (Vec::new(), true);
    for (i, form) in parts.iter().map(|part| phrase_form(part)).enumerate() {
        match quoted(i) {
            true if !form.is_empty() => phrases.push(form),
            true => {}
            false => only &= form.is_empty(),
        }
    }
    let only = only && !phrases.is_empty();
    (straight.replace('"', " "), phrases, only)
}

struct Weighted<'s> {
    cursor: Cursor<'s>,
    weight: u32,
    /// Stands in so many chunks that it is looked up rather than added up, where others lead.
    common: bool,
}

/// The terms' lists in one segment, their weights as integers.
fn weighted<'s>(terms: &'s [Term<'_>], segment: usize, chunks: usize, scale: f32) -> Vec<Weighted<'s>> {
    let lists = terms.iter().filter_map(|term| Some((term.lists[segment].as_ref()?.postings(), term.weight)));
    lists
        .map(|(list, weight)| Weighted {
            cursor: Cursor::new(list),
            weight: ((weight * scale).round() as u32).max(1),
            common: list.len * COMMON > chunks,
        })
        .collect()
}

/// A term of more than one chunk in so many is common.
const COMMON: usize = 4;

/// What one unit of weight is as an integer: sums of every term at its largest impact must fit in 31 bits.
fn scale(terms: &[Term<'_>]) -> f32 {
    let most: f32 = terms.iter().map(|term| term.weight).sum::<f32>() * 255.0;
    (f32::from(1u16 << 14)).min((1u32 << 31) as f32 / most.max(1.0)).max(f32::MIN_POSITIVE)
}

/// What a sum of one counts: one impact step is MAX_WEIGHT / 255 of the crate's scale.
fn unit(scale: f32) -> f32 {
    MAX_WEIGHT / 255.0 / scale
}

fn scan(live: &Live, place: usize, mut terms: Vec<Weighted<'_>>, accept: &Accept, best: &mut Best) -> Result<()> {
    let Live { segment, tombstones } = live;
    let chunks = segment.chunks() as u32;
    let mut sums = vec![0u32; WINDOW.min(chunks as usize)];
    let mut bounds: Vec<(u32, usize)> = Vec::with_capacity(terms.len());
    let mut lookups: Vec<(u32, usize)> = Vec::with_capacity(terms.len());
    let mut base = terms.iter().filter_map(|term| term.cursor.ordinal()).min().unwrap_or(chunks);
    while base < chunks {
        let end = (base + WINDOW as u32).min(chunks);
        bounds.clear();
        for (i, term) in terms.iter_mut().enumerate() {
            term.cursor.seek(base);
            let bound = term.weight * u32::from(term.cursor.max_before(end));
            if bound > 0 {
                bounds.push((bound, i));
            }
        }
        if bounds.iter().map(|(bound, _)| bound).sum::<u32>() < best.threshold() {
            base = end;
            continue;
        }
        // Smallest bound first: terms that cannot reach the threshold together need not lead to a chunk. To look one up
        // costs more than to add one up, so that pays for common terms only.
        bounds.sort_unstable();
        lookups.clear();
        let (mut together, mut reach) = (0, 0);
        for &(bound, i) in &bounds {
            together += bound;
            if together >= best.threshold() {
                break;
            }
            if terms[i].common {
                lookups.push((bound, i));
                reach += bound;
            }
        }
        let sums = &mut sums[..(end - base) as usize];
        sums.fill(0);
        for (bound, i) in &bounds {
            if !lookups.contains(&(*bound, *i)) {
                let term = &mut terms[*i];
                term.cursor.accumulate(base, sums, term.weight);
            }
        }
        for (block, group) in sums.chunks(GROUP).enumerate() {
            let needed = best.threshold() - reach;
            if !any_reaches(group, needed) {
                continue;
            }
            let mut reaching = reaching(group, needed);
            while reaching != 0 {
                let at = reaching.trailing_zeros() as usize;
                reaching &= reaching - 1;
                let ordinal = base + (block * GROUP + at) as u32;
                let mut total = group[at];
                let mut left = reach;
                for &(bound, i) in lookups.iter().rev() {
                    if total + left < best.threshold() {
                        break;
                    }
                    left -= bound;
                    let Weighted { cursor, weight, .. } = &mut terms[i];
                    cursor.seek(ordinal);
                    if cursor.ordinal() == Some(ordinal) {
                        total += *weight * u32::from(cursor.impact());
                    }
                }
                if total + left >= best.threshold()
                    && !tombstones.has(ordinal as usize)
                    && (accept.is_open() || accept.takes(segment.rows(ordinal)?))
                {
                    best.offer(total, Place { segment: place, ordinal });
                }
            }
        }
        base = end;
    }
    Ok(())
}

/// Sums looked at together.
const GROUP: usize = 32;

/// Whether a sum of the group is at least `needed`. Both stay below 2³¹, so the sign of a difference tells; written
/// without a branch, for the compiler to take several sums at a time.
fn any_reaches(group: &[u32], needed: u32) -> bool {
    group.iter().fold(0, |signs, sum| signs | (needed - 1).wrapping_sub(*sum)) >> 31 == 1
}

/// The sums of a group that are at least `needed`, as bits.
fn reaching(group: &[u32], needed: u32) -> u32 {
    group.iter().enumerate().fold(0, |bits, (at, sum)| bits | u32::from(*sum >= needed) << at)
}

/// Where a chunk lies in the index. Segments are in the order of their rows, so places order as rows do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Place {
    segment: usize,
    ordinal: u32,
}

/// The best sums so far.
struct Best {
    limit: usize,
    heap: BinaryHeap<Reverse<(u32, Reverse<Place>)>>,
    /// A sum below this cannot enter.
    threshold: u32,
}

impl Best {
    fn new(limit: usize) -> Best {
        Best { limit, heap: BinaryHeap::with_capacity(limit.min(1 << 12) + 1), threshold: 1 }
    }

    fn threshold(&self) -> u32 {
        self.threshold
    }

    fn offer(&mut self, sum: u32, place: Place) {
        self.heap.push(Reverse((sum, Reverse(place))));
        if self.heap.len() > self.limit {
            self.heap.pop();
        }
        if let Some(Reverse((sum, _))) = self.heap.peek().filter(|_| self.heap.len() >= self.limit) {
            // Places come in ascending order: an equal sum comes too late.
            self.threshold = *sum + 1;
        }
    }

    fn into_sorted(self) -> impl Iterator<Item = (u32, Place)> {
        self.heap.into_sorted_vec().into_iter().map(|Reverse((sum, Reverse(place)))| (sum, place))
    }
}
