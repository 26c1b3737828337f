//! Kills at any moment, damaged files, and readers beside a writer: whoever searches sees one whole state of the corpus
//! or is told by name why not.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::harness::{Dir, Output, Random};

/// A word of every chunk, so that one query lists the corpus.
const EVERYWHERE: &str = "ubiquitous";

/// Two states of a folder: of `FILES` files, the second has lost some, changed some and gained some.
struct Corpora {
    dir: Dir,
    /// Data folder of an index of the first state.
    pristine: PathBuf,
    first: State,
    second: State,
}

/// What an index of one state answers: path and chunk id (a hash of path and text) of every chunk.
type State = BTreeSet<(String, String)>;

const FILES: usize = 200;

impl Corpora {
    fn new() -> Corpora {
        let dir = Dir::new();
        for file in 0..FILES {
            write_file(&dir, "first", file, "early");
            match file % 4 {
                0 => {}
                1 => write_file(&dir, "second", file, "late"),
                _ => write_file(&dir, "second", file, "early"),
            }
        }
        (FILES..FILES + 50).for_each(|file| write_file(&dir, "second", file, "late"));
        ingest(&dir, "second", "data").ok();
        let second = state(&dir, "data");
        std::fs::remove_dir_all(dir.data()).unwrap();
        ingest(&dir, "first", "data").ok();
        let first = state(&dir, "data");
        assert_eq!((first.len(), second.len()), (FILES, FILES));
        assert_eq!(first.intersection(&second).count(), FILES / 2);
        let pristine = dir.data().with_file_name("pristine");
        copy_folder(&dir.data(), &pristine);
        Corpora { dir, pristine, first, second }
    }

    fn restore(&self, name: &str) {
        let data = self.dir.data().with_file_name(name);
        std::fs::remove_dir_all(&data).or_else(none_there).unwrap();
        copy_folder(&self.pristine, &data);
    }
}

fn none_there(error: std::io::Error) -> std::io::Result<()> {
    if error.kind() == std::io::ErrorKind::NotFound { Ok(()) } else { Err(error) }
}

fn write_file(dir: &Dir, root: &str, file: usize, version: &str) {
    let filler = format!("Some words that make a chunk of a fair length, number {file} in its row. ").repeat(3);
    let own: String = (0..25).map(|n| format!("own{file}n{n} ")).collect();
    let text = format!("# One {file}\n\nThe {version} {EVERYWHERE} part. {filler}\n\n{own}\n");
    dir.write(&format!("{root}/{:02}/{file}.md", file % 10), text);
}

/// Both states are ingested from the same root, in which one of them lies at a time.
fn ingest(dir: &Dir, state: &str, data: &str) -> crate::harness::Cmd {
    let (live, wanted) = (dir.root().join("live/corpus"), dir.root().join(state));
    if wanted.exists() {
        std::fs::create_dir_all(dir.root().join("live")).unwrap();
        if live.exists() {
            let other = if state == "first" { "second" } else { "first" };
            std::fs::rename(&live, dir.root().join(other)).unwrap();
        }
        std::fs::rename(wanted, live).unwrap();
    }
    let (root, data) = (dir.root().join("live"), dir.data().with_file_name(data));
    dir.cmd(["ingest", "--json"]).env("KEBAB_WORKSPACE_ROOT", root).env("KEBAB_STORAGE_DATA_DIR", data)
}

fn read(dir: &Dir, data: &str, args: &[&str]) -> crate::harness::Cmd {
    let data = dir.data().with_file_name(data);
    dir.cmd(args).env("KEBAB_WORKSPACE_ROOT", dir.root().join("live")).env("KEBAB_STORAGE_DATA_DIR", data)
}

/// Every chunk, page by page.
fn state(dir: &Dir, data: &str) -> State {
    let mut chunks = State::new();
    let mut cursor = None;
    loop {
        let mut args = vec!["search", EVERYWHERE, "--mode", "lexical", "--k", "100", "--snippet-chars", "1", "--json"];
        args.extend(cursor.iter().flat_map(|cursor: &String| ["--cursor", cursor]));
        let response = read(dir, data, &args).ok().json();
        for hit in response["hits"].as_array().unwrap() {
            let text = |field: &str| hit[field].as_str().unwrap().to_owned();
            assert!(chunks.insert((text("doc_path"), text("chunk_id"))), "twice: {hit}");
        }
        match response["next_cursor"].as_str() {
            Some(next) => cursor = Some(next.to_owned()),
            None => return chunks,
        }
    }
}

fn copy_folder(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        match entry.file_type().unwrap().is_dir() {
            true => copy_folder(&entry.path(), &to.join(entry.file_name())),
            false => drop(std::fs::copy(entry.path(), to.join(entry.file_name())).unwrap()),
        }
    }
}

fn check(doctor: &Value, name: &str) -> Value {
    let checks = doctor["checks"].as_array().unwrap();
    checks.iter().find(|check| check["name"] == name).unwrap_or_else(|| panic!("no check {name}")).clone()
}

#[test]
fn a_kill_at_any_moment_leaves_one_whole_state() {
    const KILLS: usize = 60;
    let corpora = Corpora::new();
    let dir = &corpora.dir;
    let started = Instant::now();
    ingest(dir, "second", "data").ok();
    let duration = started.elapsed();
    let mut random = Random::new(2024);
    let (mut befores, mut afters, mut interrupted) = (0, 0, 0);
    for kill in 0..KILLS {
        corpora.restore("data");
        let slot = duration * kill as u32 / KILLS as u32;
        let moment = slot + duration / KILLS as u32 * random.below(100) as u32 / 100;
        ingest(dir, "second", "data").run_killed_after(moment);
        if kill % 4 == 3 {
            // The next one fares no better.
            ingest(dir, "second", "data").run_killed_after(duration * random.below(100) as u32 / 100);
        }
        // One that died before it had put its name down had done nothing.
        let info = std::fs::read_to_string(dir.data().join("writer.info")).unwrap_or_default();
        let died_writing = !info.is_empty();
        let found = state(dir, "data");
        assert!(found == corpora.first || found == corpora.second, "killed at {moment:?}: {} chunks", found.len());
        befores += usize::from(found == corpora.first);
        afters += usize::from(found == corpora.second);
        let stats = read(dir, "data", &["schema", "--json"]).ok().json()["stats"].clone();
        assert_eq!((&stats["doc_count"], &stats["chunk_count"]), (&json!(200), &json!(200)), "killed at {moment:?}");
        let doctor = read(dir, "data", &["doctor", "--json"]).ok().json();
        let last = check(&doctor, "last_ingest")["detail"].as_str().unwrap().to_owned();
        assert_eq!(last.contains("was interrupted"), died_writing, "killed at {moment:?}: {last}");
        interrupted += usize::from(died_writing);

        let report = ingest(dir, "second", "data").ok().json();
        let hint = report["hint"].as_str().unwrap_or("").to_owned();
        assert_eq!(hint.contains("was interrupted"), died_writing, "killed at {moment:?}: {hint:?}");
        assert_eq!(state(dir, "data"), corpora.second, "killed at {moment:?}, then ingested again");
        let doctor = read(dir, "data", &["doctor", "--json"]).ok().json();
        assert!(!check(&doctor, "last_ingest")["detail"].as_str().unwrap().contains("interrupted"));
        assert_eq!(named_segments(&doctor), files_of_segments(dir), "nothing is left over");
    }
    assert!(befores >= 5 && interrupted >= 10, "{befores} before, {afters} after, {interrupted} interrupted");
}

#[test]
fn a_first_ingest_that_is_killed_leaves_nothing_or_all() {
    let corpora = Corpora::new();
    let dir = &corpora.dir;
    let data = dir.data().with_file_name("fresh");
    let started = Instant::now();
    ingest(dir, "first", "fresh").ok();
    let duration = started.elapsed();
    for kill in 0..15 {
        std::fs::remove_dir_all(&data).or_else(none_there).unwrap();
        ingest(dir, "first", "fresh").run_killed_after(duration * kill / 15);
        let search = read(dir, "fresh", &["search", EVERYWHERE, "--json"]).run();
        match search.status {
            Some(0) => assert_eq!(state(dir, "fresh"), corpora.first),
            _ => assert_eq!(search.code(2).error()["code"], "not_indexed"),
        }
        ingest(dir, "first", "fresh").ok();
        assert_eq!(state(dir, "fresh"), corpora.first);
    }
}

fn files_of_segments(dir: &Dir) -> usize {
    std::fs::read_dir(dir.data().join("segments")).unwrap().count()
}

/// How many segments the index has, as doctor counts them.
fn named_segments(doctor: &Value) -> usize {
    check(doctor, "index")["detail"].as_str().unwrap().split(' ').next().unwrap().parse().unwrap()
}

/// A small index with a copy of its data folder, to damage and to put back.
struct Victim {
    dir: Dir,
    pristine: PathBuf,
}

const GREEN: [&str; 2] = ["a.md", "b.md"];

impl Victim {
    fn new() -> Victim {
        let dir = Dir::indexed(&[
            ("a.md", "# Apples\n\nApples are red or green.\n"),
            ("b.md", "# Pears\n\nPears are green or brown.\n"),
            ("c.md", "# 사과\n\n사과는 빨갛다.\n"),
        ]);
        let pristine = dir.data().with_file_name("pristine");
        copy_folder(&dir.data(), &pristine);
        Victim { dir, pristine }
    }

    fn restore(&self) {
        std::fs::remove_dir_all(self.dir.data()).unwrap();
        copy_folder(&self.pristine, &self.dir.data());
    }

    fn search(&self, flags: &[&str]) -> Output {
        self.dir.cmd(["search", "green", "--mode", "lexical", "--json"].iter().chain(flags)).run()
    }

    fn segment(&self) -> PathBuf {
        let folder = self.dir.data().join("segments");
        let files: Vec<PathBuf> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
        assert_eq!(files.len(), 1, "{files:?}");
        files[0].clone()
    }

    fn database(&self) -> PathBuf {
        self.dir.data().join("kebab.sqlite")
    }
}

fn sorted_paths(output: &Output) -> Vec<String> {
    let mut paths = output.paths();
    paths.sort();
    paths
}

#[test]
fn a_damaged_segment_is_rebuilt_or_named() {
    let victim = Victim::new();
    let intact = std::fs::read(victim.segment()).unwrap();
    let flipped = |at: usize| {
        let mut bytes = intact.clone();
        bytes[at] ^= 0x55;
        bytes
    };
    let mut damages: Vec<(String, Option<Vec<u8>>)> =
        (0..intact.len()).step_by(intact.len() / 25).map(|at| (format!("byte {at}"), Some(flipped(at)))).collect();
    for kept in [0, 1, 15, 88, intact.len() / 2, intact.len() - 1] {
        damages.push((format!("cut to {kept}"), Some(intact[..kept].to_vec())));
    }
    damages.push(("longer".into(), Some([&intact[..], b"tail"].concat())));
    damages.push(("noise".into(), Some(vec![0xA7; intact.len()])));
    damages.push(("gone".into(), None));
    for (what, bytes) in damages {
        let damage = || {
            victim.restore();
            match &bytes {
                Some(bytes) => std::fs::write(victim.segment(), bytes).unwrap(),
                None => std::fs::remove_file(victim.segment()).unwrap(),
            }
        };
        damage();
        let error = victim.search(&["--readonly"]).code(2).error();
        assert_eq!(error["code"], "store_corrupt", "{what}: {error}");
        let doctor = victim.dir.cmd(["doctor", "--json", "--readonly"]).run().code(3).json();
        assert_eq!(check(&doctor, "index")["ok"], false, "{what}");
        assert_eq!(check(&doctor, "store")["ok"], true, "{what}");
        assert_eq!(sorted_paths(&victim.search(&[]).code(0)), GREEN, "{what}");
        victim.dir.cmd(["doctor"]).ok();

        damage();
        // The remedy that the hint names.
        assert!(error["hint"].as_str().unwrap().contains("kebab-lite ingest --force"), "{what}: {error}");
        victim.dir.cmd(["ingest", "--force"]).ok();
        victim.dir.cmd(["doctor"]).ok();
        assert_eq!(sorted_paths(&victim.search(&["--readonly"]).code(0)), GREEN, "{what}");
    }
}

/// An index whose one segment has a flipped bit, at its start or in its middle.
fn damaged_page(at_start: bool) -> Corpora {
    let corpora = Corpora::new();
    let segment = std::fs::read_dir(corpora.dir.data().join("segments")).unwrap().next().unwrap().unwrap().path();
    let mut bytes = std::fs::read(&segment).unwrap();
    assert!(bytes.len() > 2 * (16 << 10), "more than one page");
    let at = if at_start { 100 } else { bytes.len() / 2 };
    bytes[at] ^= 1;
    std::fs::write(&segment, bytes).unwrap();
    read(&corpora.dir, "data", &["doctor"]).run().code(3);
    corpora
}

#[test]
fn a_damaged_page_that_nothing_has_read_is_repaired_by_force() {
    let corpora = damaged_page(false);
    let dir = &corpora.dir;
    read(dir, "data", &["ingest", "--force"]).ok();
    read(dir, "data", &["doctor"]).ok();
    assert_eq!(state(dir, "data"), corpora.first);
}

#[test]
fn an_ingest_that_meets_a_damaged_page_repairs_it() {
    // The rows of chunks, which each deletion looks up, are at the start.
    let corpora = damaged_page(true);
    let dir = &corpora.dir;
    ingest(dir, "second", "data").ok();
    read(dir, "data", &["doctor"]).ok();
    assert_eq!(state(dir, "data"), corpora.second);
}

#[test]
fn a_damaged_store_is_named_and_never_a_panic() {
    let victim = Victim::new();
    let intact = std::fs::read(victim.database()).unwrap();
    let whole = |bytes: &[u8]| bytes.to_vec();
    let mut damages = vec![
        ("cut to half", whole(&intact[..intact.len() / 2])),
        ("cut inside the header", whole(&intact[..50])),
        ("noise", vec![0xA7; intact.len()]),
        ("text", whole(b"This is not a database.\n")),
    ];
    let mut header_only = intact.clone();
    header_only[4096..].fill(0xFF);
    damages.push(("all pages but the first", header_only));
    for (what, bytes) in damages {
        victim.restore();
        std::fs::write(victim.database(), bytes).unwrap();
        for flags in [&[][..], &["--readonly"]] {
            let error = victim.search(flags).code(2).error();
            assert_eq!(error["code"], "store_corrupt", "{what}: {error}");
            assert!(error["hint"].as_str().unwrap().contains("kebab-lite ingest"), "{what}: {error}");
        }
        assert_eq!(victim.dir.cmd(["schema", "--json"]).run().code(2).error()["code"], "store_corrupt", "{what}");
        let doctor = victim.dir.cmd(["doctor", "--json"]).run().code(3).json();
        assert_eq!(check(&doctor, "store")["ok"], false, "{what}");
        // The remedy that the hint names.
        let aside = victim.dir.data().with_file_name(format!("aside of {what}"));
        std::fs::rename(victim.dir.data(), aside).unwrap();
        victim.dir.cmd(["ingest"]).ok();
        assert_eq!(sorted_paths(&victim.search(&[]).code(0)), GREEN, "{what}");
    }
}

#[test]
fn a_store_cut_to_nothing_counts_as_not_begun() {
    let victim = Victim::new();
    std::fs::write(victim.database(), b"").unwrap();
    assert_eq!(victim.search(&[]).code(2).error()["code"], "not_indexed");
    victim.dir.cmd(["doctor"]).run().code(3);
    let report = victim.dir.cmd(["ingest", "--json"]).ok().json();
    assert_eq!((&report["new"], &report["corpus_revision"]), (&json!(3), &json!(1)));
    assert_eq!(sorted_paths(&victim.search(&[]).code(0)), GREEN);
    victim.dir.cmd(["doctor"]).ok();
}

#[test]
fn any_damage_to_the_store_has_a_name() {
    let victim = Victim::new();
    let intact = std::fs::read(victim.database()).unwrap();
    let mut random = Random::new(8);
    let mut named = 0;
    for round in 0..150 {
        victim.restore();
        let mut bytes = intact.clone();
        // A run of bytes, as a bad sector or a stray write leaves it.
        let at = random.below(bytes.len());
        let end = bytes.len().min(at + [1, 16, 512][round % 3]);
        bytes[at..end].iter_mut().for_each(|byte| *byte = random.below(256) as u8);
        std::fs::write(victim.database(), bytes).unwrap();
        for line in [&["search", "green", "--json"][..], &["schema", "--json"], &["ingest", "--json", "-q"]] {
            let output = victim.dir.cmd(line).run();
            if output.status != Some(0) {
                let error = output.code(2).error();
                let code = error["code"].as_str().unwrap();
                // Bytes 60 to 71 say whose the file is and of which format.
                let foreign = at < 72 && end > 60 && code == "not_indexed";
                assert!(matches!(code, "store_corrupt" | "io_error") || foreign, "{line:?} after {at}..{end}: {error}");
                named += 1;
            }
        }
        let doctor = victim.dir.cmd(["doctor", "--json"]).run();
        assert!(matches!(doctor.status, Some(0 | 3)), "{at}..{end}: {doctor:?}");
    }
    assert!(named > 20, "{named} named");
}

#[test]
fn a_store_of_another_format_is_refused_with_both_numbers() {
    let victim = Victim::new();
    let mut bytes = std::fs::read(victim.database()).unwrap();
    // SQLite keeps user_version at offset 60, big end first.
    assert_eq!(bytes[60..64], [0, 0, 0, 2]);
    bytes[63] = 7;
    std::fs::write(victim.database(), &bytes).unwrap();
    for line in [&["search", "green", "--json"][..], &["ingest", "--json", "-q"], &["schema", "--json"]] {
        let error = victim.dir.cmd(line).run().code(2).error();
        assert_eq!(error["code"], "not_indexed");
        assert_eq!(error["details"], json!({"expected": "store format 2", "found": "store format 7"}));
        assert_eq!(error["message"], "not indexed: expected store format 2, found store format 7");
    }
    victim.dir.cmd(["doctor"]).run().code(3);
    assert_eq!(std::fs::read(victim.database()).unwrap(), bytes, "it is left as it was");
}

#[test]
fn another_programs_database_is_left_alone() {
    let victim = Victim::new();
    let mut bytes = std::fs::read(victim.database()).unwrap();
    bytes[68..72].copy_from_slice(&[0, 0, 0, 9]);
    std::fs::write(victim.database(), &bytes).unwrap();
    for line in [&["search", "green", "--json"][..], &["ingest", "--json", "-q"]] {
        let error = victim.dir.cmd(line).run().code(2).error();
        assert_eq!(error["code"], "store_corrupt");
        assert_eq!(error["details"]["cause"], "the file is an SQLite database of another program");
    }
    assert_eq!(std::fs::read(victim.database()).unwrap(), bytes);
}

#[test]
fn leftovers_of_a_dead_writer_are_cleaned_away() {
    let victim = Victim::new();
    let segments = victim.dir.data().join("segments");
    for name in ["00000002.seg.tmp", "00000077.seg", "stray.tmp"] {
        std::fs::write(segments.join(name), b"half a segment").unwrap();
    }
    assert_eq!(sorted_paths(&victim.search(&[]).code(0)), GREEN);
    victim.dir.write("d.md", "Limes are green.\n");
    victim.dir.cmd(["ingest"]).ok();
    assert_eq!(sorted_paths(&victim.search(&[]).code(0)), ["a.md", "b.md", "d.md"]);
    let mut left: Vec<String> =
        std::fs::read_dir(segments).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    left.sort();
    assert_eq!(left, ["00000001.seg", "00000002.seg"]);
}

#[test]
fn readers_beside_a_writer_neither_fail_nor_wait() {
    let corpora = Corpora::new();
    let dir = &corpora.dir;
    let (stop, answers) = (AtomicBool::new(false), AtomicUsize::new(0));
    let count = |state: &State| state.iter().filter(|(path, _)| path.starts_with("corpus/01/")).count();
    assert_eq!((count(&corpora.first), count(&corpora.second)), (20, 25));
    std::thread::scope(|scope| {
        let readers: Vec<_> = (0..4)
            .map(|_| {
                scope.spawn(|| {
                    let mut slowest = Duration::ZERO;
                    let args = [
                        "search",
                        EVERYWHERE,
                        "--mode",
                        "lexical",
                        "--k",
                        "100",
                        "--snippet-chars",
                        "1",
                        "--json",
                        "--path-glob",
                        "corpus/01/*",
                    ];
                    while !stop.load(Ordering::Relaxed) {
                        let started = Instant::now();
                        let response = read(dir, "data", &args).ok().json();
                        slowest = slowest.max(started.elapsed());
                        let hits = response["hits"].as_array().unwrap();
                        let text = |hit: &Value, field: &str| hit[field].as_str().unwrap().to_owned();
                        let found: State =
                            hits.iter().map(|hit| (text(hit, "doc_path"), text(hit, "chunk_id"))).collect();
                        let of = |state: &State| {
                            found.iter().all(|chunk| state.contains(chunk)) && count(state) == found.len()
                        };
                        assert!(of(&corpora.first) || of(&corpora.second), "{} chunks of two states", found.len());
                        answers.fetch_add(1, Ordering::Relaxed);
                    }
                    slowest
                })
            })
            .collect();
        for round in 0..14 {
            ingest(dir, ["second", "first"][round % 2], "data").ok();
        }
        stop.store(true, Ordering::Relaxed);
        for reader in readers {
            let slowest = reader.join().unwrap();
            assert!(slowest < Duration::from_secs(3), "a search took {slowest:?}");
        }
    });
    assert!(answers.load(Ordering::Relaxed) >= 20, "{answers:?} searches");
    assert_eq!(state(dir, "data"), corpora.first);
}
