//! The one owner of what a client reads. A line is written by whoever has it, as long as the pipe or socket takes it
//! without blocking; what it does not take is left to a thread that may block, so that no client can hold up the reader
//! or a worker by not reading.

use std::fs::File;
use std::io::{self, Write};
use std::net::TcpStream;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Bytes waiting for a client that does not read; then requests are not read either.
const MOST_WAITING: usize = 64 << 20;

/// Where lines go.
pub enum Sink {
    File(File),
    Socket(TcpStream),
}

pub struct Output {
    sink: Sink,
    /// The same pipe, opened so that a write takes what there is room for and never waits; None where that is no pipe or
    /// the system has no such way.
    unblocked: Option<File>,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    waiting: Vec<u8>,
    /// Bytes that the thread has taken and not written yet.
    writing: usize,
    broken: bool,
}

/// Nobody reads any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Broken;

impl Output {
    pub fn new(sink: Sink) -> Output {
        let unblocked = match &sink {
            Sink::File(file) => unblocked(file),
            Sink::Socket(_) => None,
        };
        Output { sink, unblocked, state: Mutex::default(), changed: Condvar::new() }
    }

    pub fn sink(&self) -> &Sink {
        &self.sink
    }

    /// Takes whole lines, line ends included.
    pub fn send(&self, lines: &[u8]) -> Result<(), Broken> {
        if lines.is_empty() {
            return Ok(());
        }
        let mut state = self.locked();
        if state.broken {
            return Err(Broken);
        }
        let mut rest = lines;
        if state.waiting.is_empty() && state.writing == 0 {
            let written = match (&self.unblocked, &self.sink) {
                (Some(pipe), _) => as_it_goes(lines, |rest| (&mut &*pipe).write(rest)),
                #[cfg(unix)]
                (None, Sink::Socket(stream)) => as_it_goes(lines, |rest| send_now(stream, rest)),
                _ => write_now(&self.sink, lines),
            };
            match written {
                Ok(written) => rest = &lines[written..],
                Err(_) => {
                    state.broken = true;
                    self.changed.notify_all();
                    return Err(Broken);
                }
            }
        }
        if !rest.is_empty() {
            state.waiting.extend_from_slice(rest);
            self.changed.notify_all();
        }
        Ok(())
    }

    /// Waits until there is room for more, at most until `timeout`. False if there is still none.
    pub fn has_room(&self, timeout: Duration) -> bool {
        let full = |state: &mut State| !state.broken && state.waiting.len() + state.writing > MOST_WAITING;
        let state = self.locked();
        let waited = self.changed.wait_timeout_while(state, timeout, full).unwrap_or_else(PoisonError::into_inner);
        !waited.1.timed_out()
    }

    /// Waits until everything is written, at most until `deadline`.
    pub fn flush(&self, deadline: Instant) {
        let left = deadline.saturating_duration_since(Instant::now());
        let busy = |state: &mut State| !state.broken && state.waiting.len() + state.writing > 0;
        // At the deadline the client has had its time.
        drop(self.changed.wait_timeout_while(self.locked(), left, busy));
    }

    /// Takes nothing more, as if nobody read any more.
    pub fn close(&self) {
        self.locked().broken = true;
        self.changed.notify_all();
    }

    /// Writes what others could not. Returns when the sink is broken.
    pub fn write_waiting(&self) -> Broken {
        let mut bytes = Vec::new();
        loop {
            let mut state = self.locked();
            state.writing = 0;
            self.changed.notify_all();
            while state.waiting.is_empty() && !state.broken {
                state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
            if state.broken {
                return Broken;
            }
            bytes.clear();
            bytes.shrink_to(64 << 10);
            std::mem::swap(&mut bytes, &mut state.waiting);
            state.writing = bytes.len();
            drop(state);
            if (&self.sink).write_all(&bytes).is_err() {
                self.locked().broken = true;
                self.changed.notify_all();
                return Broken;
            }
        }
    }

    fn locked(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Write for &Sink {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Sink::File(file) => (&*file).write(bytes),
            Sink::Socket(stream) => (&*stream).write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(unix)]
impl Sink {
    fn descriptor(&self) -> std::os::fd::BorrowedFd<'_> {
        use std::os::fd::AsFd;
        match self {
            Sink::File(file) => file.as_fd(),
            Sink::Socket(stream) => stream.as_fd(),
        }
    }
}

/// A second opening of a pipe has flags of its own: to set them on the first would make the other end's program, which
/// may share it, fail where it waited before.
#[cfg(target_os = "linux")]
fn unblocked(file: &File) -> Option<File> {
    use std::os::fd::AsRawFd;
    use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};

    if !file.metadata().ok()?.file_type().is_fifo() {
        return None;
    }
    let flags = nix::fcntl::OFlag::O_NONBLOCK.bits();
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    File::options().write(true).custom_flags(flags).open(path).ok()
}

#[cfg(not(target_os = "linux"))]
fn unblocked(_: &File) -> Option<File> {
    None
}

/// Sends as much as the socket takes without waiting, and leaves it one that waits for everybody else.
#[cfg(unix)]
fn send_now(stream: &TcpStream, bytes: &[u8]) -> io::Result<usize> {
    use std::os::fd::AsRawFd;

    use nix::sys::socket::{MsgFlags, send};
    // Where a client is gone this is an error like any other: the signal that could go with it is ignored.
    Ok(send(stream.as_raw_fd(), bytes, MsgFlags::MSG_DONTWAIT)?)
}

/// Writes to what never blocks as much as it takes.
fn as_it_goes(bytes: &[u8], mut write: impl FnMut(&[u8]) -> io::Result<usize>) -> io::Result<usize> {
    let mut written = 0;
    while written < bytes.len() {
        match write(&bytes[written..]) {
            Ok(count) => written += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
            Err(error) => return Err(error),
        }
    }
    Ok(written)
}

/// Writes as much as goes without blocking: a pipe or socket that is ready takes at least `PIPE_BUF` bytes, of which this many
/// are certain everywhere.
#[cfg(unix)]
fn write_now(mut sink: &Sink, bytes: &[u8]) -> io::Result<usize> {
    use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

    const AT_ONCE: usize = if cfg!(target_os = "linux") { 4096 } else { 512 };
    let mut written = 0;
    while written < bytes.len() {
        let mut ready = [PollFd::new(sink.descriptor(), PollFlags::POLLOUT)];
        let events = match poll(&mut ready, PollTimeout::ZERO) {
            Ok(_) => ready[0].revents().unwrap_or(PollFlags::empty()),
            Err(_) => break,
        };
        if !events.intersects(PollFlags::POLLOUT | PollFlags::POLLERR | PollFlags::POLLHUP) {
            break;
        }
        let end = bytes.len().min(written + AT_ONCE);
        match sink.write(&bytes[written..end]) {
            Ok(count) => written += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
            Err(error) => return Err(error),
        }
    }
    Ok(written)
}

/// Without a way to ask, the thread does all the writing.
#[cfg(not(unix))]
fn write_now(_: &Sink, _: &[u8]) -> io::Result<usize> {
    Ok(0)
}
