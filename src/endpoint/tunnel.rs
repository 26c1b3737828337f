//! A connection to a model server that another thread can end, which minreq's own cannot be: it reads until its server
//! speaks, and a model reads a long prompt for minutes before it does.
//!
//! The connection is opened here; minreq reaches it through a loopback socket of this process, as it would through a
//! proxy. TLS runs through it from end to end. Shutting the far side down ends minreq's read, and the server learns that
//! nobody waits any more.
//!
//! Refuses: what goes through it, and proxies of the environment.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream, ToSocketAddrs};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// Ends a connection when it is dropped, be it open already or still being opened.
#[derive(Debug, Default)]
pub struct Cutter(Line);

/// What is known of one connection by those who use it and by whoever may end it.
#[derive(Debug, Clone, Default)]
pub struct Line(Arc<Mutex<State>>);

#[derive(Debug, Default)]
enum State {
    #[default]
    Unopened,
    Open(TcpStream),
    Cut,
}

impl Cutter {
    pub fn line(&self) -> Line {
        self.0.clone()
    }
}

impl Drop for Cutter {
    fn drop(&mut self) {
        if let State::Open(far) = std::mem::replace(&mut *self.0.locked(), State::Cut) {
            // It may be closed already.
            far.shutdown(Shutdown::Both).ok();
        }
    }
}

impl Line {
    fn locked(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The near end: a port of this machine that takes one connection and leads it to the server.
#[derive(Debug)]
pub struct Tunnel {
    pub port: u16,
}

/// `CONNECT host:port` and little else.
const MAX_HEAD: usize = 4096;

impl Tunnel {
    /// Connects to the server, until the deadline.
    pub fn open(host: &str, port: u16, deadline: Instant, line: &Line) -> io::Result<Tunnel> {
        let far = connect(host, port, deadline)?;
        far.set_nodelay(true)?;
        {
            let mut state = line.locked();
            if matches!(*state, State::Cut) {
                return Err(io::ErrorKind::Interrupted.into());
            }
            *state = State::Open(far.try_clone()?);
        }
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let port = listener.local_addr()?.port();
        let lead = move || {
            // Whatever ends one side ends the other; those who use them see that.
            lead(listener, far).ok();
        };
        thread::Builder::new().name("model tunnel".into()).spawn(lead)?;
        Ok(Tunnel { port })
    }
}

/// Whoever waits at the near end for a connection that never comes, because the request could not be made, gets one that
/// ends at once.
impl Drop for Tunnel {
    fn drop(&mut self) {
        TcpStream::connect((Ipv4Addr::LOCALHOST, self.port)).ok();
    }
}

/// The first address that answers.
fn connect(host: &str, port: u16, deadline: Instant) -> io::Result<TcpStream> {
    let mut last = io::Error::new(io::ErrorKind::NotFound, "its host has no address");
    for address in (host, port).to_socket_addrs()? {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        match TcpStream::connect_timeout(&address, left) {
            Ok(stream) => return Ok(stream),
            Err(error) => last = error,
        }
    }
    Err(last)
}

fn lead(listener: TcpListener, far: TcpStream) -> io::Result<()> {
    let (mut near, _) = listener.accept()?;
    drop(listener);
    near.set_nodelay(true)?;
    near.set_read_timeout(Some(Duration::from_secs(10)))?;
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        if head.len() > MAX_HEAD || near.read(&mut byte)? == 0 {
            return Err(io::ErrorKind::InvalidData.into());
        }
        head.push(byte[0]);
    }
    near.set_read_timeout(None)?;
    near.write_all(b"HTTP/1.1 200 OK\r\n\r\n")?;
    let (own_near, own_far) = (near.try_clone()?, far.try_clone()?);
    let upwards = thread::Builder::new().name("model tunnel up".into());
    let upwards = upwards.spawn(move || pump(&own_near, &own_far))?;
    pump(&far, &near);
    upwards.join().ok();
    Ok(())
}

/// Hands on what comes until either side ends, then ends both.
fn pump(mut from: &TcpStream, mut to: &TcpStream) {
    let mut buffer = [0; 16384];
    loop {
        let len = match from.read(&mut buffer) {
            Ok(0) => break,
            Ok(len) => len,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(_) => break,
        };
        if to.write_all(&buffer[..len]).is_err() {
            break;
        }
    }
    for side in [from, to] {
        side.shutdown(Shutdown::Both).ok();
    }
}
