//! HTTP/1.1 ⇄ messages, over the standard library's sockets: framing, limits, deadlines and headers, nothing else. The
//! bytes of a body go to the same functions and the same pool as a line of stdin.
//!
//! ```text
//! accept ─ slots ─► a thread: head ─ route ─┬─ refusal
//!                                           ├─ body ─ post ─┬─ known at once ─► response
//!                                           │               └─ calls ─► pool ─► response or stream of events
//!                                           └─ lines: the socket is a client's stdin and stdout from here on
//! ```
//! Refuses: addresses other than this machine's own, TLS, and knowing what a message means.

mod body;
mod connection;
mod head;
mod origin;
mod post;
mod response;
mod route;
mod session;
mod slots;
#[cfg(test)]
mod tests;

use std::io::{self, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::error::{Error, Result};
use crate::kb::Kb;
use crate::log;
use crate::pool::Pool;
use crate::rendezvous::Token;
use crate::rpc::Server;
use connection::Connection;
pub use head::{BATCHES, MAX_BODY, READONLY, WHOLE};
use response::{Refusal, Response, Status};
pub use route::LINES;
use session::Sessions;
use slots::Slots;

/// Where to listen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Address {
    pub ip: IpAddr,
    pub port: u16,
}

/// What all connections share.
pub struct Http {
    server: Arc<Server>,
    kb: Arc<Kb>,
    pool: Arc<Pool>,
    token: Token,
    sessions: Sessions,
    slots: Arc<Slots>,
    threads: AtomicUsize,
    ending: AtomicBool,
    hooks: Hooks,
}

/// What the rest of the process hears of.
pub struct Hooks {
    /// A client has asked for something.
    pub heard: Box<dyn Fn() + Send + Sync>,
    /// A client with the token wants the server to end.
    pub stop: Box<dyn Fn() + Send + Sync>,
    /// No connection can be accepted any more.
    pub failed: Box<dyn Fn(io::Error) + Send + Sync>,
}

/// Ports tried where the wanted one is taken.
const PORTS: u16 = 10;

/// Threads of connections that have a place or are giving theirs up.
const MOST_THREADS: usize = 4 * slots::MOST;

/// Connections that cannot be accepted, one after another, before that counts as the end.
const MOST_FAILURES: u32 = 500;

/// What requests of a connection of lines have left when it has ended.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// Listens on the port, or one of the next ten if it is taken.
pub fn bind(address: Address) -> Result<TcpListener> {
    if !address.ip.is_loopback() {
        let reason = format!("{} can be reached from other machines; this server is for its own only", address.ip);
        return Err(Error::input_hint("http_bind", reason, "Use 127.0.0.1 or ::1."));
    }
    let last = if address.port == 0 { 0 } else { address.port.saturating_add(PORTS) };
    let mut tried = None;
    for port in address.port..=last {
        match TcpListener::bind((address.ip, port)) {
            Ok(listener) => return Ok(listener),
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => tried = Some(error),
            Err(error) => return Err(cannot_listen(address, &error)),
        }
    }
    let error = tried.unwrap_or_else(|| io::ErrorKind::AddrInUse.into());
    Err(cannot_listen(address, &error))
}

fn cannot_listen(address: Address, error: &io::Error) -> Error {
    let place = SocketAddr::new(address.ip, address.port).to_string();
    Error::Io { operation: "listen on", path: place.into(), cause: error.to_string() }
}

impl Http {
    pub fn new(server: Arc<Server>, kb: Arc<Kb>, pool: Arc<Pool>, token: Token, hooks: Hooks) -> Arc<Http> {
        let (sessions, slots) = (Sessions::default(), Slots::new(Instant::now()));
        let (threads, ending) = (AtomicUsize::new(0), AtomicBool::new(false));
        Arc::new(Http { server, kb, pool, token, sessions, slots, threads, ending, hooks })
    }

    /// Accepts connections on a thread of its own.
    pub fn start(self: &Arc<Http>, listener: TcpListener) -> io::Result<()> {
        let http = self.clone();
        thread::Builder::new().name("accept".into()).spawn(move || {
            let error = http.accept(&listener);
            (http.hooks.failed)(error);
        })?;
        Ok(())
    }

    /// Requests are answered for the last time; lets those under way finish, at most until the deadline.
    pub fn finish(&self, deadline: Instant) {
        self.ending.store(true, Ordering::Relaxed);
        while self.pool.is_busy() && Instant::now() < deadline {
            thread::sleep(Duration::from_millis(5));
        }
        // The answers of the last jobs are on their way.
        thread::sleep(Duration::from_millis(20));
    }

    /// Since when nobody with the token has wanted anything; None while somebody does.
    pub fn quiet_since(&self) -> Option<Instant> {
        self.slots.quiet_since()
    }

    /// What time has made useless is given back.
    pub fn sweep(&self) {
        self.sessions.sweep(Instant::now());
    }

    fn is_ending(&self) -> bool {
        self.ending.load(Ordering::Relaxed)
    }

    fn heard(&self) {
        (self.hooks.heard)();
    }

    fn stop(&self) {
        (self.hooks.stop)();
    }

    /// A client may ask for less than this server would do.
    fn server_for(&self, readonly: bool) -> Arc<Server> {
        match readonly && !self.server.readonly() {
            true => Arc::new(Server::new(Ok(self.kb.clone()), true)),
            false => self.server.clone(),
        }
    }

    /// Returns when nothing can be accepted any more.
    fn accept(self: &Arc<Http>, listener: &TcpListener) -> io::Error {
        let mut failures = 0;
        loop {
            let stream = match listener.accept() {
                Ok((stream, _)) => stream,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) if failures < MOST_FAILURES => {
                    if failures == 0 {
                        log::warn(&format!("a connection cannot be accepted: {error}"));
                    }
                    failures += 1;
                    thread::sleep(Duration::from_millis(20));
                    continue;
                }
                Err(error) => return error,
            };
            failures = 0;
            if self.admit(Arc::new(stream)).is_err() {
                log::warn("a connection is refused: no thread can be started");
            }
        }
    }

    fn admit(self: &Arc<Http>, stream: Arc<TcpStream>) -> io::Result<()> {
        let place = match self.threads.load(Ordering::Relaxed) < MOST_THREADS {
            true => self.slots.take(&stream, Instant::now()),
            false => None,
        };
        let Some(place) = place else {
            let full = Refusal::new(Status::Unavailable, "too many connections");
            // A socket that has only just been accepted takes this without waiting; if not, the client is gone.
            stream
                .set_nonblocking(true)
                .and_then(|()| (&*stream).write_all(&Response::from(full).bytes(None, false, false)))
                .ok();
            return Ok(());
        };
        // Answers are small and each is one write; what cannot be set costs only speed.
        stream.set_nodelay(true).ok();
        stream.set_write_timeout(Some(Duration::from_secs(30)))?;
        let http = self.clone();
        self.threads.fetch_add(1, Ordering::Relaxed);
        let spawned = thread::Builder::new().name("http".into()).stack_size(512 << 10).spawn(move || {
            Connection::new(&http, &place, &stream).serve();
            http.threads.fetch_sub(1, Ordering::Relaxed);
        });
        if spawned.is_err() {
            self.threads.fetch_sub(1, Ordering::Relaxed);
        }
        spawned.map(drop)
    }
}
