//! The real server over pipes, on an index of 100,000 chunks: how soon it answers, how much it answers, what it takes
//! and how fast it goes; and the same load on a server of the official Rust SDK, in turn.
//!
//! `cargo bench --bench mcp [-- --chunks N] [--peer | --no-peer]`
//!
//! The peer in `rmcp-server/` is built when first needed. A peer that cannot be built is left out, with --peer it is
//! an error. The documents and their index stay in the target folder from run to run.

#[path = "common/corpus.rs"]
mod corpus;
#[path = "common/server.rs"]
mod server;
#[path = "common/table.rs"]
mod table;

use std::hint::black_box;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

use corpus::Language;
use kebab_lite::config::{self, Flags};
use kebab_lite::kb::Kb;
use kebab_lite::model::Mode;
use kebab_lite::pool::Pool;
use kebab_lite::tools::{self, search::SearchInput};
use server::{INITIALIZE, PATIENCE, Requests, Server, Stalled, Work, contains, cpu};
use table::{Figure, Target, Unit};

const WORDS_A_CHUNK: usize = 120;
const CHUNKS_A_FILE: usize = 100;
const QUERIES: usize = 1000;
const K: usize = 10;
const WINDOW: usize = 64;

/// Processes started for a figure, and rounds of a rate.
const STARTS: usize = 40;
const ROUNDS: usize = 7;
const ROUND: Duration = Duration::from_secs(1);
const PINGS: usize = 20_000;

const EMBEDDING: &str = "KEBAB_MODELS_EMBEDDING_PROVIDER";

/// What our own server owes.
const ANSWER: &str = "an answer in time";

/// A server that is left alone has finished whatever it does in the background.
const SETTLED: Duration = Duration::from_secs(3);

fn main() {
    let options = Options::read();
    let load = load_average();
    let folder = Folder::prepare(options.chunks);
    println!("{} chunks of {WORDS_A_CHUNK} words; {} cores, load average {load}\n", options.chunks, Pool::size());
    let ping_lines = Requests::new((0..1000).map(|id| format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"ping"}}"#)));
    let searches = Requests::new(folder.queries.iter().enumerate().map(|(id, query)| {
        format!(
            r#"{{"jsonrpc":"2.0","id":{id},"method":"tools/call","params":{{"name":"search","arguments":{{"query":"{query}","mode":"lexical","k":{K}}}}}}}"#
        )
    }));

    table::head();
    start(|| folder.server(true)).print("start to the answer to initialize", Target::AtMost(5.0));
    let mut server = Server::ready(folder.server(false));
    pings(&mut server, &ping_lines);
    search(&mut server, &searches).print("search, one after another", Target::AtMost(0.3));
    in_flight(&mut server, &searches, &folder);
    let list = server.ask(TOOLS_LIST).expect(ANSWER).len() as f64;
    Figure::of_sizes(Unit::Kilobytes, vec![list]).print("answer to tools/list", Target::AtMost(8192.0));
    server.end();
    memory(&folder, &searches);
    endings(&folder, &searches);
    match options.peer {
        Peer::No => println!("\nThe SDK's server is left out: --no-peer."),
        peer => match build_peer() {
            Ok(binary) => compare(&folder, &binary, &ping_lines),
            Err(cause) if peer == Peer::Yes => panic!("the SDK's server cannot be built: {cause}"),
            Err(cause) => println!("\nTHE COMPARISON WITH THE SDK IS LEFT OUT, its server cannot be built: {cause}"),
        },
    }
    println!("\nload average at the end {}", load_average());
}

struct Options {
    chunks: usize,
    peer: Peer,
}

#[derive(PartialEq, Eq)]
enum Peer {
    Yes,
    IfBuilt,
    No,
}

impl Options {
    fn read() -> Options {
        let mut options = Options { chunks: 100_000, peer: Peer::IfBuilt };
        let mut args = std::env::args().skip(1);
        while let Some(arg) = args.next() {
            match arg.as_str() {
                // Cargo's own.
                "--bench" => {}
                "--peer" => options.peer = Peer::Yes,
                "--no-peer" => options.peer = Peer::No,
                "--chunks" => {
                    let number = args.next().and_then(|number| number.parse().ok());
                    options.chunks = number.filter(|chunks| *chunks > 0).expect("--chunks takes a number from 1");
                }
                other => panic!("{other} is none of --chunks N, --peer and --no-peer"),
            }
        }
        options
    }
}

/// The documents, their index, and the program run on them.
struct Folder {
    base: PathBuf,
    queries: Vec<String>,
}

impl Folder {
    /// Writes the documents unless they are there, and brings the index up to date.
    fn prepare(chunks: usize) -> Folder {
        let base = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("mcp-bench-{chunks}"));
        let mut language = Language::new();
        let corpus: Vec<String> = (0..chunks).map(|_| language.passage(WORDS_A_CHUNK)).collect();
        let queries = (0..QUERIES).map(|_| language.query(&corpus)).collect();
        let folder = Folder { base, queries };
        let complete = folder.base.join("complete");
        if !complete.exists() {
            folder.write(&corpus);
            std::fs::write(&complete, "").expect("a mark beside the documents");
        }
        let mut ingest = folder.command(&["--quiet", "ingest"]);
        let started = Instant::now();
        let status = ingest.stdout(Stdio::null()).status().expect("the program starts");
        assert!(status.success(), "{ingest:?}: {status}");
        println!("ingest: {:.1} s", started.elapsed().as_secs_f64());
        let held = tools::schema::run(&folder.kb()).expect("an index").stats.chunk_count;
        assert_eq!(held, chunks as u64, "the index holds other chunks; delete {}", folder.base.display());
        folder
    }

    fn write(&self, corpus: &[String]) {
        for name in ["root", "data", "home"] {
            std::fs::create_dir_all(self.base.join(name)).expect("a folder for the bench");
        }
        for (number, passages) in corpus.chunks(CHUNKS_A_FILE).enumerate() {
            let mut text = format!("# Notes {number}\n");
            for passage in passages {
                let words: Vec<&str> = passage.split_whitespace().collect();
                text.push_str(&format!("\n## {}\n\n", words[..3].join(" ")));
                for line in words.chunks(12) {
                    text.push_str(&line.join(" "));
                    text.push('\n');
                }
            }
            std::fs::write(self.base.join("root").join(format!("{number:04}.md")), text).expect("a document");
        }
    }

    /// The environment is as bare as a host's.
    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_kebab-lite"));
        command.args(args).current_dir(self.base.join("home")).env_clear();
        for kept in ["PATH", "SystemRoot"] {
            if let Some(value) = std::env::var_os(kept) {
                command.env(kept, value);
            }
        }
        // Words alone are measured here.
        command.env(EMBEDDING, "none");
        command.env("HOME", self.base.join("home")).env("USERPROFILE", self.base.join("home"));
        command.arg("--root").arg(self.base.join("root")).arg("--data-dir").arg(self.base.join("data"));
        command
    }

    /// `sync`: as hosts start it, with a look at all documents in the background; not while others are measured.
    fn server(&self, sync: bool) -> Command {
        self.command(if sync { &["mcp"] } else { &["mcp", "--no-sync"] })
    }

    fn kb(&self) -> Kb {
        let flags =
            Flags { root: Some(self.base.join("root")), data_dir: Some(self.base.join("data")), ..Flags::default() };
        let config = config::load(&flags, &|name| (name == EMBEDDING).then(|| "none".to_owned()), &self.base)
            .expect("a configuration");
        Kb::open(config).expect("a knowledge base")
    }
}

/// From the start of the process.
fn start(command: impl Fn() -> Command) -> Figure {
    let times = (0..STARTS).map(|_| {
        let started = Instant::now();
        let mut server = Server::spawn(command());
        server.ask(INITIALIZE).expect(ANSWER);
        let time = started.elapsed();
        server.end();
        time
    });
    Figure::of_times(Unit::Milliseconds, times.collect())
}

fn ping(server: &mut Server, pings: &Requests, count: usize) -> Result<Figure, Stalled> {
    let times = pings.lines().cycle().take(count).map(|line| {
        let started = Instant::now();
        server.ask(line).map(|_| started.elapsed())
    });
    Ok(Figure::of_times(Unit::Microseconds, times.collect::<Result<_, _>>()?))
}

fn search(server: &mut Server, searches: &Requests) -> Figure {
    let mut times = Vec::new();
    for round in 0..2 {
        for request in searches.lines() {
            let started = Instant::now();
            let answer = server.ask(request).expect(ANSWER);
            let time = started.elapsed();
            assert!(contains(answer, br#""isError":false"#), "{}", String::from_utf8_lossy(answer));
            // The first round maps and caches.
            if round > 0 {
                times.push(time);
            }
        }
    }
    Figure::of_times(Unit::Milliseconds, times)
}

/// The server's own cost of a message on top of what the pipes and the system's scheduler cost.
fn pings(server: &mut Server, pings: &Requests) {
    let mut echo = cfg!(unix).then(|| Server::spawn(Command::new("cat")));
    let (mut rates, mut limits, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        rates.push(server.load(pings, WINDOW, ROUND).expect(ANSWER).per_second());
        if let Some(echo) = &mut echo {
            limits.push(echo.load(pings, WINDOW, ROUND).expect(ANSWER).per_second());
            let count = PINGS / ROUNDS;
            let (own, echoed) = (ping(server, pings, count), ping(echo, pings, count));
            ratios.push(own.expect(ANSWER).typical / echoed.expect(ANSWER).typical);
        }
    }
    ping(server, pings, PINGS).expect(ANSWER).print("ping, one after another", Target::AtMost(5.0));
    if let Some(echo) = &mut echo {
        ping(echo, pings, PINGS).expect(ANSWER).print("  the same line echoed by `cat`", Target::None);
        Figure::of_sizes(Unit::Times, ratios).print("  server : cat, in turn", Target::AtMost(2.0));
    }
    Figure::of_rates(Unit::PerSecond, rates).print("64 pings in flight", Target::AtLeast(200_000.0));
    if let Some(echo) = echo {
        Figure::of_rates(Unit::PerSecond, limits).print("  echoed by `cat`: the driver's limit", Target::None);
        echo.end();
    }
}

/// The server against the engine called directly by as many threads as the server has workers, in turn.
fn in_flight(server: &mut Server, searches: &Requests, folder: &Folder) {
    let kb = folder.kb();
    let (mut rates, mut direct, mut shares, mut costs) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let served = server.load(searches, WINDOW, ROUND).expect(ANSWER);
        let called = calls(&folder.queries, |input| {
            black_box(tools::search::run(&kb, input).expect("an answer"));
        });
        rates.push(served.per_second());
        direct.push(called.per_second());
        shares.push(100.0 * served.per_second() / called.per_second());
        costs.extend(called.cpu_each().zip(served.cpu_each()).map(|(called, served)| 100.0 * called / served));
    }
    Figure::of_rates(Unit::PerSecond, rates).print("64 searches in flight", Target::None);
    Figure::of_rates(Unit::PerSecond, direct).print("  the engine called directly", Target::None);
    Figure::of_rates(Unit::Percent, shares).print("  server : engine", Target::AtLeast(90.0));
    if !costs.is_empty() {
        Figure::of_rates(Unit::Percent, costs).print("  the engine's share of processor time", Target::AtLeast(90.0));
    }
}

/// Calls by as many threads as the server has workers.
fn calls(queries: &[String], call: impl Fn(&SearchInput) + Sync) -> Work {
    let input = |query: &String| SearchInput {
        query: query.clone(),
        mode: Some(Mode::Lexical),
        k: Some(K),
        max_tokens: Some(DEFAULT_TOKENS),
        ..SearchInput::default()
    };
    let inputs: Vec<SearchInput> = queries.iter().map(input).collect();
    let next = AtomicUsize::new(0);
    let (before, started) = (cpu("self"), Instant::now());
    std::thread::scope(|scope| {
        for _ in 0..Pool::size() {
            scope.spawn(|| {
                while started.elapsed() < ROUND {
                    call(&inputs[next.fetch_add(1, Ordering::Relaxed) % inputs.len()]);
                }
            });
        }
    });
    let time = started.elapsed();
    let cpu = cpu("self").zip(before).map(|(after, before)| after - before);
    Work { count: next.into_inner(), time, cpu }
}

/// The server's own budget for an answer.
const DEFAULT_TOKENS: usize = 20_000;

fn memory(folder: &Folder, searches: &Requests) {
    let (mut before, mut after) = (Vec::new(), Vec::new());
    for _ in 0..3 {
        let mut server = Server::ready(folder.server(true));
        sleep(SETTLED);
        before.extend(server.resident());
        server.ask(TOOLS_LIST).expect(ANSWER);
        for request in searches.lines().take(10) {
            server.ask(request).expect(ANSWER);
        }
        sleep(SETTLED / 3);
        after.extend(server.resident());
        server.end();
    }
    for (name, seen, target) in [
        ("memory before any search", before, Target::AtMost(MEBIBYTE * 20.0)),
        ("memory after tools/list and 10 searches", after, Target::AtMost(MEBIBYTE * 32.0)),
    ] {
        if seen.is_empty() {
            println!("{name}: not known on this system");
            continue;
        }
        let (all, own): (Vec<f64>, Vec<f64>) = seen.iter().map(|resident| (resident.all, resident.anonymous)).unzip();
        Figure::of_sizes(Unit::Megabytes, all).print(name, target);
        Figure::of_sizes(Unit::Megabytes, own).print("  of which not mapped from files", Target::None);
    }
}

fn endings(folder: &Folder, searches: &Requests) {
    let idle = (0..STARTS).map(|_| {
        let server = Server::ready(folder.server(false));
        sleep(Duration::from_millis(20));
        server.end().0
    });
    Figure::of_times(Unit::Milliseconds, idle.collect()).print("end of stdin to exit, idle", Target::AtMost(20.0));
    let burst: Vec<u8> = searches.lines().take(WINDOW).flatten().copied().collect();
    let busy = (0..STARTS).map(|_| {
        let mut server = Server::ready(folder.server(false));
        server.tell(&burst);
        let (time, answers) = server.end();
        assert_eq!(answers, WINDOW, "requests under way are answered");
        time
    });
    let name = "end of stdin to exit, 64 searches in flight";
    Figure::of_times(Unit::Milliseconds, busy.collect()).print(name, Target::AtMost(1100.0));
}

/// The path of the SDK's server.
fn build_peer() -> Result<PathBuf, String> {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).join("rmcp-server");
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or("cargo".into()));
    cargo.args(["build", "--release", "--locked", "--quiet", "--manifest-path"]);
    cargo.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("benches/rmcp-server/Cargo.toml"));
    cargo.arg("--target-dir").arg(&target);
    // What eases our own development must not slow down the peer.
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("CARGO_PROFILE_")) {
        cargo.env_remove(name);
    }
    println!("\nbuilding the SDK's server, which takes minutes the first time");
    match cargo.status() {
        Ok(status) if status.success() => {
            Ok(target.join("release").join(format!("rmcp-server{}", std::env::consts::EXE_SUFFIX)))
        }
        Ok(status) => Err(format!("cargo: {status}")),
        Err(error) => Err(error.to_string()),
    }
}

/// Both servers in turn under the same loads, for each of the SDK's two transports.
fn compare(folder: &Folder, binary: &Path, pings: &Requests) {
    for (name, argument) in [("stdio()", None), ("stdio_pipes()", Some("pipes"))] {
        let peer = || {
            let mut command = Command::new(binary);
            command.args(argument);
            command
        };
        let (mut ours, mut theirs) = (Server::ready(folder.server(false)), Server::ready(peer()));
        println!("\nrmcp, {name}");
        println!("{:>6}{:>14}{:>12}{:>8}{:>16}{:>12}{:>8}", "pair", "64 pings/s", "rmcp", "×", "ping µs", "rmcp", "×");
        let (mut rates, mut times) = (Vec::new(), Vec::new());
        for pair in 1..=ROUNDS {
            let count = PINGS / 4;
            let own = ours.load(pings, WINDOW, ROUND).expect(ANSWER).per_second();
            let own_time = ping(&mut ours, pings, count).expect(ANSWER).typical;
            let peers = theirs.load(pings, WINDOW, ROUND).map(|work| work.per_second());
            let peers_time = peers.and_then(|_| ping(&mut theirs, pings, count)).map(|figure| figure.typical);
            let (Ok(peers), Ok(peers_time)) = (peers, peers_time) else {
                println!("{pair:>6}  rmcp answered nothing for {} s and is started again", PATIENCE.as_secs());
                theirs = Server::ready(peer());
                continue;
            };
            rates.push(own / peers);
            times.push(peers_time / own_time);
            let (rate, time) = (own / peers, peers_time / own_time);
            println!("{pair:>6}{own:>14.0}{peers:>12.0}{rate:>8.1}{own_time:>16.1}{peers_time:>12.1}{time:>8.1}");
        }
        ours.end();
        if rates.is_empty() {
            println!("no figures: rmcp stalled each time");
            continue;
        }
        theirs.end();
        table::head();
        Figure::of_rates(Unit::Times, rates).print("64 pings in flight, ours : rmcp", Target::AtLeast(10.0));
        Figure::of_rates(Unit::Times, times).print("ping one after another, rmcp : ours", Target::None);
        start(peer).print("rmcp's start to the answer to initialize", Target::None);
    }
}

const TOOLS_LIST: &[u8] = b"{\"jsonrpc\":\"2.0\",\"id\":\"list\",\"method\":\"tools/list\"}\n";

const MEBIBYTE: f64 = 1024.0 * 1024.0;

/// Other work on the machine is part of what is measured.
fn load_average() -> String {
    let text = std::fs::read_to_string("/proc/loadavg").unwrap_or_else(|_| "unknown".into());
    text.split(' ').take(3).collect::<Vec<_>>().join(" ").trim().to_owned()
}
