//! A thin stdio adapter to a server that many hosts share: lines go both ways as they are, and nothing of a message is
//! read but its id.
//!
//! ```text
//! stdin ─► lines ─► the shared server's socket ─► stdout
//!            └──── or, where there is none, a session in this process
//! ```
//! Requests under way are remembered until they are answered. When the server dies, another is found or started, and
//! what was under way is asked once more: every tool may be called twice. What was under way twice gets an error.
//!
//! Refuses: memory. A host keeps such a process for as long as it runs, mostly idle: pages of the program that are not
//! needed for that are given back.

mod ask;
mod find;
mod pending;

use std::borrow::Cow;
use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, SendTimeoutError, Sender, bounded};

use crate::catch_up::CatchUp;
use crate::error::{Error, Result};
use crate::exit;
use crate::lines::{Broken, Line, Lines, MOST_QUEUED, Output, Peer, Sink};
use crate::log;
use crate::pool::Pool;
use crate::residency::{self, Scope};
use crate::rpc::Server;
use crate::rpc::message::{Code, Fault, Id, too_long};
use crate::stdio::{is_hung_up, take_stdout};
pub use ask::{Client, stop};
pub use find::{Find, Start};
use pending::Pending;

/// How the server is found, and what is done without one.
pub struct Plan {
    pub find: Find,
    /// A server in this process.
    pub alone: Box<dyn Fn() -> Server + Send + Sync>,
    /// Whether that one brings the index up to date in the background.
    pub sync: bool,
}

/// What is left of answers when stdin has ended.
const LAST_WORDS: Duration = Duration::from_millis(1200);

/// How long a server is looked for and waited for, before this process serves by itself.
const PATIENCE: Duration = Duration::from_secs(6);

/// Read at once.
const CHUNK: usize = 32 << 10;

/// How often somebody who waits for another looks whether the client is still there.
const PAUSE: Duration = Duration::from_millis(100);

/// Without an answer to pass on for so long, the process is idle.
const REST: Duration = Duration::from_secs(1);

/// Serves until stdin ends.
pub fn run(plan: Plan) -> Result<()> {
    let stdout = take_stdout().map_err(Error::io("take over", std::path::Path::new("stdout")))?;
    let stdout = Output::new(Sink::File(stdout));
    let adapter = Arc::new(Adapter { plan, stdout, state: Mutex::default(), changed: Condvar::new() });
    let writing = adapter.clone();
    let write = move || {
        let Broken = writing.stdout.write_waiting();
        exit::end(0);
    };
    thread::Builder::new().name("stdout".into()).stack_size(128 << 10).spawn(write).map_err(no_thread)?;
    let on_signal = ctrlc::set_handler(|| exit::end(0));
    on_signal.map_err(|error| Error::Internal { cause: format!("no signal handler: {error}") })?;
    // What stands between the host's first request and its answer is done before that request comes.
    adapter.revive(&mut adapter.locked());
    let mut stdin = io::stdin().lock();
    let (mut chunk, mut lines) = (vec![0; CHUNK], Lines::default());
    loop {
        match stdin.read(&mut chunk) {
            Ok(0) => break,
            Ok(count) if adapter.heard(&chunk[..count], &mut lines).is_ok() => {}
            Ok(_) => break,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => {
                log::warn(&format!("requests cannot be read: {error}"));
                break;
            }
        }
    }
    if lines.has_begun() {
        // Whoever does not take it has been waited for.
        adapter.heard(b"\n", &mut lines).ok();
    }
    adapter.finish(Instant::now() + LAST_WORDS);
    Ok(())
}

struct Adapter {
    plan: Plan,
    /// Takes whole lines, and nobody waits for it but the thread that passes answers on.
    stdout: Output,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    way: Way,
    pending: Pending,
    /// Stdin has ended.
    ending: bool,
}

/// Where lines go.
#[derive(Default)]
enum Way {
    #[default]
    Nowhere,
    Shared(Arc<TcpStream>),
    Alone {
        /// The owner of stdout from then on.
        peer: Arc<Peer>,
        /// Dropped when stdin has ended.
        feed: Option<Sender<Vec<u8>>>,
        catch_up: Option<CatchUp>,
    },
}

impl Adapter {
    /// Hands on what came on stdin, whole lines at a time. An error where the client has gone and they are not taken.
    fn heard(self: &Arc<Adapter>, chunk: &[u8], lines: &mut Lines) -> Result<(), Gone> {
        let mut state = self.locked();
        let mut whole = Vec::with_capacity(chunk.len());
        lines.feed(chunk, |line| self.take(&mut state, line, &mut whole));
        if whole.is_empty() {
            return Ok(());
        }
        if let Way::Nowhere = state.way {
            // It sends what is pending, these lines among it; notifications tell a new server nothing, and need none.
            if !state.pending.is_empty() {
                self.revive(&mut state);
            }
            return Ok(());
        }
        let stream = match &state.way {
            Way::Nowhere => return Ok(()),
            Way::Alone { feed, .. } => return hand_over(feed, whole),
            Way::Shared(stream) => stream.clone(),
        };
        // Not under the lock: a server that does not read must not keep its answers from being passed on.
        drop(state);
        send(&stream, &whole)
    }

    /// Notes what a line asks for, and puts it with those that go on. What is no message is answered here: a server
    /// that is found anew is told only of requests. The session in this process needs no such help.
    fn take(&self, state: &mut State, line: Line, whole: &mut Vec<u8>) {
        let line = match line {
            Line::Whole(line) => line,
            Line::TooLong => {
                return match &state.way {
                    Way::Alone { peer, .. } => peer.say(too_long().line()),
                    Way::Nowhere | Way::Shared(_) => self.say(&too_long()),
                };
            }
        };
        if !matches!(state.way, Way::Alone { .. }) {
            match state.pending.note(line) {
                Ok(true) => {}
                Ok(false) => return,
                Err(fault) => return self.say(&fault),
            }
        }
        whole.extend_from_slice(line);
        whole.push(b'\n');
    }

    /// Finds another way for lines, and sends those again that were under way.
    fn revive(self: &Arc<Adapter>, state: &mut State) {
        self.fail(state.pending.give_up_lost());
        let batches = state.pending.batches();
        let found = self.plan.find.connect(batches, Instant::now() + PATIENCE).and_then(|stream| {
            let stream = Arc::new(stream);
            let (adapter, reading) = (self.clone(), stream.clone());
            let pump = thread::Builder::new().name("answers".into()).stack_size(128 << 10);
            pump.spawn(move || adapter.pump(&reading)).map_err(no_thread)?;
            Ok(stream)
        });
        state.way = match found {
            Ok(stream) => {
                residency::trim(Scope::Libraries);
                Way::Shared(stream)
            }
            Err(error) => {
                log::warn(&format!("no shared server, so this process serves by itself: {error}"));
                match self.alone(batches) {
                    Ok(way) => {
                        self.fail(state.pending.give_up_told());
                        way
                    }
                    Err(error) => {
                        log::warn(&error.to_string());
                        self.fail(state.pending.give_up_all());
                        Way::Nowhere
                    }
                }
            }
        };
        let lines = state.pending.lines();
        match &state.way {
            Way::Nowhere => {}
            Way::Alone { feed, .. } => {
                // Whoever has gone needs no answer.
                hand_over(feed, lines).ok();
                // That session answers for itself from here on.
                state.pending = Pending::default();
            }
            Way::Shared(stream) => drop(send(stream, &lines)),
        }
    }

    /// Answers requests that nobody will answer.
    fn fail(&self, requests: Vec<Id>) {
        for id in requests {
            self.say(&Fault::new(Some(&id), Code::Internal, "the server ended while it worked on this request"));
        }
    }

    /// Passes answers on until the server is gone.
    fn pump(self: Arc<Adapter>, stream: &Arc<TcpStream>) {
        let mut chunk = vec![0; CHUNK];
        let mut begun: Vec<u8> = Vec::new();
        let mut rested = true;
        loop {
            let count = match (&**stream).read(&mut chunk) {
                Ok(0) => break,
                Ok(count) => count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) if is_timeout(&error) => {
                    if !rested {
                        rested = true;
                        residency::trim(Scope::Libraries);
                    }
                    // Where it cannot be lifted, the process wakes for nothing, and no more.
                    stream.set_read_timeout(None).ok();
                    continue;
                }
                Err(_) => break,
            };
            if rested {
                rested = stream.set_read_timeout(Some(REST)).is_err();
            }
            begun.extend_from_slice(&chunk[..count]);
            let Some(end) = chunk[..count].iter().rposition(|byte| *byte == b'\n') else { continue };
            let whole = begun.len() - count + end + 1;
            let told = self.answered(&begun[..whole]);
            self.write(&told);
            drop(told);
            // A client that does not read has its answers wait with the server.
            while !self.stdout.has_room(PAUSE) {}
            begun.drain(..whole);
            begun.shrink_to(64 << 10);
        }
        let mut state = self.locked();
        if !matches!(&state.way, Way::Shared(current) if Arc::ptr_eq(current, stream)) {
            return;
        }
        state.way = Way::Nowhere;
        if !state.pending.is_empty() && !state.ending {
            log::warn("the shared server is gone, another is looked for");
            self.revive(&mut state);
            state.pending.lose();
        }
        self.changed.notify_all();
    }

    /// What of a server's lines goes on to the client.
    fn answered<'l>(&self, lines: &'l [u8]) -> Cow<'l, [u8]> {
        let mut state = self.locked();
        let told = state.pending.answered(lines);
        if state.ending {
            self.changed.notify_all();
        }
        told
    }

    /// A session in this process.
    fn alone(self: &Arc<Adapter>, batches: bool) -> Result<Way> {
        let Sink::File(stdout) = self.stdout.sink() else {
            return Err(Error::Internal { cause: "stdout is no file".into() });
        };
        let stdout = stdout.try_clone().map_err(Error::io("share", std::path::Path::new("stdout")))?;
        // What is under way to the client comes before what this process says.
        self.stdout.flush(Instant::now() + PATIENCE);
        let server = Arc::new((self.plan.alone)());
        let catch_up = match &server.kb {
            Ok(kb) if self.plan.sync && !server.readonly() => Some(CatchUp::start(kb.clone()).map_err(no_thread)?),
            _ => None,
        };
        let peer = Peer::new(server, Sink::File(stdout));
        let pool = Arc::new(Pool::start(Pool::size(), MOST_QUEUED).map_err(no_thread)?);
        let (writing, reading) = (peer.clone(), peer.clone());
        let (feed, fed) = bounded(16);
        let write = move || {
            writing.write_waiting();
            exit::end(0);
        };
        thread::Builder::new().name("stdout".into()).stack_size(256 << 10).spawn(write).map_err(no_thread)?;
        let adapter = self.clone();
        let read = move || {
            reading.read(Fed { fed, rest: Vec::new(), at: 0 }, &pool, batches, &|| {}, &|| false);
            let deadline = Instant::now() + LAST_WORDS;
            reading.finish(deadline);
            reading.flush(deadline);
            let way = std::mem::take(&mut adapter.locked().way);
            if let Way::Alone { catch_up: Some(catch_up), .. } = way {
                catch_up.stop(deadline);
            }
            adapter.changed.notify_all();
        };
        thread::Builder::new().name("requests".into()).spawn(read).map_err(no_thread)?;
        Ok(Way::Alone { peer, feed: Some(feed), catch_up })
    }

    /// Waits for the last answers, at most until the deadline.
    fn finish(&self, deadline: Instant) {
        let mut state = self.locked();
        state.ending = true;
        match &mut state.way {
            Way::Nowhere => {}
            // The server answers what it has, and hangs up.
            Way::Shared(stream) => drop(stream.shutdown(Shutdown::Write)),
            Way::Alone { feed, .. } => *feed = None,
        }
        let left = deadline.saturating_duration_since(Instant::now());
        let under_way = |state: &mut State| !matches!(state.way, Way::Nowhere);
        // At the deadline the requests have had their time.
        drop(self.changed.wait_timeout_while(state, left, under_way));
        self.stdout.flush(deadline);
    }

    fn say(&self, fault: &Fault) {
        self.write(format!("{}\n", fault.line()).as_bytes());
    }

    fn write(&self, lines: &[u8]) {
        if let Err(Broken) = self.stdout.send(lines) {
            // The host is gone.
            exit::end(0);
        }
    }

    fn locked(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The client has closed its end, and what it said last is not taken.
struct Gone;

/// Sends lines to the server, which may take its time, but not longer than there is a client. Where the server is gone,
/// the thread that reads from it finds out as well, and asks again.
fn send(mut stream: &TcpStream, mut lines: &[u8]) -> Result<(), Gone> {
    while !lines.is_empty() {
        match stream.write(lines) {
            Ok(count) if count > 0 => lines = &lines[count..],
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if is_timeout(&error) && is_hung_up() => return Err(Gone),
            Err(error) if is_timeout(&error) => {}
            Ok(_) | Err(_) => {
                stream.shutdown(Shutdown::Both).ok();
                return Ok(());
            }
        }
    }
    Ok(())
}

/// The session in this process takes no more than it can do, and reads for as long as stdin is open.
fn hand_over(feed: &Option<Sender<Vec<u8>>>, mut lines: Vec<u8>) -> Result<(), Gone> {
    let Some(feed) = feed else { return Ok(()) };
    loop {
        match feed.send_timeout(lines, PAUSE) {
            Err(SendTimeoutError::Timeout(_)) if is_hung_up() => return Err(Gone),
            Err(SendTimeoutError::Timeout(back)) => lines = back,
            Ok(()) | Err(SendTimeoutError::Disconnected(_)) => return Ok(()),
        }
    }
}

/// Lines handed over by another thread, as a stream.
struct Fed {
    fed: Receiver<Vec<u8>>,
    rest: Vec<u8>,
    at: usize,
}

impl Read for Fed {
    fn read(&mut self, chunk: &mut [u8]) -> io::Result<usize> {
        while self.at == self.rest.len() {
            match self.fed.recv() {
                Ok(lines) => (self.rest, self.at) = (lines, 0),
                Err(_) => return Ok(0),
            }
        }
        let count = chunk.len().min(self.rest.len() - self.at);
        chunk[..count].copy_from_slice(&self.rest[self.at..self.at + count]);
        self.at += count;
        Ok(count)
    }
}

fn is_timeout(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut)
}

fn no_thread(error: io::Error) -> Error {
    Error::Internal { cause: format!("no thread can be started: {error}") }
}
