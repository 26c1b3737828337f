//! `mcp` and `server`: a server in this process, a line to a shared one, and what there is to say about that one.

use std::ffi::OsString;
use std::io::Write;
use std::sync::Arc;
use std::time::{Duration, Instant};

use kebab_lite::config::{self, Config};
use kebab_lite::connect::{self, Find, Start};
use kebab_lite::error::{Error, Result};
use kebab_lite::kb::Kb;
use kebab_lite::log;
use kebab_lite::rendezvous::{Folder, fingerprint};
use kebab_lite::rpc;
use kebab_lite::serve::{self, Ending, Plan, Transport};
use kebab_lite::wire::{ServerStatus, ServerStatusV1};

use super::args::{Action, McpArgs, ServerArgs, Speak};
use super::hosts;
use super::{Exit, Outcome, Session, load, render, tell_error};

/// A server that `--connect` has started ends when nobody has been connected for so long.
const SHARED_IDLE: u64 = 15 * 60;

/// What a server has left when it is told to end: its requests under way, and the time to say so.
const STOP_TIME: Duration = Duration::from_secs(8);

/// A server runs whatever the configuration is like: its host shows what tools say, and nothing of what comes before.
pub fn mcp(session: &Session, args: &McpArgs, flags: &config::Flags) -> Outcome {
    if let Some(host) = args.print_config {
        return print_config(session, args, flags, host);
    }
    if !session.quiet {
        log::start();
    }
    let config = load(flags);
    match &config {
        Ok(config) => config.warnings.iter().for_each(|warning| log::warn(warning)),
        Err(error) => log::warn(&format!("{error}; {}", error.hint().unwrap_or_default())),
    }
    let transport = match args.transport {
        Speak::Stdio => Transport::Stdio,
        Speak::Http => Transport::Http(args.address()),
        Speak::Both => Transport::Both(args.address()),
    };
    if transport == Transport::Stdio && !args.connect && (args.http_bind.is_some() || args.http_port.is_some()) {
        log::warn("--http-bind and --http-port mean nothing without --transport http or both");
    }
    match config {
        Ok(config) if args.connect && transport == Transport::Stdio => {
            connect::run(shared(args, flags, config))?;
            Ok(Exit::Done)
        }
        config => serve(session, args, flags, config, transport),
    }
}

fn serve(
    session: &Session,
    args: &McpArgs,
    flags: &config::Flags,
    config: Result<Config>,
    transport: Transport,
) -> Outcome {
    let idle_exit = args.idle_exit.filter(|seconds| *seconds > 0).map(Duration::from_secs);
    let plan = Plan { transport, sync: !args.no_sync, idle_exit };
    match serve::run(rpc::Server::new(open(config), flags.readonly), &plan)? {
        Ending::Done => Ok(Exit::Done),
        Ending::Failed(error) => {
            tell_error(&error, session.json);
            Ok(Exit::Broken)
        }
    }
}

/// A server lives long enough for the graph of vectors to be worth its while.
fn open(config: Result<Config>) -> Result<Arc<Kb>> {
    let kb = config.and_then(Kb::open).map(Arc::new);
    kb.iter().for_each(|kb| kb.graphs.allow());
    kb
}

/// `server status` and `server stop`.
pub fn server(session: &Session, args: &ServerArgs, config: Config) -> Outcome {
    let folder = Folder::of(&config.data_dir);
    let found = folder.find();
    let status = match (args.action, found) {
        (_, None) => none(&config, &folder),
        (Action::Status, Some(status)) => status,
        (Action::Stop, Some(status)) => {
            connect::stop(&folder, &status)?;
            let deadline = Instant::now() + STOP_TIME;
            while folder.is_held() {
                if Instant::now() >= deadline {
                    let pid = status.pid.unwrap_or_default();
                    return Err(Error::Internal { cause: format!("process {pid} was told to end, and has not") }.into());
                }
                std::thread::sleep(Duration::from_millis(10));
            }
            session.note(&format!("process {} has ended", status.pid.unwrap_or_default()));
            none(&config, &folder)
        }
    };
    session.answer(&status, |out, status| render::server(out, session.style, status))?;
    Ok(if args.action == Action::Status && !status.running { Exit::Unhealthy } else { Exit::Done })
}

/// How a running server for this configuration is found.
pub fn find(config: &Config) -> Find {
    let (folder, config) = (Folder::of(&config.data_dir), fingerprint(config));
    // A search writes nothing, so a server that may not write will do.
    Find { folder, config, readonly: true, start: None }
}

fn none(config: &Config, folder: &Folder) -> ServerStatus {
    ServerStatus {
        schema_version: ServerStatusV1,
        running: false,
        url: None,
        pid: None,
        version: None,
        root: config.sources[0].root.to_string_lossy().into_owned(),
        store: config.data_dir.to_string_lossy().into_owned(),
        readonly: None,
        config: None,
        token_file: folder.token_file().to_string_lossy().into_owned(),
        started_at: None,
    }
}

fn shared(args: &McpArgs, flags: &config::Flags, config: Config) -> connect::Plan {
    let readonly = config.readonly;
    let start = args.ensure_server.then(|| Start { args: arguments(args, flags) });
    let find = Find { readonly, start, ..find(&config) };
    let alone = move || rpc::Server::new(open(Ok(config.clone())), readonly);
    connect::Plan { find, alone: Box::new(alone), sync: !args.no_sync }
}

/// The command line of the server that others share: the same flags, in the same folder, give the same configuration.
fn arguments(args: &McpArgs, flags: &config::Flags) -> Vec<OsString> {
    let idle = args.idle_exit.unwrap_or(SHARED_IDLE).to_string();
    let port = args.http_port.unwrap_or(0).to_string();
    let words = ["mcp", "--transport", "http", "--http-port", &port, "--idle-exit", &idle];
    let mut words = words.map(OsString::from).to_vec();
    if let Some(ip) = args.http_bind {
        words.extend([OsString::from("--http-bind"), OsString::from(ip.to_string())]);
    }
    for (flag, path) in [("--root", &flags.root), ("--data-dir", &flags.data_dir), ("--config", &flags.config)] {
        if let Some(path) = path {
            words.extend([OsString::from(flag), path.into()]);
        }
    }
    words.extend(flags.readonly.then(|| OsString::from("--readonly")));
    words.extend(args.no_sync.then(|| OsString::from("--no-sync")));
    words
}

fn print_config(session: &Session, args: &McpArgs, flags: &config::Flags, host: hosts::Host) -> Outcome {
    let config = load(flags)?;
    let folder = Folder::of(&config.data_dir);
    let entry = match args.transport {
        Speak::Stdio => {
            let program = std::env::current_exe().map_err(Error::io("find", std::path::Path::new("this program")))?;
            let root = config.root_is_named.then(|| config.sources[0].root.to_string_lossy().into_owned());
            hosts::of_process(host, &program.to_string_lossy(), root.as_deref(), args.connect)
        }
        Speak::Http | Speak::Both => {
            let url = folder.find().and_then(|status| status.url);
            let url = url.unwrap_or_else(|| {
                format!("http://{}/mcp", std::net::SocketAddr::new(args.address().ip, args.address().port))
            });
            hosts::of_url(host, &url, &folder.token_file().to_string_lossy())?
        }
    };
    let mut out = std::io::stdout().lock();
    out.write_all(entry.text.as_bytes())?;
    out.flush()?;
    if let Some(note) = entry.note {
        session.note(&note);
    }
    Ok(Exit::Done)
}
