//! The chunks nearest to a query: exact, by one pass over the upper halves of all vectors that the filter takes.
//!
//! The pass ranks by what eight bits of each coordinate say and keeps whatever could still be among the best; those
//! alone are read in full. Folds the windows of a chunk to the nearest. Refuses: what nearness means (`fuse`).

use std::cmp::Ordering;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::{panic, thread};

use super::LiveVectors;
use super::kernel::{BLOCK, Kernel, Query16};
use super::segment::{Columns, Group};
use crate::error::Result;
use crate::index::lexical::Accept;
use crate::model::Rows;

/// A query ready to be compared.
#[derive(Debug, Clone)]
pub struct Question {
    words: Query16,
    kernel: Kernel,
}

/// A chunk with the cosine of its nearest window.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Near {
    pub cosine: f32,
    pub rows: Rows,
    pub group: Group,
}

impl Near {
    /// The nearest first, equals in the order of the store.
    pub fn order(&self, other: &Near) -> Ordering {
        other.cosine.total_cmp(&self.cosine).then(self.rows.chunk.cmp(&other.rows.chunk))
    }
}

/// What a script group has to offer a query.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Neighbours {
    /// Chunks whose vectors were compared.
    pub scored: usize,
    /// The nearest first.
    pub best: Vec<Near>,
}

/// By group, in the order of `index`: of the chunks that `accept` takes, the `depth` nearest to the query.
pub fn nearest(
    vectors: &[&LiveVectors],
    question: &Question,
    accept: &Accept,
    depth: usize,
) -> Result<[Neighbours; GROUPS]> {
    let all: usize = vectors.iter().map(|live| live.segment.len()).sum();
    let cores = thread::available_parallelism().map_or(1, usize::from);
    nearest_on((all / WORTH_A_THREAD).clamp(1, cores.min(MOST_THREADS)), vectors, question, accept, depth)
}

/// A thread is started for as many vectors: it takes some 0.03 ms to start, and these half a millisecond to scan.
const WORTH_A_THREAD: usize = 12_500;

/// Further ones would wait for memory.
const MOST_THREADS: usize = 8;

/// `nearest` on so many threads; the result is the same on any number. They are started for the query: those of the pool
/// that indexing works on may be busy for longer than a query takes.
pub fn nearest_on(
    threads: usize,
    vectors: &[&LiveVectors],
    question: &Question,
    accept: &Accept,
    depth: usize,
) -> Result<[Neighbours; GROUPS]> {
    let stretches = stretches(vectors)?;
    let next = AtomicUsize::new(0);
    let work = || -> Result<[Collector; GROUPS]> {
        let mut groups: [Collector; GROUPS] = std::array::from_fn(|_| Collector::new(depth));
        while let Some((segment, places)) = stretches.get(next.fetch_add(1, Relaxed)) {
            scan(*segment, vectors[*segment as usize], places.clone(), question, accept, &mut groups)?;
        }
        Ok(groups)
    };
    let groups = thread::scope(|scope| {
        let others: Vec<_> = (1..threads).map(|_| scope.spawn(work)).collect();
        let mut groups = work()?;
        for other in others {
            let found = other.join().unwrap_or_else(|panicked| panic::resume_unwind(panicked))?;
            groups.iter_mut().zip(found).for_each(|(group, found)| group.absorb(found));
        }
        Ok::<_, crate::error::Error>(groups)
    })?;
    let mut found: [Neighbours; GROUPS] = Default::default();
    for (neighbours, collector) in found.iter_mut().zip(groups) {
        *neighbours = collector.finish(vectors, question)?;
    }
    Ok(found)
}

/// Vectors that one thread scans before it looks for more.
const STRETCH: usize = 4096;

/// All vectors, in stretches that keep the windows of a chunk together.
fn stretches(vectors: &[&LiveVectors]) -> Result<Vec<(u32, Range<usize>)>> {
    let mut stretches = Vec::new();
    for (segment, live) in (0..).zip(vectors) {
        let (columns, all) = (live.segment.columns()?, live.segment.len());
        let mut start = 0;
        while start < all {
            let inside = |place: &usize| columns.chunk(*place) == columns.chunk(place - 1);
            let end = (all.min(start + STRETCH)..all).find(|place| !inside(place)).unwrap_or(all);
            stretches.push((segment, start..end));
            start = end;
        }
    }
    Ok(stretches)
}

/// The nearest window of each of these chunks; None for one without a live vector.
pub fn cosines(vectors: &[&LiveVectors], question: &Question, chunks: &[Rows]) -> Result<Vec<Option<Near>>> {
    let mut found: Vec<Option<Near>> = vec![None; chunks.len()];
    for live in vectors.iter().copied() {
        let columns = live.segment.columns()?;
        for (rows, nearest) in chunks.iter().zip(&mut found) {
            let first = live.segment.places_of(rows.chunk)?.next().filter(|place| !live.tombstones.has(*place));
            if let Some(place) = first {
                *nearest = Some(question.nearest_window(live, &columns, place)?);
            }
        }
    }
    Ok(found)
}

impl Question {
    /// Of a vector of unit length.
    pub fn new(vector: Vec<f32>) -> Question {
        Question::with_kernel(vector, Kernel::fastest())
    }

    /// By one of `Kernel::available`.
    pub fn with_kernel(vector: Vec<f32>, kernel: Kernel) -> Question {
        Question { words: Query16::new(&vector), kernel }
    }

    /// What the upper halves of a vector say of its cosine, in units of its scale.
    pub fn rough(&self, high: &[i8]) -> f32 {
        let mut sum = [0];
        self.kernel.dots(&self.words, high, &mut sum);
        sum[0] as f32 * self.words.unit * 256.0
    }

    /// The chunk one of whose windows lies at a place, by the nearest of its windows.
    pub fn nearest_window(&self, live: &LiveVectors, columns: &Columns, place: usize) -> Result<Near> {
        let row = columns.chunk(place);
        let first = (0..place).rev().take_while(|before| columns.chunk(*before) == row).last().unwrap_or(place);
        let windows = (first..live.segment.len()).take_while(|at| columns.chunk(*at) == row);
        let mut cosine = f32::NEG_INFINITY;
        for at in windows {
            cosine = cosine.max(self.cosine(live, columns, at)?);
        }
        Ok(Near { cosine, rows: columns.rows(place), group: columns.group(place) })
    }

    /// The cosine to one vector, from both halves of its coordinates.
    pub fn cosine(&self, live: &LiveVectors, columns: &Columns, place: usize) -> Result<f32> {
        let (high, low) = (live.segment.high_at(place)?, live.segment.low_at(place)?);
        let dot = self.kernel.fine_dot(&self.words, high, low);
        Ok((dot * f64::from(self.words.unit) * f64::from(columns.scale(place))) as f32)
    }
}

/// Compares the upper halves of a stretch of vectors, as many at a time as the filter leaves side by side.
fn scan(
    segment: u32,
    live: &LiveVectors,
    places: Range<usize>,
    question: &Question,
    accept: &Accept,
    groups: &mut [Collector; GROUPS],
) -> Result<()> {
    let columns = live.segment.columns()?;
    let unit = question.words.unit * 256.0;
    let all = accept.is_open() && live.tombstones.is_empty();
    let taken = |place: usize| all || !live.tombstones.has(place) && accept.takes(columns.rows(place));
    let mut sums = [0; BLOCK];
    // The windows of a chunk lie side by side; the nearest of them stands for it.
    let mut chunk: Option<(u32, Rough)> = None;
    let mut place = places.start;
    while place < places.end {
        let ahead = (place..places.end).take(BLOCK).take_while(|place| taken(*place)).count();
        if ahead > 0 {
            let sums = &mut sums[..ahead];
            question.kernel.dots(&question.words, live.segment.high_of(place..place + ahead)?, sums);
            for (place, sum) in (place..).zip(sums) {
                let (row, scale) = (columns.chunk(place), columns.scale(place));
                let rough = Rough {
                    most: *sum as f32 * unit * scale + HALF_ERRORS * scale,
                    slack: 2.0 * HALF_ERRORS * scale,
                    segment,
                    place: place as u32,
                };
                match &mut chunk {
                    Some((known, best)) if *known == row => {
                        if best.most < rough.most {
                            *best = rough;
                        }
                    }
                    _ => {
                        if let Some((_, best)) = chunk.replace((row, rough)) {
                            groups[index(columns.group(best.place as usize))].offer(best);
                        }
                    }
                }
            }
        }
        place += ahead.max(1);
    }
    if let Some((_, best)) = chunk {
        groups[index(columns.group(best.place as usize))].offer(best);
    }
    Ok(())
}

pub const GROUPS: usize = 3;

/// The place of a group in arrays by group.
pub fn index(group: Group) -> usize {
    match group {
        Group::Hangul => 0,
        Group::Other => 1,
        Group::Mixed => 2,
    }
}

/// How far the upper halves alone may be off, in scales of a vector. Each coordinate is rounded to a multiple of 256
/// scales; against a query of unit length these errors add up to a standard deviation of 256/√12 scales, and this is
/// five of them: one vector in three million errs by more, and is missed only if it errs downwards and stands at the end
/// of the list.
const HALF_ERRORS: f32 = 5.0 * 256.0 / 3.464_101_6;

/// A chunk as the pass saw it.
#[derive(Debug, Clone, Copy)]
struct Rough {
    /// Its cosine is at most this,
    most: f32,
    /// and at most this much less.
    slack: f32,
    segment: u32,
    place: u32,
}

/// The chunks of a group that may still be among the `depth` nearest.
struct Collector {
    depth: usize,
    scored: usize,
    found: Vec<Rough>,
    /// `depth` chunks are certainly at least as near.
    floor: f32,
    /// Time to raise the floor.
    full: usize,
}

impl Collector {
    fn new(depth: usize) -> Collector {
        Collector { depth, scored: 0, found: Vec::new(), floor: f32::NEG_INFINITY, full: depth.saturating_mul(4) }
    }

    fn offer(&mut self, rough: Rough) {
        self.scored += 1;
        if rough.most >= self.floor {
            self.found.push(rough);
            if self.found.len() >= self.full {
                self.raise();
            }
        }
    }

    /// Takes over what another one found in other stretches.
    fn absorb(&mut self, other: Collector) {
        self.scored += other.scored;
        self.floor = self.floor.max(other.floor);
        self.found.extend(other.found);
    }

    fn raise(&mut self) {
        if self.depth == 0 || self.found.len() <= self.depth {
            return;
        }
        let mut least: Vec<f32> = self.found.iter().map(|rough| rough.most - rough.slack).collect();
        let (_, floor, _) = least.select_nth_unstable_by(self.depth - 1, |a, b| b.total_cmp(a));
        self.floor = *floor;
        self.found.retain(|rough| rough.most >= *floor);
        self.full = self.full.max(2 * self.found.len());
    }

    /// Reads what is left in full, as far down as there may be one of the nearest.
    fn finish(mut self, vectors: &[&LiveVectors], question: &Question) -> Result<Neighbours> {
        self.raise();
        self.found.sort_unstable_by(|a, b| b.most.total_cmp(&a.most));
        let columns = vectors.iter().map(|live| live.segment.columns()).collect::<Result<Vec<_>>>()?;
        let mut best: Vec<Near> = Vec::with_capacity(2 * self.depth.min(self.found.len()));
        let mut floor = f32::NEG_INFINITY;
        for some in self.found.chunks(self.depth.max(1)) {
            for rough in some.iter().take_while(|rough| rough.most >= floor) {
                let at = rough.segment as usize;
                best.push(question.nearest_window(vectors[at], &columns[at], rough.place as usize)?);
            }
            best.sort_unstable_by(Near::order);
            best.truncate(self.depth);
            if best.len() == self.depth {
                floor = best.last().map_or(floor, |last| last.cosine);
            }
        }
        Ok(Neighbours { scored: self.scored, best })
    }
}
