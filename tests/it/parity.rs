//! The same call through the library, the command line, stdio, HTTP and a shared server: the same JSON.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::atomic::AtomicBool;

use kebab_lite::config::{Flags, load};
use kebab_lite::kb::Kb;
use kebab_lite::tools::{Context, TOOLS, Tokens};
use serde_json::value::to_raw_value;
use serde_json::{Value, json};

use crate::ask::{ANSWER, QUESTION, corpus};
use crate::harness::Dir;
use crate::http::Http;
use crate::mcp::{Server, modern, notes};
use crate::stub::{Act, Dialect, Stub};

/// Calls beside the examples of the tools.
fn samples() -> Vec<(&'static str, Value)> {
    vec![
        ("search", json!({"query": "backups"})),
        ("search", json!({"query": "copy store", "k": 1, "trace": true})),
        ("search", json!({"query": "\"every night\""})),
        ("search", json!({"query": "nothing_of_this_kind"})),
        ("search", json!({"query": "port", "path_glob": "*.txt"})),
        (
            "search",
            json!({"query": "port", "exclude_path_glob": "*.txt", "media": ["text", "code"], "tag": ["a", "b"]}),
        ),
        ("search", json!({"query": "store", "max_tokens": 1, "snippet_chars": 30})),
        ("search", json!({"query": "-port --store"})),
        ("search", json!({"query": "port", "mode": "vector"})),
        ("search", json!({"query": "port", "k": 0})),
        ("search", json!({"query": "port", "cursor": "x"})),
        ("search", json!({"query": "port", "mode": "none"})),
        ("search", json!({"query": " "})),
        ("search", json!({"query": "port", "nope": 1})),
        ("search", json!({})),
        ("search", json!([])),
        ("bulk_search", json!({"queries": [{"query": "port"}, {"query": "x", "k": 0}]})),
        ("bulk_search", json!({"queries": vec![json!({"query": "port"}); 101]})),
        ("bulk_search", json!({"queries": "port"})),
        ("ask", json!({"question": "How are backups made?", "extractive": true})),
        ("ask", json!({"question": "How are backups made?", "extractive": true, "k": 2, "mode": "lexical"})),
        ("ask", json!({"question": "nothing_of_this_kind", "extractive": true})),
        ("ask", json!({"question": "How are backups made?"})),
        ("ask", json!({"question": " "})),
        ("ask", json!({})),
        ("fetch", json!({"uri": "notes.txt"})),
        ("fetch", json!({"uri": "guide/backup.md#L1-L2"})),
        ("fetch", json!({"uri": "guide/backup.md", "line_start": 1, "line_end": 2})),
        ("fetch", json!({"uri": "guide/backup.md", "max_tokens": 3})),
        ("fetch", json!({"uri": "guide/backup.md", "line_start": 5000, "line_end": 6000})),
        ("fetch", json!({"uri": "nowhere.md"})),
        ("fetch", json!({"path": "nowhere.md"})),
        ("fetch", json!({"doc_id": "00000000000000000000000000000000"})),
        ("fetch", json!({"chunk_id": "00000000000000000000000000000000", "context": 1})),
        ("fetch", json!({})),
        ("schema", json!({})),
        ("schema", json!({"nope": 1})),
        ("doctor", json!({})),
        ("ingest_file", json!({"path": "notes.txt"})),
        ("ingest_file", json!({"path": "notes.txt", "title": "Notes", "tags": ["a"]})),
        ("ingest_file", json!({"path": "nowhere.txt"})),
        ("ingest_file", json!({"path": "../outside.txt"})),
        ("ingest_stdin", json!({"text": "# Plan\n\nShip on Friday.", "title": "Plan"})),
        (
            "ingest_stdin",
            json!({"text": "Ship.", "title": "Plan", "source_uri": "https://example.org/plan", "tags": ["a"]}),
        ),
        ("ingest_stdin", json!({"text": "", "title": "Plan"})),
    ]
}

/// The command line that asks the same, and its stdin; None where it has no words for that.
fn command_line(name: &str, arguments: &Value) -> Option<(Vec<String>, String)> {
    let arguments = arguments.as_object()?;
    let (command, words, renamed): (&str, &str, &[(&str, &str)]) = match name {
        "search" => ("search", "query", &[]),
        "ask" => ("ask", "question", &[("session_id", "session")]),
        "fetch" => ("fetch", "uri", &[]),
        "schema" | "doctor" => (name, "", &[]),
        "ingest_file" => ("ingest-file", "path", &[("tags", "tag")]),
        "ingest_stdin" => ("ingest-stdin", "text", &[("tags", "tag")]),
        "bulk_search" => {
            let lines: Vec<String> =
                arguments["queries"].as_array()?.iter().map(|query| format!("{query}\n")).collect();
            return Some((vec!["search".into(), "--bulk".into(), "--json".into()], lines.concat()));
        }
        _ => panic!("{name} has no command"),
    };
    let mut argv = vec![command.to_owned(), "--json".into()];
    let mut fields = arguments.clone();
    if let Some(Value::Object(filters)) = fields.remove("filters") {
        fields.extend(filters);
    }
    let words = fields.remove(words);
    if let (Some(start), Some(end)) = (fields.remove("line_start"), fields.remove("line_end")) {
        argv.extend(["--lines".into(), format!("{start}-{end}")]);
    }
    for (field, value) in &fields {
        if field == "nope" || command == "fetch" && field.ends_with("_id") || field == "path" {
            return None;
        }
        let flag = renamed.iter().find(|(from, _)| from == field).map_or(field.as_str(), |(_, to)| to);
        let flag = format!("--{}", flag.replace('_', "-"));
        let text = |value: &Value| value.as_str().map_or(value.to_string(), str::to_owned);
        match value {
            Value::Bool(on) => argv.extend(on.then_some(flag)),
            Value::Array(values) => values.iter().for_each(|value| argv.extend([flag.clone(), text(value)])),
            value => argv.extend([flag, text(value)]),
        }
    }
    let words = words.map(|words| words.as_str().expect("a string").to_owned());
    match (command, words) {
        ("ingest-stdin", text) => return Some((argv, text?)),
        ("fetch", None) => return None,
        (_, Some(words)) => argv.extend(["--".into(), words]),
        (_, None) => {}
    }
    Some((argv, String::new()))
}

/// The same as words of a command line: an error shows how they were written, and a path is one of the working folder.
fn as_words(dir: &Dir, mut arguments: Value) -> Value {
    for (name, value) in arguments.as_object_mut().unwrap() {
        if value.is_number() {
            *value = Value::from(value.to_string());
        } else if name == "path" {
            *value = json!(dir.root().join(value.as_str().unwrap()));
        }
    }
    arguments
}

/// What the command line prints: an answer on stdout, or an error on stderr. Many answers are put together as the tool
/// that takes many queries does it.
fn printed(dir: &Dir, name: &str, argv: &[String], stdin: &str) -> Value {
    let output = dir.cmd(argv).stdin(stdin).run();
    match (name, output.stdout.is_empty(), &output.stderr_json()[..]) {
        ("bulk_search", _, [summary]) if summary["schema_version"] == "bulk_search_summary.v1" => {
            let mut counts = summary.clone();
            counts.as_object_mut().unwrap().remove("schema_version");
            json!({"schema_version": "bulk_search_response.v1", "results": output.json_lines(), "summary": counts})
        }
        (_, true, [.., error]) => error.clone(),
        _ => output.json(),
    }
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

pub fn library(dir: &Dir) -> Kb {
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
    let mut calls = samples();
    for tool in TOOLS {
        calls.extend(tool.examples.iter().map(|example| (tool.name, serde_json::from_str(example).unwrap())));
        assert!(calls.iter().any(|(name, ..)| *name == tool.name), "no sample of {}", tool.name);
    }
    let commands = same_everywhere(&notes(), calls);
    assert_eq!(commands.len(), TOOLS.len(), "{commands:?}");
}

#[test]
fn every_answer_of_a_model_is_the_same_everywhere() {
    let stub = Stub::start(Dialect::Ollama, |request, _| {
        let told = request.body["messages"][1]["content"].as_str().unwrap_or_default();
        Act::Say(match told.contains("vault") {
            true => ANSWER.to_owned(),
            // Without a mark, which is then set.
            false => "The daemon listens on port 8787.".to_owned(),
        })
    });
    let port = "Which port does the daemon listen on?";
    let calls = vec![
        ("ask", json!({"question": QUESTION})),
        ("ask", json!({"question": QUESTION, "show_citations": true, "explain": true, "seed": 7, "k": 2})),
        ("ask", json!({"question": port, "filters": {"path_glob": "docs/port.md"}, "temperature": 0.5})),
        ("ask", json!({"question": port, "path_glob": "elsewhere/**"})),
        ("ask", json!({"question": port, "extractive": true})),
        ("ask", json!({"question": "저장소로 SQLite를 고른 이유는?"})),
        ("ask", json!({"question": "zygomorphic xylophones"})),
        ("ask", json!({"question": QUESTION, "multi_hop": true})),
        ("ask", json!({"question": QUESTION, "extractive": true, "multi_hop": true})),
    ];
    let commands = same_everywhere(&corpus(&stub), calls);
    assert_eq!(commands.len(), 1, "{commands:?}");
    assert!(stub.requests().len() > 20, "{}", stub.requests().len());
}

/// Makes each call in every place there is; returns the tools that the command line was asked for, too.
fn same_everywhere(dir: &Dir, calls: Vec<(&'static str, Value)>) -> BTreeSet<&'static str> {
    let http = Http::start(dir, &[]);
    let session = http.session("2025-11-25");
    let mut stdio = Server::start(dir);
    let mut shared = Server::run(dir.cmd(["mcp", "--connect", "--ensure-server=false"]).into_command());
    let kb = library(dir);
    let mut commands = BTreeSet::new();
    for (name, arguments) in calls {
        let tool = TOOLS.iter().find(|tool| tool.name == name).unwrap();
        let stop = AtomicBool::new(false);
        let tokens = Tokens { default: Some(20_000), most: None };
        let context = Context { tokens, stop: &stop, progress: &|_, _, _| {} };
        let library = |arguments: &Value| match (tool.run)(&kb, &to_raw_value(arguments).unwrap(), &context) {
            Ok(text) => serde_json::from_str(&text).unwrap(),
            Err(error) => serde_json::to_value(kebab_lite::wire::ErrorReport::from(&error)).unwrap(),
        };
        // What writes is at rest from the second time on.
        let _: Value = library(&arguments);
        let expected: Value = timeless(library(&arguments));
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
        let Some((argv, stdin)) = command_line(name, &arguments) else { continue };
        // The limit of queries is one of the command line's own, in words of its own.
        if stdin.lines().count() > 100 {
            continue;
        }
        commands.insert(name);
        let expected = match name {
            "bulk_search" => expected,
            _ => timeless(library(&as_words(dir, arguments))),
        };
        assert_eq!(timeless(printed(dir, name, &argv, &stdin)), expected, "{argv:?}");
        if argv[0] == "search" {
            let alone = [&argv[..1], &["--no-server".to_owned()], &argv[1..]].concat();
            assert_eq!(timeless(printed(dir, name, &alone, &stdin)), expected, "{alone:?}");
        }
    }
    commands
}
