//! How an ingest is going, on stderr: a bar for a person, ndjson for a program, a line now and then for a log.

use std::fmt;
use std::io::{self, BufWriter, IsTerminal, Write};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender};
use indicatif::{HumanDuration, ProgressBar, ProgressDrawTarget, ProgressState, ProgressStyle};
use kebab_lite::error::{Error, Result};
use kebab_lite::wire::{IngestEvent, IngestProgress, IngestProgressV1};

use super::text::clean_line;
use super::{json_line, tell};

pub enum Progress {
    Silent,
    Bar {
        bar: ProgressBar,
        /// What the bar looks like while texts are embedded.
        embedding: ProgressStyle,
    },
    /// Lines go to one writer, which flushes in time even when no event comes.
    Events {
        lines: Sender<String>,
        writer: JoinHandle<()>,
    },
    Plain(Plain),
}

/// What the next plain line would say.
pub struct Plain {
    started: Instant,
    last: Instant,
    done: u64,
    total: u64,
}

const FILES: &str = "files";
const PASSAGES: &str = "passages embedded";

/// Between two plain lines: an agent reads every one of them.
const PAUSE: Duration = Duration::from_secs(3);
/// How long an event may wait in the buffer.
const FLUSH: Duration = Duration::from_millis(100);

impl Progress {
    /// `wish` is KEBAB_PROGRESS.
    pub fn new(json: bool, quiet: bool, wish: Option<&str>) -> Result<Progress> {
        let plain = match wish {
            None | Some("") => !io::stderr().is_terminal(),
            Some("plain") => true,
            Some(other) => {
                let cause = format!("KEBAB_PROGRESS: found {other:?}, expected plain");
                return Err(Error::ConfigInvalid { path: None, cause, hint: None });
            }
        };
        Ok(match (json, quiet, plain) {
            (true, false, _) => {
                let (lines, queue) = crossbeam_channel::bounded(1024);
                Progress::Events { lines, writer: std::thread::spawn(move || write_lines(&queue)) }
            }
            (_, true, _) => Progress::Silent,
            (_, _, true) => {
                let now = Instant::now();
                Progress::Plain(Plain { started: now, last: now, done: 0, total: 0 })
            }
            (_, _, false) => {
                let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
                bar.set_style(bar_style(FILES)?);
                Progress::Bar { bar, embedding: bar_style(PASSAGES)? }
            }
        })
    }

    pub fn show(&mut self, event: IngestEvent) {
        match self {
            Progress::Silent => {}
            Progress::Bar { bar, embedding } => match event {
                IngestEvent::ScanCompleted { total } => bar.set_length(total),
                IngestEvent::AssetFinished { .. } => bar.inc(1),
                IngestEvent::EmbedStarted { model, total, replaces } => {
                    if let Some(other) = replaces {
                        bar.suspend(|| tell(&replacing(&other, &model)));
                    }
                    // Another kind of work goes at another pace.
                    bar.reset();
                    bar.set_style(embedding.clone());
                    bar.set_length(total);
                }
                IngestEvent::EmbedBatchFinished { done, total, .. } => {
                    bar.set_length(total);
                    bar.set_position(done);
                }
                _ => {}
            },
            Progress::Events { lines, .. } => {
                let ts = jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%S%.3fZ").to_string();
                let progress = IngestProgress { schema_version: IngestProgressV1, ts, event };
                match json_line(&progress) {
                    // The writer ends early only if stderr is closed: then nobody reads the rest.
                    Ok(line) => drop(lines.send(line)),
                    Err(error) => tell(&error.to_string()),
                }
            }
            Progress::Plain(plain) => plain.show(&event),
        }
    }

    /// Leaves stderr as the next writer needs it.
    pub fn finish(self) {
        match self {
            Progress::Silent | Progress::Plain(_) => {}
            Progress::Bar { bar, .. } => bar.finish_and_clear(),
            Progress::Events { lines, writer } => {
                drop(lines);
                if writer.join().is_err() {
                    tell("the writer of progress lines panicked");
                }
            }
        }
    }
}

fn bar_style(things: &str) -> Result<ProgressStyle> {
    let template = format!("{{pos}}/{{len}} {things}  {{wide_bar}}  {{rate}}  {{eta}} left");
    let style =
        ProgressStyle::with_template(&template).map_err(|error| Error::Internal { cause: error.to_string() })?;
    Ok(style.with_key("rate", |state: &ProgressState, out: &mut dyn fmt::Write| {
        // A bar that cannot be written is the terminal's loss.
        write!(out, "{:.0}/s", state.per_sec()).ok();
    }))
}

impl Plain {
    fn show(&mut self, event: &IngestEvent) {
        match event {
            IngestEvent::ScanCompleted { total } => self.total = *total,
            IngestEvent::AssetFinished { .. } => self.done += 1,
            IngestEvent::AssetStarted { path, .. } if self.last.elapsed() >= PAUSE => {
                self.last = Instant::now();
                let rate = self.done as f64 / self.started.elapsed().as_secs_f64();
                tell(&format!("{}/{} {FILES}, {rate:.0}/s, at {}", self.done, self.total, clean_line(path)));
            }
            IngestEvent::EmbedStarted { model, replaces, .. } => {
                if let Some(other) = replaces {
                    tell(&replacing(other, model));
                }
                (self.started, self.last) = (Instant::now(), Instant::now());
            }
            IngestEvent::EmbedBatchFinished { done, total, .. } if self.last.elapsed() >= PAUSE => {
                self.last = Instant::now();
                let rate = *done as f64 / self.started.elapsed().as_secs_f64().max(1e-3);
                let left = HumanDuration(Duration::from_secs_f64(total.saturating_sub(*done) as f64 / rate.max(1e-3)));
                tell(&format!("{done}/{total} {PASSAGES}, {rate:.0}/s, {left:#} left"));
            }
            _ => {}
        }
    }
}

/// Said before the vectors of a corpus are made anew, which may take hours.
fn replacing(other: &str, model: &str) -> String {
    clean_line(&format!("the embedding model changed from {other} to {model}: all texts are embedded anew"))
}

fn write_lines(queue: &Receiver<String>) {
    let mut out = BufWriter::with_capacity(1 << 16, io::stderr());
    let mut flushed = Instant::now();
    loop {
        let written = match queue.recv_timeout(FLUSH.saturating_sub(flushed.elapsed())) {
            Ok(line) => writeln!(out, "{line}"),
            Err(RecvTimeoutError::Timeout) => Ok(()),
            Err(RecvTimeoutError::Disconnected) => break,
        };
        let outcome = if flushed.elapsed() >= FLUSH {
            flushed = Instant::now();
            written.and_then(|()| out.flush())
        } else {
            written
        };
        if outcome.is_err() {
            return;
        }
    }
    out.flush().ok();
}
