//! The immutable snapshot that searches run on: the live segments of one corpus revision.
//!
//! Knows neither SQLite nor any protocol. What a chunk says is the store's; here are only its rows.

pub mod build;
pub mod embed;
pub mod fuse;
pub mod lexical;
mod pages;
mod postings;
pub mod segment;
pub mod snippet;
pub mod tokenize;
pub mod vector;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::error::Result;
use crate::model::{Bits, SegmentEntry, VectorEntry};
use segment::Segment;
use vector::LiveVectors;
use vector::segment::VectorSegment;

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
    /// Vectors of other models than the configured one may be among them: whoever searches takes those of its own.
    pub vectors: Vec<LiveVectors>,
    /// Segments of vectors that cannot be used: searching by words goes on without them.
    pub lost: Vec<PathBuf>,
}

impl Index {
    /// Maps the segments that the entries name; those the `previous` snapshot holds already are shared.
    pub fn open(
        folder: &Path,
        revision: u64,
        entries: Vec<SegmentEntry>,
        vector_entries: Vec<VectorEntry>,
        previous: Option<&Index>,
    ) -> Result<Index> {
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
        let (mut vectors, mut lost) = (Vec::with_capacity(vector_entries.len()), Vec::new());
        for entry in vector_entries {
            let path = folder.join(&entry.file);
            let mapped = previous.and_then(|index| index.vectors.iter().find(|live| live.segment.path() == path));
            let segment = match mapped {
                Some(live) => live.segment.clone(),
                None => match VectorSegment::open(&path) {
                    Ok(segment) => Arc::new(segment),
                    Err(_) => {
                        lost.push(path);
                        continue;
                    }
                },
            };
            vectors.push(LiveVectors { segment, tombstones: entry.tombstones, chunks: entry.chunks as usize });
        }
        Ok(Index { revision, segments, vectors, lost })
    }

    /// Chunks in all segments, deleted ones that still lie in them included: the N of BM25.
    pub fn chunks(&self) -> usize {
        self.segments.iter().map(|live| live.segment.chunks()).sum()
    }

    /// Chunks that are not deleted.
    pub fn live_chunks(&self) -> usize {
        self.segments.iter().map(|live| live.segment.chunks() - live.tombstones.len()).sum()
    }

    /// Of the live chunks, those with vectors of this model.
    pub fn embedded_chunks(&self, model: &str) -> usize {
        self.vectors.iter().filter(|live| live.segment.model() == model).map(|live| live.chunks).sum()
    }
}

#[cfg(test)]
mod tests;
