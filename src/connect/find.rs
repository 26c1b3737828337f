//! Finds the server of a store by its endpoint file, or starts one: many who look at once start one only.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use crate::error::{Error, Result};
use crate::http::{BATCHES, LINES, READONLY};
use crate::rendezvous::Folder;
use crate::wire::ServerStatus;

/// Which server is looked for.
pub struct Find {
    pub folder: Folder,
    /// The fingerprint of the configuration it must have.
    pub config: String,
    pub readonly: bool,
    /// None: one that is not there is not started.
    pub start: Option<Start>,
}

/// How a server is started.
pub struct Start {
    /// Arguments of this program.
    pub args: Vec<std::ffi::OsString>,
}

const PAUSE: Duration = Duration::from_millis(10);

/// For a connection within this machine.
const DIAL_TIME: Duration = Duration::from_secs(2);

/// For a part of what is written: whoever waits for a server looks around meanwhile.
const WRITE_TIME: Duration = Duration::from_millis(100);

/// What a server answers before lines begin.
const SWITCHED: &[u8] = b"HTTP/1.1 101 ";

impl Find {
    /// A connection of lines to the server, which is started if it may be. `batches`: what the client has agreed on.
    pub fn connect(&self, batches: bool, deadline: Instant) -> Result<TcpStream> {
        let mut failed = None;
        loop {
            if let Some(status) = self.folder.find() {
                self.require_fit(&status)?;
                match self.dial(&status, batches) {
                    Ok(stream) => return Ok(stream),
                    // It may be about to end, or only just about to listen.
                    Err(error) => failed = Some(error),
                }
            } else if let Some(start) = &self.start {
                // Whoever waited for this may find that another has started one.
                let starting = self.folder.starting(deadline)?;
                if starting.is_some() && self.folder.find().is_none() {
                    start.run(&self.folder, deadline)?;
                    continue;
                }
            } else {
                return Err(none("there is none, and --ensure-server=false starts none"));
            }
            if Instant::now() >= deadline {
                return Err(failed.unwrap_or_else(|| none("none came up in time")));
            }
            thread::sleep(PAUSE);
        }
    }

    /// The server that is running, if its answers would be those of this configuration.
    pub fn running(&self) -> Option<ServerStatus> {
        self.folder.find().filter(|status| self.require_fit(status).is_ok())
    }

    fn require_fit(&self, status: &ServerStatus) -> Result<()> {
        let refuse = |why: String| Err(none(&format!("process {}: {why}", status.pid.unwrap_or_default())));
        match &status.version {
            Some(version) if version == env!("CARGO_PKG_VERSION") => {}
            other => return refuse(format!("it is version {}", other.as_deref().unwrap_or("unknown"))),
        }
        if status.config.as_ref() != Some(&self.config) {
            return refuse("it has another configuration".into());
        }
        if status.readonly == Some(true) && !self.readonly {
            return refuse("it was started with --readonly".into());
        }
        Ok(())
    }

    fn dial(&self, status: &ServerStatus, batches: bool) -> Result<TcpStream> {
        let (address, mut stream) = dial(status)?;
        let token = self.folder.read_token()?;
        let asked = |name: &str, asked: bool| if asked { format!("{name}: true\r\n") } else { String::new() };
        let request = format!(
            "GET /lines HTTP/1.1\r\nHost: {address}\r\nAuthorization: Bearer {}\r\nConnection: Upgrade\r\nUpgrade: {LINES}\r\n{}{}\r\n",
            token.text(),
            asked(READONLY, self.readonly),
            asked(BATCHES, batches)
        );
        let broken = |error: std::io::Error| none(&format!("it does not answer: {error}"));
        stream.write_all(request.as_bytes()).map_err(broken)?;
        // The head is short, and nothing follows it unasked.
        let mut head = Vec::new();
        let mut byte = [0];
        while !head.ends_with(b"\r\n\r\n") && head.len() < 4096 {
            stream.read_exact(&mut byte).map_err(broken)?;
            head.push(byte[0]);
        }
        if !head.starts_with(SWITCHED) {
            let status = String::from_utf8_lossy(&head).lines().next().unwrap_or_default().to_owned();
            return Err(none(&format!("it answers {status:?}")));
        }
        stream.set_read_timeout(None).and_then(|()| stream.set_write_timeout(Some(WRITE_TIME))).map_err(broken)?;
        Ok(stream)
    }
}

impl Start {
    /// Starts a server and waits until it can be found.
    fn run(&self, folder: &Folder, deadline: Instant) -> Result<()> {
        let program = std::env::current_exe().map_err(|error| none(&format!("this program has no path: {error}")))?;
        let mut command = Command::new(program);
        command.args(&self.args).stdin(Stdio::null()).stdout(Stdio::null()).stderr(folder.log()?);
        apart(&mut command);
        let mut child = command.spawn().map_err(|error| none(&format!("it cannot be started: {error}")))?;
        while folder.find().is_none() {
            if let Some(status) = child.try_wait().unwrap_or(None) {
                return Err(none(&format!("it ended at once, with {status}; its log is beside the token")));
            }
            if Instant::now() >= deadline {
                return Err(none("it did not come up in time"));
            }
            thread::sleep(PAUSE);
        }
        bury(child);
        Ok(())
    }
}

/// A connection to where the server listens, and the address in words.
pub fn dial(status: &ServerStatus) -> Result<(SocketAddr, TcpStream)> {
    let url = status.url.as_deref().unwrap_or_default();
    let address = url.strip_prefix("http://").and_then(|rest| rest.strip_suffix("/mcp"));
    let address: SocketAddr = address.and_then(|text| text.parse().ok()).ok_or_else(|| none("its URL is odd"))?;
    let stream = TcpStream::connect_timeout(&address, DIAL_TIME).and_then(|stream| {
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(DIAL_TIME))?;
        Ok(stream)
    });
    Ok((address, stream.map_err(|error| none(&format!("it does not listen: {error}")))?))
}

pub fn none(cause: &str) -> Error {
    Error::Internal { cause: format!("shared server: {cause}") }
}

/// A server outlives the host that happened to need it first, and the terminal of that host.
fn apart(command: &mut Command) {
    #[cfg(unix)]
    {
        use std::os::unix::process::CommandExt;
        command.process_group(0);
    }
    #[cfg(windows)]
    {
        use std::os::windows::process::CommandExt;
        const DETACHED_PROCESS: u32 = 0x0000_0008;
        const CREATE_NEW_PROCESS_GROUP: u32 = 0x0000_0200;
        command.creation_flags(DETACHED_PROCESS | CREATE_NEW_PROCESS_GROUP);
    }
    #[cfg(not(any(unix, windows)))]
    {
        let _ = command;
    }
}

/// An ended child stays in the system's table until its parent asks for it.
fn bury(mut child: Child) {
    let waiting = thread::Builder::new().name("server".into()).stack_size(64 << 10).spawn(move || child.wait());
    // Without a thread to spare the entry stays until this process ends.
    drop(waiting);
}
