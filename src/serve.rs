//! A server's life: what it speaks, its ingest in the background, how others find it, and how it ends.
//!
//! ```text
//! stdio   ends with its stdin, at a signal, or when nobody reads stdout
//! http    ends at a signal, when it is told to, when nobody has used it for long enough, or when it cannot go on
//! both    as http; the end of stdin ends only that side
//! ```
//! Nothing waits for the thread that reads stdin: it cannot be woken.

use std::net::TcpListener;
use std::process;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Once};
use std::thread;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, unbounded};

use crate::catch_up::CatchUp;
use crate::error::{Error, Result};
use crate::exit;
use crate::http::{self, Address, Hooks, Http};
use crate::kb::Kb;
use crate::lines::MOST_QUEUED;
use crate::log;
use crate::pool::Pool;
use crate::rendezvous::{Claim, Folder, fingerprint};
use crate::residency::{self, Scope};
use crate::rpc::Server;
use crate::stdio::Stdio;
use crate::wire::{ServerStatus, ServerStatusV1};

/// What a server does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    pub transport: Transport,
    /// Whether the index is brought up to date in the background.
    pub sync: bool,
    /// How long nobody may want anything of an HTTP server before it ends itself; None: for ever.
    pub idle_exit: Option<Duration>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transport {
    Stdio,
    Http(Address),
    Both(Address),
}

/// What requests under way have left when stdin has ended, and when an HTTP server ends.
const LAST_WORDS: Duration = Duration::from_secs(1);
const LAST_ANSWERS: Duration = Duration::from_secs(5);

/// What an ingest in the background has left to store its work when the process must end at once.
const LAST_WORK: Duration = Duration::from_millis(300);

/// How often sessions that are over are swept.
const SWEEP: Duration = Duration::from_secs(60);

/// Serves until the end. An error is one of the start; a server that came to its end in disorder is `Failed`.
pub fn run(server: Server, plan: &Plan) -> Result<Ending> {
    let server = Arc::new(server);
    match plan.transport {
        Transport::Stdio => stdio(server, plan),
        Transport::Http(address) => reachable(server, plan, address, false),
        Transport::Both(address) => reachable(server, plan, address, true),
    }
}

#[derive(Debug)]
pub enum Ending {
    Done,
    Failed(Error),
}

fn stdio(server: Arc<Server>, plan: &Plan) -> Result<Ending> {
    let catch_up = catch_up(&server, plan)?;
    let (ending, broken) = (catch_up.clone(), catch_up.clone());
    on_signal(move || end(ending.as_deref()))?;
    let stdio = Stdio::open(server, move || end(broken.as_deref()))?;
    let pool = pool()?;
    let settled = Once::new();
    stdio.read(&pool, &|| {
        begin(catch_up.as_deref());
        // Not before the first answer, which a host waits for.
        settled.call_once(|| residency::trim(Scope::Program));
    });

    let deadline = Instant::now() + LAST_WORDS;
    stdio.finish(deadline);
    if let Some(catch_up) = catch_up {
        catch_up.stop(deadline);
    }
    stdio.flush(deadline);
    Ok(Ending::Done)
}

/// What happens to a server that others reach.
enum Event {
    Stop,
    StdinEnded,
    Failed(Error),
}

fn reachable(server: Arc<Server>, plan: &Plan, address: Address, with_stdio: bool) -> Result<Ending> {
    let kb = match &server.kb {
        Ok(kb) => kb.clone(),
        // Without a data folder there is no place for a token.
        Err(error) => return Err(error.clone()),
    };
    let folder = Folder::of(kb.data_dir());
    let token = folder.token()?;
    let listener = match http::bind(address) {
        Err(error @ Error::Io { .. }) => return Ok(Ending::Failed(error)),
        other => other?,
    };
    residency::trim(Scope::Program);
    let status = status(&kb, &server, &listener, &folder)?;
    let (say, events) = unbounded();
    let catch_up = catch_up(&server, plan)?;
    let pool = pool()?;
    let http = Http::new(server.clone(), kb, pool.clone(), token, hooks(&say, catch_up.clone()));
    http.start(listener).map_err(no_thread)?;
    signals(&say)?;
    if with_stdio {
        let catch_up = catch_up.clone();
        let stdio = Stdio::open(server, || log::warn("nobody reads stdout any more"))?;
        let reading = move || {
            stdio.read(&pool, &|| begin(catch_up.as_deref()));
            let deadline = Instant::now() + LAST_WORDS;
            stdio.finish(deadline);
            stdio.flush(deadline);
            // The receiver lives as long as the process.
            say.send(Event::StdinEnded).ok();
        };
        thread::Builder::new().name("stdin".into()).spawn(reading).map_err(no_thread)?;
    }
    let claim = publish(&folder, &status)?;
    log::announce(&serde_json::to_string(&status).map_err(|error| Error::Internal { cause: error.to_string() })?);

    let ending = wait(&http, &events, plan.idle_exit, with_stdio);
    // The claim itself lasts until the end: whoever waits for that sees it go.
    if let Some(claim) = &claim {
        claim.withdraw();
    }
    http.finish(Instant::now() + LAST_ANSWERS);
    if let Some(catch_up) = catch_up {
        catch_up.stop(Instant::now() + LAST_WORK);
    }
    Ok(ending)
}

/// Until there is a reason to end.
fn wait(http: &Http, events: &Receiver<Event>, idle_exit: Option<Duration>, mut stdin_is_open: bool) -> Ending {
    let tick = idle_exit.map_or(SWEEP, |idle| (idle / 8).clamp(Duration::from_millis(20), Duration::from_secs(5)));
    let mut swept = Instant::now();
    loop {
        match events.recv_timeout(tick) {
            Ok(Event::Stop) | Err(RecvTimeoutError::Disconnected) => return Ending::Done,
            Ok(Event::Failed(error)) => return Ending::Failed(error),
            Ok(Event::StdinEnded) => stdin_is_open = false,
            Err(RecvTimeoutError::Timeout) => {}
        }
        if swept.elapsed() >= SWEEP {
            swept = Instant::now();
            http.sweep();
        }
        let quiet = http.quiet_since().filter(|_| !stdin_is_open);
        if idle_exit.is_some_and(|idle| quiet.is_some_and(|since| since.elapsed() >= idle)) {
            return Ending::Done;
        }
    }
}

fn hooks(say: &Sender<Event>, catch_up: Option<Arc<CatchUp>>) -> Hooks {
    let (stop, failed) = (say.clone(), say.clone());
    Hooks {
        heard: Box::new(move || begin(catch_up.as_deref())),
        // The receiver lives as long as the process.
        stop: Box::new(move || stop.send(Event::Stop).unwrap_or(())),
        failed: Box::new(move |error| {
            let error = Error::Internal { cause: format!("no connection can be accepted: {error}") };
            failed.send(Event::Failed(error)).unwrap_or(());
        }),
    }
}

/// The first signal ends the server in order, a second one at once.
fn signals(say: &Sender<Event>) -> Result<()> {
    let (say, again) = (say.clone(), AtomicBool::new(false));
    on_signal(move || {
        if again.swap(true, Ordering::Relaxed) || say.send(Event::Stop).is_err() {
            exit::end(0);
        }
    })
}

/// Tells others where the server is. None where another one of this store has told them.
fn publish(folder: &Folder, status: &ServerStatus) -> Result<Option<Claim>> {
    let Some(claim) = folder.claim()? else {
        log::warn("another server of this store is running; this one is reached by its URL only");
        return Ok(None);
    };
    claim.publish(status)?;
    Ok(Some(claim))
}

fn status(kb: &Kb, server: &Server, listener: &TcpListener, folder: &Folder) -> Result<ServerStatus> {
    let address = listener.local_addr().map_err(|error| Error::Internal { cause: error.to_string() })?;
    let text = |path: &std::path::Path| path.to_string_lossy().into_owned();
    Ok(ServerStatus {
        schema_version: ServerStatusV1,
        running: true,
        url: Some(format!("http://{address}/mcp")),
        pid: Some(process::id()),
        version: Some(env!("CARGO_PKG_VERSION").to_owned()),
        root: text(&kb.config.sources[0].root),
        store: text(kb.data_dir()),
        readonly: Some(server.readonly()),
        config: Some(fingerprint(&kb.config)),
        token_file: text(&folder.token_file()),
        started_at: Some(jiff::Timestamp::now().to_string()),
    })
}

fn catch_up(server: &Server, plan: &Plan) -> Result<Option<Arc<CatchUp>>> {
    match &server.kb {
        Ok(kb) if plan.sync && !server.readonly() => Ok(Some(Arc::new(CatchUp::start(kb.clone()).map_err(no_thread)?))),
        _ => Ok(None),
    }
}

fn begin(catch_up: Option<&CatchUp>) {
    if let Some(catch_up) = catch_up {
        catch_up.begin();
    }
}

fn pool() -> Result<Arc<Pool>> {
    Ok(Arc::new(Pool::start(Pool::size(), MOST_QUEUED).map_err(no_thread)?))
}

fn on_signal(act: impl FnMut() + Send + 'static) -> Result<()> {
    ctrlc::set_handler(act).map_err(|error| Error::Internal { cause: format!("no signal handler: {error}") })
}

/// Ends the process from a thread other than the one that reads stdin.
fn end(catch_up: Option<&CatchUp>) {
    if let Some(catch_up) = catch_up {
        catch_up.stop(Instant::now() + LAST_WORK);
    }
    exit::end(0);
}

fn no_thread(error: std::io::Error) -> Error {
    Error::Internal { cause: format!("no thread can be started: {error}") }
}
