//! Rules for what seldom happens: paths that name nothing, roots that have moved, files that cannot be read again, a
//! writer that holds the store, phrases of words that stand everywhere.

use std::fs::File;
use std::time::{Duration, Instant};

use serde_json::json;

use crate::harness::Dir;
use crate::mcp::Server;

#[test]
fn each_path_that_names_nothing_is_told() {
    let dir = Dir::indexed(&[("a.md", "One apple.\n"), ("sub/b.md", "One pear.\n")]);
    for paths in [&["nosuch"][..], &[".", "nosuch"], &["nosuch", "."], &["sub", "sub/nosuch"]] {
        let error = dir.cmd(["ingest", "--json", "-q"].iter().chain(paths)).run().code(2).error();
        assert_eq!(error["code"], "invalid_input", "{paths:?}");
        assert!(error["message"].as_str().unwrap().ends_with("nosuch"), "{paths:?}: {error}");
    }
    // What is gone but still indexed is no slip: its document goes.
    std::fs::remove_file(dir.root().join("sub/b.md")).unwrap();
    let report = dir.cmd(["ingest", "--json", "-q", ".", "sub/b.md"]).ok().json();
    assert_eq!((&report["purged_deleted_files"], &report["errors"]), (&json!(1), &json!(0)));
}

#[test]
fn a_slip_of_the_pen_makes_no_store() {
    let dir = Dir::new();
    dir.write("a.md", "One apple.\n");
    assert_eq!(dir.cmd(["ingest", "--json", "-q", "nosuch"]).run().code(2).error()["code"], "invalid_input");
    assert_eq!(std::fs::read_dir(dir.data()).unwrap().count(), 0, "nothing was made");
    assert_eq!(dir.cmd(["search", "apple", "--json"]).run().code(2).error()["code"], "not_indexed");
}

#[test]
fn a_root_that_has_moved_takes_its_index_along_and_says_so() {
    let dir = Dir::new();
    dir.write("old/a.md", "One apple.\n");
    let (old, new) = (dir.root().join("old"), dir.root().join("new"));
    let ingest =
        |root: &std::path::Path| dir.cmd(["ingest", "--json", "-q"]).env("KEBAB_WORKSPACE_ROOT", root).ok().json();
    assert_eq!(ingest(&old)["new"], 1);
    std::fs::rename(&old, &new).unwrap();
    let report = ingest(&new);
    assert_eq!((&report["unchanged"], &report["new"]), (&json!(1), &json!(0)));
    let hint = report["hint"].as_str().unwrap();
    assert!(hint.starts_with(&format!("The index was made of {}, which is no more;", old.display())), "{hint}");
    assert_eq!(ingest(&new)["hint"], json!(null));
}

#[test]
fn a_file_that_cannot_be_read_again_keeps_its_document_and_is_tried_each_time() {
    let dir = Dir::indexed(&[("a.md", "One apple.\n")]);
    let ingest = || dir.cmd(["ingest", "--json", "-q"]).run().json();
    // UTF-16 that ends within a character.
    dir.write("a.md", b"\xFF\xFEa\x00p");
    for round in 0..3 {
        let report = ingest();
        assert_eq!((&report["errors"], &report["updated"]), (&json!(1), &json!(0)), "round {round}");
        assert_eq!(report["items"][0]["path"], "a.md", "round {round}");
        assert_eq!(dir.cmd(["search", "apple", "--json"]).ok().paths(), ["a.md"], "round {round}");
    }
    dir.write("a.md", b"\xFF\xFEp\x00e\x00a\x00r\x00");
    assert_eq!(ingest()["updated"], 1);
    assert_eq!(dir.cmd(["search", "pear", "--json"]).ok().paths(), ["a.md"]);
}

#[test]
fn the_first_eight_kilobytes_tell_a_binary_file() {
    let dir = Dir::new();
    let with_nul = |at: usize, bytes: usize| {
        let mut text = "word ".repeat(bytes / 5).into_bytes();
        text[at] = 0;
        text
    };
    dir.write("head.txt", with_nul(8000, 9000));
    dir.write("tail.txt", with_nul(9000, 10_000));
    let report = dir.cmd(["ingest", "--json", "-q"]).ok().json();
    assert_eq!(report["skip_examples"], json!({"binary": ["head.txt"]}));
    assert_eq!(report["new"], 1);
}

#[test]
fn a_cancelled_call_stops_waiting_for_the_writer() {
    let dir = Dir::indexed(&[("a.md", "One apple.\n")]);
    let lock = File::options().write(true).open(dir.data().join("writer.lock")).unwrap();
    lock.lock().unwrap();
    let mut server = Server::start(&dir);
    let call = |id: usize, name: &str, arguments: serde_json::Value| json!({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": {"name": name, "arguments": arguments}});
    // More than there are workers: they all wait.
    for id in 0..20 {
        server.say(&call(id, "ingest_file", json!({"path": "a.md"})));
    }
    for id in 0..20 {
        server.say(&json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": id}}));
    }
    let started = Instant::now();
    server.say(&call(99, "schema", json!({})));
    let answer: serde_json::Value = serde_json::from_str(&server.line()).unwrap();
    assert_eq!((&answer["id"], &answer["result"]["isError"]), (&json!(99), &json!(false)));
    assert!(started.elapsed() < Duration::from_secs(15), "the writer would have been waited for 30 seconds");
    lock.unlock().unwrap();
}

#[test]
fn a_phrase_of_words_that_stand_everywhere_reads_the_best_passages_only() {
    let dir = Dir::new();
    for file in 0..2200 {
        dir.write(
            &format!("{:02}/{file}.md", file % 50),
            "Alpha stands before words, and beta behind more words of it.\n",
        );
    }
    for file in ["x.md", "y.md"] {
        dir.write(file, "Here alpha beta stand together.\n");
    }
    dir.cmd(["ingest", "-q"]).ok();
    let response = dir.cmd(["search", "\"alpha beta\"", "--mode", "lexical", "--json"]).ok().json();
    let paths: Vec<&str> =
        response["hits"].as_array().unwrap().iter().map(|hit| hit["doc_path"].as_str().unwrap()).collect();
    assert_eq!(paths, ["x.md", "y.md"]);
    let hint = response["hint"].as_str().unwrap();
    assert!(hint.contains("only the best 2048 were read for the phrase"), "{hint}");
    // With nothing unread there is nothing to tell.
    let narrow = ["search", "\"alpha beta\"", "--mode", "lexical", "--json", "--path-glob", "*.md"];
    let response = dir.cmd(narrow).ok().json();
    assert_eq!(response["hits"].as_array().unwrap().len(), 2);
    assert_eq!(response["hint"], json!(null));
}
