//! The immutable snapshot that searches run on: the live segments of one corpus revision.
//!
//! Knows neither SQLite nor any protocol. What a chunk says is the store's; here are only its rows.

pub mod build;
pub mod lexical;
mod postings;
pub mod segment;
pub mod snippet;
pub mod tokenize;

use std::path::Path;
use std::sync::Arc;

use crate::error::Result;
use crate::model::{Bits, SegmentEntry};
use segment::Segment;

/// Names the lexical index format in hits and in `schema`.
pub const VERSION: &str = "lexical-1";

pub struct Live {
    pub segment: Arc<Segment>,
    pub tombstones: Bits,
}

/// All segments of a revision.
#[derive(Default)]
pub struct Index {
    pub revision: u64,
    pub segments: Vec<Live>,
}

impl Index {
    /// Maps the segments that `entries` name; those the `previous` snapshot holds already are shared.
    pub fn open(folder: &Path, revision: u64, entries: Vec<SegmentEntry>, previous: Option<&Index>) -> Result<Index> {
        let mut segments = Vec::with_capacity(entries.len());
        for entry in entries {
            let path = folder.join(&entry.file);
            let mapped = previous.and_then(|index| index.segments.iter().find(|live| live.segment.path() == path));
            let segment = match mapped {
                Some(live) => live.segment.clone(),
                None => Arc::new(Segment::open(&path)?),
            };
            segments.push(Live { segment, tombstones: entry.tombstones });
        }
        Ok(Index { revision, segments })
    }

    /// Chunks in all segments, deleted ones that still lie in them included: the N of BM25.
    pub fn chunks(&self) -> usize {
        self.segments.iter().map(|live| live.segment.chunks()).sum()
    }
}

#[cfg(test)]
mod tests;
