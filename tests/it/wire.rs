//! What the program really writes, held against the published schemas.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use jsonschema::{Registry, Validator};
use kebab_lite::wire::SCHEMAS;
use serde_json::{Value, json};

use crate::harness::Dir;
use crate::http::Http;

/// The schemas, made strict: a field that a schema does not describe is an error here, though readers must ignore it.
pub struct Schemas {
    registry: Registry<'static>,
}

const BASE: &str = "https://schemas.invalid/v1/";

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/wire-schema/v1")
}

fn files() -> Vec<(String, Value)> {
    let entries = std::fs::read_dir(folder()).unwrap().map(|entry| entry.unwrap().path());
    let schemas = entries.filter(|path| path.extension().is_some_and(|extension| extension == "json"));
    schemas
        .map(|path| {
            let name = path.file_name().unwrap().to_str().unwrap().to_owned();
            (name, serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap())
        })
        .collect()
}

impl Schemas {
    pub fn load() -> Schemas {
        let mut registry = Registry::new();
        for (name, mut schema) in files() {
            let branches = branches(&schema);
            make_strict(&mut schema, "#", &branches);
            registry = registry.add(format!("{BASE}{name}"), schema).unwrap();
        }
        Schemas { registry: registry.prepare().unwrap() }
    }

    fn validator(&self, shape: &str) -> Validator {
        let name = shape.strip_suffix(".v1").unwrap_or_else(|| panic!("no version in {shape:?}"));
        let schema = json!({"$ref": format!("{BASE}{name}.schema.json")});
        let options = jsonschema::options().with_registry(&self.registry).should_validate_formats(true);
        options.build(&schema).unwrap()
    }

    /// The value is of the shape it says it is, and of the one expected.
    #[track_caller]
    pub fn check(&self, value: &Value, shape: &str) {
        assert_eq!(value["schema_version"], shape, "{value}");
        let validator = self.validator(shape);
        let errors: Vec<String> =
            validator.iter_errors(value).map(|error| format!("{}: {error}", error.instance_path())).collect();
        assert!(errors.is_empty(), "{shape}: {errors:#?}\n{value:#}");
    }
}

/// Schemas that describe a part of an object only, by their place: what `oneOf` and its kind refer to.
fn branches(schema: &Value) -> BTreeSet<String> {
    fn visit(schema: &Value, inside: bool, found: &mut BTreeSet<String>) {
        match schema {
            Value::Object(map) => {
                for (key, value) in map {
                    let applicator = matches!(key.as_str(), "oneOf" | "anyOf" | "allOf" | "if" | "then" | "else");
                    if inside && key == "$ref" {
                        found.extend(value.as_str().map(str::to_owned));
                    }
                    visit(value, applicator || (inside && key != "properties"), found);
                }
            }
            Value::Array(items) => items.iter().for_each(|item| visit(item, inside, found)),
            _ => {}
        }
    }
    let mut found = BTreeSet::new();
    visit(schema, false, &mut found);
    found
}

fn make_strict(schema: &mut Value, place: &str, branches: &BTreeSet<String>) {
    match schema {
        Value::Object(map) => {
            let open = map.get("additionalProperties") == Some(&Value::Bool(true));
            if open && map.contains_key("properties") {
                map.remove("additionalProperties");
                let partial = branches.contains(place)
                    || ["/oneOf", "/anyOf", "/allOf", "/if", "/then"].iter().any(|part| place.contains(part));
                if !partial {
                    map.insert("unevaluatedProperties".into(), Value::Bool(false));
                }
            }
            map.iter_mut().for_each(|(key, value)| make_strict(value, &format!("{place}/{key}"), branches));
        }
        Value::Array(items) => items.iter_mut().for_each(|item| make_strict(item, place, branches)),
        _ => {}
    }
}

#[test]
fn every_shape_has_a_schema_and_every_schema_a_shape() {
    let mut names: Vec<String> = files().into_iter().map(|(name, _)| name).collect();
    names.sort();
    let mut expected: Vec<String> =
        SCHEMAS.iter().map(|shape| format!("{}.schema.json", shape.strip_suffix(".v1").unwrap())).collect();
    expected.push("citation.schema.json".into());
    expected.sort();
    assert_eq!(names, expected);
    for (name, schema) in files() {
        assert_eq!(schema["$id"], name.as_str());
        jsonschema::meta::validate(&schema).unwrap_or_else(|error| panic!("{name}: {error}"));
    }
    let schemas = Schemas::load();
    SCHEMAS.iter().for_each(|shape| drop(schemas.validator(shape)));
}

#[test]
fn the_strict_schemas_refuse_what_they_do_not_know() {
    let schemas = Schemas::load();
    let dir = Dir::indexed(&[("a.md", "One apple.\n"), ("b.rs", "fn apple() {}\n")]);
    let response = dir.cmd(["search", "apple", "--json", "--trace"]).ok().json();
    let validator = schemas.validator("search_response.v1");
    assert!(validator.is_valid(&response));
    for place in ["", "/hits/0", "/hits/0/citation", "/hits/1/citation", "/hits/0/retrieval", "/trace", "/trace/timing"]
    {
        let mut spoilt = response.clone();
        spoilt.pointer_mut(place).unwrap()["surprise"] = json!(1);
        assert!(!validator.is_valid(&spoilt), "an unknown field at {place:?}");
    }
    for place in ["/truncated", "/hits/0/score", "/hits/0/citation/uri", "/hits/0/doc_id", "/trace/lexical/0/rank"] {
        let mut spoilt = response.clone();
        *spoilt.pointer_mut(place).unwrap() = json!({});
        assert!(!validator.is_valid(&spoilt), "a wrong type at {place:?}");
    }
}

fn corpus() -> Dir {
    let dir = Dir::new();
    dir.write("a.md", "---\ntags: [x]\n---\n\n# Apples\n\nOne apple.\n");
    dir.write("code/b.rs", "/// One apple.\nfn eat() {}\n");
    dir.write("c.html", "<h1>Apples</h1><p>One apple.</p>");
    dir.write("d.txt", "One apple.\n");
    dir.write("e.bin", b"\0\0\0");
    dir.write("broken.txt", [b"\xEF\xBB\xBF".as_slice(), b"One apple \xff\xfe."].concat());
    std::fs::create_dir_all(dir.root().join("code/.git")).unwrap();
    dir
}

#[test]
fn answers_have_their_published_shapes() {
    let schemas = Schemas::load();
    let dir = corpus();
    schemas.check(&dir.cmd(["schema", "--json"]).ok().json(), "schema.v1");
    schemas.check(&dir.cmd(["doctor", "--json"]).run().code(3).json(), "doctor.v1");

    let ingest = dir.cmd(["ingest", "--json", "--list"]).ok();
    let report = ingest.json();
    schemas.check(&report, "ingest_report.v1");
    assert_eq!((&report["new"], &report["errors"]), (&json!(4), &json!(1)), "{report}");
    let kinds: BTreeSet<String> = ingest
        .stderr_json()
        .iter()
        .inspect(|event| schemas.check(event, "ingest_progress.v1"))
        .map(|event| event["kind"].as_str().unwrap().to_owned())
        .collect();
    let expected = ["asset_chunked", "asset_finished", "asset_started", "completed", "scan_completed", "scan_started"];
    assert_eq!(kinds.into_iter().collect::<Vec<_>>(), expected);
    let items = report["items"].as_array().unwrap().iter();
    items.filter(|item| !item["error"].is_null()).for_each(|item| schemas.check(&item["error"], "error.v1"));
    std::fs::remove_file(dir.root().join("d.txt")).unwrap();
    for flags in [&["--list"][..], &["--force"], &["a.md"]] {
        schemas.check(&dir.cmd(["ingest", "--json", "-q"].iter().chain(flags)).ok().json(), "ingest_report.v1");
    }

    schemas.check(&dir.cmd(["schema", "--json"]).ok().json(), "schema.v1");
    schemas.check(&dir.cmd(["doctor", "--json"]).ok().json(), "doctor.v1");
    for flags in [
        &["apple"][..],
        &["apple", "--mode", "lexical"],
        &["apple", "--trace"],
        &["apple", "--k", "1"],
        &["apple", "--max-tokens", "1"],
        &["apple", "--drop-weak", "--snippet-chars", "3"],
        &["xylophone", "--trace"],
        &["\"apple one\""],
        &["++"],
    ] {
        let response = dir.cmd(["search", "--json"].iter().chain(flags)).ok().json();
        schemas.check(&response, "search_response.v1");
        response["hits"].as_array().unwrap().iter().for_each(|hit| schemas.check(hit, "search_hit.v1"));
    }
}

#[test]
fn a_server_tells_where_it_is_in_its_published_shape() {
    let http = Http::start(&corpus(), &[]);
    Schemas::load().check(&http.status, "server_status.v1");
}

#[test]
fn a_stopped_ingest_has_its_published_shapes() {
    let schemas = Schemas::load();
    let dir = Dir::new();
    for file in 0..2000 {
        dir.write(&format!("{file}.md"), format!("# Apple {file}\n\n{}\n", "Some words. ".repeat(100)));
    }
    let output = dir.cmd(["ingest", "--json"]).run_while(|child| {
        while !dir.data().join("kebab.sqlite").exists() {
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        if cfg!(unix) {
            std::process::Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
        }
    });
    schemas.check(&output.json(), "ingest_report.v1");
    let events = output.stderr_json();
    events.iter().for_each(|event| schemas.check(event, "ingest_progress.v1"));
    assert_eq!(events.last().unwrap()["kind"], if cfg!(unix) { "aborted" } else { "completed" });
}

#[test]
fn bulk_answers_have_their_published_shapes() {
    let schemas = Schemas::load();
    let dir = corpus();
    dir.cmd(["ingest"]).ok();
    let lines = [
        json!({"query": "apple"}),
        json!({"query": "apple", "k": 0}),
        json!({"query": "apple", "mode": "vector"}),
        json!({"query": "apple", "cursor": "x"}),
        json!({"query": "xylophone", "trace": true}),
        json!({"no": "query"}),
    ];
    let input: String = lines.iter().map(|line| format!("{line}\n")).collect();
    let output = dir.cmd(["search", "--bulk", "--json"]).stdin(input).ok();
    let items = output.json_lines();
    for item in &items {
        schemas.check(item, "bulk_search_item.v1");
        let inner = if item["error"].is_null() { ("response", "search_response.v1") } else { ("error", "error.v1") };
        schemas.check(&item[inner.0], inner.1);
    }
    let codes: Vec<&str> = items.iter().map(|item| item["error"]["code"].as_str().unwrap_or("")).collect();
    assert_eq!(codes, ["", "invalid_input", "model_unreachable", "stale_cursor", "", "invalid_input"]);
    schemas.check(&output.stderr_json()[0], "bulk_search_summary.v1");
    let empty = dir.cmd(["search", "--bulk", "--json"]).ok();
    schemas.check(&empty.stderr_json()[0], "bulk_search_summary.v1");
}

#[test]
fn every_error_has_its_published_shape() {
    let schemas = Schemas::load();
    let dir = corpus();
    let mut codes = BTreeSet::new();
    let mut check = |dir: &Dir, args: &[&str]| {
        let output = dir.cmd(args.iter().copied().chain(["--json"])).stdin("not JSON").run();
        let error = output.error();
        schemas.check(&error, "error.v1");
        let code = error["code"].as_str().unwrap().to_owned();
        output.code(if code == "readonly_mode" { 1 } else { 2 });
        codes.insert(code);
    };
    check(&dir, &["search", "apple"]);
    dir.cmd(["ingest"]).ok();
    check(&dir, &["search", "apple", "--k", "0"]);
    check(&dir, &["search", "apple", "--cursor", "x"]);
    check(&dir, &["search", "apple", "--mode", "vector"]);
    check(&dir, &["search", "--bulk"]);
    check(&dir, &["ingest", "--readonly"]);
    check(&dir, &["ingest", "../home"]);
    check(&dir, &["schema", "--config", "none.toml"]);
    check(&dir, &["serach"]);
    check(&dir, &[]);
    {
        let lock = std::fs::File::options().write(true).open(dir.data().join("writer.lock")).unwrap();
        lock.lock().unwrap();
        check(&dir, &["ingest", "-q", "--wait", "0"]);
    }
    let database = dir.data().join("kebab.sqlite");
    std::fs::write(&database, "This is not a database, and long enough to see that.").unwrap();
    check(&dir, &["search", "apple"]);
    check(&dir, &["schema"]);
    check(&dir, &["ingest", "-q"]);
    std::fs::remove_file(&database).unwrap();
    std::fs::create_dir(&database).unwrap();
    check(&dir, &["search", "apple"]);
    dir.config("[search]\ndefault_k = 'many'\n");
    check(&dir, &["schema"]);
    let provoked = [
        "config_invalid",
        "config_not_found",
        "invalid_input",
        "io_error",
        "model_unreachable",
        "not_indexed",
        "readonly_mode",
        "stale_cursor",
        "store_busy",
        "store_corrupt",
    ];
    assert_eq!(codes.into_iter().collect::<Vec<_>>(), provoked);
}
