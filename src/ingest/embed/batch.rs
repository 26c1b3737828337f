//! What is gathered between two publications, and how many texts the model is given at a time.

use std::collections::HashMap;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use super::Effort;
use super::publish::Ready;
use crate::config::ModelSource;
use crate::index::vector::segment::{Group, Quantised};
use crate::model::{Id, Rows};

/// A chunk to be embedded.
pub struct Passage {
    pub rows: Rows,
    pub group: Group,
    pub key: Id,
    pub text: String,
}

/// What is to be published next.
pub struct Batch {
    pub ready: Vec<Ready>,
    pub by_key: HashMap<Id, Arc<[Quantised]>>,
    /// Of the chunks, those whose texts the model was given.
    pub texts: usize,
    since: Instant,
    /// How long it may take.
    interval: Duration,
}

impl Batch {
    pub fn new() -> Batch {
        let (ready, by_key) = (Vec::new(), HashMap::new());
        Batch { ready, by_key, texts: 0, since: Instant::now(), interval: FIRST_BATCH }
    }

    pub fn add(&mut self, passage: &Passage, windows: Arc<[Quantised]>) {
        self.by_key.entry(passage.key).or_insert_with(|| windows.clone());
        self.ready.push(Ready { rows: passage.rows, group: passage.group, key: passage.key, windows });
    }

    pub fn is_due(&self) -> bool {
        let slow = !self.ready.is_empty() && self.since.elapsed() >= self.interval;
        slow || self.texts >= BATCH_TEXTS || self.ready.len() >= BATCH_CHUNKS
    }

    pub fn clear(&mut self) {
        self.ready.clear();
        self.by_key.clear();
        self.texts = 0;
        self.since = Instant::now();
        self.interval = (self.interval * 2).min(LONGEST_BATCH);
    }
}

/// How many texts the model is given at a time: enough to keep every core busy to the end, and soon done.
pub struct Size {
    texts: usize,
    least: usize,
    time: Duration,
}

impl Size {
    pub fn of(effort: Effort, source: &ModelSource) -> Size {
        let cores = thread::available_parallelism().map_or(1, usize::from);
        let endpoint = matches!(source, ModelSource::Endpoint { .. });
        let (least, time) = match effort {
            Effort::Behind if endpoint => (16, Duration::ZERO),
            Effort::Behind => (1, Duration::ZERO),
            Effort::None | Effort::Within(_) => (4 * cores, Duration::from_millis(400)),
            Effort::Full => (8 * cores, Duration::from_millis(1500)),
        };
        Size { texts: least, least, time }
    }

    /// So many of `texts` that the parts are alike.
    pub fn part_of(&self, texts: usize) -> usize {
        texts.div_ceil(texts.div_ceil(self.texts))
    }

    pub fn adapt(&mut self, texts: usize, took: Duration) {
        let rate = texts as f64 / took.as_secs_f64().max(1e-3);
        self.texts = ((rate * self.time.as_secs_f64()) as usize).clamp(self.least, READ_CHUNKS);
    }
}

/// A batch is published when it holds so many texts that the model was given, or so many chunks in all …
const BATCH_TEXTS: usize = 512;
const BATCH_CHUNKS: usize = 4096;
/// … or has taken so long. The first ones come sooner.
const FIRST_BATCH: Duration = Duration::from_secs(2);
const LONGEST_BATCH: Duration = Duration::from_secs(10);

/// Chunks read from the store at a time.
pub const READ_CHUNKS: usize = 256;
