//! The second stage of an ingest: chunks without vectors get them, newest first, in batches that each land whole.
//!
//! ```text
//! pending rows ─► passage, key ─┬─ known key ──────────────────────┐
//!                               └─ text ─► model (all cores) ──────┴─► batch ─► writer's lock ─► segment, revision + 1
//! ```
//! The writer's lock is held only while a batch is published. A process that dies loses the batch it was at, and no text
//! is given to the model twice: vectors are found by the hash of model and text, those of deleted chunks too.

mod batch;
mod coverage;
mod passage;
pub mod publish;
mod stage;

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::error::{Error, Result};
use crate::kb::Kb;
use crate::store::Turn;
use crate::wire::{EmbeddingReport, IngestEvent};
pub use coverage::Coverage;
pub use passage::passage;
use stage::Stage;

/// How far this stage goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effort {
    /// Texts are stored; their vectors wait for another ingest.
    None,
    /// What can be done in this time; where that is by far not all, only a moment is spent.
    Within(Duration),
    /// Everything, on all cores.
    Full,
    /// Everything, a text at a time: whoever searches meanwhile goes first.
    Behind,
}

/// What this stage came to.
pub struct Embedded {
    pub report: EmbeddingReport,
    /// Another process is at it.
    pub elsewhere: bool,
    /// What the user should hear, a sentence each.
    pub notes: Vec<String>,
}

/// Embeds what has no vectors yet; None where no model is configured. `stop` ends it early, keeping what is done.
pub fn embed(
    kb: &Kb,
    effort: Effort,
    observe: &mut dyn FnMut(IngestEvent),
    stop: &AtomicBool,
) -> Result<Option<Embedded>> {
    let Some(model) = &kb.config.models.embedding else { return Ok(None) };
    let settings = coverage::settings(model);
    let coverage = kb.read_store(|store| Coverage::of(store, model, &settings))?;
    let mut stage = Stage::new(kb, model, effort, stop, settings, coverage);
    let mut outcome = Ok(());
    if effort != Effort::None && stage.coverage.has_work() && !stop.load(Ordering::Relaxed) {
        let wait = if effort == Effort::Behind { Duration::ZERO } else { TURN };
        outcome = match Turn::take(kb.data_dir(), wait)? {
            Some(_turn) => stage.run(observe),
            None => {
                stage.notes.push("Another process is embedding this corpus.".into());
                stage.elsewhere = true;
                Ok(())
            }
        };
    }
    match outcome {
        Err(error @ (Error::Io { .. } | Error::StoreCorrupt { .. } | Error::NotIndexed { .. })) => Err(error),
        outcome => stage.report(outcome.err()).map(Some),
    }
}

/// How long somebody who has little to do waits for who is about to end.
const TURN: Duration = Duration::from_millis(200);
