//! Requests under way. Whoever takes one out answers it: the worker that has done it, or `cancel`, which says nothing.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use crate::rpc::MAX_ANSWER;
use crate::rpc::message::Id;

#[derive(Default)]
pub struct InFlight {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    requests: HashMap<u64, Request>,
    /// Requests taken out whose answers are on their way to stdout.
    answering: usize,
    bytes: usize,
    next: u64,
}

struct Request {
    id: Id,
    bytes: usize,
    stop: Arc<AtomicBool>,
    destination: Destination,
}

/// Names a request for as long as it is under way; a client may use an id twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Ticket(u64);

/// Where an answer goes: a line of its own, or an array with others.
#[derive(Clone)]
pub enum Destination {
    Line,
    Batch(Arc<Mutex<Batch>>),
}

pub struct Batch {
    answers: Vec<String>,
    /// Answers to come; one more while the batch is being read.
    missing: usize,
}

impl InFlight {
    /// The request's flag is set when it is cancelled.
    pub fn add(&self, id: Id, bytes: usize, destination: Destination) -> (Ticket, Arc<AtomicBool>) {
        let stop = Arc::new(AtomicBool::new(false));
        let mut state = self.locked();
        let ticket = Ticket(state.next);
        state.next += 1;
        state.bytes += bytes;
        state.requests.insert(ticket.0, Request { id, bytes, stop: stop.clone(), destination });
        (ticket, stop)
    }

    /// Says the answer, unless the request has been cancelled.
    pub fn answer(&self, ticket: Ticket, answer: String, say: impl FnOnce(String)) {
        let mut state = self.locked();
        let Some(request) = state.requests.remove(&ticket.0) else { return };
        state.bytes -= request.bytes;
        state.answering += 1;
        drop(state);
        if let Some(line) = request.destination.deliver(answer).or_else(|| request.destination.close()) {
            say(line);
        }
        self.locked().answering -= 1;
        self.changed.notify_all();
    }

    /// Stops the requests of this id. What is returned is to be said: the array of a batch that waited for no other.
    pub fn cancel(&self, id: &Id) -> Vec<Option<String>> {
        let mut state = self.locked();
        let found: Vec<u64> =
            state.requests.iter().filter(|(_, request)| request.id.same_as(id)).map(|(ticket, _)| *ticket).collect();
        let mut ended = Vec::new();
        for ticket in found {
            if let Some(request) = state.requests.remove(&ticket) {
                state.bytes -= request.bytes;
                request.stop.store(true, Ordering::Relaxed);
                ended.push(request.destination.close());
            }
        }
        self.changed.notify_all();
        ended
    }

    /// Stops whatever is under way; nobody is there to be answered.
    pub fn abandon(&self) {
        let mut state = self.locked();
        state.requests.drain().for_each(|(_, request)| request.stop.store(true, Ordering::Relaxed));
        state.bytes = 0;
        self.changed.notify_all();
    }

    /// Memory of the requests under way.
    pub fn bytes(&self) -> usize {
        self.locked().bytes
    }

    /// Waits until no request is under way, at most until the deadline.
    pub fn wait(&self, deadline: Instant) {
        let left = deadline.saturating_duration_since(Instant::now());
        let busy = |state: &mut State| !state.requests.is_empty() || state.answering > 0;
        // At the deadline the requests have had their time.
        drop(self.changed.wait_timeout_while(self.locked(), left, busy));
    }

    fn locked(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Destination {
    /// A batch that is being read: `close` it when all its messages are.
    pub fn batch() -> Destination {
        Destination::Batch(Arc::new(Mutex::new(Batch { answers: Vec::new(), missing: 1 })))
    }

    /// The same destination, waiting for one answer more, which is delivered or closed later.
    pub fn expect_one(&self) -> Destination {
        if let Destination::Batch(batch) = self {
            locked(batch).missing += 1;
        }
        self.clone()
    }

    /// Takes an answer that was expected, or one that is there at once; returns what is now to be said.
    pub fn deliver(&self, answer: String) -> Option<String> {
        match self {
            Destination::Line => Some(answer),
            Destination::Batch(batch) => {
                locked(batch).answers.push(answer);
                None
            }
        }
    }

    /// One answer fewer is expected. Returns the array if it was the last and there is anything to say.
    pub fn close(&self) -> Option<String> {
        let Destination::Batch(batch) = self else { return None };
        let mut batch = locked(batch);
        batch.missing -= 1;
        (batch.missing == 0 && !batch.answers.is_empty()).then(|| arrays(&batch.answers))
    }
}

/// One array; several, each on a line, where one line would be too long.
fn arrays(answers: &[String]) -> String {
    let mut lines = String::new();
    let mut len = 0;
    for answer in answers {
        let follows = len > 0 && len + answer.len() + 2 < MAX_ANSWER;
        if !follows && len > 0 {
            lines.push_str("]\n");
        }
        lines.push(if follows { ',' } else { '[' });
        lines.push_str(answer);
        len = if follows { len + 1 + answer.len() } else { 1 + answer.len() };
    }
    lines.push(']');
    lines
}

fn locked(batch: &Mutex<Batch>) -> MutexGuard<'_, Batch> {
    batch.lock().unwrap_or_else(PoisonError::into_inner)
}
