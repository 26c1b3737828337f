//! A server process, driven over pipes by one thread. What the driver does for a request is write bytes prepared
//! beforehand, many requests at a time, and count line feeds: `cat` in the server's place shows its limit. One answer is
//! waited for without sleeping, so that waking the driver is no part of the time; a server that says nothing for
//! `PATIENCE` is given up.

use std::io::{ErrorKind, Read, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

pub struct Server {
    child: Child,
    /// Taken to close it.
    stdin: Option<ChildStdin>,
    stdout: ChildStdout,
    buffer: Vec<u8>,
}

/// The server said nothing for `PATIENCE`.
#[derive(Debug, Clone, Copy)]
pub struct Stalled;

pub const PATIENCE: Duration = Duration::from_secs(10);

/// How to wait for bytes.
#[derive(Clone, Copy)]
enum Wait {
    /// Asking again and again.
    Awake,
    /// Leaving the processor to the server.
    Asleep,
}

/// Reads return at once. This end of the pipe is ours alone.
#[cfg(unix)]
fn never_wait(stdout: &ChildStdout) {
    use nix::fcntl::{FcntlArg, OFlag, fcntl};
    fcntl(stdout, FcntlArg::F_SETFL(OFlag::O_NONBLOCK)).expect("a pipe has flags");
}

#[cfg(unix)]
fn sleep_until_readable(stdout: &ChildStdout) {
    use std::os::fd::AsFd;

    use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
    // Interrupted or not, the caller looks again and knows how long it has waited.
    poll(&mut [PollFd::new(stdout.as_fd(), PollFlags::POLLIN)], PollTimeout::from(200u8)).ok();
}

/// Without a way to ask, reads wait as long as it takes.
#[cfg(not(unix))]
fn never_wait(_: &ChildStdout) {}

#[cfg(not(unix))]
fn sleep_until_readable(_: &ChildStdout) {}

/// Lines to send again and again, in order.
pub struct Requests {
    bytes: Vec<u8>,
    /// Where each line ends.
    ends: Vec<usize>,
}

/// What was done in a time.
#[derive(Clone, Copy)]
pub struct Work {
    pub count: usize,
    pub time: Duration,
    /// Seconds of processor time, of the process that did it. None where the system has no /proc.
    pub cpu: Option<f64>,
}

/// Memory of a process, in bytes.
#[derive(Clone, Copy)]
pub struct Resident {
    pub all: f64,
    /// Without the pages of mapped files, which other processes share and the system may take back.
    pub anonymous: f64,
}

pub const INITIALIZE: &[u8] = br#"{"jsonrpc":"2.0","id":"first","method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"bench","version":"1"}}}
"#;

const INITIALIZED: &[u8] = b"{\"jsonrpc\":\"2.0\",\"method\":\"notifications/initialized\"}\n";

impl Server {
    pub fn spawn(mut command: Command) -> Server {
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap_or_else(|error| panic!("{command:?}: {error}"));
        let (stdin, stdout) = (child.stdin.take(), child.stdout.take().expect("piped"));
        never_wait(&stdout);
        Server { child, stdin, stdout, buffer: vec![0; 256 << 10] }
    }

    /// A server that has been through the handshake.
    pub fn ready(command: Command) -> Server {
        let mut server = Server::spawn(command);
        let answer = server.ask(INITIALIZE).expect("an answer to initialize");
        assert!(answer.starts_with(b"{") && !contains(answer, b"\"error\""), "{}", String::from_utf8_lossy(answer));
        server.tell(INITIALIZED);
        server
    }

    /// Sends lines that have no answer, or whose answers are read later.
    pub fn tell(&mut self, lines: &[u8]) {
        self.stdin.as_mut().expect("open until the end").write_all(lines).expect("the server reads");
    }

    /// Sends one line and waits for its answer.
    pub fn ask(&mut self, line: &[u8]) -> Result<&[u8], Stalled> {
        self.tell(line);
        let mut filled = 0;
        loop {
            if filled == self.buffer.len() {
                self.buffer.resize(2 * filled, 0);
            }
            filled += self.read(filled, Wait::Awake)?;
            if self.buffer[filled - 1] == b'\n' {
                return Ok(&self.buffer[..filled]);
            }
        }
    }

    /// Reads what there is behind the first `filled` bytes of the buffer, or waits for it.
    fn read(&mut self, filled: usize, wait: Wait) -> Result<usize, Stalled> {
        let mut since = None;
        loop {
            match self.stdout.read(&mut self.buffer[filled..]) {
                Ok(0) => panic!("the server ended"),
                Ok(count) => return Ok(count),
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    let since = *since.get_or_insert_with(Instant::now);
                    match wait {
                        Wait::Awake => std::hint::spin_loop(),
                        Wait::Asleep => sleep_until_readable(&self.stdout),
                    }
                    if since.elapsed() > PATIENCE {
                        return Err(Stalled);
                    }
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => panic!("the server's answers: {error}"),
            }
        }
    }

    /// Asks for this long with at most `window` requests under way, and seldom less than three quarters of them.
    pub fn load(&mut self, requests: &Requests, window: usize, time: Duration) -> Result<Work, Stalled> {
        let process = self.child.id().to_string();
        let (before, started) = (cpu(&process), Instant::now());
        let (mut sent, mut answered) = (0, 0);
        let mut asking = true;
        while asking || answered < sent {
            let room = window - (sent - answered);
            if asking && room >= window / 4 {
                let (lines, count) = requests.batch(sent, room);
                self.tell(lines);
                sent += count;
            }
            let count = self.read(0, Wait::Asleep)?;
            answered += self.buffer[..count].iter().filter(|byte| **byte == b'\n').count();
            asking = started.elapsed() < time;
        }
        let time = started.elapsed();
        Ok(Work { count: answered, time, cpu: cpu(&process).zip(before).map(|(after, before)| after - before) })
    }

    /// None where the system has no /proc.
    pub fn resident(&self) -> Option<Resident> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).ok()?;
        let field = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name))?;
            line.split_whitespace().next()?.parse::<f64>().ok().map(|kilobytes| kilobytes * 1024.0)
        };
        Some(Resident { all: field("VmRSS:")?, anonymous: field("RssAnon:")? })
    }

    /// Closes stdin. How long the server takes to end, and how many lines it still says.
    pub fn end(mut self) -> (Duration, usize) {
        let started = Instant::now();
        drop(self.stdin.take());
        let mut said = 0;
        loop {
            match self.stdout.read(&mut self.buffer) {
                Ok(0) => break,
                Ok(count) => said += self.buffer[..count].iter().filter(|byte| **byte == b'\n').count(),
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    assert!(started.elapsed() < PATIENCE, "the server does not end");
                    sleep_until_readable(&self.stdout);
                }
                Err(error) => panic!("the server's answers: {error}"),
            }
        }
        let status = self.child.wait().expect("a process can be waited for");
        let time = started.elapsed();
        assert!(status.success(), "{status}");
        (time, said)
    }
}

impl Work {
    pub fn per_second(&self) -> f64 {
        self.count as f64 / self.time.as_secs_f64()
    }

    /// Processor time of each, in seconds.
    pub fn cpu_each(&self) -> Option<f64> {
        self.cpu.map(|cpu| cpu / self.count as f64)
    }
}

/// Seconds of processor time that a process has used; "self" is this one.
pub fn cpu(process: &str) -> Option<f64> {
    /// What Linux counts by in /proc, whatever its clock.
    const TICKS_A_SECOND: f64 = 100.0;
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    // The name in parentheses may hold anything; user and system time are the 12th and 13th field after it.
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    let ticks = |field: usize| fields.get(field)?.parse::<f64>().ok();
    Some((ticks(11)? + ticks(12)?) / TICKS_A_SECOND)
}

impl Drop for Server {
    fn drop(&mut self) {
        // Only a failed bench leaves one running; what has ended cannot be killed, which is as well.
        self.child.kill().ok();
    }
}

impl Requests {
    pub fn new(lines: impl IntoIterator<Item = String>) -> Requests {
        let mut requests = Requests { bytes: Vec::new(), ends: Vec::new() };
        for line in lines {
            requests.bytes.extend_from_slice(line.as_bytes());
            requests.bytes.push(b'\n');
            requests.ends.push(requests.bytes.len());
        }
        requests
    }

    pub fn lines(&self) -> impl Iterator<Item = &[u8]> + Clone {
        self.bytes.split_inclusive(|byte| *byte == b'\n')
    }

    /// At most `count` lines from this position of the endless sequence, in one piece.
    fn batch(&self, position: usize, count: usize) -> (&[u8], usize) {
        let from = position % self.ends.len();
        let to = (from + count).min(self.ends.len());
        let start = if from == 0 { 0 } else { self.ends[from - 1] };
        (&self.bytes[start..self.ends[to - 1]], to - from)
    }
}

pub fn contains(text: &[u8], part: &[u8]) -> bool {
    text.windows(part.len()).any(|window| window == part)
}
