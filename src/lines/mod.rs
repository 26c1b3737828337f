//! Messages as lines over two streams: stdin and stdout, or the two directions of a socket.
//!
//! The reading thread answers whatever needs no knowledge base itself: handing a message to a worker costs more than
//! answering it. The rest goes to the pool, and may be answered in any order. Whoever takes a request out of
//! `InFlight` answers it, and nobody else: that is what makes a cancelled request silent.

mod in_flight;
mod output;
mod split;

use std::io::{self, Read};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use crate::log;
use crate::pool::{Lane, Pool, guarded};
use crate::rpc::message::{Code, Fault, too_long};
use crate::rpc::{self, Call, Cost, Server, Step};
use in_flight::{Destination, InFlight};
pub use output::{Broken, Output, Sink};
pub use split::{Line, Lines};

/// Calls waiting in each of the pool's two lanes, and the bytes of all calls of a session together.
pub const MOST_QUEUED: usize = 16_384;
const MOST_BYTES: usize = 64 << 20;

/// One client, as the workers see it.
pub struct Peer {
    server: Arc<Server>,
    output: Output,
    in_flight: InFlight,
}

impl Peer {
    pub fn new(server: Arc<Server>, sink: Sink) -> Arc<Peer> {
        Arc::new(Peer { server, output: Output::new(sink), in_flight: InFlight::default() })
    }

    /// Writes what others could not write without blocking. Returns when the sink is broken or closed; a session needs
    /// a thread that does this.
    pub fn write_waiting(&self) {
        let Broken = self.output.write_waiting();
    }

    /// Reads requests until the stream ends. `batches`: whether arrays are batches from the start. `heard` is called
    /// after each chunk, and `is_hung_up` where the client does not read its answers: true ends the reading.
    pub fn read(
        self: &Arc<Peer>,
        stream: impl Read,
        pool: &Arc<Pool>,
        batches: bool,
        heard: &dyn Fn(),
        is_hung_up: &dyn Fn() -> bool,
    ) {
        let session = Session { peer: self.clone(), pool: pool.clone(), batches, ready: Vec::new() };
        session.read(stream, heard, is_hung_up);
    }

    /// Waits until the requests under way are answered, at most until the deadline.
    pub fn finish(&self, deadline: Instant) {
        self.in_flight.wait(deadline);
    }

    /// Ends the work on requests that are still under way: the client has gone.
    pub fn abandon(&self) {
        self.in_flight.abandon();
    }

    /// Waits until every answer is written, at most until the deadline.
    pub fn flush(&self, deadline: Instant) {
        self.output.flush(deadline);
    }

    /// Nothing is written from here on.
    pub fn close(&self) {
        self.output.close();
    }

    /// Says a line beside the answers, without its line end.
    pub fn say(&self, mut line: String) {
        line.push('\n');
        // The writing thread notices when the sink is broken.
        self.output.send(line.as_bytes()).ok();
    }
}

/// What the reading thread has for itself.
struct Session {
    peer: Arc<Peer>,
    pool: Arc<Pool>,
    /// The revision last agreed on has batches. The one thing a connection remembers.
    batches: bool,
    /// Answers to lines of this chunk, sent together.
    ready: Vec<u8>,
}

impl Session {
    fn read(mut self, mut stream: impl Read, heard: &dyn Fn(), is_hung_up: &dyn Fn() -> bool) {
        let mut chunk = vec![0; CHUNK];
        let mut lines = Lines::default();
        loop {
            let count = match stream.read(&mut chunk) {
                Ok(0) => break,
                Ok(count) => count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => {
                    log::warn(&format!("requests cannot be read: {error}"));
                    break;
                }
            };
            lines.feed(&chunk[..count], |line| self.line(line));
            self.flush();
            heard();
            while !self.peer.output.has_room(Duration::from_millis(100)) {
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
            Line::TooLong => Step::Refused(too_long()),
            Line::Whole(line) => {
                let peer = &self.peer;
                guarded(|| rpc::handle(&peer.server, line, self.batches)).unwrap_or_else(|panic| {
                    log::warn(&format!("a message could not be handled: {panic}"));
                    Step::Refused(Fault::new(None, Code::Internal, "the message could not be handled"))
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
            Step::Refused(fault) => self.say(destination.deliver(fault.line())),
            Step::Welcome { answer, revision } => {
                self.batches = rpc::takes_batches(revision);
                self.say(destination.deliver(answer));
            }
            Step::Cancel(id) => {
                for ended in self.peer.in_flight.cancel(&id) {
                    self.say(ended);
                }
            }
            Step::Call(call) => self.call(call, destination),
            // A batch within a batch is no message, so there is none.
            Step::Batch(_) => {}
        }
    }

    fn call(&mut self, call: Call, destination: &Destination) {
        let peer = self.peer.clone();
        let lane = lane(&call);
        if peer.in_flight.bytes() + call.bytes() > MOST_BYTES {
            return self.say(destination.deliver(call.overloaded()));
        }
        let refusal = call.overloaded();
        let (ticket, stop) = self.peer.in_flight.add(call.id.clone(), call.bytes(), destination.expect_one());
        let job = move || {
            let progress = |line: String| {
                if !stop.load(Ordering::Relaxed) {
                    peer.say(line);
                }
            };
            if stop.load(Ordering::Relaxed) {
                return;
            }
            let answer = guarded(|| rpc::call(&peer.server, &call, &stop, &progress)).unwrap_or_else(|panic| {
                log::warn(&format!("a request failed: {panic}"));
                call.panicked(&panic)
            });
            peer.in_flight.answer(ticket, answer, |line| peer.say(line));
        };
        if self.pool.submit(lane, Box::new(job)).is_err() {
            let mut said = None;
            self.peer.in_flight.answer(ticket, refusal, |line| said = Some(line));
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
        // The writing thread notices when the sink is broken.
        self.peer.output.send(&self.ready).ok();
        self.ready.clear();
        self.ready.shrink_to(2 * READY);
    }
}

/// Where a call waits for its turn.
pub fn lane(call: &Call) -> Lane {
    match call.cost() {
        Cost::Quick => Lane::Quick,
        Cost::Slow => Lane::Slow,
        Cost::Waits => Lane::Waiting,
    }
}

/// Read at once.
const CHUNK: usize = 64 << 10;

/// Answers are sent when they come to this many bytes, even if lines are left in the chunk.
const READY: usize = 64 << 10;
