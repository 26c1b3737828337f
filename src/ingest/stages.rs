//! Both stages of an ingest as one: texts are stored and can be searched by words, then they are embedded.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::embed::{Effort, embed};
use super::{Input, one, take_in};
use crate::error::Result;
use crate::kb::Kb;
use crate::model::Given;
use crate::wire::{IngestCounts, IngestEvent, IngestReport};

/// Brings the store and the index up to date with the files. `stop` ends it early, keeping what is done.
pub fn run(kb: &Kb, input: &Input, observe: &mut dyn FnMut(IngestEvent), stop: &AtomicBool) -> Result<IngestReport> {
    let started = Instant::now();
    let report = with_vectors(kb, take_in(kb, input, observe, stop)?, input.embed, started, observe, stop)?;
    let counts = IngestCounts {
        scanned: report.scanned,
        new: report.new,
        updated: report.updated,
        unchanged: report.unchanged,
        skipped: report.skipped,
        errors: report.errors,
        purged_deleted_files: report.purged_deleted_files,
    };
    observe(if report.aborted { IngestEvent::Aborted { counts } } else { IngestEvent::Completed { counts } });
    Ok(report)
}

/// Ingests one file, as `one::file` says, and embeds what is soon embedded.
pub fn file(kb: &Kb, path: &Path, given: &Given, wait: Duration, stop: &AtomicBool) -> Result<IngestReport> {
    let started = Instant::now();
    let report = one::file(kb, path, given, wait, stop)?;
    with_vectors(kb, report, Effort::Within(SHORT), started, &mut |_| {}, stop)
}

/// Ingests a text, as `one::text` says, and embeds what is soon embedded.
pub fn text(kb: &Kb, text: &str, given: &Given, wait: Duration, stop: &AtomicBool) -> Result<IngestReport> {
    let started = Instant::now();
    let report = one::text(kb, text, given, wait, stop)?;
    with_vectors(kb, report, Effort::Within(SHORT), started, &mut |_| {}, stop)
}

/// What whoever brings a single document waits for its vectors.
const SHORT: Duration = Duration::from_secs(5);

fn with_vectors(
    kb: &Kb,
    mut report: IngestReport,
    effort: Effort,
    started: Instant,
    observe: &mut dyn FnMut(IngestEvent),
    stop: &AtomicBool,
) -> Result<IngestReport> {
    let Some(embedded) = embed(kb, effort, observe, stop)? else { return Ok(report) };
    if embedded.report.pending > 0 {
        kb.leave_texts();
    }
    let hints: Vec<String> = report.hint.into_iter().chain(embedded.notes).collect();
    report.hint = (!hints.is_empty()).then(|| hints.join(" "));
    report.embedding = Some(embedded.report);
    report.corpus_revision = kb.read_store(|store| store.revision())?;
    report.aborted = stop.load(Ordering::Relaxed);
    report.duration_ms = started.elapsed().as_millis() as u64;
    Ok(report)
}
