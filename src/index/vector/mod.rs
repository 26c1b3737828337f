//! Search by meaning: the vectors of a revision.

pub mod graph;
pub mod kernel;
pub mod scan;
pub mod segment;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use crate::model::Bits;
use segment::VectorSegment;

/// A segment of vectors and what of it is deleted.
pub struct LiveVectors {
    pub segment: Arc<VectorSegment>,
    /// By place in the segment.
    pub tombstones: Bits,
    /// Chunks whose vectors are not deleted.
    pub chunks: usize,
}
