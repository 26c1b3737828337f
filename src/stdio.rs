//! Stdin and stdout as one client's lines.
//!
//! Stdout carries the protocol and nothing else: fd 1 is pointed at stderr, and the real stdout is a private file.

use std::fs::File;
use std::io;
use std::sync::Arc;
use std::thread;
use std::time::Instant;

use crate::error::{Error, Result};
use crate::lines::{Peer, Sink};
use crate::pool::Pool;
use crate::rpc::Server;

/// The client at the other end of the pipes.
pub struct Stdio {
    peer: Arc<Peer>,
}

impl Stdio {
    /// Takes stdout over. `on_broken` runs on a thread of its own when nobody reads it any more.
    pub fn open(server: Arc<Server>, on_broken: impl FnOnce() + Send + 'static) -> Result<Stdio> {
        let stdout = take_stdout().map_err(Error::io("take over", std::path::Path::new("stdout")))?;
        let peer = Peer::new(server, Sink::File(stdout));
        let writing = peer.clone();
        let write = move || {
            writing.write_waiting();
            on_broken();
        };
        let thread = thread::Builder::new().name("stdout".into()).stack_size(256 << 10).spawn(write);
        thread.map_err(|error| Error::Internal { cause: format!("no thread can be started: {error}") })?;
        Ok(Stdio { peer })
    }

    /// Serves until stdin ends. `heard` is called after each chunk of requests.
    pub fn read(&self, pool: &Arc<Pool>, heard: &dyn Fn()) {
        self.peer.read(io::stdin().lock(), pool, false, heard, &is_hung_up);
    }

    /// Requests under way are answered, as far as that is possible by then.
    pub fn finish(&self, deadline: Instant) {
        self.peer.finish(deadline);
    }

    pub fn flush(&self, deadline: Instant) {
        self.peer.flush(deadline);
    }
}

/// The real stdout, for us alone: whatever a library prints goes to stderr from here on.
pub fn take_stdout() -> io::Result<File> {
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
pub fn is_hung_up() -> bool {
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
