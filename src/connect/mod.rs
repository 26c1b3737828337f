//! A thin stdio adapter to a server that many hosts share: lines go both ways as they are, and nothing of a message is
//! read but its id.
//!
//! ```text
//! stdin ─► lines ─► the shared server's socket ─► stdout
//!            └──── or, where there is none, a session in this process
//! ```
//! Requests under way are remembered until they are answered. When the server dies, another is found or started, and
//! what was under way is asked once more: every tool may be called twice. What was under way twice gets an error.

mod ask;
mod find;

use std::fs::File;
use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender, bounded};

use crate::catch_up::CatchUp;
use crate::error::{Error, Result};
use crate::exit;
use crate::lines::{Line, Lines, MOST_QUEUED, Peer, Sink};
use crate::log;
use crate::pool::Pool;
use crate::rpc::Server;
use crate::rpc::message::{Code, Fault, Id, Incoming, Message, parse, too_long};
use crate::stdio::take_stdout;
pub use ask::{search, stop};
pub use find::{Find, Start};

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
const CHUNK: usize = 16 << 10;

/// Serves until stdin ends.
pub fn run(plan: Plan) -> Result<()> {
    let stdout = take_stdout().map_err(Error::io("take over", std::path::Path::new("stdout")))?;
    let stdout = Mutex::new(stdout);
    let adapter = Arc::new(Adapter { plan, stdout, state: Mutex::default(), changed: Condvar::new() });
    let on_signal = ctrlc::set_handler(|| exit::end(0));
    on_signal.map_err(|error| Error::Internal { cause: format!("no signal handler: {error}") })?;
    // What stands between the host's first request and its answer is done before that request comes.
    adapter.revive(&mut adapter.locked());
    let mut stdin = io::stdin().lock();
    let (mut chunk, mut lines) = (vec![0; CHUNK], Lines::default());
    loop {
        match stdin.read(&mut chunk) {
            Ok(0) => break,
            Ok(count) => adapter.heard(&chunk[..count], &mut lines),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => {
                log::warn(&format!("requests cannot be read: {error}"));
                break;
            }
        }
    }
    if lines.has_begun() {
        adapter.heard(b"\n", &mut lines);
    }
    adapter.finish(Instant::now() + LAST_WORDS);
    Ok(())
}

struct Adapter {
    plan: Plan,
    /// For whole lines at a time.
    stdout: Mutex<File>,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    way: Way,
    pending: Vec<Pending>,
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
        /// Dropped when stdin has ended.
        feed: Option<Sender<Vec<u8>>>,
        catch_up: Option<CatchUp>,
    },
}

/// A request under way.
struct Pending {
    id: Id,
    line: Vec<u8>,
    /// It has been under way when a server died.
    again: bool,
}

impl Adapter {
    /// Hands on what came on stdin, whole lines at a time.
    fn heard(self: &Arc<Adapter>, chunk: &[u8], lines: &mut Lines) {
        let mut state = self.locked();
        let mut whole = Vec::with_capacity(chunk.len());
        lines.feed(chunk, |line| self.take(&mut state, line, &mut whole));
        if whole.is_empty() {
            return;
        }
        if let Way::Nowhere = state.way {
            // It sends what is pending, these lines among it; notifications tell a new server nothing.
            return self.revive(&mut state);
        }
        let stream = match &state.way {
            Way::Nowhere => return,
            Way::Alone { feed, .. } => return hand_over(feed, whole),
            Way::Shared(stream) => stream.clone(),
        };
        // Not under the lock: a server that does not read must not keep its answers from being passed on.
        drop(state);
        if (&*stream).write_all(&whole).is_err() {
            // The thread that reads from it finds out as well, and asks again.
            stream.shutdown(Shutdown::Both).ok();
        }
    }

    /// Notes what a line asks for, and puts it with those that go on. What is no message is answered here: a server
    /// that is found anew is told only of requests.
    fn take(&self, state: &mut State, line: Line, whole: &mut Vec<u8>) {
        let line = match line {
            Line::Whole(line) => line,
            Line::TooLong => return self.say(&too_long().line()),
        };
        let mut note = |message: &Message| match message {
            Message::Request { id, .. } => {
                state.pending.push(Pending { id: id.clone(), line: line.to_vec(), again: false });
            }
            Message::Notification { params, .. } => {
                if let Some(id) = params.cancelled() {
                    state.pending.retain(|pending| !pending.id.same_as(&id));
                }
            }
            Message::Response => {}
        };
        match parse(line, true) {
            None => return,
            Some(Ok(Incoming::One(message))) => note(&message),
            Some(Ok(Incoming::Batch(messages))) => messages.iter().flatten().for_each(note),
            Some(Err(fault)) => return self.say(&fault.line()),
        }
        whole.extend_from_slice(line);
        whole.push(b'\n');
    }

    /// Finds another way for lines, and sends those again that were under way.
    fn revive(self: &Arc<Adapter>, state: &mut State) {
        let found = self.plan.find.connect(Instant::now() + PATIENCE).and_then(|stream| {
            let stream = Arc::new(stream);
            let (adapter, reading) = (self.clone(), stream.clone());
            let pump = thread::Builder::new().name("answers".into()).stack_size(128 << 10);
            pump.spawn(move || adapter.pump(&reading)).map_err(no_thread)?;
            Ok(stream)
        });
        state.way = match found {
            Ok(stream) => Way::Shared(stream),
            Err(error) => {
                log::warn(&format!("no shared server, so this process serves by itself: {error}"));
                match self.alone() {
                    Ok(way) => way,
                    Err(error) => {
                        log::warn(&error.to_string());
                        Way::Nowhere
                    }
                }
            }
        };
        let given_up = matches!(state.way, Way::Nowhere);
        for pending in state.pending.extract_if(.., |pending| pending.again || given_up) {
            let why = "the server ended while it worked on this request";
            self.say(&Fault::new(Some(&pending.id), Code::Internal, why).line());
        }
        let mut lines = Vec::new();
        let mut before: Option<&[u8]> = None;
        for pending in &state.pending {
            // The requests of a batch have one line together.
            if before != Some(&pending.line) {
                lines.extend_from_slice(&pending.line);
                lines.push(b'\n');
            }
            before = Some(&pending.line);
        }
        match &state.way {
            Way::Nowhere => {}
            Way::Alone { feed, .. } => hand_over(feed, lines),
            Way::Shared(stream) if (&**stream).write_all(&lines).is_ok() => {}
            Way::Shared(stream) => drop(stream.shutdown(Shutdown::Both)),
        }
    }

    /// Passes answers on until the server is gone.
    fn pump(self: Arc<Adapter>, stream: &Arc<TcpStream>) {
        let mut chunk = vec![0; CHUNK];
        let mut begun: Vec<u8> = Vec::new();
        loop {
            let count = match (&**stream).read(&mut chunk) {
                Ok(0) => break,
                Ok(count) => count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(_) => break,
            };
            begun.extend_from_slice(&chunk[..count]);
            let Some(end) = chunk[..count].iter().rposition(|byte| *byte == b'\n') else { continue };
            let whole = begun.len() - count + end + 1;
            self.answered(&begun[..whole]);
            self.write(&begun[..whole]);
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
            state.pending.iter_mut().for_each(|pending| pending.again = true);
        }
        self.changed.notify_all();
    }

    /// Forgets the requests that these lines answer.
    fn answered(&self, lines: &[u8]) {
        let mut state = self.locked();
        if state.pending.is_empty() {
            return;
        }
        for line in lines.split(|byte| *byte == b'\n') {
            for id in answered_ids(line) {
                if let Some(place) = state.pending.iter().position(|pending| pending.id.raw().as_bytes() == id) {
                    state.pending.remove(place);
                }
            }
        }
        if state.ending {
            self.changed.notify_all();
        }
    }

    /// A session in this process.
    fn alone(self: &Arc<Adapter>) -> Result<Way> {
        let stdout = self.stdout.lock().unwrap_or_else(PoisonError::into_inner);
        let stdout = stdout.try_clone().map_err(Error::io("share", std::path::Path::new("stdout")))?;
        let server = Arc::new((self.plan.alone)());
        let catch_up = match &server.kb {
            Ok(kb) if self.plan.sync && !server.readonly() => Some(CatchUp::start(kb.clone()).map_err(no_thread)?),
            _ => None,
        };
        let peer = Peer::new(server, Sink::File(stdout));
        let pool = Arc::new(Pool::start(Pool::size(), MOST_QUEUED).map_err(no_thread)?);
        let (writing, reading) = (peer.clone(), peer);
        let (feed, fed) = bounded(16);
        let write = move || {
            writing.write_waiting();
            exit::end(0);
        };
        thread::Builder::new().name("stdout".into()).stack_size(256 << 10).spawn(write).map_err(no_thread)?;
        let adapter = self.clone();
        let read = move || {
            reading.read(Fed { fed, rest: Vec::new(), at: 0 }, &pool, &|| {}, &|| false);
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
        Ok(Way::Alone { feed: Some(feed), catch_up })
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
    }

    fn say(&self, line: &str) {
        self.write(format!("{line}\n").as_bytes());
    }

    fn write(&self, lines: &[u8]) {
        let stdout = self.stdout.lock().unwrap_or_else(PoisonError::into_inner);
        if (&*stdout).write_all(lines).is_err() {
            // The host is gone.
            exit::end(0);
        }
    }

    fn locked(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The session in this process reads for as long as stdin is open.
fn hand_over(feed: &Option<Sender<Vec<u8>>>, lines: Vec<u8>) {
    if let Some(feed) = feed {
        feed.send(lines).unwrap_or(());
    }
}

/// The ids that a line of the server's answers: they stand in the same place in each, and nothing behind them is read.
fn answered_ids(line: &[u8]) -> Vec<&[u8]> {
    const START: &[u8] = br#"{"jsonrpc":"2.0","id":"#;
    if line.starts_with(START) {
        return raw_id(&line[START.len()..]).into_iter().collect();
    }
    if !line.starts_with(b"[{") {
        return Vec::new();
    }
    let places = line.windows(START.len()).enumerate().filter(|(_, window)| *window == START);
    places.filter_map(|(at, _)| raw_id(&line[at + START.len()..])).collect()
}

/// The string or number at the front.
fn raw_id(text: &[u8]) -> Option<&[u8]> {
    if text.first() != Some(&b'"') {
        return text.iter().position(|byte| *byte == b',').map(|end| &text[..end]);
    }
    let mut escaped = false;
    let end = text.iter().skip(1).position(|byte| {
        let ends = *byte == b'"' && !escaped;
        escaped = *byte == b'\\' && !escaped;
        ends
    });
    end.map(|end| &text[..end + 2])
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

fn no_thread(error: io::Error) -> Error {
    Error::Internal { cause: format!("no thread can be started: {error}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_read_off_the_servers_lines() {
        let ids = |line: &str| -> Vec<String> {
            answered_ids(line.as_bytes()).into_iter().map(|id| String::from_utf8_lossy(id).into_owned()).collect()
        };
        for (line, expected) in [
            (r#"{"jsonrpc":"2.0","id":7,"result":{}}"#, vec!["7"]),
            (r#"{"jsonrpc":"2.0","id":"a\"b\\","result":{}}"#, vec![r#""a\"b\\""#]),
            (r#"{"jsonrpc":"2.0","id":"","error":{}}"#, vec![r#""""#]),
            (r#"{"jsonrpc":"2.0","method":"notifications/progress","params":{"id":7}}"#, vec![]),
            (r#"[{"jsonrpc":"2.0","id":1,"result":{}},{"jsonrpc":"2.0","id":"x","result":{}}]"#, vec!["1", "\"x\""]),
            ("", vec![]),
        ] {
            assert_eq!(ids(line), expected, "{line}");
        }
    }
}
