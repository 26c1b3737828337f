//! One connection on a thread of its own: reads requests one behind the other, each phase within its time, and writes
//! their answers. What a slow client costs is its thread and the bytes that have come.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crossbeam_channel::{RecvTimeoutError, Sender, unbounded};

use super::Http;
use super::body::Body;
use super::head::{self, Framing, Head, MAX_HEAD, Method};
use super::post::{self, Reply, Work};
use super::response::{LAST_CHUNK, Refusal, Response, Status, event, stream_head};
use super::route::{LINES, Route, preflight, route, takes_events};
use super::slots::{Phase, Place};
use crate::lines::{Peer, Sink, lane};
use crate::log;
use crate::pool::guarded;
use crate::rpc::answer::Era;
use crate::rpc::{self, Call};

/// All of a head, all of a body, the pause between two requests, and all of an answer.
const HEAD_TIME: Duration = Duration::from_secs(10);
const BODY_TIME: Duration = Duration::from_secs(30);
const IDLE_TIME: Duration = Duration::from_secs(30);
const WRITE_TIME: Duration = Duration::from_secs(30);

/// How often somebody who waits for an answer is looked at: has the client gone, is the request cancelled?
const TICK: Duration = Duration::from_millis(100);

/// A stream of events says something at least this often.
const SILENCE: Duration = Duration::from_secs(10);

/// What a client may still send after it was told that the connection ends, and for how long.
const LINGER_BYTES: usize = 256 << 10;
const LINGER_TIME: Duration = Duration::from_millis(500);

/// Read at once.
const CHUNK: usize = 16 << 10;

pub struct Connection<'c> {
    http: &'c Arc<Http>,
    place: &'c Place,
    stream: &'c TcpStream,
    /// Bytes that have come and belong to no request yet.
    waiting: Vec<u8>,
    chunk: Box<[u8]>,
    timeout: Option<Duration>,
}

/// What follows a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Next {
    Request,
    /// The client is told no more, and what it sends is thrown away.
    Close,
    /// There is nobody there.
    Gone,
}

/// Why there is no request.
enum Missing {
    Gone,
    Refused(Refusal),
}

impl From<io::Error> for Missing {
    fn from(_: io::Error) -> Missing {
        Missing::Gone
    }
}

impl<'c> Connection<'c> {
    pub fn new(http: &'c Arc<Http>, place: &'c Place, stream: &'c TcpStream) -> Connection<'c> {
        let chunk = vec![0; CHUNK].into_boxed_slice();
        Connection { http, place, stream, waiting: Vec::new(), chunk, timeout: None }
    }

    /// Until either side ends it.
    pub fn serve(mut self) {
        let mut first = true;
        loop {
            match self.request(first) {
                Ok(Next::Request) => self.place.enter(Phase::Idle),
                Ok(Next::Close) => return self.linger(),
                Ok(Next::Gone) | Err(_) => return,
            }
            first = false;
        }
    }

    fn request(&mut self, first: bool) -> io::Result<Next> {
        let head = match self.head(first) {
            Ok(head) => head,
            Err(Missing::Gone) => return Ok(Next::Gone),
            Err(Missing::Refused(refusal)) => {
                self.write(&Response::from(refusal).bytes(None, false, false))?;
                return Ok(Next::Close);
            }
        };
        let asked = match route(&head, &self.http.token) {
            Ok(asked) => asked,
            Err(refusal) => {
                let next = self.after(&head);
                // A page that is not allowed to ask is not allowed to read, either.
                let origin = head.origin.as_deref().filter(|_| refusal.status != Status::Forbidden);
                let headless = head.method == Method::Head;
                self.write(&Response::from(refusal).bytes(origin, next == Next::Request, headless))?;
                return Ok(next);
            }
        };
        if !matches!(asked, Route::Health | Route::Preflight) {
            self.place.trust();
        }
        let answer = match asked {
            Route::Health => Response::json(Status::Ok, r#"{"status":"ok"}"#),
            Route::Preflight => preflight(),
            Route::Lines => return self.lines(&head),
            Route::Stop => {
                self.http.stop();
                Response::empty(Status::Accepted)
            }
            Route::EndSession(name) if self.http.sessions.end(&name) => Response::empty(Status::NoContent),
            Route::EndSession(_) => match post::session_is_over() {
                Reply::Now(response) => response,
                Reply::Later(_) => return Ok(Next::Close),
            },
            Route::Message => return self.message(&head),
        };
        let next = self.after(&head);
        self.say(&head, next, &answer)
    }

    /// What follows where the body was not asked for: it can be passed over if it is all there.
    fn after(&mut self, head: &Head) -> Next {
        let passed = match head.body {
            Framing::None => true,
            Framing::Length(length) => {
                let there = self.waiting.len() as u64 >= length;
                if there {
                    self.waiting.drain(..length as usize);
                }
                there
            }
            Framing::Chunked => false,
        };
        if passed && head.keep_alive && !self.http.is_ending() { Next::Request } else { Next::Close }
    }

    fn message(&mut self, head: &Head) -> io::Result<Next> {
        let body = match self.body(head) {
            Ok(body) => body,
            Err(Missing::Gone) => return Ok(Next::Gone),
            Err(Missing::Refused(refusal)) => {
                self.write(&Response::from(refusal).bytes(head.origin.as_deref(), false, false))?;
                return Ok(Next::Close);
            }
        };
        self.place.enter(Phase::Busy);
        let next = if head.keep_alive && !self.http.is_ending() { Next::Request } else { Next::Close };
        let http = self.http;
        let reply = guarded(|| post::reply(&http.server, &http.sessions, head, &body)).unwrap_or_else(|panic| {
            log::warn(&format!("a message could not be handled: {panic}"));
            Reply::Now(Refusal::new(Status::InternalError, "the message could not be handled").into())
        });
        self.http.heard();
        match reply {
            Reply::Now(response) => self.say(head, next, &response),
            Reply::Later(work) => self.work(head, next, work),
        }
    }

    /// Has the pool do the work, and sends what comes of it: one response, or a stream for those who asked for one.
    fn work(&mut self, head: &Head, next: Next, work: Work) -> io::Result<Next> {
        let Work { calls, mut answers, batch, session } = work;
        let cancels = calls.iter().all(|call| call.era == Era::Modern);
        let stream = calls.iter().any(Call::wants_progress) && takes_events(head);
        let (say, said) = unbounded();
        let mut stops = Vec::with_capacity(calls.len());
        let mut full = false;
        for call in calls {
            let stop = Arc::new(AtomicBool::new(false));
            if let Some(session) = &session {
                session.begin(call.id.clone(), stop.clone());
            }
            let refusal = call.overloaded();
            let lane = lane(&call);
            let job = self.job(call, stop.clone(), say.clone(), session.clone(), stream);
            match self.http.pool.submit(lane, job) {
                Ok(()) => stops.push(stop),
                Err(_) => {
                    session.iter().for_each(|session| session.finish(&stop));
                    full = true;
                    answers.push(refusal);
                }
            }
        }
        drop(say);
        if full && stops.is_empty() && !batch {
            let line = answers.pop().unwrap_or_default();
            return self.say(head, next, &Response::json(Status::Unavailable, line).with("Retry-After", "1"));
        }
        let mut events = Events { head, next, begun: false };
        let mut spoke = Instant::now();
        let (mut missing, mut left) = (stops.len(), false);
        while missing > 0 {
            match said.recv_timeout(TICK) {
                Ok(Said::Answer(line)) => {
                    answers.push(line);
                    missing -= 1;
                }
                Ok(Said::Progress(line)) => {
                    spoke = Instant::now();
                    let bytes = events.event(&line);
                    left = self.write(&bytes).is_err();
                }
                // The rest was cancelled, and says nothing.
                Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) => {
                    left = self.has_left();
                    if stops.iter().all(|stop| stop.load(Ordering::Relaxed)) {
                        break;
                    }
                    if stream && spoke.elapsed() >= SILENCE {
                        spoke = Instant::now();
                        let bytes = events.comment();
                        left |= self.write(&bytes).is_err();
                    }
                }
            }
            if left {
                if cancels {
                    stops.iter().for_each(|stop| stop.store(true, Ordering::Relaxed));
                }
                return Ok(Next::Gone);
            }
        }
        let body = match (batch, answers.len()) {
            (_, 0) => String::new(),
            (true, _) => format!("[{}]", answers.join(",")),
            (false, _) => answers.swap_remove(0),
        };
        if events.begun {
            let bytes = events.end(&body);
            self.write(&bytes)?;
            return Ok(next);
        }
        match body.is_empty() {
            true => self.say(head, next, &Response::empty(Status::Accepted)),
            false => self.say(head, next, &Response::json(Status::Ok, body)),
        }
    }

    fn job(
        &self,
        call: Call,
        stop: Arc<AtomicBool>,
        say: Sender<Said>,
        session: Option<Arc<super::session::Session>>,
        stream: bool,
    ) -> crate::pool::Job {
        let server = self.http.server.clone();
        Box::new(move || {
            let stopped = || stop.load(Ordering::Relaxed);
            let progress = |line: String| {
                if stream && !stopped() {
                    // Whoever has left hears nothing.
                    say.send(Said::Progress(line)).ok();
                }
            };
            if !stopped() {
                let answer = guarded(|| rpc::call(&server, &call, &stop, &progress)).unwrap_or_else(|panic| {
                    log::warn(&format!("a request failed: {panic}"));
                    call.panicked(&panic)
                });
                if !stopped() {
                    say.send(Said::Answer(answer)).ok();
                }
            }
            session.iter().for_each(|session| session.finish(&stop));
        })
    }

    /// The connection carries lines from here on, as stdin and stdout do.
    fn lines(&mut self, head: &Head) -> io::Result<Next> {
        if head.body != Framing::None || self.http.is_ending() {
            return Ok(Next::Close);
        }
        let upgrade = Response::empty(Status::SwitchingProtocols).with("Connection", "Upgrade").with("Upgrade", LINES);
        self.write(&upgrade.bytes(None, true, false))?;
        self.place.enter(Phase::Busy);
        self.stream.set_read_timeout(None)?;
        let peer = Peer::new(self.http.server_for(head.readonly), Sink::Socket(self.stream.try_clone()?));
        let writing = peer.clone();
        std::thread::Builder::new()
            .name("lines".into())
            .stack_size(128 << 10)
            .spawn(move || writing.write_waiting())?;
        let begun = io::Cursor::new(std::mem::take(&mut self.waiting));
        let http = self.http.clone();
        peer.read(begun.chain(self.stream), &http.pool, head.batches, &|| http.heard(), &|| false);
        let deadline = Instant::now() + super::LAST_WORDS;
        peer.finish(deadline);
        peer.flush(deadline);
        // Others wait for the workers, too.
        peer.abandon();
        peer.close();
        Ok(Next::Gone)
    }

    fn say(&mut self, head: &Head, next: Next, response: &Response) -> io::Result<Next> {
        let headless = head.method == Method::Head;
        self.write(&response.bytes(head.origin.as_deref(), next == Next::Request, headless))?;
        Ok(next)
    }

    /// The next head, within its time.
    fn head(&mut self, first: bool) -> Result<Head, Missing> {
        let started = Instant::now();
        let mut deadline = started + if first { HEAD_TIME } else { IDLE_TIME };
        let mut looked_at = 0;
        let mut begun = false;
        loop {
            if !self.waiting.is_empty() {
                if let Some(end) = head::end(&self.waiting, looked_at) {
                    let head = head::parse(&self.waiting[..end]).map_err(Missing::Refused)?;
                    self.waiting.drain(..end);
                    return Ok(head);
                }
                head::refuse_early(&self.waiting[..self.waiting.len().min(MAX_HEAD)]).map_err(Missing::Refused)?;
                if !begun {
                    begun = true;
                    if !first {
                        deadline = Instant::now() + HEAD_TIME;
                    }
                    self.place.enter(Phase::Reading);
                }
                looked_at = self.waiting.len();
            }
            match self.read(deadline) {
                Ok(0) => return Err(Missing::Gone),
                Ok(_) => {}
                Err(error) if is_late(&error) && !self.waiting.is_empty() => {
                    return Err(Missing::Refused(Refusal::new(Status::RequestTimeout, "the head took too long")));
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// The body that the head tells of, within its time.
    fn body(&mut self, head: &Head) -> Result<Vec<u8>, Missing> {
        let mut body = Body::new(head.body);
        let deadline = Instant::now() + BODY_TIME;
        let mut waited = false;
        loop {
            let used = body.feed(&self.waiting).map_err(Missing::Refused)?;
            self.waiting.drain(..used);
            if body.is_done() {
                return Ok(body.into_bytes());
            }
            if !waited {
                waited = true;
                self.place.enter(Phase::Reading);
                if head.expects_continue {
                    self.write(b"HTTP/1.1 100 Continue\r\n\r\n")?;
                }
            }
            match self.read(deadline) {
                Ok(0) => return Err(Missing::Gone),
                Ok(_) => {}
                Err(error) if is_late(&error) => {
                    return Err(Missing::Refused(Refusal::new(Status::RequestTimeout, "the body took too long")));
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Reads once, into `waiting`.
    fn read(&mut self, deadline: Instant) -> io::Result<usize> {
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(io::ErrorKind::TimedOut.into());
            }
            // A timeout that is still about right need not be set again: it is one more call to the system.
            if self.timeout.is_none_or(|set| set > left || set < left.mul_f32(0.8)) {
                self.stream.set_read_timeout(Some(left))?;
                self.timeout = Some(left);
            }
            match self.stream.read(&mut self.chunk) {
                Ok(count) => {
                    self.waiting.extend_from_slice(&self.chunk[..count]);
                    return Ok(count);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if is_late(&error) => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Writes all of it within its time, however slowly the client reads.
    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        let deadline = Instant::now() + WRITE_TIME;
        let mut rest = bytes;
        while !rest.is_empty() {
            if Instant::now() >= deadline {
                return Err(io::ErrorKind::TimedOut.into());
            }
            match self.stream.write(rest) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => rest = &rest[count..],
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// True once the client has closed its end.
    fn has_left(&self) -> bool {
        let looked = self.stream.set_nonblocking(true).and_then(|()| self.stream.peek(&mut [0]));
        let open = self.stream.set_nonblocking(false);
        match looked {
            Ok(count) => count == 0 || open.is_err(),
            Err(error) => error.kind() != io::ErrorKind::WouldBlock || open.is_err(),
        }
    }

    /// Ends the connection so that the client can read what it was told: unread bytes would reset it.
    fn linger(&mut self) {
        self.place.enter(Phase::Closing);
        if self.stream.shutdown(Shutdown::Write).is_err() {
            return;
        }
        let deadline = Instant::now() + LINGER_TIME;
        let mut thrown = 0;
        while thrown < LINGER_BYTES {
            self.waiting.clear();
            match self.read(deadline) {
                Ok(0) | Err(_) => return,
                Ok(count) => thrown += count,
            }
        }
    }
}

enum Said {
    Progress(String),
    Answer(String),
}

/// A response that is a stream, from its first event on.
struct Events<'h> {
    head: &'h Head,
    next: Next,
    begun: bool,
}

impl Events<'_> {
    fn event(&mut self, message: &str) -> Vec<u8> {
        let event = event(message, self.head.modern);
        self.begin(event)
    }

    /// Shows that the stream lives.
    fn comment(&mut self) -> Vec<u8> {
        let comment = if self.head.modern { "3\r\n:\n\n\r\n" } else { ":\n\n" };
        self.begin(comment.to_owned())
    }

    fn end(&mut self, answer: &str) -> Vec<u8> {
        let mut bytes = if answer.is_empty() { Vec::new() } else { self.event(answer) };
        if self.head.modern {
            bytes.extend_from_slice(LAST_CHUNK.as_bytes());
        }
        bytes
    }

    fn begin(&mut self, event: String) -> Vec<u8> {
        if self.begun {
            return event.into_bytes();
        }
        self.begun = true;
        let head = stream_head(self.head.origin.as_deref(), self.next == Next::Request, self.head.modern);
        (head + &event).into_bytes()
    }
}

fn is_late(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut)
}
