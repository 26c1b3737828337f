//! The command line's side of the program: argv to an input, the library's answer to stdout, its outcome to an exit
//! code. The one place that prints.
//!
//! Refuses: judging values (the library does) and deciding anything an MCP client would have decided otherwise.

mod args;
mod ask;
mod bulk;
mod hosts;
mod progress;
mod render;
mod search;
mod server;
mod text;

use std::ffi::OsString;
use std::io::{self, BufWriter, Read, Write};
use std::panic::{self, AssertUnwindSafe};
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use kebab_lite::config::{self, Config};
use kebab_lite::error::{Error, Result};
use kebab_lite::ingest::embed::Effort;
use kebab_lite::kb::Kb;
use kebab_lite::{exit, ingest, tools, wire};
use serde::Serialize;
use serde_json::Value;

use args::{Args, Command, FetchArgs, IngestArgs, IngestFileArgs, IngestStdinArgs, Request};
use progress::Progress;
use text::{Style, clean};

/// How the program ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    Done,
    Refused,
    /// A server that cannot go on.
    Broken,
    Failed,
    Unhealthy,
    Interrupted,
}

impl Exit {
    pub fn code(self) -> u8 {
        match self {
            Exit::Done => 0,
            Exit::Refused | Exit::Broken => 1,
            Exit::Failed => 2,
            Exit::Unhealthy => 3,
            Exit::Interrupted => 130,
        }
    }
}

/// Runs one command line, argv without the program's name.
pub fn run(argv: Vec<OsString>) -> Exit {
    let json = args::wants_json(&argv);
    panic::set_hook(Box::new(|info| *PANIC.lock().unwrap_or_else(|poisoned| poisoned.into_inner()) = info.to_string()));
    let outcome = panic::catch_unwind(AssertUnwindSafe(|| dispatch(argv))).unwrap_or_else(|_| {
        let cause = PANIC.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).clone();
        Err(Error::Internal { cause }.into())
    });
    let error = match outcome {
        Ok(exit) => return exit,
        // Whoever read stdout has seen enough.
        Err(Failure::Output(cause)) if cause.kind() == io::ErrorKind::BrokenPipe => return Exit::Done,
        Err(Failure::Output(cause)) => Error::io("write", Path::new("stdout"))(cause),
        Err(Failure::Error(error)) => error,
    };
    tell_error(&error, json);
    match error {
        Error::ReadonlyMode { .. } => Exit::Refused,
        _ => Exit::Failed,
    }
}

/// What the last panic said and where: told as an `internal` error instead of being printed when it happens.
static PANIC: Mutex<String> = Mutex::new(String::new());

/// Why a command did not come to its end.
enum Failure {
    Error(Error),
    /// Stdout could not be written.
    Output(io::Error),
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Failure::Error(error)
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Failure::Output(error)
    }
}

type Outcome<T = Exit> = Result<T, Failure>;

/// What all commands share.
struct Session {
    json: bool,
    quiet: bool,
    style: Style,
}

impl Session {
    /// A remark beside the answer.
    fn note(&self, note: &str) {
        if !self.json && !self.quiet {
            tell(&clean(note));
        }
    }

    /// The whole answer of a command: one line of JSON, or what `human` writes.
    fn answer<T: Serialize>(
        &self,
        answer: &T,
        human: impl FnOnce(&mut dyn Write, &T) -> io::Result<()>,
    ) -> Outcome<()> {
        let mut out = BufWriter::new(io::stdout().lock());
        if self.json {
            writeln!(out, "{}", json_line(answer)?)?;
        } else {
            human(&mut out, answer)?;
        }
        Ok(out.flush()?)
    }
}

fn dispatch(argv: Vec<OsString>) -> Outcome {
    let args = match args::parse(argv)? {
        Request::Run(args) => *args,
        Request::Tell(text) => {
            let mut out = io::stdout().lock();
            out.write_all(text.as_bytes())?;
            out.flush()?;
            return Ok(Exit::Done);
        }
    };
    let session = Session { json: args.json, quiet: args.quiet, style: Style::of_stdout(&environment) };
    let flags = args.flags();
    let configure = || configure(&session, &flags);
    let Args { command, .. } = args;
    match command {
        Command::Ingest(args) => ingest(&session, args, configure()?),
        Command::Search(args) if args.bulk => search::bulk(&session, args, &configure),
        Command::Search(args) => search::one(&session, args, configure()?),
        Command::Ask(args) => ask::run(&session, args, configure()?),
        Command::Fetch(args) => fetch(&session, args, configure()?),
        Command::IngestFile(args) => ingest_file(&session, args, configure()?),
        Command::IngestStdin(args) => ingest_stdin(&session, args, configure()?),
        Command::Schema(_) => {
            let schema = tools::schema::run(&Kb::open_to_the_end(configure()?)?)?;
            session.answer(&schema, |out, schema| render::schema(out, session.style, schema))?;
            Ok(Exit::Done)
        }
        Command::Doctor(_) => {
            let doctor = match configure().and_then(Kb::open_to_the_end) {
                Ok(kb) => tools::doctor::run(&kb),
                Err(error) => tools::doctor::unusable(&error),
            };
            session.answer(&doctor, |out, doctor| render::doctor(out, session.style, doctor))?;
            Ok(if doctor.ok { Exit::Done } else { Exit::Unhealthy })
        }
        Command::Mcp(args) => server::mcp(&session, &args, &flags),
        Command::Server(args) => server::server(&session, &args, configure()?),
    }
}

/// A value that is not Unicode is taken with marks in place of the odd bytes: it then fails by name, which an
/// ignored one would not.
fn environment(name: &str) -> Option<String> {
    std::env::var_os(name).map(|value| value.to_string_lossy().into_owned())
}

fn configure(session: &Session, flags: &config::Flags) -> Result<Config> {
    let config = load(flags)?;
    for warning in &config.warnings {
        session.note(&format!("{}: {warning}", args::PROGRAM));
    }
    Ok(config)
}

fn load(flags: &config::Flags) -> Result<Config> {
    let cwd = std::env::current_dir().map_err(Error::io("find the working folder", Path::new(".")))?;
    config::load(flags, &environment, &cwd)
}

fn ingest(session: &Session, args: IngestArgs, config: Config) -> Outcome {
    let cwd = std::env::current_dir().map_err(Error::io("find the working folder", Path::new(".")))?;
    let input = ingest::Input {
        paths: args.paths.iter().map(|path| cwd.join(path)).collect(),
        force: args.force,
        wait: Duration::from_secs(args.wait),
        list: args.list,
        embed: if args.no_embed { Effort::None } else { Effort::Full },
    };
    let Some(report) = run_ingest(session, &Kb::open_to_the_end(config)?, &input)? else {
        return Ok(Exit::Interrupted);
    };
    session.answer(&report, |out, report| render::ingest(out, session.style, report, args.list))?;
    Ok(if report.aborted { Exit::Interrupted } else { Exit::Done })
}

fn ingest_file(session: &Session, args: IngestFileArgs, config: Config) -> Outcome {
    let cwd = std::env::current_dir().map_err(Error::io("find the working folder", Path::new(".")))?;
    let input = tools::ingest_file::Input::from_json(Value::Object(args.into_json(&cwd)?))?;
    let report = tools::ingest_file::run(&Kb::open_to_the_end(config)?, &input, &STOP)?;
    session.answer(&report, |out, report| render::ingest_items(out, session.style, report))?;
    Ok(Exit::Done)
}

fn ingest_stdin(session: &Session, args: IngestStdinArgs, config: Config) -> Outcome {
    if config.readonly {
        return Err(Error::ReadonlyMode { operation: "ingest_stdin" }.into());
    }
    let mut bytes = Vec::new();
    let limit = config.ingest.max_file_bytes;
    let stdin = io::stdin().lock().take(limit + 1).read_to_end(&mut bytes);
    stdin.map_err(Error::io("read", Path::new("stdin")))?;
    if bytes.len() as u64 > limit {
        return Err(Error::input("text", format!("stdin holds more than ingest.max_file_bytes, {limit}")).into());
    }
    // A shell hands on whatever encoding the text was written in.
    let text = match ingest::decode::decode(bytes) {
        Ok(decoded) => decoded.text,
        Err(why) => return Err(Error::input("text", format!("stdin is no text: {}", why.reason())).into()),
    };
    let input = tools::ingest_stdin::Input::from_json(Value::Object(args.into_json(text)))?;
    let report = tools::ingest_stdin::run(&Kb::open_to_the_end(config)?, &input, &STOP)?;
    session.answer(&report, |out, report| render::ingest_items(out, session.style, report))?;
    Ok(Exit::Done)
}

/// None if it was stopped before it began, while it waited for another one.
fn run_ingest(session: &Session, kb: &Kb, input: &ingest::Input) -> Result<Option<wire::IngestReport>> {
    stop_on_signal()?;
    let mut progress = Progress::new(session.json, session.quiet, environment("KEBAB_PROGRESS").as_deref())?;
    let report = ingest::run(kb, input, &mut |event| progress.show(event), &STOP);
    progress.finish();
    match report {
        Err(Error::StoreBusy { .. }) if STOP.load(Ordering::SeqCst) => Ok(None),
        report => report.map(Some),
    }
}

/// Set by the first Ctrl-C or SIGTERM; the ingest ends at the next file and keeps what is done.
static STOP: AtomicBool = AtomicBool::new(false);

/// A second signal ends the program at once; the index stands such an end at any instant.
fn stop_on_signal() -> Result<()> {
    let handler = || {
        if STOP.swap(true, Ordering::SeqCst) {
            exit::end(Exit::Interrupted.code());
        }
    };
    ctrlc::set_handler(handler).map_err(|error| Error::Internal { cause: format!("no signal handler: {error}") })
}

fn fetch(session: &Session, args: FetchArgs, config: Config) -> Outcome {
    let input = tools::fetch::Input::from_json(Value::Object(args.into_json()))?;
    let result = tools::fetch::run(&Kb::open_to_the_end(config)?, &input)?;
    session.answer(&result, |out, result| render::fetch(out, session.style, result))?;
    if result.truncated {
        session.note("shortened to fit the token limit");
    }
    if result.stale {
        session.note(&format!("{} is stale; run `{} ingest`", result.doc_path, args::PROGRAM));
    }
    Ok(Exit::Done)
}

/// An exit code if the search is not to follow.
fn sync_first(session: &Session, kb: &Kb) -> Outcome<Option<Exit>> {
    let wait = Duration::from_secs(args::WAIT_SECONDS);
    let embed = Effort::Within(SYNC);
    let input = ingest::Input { paths: Vec::new(), force: false, wait, list: false, embed };
    let Some(report) = run_ingest(session, kb, &input)? else { return Ok(Some(Exit::Interrupted)) };
    if report.errors > 0 {
        session.note(&format!("{} files could not be read; `{} ingest` lists them", report.errors, args::PROGRAM));
    }
    Ok(report.aborted.then_some(Exit::Interrupted))
}

/// What a search waits for vectors of what it has just read in.
const SYNC: Duration = Duration::from_secs(20);

fn json_line(value: &impl Serialize) -> Result<String> {
    serde_json::to_string(value).map_err(|error| Error::Internal { cause: format!("an answer is not JSON: {error}") })
}

fn tell_error(error: &Error, json: bool) {
    if json {
        match json_line(&wire::ErrorReport::from(error)) {
            Ok(line) => tell(&line),
            Err(error) => tell(&error.to_string()),
        }
        return;
    }
    tell(&format!("{}: {}", args::PROGRAM, clean(&error.to_string())));
    if let Some(hint) = error.hint() {
        tell(&format!("  hint: {}", clean(&hint)));
    }
}

/// One line on stderr. Nobody is left to be told if stderr itself is gone.
fn tell(line: &str) {
    writeln!(io::stderr().lock(), "{line}").ok();
}
