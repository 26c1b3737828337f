//! Messages as lines on stdin and stdout.
//!
//! The reading thread answers whatever needs no knowledge base itself: handing a message to a worker costs more than
//! answering it. The rest goes to the pool, and may be answered in any order. Whoever takes a request out of
//! `InFlight` answers it, and nobody else: that is what makes a cancelled request silent.
//!
//! Stdout carries the protocol and nothing else: fd 1 is pointed at stderr, and the real stdout is a private file.

mod in_flight;
mod lines;
mod output;

use std::fs::File;
use std::io::{self, Read};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use crate::catch_up::CatchUp;
use crate::error::{Error, Result};
use crate::log;
use crate::pool::{Lane, Pool, guarded};
use crate::rpc::message::{Code, Fault, too_long};
use crate::rpc::{self, Call, Server, Step};
use in_flight::{Destination, InFlight};
use lines::{Line, Lines};
use output::Output;

/// Serves until stdin ends. Ends the process itself when stdout breaks or a signal comes, for the thread that reads
/// stdin cannot be woken.
pub fn serve(server: Server, sync: bool) -> Result<()> {
    let stdout = take_stdout().map_err(Error::io("take over", std::path::Path::new("stdout")))?;
    let wanted = sync && server.kb.as_ref().is_ok_and(|kb| !kb.config.readonly);
    let catch_up = match &server.kb {
        Ok(kb) if wanted => Some(Arc::new(CatchUp::start(kb.clone()).map_err(no_thread)?)),
        _ => None,
    };
    end_on_signal(catch_up.clone())?;

    let shared = Arc::new(Shared { server, output: Output::new(stdout), in_flight: InFlight::default() });
    let pool = Pool::start(Pool::size(), MOST_QUEUED).map_err(no_thread)?;
    let (writing, ending) = (shared.clone(), catch_up.clone());
    let write = move || {
        writing.output.write_waiting();
        end(ending.as_deref());
    };
    thread::Builder::new().name("stdout".into()).stack_size(256 << 10).spawn(write).map_err(no_thread)?;

    let session = Session { shared: shared.clone(), pool, batches: false, ready: Vec::new() };
    session.read(io::stdin().lock(), catch_up.as_deref());

    let deadline = Instant::now() + LAST_WORDS;
    shared.in_flight.wait(deadline);
    if let Some(catch_up) = catch_up {
        catch_up.stop(deadline);
    }
    shared.output.flush(deadline);
    Ok(())
}

/// What requests under way have left when stdin has ended.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// What an ingest in the background has left to store its work when the process must end at once.
const LAST_WORK: Duration = Duration::from_millis(300);

/// Calls waiting in each of the two lanes, and the bytes of all calls together.
const MOST_QUEUED: usize = 16_384;
const MOST_BYTES: usize = 64 << 20;

/// What the reading thread shares with the workers.
struct Shared {
    server: Server,
    output: Output,
    in_flight: InFlight,
}

/// What the reading thread has for itself.
struct Session {
    shared: Arc<Shared>,
    pool: Pool,
    /// The revision last agreed on has batches. The one thing a connection remembers.
    batches: bool,
    /// Answers to lines of this chunk, sent together.
    ready: Vec<u8>,
}

impl Session {
    fn read(mut self, mut stdin: impl Read, catch_up: Option<&CatchUp>) {
        let mut chunk = vec![0; CHUNK];
        let mut lines = Lines::default();
        loop {
            let count = match stdin.read(&mut chunk) {
                Ok(0) => break,
                Ok(count) => count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => {
                    log::warn(&format!("stdin: {error}"));
                    break;
                }
            };
            lines.feed(&chunk[..count], |line| self.line(line));
            self.flush();
            if let Some(catch_up) = catch_up {
                catch_up.begin();
            }
            while !self.shared.output.has_room(Duration::from_millis(100)) {
                if is_hung_up() {
                    return;
                }
            }
        }
        lines.finish(|line| self.line(line));
        self.flush();
    }

    fn line(&mut self, line: Line) {
        let step = match line {
            Line::TooLong => Step::Answer(too_long().line()),
            Line::Whole(line) => {
                let shared = &self.shared;
                guarded(|| rpc::handle(&shared.server, line, self.batches)).unwrap_or_else(|panic| {
                    log::warn(&format!("a message could not be handled: {panic}"));
                    Step::Answer(Fault::new(None, Code::Internal, "the message could not be handled").line())
                })
            }
        };
        match step {
            Step::Batch(steps) => self.batch(steps),
            step => self.take(step, &Destination::Line),
        }
        if self.ready.len() >= READY {
            self.flush();
        }
    }

    fn batch(&mut self, steps: Vec<Step>) {
        let batch = Destination::batch();
        for step in steps {
            self.take(step, &batch);
        }
        let array = batch.close();
        self.say(array);
    }

    fn take(&mut self, step: Step, destination: &Destination) {
        match step {
            Step::Silence => {}
            Step::Answer(answer) => self.say(destination.deliver(answer)),
            Step::Welcome { answer, revision } => {
                self.batches = rpc::takes_batches(revision);
                self.say(destination.deliver(answer));
            }
            Step::Cancel(id) => {
                for ended in self.shared.in_flight.cancel(&id) {
                    self.say(ended);
                }
            }
            Step::Call(call) => self.call(call, destination),
            // A batch within a batch is no message, so there is none.
            Step::Batch(_) => {}
        }
    }

    fn call(&mut self, call: Call, destination: &Destination) {
        let shared = self.shared.clone();
        let lane = if call.slow() { Lane::Slow } else { Lane::Quick };
        if shared.in_flight.bytes() + call.bytes() > MOST_BYTES {
            return self.say(destination.deliver(call.overloaded()));
        }
        let refusal = call.overloaded();
        let (ticket, stop) = self.shared.in_flight.add(call.id.clone(), call.bytes(), destination.expect_one());
        let job = move || {
            let progress = |line: String| {
                if !stop.load(std::sync::atomic::Ordering::Relaxed) {
                    shared.say(line);
                }
            };
            if stop.load(std::sync::atomic::Ordering::Relaxed) {
                return;
            }
            let answer = guarded(|| rpc::call(&shared.server, &call, &stop, &progress)).unwrap_or_else(|panic| {
                log::warn(&format!("a request failed: {panic}"));
                call.panicked(&panic)
            });
            shared.in_flight.answer(ticket, answer, |line| shared.say(line));
        };
        if self.pool.submit(lane, Box::new(job)).is_err() {
            let mut said = None;
            self.shared.in_flight.answer(ticket, refusal, |line| said = Some(line));
            self.say(said);
        }
    }

    /// Queues a line for the end of this chunk.
    fn say(&mut self, line: Option<String>) {
        if let Some(line) = line {
            self.ready.extend_from_slice(line.as_bytes());
            self.ready.push(b'\n');
        }
    }

    fn flush(&mut self) {
        // The writing thread ends the process when stdout is broken.
        self.shared.output.send(&self.ready).ok();
        self.ready.clear();
        self.ready.shrink_to(2 * READY);
    }
}

/// Read at once.
const CHUNK: usize = 64 << 10;

/// Answers are sent when they come to this many bytes, even if lines are left in the chunk.
const READY: usize = 64 << 10;

impl Shared {
    fn say(&self, mut line: String) {
        line.push('\n');
        // The writing thread ends the process when stdout is broken.
        self.output.send(line.as_bytes()).ok();
    }
}

/// The real stdout, for us alone: whatever a library prints goes to stderr from here on.
fn take_stdout() -> io::Result<File> {
    #[cfg(unix)]
    {
        use std::os::fd::AsFd;
        let private = io::stdout().as_fd().try_clone_to_owned()?;
        nix::unistd::dup2_stdout(io::stderr())?;
        Ok(private.into())
    }
    #[cfg(windows)]
    {
        use std::os::windows::io::AsHandle;
        Ok(io::stdout().as_handle().try_clone_to_owned()?.into())
    }
}

/// True once the client has closed its end of stdin, read to the end or not.
fn is_hung_up() -> bool {
    #[cfg(unix)]
    {
        use std::os::fd::AsFd;

        use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
        let stdin = io::stdin();
        let mut state = [PollFd::new(stdin.as_fd(), PollFlags::empty())];
        let asked = poll(&mut state, PollTimeout::ZERO);
        asked.is_ok() && state[0].revents().is_some_and(|events| events.contains(PollFlags::POLLHUP))
    }
    #[cfg(not(unix))]
    {
        false
    }
}

fn end_on_signal(catch_up: Option<Arc<CatchUp>>) -> Result<()> {
    ctrlc::set_handler(move || end(catch_up.as_deref()))
        .map_err(|error| Error::Internal { cause: format!("no signal handler: {error}") })
}

/// Ends the process from a thread other than the one that reads stdin.
fn end(catch_up: Option<&CatchUp>) {
    if let Some(catch_up) = catch_up {
        catch_up.stop(Instant::now() + LAST_WORK);
    }
    std::process::exit(0);
}

fn no_thread(error: io::Error) -> Error {
    Error::Internal { cause: format!("no thread can be started: {error}") }
}
