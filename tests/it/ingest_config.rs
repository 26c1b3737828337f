//! An ingest and the configuration: what shapes documents, which sources there are, where a start may lie.

use serde_json::json;

use crate::harness::Dir;
use crate::ingest::{counts, found, ingest};

#[test]
fn settings_that_shape_documents_take_effect_at_the_next_ingest() {
    let dir = Dir::new();
    dir.write("a.md", "One apple.\n");
    dir.write("../more/b.md", "One apple.\n");
    let (root, more) = (dir.root(), dir.root().with_file_name("more"));
    let config = |source: &str, chunking: &str| {
        dir.config(&format!(
            "[workspace]\nroot = '{}'\n[[workspace.sources]]\nid = 'more'\nroot = '{}'\n{source}\n{chunking}",
            root.display(),
            more.display()
        ));
    };
    config("", "");
    assert_eq!(counts(&ingest(&dir, &[])), [2, 2, 0, 0, 0, 0, 0]);
    config("trust_level = 'generated'", "");
    assert_eq!(counts(&ingest(&dir, &[])), [2, 0, 1, 1, 0, 0, 0]);
    let trusted = dir.cmd(["search", "apple", "--json", "--trust-min", "primary"]).ok();
    assert_eq!(trusted.paths(), ["a.md"]);
    config("trust_level = 'generated'", "[ingest.chunking]\ntarget_tokens = 100\n");
    assert_eq!(counts(&ingest(&dir, &["a.md"])), [1, 0, 1, 0, 0, 0, 0]);
    assert_eq!(counts(&ingest(&dir, &[])), [2, 0, 1, 1, 0, 0, 0]);
    assert_eq!(counts(&ingest(&dir, &[])), [2, 0, 0, 2, 0, 0, 0]);
}

#[test]
fn a_source_taken_out_of_the_config_leaves_the_index() {
    let dir = Dir::new();
    dir.write("a.md", "One apple.\n");
    dir.write("../more/b.md", "One apple.\n");
    let more = dir.root().with_file_name("more");
    let main = format!("[workspace]\nroot = '{}'\n", dir.root().display());
    dir.config(&format!("{main}[[workspace.sources]]\nid = 'more'\nroot = '{}'\n", more.display()));
    ingest(&dir, &[]);
    dir.cmd(["ingest-stdin", "--title", "T"]).stdin("a kept apple").ok();
    dir.config(&main);
    assert_eq!(ingest(&dir, &["a.md"])["purged_deleted_files"], 0);
    assert_eq!(ingest(&dir, &[])["purged_deleted_files"], 1);
    assert_eq!(found(&dir, "apple"), ["a.md", "stdin/t.md"]);
}

#[test]
fn two_roots_do_not_share_a_data_folder() {
    let dir = Dir::indexed(&[("a.md", "One apple.\n")]);
    let other = dir.root().with_file_name("other");
    dir.write("../other/b.md", "One apple.\n");
    let there = |args: &[&str]| dir.cmd(args).env("KEBAB_WORKSPACE_ROOT", &other).cwd(&other);
    let hint = "Name another data folder for this root: --data-dir DIR, or storage.data_dir in the config file.";
    let error = there(&["ingest", "--json", "-q"]).run().code(2).error();
    let (own, data) = (dir.root().display().to_string(), dir.data().display().to_string());
    let cause = format!("the data folder {data} holds the index of {own}, not of {}", other.display());
    assert_eq!((&error["code"], &error["details"]["cause"]), (&json!("config_invalid"), &json!(cause)));
    assert_eq!(error["hint"], hint);
    let error = there(&["search", "apple", "--json"]).run().code(2).error();
    assert_eq!((&error["code"], &error["hint"]), (&json!("not_indexed"), &json!(hint)));
    let expected = format!("an index of {}", other.display());
    assert_eq!(error["details"], json!({"expected": expected, "found": format!("the index of {own} in {data}")}));
    assert_eq!(found(&dir, "apple"), ["a.md"]);
    // A root that was renamed takes its index along.
    std::fs::remove_dir_all(&other).unwrap();
    std::fs::rename(dir.root(), &other).unwrap();
    assert_eq!(counts(&there(&["ingest", "--json", "-q"]).ok().json()), [1, 0, 0, 1, 0, 0, 0]);
    assert_eq!(there(&["search", "apple", "--json"]).ok().paths(), ["a.md"]);
}

#[test]
fn a_source_inside_another_is_indexed_once() {
    let dir = Dir::new();
    dir.write("a.md", "One apple.\n");
    dir.write("inner/b.md", "One apple.\n");
    let (root, inner) = (dir.root(), dir.root().join("inner"));
    dir.config(&format!(
        "[workspace]\nroot = '{}'\n[[workspace.sources]]\nid = 'inner'\nroot = '{}'\n",
        root.display(),
        inner.display()
    ));
    let report = ingest(&dir, &[]);
    assert_eq!((counts(&report), &report["skip_examples"]), ([2, 2, 0, 0, 0, 1, 0], &json!({"excluded": ["inner"]})));
    assert_eq!(counts(&ingest(&dir, &["inner/b.md"])), [1, 0, 0, 1, 0, 0, 0]);
    dir.cmd(["ingest-file", "inner/b.md"]).ok().stdout("unchanged b.md\n");
    assert_eq!(found(&dir, "apple"), ["a.md", "b.md"]);
}

#[test]
fn a_start_that_is_not_there_is_an_error() {
    let dir = Dir::indexed(&[("sub/a.md", "One apple.\n")]);
    let error = dir.cmd(["ingest", "--json", "-q", "nosuchfile"]).run().code(2).error();
    assert_eq!((&error["code"], &error["details"]["field"]), (&json!("invalid_input"), &json!("path")));
    let reason = format!("there is nothing at {}", dir.root().join("nosuchfile").display());
    assert_eq!(error["details"]["reason"], reason);
    assert_eq!(counts(&ingest(&dir, &["sub/a.md", "sub"])), [1, 0, 0, 1, 0, 0, 0]);
    std::fs::remove_dir_all(dir.root().join("sub")).unwrap();
    assert_eq!(ingest(&dir, &["sub"])["purged_deleted_files"], 1);
}

#[test]
fn a_binary_file_is_known_by_its_head_and_a_wait_may_be_endless() {
    let dir = Dir::new();
    dir.write("text.md", [b"apple", &b" ".repeat(9000)[..], b"\0"].concat());
    dir.write("utf16.txt", b"\xFF\xFEa\0p\0p\0l\0e\0");
    dir.write("bom.md", b"\xEF\xBB\xBFapple\0");
    dir.write("binary.md", b"apple\0");
    let report = ingest(&dir, &["--wait", "18446744073709551615"]);
    assert_eq!(report["skip_examples"], json!({"binary": ["binary.md", "bom.md"]}));
    assert_eq!(found(&dir, "apple"), ["text.md", "utf16.txt"]);
}

#[test]
fn symbols_of_endless_nesting_stay_short() {
    let dir = Dir::new();
    let name = "n".repeat(200);
    let nested: String = (0..40).map(|depth| format!("{}class {name}{depth}:\n", " ".repeat(depth))).collect();
    dir.write("a.py", format!("{nested}{}apple = 1\n", " ".repeat(40)));
    ingest(&dir, &[]);
    let hits = dir.cmd(["search", "apple", "--json"]).ok().json()["hits"].clone();
    let symbol = hits[0]["citation"]["symbol"].as_str().or(hits[0]["symbol"].as_str()).unwrap_or("").to_owned();
    assert!(symbol.len() <= 9 * 129, "{}: {hits}", symbol.len());
}
