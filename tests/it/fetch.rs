//! `fetch`: what a citation names is what is in the file, whatever the file is written in; and every way it fails.

use serde_json::{Value, json};

use crate::harness::{Dir, Output};

const GUIDE: &str =
    "# Guide\n\nHow to begin.\n\n## Backups\n\nCopy the store every night.\n\n## Restore\n\nCopy it back.\n";

fn fetch(dir: &Dir, args: &[&str]) -> Output {
    dir.cmd(["fetch", "--json"].iter().chain(args)).run()
}

fn fetched(dir: &Dir, args: &[&str]) -> Value {
    fetch(dir, args).code(0).json()
}

#[track_caller]
fn refused(dir: &Dir, args: &[&str]) -> (String, String) {
    let error = fetch(dir, args).code(2).stdout("").error();
    (error["code"].as_str().unwrap().to_owned(), error["message"].as_str().unwrap().to_owned())
}

fn first_hit(dir: &Dir, query: &str) -> Value {
    let output = dir.cmd(["search", "--json", "--mode", "lexical", query]).ok();
    match output.json()["hits"].get(0) {
        Some(hit) => hit.clone(),
        None => output.fail("expected a hit"),
    }
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap()
}

fn utf16(text: &str) -> Vec<u8> {
    [0xFEFF].into_iter().chain(text.encode_utf16()).flat_map(u16::to_le_bytes).collect()
}

/// Every file holds `quince` once, and lines above it that a wrong count would fall into.
fn files() -> Vec<(&'static str, Vec<u8>)> {
    let body = "# Fruit\n\nApples first.\n\n## Rare ones\n\nA quince is hard\nand sour.\n";
    let front = format!("---\ntitle: On fruit\ntags: [a, b]\n---\n{body}");
    let html = "<!doctype html>\n<html><head><title>T</title></head>\n<body>\n<nav>menu</nav>\n<h1>Fruit</h1>\n\
                <p>Apples &amp; pears.</p>\n<p>A <b>quince</b> is hard\n  and sour.</p>\n</body></html>\n";
    let code = "use std::io;\n\n/// Not ripe.\nfn apple() -> u32 {\n    1\n}\n\nfn quince() -> u32 {\n    let hard = 2;\n    hard\n}\n";
    vec![
        ("lf.md", body.into()),
        ("crlf.md", body.replace('\n', "\r\n").into()),
        ("front.md", front.clone().into()),
        ("front-crlf.md", front.replace('\n', "\r\n").into()),
        ("bom.md", format!("\u{feff}{front}").into()),
        ("utf16.md", utf16(&body.replace("sour", "시다 😀 sour"))),
        ("cp949.md", b"# \xC7\xD1\xB1\xDB \xB9\xAE\xBC\xAD\r\n\r\n\xC7\xD1\xB1\xDB\r\n\r\n## \xB9\xAE\xBC\xAD\r\n\r\nA quince \xC7\xD1\xB1\xDB.\r\n".to_vec()),
        ("latin1.txt", b"Une pomme, d\xE9j\xE0 m\xFBre.\n\nEt un quince, tr\xE8s dur.".to_vec()),
        ("page.html", html.into()),
        ("fruit.rs", code.into()),
        ("no-end.txt", b"One line with a quince".to_vec()),
    ]
}

#[test]
fn a_citation_leads_to_the_lines_that_hold_the_snippet() {
    for (path, bytes) in files() {
        let dir = Dir::new();
        dir.write(path, &bytes);
        dir.cmd(["ingest"]).ok();
        let hit = first_hit(&dir, "quince");
        let uri = text(&hit["citation"]["uri"]);
        let span = fetched(&dir, &[uri]);
        assert_eq!((&span["kind"], &span["truncated"], &span["stale"]), (&json!("span"), &json!(false), &json!(false)));
        assert_eq!(span["doc_path"], path);
        // Markup is gone from what a hit shows of HTML.
        let shown = text(&span["text"]).replace("<b>", "").replace("</b>", "").replace("&amp;", "&");
        let snippet = text(&hit["snippet"]);
        assert!(snippet.contains("quince"), "{path}: {snippet}");
        for line in snippet.lines().map(str::trim) {
            assert!(shown.contains(line), "{path}: {line:?} is not in {shown:?}");
        }
        let range = uri.rsplit_once("#L").unwrap().1.replace('L', "");
        assert_eq!(fetched(&dir, &[path, "--lines", &range]), span, "{path}");
    }
}

#[test]
fn byte_spans_are_those_of_the_file_on_disk() {
    for (path, bytes) in files() {
        let dir = Dir::new();
        dir.write(path, &bytes);
        dir.cmd(["ingest"]).ok();
        let hit = first_hit(&dir, "quince");
        let fetched = fetched(&dir, &[text(&hit["chunk_id"])]);
        let chunk = &fetched["chunk"];
        assert_eq!((&fetched["kind"], &chunk["chunk_id"]), (&json!("chunk"), &hit["chunk_id"]), "{path}");
        let span = &chunk["source_spans"][0];
        let at = |name: &str| span[name].as_u64().unwrap() as usize;
        let on_disk = &bytes[at("byte_start")..at("byte_end")];
        let own = text(&chunk["text"]);
        match path {
            "utf16.md" => assert_eq!(on_disk, &utf16(own)[2..]),
            "cp949.md" => assert!(on_disk.ends_with(b"A quince \xC7\xD1\xB1\xDB."), "{on_disk:x?}"),
            "latin1.txt" => assert!(on_disk.ends_with(b"tr\xE8s dur."), "{on_disk:x?}"),
            _ => assert_eq!(on_disk, own.as_bytes(), "{path}"),
        }
        let lines = bytes[..at("byte_start")].iter().filter(|b| **b == b'\n').count();
        assert_eq!(at("line_start"), lines + 1, "{path}");
    }
}

#[test]
fn a_document_comes_whole_with_what_is_known_of_it() {
    let dir = Dir::new();
    let source = "---\ntitle: The guide\ntags: [ops]\nlang: en\n---\r\nText, 한글.\n";
    dir.write("docs/guide.md", source);
    dir.cmd(["ingest"]).ok();
    let mut whole = fetched(&dir, &["docs/guide.md"]);
    assert_eq!((&whole["kind"], &whole["text"]), (&json!("doc"), &json!(source)));
    let id = whole["doc_id"].clone();
    let doc = whole["doc"].take();
    for (field, expected) in [
        ("schema_version", json!("doc_summary.v1")),
        ("doc_id", id.clone()),
        ("doc_path", json!("docs/guide.md")),
        ("title", json!("The guide")),
        ("tags", json!(["ops"])),
        ("lang", json!("en")),
        ("trust_level", json!("primary")),
        ("source_id", json!("workspace")),
        ("byte_len", json!(source.len())),
        ("chunk_count", json!(1)),
    ] {
        assert_eq!(doc[field], expected, "{field}");
    }
    let absolute = dir.root().join("docs/guide.md");
    for name in [text(&id), &format!("kebab://doc/{}", text(&id)), "./docs/guide.md", absolute.to_str().unwrap()] {
        assert_eq!(fetched(&dir, &[name])["text"], source, "{name}");
    }
}

#[test]
fn people_and_pipes_get_the_text_alone() {
    let dir = Dir::indexed(&[("guide.md", GUIDE), ("raw.txt", "red \u{1b}[31m\r\nno end")]);
    dir.cmd(["fetch", "guide.md"]).ok().stdout(GUIDE).stderr("");
    dir.cmd(["fetch", "guide.md#L5-L7"]).ok().stdout("## Backups\n\nCopy the store every night.\n");
    dir.cmd(["fetch", "guide.md", "--lines=11-"]).ok().stdout("Copy it back.\n");
    dir.cmd(["fetch", "guide.md", "--lines=-1"]).ok().stdout("# Guide\n");
    dir.cmd(["fetch", "raw.txt"]).ok().stdout("red \u{1b}[31m\r\nno end").stderr("");
    dir.cmd(["fetch", "guide.md", "--max-tokens", "3"])
        .ok()
        .stdout("# Guide\n\n")
        .stderr("shortened to fit the token limit\n");
    dir.write("raw.txt", "changed");
    dir.cmd(["fetch", "raw.txt#L2"]).ok().stdout("no end").stderr("raw.txt is stale; run `kebab-lite ingest`\n");
    dir.cmd(["fetch", "raw.txt", "-q"]).ok().stderr("");
}

/// A document of seven chunks, each a paragraph with a number.
fn numbered() -> Dir {
    let filler = "words and more words about one and the same thing ".repeat(20);
    let text: String = (1..=7).map(|n| format!("## Part {n}\n\nNumber{n} {filler}\n\n")).collect();
    Dir::indexed(&[("long.md", &text)])
}

/// The numbers of the chunks before, of the chunk, and of those after.
fn numbers(result: &Value) -> (Vec<u32>, u32, Vec<u32>) {
    let number = |chunk: &Value| {
        let text = text(&chunk["text"]);
        text.split_once("Part ").and_then(|(_, rest)| rest[..1].parse().ok()).unwrap_or_else(|| panic!("{text}"))
    };
    let list = |name: &str| result[name].as_array().unwrap().iter().map(number).collect();
    (list("context_before"), number(&result["chunk"]), list("context_after"))
}

#[test]
fn neighbours_come_in_the_order_of_the_document() {
    let dir = numbered();
    let id = |n: u32| text(&first_hit(&dir, &format!("Number{n}"))["chunk_id"]).to_owned();
    let around = |n: u32, context: &str| numbers(&fetched(&dir, &[&id(n), "--context", context]));
    assert_eq!(around(4, "0"), (vec![], 4, vec![]));
    assert_eq!(around(4, "2"), (vec![2, 3], 4, vec![5, 6]));
    assert_eq!(around(1, "2"), (vec![], 1, vec![2, 3]));
    assert_eq!(around(7, "20"), (vec![1, 2, 3, 4, 5, 6], 7, vec![]));
    let output = dir.cmd(["fetch", &format!("kebab://chunk/{}", id(2)), "--context=1"]).ok();
    let heads: Vec<&str> = output.stdout.lines().filter(|line| line.starts_with("## ")).collect();
    assert_eq!(heads, ["## Part 1", "## Part 2", "## Part 3"]);
}

#[test]
fn a_budget_takes_the_chunk_first_and_then_its_nearest_neighbours() {
    let dir = numbered();
    let hit = first_hit(&dir, "Number4");
    let id = text(&hit["chunk_id"]);
    let with = |tokens: &str| fetched(&dir, &[id, "--context", "3", "--max-tokens", tokens]);
    let cases = [
        ("10000", vec![1, 2, 3], vec![5, 6, 7], false),
        ("800", vec![3], vec![5], true),
        ("300", vec![], vec![], true),
    ];
    for (tokens, before, after, truncated) in cases {
        let result = with(tokens);
        assert_eq!((numbers(&result), &result["truncated"]), ((before, 4, after), &json!(truncated)), "{tokens}");
    }
    let cut = with("2");
    assert_eq!((text(&cut["chunk"]["text"]), &cut["truncated"]), ("## Part ", &json!(true)));
}

#[test]
fn a_budget_cuts_between_lines_and_says_where_it_ended() {
    let dir = Dir::indexed(&[("lines.txt", "한글 한 줄\n둘째 줄\n셋째 줄\n")]);
    let span = fetched(&dir, &["lines.txt", "--lines", "2-3", "--max-tokens", "2"]);
    assert_eq!(
        (&span["text"], &span["line_start"], &span["line_end"], &span["effective_end"], &span["truncated"]),
        (&json!("둘째 줄\n"), &json!(2), &json!(3), &json!(2), &json!(true))
    );
    let beyond = fetched(&dir, &["lines.txt#L3-L99"]);
    assert_eq!((&beyond["line_end"], &beyond["effective_end"]), (&json!(99), &json!(3)));
    assert_eq!((&beyond["text"], &beyond["truncated"]), (&json!("셋째 줄\n"), &json!(false)));
}

#[test]
fn what_is_not_there_is_said_by_name() {
    let dir = Dir::new();
    assert_eq!(refused(&dir, &["a.md"]).0, "not_indexed");
    dir.write("a.md", "one\ntwo\n");
    dir.cmd(["ingest"]).ok();
    let none = "00000000000000000000000000000000";
    let is = |args: &[&str], code: &str, message: &str| {
        assert_eq!(refused(&dir, args), (code.to_owned(), message.to_owned()), "{args:?}");
    };
    is(&["b.md"], "doc_not_found", "no document has the path b.md");
    is(&["b.md#L1-L2"], "doc_not_found", "no document has the path b.md");
    is(&["../a.md"], "doc_not_found", "no document has the path ../a.md");
    is(&[none], "doc_not_found", &format!("no document has the id {none}"));
    is(&[&format!("kebab://doc/{none}")], "doc_not_found", &format!("no document has the id {none}"));
    is(&[&format!("kebab://chunk/{none}")], "chunk_not_found", &format!("no chunk has the id {none}"));
    is(&["a.md#L3"], "invalid_input", "line_start: line 3 is behind the end: the document has 2 lines");
    is(&["a.md", "--lines", "2-1"], "invalid_input", "line_end: line 1 comes before line 2");
    is(
        &["a.md", "--lines", "x"],
        "invalid_input",
        "line_start: a whole number from 1 to 4294967295 is needed, found \"x\"",
    );
    is(&["a.md", "--context", "1"], "invalid_input", "context: only a chunk has neighbours");
    let chunk = first_hit(&dir, "two")["chunk_id"].clone();
    let span = format!("span of {}: a chunk is fetched whole", text(&chunk));
    is(&[text(&chunk), "--lines", "1"], "span_not_supported", &span);
    let error = fetch(&dir, &[text(&chunk), "--lines", "1"]).error();
    assert_eq!(error["details"], json!({"id": chunk}));
}

#[test]
fn a_path_in_two_sources_needs_its_source() {
    let dir = Dir::new();
    dir.write("a.md", "in the main root\n");
    dir.write("../other/a.md", "in the other\n");
    dir.config("[[workspace.sources]]\nid = \"other\"\nroot = \"../../../other\"\n");
    let root = dir.root();
    let run = |args: &[&str]| dir.cmd(["--root", root.to_str().unwrap()].iter().chain(args)).run();
    run(&["ingest"]).code(0);
    let error = run(&["fetch", "a.md", "--json"]).code(2).error();
    assert_eq!(
        (&error["details"]["field"], &error["message"]),
        (&json!("source"), &json!("source: a.md is in several: workspace, other"))
    );
    run(&["fetch", "a.md", "--source", "other"]).code(0).stdout("in the other\n");
    run(&["fetch", "a.md#L1", "--source=workspace"]).code(0).stdout("in the main root\n");
    let absolute = dir.root().parent().unwrap().join("other/a.md");
    run(&["fetch", absolute.to_str().unwrap()]).code(0).stdout("in the other\n");
    run(&["fetch", "a.md", "--source", "third"]).code(2);
}
