//! A server's own ingest: in the background it brings a missing or outdated index up to date, once, from its start, and
//! then embeds what has no vectors yet, behind whoever searches; also what requests bring while it runs.
//!
//! Refuses: watching files, and getting in the way of whoever else writes the store.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, bounded};

use crate::error::Error;
use crate::ingest;
use crate::ingest::embed::{Effort, Embedded, embed};
use crate::kb::{Kb, UnderWay};
use crate::log;
use crate::wire::IngestEvent;

/// An ingest in the background, under way or done.
pub struct CatchUp {
    kb: Arc<Kb>,
    stop: Arc<AtomicBool>,
    begin: Sender<()>,
    ended: Receiver<()>,
}

/// The first answers go before, unless nobody asks for any.
const GRACE: Duration = Duration::from_millis(300);

/// How long another writer is waited for, and how long it is then left alone.
const WAIT: Duration = Duration::from_secs(2);
const PAUSE: Duration = Duration::from_secs(5);

/// A model that cannot be used may be there later: an endpoint is started, a disk has room again.
const MODEL_PAUSE: Duration = Duration::from_secs(60);

impl CatchUp {
    pub fn start(kb: Arc<Kb>) -> std::io::Result<CatchUp> {
        let stop = Arc::new(AtomicBool::new(false));
        let (begin, wait) = bounded(1);
        let (end, ended) = bounded(1);
        let (flag, own) = (stop.clone(), kb.clone());
        kb.set_under_way(UnderWay::Here { done: 0, total: None });
        thread::Builder::new().name("catch up".into()).spawn(move || {
            // Dropped whichever way this thread ends, which is what `ended` waits for.
            let _end: Sender<()> = end;
            if wait.recv_timeout(GRACE) != Err(RecvTimeoutError::Disconnected) {
                run(&own, &flag, &wait);
            }
        })?;
        Ok(CatchUp { kb, stop, begin, ended })
    }

    /// The first answer has been given.
    pub fn begin(&self) {
        // A second word is one too many for the queue, and says nothing new.
        self.begin.try_send(()).ok();
    }

    /// Ends it; what it has done so far is kept if it can be stored by then.
    pub fn stop(&self, deadline: Instant) {
        self.stop.store(true, Ordering::Relaxed);
        self.begin();
        self.kb.leave_texts();
        // Disconnected is what is waited for; at the deadline nothing is lost but work.
        self.ended.recv_deadline(deadline).ok();
    }
}

fn run(kb: &Kb, stop: &AtomicBool, wake: &Receiver<()>) {
    let input = ingest::Input { paths: Vec::new(), force: false, wait: WAIT, list: false, embed: Effort::None };
    while !stop.load(Ordering::Relaxed) {
        kb.set_under_way(UnderWay::Here { done: 0, total: None });
        let (mut done, mut all) = (0, None);
        let outcome = ingest::run(
            kb,
            &input,
            &mut |event| {
                match event {
                    IngestEvent::ScanCompleted { total } => all = Some(total),
                    IngestEvent::AssetFinished { .. } => done += 1,
                    _ => return,
                }
                kb.set_under_way(UnderWay::Here { done, total: all });
            },
            stop,
        );
        match outcome {
            Err(Error::StoreBusy { .. }) => {
                kb.set_under_way(UnderWay::Elsewhere);
                // Woken by a stop, else after the pause; either way the loop looks for itself.
                wake.recv_timeout(PAUSE).ok();
            }
            Err(error) => {
                log::warn(&format!("the index could not be brought up to date: {error}"));
                break;
            }
            Ok(report) => {
                if report.errors > 0 {
                    log::warn(&format!("{} files could not be read; `kebab-lite ingest` lists them", report.errors));
                }
                // There is an index from here on.
                kb.set_under_way(UnderWay::Nothing);
                embed_behind(kb, stop);
                break;
            }
        }
    }
    kb.set_under_way(UnderWay::Nothing);
}

/// Embeds what has no vectors, and then what requests leave to be embedded. Between that it sleeps.
fn embed_behind(kb: &Kb, stop: &AtomicBool) {
    let mut said = String::new();
    while !stop.load(Ordering::Relaxed) {
        let (problem, again) = match embed(kb, Effort::Behind, &mut |_| {}, stop) {
            Ok(None) => return,
            Ok(Some(Embedded { elsewhere: true, .. })) => (None, Some(PAUSE)),
            Ok(Some(Embedded { report, .. })) => match report.error {
                Some(error) => (Some(error.message), Some(MODEL_PAUSE)),
                None => (None, None),
            },
            Err(error) => (Some(error.to_string()), Some(MODEL_PAUSE)),
        };
        if let Some(problem) = problem
            && problem != said
        {
            log::warn(&format!("texts could not be embedded: {problem}"));
            said = problem;
        }
        kb.await_texts(again);
    }
}
