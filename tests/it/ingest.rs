//! What an ingest takes, leaves and reports, and how it ends.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::harness::{Dir, Output};

/// Runs an ingest and returns its report.
#[track_caller]
pub fn ingest(dir: &Dir, flags: &[&str]) -> Value {
    dir.cmd(["ingest", "--json", "--quiet"].iter().chain(flags)).ok().json()
}

/// scanned, new, updated, unchanged, purged, skipped, errors.
pub fn counts(report: &Value) -> [u64; 7] {
    ["scanned", "new", "updated", "unchanged", "purged_deleted_files", "skipped", "errors"]
        .map(|name| report[name].as_u64().unwrap())
}

#[track_caller]
pub fn found(dir: &Dir, query: &str) -> Vec<String> {
    let mut paths = dir.cmd(["search", "--mode", "lexical", "--k", "100", "--json", query]).ok().paths();
    paths.sort();
    paths
}

fn revision(dir: &Dir) -> u64 {
    dir.cmd(["schema", "--json"]).ok().json()["models"]["corpus_revision"].as_u64().unwrap()
}

#[test]
fn only_what_changed_is_done_again() {
    let dir = Dir::new();
    for name in ["a", "b", "c", "d"] {
        dir.write(&format!("{name}.md"), format!("Note {name} on apples.\n"));
    }
    assert_eq!(counts(&ingest(&dir, &[])), [4, 4, 0, 0, 0, 0, 0]);
    assert_eq!(counts(&ingest(&dir, &[])), [4, 0, 0, 4, 0, 0, 0]);
    dir.write("a.md", "Note a on pears.\n");
    std::fs::remove_file(dir.root().join("b.md")).unwrap();
    dir.write("e.md", "Note e on apples.\n");
    assert_eq!(counts(&ingest(&dir, &[])), [4, 1, 1, 2, 1, 0, 0]);
    assert_eq!(found(&dir, "apples"), ["c.md", "d.md", "e.md"]);
    assert_eq!(found(&dir, "pears"), ["a.md"]);
    std::fs::rename(dir.root().join("c.md"), dir.root().join("renamed.md")).unwrap();
    assert_eq!(counts(&ingest(&dir, &[])), [4, 1, 0, 3, 1, 0, 0]);
    assert_eq!(found(&dir, "apples"), ["d.md", "e.md", "renamed.md"]);
    assert_eq!(counts(&ingest(&dir, &["--force"])), [4, 0, 4, 0, 0, 0, 0]);
    assert_eq!(found(&dir, "apples"), ["d.md", "e.md", "renamed.md"]);
    dir.cmd(["doctor"]).ok();
}

#[test]
fn an_ingest_without_changes_leaves_the_revision_and_every_answer() {
    let dir = Dir::indexed(&[("a.md", "One apple.\n"), ("b.md", "Two apples.\n")]);
    let search = || dir.cmd(["search", "apple", "--json", "--k", "1"]).ok();
    let (before, cursor) = (search().stdout, search().json()["next_cursor"].as_str().unwrap().to_owned());
    assert_eq!(revision(&dir), 1);
    for _ in 0..3 {
        assert_eq!(ingest(&dir, &[])["corpus_revision"], 1);
    }
    assert_eq!((revision(&dir), search().stdout), (1, before));
    dir.cmd(["search", "apple", "--json", "--k", "1", "--cursor", &cursor]).ok();
}

#[test]
fn ids_outlive_edits_and_force() {
    let ids = |dir: &Dir| -> Vec<(Value, Value)> {
        let response = dir.cmd(["search", "apple", "--json", "--mode", "lexical"]).ok().json();
        let hits = response["hits"].as_array().unwrap();
        hits.iter().map(|hit| (hit["doc_id"].clone(), hit["chunk_id"].clone())).collect()
    };
    let dir = Dir::indexed(&[("a.md", "One apple.\n")]);
    let before = ids(&dir);
    ingest(&dir, &["--force"]);
    assert_eq!(ids(&dir), before);
    dir.write("a.md", "Another apple.\n");
    ingest(&dir, &[]);
    let after = ids(&dir);
    assert_eq!(after[0].0, before[0].0);
    assert_ne!(after[0].1, before[0].1);
}

#[test]
fn a_touched_file_is_unchanged_and_no_longer_stale() {
    let dir = Dir::indexed(&[("a.md", "One apple.\n")]);
    let hour_ago = std::time::SystemTime::now() - Duration::from_secs(3600);
    let file = std::fs::File::options().write(true).open(dir.root().join("a.md")).unwrap();
    file.set_modified(hour_ago).unwrap();
    let stale = || dir.cmd(["search", "apple", "--json"]).ok().json()["hits"][0]["stale"].clone();
    assert_eq!(stale(), true);
    assert_eq!(counts(&ingest(&dir, &[])), [1, 0, 0, 1, 0, 0, 0]);
    assert_eq!((stale(), revision(&dir)), (json!(false), 1));
}

#[test]
fn an_edit_of_the_same_size_at_the_same_time_is_seen() {
    let dir = Dir::new();
    let path = dir.write("a.md", "One apple.\n");
    let now = std::time::SystemTime::now();
    let set_time = || std::fs::File::options().write(true).open(&path).unwrap().set_modified(now).unwrap();
    set_time();
    ingest(&dir, &[]);
    dir.write("a.md", "One lemon.\n");
    set_time();
    assert_eq!(counts(&ingest(&dir, &[])), [1, 0, 1, 0, 0, 0, 0]);
    assert_eq!(found(&dir, "lemon"), ["a.md"]);
    assert_eq!(found(&dir, "apple"), [""; 0]);
}

#[test]
fn every_file_that_is_left_out_has_a_reason() {
    let dir = Dir::new();
    let apple = "One apple.\n";
    dir.write("a.md", apple);
    dir.write(".hidden.md", apple);
    dir.write(".folder/b.md", apple);
    dir.write(".gitignore", "ignored.md\nbuild/\n");
    dir.write("ignored.md", apple);
    dir.write("build/c.md", apple);
    dir.write(".kebabignore", "private/\n*.log\n!keep.log\n");
    dir.write("private/d.md", apple);
    dir.write("e.log", apple);
    dir.write("keep.log", apple);
    dir.write("sub/.gitignore", "*.tmp\n");
    dir.write("sub/f.tmp", apple);
    dir.write("configured/g.md", apple);
    dir.write("picture.png", b"\x89PNG\r\n\x1a\n\0\0\0\x0dIHDR");
    dir.write("nul.md", b"One apple\0 here.\n");
    dir.write("noise.txt", (0..4000u32).map(|i| (i * 167 % 251 + 5) as u8 | 0x80).collect::<Vec<u8>>());
    dir.write("large.md", "One apple. ".repeat(20_000));
    dir.write("empty.md", "");
    dir.write("blank.md", " \n\t\n");
    dir.config("[workspace]\nexclude = ['configured/']\n[ingest]\nmax_file_bytes = 100000\n");
    let report = ingest(&dir, &[]);
    let reasons = json!({"hidden": 4, "ignored": 5, "excluded": 1, "binary": 2, "unknown_encoding": 1, "too_large": 1});
    let mut found_reasons = report["skipped_by_reason"].clone();
    // Hidden are .hidden.md, .folder, the ignore files themselves, and the one in `sub`.
    found_reasons["hidden"] = json!(found_reasons["hidden"].as_u64().unwrap() - 1);
    assert_eq!(found_reasons, reasons, "{report}");
    assert_eq!(report["skip_examples"]["too_large"], json!(["large.md"]));
    assert_eq!(report["skip_examples"]["binary"], json!(["nul.md", "picture.png"]));
    assert_eq!(report["skip_examples"]["ignored"], json!(["build", "e.log", "ignored.md", "private", "sub/f.tmp"]));
    let total: u64 = reasons.as_object().unwrap().values().map(|count| count.as_u64().unwrap()).sum();
    assert_eq!(report["skipped"], total + 1);
    assert_eq!(found(&dir, "apple"), ["a.md", "keep.log"]);
    let listed = ingest(&dir, &["--list"]);
    let items = listed["items"].as_array().unwrap();
    let reason = |path: &str| items.iter().find(|item| item["path"] == path).unwrap()["reason"].clone();
    assert_eq!(reason("noise.txt"), "unknown_encoding");
    assert_eq!(reason("configured"), "excluded");
    assert_eq!(reason(".folder"), "hidden");
    let result = |path: &str| items.iter().find(|item| item["path"] == path).unwrap()["result"].clone();
    assert_eq!(
        (result("a.md"), result("empty.md"), result("blank.md")),
        (json!("unchanged"), json!("unchanged"), json!("unchanged"))
    );
}

#[test]
fn a_file_that_becomes_unfit_leaves_the_index_and_comes_back() {
    let dir = Dir::indexed(&[("a.md", "One apple.\n"), ("b.md", "One apple.\n")]);
    dir.write("a.md", b"One apple\0\0\0\n");
    dir.write(".kebabignore", "b.md\n");
    let report = ingest(&dir, &[]);
    assert_eq!(report["skipped_by_reason"], json!({"binary": 1, "hidden": 1, "ignored": 1}));
    assert_eq!(found(&dir, "apple"), [""; 0]);
    dir.write("a.md", "One apple.\n");
    std::fs::remove_file(dir.root().join(".kebabignore")).unwrap();
    assert_eq!(ingest(&dir, &[])["new"], 2);
    assert_eq!(found(&dir, "apple"), ["a.md", "b.md"]);
}

#[test]
#[cfg(unix)]
fn links_inside_the_root_and_out_of_it_are_not_followed() {
    use std::os::unix::fs::symlink;
    let dir = Dir::new();
    dir.write("real/a.md", "One apple.\n");
    dir.write("../outside/secret.md", "A secret apple.\n");
    let root = dir.root();
    let link = |target: &str, name: &str| symlink(target, root.join(name)).unwrap();
    link("real/a.md", "file-link.md");
    link("real", "folder-link");
    link("real", "folder-link-again");
    link("..", "real/up");
    link("loop-b", "loop-a");
    link("loop-a", "loop-b");
    link("nowhere", "broken.md");
    link("../outside", "escape");
    link("../outside/secret.md", "escape.md");
    link("/etc/passwd", "absolute.txt");
    let report = ingest(&dir, &[]);
    assert_eq!(
        report["skip_examples"],
        json!({
            "symlink_broken": ["broken.md", "loop-a", "loop-b"],
            "symlink_inside_root": ["file-link.md", "folder-link", "folder-link-again"],
            "symlink_loop": ["real/up"],
            "symlink_outside_root": ["absolute.txt", "escape", "escape.md"],
        }),
    );
    assert_eq!(found(&dir, "apple"), ["real/a.md"]);
    assert_eq!(found(&dir, "secret"), [""; 0]);
}

#[test]
fn the_data_folder_inside_the_root_is_left_out() {
    let dir = Dir::new();
    dir.write("a.md", "One apple.\n");
    let data = dir.root().join("index");
    for _ in 0..2 {
        let report = dir.cmd(["ingest", "--json", "-q"]).env("KEBAB_STORAGE_DATA_DIR", &data).ok().json();
        assert_eq!(report["skip_examples"], json!({"excluded": ["index"]}));
        assert_eq!(report["scanned"], 1);
    }
}

#[test]
#[cfg(unix)]
fn any_name_a_file_can_have_is_found_again() {
    use std::os::unix::ffi::OsStrExt;
    let dir = Dir::new();
    let names = ["with space.md", "line\nbreak.md", "-dash.md", "quote\"'.md", "일본.md", "#hash?.md", "100%.md"];
    for name in names {
        dir.write(name, "One apple.\n");
    }
    let not_utf8 = dir.root().join(std::ffi::OsStr::from_bytes(b"caf\xe9.md"));
    std::fs::write(&not_utf8, "One apple.\n").unwrap();
    assert_eq!(counts(&ingest(&dir, &[])), [8, 8, 0, 0, 0, 0, 0]);
    let mut expected = names.to_vec();
    expected.push("caf%E9.md");
    expected.sort();
    assert_eq!(found(&dir, "apple"), expected);
    let response = dir.cmd(["search", "apple", "--json"]).ok().json();
    assert!(response["hits"].as_array().unwrap().iter().all(|hit| hit["stale"] == false), "{response}");
    assert_eq!(counts(&ingest(&dir, &[])), [8, 0, 0, 8, 0, 0, 0]);
    std::fs::write(&not_utf8, "One lemon.\n").unwrap();
    assert_eq!(ingest(&dir, &[])["updated"], 1);
    assert_eq!(found(&dir, "lemon"), ["caf%E9.md"]);
    std::fs::remove_file(&not_utf8).unwrap();
    assert_eq!(ingest(&dir, &[])["purged_deleted_files"], 1);
}

/// Runs as somebody whom file permissions bind, which they do not bind root.
#[cfg(unix)]
fn as_nobody(dir: &Dir, args: &[&str]) -> Output {
    let is_root = Command::new("id").arg("-u").output().unwrap().stdout == b"0\n";
    if !is_root {
        return dir.cmd(args).run();
    }
    let chown = Command::new("chown").args(["-R", "65534:65534"]).arg(dir.data()).status().unwrap();
    assert!(chown.success());
    dir.cmd(args).under(&["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]).run()
}

#[cfg(unix)]
fn set_mode(path: &Path, mode: u32) {
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
}

#[test]
#[cfg(unix)]
fn an_unreadable_file_is_one_error_and_keeps_its_old_version() {
    let dir = Dir::new();
    dir.write("a.md", "One apple.\n");
    dir.write("b.md", "One pear.\n");
    dir.write("closed/c.md", "One plum.\n");
    as_nobody(&dir, &["ingest"]).code(0);
    dir.write("a.md", "Another apple, unseen.\n");
    set_mode(&dir.root().join("a.md"), 0o000);
    set_mode(&dir.root().join("closed"), 0o000);
    dir.write("d.md", "One fig.\n");
    let report = as_nobody(&dir, &["ingest", "--json", "-q"]).code(0).json();
    set_mode(&dir.root().join("closed"), 0o755);
    set_mode(&dir.root().join("a.md"), 0o644);
    assert_eq!(counts(&report), [3, 1, 0, 1, 0, 0, 2]);
    let items = report["items"].as_array().unwrap();
    let failed: Vec<(&Value, &Value)> = items.iter().map(|item| (&item["path"], &item["error"]["code"])).collect();
    assert_eq!(failed, [(&json!("closed"), &json!("io_error")), (&json!("a.md"), &json!("io_error"))]);
    for (word, path) in [("apple", "a.md"), ("pear", "b.md"), ("plum", "closed/c.md"), ("fig", "d.md")] {
        assert_eq!(as_nobody(&dir, &["search", word, "--json"]).paths(), [path]);
    }
    assert_eq!(as_nobody(&dir, &["search", "unseen", "--json"]).paths(), [""; 0]);
    assert_eq!(as_nobody(&dir, &["ingest", "--json", "-q"]).code(0).json()["updated"], 1);
    assert_eq!(as_nobody(&dir, &["search", "unseen", "--json"]).paths(), ["a.md"]);
}

#[test]
#[cfg(unix)]
fn a_data_folder_that_cannot_be_written_is_named() {
    let dir = Dir::indexed(&[("a.md", "One apple.\n")]);
    // A log without content and no shared memory: what a copy of the folder may hold.
    std::fs::write(dir.data().join("kebab.sqlite-wal"), "").unwrap();
    set_mode(&dir.data(), 0o555);
    let error = as_nobody(&dir, &["ingest", "--json", "-q"]).code(2).error();
    std::fs::remove_file(dir.data().join("kebab.sqlite-shm")).ok();
    let found = as_nobody(&dir, &["search", "apple", "--json", "--readonly"]);
    set_mode(&dir.data(), 0o755);
    assert_eq!(error["code"], "io_error", "{error}");
    assert_eq!(found.code(0).paths(), ["a.md"]);
}

#[test]
fn a_folder_with_nothing_to_index_is_an_empty_index() {
    let dir = Dir::new();
    assert_eq!(counts(&ingest(&dir, &[])), [0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(found(&dir, "apple"), [""; 0]);
    assert_eq!(dir.cmd(["schema", "--json"]).ok().json()["stats"]["doc_count"], 0);
    dir.cmd(["doctor"]).ok();
    dir.write("a.md", "One apple.\n");
    ingest(&dir, &[]);
    assert_eq!(found(&dir, "apple"), ["a.md"]);
    std::fs::remove_file(dir.root().join("a.md")).unwrap();
    assert_eq!(ingest(&dir, &[])["purged_deleted_files"], 1);
    assert_eq!(found(&dir, "apple"), [""; 0]);
    dir.cmd(["doctor"]).ok();
}

#[test]
fn a_root_must_be_a_folder() {
    let dir = Dir::new();
    let file = dir.write("a.md", "One apple.\n");
    for root in [dir.root().join("missing"), file] {
        let error = dir.cmd(["ingest", "--json"]).env("KEBAB_WORKSPACE_ROOT", &root).run().code(2).stdout("").error();
        assert_eq!((&error["code"], &error["details"]["field"]), (&json!("invalid_input"), &json!("root")), "{error}");
    }
}

#[test]
fn a_root_that_vanished_does_not_empty_the_index() {
    let dir = Dir::indexed(&[("a.md", "One apple.\n")]);
    let away = dir.root().with_file_name("away");
    std::fs::rename(dir.root(), &away).unwrap();
    let root = dir.root();
    let ingest = dir.cmd(["ingest", "--json"]).env("KEBAB_WORKSPACE_ROOT", &root).cwd(dir.home()).run();
    ingest.code(2);
    std::fs::rename(&away, &root).unwrap();
    assert_eq!(found(&dir, "apple"), ["a.md"]);
}

#[test]
fn named_paths_bound_what_is_looked_at() {
    let dir = Dir::new();
    for path in ["a/one.md", "a/two.md", "b/one.md", "c.md"] {
        dir.write(path, "One apple.\n");
    }
    assert_eq!(counts(&ingest(&dir, &["a"])), [2, 2, 0, 0, 0, 0, 0]);
    assert_eq!(found(&dir, "apple"), ["a/one.md", "a/two.md"]);
    assert_eq!(ingest(&dir, &["b/one.md", "c.md"])["new"], 2);
    // Files beside the named ones stay, even if they are gone; below them they go.
    for path in ["a/one.md", "b/one.md", "c.md"] {
        std::fs::remove_file(dir.root().join(path)).unwrap();
    }
    assert_eq!(counts(&ingest(&dir, &["a"])), [1, 0, 0, 1, 1, 0, 0]);
    assert_eq!(found(&dir, "apple"), ["a/two.md", "b/one.md", "c.md"]);
    assert_eq!(ingest(&dir, &["c.md"])["purged_deleted_files"], 1);
    assert_eq!(found(&dir, "apple"), ["a/two.md", "b/one.md"]);
    let report = ingest(&dir, &["a", "a/two.md", "a"]);
    assert_eq!(report["scanned"].as_u64().unwrap() + report["skipped"].as_u64().unwrap(), 1, "{report}");
    dir.write(".kebabignore", "a/\n");
    assert_eq!(ingest(&dir, &["a/two.md"])["skipped_by_reason"], json!({"ignored": 1}));
    let outside = dir.cmd(["ingest", "--json", "-q", "../home"]).run().code(2).error();
    assert_eq!((&outside["code"], &outside["details"]["field"]), (&json!("invalid_input"), &json!("path")));
}

#[test]
fn a_second_writer_waits_or_is_told_who_writes() {
    let dir = Dir::indexed(&[("a.md", "One apple.\n")]);
    let lock = std::fs::File::options().write(true).open(dir.data().join("writer.lock")).unwrap();
    lock.lock().unwrap();
    std::fs::write(dir.data().join("writer.info"), "4711 2026-01-31T09:00:00Z").unwrap();
    let started = Instant::now();
    let error = dir.cmd(["ingest", "--json", "-q", "--wait", "0"]).run().code(2).error();
    assert!(started.elapsed() < Duration::from_secs(2), "{:?}", started.elapsed());
    assert_eq!(error["code"], "store_busy");
    assert_eq!(error["details"]["cause"], "process 4711 has been writing since 2026-01-31T09:00:00Z");
    assert_eq!(found(&dir, "apple"), ["a.md"]);
    dir.write("b.md", "One apple.\n");
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| ingest(&dir, &["--wait", "30"]));
        std::thread::sleep(Duration::from_millis(300));
        assert_eq!(found(&dir, "apple"), ["a.md"]);
        lock.unlock().unwrap();
        assert_eq!(waiting.join().unwrap()["new"], 1);
    });
    assert_eq!(found(&dir, "apple"), ["a.md", "b.md"]);
}

#[test]
fn many_writers_take_turns() {
    let dir = Dir::new();
    for file in 0..100 {
        dir.write(&format!("{file}.md"), format!("Apple {file}.\n"));
    }
    let new: u64 = std::thread::scope(|scope| {
        let writers: Vec<_> = (0..4).map(|_| scope.spawn(|| ingest(&dir, &[]))).collect();
        writers.into_iter().map(|writer| writer.join().unwrap()["new"].as_u64().unwrap()).sum()
    });
    assert_eq!(new, 100);
    assert_eq!(dir.cmd(["schema", "--json"]).ok().json()["stats"]["doc_count"], 100);
    dir.cmd(["doctor"]).ok();
}

#[test]
fn a_failed_ingest_ends_its_progress_too() {
    let dir = Dir::indexed(&[("a.md", "One apple.\n")]);
    let lock = std::fs::File::options().write(true).open(dir.data().join("writer.lock")).unwrap();
    lock.lock().unwrap();
    let lines = dir.cmd(["ingest", "--json", "--wait", "0"]).run().code(2).stderr_json();
    assert_eq!(lines.last().unwrap()["code"], "store_busy");
    let begun = lines.iter().any(|line| line["kind"] == "scan_started");
    let ended = lines.iter().any(|line| line["kind"] == "aborted" || line["kind"] == "completed");
    assert_eq!(begun, ended, "{lines:?}");
}

/// Files of a few hundred words each.
pub fn fill(dir: &Dir, files: usize) {
    for file in 0..files {
        let words: String = (0..150).map(|word| format!("word{} ", (file * 7 + word * 13) % 4000)).collect();
        dir.write(&format!("{:02}/{file}.md", file % 50), format!("# Apple {file}\n\n{words}\n"));
    }
}

#[test]
#[cfg(unix)]
fn an_interrupted_ingest_keeps_what_is_done_and_the_next_one_does_the_rest() {
    let dir = Dir::new();
    fill(&dir, 3000);
    let output = dir.cmd(["ingest", "--json"]).run_while(|child| {
        while !dir.data().join("kebab.sqlite").exists() {
            std::thread::sleep(Duration::from_millis(1));
        }
        std::thread::sleep(Duration::from_millis(20));
        Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    });
    let events = output.stderr_json();
    let terminal = events.iter().filter(|event| event["kind"] == "aborted" || event["kind"] == "completed").count();
    assert_eq!(terminal, 1);
    let report = output.code(130).json();
    assert_eq!(report["aborted"], true);
    let done = report["new"].as_u64().unwrap();
    assert!(done < 3000, "{done} files in 20 ms");
    let stats = || dir.cmd(["schema", "--json"]).ok().json()["stats"]["doc_count"].as_u64().unwrap();
    assert_eq!(stats(), done);
    dir.cmd(["doctor"]).ok();
    let rest = ingest(&dir, &[]);
    assert_eq!((rest["new"].as_u64().unwrap(), rest.get("hint")), (3000 - done, None));
    assert_eq!(stats(), 3000);
}

#[test]
fn five_thousand_files_take_seconds() {
    let dir = Dir::new();
    fill(&dir, 5000);
    let started = Instant::now();
    assert_eq!(counts(&ingest(&dir, &[])), [5000, 5000, 0, 0, 0, 0, 0]);
    assert!(started.elapsed() < Duration::from_secs(40), "{:?}", started.elapsed());
    let mut paths = found(&dir, "\"Apple 4321\"");
    paths.dedup();
    assert_eq!(paths, ["21/4321.md"]);
    // What has rested for a while is known by size and time alone.
    let output = dir.cmd(["ingest", "--json"]).ok();
    assert_eq!(counts(&output.json()), [5000, 0, 0, 5000, 0, 0, 0]);
}

#[test]
fn files_that_change_while_they_are_read_end_up_right() {
    let dir = Dir::new();
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut round = 0;
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                round += 1;
                for file in 0..40 {
                    let path = dir.root().join(format!("{file}.md"));
                    match (round + file) % 3 {
                        0 => drop(std::fs::remove_file(path)),
                        1 => std::fs::write(path, format!("Apple {round}.\n")).unwrap(),
                        _ => std::fs::write(path, "A longer apple. ".repeat(round % 60 + 1)).unwrap(),
                    }
                }
            }
        });
        for _ in 0..10 {
            let report = ingest(&dir, &[]);
            assert_eq!(report["errors"], 0, "{report}");
        }
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
    });
    ingest(&dir, &[]);
    let mut expected: Vec<String> = std::fs::read_dir(dir.root())
        .unwrap()
        .map(|entry| entry.unwrap())
        .filter(|entry| entry.metadata().unwrap().len() > 0)
        .map(|entry| entry.file_name().into_string().unwrap())
        .collect();
    expected.sort();
    assert_eq!(found(&dir, "apple"), expected);
    dir.cmd(["doctor"]).ok();
}

#[test]
fn a_huge_file_is_passed_over_unread() {
    let dir = Dir::new();
    dir.write("a.md", "One apple.\n");
    std::fs::File::create(dir.root().join("huge.md")).unwrap().set_len(2 << 30).unwrap();
    let started = Instant::now();
    let report = ingest(&dir, &[]);
    assert!(started.elapsed() < Duration::from_secs(5), "{:?}", started.elapsed());
    assert_eq!(report["skip_examples"], json!({"too_large": ["huge.md"]}));
    assert_eq!(found(&dir, "apple"), ["a.md"]);
}

#[test]
fn readonly_changes_no_file_of_the_index() {
    let dir = Dir::indexed(&[("a.md", "One apple.\n")]);
    let listing = || {
        let mut files: Vec<_> = std::fs::read_dir(dir.data())
            .unwrap()
            .map(|entry| entry.unwrap())
            .map(|entry| (entry.file_name().into_string().unwrap(), entry.metadata().unwrap().modified().unwrap()))
            // SQLite's shared memory of readers, and an empty log beside it.
            .filter(|(name, _)| !matches!(name.as_str(), "kebab.sqlite-shm" | "kebab.sqlite-wal"))
            .collect();
        files.sort();
        files
    };
    let before = listing();
    dir.write("b.md", "One apple.\n");
    let error = dir.cmd(["ingest", "--json", "--readonly"]).run().code(1).stdout("").error();
    assert_eq!(error["code"], "readonly_mode");
    for line in [&["search", "apple", "--readonly"][..], &["schema", "--readonly"], &["doctor", "--readonly"]] {
        dir.cmd(line).ok();
    }
    assert_eq!(listing(), before);
    let log = std::fs::metadata(dir.data().join("kebab.sqlite-wal")).map_or(0, |log| log.len());
    assert_eq!(log, 0);
}
