//! The second stage of an ingest: every text is embedded once, whatever happens in between, and searching by words never
//! waits for it.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::harness::{Cmd, Dir, Output, Random};
use crate::mcp::Server;
use crate::model_server::ModelServer;

const MODEL: &str = "model-a";

/// A workspace and the model it is embedded with.
struct Bench {
    dir: Dir,
    server: ModelServer,
}

impl Bench {
    fn new() -> Bench {
        Bench { dir: Dir::new(), server: ModelServer::start() }
    }

    /// With so many files of one passage each.
    fn with_files(count: usize) -> Bench {
        let bench = Bench::new();
        (0..count).for_each(|n| bench.write(n, "early"));
        bench
    }

    fn write(&self, n: usize, words: &str) {
        self.dir.write(&format!("{:02}/{n}.md", n % 20), format!("# Note {n}\n\nThe {words} words of note {n}.\n"));
    }

    fn cmd(&self, args: &[&str]) -> Cmd {
        self.server.for_model(MODEL, self.dir.cmd(args.iter().copied()))
    }

    fn ingest(&self) -> Value {
        self.cmd(&["ingest", "--json"]).ok().json()
    }

    /// Chunks with vectors and chunks at all.
    fn coverage(&self) -> (u64, u64) {
        let stats = self.cmd(&["schema", "--json"]).ok().json()["stats"].clone();
        (stats["embedded_chunk_count"].as_u64().unwrap(), stats["chunk_count"].as_u64().unwrap())
    }

    fn check(&self, name: &str) -> Value {
        let doctor = self.cmd(&["doctor", "--json"]).run().json();
        let checks = doctor["checks"].as_array().unwrap();
        checks.iter().find(|check| check["name"] == name).unwrap_or_else(|| panic!("no check {name}")).clone()
    }

    fn lexical(&self, query: &str) -> Output {
        self.cmd(&["search", query, "--mode", "lexical", "--json"]).run()
    }

    fn vector_files(&self) -> Vec<PathBuf> {
        let folder = std::fs::read_dir(self.dir.data().join("segments")).unwrap();
        let mut files: Vec<PathBuf> = folder.map(|entry| entry.unwrap().path()).collect();
        files.retain(|path| path.extension().is_some_and(|extension| extension == "vec"));
        files.sort();
        files
    }
}

/// What became of the chunks: embedded, reused, pending.
fn counts(report: &Value) -> [u64; 3] {
    ["embedded", "reused", "pending"]
        .map(|name| report["embedding"][name].as_u64().unwrap_or_else(|| panic!("{report}")))
}

fn events<'e>(events: &'e [Value], kind: &str) -> Vec<&'e Value> {
    events.iter().filter(|event| event["kind"] == kind).collect()
}

#[test]
fn every_text_is_embedded_once() {
    let bench = Bench::with_files(30);
    let output = bench.cmd(&["ingest", "--json"]).ok();
    assert_eq!(counts(&output.json()), [30, 0, 0]);
    assert_eq!(output.json()["embedding"]["error"], Value::Null);
    let mut texts = bench.server.take_texts();
    texts.sort();
    assert_eq!((texts.len(), &texts[0][..]), (30, "Note 0\nThe early words of note 0."));
    let lines = output.stderr_json();
    let started = events(&lines, "embed_started");
    assert_eq!((started.len(), &started[0]["total"], &started[0]["replaces"]), (1, &json!(30), &Value::Null));
    let batches = events(&lines, "embed_batch_finished");
    assert_eq!(batches.iter().map(|batch| batch["n_chunks"].as_u64().unwrap()).sum::<u64>(), 30);
    assert_eq!(batches.last().unwrap()["done"], 30);
    assert_eq!(lines.last().unwrap()["kind"], "completed");
    assert_eq!(events(&lines, "completed").len() + events(&lines, "aborted").len(), 1);
    assert_eq!(bench.coverage(), (30, 30));

    let again = bench.cmd(&["ingest", "--json"]).ok();
    assert_eq!(counts(&again.json()), [0, 0, 0]);
    assert_eq!(events(&again.stderr_json(), "embed_started").len(), 0);
    assert_eq!(bench.server.take_texts(), [""; 0]);
}

#[test]
fn an_edit_embeds_what_it_changes_and_nothing_else() {
    let bench = Bench::new();
    let section = |n: usize, words: &str| format!("## Part {n}\n\n{}\n\n", format!("{words} of part {n}. ").repeat(60));
    let document = |words: [&str; 4]| {
        let parts: String = words.iter().enumerate().map(|(n, words)| section(n, words)).collect();
        format!("# Long\n\n{parts}")
    };
    bench.dir.write("long.md", document(["one", "two", "three", "four"]));
    let first = bench.ingest();
    let [all, 0, 0] = counts(&first) else { panic!("{first}") };
    assert!(all >= 4, "{all} chunks");
    bench.server.take_texts();

    bench.dir.write("long.md", document(["one", "two", "changed", "four"]));
    let second = bench.ingest();
    let [embedded, reused, 0] = counts(&second) else { panic!("{second}") };
    assert_eq!(embedded + reused, all);
    let texts = bench.server.take_texts();
    assert!(
        texts.len() as u64 == embedded && texts.iter().all(|text| text.contains("changed of part 2")),
        "{texts:#?}"
    );

    // Moved, copied, and changed back: the texts are known.
    std::fs::rename(bench.dir.root().join("long.md"), bench.dir.root().join("moved.md")).unwrap();
    assert_eq!(counts(&bench.ingest()), [0, all, 0]);
    bench.dir.write("copy.md", document(["one", "two", "changed", "four"]));
    assert_eq!(counts(&bench.ingest()), [0, all, 0]);
    assert_eq!(bench.server.take_texts(), [""; 0]);
    assert_eq!(bench.coverage(), (2 * all, 2 * all));
}

#[test]
fn equal_texts_of_one_ingest_are_embedded_once() {
    let bench = Bench::new();
    for n in 0..40 {
        bench.dir.write(&format!("{n}.md"), "# Licence\n\nDo with it what you like.\n");
    }
    assert_eq!(counts(&bench.ingest()), [1, 39, 0]);
    assert_eq!(bench.server.take_texts().len(), 1);
    assert_eq!(bench.coverage(), (40, 40));
}

#[test]
fn a_text_that_was_just_published_is_not_embedded_again() {
    let bench = Bench::new();
    for n in 0..100 {
        bench.dir.write(&format!("{n:03}.md"), format!("# Note {}\n\nThe words of it.\n", n % 50));
    }
    // A batch is published every other request.
    bench.server.slow_down(Duration::from_millis(1200));
    assert_eq!(counts(&bench.ingest()), [50, 50, 0]);
    assert_eq!(bench.server.take_texts().len(), 50);
    assert_eq!(bench.coverage(), (100, 100));
}

#[test]
fn without_embedding_the_state_is_told() {
    let bench = Bench::with_files(5);
    let report = bench.cmd(&["ingest", "--no-embed", "--json"]).ok().json();
    assert_eq!(counts(&report), [0, 0, 5]);
    assert_eq!(report["embedding"]["model"], Value::Null);
    assert!(report["hint"].as_str().unwrap().contains("0 of 5 passages are embedded"), "{report}");
    assert_eq!(bench.server.take_texts(), [""; 0]);
    let check = bench.check("embeddings");
    assert!(check["detail"].as_str().unwrap().starts_with("0 of 5 chunks are embedded"), "{check}");
    assert_eq!(bench.lexical("words").code(0).paths().len(), 5);

    assert_eq!(counts(&bench.ingest()), [5, 0, 0]);
    let check = bench.check("embeddings");
    assert_eq!(check["detail"], "all 5 chunks are embedded with openai/model-a/24, checksums ok");

    // Where no model is configured there is nothing to tell.
    let none = bench.dir.cmd(["ingest", "--json"]).ok().json();
    assert_eq!((&none["embedding"], &none["hint"]), (&Value::Null, &Value::Null));
}

#[test]
fn a_kill_at_any_moment_loses_a_batch_at_most() {
    const FILES: usize = 1500;
    const BATCH: usize = 512 + 256;
    let bench = Bench::with_files(FILES);
    bench.server.slow_down(Duration::from_millis(25));
    bench.cmd(&["ingest", "--no-embed"]).ok();
    let started = Instant::now();
    let mut random = Random::new(7);
    let (mut kills, mut covered, mut given, mut first) = (0, 0, 0, None);
    loop {
        // Later each time, so that it comes to an end.
        let moment = Duration::from_millis(150 + 60 * kills + random.below(150) as u64);
        let output = bench.cmd(&["ingest", "--json"]).run_killed_after(moment);
        given += bench.server.take_texts().len();
        if output.status == Some(0) {
            break;
        }
        kills += 1;
        first.get_or_insert(output);
        let (now, all) = bench.coverage();
        assert!(now >= covered && all == FILES as u64, "{now} after {covered}");
        covered = now;
        assert_eq!(bench.lexical("words").code(0).paths().len(), 10);
        assert!(started.elapsed() < Duration::from_secs(50), "{covered} of {FILES} after {kills} kills");
    }
    assert!(kills >= 3, "{kills} kills");
    assert!(given <= FILES + kills as usize * BATCH, "{given} texts given, {kills} kills");
    assert_eq!(bench.coverage(), (FILES as u64, FILES as u64));
    assert_eq!(bench.check("embeddings")["ok"], true);
    let segments = std::fs::read_dir(bench.dir.data().join("segments")).unwrap().count();
    assert_eq!(segments, 1 + bench.vector_files().len(), "nothing is left over");
}

#[test]
fn what_a_killed_ingest_has_published_is_not_embedded_again() {
    let bench = Bench::with_files(1300);
    bench.server.slow_down(Duration::from_millis(40));
    let mut wait = Duration::from_millis(900);
    let covered = loop {
        bench.cmd(&["ingest"]).run_killed_after(wait);
        match bench.coverage() {
            (0, _) => wait += Duration::from_millis(300),
            (some, _) => break some as usize,
        }
    };
    // The endpoint may still be at work for the one that was killed.
    std::thread::sleep(Duration::from_millis(500));
    bench.server.take_texts();
    bench.server.slow_down(Duration::ZERO);
    assert_eq!(counts(&bench.ingest()), [(1300 - covered) as u64, 0, 0]);
    assert_eq!(bench.server.take_texts().len(), 1300 - covered);
}

#[test]
fn another_model_is_announced_and_takes_over_whole() {
    let bench = Bench::with_files(12);
    bench.ingest();
    bench.server.take_texts();
    let other = |args: &[&str]| bench.server.for_model("model-b", bench.dir.cmd(args.iter().copied()));
    let stats = other(&["schema", "--json"]).ok().json()["stats"].clone();
    assert_eq!(stats["embedded_chunk_count"], 0);

    let output = other(&["ingest", "--json"]).ok();
    assert_eq!(counts(&output.json()), [12, 0, 0]);
    let lines = output.stderr_json();
    assert_eq!(events(&lines, "embed_started")[0]["replaces"], "openai/model-a/24");
    let hint = output.json()["hint"].as_str().unwrap().to_owned();
    assert!(hint.contains("changed from openai/model-a/24 to openai/model-b/24"), "{hint}");
    assert_eq!(bench.server.take_texts().len(), 12);
    assert_eq!(bench.vector_files().len(), 1);

    // People are told before it begins.
    let back = bench.cmd(&["ingest"]).ok();
    assert!(
        back.stderr.starts_with("the embedding model changed from openai/model-b/24 to openai/model-a/24"),
        "{back:?}"
    );
    assert_eq!(bench.coverage(), (12, 12));
}

#[test]
fn damaged_vectors_are_made_again_and_hinder_no_search() {
    let bench = Bench::with_files(60);
    bench.ingest();
    let [file] = &bench.vector_files()[..] else { panic!("one segment") };
    let intact = std::fs::read(file).unwrap();
    let length = intact.len();
    let cut = |kept: usize| Some(intact[..kept].to_vec());
    let flipped = |at: usize| {
        let mut bytes = intact.clone();
        bytes[at] ^= 0x55;
        Some(bytes)
    };
    let damages = [
        ("gone", None, false),
        ("empty", cut(0), false),
        ("cut", cut(length / 2), false),
        ("its end", flipped(length - 20), false),
        ("its header", flipped(9), false),
        ("a row", flipped(100), true),
        ("a coordinate", flipped(length / 2), true),
    ];
    for (what, bytes, inside) in damages {
        let files = bench.vector_files();
        let [file] = &files[..] else { panic!("{files:?}") };
        match bytes {
            Some(bytes) => std::fs::write(file, bytes).unwrap(),
            None => std::fs::remove_file(file).unwrap(),
        }
        assert_eq!(bench.check("embeddings")["ok"], false, "{what}");
        assert_eq!(bench.lexical("words").code(0).paths().len(), 10, "{what}");
        bench.server.take_texts();
        // Whole pages are read where they are used; only `--force` reads all of them.
        let args = if inside { &["ingest", "--force", "--json"][..] } else { &["ingest", "--json"] };
        assert_eq!(counts(&bench.cmd(args).ok().json()), [60, 0, 0], "{what}");
        assert_eq!(bench.server.take_texts().len(), 60, "{what}");
        assert_eq!(bench.check("embeddings")["ok"], true, "{what}");
    }
}

#[test]
fn a_search_that_meets_damaged_vectors_answers_by_words() {
    let bench = Bench::with_files(400);
    bench.ingest();
    let [file] = &bench.vector_files()[..] else { panic!("one segment") };
    let mut bytes = std::fs::read(file).unwrap();
    // A page of coordinates, which is read by the first search that compares vectors.
    let at = bytes.len() * 6 / 10;
    assert!(at > 16 << 10);
    bytes[at] ^= 0x55;
    std::fs::write(file, bytes).unwrap();
    let search = |flags: &[&str]| bench.cmd(&[&["search", "early words", "--json"], flags].concat()).ok();
    let found = search(&["--readonly"]);
    assert_eq!(found.paths().len(), 10);
    assert!(found.json()["hint"].is_string(), "{found:?}");
    // Whoever may write leaves the damaged segment out.
    assert_eq!(search(&[]).paths().len(), 10);
    assert_eq!((bench.coverage(), bench.vector_files().len()), ((0, 400), 0));
    assert_eq!(counts(&bench.ingest()), [400, 0, 0]);
    assert!(search(&[]).json()["hits"][0]["embedding_model"].is_string());
}

#[test]
fn of_two_processes_one_embeds() {
    let bench = Bench::with_files(300);
    bench.server.slow_down(Duration::from_millis(150));
    bench.cmd(&["ingest", "--no-embed"]).ok();
    std::thread::scope(|scope| {
        let first = scope.spawn(|| bench.ingest());
        // The lock is taken before the model is asked anything.
        while bench.server.take_texts().is_empty() {
            std::thread::sleep(Duration::from_millis(5));
        }
        let second = bench.ingest();
        assert!(second["hint"].as_str().unwrap().contains("Another process is embedding"), "{second}");
        assert!(counts(&second)[0] == 0 && counts(&second)[2] > 0, "{second}");
        let first = first.join().unwrap();
        assert_eq!(counts(&first), [300, 0, 0]);
    });
    assert_eq!(bench.coverage(), (300, 300));
}

#[test]
fn chunks_stored_meanwhile_are_embedded_too() {
    let bench = Bench::with_files(200);
    bench.server.slow_down(Duration::from_millis(150));
    std::thread::scope(|scope| {
        let first = scope.spawn(|| bench.ingest());
        while bench.server.take_texts().is_empty() {
            std::thread::sleep(Duration::from_millis(5));
        }
        bench.write(900, "late");
        bench.write(3, "late");
        bench.cmd(&["ingest", "--no-embed"]).ok();
        let report = first.join().unwrap();
        assert_eq!(counts(&report)[2], 0, "{report}");
    });
    assert_eq!(bench.coverage(), (201, 201));
}

#[test]
fn deleted_vectors_outlive_a_merge_until_they_waste_room() {
    let bench = Bench::with_files(20);
    bench.ingest();
    (0..10).for_each(|n| bench.write(n, "changed"));
    assert_eq!(counts(&bench.ingest()), [10, 0, 0]);
    assert_eq!((bench.coverage(), bench.vector_files().len()), ((20, 20), 1), "merged");
    bench.server.take_texts();
    (0..10).for_each(|n| bench.write(n, "early"));
    assert_eq!(counts(&bench.ingest()), [0, 10, 0]);
    assert_eq!(bench.server.take_texts(), [""; 0]);
    assert_eq!((bench.coverage(), bench.check("embeddings")["ok"].clone()), ((20, 20), json!(true)));
}

#[test]
fn vectors_go_with_their_chunks() {
    let bench = Bench::with_files(40);
    bench.ingest();
    let size = |bench: &Bench| bench.vector_files().iter().map(|file| file.metadata().unwrap().len()).sum::<u64>();
    let full = size(&bench);
    (0..5).for_each(|n| std::fs::remove_file(bench.dir.root().join(format!("{:02}/{n}.md", n % 20))).unwrap());
    bench.ingest();
    assert_eq!((bench.coverage(), size(&bench)), ((35, 35), full), "a few tombstones are kept");
    (5..30).for_each(|n| std::fs::remove_file(bench.dir.root().join(format!("{:02}/{n}.md", n % 20))).unwrap());
    bench.ingest();
    assert_eq!(bench.coverage(), (10, 10));
    assert!(size(&bench) < full / 2, "{} of {full} bytes", size(&bench));
    (30..40).for_each(|n| std::fs::remove_file(bench.dir.root().join(format!("{:02}/{n}.md", n % 20))).unwrap());
    bench.ingest();
    assert_eq!((bench.coverage(), bench.vector_files().len()), ((0, 0), 0));
}

#[test]
#[cfg(unix)]
fn a_stop_keeps_what_is_done() {
    let bench = Bench::with_files(400);
    bench.server.slow_down(Duration::from_millis(100));
    let output = bench.cmd(&["ingest", "--json"]).run_while(|child| {
        while bench.server.take_texts().len() < 32 {
            std::thread::sleep(Duration::from_millis(5));
        }
        std::process::Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    });
    let output = output.code(130);
    let report = output.json();
    let [embedded, 0, pending] = counts(&report) else { panic!("{report}") };
    assert!(embedded >= 32 && embedded + pending == 400 && report["aborted"] == true, "{report}");
    assert_eq!(output.stderr_json().last().unwrap()["kind"], "aborted");
    assert_eq!(bench.coverage(), (embedded, 400));
    bench.server.slow_down(Duration::ZERO);
    assert_eq!(counts(&bench.ingest()), [pending, 0, 0]);
}

#[test]
fn an_endpoint_that_is_down_leaves_searching_by_words() {
    let bench = Bench::with_files(4);
    let nobody = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let down = bench.cmd(&["ingest", "--json"]).env("KEBAB_MODELS_EMBEDDING_ENDPOINT", format!("http://{nobody}"));
    let report = down.ok().json();
    assert_eq!(counts(&report), [0, 0, 4]);
    assert_eq!(report["embedding"]["error"]["code"], "model_unreachable");
    assert!(report["hint"].as_str().unwrap().contains("4 passages could not be embedded"), "{report}");
    assert_eq!(bench.lexical("words").code(0).paths().len(), 4);
    assert_eq!(counts(&bench.ingest()), [4, 0, 0]);
}

#[test]
fn single_documents_are_embedded_at_once() {
    let bench = Bench::with_files(3);
    bench.ingest();
    bench.write(7, "late");
    let file = bench.cmd(&["ingest-file", "07/7.md", "--json"]).ok().json();
    assert_eq!(counts(&file), [1, 0, 0]);
    let text = bench.cmd(&["ingest-stdin", "--title", "Plan", "--json"]).stdin("Ship on Friday.").ok().json();
    assert_eq!(counts(&text), [1, 0, 0]);
    assert_eq!(bench.coverage(), (5, 5));
}

#[test]
fn a_search_that_syncs_does_not_wait_for_a_large_corpus() {
    let bench = Bench::with_files(600);
    bench.server.slow_down(Duration::from_secs(1));
    let started = Instant::now();
    let found = bench.cmd(&["search", "--sync", "early words", "--json"]).ok();
    assert!(started.elapsed() < Duration::from_secs(25), "{:?}", started.elapsed());
    assert_eq!(found.paths().len(), 10);
    let (embedded, all) = bench.coverage();
    assert!(embedded > 0 && embedded < all, "{embedded} of {all}");
}

#[test]
fn what_a_request_leaves_is_embedded_in_the_background() {
    let bench = Bench::with_files(1);
    bench.ingest();
    let mut server = Server::run(bench.cmd(&["mcp"]).into_command());
    // So slow that the request does not wait for all of it.
    bench.server.slow_down(Duration::from_millis(1500));
    let sections: String =
        (0..40).map(|n| format!("## Part {n}\n\n{}\n\n", format!("Words {n}. ").repeat(150))).collect();
    let report = server.call("ingest_stdin", json!({"title": "Long", "text": sections}));
    let left = report["structuredContent"]["embedding"]["pending"].as_u64();
    assert!(left.is_some_and(|left| left > 0), "{report}");
    bench.server.slow_down(Duration::ZERO);
    let deadline = Instant::now() + Duration::from_secs(30);
    while bench.coverage().0 != bench.coverage().1 {
        assert!(Instant::now() < deadline, "{:?}", bench.coverage());
        std::thread::sleep(Duration::from_millis(50));
    }
    server.end();
}

#[test]
fn a_server_embeds_in_the_background_and_ends_in_time() {
    let bench = Bench::with_files(150);
    bench.cmd(&["ingest", "--no-embed"]).ok();
    let start = || Server::run(bench.cmd(&["mcp"]).into_command());
    let server = start();
    let deadline = Instant::now() + Duration::from_secs(30);
    while bench.coverage() != (150, 150) {
        assert!(Instant::now() < deadline, "{:?}", bench.coverage());
        std::thread::sleep(Duration::from_millis(50));
    }
    server.end();
    let texts: BTreeSet<String> = bench.server.take_texts().into_iter().collect();
    assert_eq!(texts.len(), 150);

    // One that is told to end while it embeds keeps what it has.
    (200..500).for_each(|n| bench.write(n, "late"));
    bench.cmd(&["ingest", "--no-embed"]).ok();
    bench.server.slow_down(Duration::from_millis(100));
    let server = start();
    while bench.server.take_texts().len() < 16 {
        std::thread::sleep(Duration::from_millis(5));
    }
    std::thread::sleep(Duration::from_millis(300));
    let ending = Instant::now();
    server.end();
    assert!(ending.elapsed() < Duration::from_millis(1800), "{:?}", ending.elapsed());
    let (embedded, all) = bench.coverage();
    assert!(embedded > 150 && embedded < all && all == 450, "{embedded} of {all}");
}
