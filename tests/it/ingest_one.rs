//! `ingest-file` and `ingest-stdin`: one document at a time, next to what a walk finds; and what a walk does when a
//! source or the index is not as it should be.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::{Value, json};

use crate::harness::{Dir, Output};

#[track_caller]
fn refused(output: Output) -> (String, String) {
    let error = output.code(2).stdout("").error();
    assert_eq!(error["details"]["field"], "path");
    (error["code"].as_str().unwrap().to_owned(), error["message"].as_str().unwrap().to_owned())
}

/// The one item of the report, after holding the counts against it.
#[track_caller]
fn item(output: Output) -> Value {
    let output = output.code(0);
    let report = output.json();
    assert_eq!(report["schema_version"], "ingest_report.v1");
    let [item] = report["items"].as_array().unwrap().as_slice() else { output.fail("expected one item") };
    assert_eq!((&report["scanned"], &report[item["result"].as_str().unwrap()]), (&json!(1), &json!(1)));
    item.clone()
}

/// The item's path and what became of it.
#[track_caller]
fn outcome(output: Output) -> (String, String) {
    let item = item(output);
    (item["path"].as_str().unwrap().to_owned(), item["result"].as_str().unwrap().to_owned())
}

fn is(path: &str, result: &str) -> (String, String) {
    (path.to_owned(), result.to_owned())
}

fn file(dir: &Dir, args: &[&str]) -> Output {
    dir.cmd(["ingest-file", "--json"].iter().chain(args)).run()
}

fn stdin(dir: &Dir, text: impl Into<Vec<u8>>, args: &[&str]) -> Output {
    dir.cmd(["ingest-stdin", "--json"].iter().chain(args)).stdin(text).run()
}

fn found(dir: &Dir, query: &str) -> Vec<String> {
    let mut paths = dir.cmd(["search", "--json", "--mode", "lexical", query]).ok().paths();
    paths.sort();
    paths
}

fn document(dir: &Dir, path: &str) -> Value {
    dir.cmd(["fetch", "--json", path]).ok().json()
}

fn summary(dir: &Dir, path: &str) -> Value {
    document(dir, path)["doc"].clone()
}

/// Every file below a folder with its content.
fn tree(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut files = BTreeMap::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.display().to_string();
        match path.is_dir() {
            true => files.extend(tree(&path)),
            false => drop(files.insert(name, std::fs::read(&path).unwrap())),
        }
    }
    files
}

#[test]
fn one_file_is_read_and_no_other() {
    let dir = Dir::new();
    dir.write("docs/a.md", "an apple\n");
    dir.write("docs/b.md", "an apple\n");
    let first = item(file(&dir, &["docs/a.md"]));
    assert_eq!((&first["path"], &first["result"], &first["chunks"]), (&json!("docs/a.md"), &json!("new"), &json!(1)));
    assert_eq!(found(&dir, "apple"), ["docs/a.md"]);
    assert_eq!(document(&dir, "docs/a.md")["doc_id"], first["doc_id"]);
    let again = item(file(&dir, &["docs/a.md"]));
    assert_eq!((&again["result"], &again["doc_id"]), (&json!("unchanged"), &first["doc_id"]));
    let absolute = dir.write("docs/a.md", "an apple, riper\n");
    assert_eq!(outcome(file(&dir, &[absolute.to_str().unwrap()])), is("docs/a.md", "updated"));
    assert_eq!(found(&dir, "riper"), ["docs/a.md"]);
    // The walk finds it as it would have left it.
    let report = dir.cmd(["ingest", "--json", "-q"]).ok().json();
    assert_eq!((&report["new"], &report["unchanged"], &report["updated"]), (&json!(1), &json!(1), &json!(0)));
    assert_eq!(found(&dir, "apple"), ["docs/a.md", "docs/b.md"]);
    let elsewhere = dir.cmd(["ingest-file", "b.md", "--root", "..", "--json"]).cwd(dir.root().join("docs")).run();
    assert_eq!(outcome(elsewhere), is("docs/b.md", "unchanged"));
    dir.cmd(["ingest-file", "docs/b.md"]).ok().stdout("unchanged docs/b.md\n").stderr("");
    assert_eq!(dir.cmd(["schema", "--json"]).ok().json()["capabilities"]["single_file_ingest"], true);
}

#[test]
fn what_is_said_about_a_file_stays_with_it() {
    let dir = Dir::new();
    dir.write("a.md", "---\ntitle: Own\ntags: [own]\n---\nan apple\n");
    let given = ["a.md", "--title", "Given  title", "--tag", "x", "--tag=y"];
    assert_eq!(outcome(file(&dir, &given)), is("a.md", "new"));
    let is_kept = |when: &str| {
        let doc = summary(&dir, "a.md");
        assert_eq!((&doc["title"], &doc["tags"]), (&json!("Given title"), &json!(["own", "x", "y"])), "{when}");
        assert_eq!(dir.cmd(["search", "--json", "given title", "--tag", "x"]).ok().paths(), ["a.md"], "{when}");
    };
    is_kept("at first");
    assert_eq!(outcome(file(&dir, &given)), is("a.md", "unchanged"));
    assert_eq!(outcome(file(&dir, &["a.md"])), is("a.md", "unchanged"));
    dir.cmd(["ingest", "--force"]).ok();
    is_kept("after --force");
    dir.write("a.md", "---\ntitle: Own\ntags: [own]\n---\nan apple, riper\n");
    dir.cmd(["ingest"]).ok();
    is_kept("after an edit");
    assert_eq!(outcome(file(&dir, &["a.md", "--tag", "z"])), is("a.md", "updated"));
    assert_eq!(summary(&dir, "a.md")["tags"], json!(["own", "z"]));
    assert_eq!(summary(&dir, "a.md")["title"], "Given title");
}

#[test]
fn what_a_walk_would_pass_over_is_refused_with_the_reason() {
    let dir = Dir::new();
    dir.config("[workspace]\nexclude = [\"drafts/\"]\n[ingest]\nmax_file_bytes = 100\n");
    dir.write("good.md", "an apple\n");
    for path in [".hidden.md", ".git/config", "ignored.md", "drafts/a.md"] {
        dir.write(path, "an apple\n");
    }
    dir.write(".gitignore", "ignored.md\n");
    dir.write("large.md", "x".repeat(101));
    dir.write("binary.md", b"\0\x01\x02");
    dir.write("unknown.txt", b"\xCF\xF0\xE8\xE2\xE5\xF2, \xEC\xE8\xF0 hello");
    let root = dir.root();
    let run = |path: &str| refused(dir.cmd(["ingest-file", "--json", "--root", root.to_str().unwrap(), path]).run());
    for (path, message) in [
        (".hidden.md", "path: .hidden.md is hidden: its name starts with a dot"),
        (".git/config", "path: .git is hidden: its name starts with a dot"),
        ("ignored.md", "path: ignored.md is ignored by a .gitignore, .ignore or .kebabignore file"),
        ("drafts/a.md", "path: drafts is excluded by the configuration"),
        ("large.md", "path: large.md is larger than ingest.max_file_bytes, 100"),
        ("binary.md", "path: binary.md is binary"),
        ("unknown.txt", "path: unknown.txt has an unknown encoding"),
    ] {
        assert_eq!(run(path), ("invalid_input".into(), message.into()));
    }
    let named = |path: &str| root.join(path).display().to_string();
    assert_eq!(run("drafts").1, format!("path: {} is a folder", named("drafts")));
    assert_eq!(run("nowhere/b.md").1, format!("path: there is no file {}", named("nowhere/b.md")));
    // Nothing was written, not even an empty store.
    assert!(!dir.data().join("kebab.sqlite").exists());
}

#[test]
fn paths_that_leave_the_root_are_refused() {
    let dir = Dir::new();
    dir.write("sub/a.md", "an apple\n");
    let secret = dir.write("../outside/secret.md", "a secret apple\n");
    let outside = dir.root().parent().unwrap().join("outside");
    let mut escapes = vec![
        "../outside/secret.md".to_owned(),
        "sub/../../outside/secret.md".to_owned(),
        secret.display().to_string(),
        "../outside/not-there.md".to_owned(),
        "sub/none/../../../outside/secret.md".to_owned(),
    ];
    if cfg!(unix) {
        link(&outside, &dir.root().join("folder-link"));
        link(&outside.join("secret.md"), &dir.root().join("file-link.md"));
        link(Path::new("../folder-link"), &dir.root().join("sub/chain"));
        escapes.extend(["folder-link/secret.md", "file-link.md", "sub/chain/secret.md"].map(str::to_owned));
    }
    for escape in escapes {
        let (code, message) = refused(file(&dir, &[&escape]));
        assert_eq!(code, "invalid_input", "{escape}");
        let told = message.contains("lies outside the workspace") || message.contains("leads outside the workspace");
        assert!(told, "{escape}: {message}");
    }
    dir.cmd(["ingest"]).ok();
    assert_eq!(found(&dir, "apple"), ["sub/a.md"]);
    // Inside is inside, however it is written.
    assert_eq!(outcome(file(&dir, &["sub/../sub/./a.md"])), is("sub/a.md", "unchanged"));
}

#[cfg(unix)]
fn link(target: &Path, at: &Path) {
    std::os::unix::fs::symlink(target, at).unwrap();
}

#[cfg(not(unix))]
fn link(_: &Path, _: &Path) {}

#[test]
#[cfg(unix)]
fn a_link_inside_the_root_is_the_document_it_leads_to() {
    let dir = Dir::new();
    dir.write("real.md", "an apple\n");
    link(Path::new("real.md"), &dir.root().join("link.md"));
    link(Path::new("gone.md"), &dir.root().join("broken.md"));
    assert_eq!(outcome(file(&dir, &["link.md"])), is("real.md", "new"));
    let root = dir.root();
    let message = format!("path: there is no file {}", root.join("broken.md").display());
    assert_eq!(refused(file(&dir, &["broken.md"])).1, message);
    // From outside, a link into the root names what it leads to.
    link(&dir.root().join("real.md"), &dir.home().join("into.md"));
    let from_home = dir.cmd(["ingest-file", "--json", "--root", root.to_str().unwrap(), "into.md"]).cwd(dir.home());
    assert_eq!(outcome(from_home.run()), is("real.md", "unchanged"));
    let report = dir.cmd(["ingest", "--json", "-q"]).ok().json();
    assert_eq!((&report["unchanged"], &report["new"]), (&json!(1), &json!(0)));
    assert_eq!(report["skipped_by_reason"], json!({"symlink_broken": 1, "symlink_inside_root": 1}));
}

/// A workspace beside two folders, of which `allowed` may be taken from.
fn with_allowed() -> (Dir, impl Fn(&str) -> String) {
    let dir = Dir::new();
    dir.write("a.md", "an apple\n");
    dir.write("../allowed/note.md", "# Note\n\na pear\n");
    dir.write("../allowed/sub/note.md", "# Other note\n\na plum\n");
    dir.write("../allowed/.secret/note.md", "a hidden fig\n");
    dir.write("../forbidden/note.md", "a forbidden fig\n");
    let base = dir.root().parent().unwrap().to_owned();
    let root = dir.root();
    dir.config(&format!(
        "[workspace]\nroot = '{}'\n[ingest]\nallowed_dirs = ['{}']\n",
        root.display(),
        base.join("allowed").display()
    ));
    (dir, move |path: &str| base.join(path).display().to_string())
}

#[test]
fn a_file_of_an_allowed_folder_is_copied_into_the_store() {
    let (dir, at) = with_allowed();
    let before = (tree(&dir.root()), tree(Path::new(&at("allowed"))));
    assert_eq!(outcome(file(&dir, &[&at("allowed/note.md")])), is("ingested/note.md", "new"));
    assert_eq!(outcome(file(&dir, &[&at("allowed/note.md")])), is("ingested/note.md", "unchanged"));
    let (other, result) = outcome(file(&dir, &[&at("allowed/sub/note.md"), "--tag", "b"]));
    assert!(other.starts_with("ingested/note-") && other.len() == "ingested/note-12345678.md".len(), "{other}");
    assert_eq!(result, "new");
    assert_eq!(outcome(file(&dir, &[&at("allowed/sub/../sub/note.md")])), is(&other, "unchanged"));
    assert_eq!((tree(&dir.root()), tree(Path::new(&at("allowed")))), before);
    assert_eq!(refused(file(&dir, &[&at("forbidden/note.md")])).0, "invalid_input");
    assert_eq!(refused(file(&dir, &[&at("allowed/../forbidden/note.md")])).0, "invalid_input");
    assert_eq!(
        refused(file(&dir, &[&at("allowed/.secret/note.md")])).1,
        "path: .secret is hidden: its name starts with a dot"
    );

    for walk in [&["ingest"][..], &["ingest", "--force"]] {
        dir.cmd(walk).ok();
        assert_eq!(found(&dir, "pear"), ["ingested/note.md"]);
        assert_eq!(found(&dir, "plum"), [&other[..]]);
    }
    std::fs::remove_file(at("allowed/note.md")).unwrap();
    dir.cmd(["ingest"]).ok();
    let copy = document(&dir, "ingested/note.md");
    assert_eq!((&copy["text"], &copy["stale"]), (&json!("# Note\n\na pear\n"), &json!(false)));
    assert_eq!(copy["doc"]["source_id"], "ingested");
    let hit = &dir.cmd(["search", "--json", "pear"]).ok().json()["hits"][0];
    dir.cmd(["fetch", hit["citation"]["uri"].as_str().unwrap()]).ok().stdout("# Note\n\na pear\n");

    dir.write("../allowed/note.md", "a quince\n");
    assert_eq!(outcome(file(&dir, &[&at("allowed/note.md")])), is("ingested/note.md", "updated"));
    assert_eq!((found(&dir, "pear").len(), found(&dir, "quince")), (0, vec!["ingested/note.md".to_owned()]));
}

#[test]
fn a_copy_and_a_file_of_the_same_path_do_not_meet() {
    let (dir, at) = with_allowed();
    dir.write("ingested/note.md", "a pear of the workspace\n");
    assert_eq!(outcome(file(&dir, &[&at("allowed/note.md")])), is("ingested/note.md", "new"));
    dir.cmd(["ingest"]).ok();
    assert_eq!(found(&dir, "pear"), ["ingested/note.md", "ingested/note.md"]);
    std::fs::remove_file(dir.root().join("ingested/note.md")).unwrap();
    dir.cmd(["ingest"]).ok();
    dir.cmd(["fetch", "ingested/note.md"]).ok().stdout("# Note\n\na pear\n");
}

#[test]
#[cfg(unix)]
fn a_link_out_of_an_allowed_folder_leads_nowhere() {
    let (dir, at) = with_allowed();
    link(Path::new(&at("forbidden")), Path::new(&at("allowed/way-out")));
    link(Path::new(&at("forbidden/note.md")), Path::new(&at("allowed/out.md")));
    for path in ["allowed/way-out/note.md", "allowed/out.md"] {
        let (code, message) = refused(file(&dir, &[&at(path)]));
        assert_eq!(code, "invalid_input");
        assert!(message.contains("lies outside the workspace"), "{message}");
    }
}

#[test]
fn a_text_is_known_by_its_title_and_where_it_is_from() {
    let dir = Dir::new();
    dir.write("a.md", "an apple\n");
    dir.cmd(["ingest"]).ok();
    let note = ["--title", "회의록: Monday"];
    let path = "stdin/회의록-monday.md";
    let text = "# Agenda\r\n\r\na pear\r\n";
    let first = item(stdin(&dir, text, &note));
    assert_eq!((&first["path"], &first["result"]), (&json!(path), &json!("new")));
    assert_eq!(outcome(stdin(&dir, text, &note)), is(path, "unchanged"));
    let whole = document(&dir, path);
    assert_eq!((&whole["text"], &whole["stale"], &whole["doc_id"]), (&json!(text), &json!(false), &first["doc_id"]));
    for (field, expected) in [
        ("title", json!("회의록: Monday")),
        ("trust_level", json!("secondary")),
        ("source_type", json!("stdin")),
        ("source_id", json!("ingested")),
        ("source_uri", Value::Null),
    ] {
        assert_eq!(whole["doc"][field], expected, "{field}");
    }
    assert_eq!(outcome(stdin(&dir, "a plum\n", &note)), is(path, "updated"));
    assert_eq!((found(&dir, "pear").len(), found(&dir, "plum")), (0, vec![path.to_owned()]));

    let from = ["--title", "회의록: Monday", "--source-uri", "https://example.com/1", "--tag", "m", "--lang", "ko-KR"];
    let second = "stdin/회의록-monday-2.md";
    assert_eq!(outcome(stdin(&dir, "a fig\n", &from)), is(second, "new"));
    assert_eq!(outcome(stdin(&dir, "a fig\n", &from)), is(second, "unchanged"));
    let doc = summary(&dir, second);
    assert_eq!(
        (&doc["source_uri"], &doc["tags"], &doc["lang"]),
        (&json!("https://example.com/1"), &json!(["m"]), &json!("ko"))
    );
    assert_eq!(found(&dir, "회의록"), [second, path]);
    let trusted = dir.cmd(["search", "--json", "fig", "--trust-min", "primary"]).ok();
    assert_eq!(trusted.paths(), [""; 0]);
    dir.cmd(["ingest-stdin", "--title", "X", "--trust-level", "primary"])
        .stdin("a fig")
        .ok()
        .stdout("new       stdin/x.md\n");
    let trusted = dir.cmd(["search", "--json", "fig", "--trust-min", "primary"]).ok();
    assert_eq!(trusted.paths(), ["stdin/x.md"]);
}

#[test]
fn a_text_outlives_walks_and_changes_of_the_rules() {
    let dir = Dir::new();
    dir.write("a.md", "an apple\n");
    stdin(&dir, "# Pears\n\na pear\n", &["--title", "Note", "--tag", "t"]).code(0);
    let before = summary(&dir, "stdin/note.md");
    let holds = |when: &str| {
        assert_eq!(found(&dir, "pear"), ["stdin/note.md"], "{when}");
        assert_eq!(summary(&dir, "stdin/note.md"), before, "{when}");
        assert_eq!(document(&dir, "stdin/note.md")["stale"], false, "{when}");
    };
    for walk in [&["ingest"][..], &["ingest", "--force"], &["ingest", "."]] {
        dir.cmd(walk).ok();
        holds(&walk.join(" "));
    }
    let store = rusqlite::Connection::open(dir.data().join("kebab.sqlite")).unwrap();
    store.execute("UPDATE documents SET parsed = 'older'", []).unwrap();
    drop(store);
    let report = dir.cmd(["ingest", "--json", "-q"]).ok().json();
    assert_eq!((&report["scanned"], &report["updated"]), (&json!(2), &json!(2)));
    holds("after other rules");
    dir.cmd(["doctor"]).ok();
    std::fs::remove_file(dir.root().join("a.md")).unwrap();
    assert_eq!(dir.cmd(["ingest", "--json", "-q"]).ok().json()["purged_deleted_files"], 1);
    holds("in an empty workspace");
}

#[test]
fn what_is_no_text_is_refused() {
    let dir = Dir::new();
    let fails = |text: &[u8], args: &[&str]| {
        let error = stdin(&dir, text, args).code(2).stdout("").error();
        assert_eq!(error["code"], "invalid_input");
        error["message"].as_str().unwrap().to_owned()
    };
    let titled = ["--title", "T"];
    assert_eq!(fails(b"x", &[]), "title: it is missing");
    assert_eq!(fails(b"", &titled), "text: it is empty");
    assert_eq!(fails(b"\0\x01", &titled), "text: stdin is no text: binary");
    assert_eq!(
        fails(b"x", &["--title", "T", "--trust-level", "high"]),
        "trust_level: \"high\" is not one of generated, secondary, primary"
    );
    assert!(!dir.data().join("kebab.sqlite").exists());
    let korean = b"\xC7\xD1\xB1\xDB \xB9\xAE\xBC\xAD".to_vec();
    assert_eq!(outcome(stdin(&dir, korean, &titled)), is("stdin/t.md", "new"));
    dir.cmd(["fetch", "stdin/t.md"]).ok().stdout("한글 문서");
    dir.config("[ingest]\nmax_file_bytes = 10\n");
    let long = dir.cmd(["ingest-stdin", "--title", "T", "--json"]).stdin("한글 문서 하나").run().code(2).error();
    assert_eq!(long["message"], "text: stdin holds more than ingest.max_file_bytes, 10");
}

#[test]
fn readonly_blocks_both() {
    let dir = Dir::indexed(&[("a.md", "an apple\n")]);
    for args in [&["ingest-file", "a.md"][..], &["ingest-stdin", "--title", "T"]] {
        let output = dir.cmd(args.iter().chain(&["--json", "--readonly"])).stdin("x").run().code(1).stdout("");
        assert_eq!(output.error()["code"], "readonly_mode");
    }
}

#[test]
fn a_writer_is_waited_for() {
    let dir = Dir::indexed(&[("a.md", "an apple\n")]);
    let lock = std::fs::File::open(dir.data().join("writer.lock")).unwrap();
    lock.lock().unwrap();
    let output = dir.cmd(["ingest-file", "--json", "a.md"]).run_while(|_| {
        std::thread::sleep(std::time::Duration::from_millis(500));
        lock.unlock().unwrap();
    });
    assert_eq!(outcome(output), is("a.md", "unchanged"));
}

#[test]
fn a_source_that_is_away_is_one_error_and_loses_nothing() {
    let dir = Dir::new();
    dir.write("a.md", "an apple\n");
    dir.write("../usb/b.md", "an apple\n");
    let root = dir.root();
    let usb = dir.root().parent().unwrap().join("usb");
    dir.config(&format!(
        "[workspace]\nroot = '{}'\n[[workspace.sources]]\nid = \"usb\"\nroot = '{}'\n[[workspace.sources]]\nid = \"late\"\nroot = '{}'\n",
        root.display(), usb.display(), dir.home().join("late").display()
    ));
    dir.write("../home/late/c.md", "an apple\n");
    dir.cmd(["ingest"]).ok();
    assert_eq!(found(&dir, "apple"), ["a.md", "b.md", "c.md"]);
    std::fs::rename(&usb, usb.with_file_name("gone")).unwrap();
    dir.write("a.md", "an apple and a pear\n");
    dir.write("../home/late/c.md", "an apple and a pear\n");
    let report = dir.cmd(["ingest", "--json", "-q"]).ok().json();
    assert_eq!(
        (&report["errors"], &report["updated"], &report["purged_deleted_files"]),
        (&json!(1), &json!(2), &json!(0))
    );
    let [item] = report["items"].as_array().unwrap().as_slice() else { panic!("{report}") };
    assert_eq!((&item["path"], &item["error"]["code"]), (&json!("usb"), &json!("io_error")));
    assert_eq!(item["error"]["details"]["path"], usb.display().to_string());
    assert_eq!(
        (found(&dir, "apple"), found(&dir, "pear")),
        (vec!["a.md".into(), "b.md".into(), "c.md".into()], vec!["a.md".into(), "c.md".into()])
    );
    std::fs::rename(usb.with_file_name("gone"), &usb).unwrap();
    let report = dir.cmd(["ingest", "--json", "-q"]).ok().json();
    assert_eq!((&report["errors"], &report["unchanged"]), (&json!(0), &json!(3)));
    // The main root is another matter.
    std::fs::rename(&root, root.with_file_name("elsewhere")).unwrap();
    let error = dir.cmd(["ingest", "--json"]).cwd(dir.home()).run().code(2).error();
    assert_eq!((&error["code"], &error["details"]["field"]), (&json!("invalid_input"), &json!("root")));
    std::fs::rename(root.with_file_name("elsewhere"), &root).unwrap();
}

#[test]
fn events_come_once_though_the_index_is_rebuilt_in_between() {
    let dir = Dir::new();
    for n in 0..8 {
        dir.write(&format!("{n}.md"), format!("apple number {n} and words\n"));
    }
    dir.cmd(["ingest"]).ok();
    for entry in std::fs::read_dir(dir.data().join("segments")).unwrap() {
        let path = entry.unwrap().path();
        let mut bytes = std::fs::read(&path).unwrap();
        // In a page, and those are checked when they are first read: here, when a chunk is deleted.
        bytes[20] ^= 0xFF;
        std::fs::write(&path, bytes).unwrap();
    }
    for n in 0..8 {
        dir.write(&format!("{n}.md"), format!("apple number {n} and other words\n"));
    }
    let output = dir.cmd(["ingest", "--json"]).ok();
    let events = output.stderr_json();
    let count = |kind: &str| events.iter().filter(|event| event["kind"] == kind).count();
    let counts = ["scan_started", "scan_completed", "asset_started", "asset_finished", "completed"].map(count);
    assert_eq!(counts, [1, 1, 8, 8, 1], "{}", output.stderr);
    assert_eq!(output.json()["updated"], 8);
    dir.cmd(["doctor"]).ok();
}
