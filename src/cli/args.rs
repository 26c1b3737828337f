//! The command line: which subcommands and flags there are, and argv in any order made into one of them.
//!
//! The structs are the one table of flags: parsing, help, suggestions and the rules of normalising all read it.
//! Refuses: what a value means beyond its form; search flags become the JSON object any client would send, and the
//! library judges that.

mod ask;
mod filters;
mod server;

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use argh::{ArgsInfo, CommandInfoWithArgs, FlagInfo, FlagInfoKind, FromArgs};
use kebab_lite::config::{Flags, nearest};
use kebab_lite::error::{Error, Result};
use serde_json::{Map, Value};

use filters::with_filters;

pub use ask::AskArgs;
pub use server::{Action, McpArgs, ServerArgs, Speak};

pub const PROGRAM: &str = "kebab-lite";

/// What a command line asks for.
pub enum Request {
    Run(Box<Args>),
    /// A text for stdout.
    Tell(String),
}

#[derive(FromArgs, ArgsInfo)]
#[argh(
    help_triggers("--help", "-h"),
    description = "Searches a folder of documents and answers with line-exact citations.",
    example = "{command_name} ingest --root ~/notes\n{command_name} search --root ~/notes how do backups work",
    note = "Global flags may stand before or after the subcommand; --flag=value works too.\n\
            Exit codes: 0 done, 1 no answer or blocked by --readonly, 2 error, 3 unhealthy, 130 stopped by Ctrl-C."
)]
pub struct Args {
    /// folder to search (default: workspace.root of the config file, else the working folder)
    #[argh(option, arg_name = "dir")]
    pub root: Option<PathBuf>,
    /// folder of the index (default: one for each root under the user's data folder)
    #[argh(option, arg_name = "dir")]
    pub data_dir: Option<PathBuf>,
    /// config file (default: kebab-lite/config.toml in the user's config folder, if it exists)
    #[argh(option, arg_name = "file")]
    pub config: Option<PathBuf>,
    /// print one line of JSON on stdout; errors and progress are JSON lines on stderr
    #[argh(switch)]
    pub json: bool,
    /// no progress, warnings or notes on stderr; errors stay
    #[argh(switch, short = 'q')]
    pub quiet: bool,
    /// refuse whatever would write
    #[argh(switch)]
    pub readonly: bool,
    /// library of ONNX Runtime, or none to do without (default: found where libraries lie; faster than the own one)
    #[argh(option, arg_name = "file")]
    pub onnxruntime: Option<PathBuf>,
    /// print the version
    #[argh(switch, short = 'V')]
    #[allow(dead_code, reason = "answered before parsing; declared here so that help lists it")]
    pub version: bool,
    #[argh(subcommand)]
    pub command: Command,
}

#[derive(FromArgs, ArgsInfo)]
#[argh(subcommand)]
#[allow(clippy::large_enum_variant, reason = "one exists in a process, and argh's tables know no boxes")]
pub enum Command {
    Ingest(IngestArgs),
    Search(SearchArgs),
    Ask(AskArgs),
    Fetch(FetchArgs),
    IngestFile(IngestFileArgs),
    IngestStdin(IngestStdinArgs),
    Schema(SchemaArgs),
    Doctor(DoctorArgs),
    Mcp(McpArgs),
    Server(ServerArgs),
}

/// Read new and changed files into the index.
#[derive(FromArgs, ArgsInfo)]
#[argh(subcommand, name = "ingest", help_triggers("--help", "-h"))]
pub struct IngestArgs {
    /// files and folders to take (default: all of the root and of the configured sources)
    #[argh(positional, arg_name = "path")]
    pub paths: Vec<PathBuf>,
    /// read unchanged files again too, and check all of the index
    #[argh(switch)]
    pub force: bool,
    /// seconds to wait while another ingest holds the index (default: 30)
    #[argh(option, arg_name = "secs", default = "WAIT_SECONDS", from_str_fn(seconds))]
    pub wait: u64,
    /// report every file, not just counts
    #[argh(switch)]
    pub list: bool,
    /// do not embed: new texts are found by their words only, until another ingest
    #[argh(switch)]
    pub no_embed: bool,
}

/// Seconds an ingest waits for another one.
pub const WAIT_SECONDS: u64 = 30;

with_filters! {
    /// Find passages.
    #[derive(FromArgs, ArgsInfo)]
    #[argh(
        subcommand,
        name = "search",
        help_triggers("--help", "-h"),
        note = "Filters: all that are given must hold; of a repeated one, any value.\n\
                Words behind `--` are words of the query, even those that start with a dash."
    )]
    pub struct SearchArgs {
        /// words of the query
        #[argh(positional, arg_name = "query")]
        pub query: Vec<String>,
        /// how to rank: lexical, vector or hybrid (default: hybrid)
        #[argh(option)]
        pub mode: Option<String>,
        /// number of hits, 1 to 100 (default: 10, or search.default_k of the config file)
        #[argh(option)]
        pub k: Option<String>,
        /// shorten the answer to about this many tokens (default: no limit)
        #[argh(option, arg_name = "n")]
        pub max_tokens: Option<String>,
        /// length of snippets in characters (default: 240, or search.snippet_chars)
        #[argh(option, arg_name = "n")]
        pub snippet_chars: Option<String>,
        /// continue behind an earlier answer: its next_cursor
        #[argh(option)]
        pub cursor: Option<String>,
        /// show how the ranking came about
        #[argh(switch)]
        pub trace: bool,
        /// leave out hits far below the first
        #[argh(switch)]
        pub drop_weak: bool,
        /// read up to 100 queries from stdin, one JSON object a line
        #[argh(switch)]
        pub bulk: bool,
        /// ingest changed files first
        #[argh(switch)]
        pub sync: bool,
        /// search in this process even if a server of this root is running
        #[argh(switch)]
        pub no_server: bool,
    }
}

/// Show the source text behind a hit: a chunk, a document or lines of one.
#[derive(FromArgs, ArgsInfo)]
#[argh(subcommand, name = "fetch", help_triggers("--help", "-h"))]
pub struct FetchArgs {
    /// a path or a citation such as docs/setup.md#L12-L34, or the id of a chunk or a document
    #[argh(positional, arg_name = "what")]
    pub what: String,
    /// chunks to show before and after a chunk, 0 to 20 (default: 0)
    #[argh(option, arg_name = "n")]
    pub context: Option<String>,
    /// only these lines of a document: 12-34, 12 or 12-
    #[argh(option, arg_name = "a-b")]
    pub lines: Option<String>,
    /// shorten the text to about this many tokens (default: no limit)
    #[argh(option, arg_name = "n")]
    pub max_tokens: Option<String>,
    /// the configured source that a path lies in, if several have it
    #[argh(option, arg_name = "id")]
    pub source: Option<String>,
}

/// Read one file into the index; one outside the root is copied if ingest.allowed_dirs of the config file allows it.
#[derive(FromArgs, ArgsInfo)]
#[argh(subcommand, name = "ingest-file", help_triggers("--help", "-h"))]
pub struct IngestFileArgs {
    /// the file
    #[argh(positional, arg_name = "path")]
    pub path: PathBuf,
    /// title of the document (default: its own)
    #[argh(option)]
    pub title: Option<String>,
    /// one more tag of the document; may be repeated
    #[argh(option)]
    pub tag: Vec<String>,
}

/// Store the text on stdin as a document; the same title and URI replace it.
#[derive(FromArgs, ArgsInfo)]
#[argh(
    subcommand,
    name = "ingest-stdin",
    help_triggers("--help", "-h"),
    example = "{command_name} --title \"Standup, Monday\" --tag meeting < notes.md"
)]
pub struct IngestStdinArgs {
    /// title of the document (required)
    #[argh(option)]
    pub title: Option<String>,
    /// where the text is from
    #[argh(option, arg_name = "uri")]
    pub source_uri: Option<String>,
    /// a tag of the document; may be repeated
    #[argh(option)]
    pub tag: Vec<String>,
    /// language of the text, such as en or ko (default: detected)
    #[argh(option)]
    pub lang: Option<String>,
    /// how far to trust it: generated, secondary or primary (default: secondary)
    #[argh(option, arg_name = "level")]
    pub trust_level: Option<String>,
}

/// Show versions, capabilities and what the index holds.
#[derive(FromArgs, ArgsInfo)]
#[argh(subcommand, name = "schema", help_triggers("--help", "-h"))]
pub struct SchemaArgs {}

/// Check configuration, index and models; exit code 3 if something is wrong.
#[derive(FromArgs, ArgsInfo)]
#[argh(subcommand, name = "doctor", help_triggers("--help", "-h"))]
pub struct DoctorArgs {}

impl Args {
    pub fn flags(&self) -> Flags {
        Flags {
            config: self.config.clone(),
            root: self.root.clone(),
            data_dir: self.data_dir.clone(),
            readonly: self.readonly,
            onnxruntime: self.onnxruntime.clone(),
        }
    }
}

impl SearchArgs {
    /// The object an MCP client would send: only what was given, values as they were given.
    pub fn into_json(mut self) -> Map<String, Value> {
        let filters = self.filters();
        let words = if self.query.is_empty() { None } else { Some(self.query.join(" ")) };
        let switch = |on: bool| on.then_some(Value::Bool(true));
        let fields = [
            ("query", one(words)),
            ("mode", one(self.mode)),
            ("k", one(self.k)),
            ("max_tokens", one(self.max_tokens)),
            ("snippet_chars", one(self.snippet_chars)),
            ("cursor", one(self.cursor)),
            ("trace", switch(self.trace)),
            ("drop_weak", switch(self.drop_weak)),
        ];
        object(fields.into_iter().chain(filters))
    }
}

impl FetchArgs {
    pub fn into_json(self) -> Map<String, Value> {
        // One end may be left out; an odd text goes on to the library, which refuses it.
        let (start, end) = match self.lines.as_deref().map(|lines| lines.split_once('-').unwrap_or((lines, lines))) {
            None => (None, None),
            Some((start, "")) if !start.is_empty() => (Some(start.to_owned()), None),
            Some(("", end)) if !end.is_empty() => (None, Some(end.to_owned())),
            Some((start, end)) => (Some(start.to_owned()), Some(end.to_owned())),
        };
        object([
            ("uri", one(Some(self.what))),
            ("context", one(self.context)),
            ("line_start", one(start)),
            ("line_end", one(end)),
            ("max_tokens", one(self.max_tokens)),
            ("source", one(self.source)),
        ])
    }
}

impl IngestFileArgs {
    /// A relative path is relative to the working folder here.
    pub fn into_json(self, cwd: &Path) -> Result<Map<String, Value>> {
        let path = cwd.join(self.path).into_os_string().into_string();
        let path = path.map_err(|path| Error::input("path", format!("{path:?} is not valid Unicode")))?;
        Ok(object([("path", one(Some(path))), ("title", one(self.title)), ("tags", many(self.tag))]))
    }
}

impl IngestStdinArgs {
    pub fn into_json(self, text: String) -> Map<String, Value> {
        object([
            ("text", one(Some(text))),
            ("title", one(self.title)),
            ("source_uri", one(self.source_uri)),
            ("tags", many(self.tag)),
            ("lang", one(self.lang)),
            ("trust_level", one(self.trust_level)),
        ])
    }
}

fn one(value: Option<String>) -> Option<Value> {
    value.map(Value::from)
}

fn many(values: Vec<String>) -> Option<Value> {
    if values.is_empty() { None } else { Some(Value::from(values)) }
}

fn object(fields: impl IntoIterator<Item = (&'static str, Option<Value>)>) -> Map<String, Value> {
    fields.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?))).collect()
}

/// True if errors are to be JSON, which must be known even of a command line that does not parse.
pub fn wants_json(argv: &[OsString]) -> bool {
    argv.iter().take_while(|arg| *arg != "--").any(|arg| arg == "--json")
}

/// Argv without the program's name.
pub fn parse(argv: Vec<OsString>) -> Result<Request> {
    let mut words = Vec::with_capacity(argv.len());
    for arg in argv {
        words.push(arg.into_string().map_err(|arg| {
            let shown = arg.to_string_lossy().into_owned();
            Error::input("arguments", format!("{shown:?} is not valid Unicode"))
        })?);
    }
    let line = normalise(words)?;
    if line.help {
        let args: Vec<&str> = line.command.iter().map(String::as_str).chain(["--help"]).collect();
        return match Args::from_args(&[PROGRAM], &args) {
            Err(exit) => Ok(Request::Tell(exit.output + &global_flags(line.command.as_deref()))),
            Ok(_) => Err(Error::Internal { cause: "no help text".into() }),
        };
    }
    if line.version {
        return Ok(Request::Tell(format!("{PROGRAM} {}\n", env!("CARGO_PKG_VERSION"))));
    }
    if line.command.is_none() {
        let reason = format!("none given; expected one of {}", command_names().join(", "));
        return Err(Error::input_hint("subcommand", reason, format!("Run `{PROGRAM} --help`.")));
    }
    let args: Vec<&str> = line.args().collect();
    match Args::from_args(&[PROGRAM], &args) {
        Ok(args) => Ok(Request::Run(Box::new(args))),
        Err(exit) => {
            let command = line.command.as_deref().unwrap_or_default();
            let reason = exit.output.trim().replace('\n', " ");
            Err(Error::input_hint("arguments", reason, format!("Run `{PROGRAM} {command} --help`.")))
        }
    }
}

/// The help of a command lists its own flags; this line stands for the others.
fn global_flags(command: Option<&str>) -> String {
    if command.is_none() {
        return String::new();
    }
    let flags = Args::get_args_info().flags.iter().map(|flag| flag.long);
    let names: Vec<&str> = flags.filter(|long| !matches!(*long, "--help" | "--version")).collect();
    format!("\nAlso {}: see `{PROGRAM} --help`.\n", names.join(", "))
}

/// A command line sorted into the order argh understands.
#[derive(Default)]
struct Line {
    global: Vec<String>,
    command: Option<String>,
    own: Vec<String>,
    positional: Vec<String>,
    help: bool,
    version: bool,
}

impl Line {
    fn args(&self) -> impl Iterator<Item = &str> {
        let own = self.own.iter().map(String::as_str);
        let behind = (!self.positional.is_empty()).then_some("--").into_iter();
        let global = self.global.iter().map(String::as_str).chain(self.command.as_deref());
        global.chain(own).chain(behind).chain(self.positional.iter().map(String::as_str))
    }
}

/// Global flags to the front, `--flag=value` split, positional arguments behind `--`. Flags are looked up in the
/// tables of the structs above, so that a value is never taken for a flag.
fn normalise(words: Vec<String>) -> Result<Line> {
    let top = Args::get_args_info();
    let mut line = Line::default();
    let mut command: Option<&CommandInfoWithArgs> = None;
    let mut words = words.into_iter().peekable();
    while let Some(word) = words.next() {
        if word == "--" {
            line.positional.extend(words.by_ref());
            break;
        }
        if !word.starts_with('-') || word == "-" {
            if command.is_some() {
                line.positional.push(word);
            } else if word == "help" {
                line.help = true;
            } else {
                command = Some(find_command(&top, &word)?);
                line.command = Some(word);
            }
            continue;
        }
        let (name, inline) = match word.split_once('=') {
            Some((name, value)) => (name, Some(value.to_owned())),
            None => (word.as_str(), None),
        };
        if matches!(name, "--help" | "-h") {
            line.help = true;
            continue;
        }
        let own = command.and_then(|command| find_flag(command.flags, name));
        let global = find_flag(top.flags, name);
        let Some(flag) = own.or(global) else { return Err(unknown_flag(&top, command, name)) };
        if flag.long == "--version" {
            line.version = true;
        }
        let side = if own.is_some() { &mut line.own } else { &mut line.global };
        side.push(flag.long.to_owned());
        match (&flag.kind, inline) {
            (FlagInfoKind::Switch, None) => {}
            (FlagInfoKind::Switch, Some(_)) => return Err(Error::input(name, "it takes no value")),
            (FlagInfoKind::Option { .. }, Some(value)) => side.push(value),
            (FlagInfoKind::Option { arg_name }, None) => {
                let is_flag = |word: &String| {
                    let known = command.is_some_and(|command| find_flag(command.flags, word).is_some());
                    known || find_flag(top.flags, word).is_some()
                };
                match words.next_if(|word| word != "--" && !is_flag(word)) {
                    Some(value) => side.push(value),
                    None => {
                        let hint =
                            format!("Write {name} <{arg_name}>, or {name}=<{arg_name}> if it starts with a dash.");
                        return Err(Error::input_hint(name, "it needs a value", hint));
                    }
                }
            }
        }
    }
    Ok(line)
}

fn find_flag<'a>(flags: &'a [FlagInfo<'static>], name: &str) -> Option<&'a FlagInfo<'static>> {
    let short = |flag: &FlagInfo| {
        flag.short.is_some_and(|short| name.strip_prefix('-') == Some(short.encode_utf8(&mut [0; 4])))
    };
    flags.iter().find(|flag| flag.long == name || short(flag))
}

fn find_command<'a>(top: &'a CommandInfoWithArgs, name: &str) -> Result<&'a CommandInfoWithArgs> {
    if let Some(found) = top.commands.iter().find(|command| command.name == name) {
        return Ok(&found.command);
    }
    let hint = match nearest(name, command_names()) {
        Some(near) => format!("Did you mean `{near}`?"),
        None => format!("Subcommands: {}.", command_names().join(", ")),
    };
    Err(Error::input_hint("subcommand", format!("there is no {name:?}"), hint))
}

fn unknown_flag(top: &CommandInfoWithArgs, command: Option<&CommandInfoWithArgs>, name: &str) -> Error {
    let own = command.map_or(&[][..], |command| command.flags);
    let known = own.iter().chain(top.flags).map(|flag| flag.long);
    let elsewhere = top.commands.iter().filter(|other| find_flag(other.command.flags, name).is_some());
    let elsewhere: Vec<&str> = elsewhere.map(|other| other.name).collect();
    let hint = if let Some(owner) = elsewhere.first() {
        format!("It is a flag of `{owner}` and stands behind that word.")
    } else if let Some(near) = nearest(name, known) {
        format!("Did you mean `{near}`?")
    } else if command.is_some_and(|command| !command.positionals.is_empty()) {
        "Put `--` before words that start with a dash.".to_owned()
    } else {
        format!("Run `{PROGRAM} --help`.")
    };
    Error::input_hint(name, "there is no such flag", hint)
}

fn command_names() -> Vec<&'static str> {
    Args::get_args_info().commands.iter().map(|command| command.name).collect()
}

pub fn seconds(text: &str) -> Result<u64, String> {
    text.parse().map_err(|_| "expected a whole number of seconds".to_owned())
}

#[cfg(test)]
#[path = "args_tests.rs"]
mod tests;
