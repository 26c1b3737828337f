//! Rules over the whole table, and every tool run for real.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use serde_json::{Map, Value, json};

use super::*;
use crate::config::{self, Flags};
use crate::rpc::{self, Server, Step};

/// From start to start, and from version to version.
const ORDER: &[&str] = &["search", "bulk_search", "ask", "fetch", "schema", "doctor", "ingest_file", "ingest_stdin"];

/// Every user of every host pays for the list on every turn.
const LIST_BYTES: usize = 8 << 10;

/// A workspace and an index of its own, removed when dropped.
pub struct Folder(PathBuf);

impl Folder {
    #[allow(clippy::new_without_default, reason = "it makes a folder on disk, which nobody expects of a default")]
    pub fn new() -> Folder {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let name = format!("kebab-tools-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let base = std::env::temp_dir().join(name);
        std::fs::create_dir_all(base.join("root")).unwrap();
        Folder(base)
    }

    /// Without an embedding model: loading one takes longer than all tests here.
    pub fn kb(&self, readonly: bool) -> Arc<Kb> {
        let flags = Flags {
            root: Some(self.0.join("root")),
            data_dir: Some(self.0.join("data")),
            readonly,
            ..Flags::default()
        };
        let environment = |name: &str| (name == "KEBAB_MODELS_EMBEDDING_PROVIDER").then(|| "none".to_owned());
        Arc::new(Kb::open(config::load(&flags, &environment, Path::new("/")).unwrap()).unwrap())
    }

    pub fn indexed(&self) -> Arc<Kb> {
        let text = "# Backup\n\nThe backup schedule runs every night. 설정 파일을 복사한다.\n";
        std::fs::write(self.0.join("root/backup.md"), text).unwrap();
        std::fs::write(self.0.join("root/main.rs"), "/// Error handling: retry twice.\nfn retry() {}\n").unwrap();
        let kb = self.kb(false);
        let (wait, embed) = (Duration::ZERO, ingest::embed::Effort::None);
        let input = ingest::Input { paths: Vec::new(), force: false, wait, list: false, embed };
        ingest::run(&kb, &input, &mut |_| {}, &AtomicBool::new(false)).unwrap();
        kb
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            std::fs::remove_dir_all(&self.0).unwrap();
        }
    }
}

/// Arguments for the corpus of `Folder::indexed`.
fn samples(tool: &Tool) -> Vec<&'static str> {
    let further: &[&str] = match tool.name {
        "fetch" => &[
            r#"{"path": "backup.md"}"#,
            r#"{"path": "backup.md", "line_start": 1, "line_end": 3, "max_tokens": 5}"#,
            r#"{"uri": "backup.md#L2-L99"}"#,
        ],
        "ingest_file" => &[r#"{"path": "main.rs", "title": "Retrying", "tags": ["code"]}"#],
        _ => &[],
    };
    tool.examples.iter().chain(further).copied().collect()
}

fn parsed(json: &str) -> Value {
    serde_json::from_str(json).unwrap_or_else(|error| panic!("{error}: {json}"))
}

fn listed(readonly: bool) -> Vec<Value> {
    let list = parsed(&format!("{{{}}}", list(readonly)));
    list["tools"].as_array().unwrap().clone()
}

#[test]
fn names_are_short_and_their_order_never_changes() {
    let names: Vec<&str> = TOOLS.iter().map(|tool| tool.name).collect();
    let known: Vec<&str> = ORDER.iter().copied().filter(|name| names.contains(name)).collect();
    assert_eq!(names, known);
    assert!(TOOLS.len() <= 10);
    for name in names {
        assert!((1..=32).contains(&name.len()) && name.bytes().all(|b| b == b'_' || b.is_ascii_lowercase()), "{name}");
    }
    let writers: BTreeSet<&str> = TOOLS.iter().filter(|tool| tool.effect == Effect::Writes).map(|t| t.name).collect();
    let offered: Vec<&str> = offered(true).map(|tool| tool.name).collect();
    assert!(offered.iter().all(|name| !writers.contains(name)));
    assert_eq!(offered.len() + writers.len(), TOOLS.len());
}

#[test]
fn the_list_is_small() {
    for readonly in [false, true] {
        let bytes = list(readonly).len();
        assert!(bytes <= LIST_BYTES, "{bytes}");
    }
    for tool in TOOLS {
        let own = compact(tool.input_schema).len() + compact(tool.output_schema).len() + tool.description.len();
        let limit = if tool.name == "search" { 2400 } else { 1200 };
        assert!(own <= limit, "{}: {own}", tool.name);
    }
}

#[test]
fn the_list_says_what_hosts_ask_for() {
    for (tool, shown) in TOOLS.iter().zip(listed(false)) {
        let fields: Vec<&String> = shown.as_object().unwrap().keys().collect();
        assert_eq!(fields, ["annotations", "description", "inputSchema", "name", "outputSchema", "title"]);
        assert_eq!(shown["name"], tool.name);
        assert_eq!(shown["inputSchema"], parsed(tool.input_schema));
        assert_eq!(shown["outputSchema"], parsed(tool.output_schema));
        let annotations = &shown["annotations"];
        assert_eq!(annotations["readOnlyHint"], json!(tool.effect == Effect::Reads));
        assert_eq!(annotations["openWorldHint"], json!(false));
        assert!(annotations["idempotentHint"].is_boolean());
    }
}

#[test]
fn input_schemas_use_nothing_that_a_host_may_not_know() {
    fn check(tool: &str, at: &str, schema: &Map<String, Value>) {
        const WORDS: &[&str] =
            &["type", "description", "properties", "required", "items", "enum", "additionalProperties"];
        let place = format!("{tool} {at}");
        for word in schema.keys() {
            assert!(WORDS.contains(&word.as_str()), "{place}: {word}");
        }
        let kind = schema["type"].as_str().unwrap_or_else(|| panic!("{place}: one type"));
        assert!(["object", "array", "string", "integer", "number", "boolean"].contains(&kind), "{place}: {kind}");
        if kind == "array" {
            check(tool, &format!("{at}[]"), schema["items"].as_object().unwrap_or_else(|| panic!("{place}: items")));
        }
        if let Some(words) = schema.get("enum") {
            assert!(kind == "string" && words.as_array().unwrap().iter().all(Value::is_string), "{place}: enum");
        }
        if let Some(properties) = schema.get("properties") {
            for (name, property) in properties.as_object().unwrap() {
                check(tool, &format!("{at}.{name}"), property.as_object().unwrap());
            }
        }
        let properties: BTreeSet<&String> =
            schema.get("properties").into_iter().flat_map(|p| p.as_object().unwrap().keys()).collect();
        for required in schema.get("required").into_iter().flat_map(|list| list.as_array().unwrap()) {
            assert!(properties.iter().any(|name| *name == required), "{place}: {required}");
        }
    }
    for tool in TOOLS {
        let schema = parsed(tool.input_schema);
        assert_eq!(
            (&schema["type"], &schema["additionalProperties"]),
            (&json!("object"), &json!(false)),
            "{}",
            tool.name
        );
        check(tool.name, "", schema.as_object().unwrap());
    }
}

/// Names of the closed sets and of the fields are written twice: in the schema and in the reader of the arguments.
#[test]
fn the_schema_of_search_names_every_argument_and_no_other() {
    let schema = parsed(TOOLS[0].input_schema);
    let mut named: Vec<&String> = schema["properties"].as_object().unwrap().keys().collect();
    named.sort();
    let hint = SearchInput::from_json(json!({"query": "x", "zzzzzz": 1})).unwrap_err().hint().unwrap();
    let mut read: Vec<&str> = hint.trim_start_matches("Known are ").trim_end_matches('.').split(", ").collect();
    read.sort();
    assert_eq!(named, read);
    for (field, words) in [("mode", crate::model::Mode::choices()), ("trust_min", crate::model::Trust::choices())] {
        let mut listed: Vec<&str> =
            schema["properties"][field]["enum"].as_array().unwrap().iter().map(|w| w.as_str().unwrap()).collect();
        let mut known: Vec<&str> = words.split(", ").collect();
        listed.sort();
        known.sort();
        assert_eq!(listed, known);
    }
}

#[test]
fn examples_are_what_the_schemas_allow() {
    for tool in TOOLS {
        let schema = parsed(tool.input_schema);
        assert!(!samples(tool).is_empty(), "{}", tool.name);
        for example in samples(tool) {
            let value = parsed(example);
            // Items of a bulk call fail by themselves, and its examples show that.
            if tool.name != "bulk_search" {
                assert!(jsonschema::is_valid(&schema, &value), "{} {example}", tool.name);
            }
        }
    }
}

/// The result of a tools/call.
fn called(server: &Server, name: &str, arguments: &str) -> Value {
    let line = format!(
        r#"{{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{{"name":"{name}","arguments":{arguments}}}}}"#
    );
    let Step::Call(call) = rpc::handle(server, line.as_bytes(), false) else { panic!("{line}") };
    let answer = rpc::call(server, &call, &AtomicBool::new(false), &|_| {});
    parsed(&answer)["result"].clone()
}

/// Both halves of a result say the same, and it is what the output schema promises.
fn checked(tool: &Tool, result: &Value) -> Value {
    let text = parsed(result["content"][0]["text"].as_str().unwrap());
    assert_eq!(result["content"].as_array().unwrap().len(), 1);
    if result["isError"] == json!(true) {
        assert_eq!(result.get("structuredContent"), None, "{}", tool.name);
        assert_eq!(text["schema_version"], "error.v1");
        return text;
    }
    assert_eq!(text, result["structuredContent"], "{}", tool.name);
    if let Err(error) = jsonschema::validate(&parsed(tool.output_schema), &text) {
        panic!("{}: {error}\n{text}", tool.name);
    }
    text
}

#[test]
fn every_answer_is_what_its_schema_promises() {
    let folder = Folder::new();
    let missing = Server::new(Ok(folder.kb(false)), false);
    for tool in TOOLS {
        for example in samples(tool) {
            checked(tool, &called(&missing, tool.name, example));
        }
    }
    let server = Server::new(Ok(folder.indexed()), false);
    for tool in TOOLS {
        for example in samples(tool) {
            let text = checked(tool, &called(&server, tool.name, example));
            assert_ne!(text["schema_version"], "error.v1", "{} {example}: {text}", tool.name);
        }
        let unknown = checked(tool, &called(&server, tool.name, r#"{"no_such_argument": 1}"#));
        assert_eq!(unknown["code"], "invalid_input", "{}", tool.name);
        let list = checked(tool, &called(&server, tool.name, "[1]"));
        assert_eq!(list["code"], "invalid_input", "{}", tool.name);
        let deep = format!(r#"{{"a": {}1{}}}"#, "[".repeat(5000), "]".repeat(5000));
        assert_eq!(checked(tool, &called(&server, tool.name, &deep))["code"], "invalid_input", "{}", tool.name);
    }
    let hit = called(&server, "search", r#"{"query": "backup"}"#)["structuredContent"]["hits"][0].clone();
    let fetch = TOOLS.iter().find(|tool| tool.name == "fetch").unwrap();
    for id in ["chunk_id", "doc_id"] {
        let fetched = checked(fetch, &called(&server, "fetch", &json!({ id: hit[id] }).to_string()));
        assert_eq!(fetched["doc_path"], "backup.md", "{fetched}");
    }
    let search = &TOOLS[0];
    for arguments in [r#"{"query": "zzzqqqxxx"}"#, r#"{"query": "backup", "k": 1, "max_tokens": 1}"#] {
        checked(search, &called(&server, "search", arguments));
    }
    assert_eq!(called(&server, "search", r#"{"query": "zzzqqqxxx"}"#)["structuredContent"]["hits"], json!([]));
    assert_eq!(
        called(&server, "search", r#"{"query": "backup"}"#)["structuredContent"]["hits"][0]["doc_path"],
        "backup.md"
    );
}

#[test]
fn a_configuration_that_cannot_be_used_is_told_to_every_caller() {
    let hint = "Add `root = \"/notes\"` under [workspace].";
    let error = Error::ConfigInvalid { path: None, cause: "no root is named".into(), hint: Some(hint.into()) };
    let server = Server::new(Err(error), false);
    for tool in TOOLS {
        let text = checked(tool, &called(&server, tool.name, samples(tool)[0]));
        assert_eq!((&text["code"], &text["hint"]), (&json!("config_invalid"), &json!(hint)), "{}", tool.name);
    }
}

#[test]
fn bulk_search_shares_one_budget_and_an_item_may_ask_for_its_own() {
    let folder = Folder::new();
    let kb = folder.indexed();
    let stop = AtomicBool::new(false);
    let count = AtomicUsize::new(0);
    let progress = |done: u64, total: Option<u64>, _: &str| {
        assert_eq!(total, Some(2));
        assert_eq!(done as usize, count.fetch_add(1, Ordering::Relaxed) + 1);
    };
    let tokens = Tokens { default: Some(2), most: None };
    let context = Context { tokens, stop: &stop, progress: &progress };
    let arguments = serde_json::value::to_raw_value(
        &json!({"queries": [{"query": "backup retry"}, {"query": "backup retry", "max_tokens": 5000}]}),
    )
    .unwrap();
    let answer = bulk::run(&kb, bulk::queries(&arguments).unwrap(), &context).unwrap();
    let truncated: Vec<bool> = answer.results.iter().map(|item| item.outcome.as_ref().unwrap().truncated).collect();
    assert_eq!(truncated, [true, false]);
    assert_eq!(count.load(Ordering::Relaxed), 2);

    stop.store(true, Ordering::Relaxed);
    let answer = bulk::run(&kb, bulk::queries(&arguments).unwrap(), &context).unwrap();
    assert_eq!(answer.results.len(), 0);
}

#[test]
fn the_items_of_a_bulk_call_come_as_a_list_or_as_the_text_of_one() {
    let read = |json: &str| {
        let raw: Box<RawValue> = serde_json::from_str(json).unwrap();
        bulk::queries(&raw).map(|items| items.iter().map(|item| item.get().to_owned()).collect::<Vec<_>>())
    };
    assert_eq!(read(r#"{"queries": [{"query": "a",  "k": 1.0}, 5]}"#).unwrap(), [r#"{"query": "a",  "k": 1.0}"#, "5"]);
    assert_eq!(read(r#"{"queries": "[{\"query\": \"a\"}]"}"#).unwrap(), [r#"{"query":"a"}"#]);
    for (json, field) in [
        ("{}", "queries"),
        (r#"{"queries": 5}"#, "queries"),
        (r#"{"queries": "five"}"#, "queries"),
        (r#"{"queries": [], "k": 5}"#, "k"),
        ("[]", "arguments"),
    ] {
        let error = read(json).unwrap_err();
        assert_eq!((error.code(), &error.details()["field"]), ("invalid_input", &json!(field)), "{json}");
    }
}

#[test]
fn a_budget_is_the_callers_else_the_default_and_never_more_than_the_most() {
    let of = |default, most, asked| Tokens { default, most }.of(asked);
    assert_eq!(of(None, None, None), None);
    assert_eq!(of(Some(20), None, None), Some(20));
    assert_eq!(of(Some(20), None, Some(50)), Some(50));
    assert_eq!(of(Some(20), Some(30), Some(50)), Some(30));
    assert_eq!(of(Some(20), Some(10), None), Some(10));
}

#[test]
fn compact_keeps_strings_as_they_are() {
    assert_eq!(compact("{ \"a b\" : [ 1,\n 2 ], \"c \\\" d\": \" \\\\\" }"), "{\"a b\":[1,2],\"c \\\" d\":\" \\\\\"}");
}
