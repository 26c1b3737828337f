//! The same call through the library, the command line, stdio, HTTP and a shared server: the same JSON.

use std::path::Path;
use std::sync::atomic::AtomicBool;

use kebab_lite::config::{Flags, load};
use kebab_lite::kb::Kb;
use kebab_lite::tools::{Context, TOOLS, Tokens};
use serde_json::value::to_raw_value;
use serde_json::{Value, json};

use crate::harness::Dir;
use crate::http::Http;
use crate::mcp::{Server, modern, notes};

/// Calls beside the examples of the tools, and the command line that says the same.
fn samples() -> Vec<(&'static str, Value, Option<Vec<&'static str>>)> {
    vec![
        ("search", json!({"query": "backups"}), Some(vec!["search", "backups"])),
        (
            "search",
            json!({"query": "copy store", "k": 1, "trace": true}),
            Some(vec!["search", "--k=1", "--trace", "copy store"]),
        ),
        ("search", json!({"query": "\"every night\""}), Some(vec!["search", "\"every night\""])),
        ("search", json!({"query": "nothing_of_this_kind"}), Some(vec!["search", "nothing_of_this_kind"])),
        (
            "search",
            json!({"query": "port", "path_glob": "*.txt"}),
            Some(vec!["search", "--path-glob", "*.txt", "port"]),
        ),
        ("search", json!({"query": "port", "k": 0}), None),
        ("search", json!({"query": "port", "nope": 1}), None),
        ("search", json!({}), None),
        ("bulk_search", json!({"queries": [{"query": "port"}, {"query": "x", "k": 0}]}), None),
        ("fetch", json!({"uri": "notes.txt"}), Some(vec!["fetch", "notes.txt"])),
        (
            "fetch",
            json!({"uri": "guide/backup.md", "line_start": 1, "line_end": 2}),
            Some(vec!["fetch", "guide/backup.md", "--lines", "1-2"]),
        ),
        ("fetch", json!({"path": "nowhere.md"}), None),
        ("fetch", json!({"doc_id": "00000000000000000000000000000000"}), None),
        ("schema", json!({}), Some(vec!["schema"])),
        ("doctor", json!({}), Some(vec!["doctor"])),
        ("ingest_file", json!({"path": "notes.txt"}), None),
        ("ingest_file", json!({"path": "nowhere.txt"}), None),
        ("ingest_stdin", json!({"text": "# Plan\n\nShip on Friday.", "title": "Plan"}), None),
    ]
}

/// Without what a clock says.
fn timeless(mut value: Value) -> Value {
    fn scrub(value: &mut Value) {
        match value {
            Value::Object(map) => {
                for (name, value) in map.iter_mut() {
                    match name.ends_with("_ms")
                        || matches!(name.as_str(), "last_ingest_at" | "corpus_revision" | "created_at")
                    {
                        true => *value = Value::Null,
                        false => scrub(value),
                    }
                }
            }
            Value::Array(items) => items.iter_mut().for_each(scrub),
            _ => {}
        }
    }
    // A check tells the times in words.
    if value["schema_version"] == "doctor.v1" {
        value["checks"].as_array_mut().unwrap().iter_mut().for_each(|check| check["detail"] = Value::Null);
    }
    scrub(&mut value);
    value
}

/// What a tool said, be it an answer or an error.
fn told(result: &Value) -> Value {
    let text: Value = serde_json::from_str(result["content"][0]["text"].as_str().unwrap()).unwrap();
    match result["isError"].as_bool().unwrap() {
        true => assert!(result.get("structuredContent").is_none()),
        false => assert_eq!(result["structuredContent"], text),
    }
    text
}

fn library(dir: &Dir) -> Kb {
    let flags = Flags { root: Some(dir.root()), data_dir: Some(dir.data()), ..Flags::default() };
    let home = dir.home();
    let env = |name: &str| match name {
        "HOME" | "USERPROFILE" => Some(home.to_string_lossy().into_owned()),
        "KEBAB_MODELS_EMBEDDING_PROVIDER" => Some("none".into()),
        _ => None,
    };
    Kb::open(load(&flags, &env, Path::new(&dir.root())).unwrap()).unwrap()
}

#[test]
fn every_call_says_the_same_everywhere() {
    let dir = notes();
    let http = Http::start(&dir, &[]);
    let session = http.session("2025-11-25");
    let mut stdio = Server::start(&dir);
    let mut shared = Server::run(dir.cmd(["mcp", "--connect", "--ensure-server=false"]).into_command());
    let kb = library(&dir);
    let mut calls = samples();
    for tool in TOOLS {
        calls.extend(tool.examples.iter().map(|example| (tool.name, serde_json::from_str(example).unwrap(), None)));
        assert!(calls.iter().any(|(name, ..)| *name == tool.name), "no sample of {}", tool.name);
    }
    for (name, arguments, argv) in calls {
        let tool = TOOLS.iter().find(|tool| tool.name == name).unwrap();
        let raw = to_raw_value(&arguments).unwrap();
        let stop = AtomicBool::new(false);
        let tokens = Tokens { default: Some(20_000), most: None };
        let context = Context { tokens, stop: &stop, progress: &|_, _, _| {} };
        let library = || match (tool.run)(&kb, &raw, &context) {
            Ok(text) => serde_json::from_str(&text).unwrap(),
            Err(error) => serde_json::to_value(kebab_lite::wire::ErrorReport::from(&error)).unwrap(),
        };
        // What writes is at rest from the second time on.
        let _: Value = library();
        let expected: Value = timeless(library());
        let params = json!({"name": name, "arguments": arguments});
        let message = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params});
        let said = [
            ("stdio", stdio.call(name, arguments.clone())),
            ("shared", shared.call(name, arguments.clone())),
            ("http", http.post(&[("Mcp-Session-Id", &session)], &message).json()["result"].clone()),
            ("http, modern", http.ask_modern("tools/call", params).json()["result"].clone()),
            (
                "stdio, modern",
                stdio.ask("tools/call", modern(json!({"name": name, "arguments": arguments})))["result"].clone(),
            ),
        ];
        for (place, result) in said {
            assert_eq!(timeless(told(&result)), expected, "{place}: {name} {arguments}");
        }
        if let Some(argv) = argv {
            for alone in [false, true] {
                if alone && name != "search" {
                    continue;
                }
                let mut argv = argv.clone();
                argv.push("--json");
                argv.extend(alone.then_some("--no-server"));
                assert_eq!(timeless(dir.cmd(argv).run().json()), expected, "command line: {name} {arguments}");
            }
        }
    }
}
