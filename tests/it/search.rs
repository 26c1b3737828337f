//! What a search finds and cites, and which of it the filters leave.

use serde_json::{Value, json};

use crate::harness::{Cmd, Dir};

/// `search QUERY FLAGS --json`, the flags separated by spaces.
pub fn search(dir: &Dir, query: &str, flags: &str) -> Cmd {
    let flags = flags.split(' ').filter(|flag| !flag.is_empty());
    dir.cmd(["search"].into_iter().chain(flags).chain(["--json", "--", query]))
}

/// Paths of the hits, sorted.
#[track_caller]
pub fn found(dir: &Dir, query: &str, flags: &str) -> Vec<String> {
    let mut paths = search(dir, query, flags).ok().paths();
    paths.sort();
    paths
}

/// Items of a bulk call, one query each.
#[track_caller]
pub fn bulk(dir: &Dir, queries: &[Value]) -> Vec<Value> {
    let lines: String = queries.iter().map(|query| format!("{query}\n")).collect();
    let items = dir.cmd(["search", "--bulk", "--json"]).stdin(lines).ok().json_lines();
    assert_eq!(items.len(), queries.len());
    items
}

pub fn hits(response: &Value) -> Vec<Value> {
    response["hits"].as_array().unwrap_or_else(|| panic!("no hits in {response}")).clone()
}

pub fn paths(response: &Value) -> Vec<String> {
    hits(response).iter().map(|hit| hit["doc_path"].as_str().unwrap().to_owned()).collect()
}

/// For each query, in one bulk call, which of the paths are found.
#[track_caller]
fn assert_found(dir: &Dir, cases: &[(&str, &[&str])]) {
    let queries: Vec<Value> = cases.iter().map(|(query, _)| json!({"query": query, "k": 100})).collect();
    for (item, (query, expected)) in bulk(dir, &queries).iter().zip(cases) {
        let mut found = paths(&item["response"]);
        found.sort();
        assert_eq!(found, *expected, "{query:?}");
    }
}

#[test]
fn forms_of_a_word_find_each_other() {
    let dir = Dir::indexed(&[
        ("ko-bare.md", "색인과 검색\n"),
        ("ko-object.md", "문서 검색을 한다\n"),
        ("ko-verb.md", "빨리 검색하는 방법\n"),
        ("en-one.md", "a kernel runs\n"),
        ("en-many.md", "two kernels running\n"),
        ("camel.md", "call getUserName here\n"),
        ("snake.md", "call get_user_name here\n"),
        ("apart.md", "the user has a name\n"),
        ("glued-ko.md", "재시작server 절차\n"),
        ("glued-ja.md", "重跑gen后 确认\n"),
        ("mcp.md", "MCP를 쓴다\n"),
        ("full-width.md", "ＫＥＢＡＢ 설정\n"),
        ("version.md", "released v1.0.21 today\n"),
        ("caf\u{e9}.md", "un caf\u{e9} noir\n"),
    ]);
    assert_found(
        &dir,
        &[
            ("검색", &["ko-bare.md", "ko-object.md", "ko-verb.md"]),
            ("검색을", &["ko-bare.md", "ko-object.md", "ko-verb.md"]),
            ("검색하는", &["ko-bare.md", "ko-object.md", "ko-verb.md"]),
            ("검색은 어떻게 하나요?", &["ko-bare.md", "ko-object.md", "ko-verb.md"]),
            ("kernel", &["en-many.md", "en-one.md"]),
            ("Kernels", &["en-many.md", "en-one.md"]),
            ("KERNEL'S", &["en-many.md", "en-one.md"]),
            ("getUserName", &["apart.md", "camel.md", "snake.md"]),
            ("get_user_name", &["apart.md", "camel.md", "snake.md"]),
            ("user name", &["apart.md", "camel.md", "snake.md"]),
            ("getusername", &["camel.md", "snake.md"]),
            ("server", &["glued-ko.md"]),
            ("재시작", &["glued-ko.md"]),
            ("재시작server", &["glued-ko.md"]),
            ("gen", &["glued-ja.md"]),
            ("重跑", &["glued-ja.md"]),
            ("后", &["glued-ja.md"]),
            ("mcp", &["mcp.md"]),
            ("MCP는", &["mcp.md"]),
            ("kebab", &["full-width.md"]),
            ("1.0.21", &["version.md"]),
            ("v1.0.21", &["version.md"]),
            ("cafe\u{301}", &["caf\u{e9}.md"]),
            ("CAF\u{c9}", &["caf\u{e9}.md"]),
            ("xylophone", &[]),
        ],
    );
}

#[test]
fn the_text_that_holds_the_words_together_comes_first() {
    let dir = Dir::indexed(&[
        ("name.md", "A name is a name.\n"),
        ("user.md", "The user is here.\n"),
        ("whole.md", "Call getUserName for it.\n"),
        ("ko.md", "저장소 전략을 정한다.\n"),
        ("ko-part.md", "전략 회의\n"),
        ("ko-other.md", "저장 공간\n"),
    ]);
    assert_eq!(search(&dir, "getUserName", "").ok().paths()[0], "whole.md");
    assert_eq!(search(&dir, "저장소 전략은 무엇인가요?", "").ok().paths()[0], "ko.md");
}

#[test]
fn one_character_is_enough() {
    let dir = Dir::indexed(&[
        ("han.md", "東京都の地図\n"),
        ("han-end.md", "平安京\n"),
        ("han-other.md", "大阪市\n"),
        ("flower.md", "꽃을 산다\n"),
        ("flower-alone.md", "이 꽃 참 좋다\n"),
        ("no-flower.md", "나무를 산다\n"),
        ("letter.md", "vitamin c\n"),
    ]);
    assert_found(
        &dir,
        &[
            ("京", &["han-end.md", "han.md"]),
            ("地", &["han.md"]),
            ("꽃", &["flower-alone.md", "flower.md"]),
            ("c", &["letter.md"]),
            ("阪", &["han-other.md"]),
            ("鯨", &[]),
        ],
    );
}

#[test]
fn decomposed_names_and_texts_are_one_with_composed_ones() {
    // "한글" and "é" taken apart, as some systems store names.
    let name = "\u{1112}\u{1161}\u{11ab}\u{1100}\u{1173}\u{11af}.md";
    let dir = Dir::indexed(&[
        (name, "온도 기록\n"),
        ("b.md", "\u{1100}\u{1165}\u{11b7}\u{1109}\u{1162}\u{11a8} 기록과 re\u{301}sume\u{301}\n"),
    ]);
    assert_found(&dir, &[("한글", &["한글.md"]), ("검색", &["b.md"]), ("résumé", &["b.md"]), ("온도", &["한글.md"])]);
    assert_eq!(found(&dir, "기록", "--path-glob 한글.md"), ["한글.md"]);
    let hit = search(&dir, "온도", "").ok().json()["hits"][0].clone();
    assert_eq!((&hit["citation"]["path"], &hit["stale"]), (&json!("한글.md"), &json!(false)));
}

#[test]
fn quoted_words_stand_next_to_each_other() {
    let dir = Dir::indexed(&[
        ("exact.md", "Then shut down the daemon.\n"),
        ("order.md", "The daemon is down; shut the door.\n"),
        ("version.md", "Fixed in 1.0.21 at last.\n"),
        ("versions.md", "Fixed in 1.0.2, then 21 more, and 11.0.21 too.\n"),
        ("ko.md", "저장소 전략을 적는다.\n"),
        ("ko-apart.md", "전략과 저장소를 적는다.\n"),
        ("lines.md", "shut\ndown the house\n"),
    ]);
    assert_found(
        &dir,
        &[
            ("\"shut down\"", &["exact.md", "lines.md"]),
            ("\"shut down the daemon\"", &["exact.md"]),
            ("\"SHUT Down\"", &["exact.md", "lines.md"]),
            ("\"the daemon\" \"shut down\"", &["exact.md"]),
            ("\"1.0.21\"", &["version.md"]),
            ("\"저장소 전략\"", &["ko.md"]),
            ("“shut down”", &["exact.md", "lines.md"]),
            ("\"down house\"", &[]),
            ("\"\" lines \"", &["lines.md"]),
        ],
    );
    // With words outside, the phrase leads and the rest follows.
    let all = search(&dir, "\"shut down\" daemon", "").ok().paths();
    assert_eq!(all[0], "exact.md");
    assert!(all.contains(&"order.md".to_owned()), "{all:?}");
    let none = search(&dir, "\"daemon house\"", "--mode lexical").ok().json();
    assert_eq!(
        none["hint"],
        "No passage holds the quoted words next to each other; search without the quotes to find them apart."
    );
}

#[test]
fn queries_without_a_word_are_taken_as_they_stand() {
    let dir = Dir::indexed(&[
        ("cpp.md", "Templates in C++ are long.\n"),
        ("arrow.md", "Use -> for a pointer.\n"),
        ("band.md", "We heard The Who play.\n"),
        ("emoji.md", "A 😀 face.\n"),
        ("plain.md", "Nothing of the kind.\n"),
    ]);
    assert_found(
        &dir,
        &[
            ("++", &["cpp.md"]),
            ("->", &["arrow.md"]),
            ("the who", &["band.md"]),
            ("😀", &["emoji.md"]),
            ("???", &[]),
            ("of the", &["plain.md"]),
        ],
    );
    assert_eq!(found(&dir, "the who", "--path-glob cpp.md"), [""; 0]);
}

/// Lines `first..=last` of a text with any line ends.
fn lines(text: &str, first: u64, last: u64) -> String {
    let lines: Vec<&str> = text.split('\n').map(|line| line.trim_end_matches('\r')).collect();
    lines[first as usize - 1..last as usize].join("\n")
}

fn squeezed(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Every hit's cited lines of the source hold the snippet, the word lies inside, and lines outside do not belong.
#[track_caller]
fn assert_cited(dir: &Dir, path: &str, source: &str, word: &str, line: u64) {
    let response = search(dir, word, &format!("--k 100 --path-glob {path}")).ok().json();
    let hits = hits(&response);
    assert!(!hits.is_empty(), "{word} in {path}");
    let holding = hits.iter().filter(|hit| hit["snippet"].as_str().unwrap().contains(word)).count();
    assert!(holding > 0, "{word} in {path}: {hits:?}");
    for hit in &hits {
        let citation = &hit["citation"];
        let number = |name: &str| citation[name].as_u64().unwrap();
        let (first, last) = match citation["kind"].as_str() {
            Some("code") => (number("line_start"), number("line_end")),
            _ => (number("start"), number("end")),
        };
        assert_eq!(citation["uri"], format!("{path}#L{first}-L{last}"));
        let cited = lines(source, first, last);
        let snippet = hit["snippet"].as_str().unwrap();
        assert!(
            squeezed(&cited).contains(&squeezed(snippet)),
            "{path}, lines {first} to {last}:\n{cited}\ndo not hold\n{snippet}"
        );
        if snippet.contains(word) {
            assert!((first..=last).contains(&line), "{word} is on line {line} of {path}, cited are {first} to {last}");
        }
    }
}

const FILLER: &str = "Filler that makes a section long enough to be one by itself, and a bit more of it. ";

/// A source whose word `needle` stands on a line that is found by looking.
fn with_needle(parts: &[&str]) -> (String, u64) {
    let text = parts.concat().replace("FILLER", &FILLER.repeat(12));
    let line = text.split('\n').position(|line| line.contains("needle")).unwrap() as u64 + 1;
    (text, line)
}

#[test]
fn citations_are_lines_of_the_file_on_disk() {
    let body = "# One\n\nFILLER\n\n# Two\n\nFILLER\n\nHere is the needle, at last.\n\nFILLER\n\n## Three\n\nFILLER\n";
    let yaml = "---\ntitle: Notes\ntags:\n  - a\n---\n";
    let toml = "+++\ntitle = \"Notes\"\n+++\n\n";
    let rst = "One\n===\n\nFILLER\n\nTwo\n---\n\nFILLER\n\n.. code::\n\n   the needle\n\nFILLER\n";
    let adoc = "= One\n\n== Two\n\nFILLER\n\n----\nthe needle\n----\n\n== Three\n\nFILLER\n";
    let org = "#+TITLE: One\n* Two\nFILLER\n** Three\nFILLER\n\nthe needle\n\n* Four\nFILLER\n";
    let code =
        "use a;\n\n/// FILLER\nfn one() {}\n\n/// FILLER\nfn two() {\n    needle();\n}\n\n/// FILLER\nfn three() {}\n";
    let text = "FILLER\n\nFILLER\n\nthe needle\n\nFILLER\n";
    let cases: &[(&str, &[&str])] = &[
        ("plain.md", &[body]),
        ("yaml.md", &[yaml, body]),
        ("toml.md", &[toml, body]),
        ("a.rst", &[rst]),
        ("a.adoc", &[adoc]),
        ("a.org", &[org]),
        ("a.rs", &[code]),
        ("a.txt", &[text]),
        ("none", &[text]),
    ];
    let dir = Dir::new();
    let mut expected: Vec<(String, String, u64)> = Vec::new();
    let mut add = |path: String, bytes: &[u8], text: &str, line: u64| {
        dir.write(&path, bytes);
        expected.push((path, text.to_owned(), line));
    };
    for (path, parts) in cases {
        let (text, line) = with_needle(parts);
        add((*path).to_owned(), text.as_bytes(), &text, line);
        let crlf = text.replace('\n', "\r\n");
        add(format!("crlf/{path}"), crlf.as_bytes(), &crlf, line);
        let bom = [b"\xEF\xBB\xBF", text.as_bytes()].concat();
        add(format!("bom/{path}"), &bom, &text, line);
        let utf16: Vec<u8> =
            b"\xFF\xFE".iter().copied().chain(text.encode_utf16().flat_map(u16::to_le_bytes)).collect();
        add(format!("utf16/{path}"), &utf16, &text, line);
    }
    // CP949: 한국어 문서 as KS X 1001 codes, among ASCII.
    let (korean, line) = with_needle(&[body]);
    let cp949: Vec<u8> = [b"\xC7\xD1\xB1\xB9\xBE\xEE \xB9\xAE\xBC\xAD\n", korean.as_bytes()].concat();
    add("cp949.md".to_owned(), &cp949, &format!("한국어 문서\n{korean}"), line + 1);
    dir.cmd(["ingest"]).ok();
    for (path, text, line) in &expected {
        assert_cited(&dir, path, text, "needle", *line);
    }
    assert_eq!(found(&dir, "한국어", ""), ["cp949.md"]);
}

#[test]
fn html_is_cited_by_its_lines_and_shown_as_text() {
    let filler = FILLER.repeat(12);
    let html = format!(
        "<!doctype html>\n<html>\n<head><title>Codes</title>\n<style>needle{{}}</style></head>\n<body>\n<h1>One</h1>\n\
         <p>{filler}</p>\n<h2>Two</h2>\n<p>Here the\n<b>needle</b> &amp; the thread.</p>\n<p>{filler}</p>\n</body></html>\n"
    );
    let dir = Dir::indexed(&[("a.html", &html)]);
    let hits = hits(&search(&dir, "needle", "").ok().json());
    assert_eq!(hits.len(), 1, "{hits:?}");
    let (hit, citation) = (&hits[0], &hits[0]["citation"]);
    let (first, last) = (citation["start"].as_u64().unwrap(), citation["end"].as_u64().unwrap());
    let cited = lines(&html, first, last);
    assert!(cited.contains("<b>needle</b>"), "{first} to {last}: {cited}");
    assert!((8..=9).contains(&first) && (10..=11).contains(&last), "{first} to {last}");
    let snippet = squeezed(hit["snippet"].as_str().unwrap());
    assert!(snippet.contains("Here the needle & the thread."), "{snippet}");
    assert_eq!(hit["heading_path"], json!(["One", "Two"]));
}

#[test]
fn html_within_markdown_is_shown_but_not_searched() {
    let page = "<!-- licence: needle -->\n# Tool\n\n<p align=\"center\">\n  <img src=\"logo.png\">\n</p>\n\nReads <kbd>Ctrl</kbd> \
                keys<br>fast.\n\n```html\n<div class=\"sample\">code</div>\n```\n";
    let rows: String = (0..120).map(|i| format!("<div class=\"row{i}\">\n  the text of cell {i}\n</div>\n")).collect();
    let long = format!("# Long\n\n```html\n{rows}```\n\nBelow it an <em>end</em>.\n");
    let dir = Dir::indexed(&[("a.md", page), ("long.md", &long)]);
    assert_found(
        &dir,
        &[("needle", &[]), ("align", &[]), ("logo", &[]), ("kbd", &[]), ("sample", &["a.md"]), ("ctrl", &["a.md"])],
    );
    let response = search(&dir, "keys", "").ok().json();
    let hit = &hits(&response)[0];
    assert_eq!(hit["snippet"], page.trim_start_matches("<!-- licence: needle -->\n").trim_end());
    assert_eq!((&hit["citation"]["start"], &hit["citation"]["end"]), (&json!(2), &json!(12)));
    assert_found(&dir, &[("\"ctrl keys\"", &["a.md"]), ("\"kbd ctrl\"", &[])]);
    // Code that goes on from one chunk to the next is still code.
    for row in ["row3", "row60", "row119"] {
        let response = search(&dir, row, "").ok().json();
        let hit = &hits(&response)[0];
        let snippet = hit["snippet"].as_str().unwrap();
        assert!(snippet.contains(&format!("<div class=\"{row}\">")), "{row}: {snippet}");
        let number = |name: &str| hit["citation"][name].as_u64().unwrap();
        let cited = squeezed(&lines(&long, number("start"), number("end")));
        assert!(cited.contains(&squeezed(snippet)), "{row}: {snippet} is not in {cited}");
    }
    let response = search(&dir, "below", "").ok().json();
    assert!(hits(&response)[0]["snippet"].as_str().unwrap().ends_with("Below it an <em>end</em>."), "{response}");
    let front = format!("# Page\n\n<img src=\"needle.png\" alt=\"needle needle\">\n\n{FILLER}\n\nThe needle itself.\n");
    let dir = Dir::indexed(&[("front.md", &front)]);
    let response = search(&dir, "needle", "--snippet-chars 60").ok().json();
    assert!(hits(&response)[0]["snippet"].as_str().unwrap().ends_with("The needle itself."), "{response}");
}

#[test]
fn an_index_of_nothing_says_so() {
    let dir = Dir::new();
    dir.write("a.bin", b"\0\0\0");
    let response = search(&dir, "anything", "--sync").ok().json();
    assert_eq!(hits(&response).len(), 0);
    let hint = response["hint"].as_str().unwrap();
    assert!(hint.starts_with("The index is empty: no file was found"), "{hint}");
}

#[test]
fn the_title_counts_wherever_it_comes_from() {
    let dir = Dir::indexed(&[
        ("front.md", "---\ntitle: Zebra crossing\n---\n\nSome words.\n"),
        ("heading.md", "# Giraffe house\n\nSome words.\n"),
        ("okapi-notes.md", "Some words.\n"),
        ("한글문서.md", "Some words.\n"),
    ]);
    assert_found(
        &dir,
        &[
            ("zebra", &["front.md"]),
            ("giraffe", &["heading.md"]),
            ("okapi", &["okapi-notes.md"]),
            ("한글문서", &["한글문서.md"]),
        ],
    );
}

/// One document of each kind, all about apples.
fn mixed() -> Dir {
    let dir = Dir::new();
    let red = "---\ntags: [Red, fruit]\nlang: en\ntrust_level: primary\n---\n\nOne apple.\n";
    dir.write("a/red.md", red);
    dir.write("a/b/green.md", "---\ntags: [green, fruit]\ntrust_level: secondary\n---\n\nOne apple.\n");
    dir.write("a/b/c/gen.md", "---\ntrust_level: generated\n---\n\nOne apple.\n");
    dir.write("ko.md", "---\nlang: ko\n---\n\n사과 apple 하나를 먹는다. 사과는 맛있다.\n");
    dir.write("page.html", "<p>One apple.</p>\n");
    dir.write("note.txt", "One apple.\n");
    dir.write("code/apple.rs", "/// One apple.\nfn eat() {}\n");
    dir.write("code/apple.py", "# One apple.\ndef eat():\n    pass\n");
    std::fs::create_dir_all(dir.root().join("code/.git")).unwrap();
    dir.cmd(["ingest"]).ok();
    dir
}

#[test]
fn filters_take_and_leave() {
    let dir = mixed();
    let all = [
        "a/b/c/gen.md",
        "a/b/green.md",
        "a/red.md",
        "code/apple.py",
        "code/apple.rs",
        "ko.md",
        "note.txt",
        "page.html",
    ];
    let markdown = ["a/b/c/gen.md", "a/b/green.md", "a/red.md", "ko.md"];
    let ids = search(&dir, "apple", "").ok().json();
    let id = |path: &str| {
        let hit = hits(&ids).into_iter().find(|hit| hit["doc_path"] == path).unwrap();
        hit["doc_id"].as_str().unwrap().to_owned()
    };
    let (red, note) = (id("a/red.md"), id("note.txt"));
    let cases: Vec<(Value, &[&str])> = vec![
        (json!({}), &all),
        (json!({"tag": ["red"]}), &["a/red.md"]),
        (json!({"tag": "RED"}), &["a/red.md"]),
        (json!({"tags": ["green", "red"]}), &["a/b/green.md", "a/red.md"]),
        (json!({"tag": ["fruit"], "exclude_tag": ["red"]}), &["a/b/green.md"]),
        (json!({"tag": ["no such"]}), &[]),
        (json!({"lang": "ko"}), &["ko.md"]),
        (json!({"lang": "KO"}), &["ko.md"]),
        (json!({"path_glob": "*.md"}), &["ko.md"]),
        (json!({"path_glob": "a/*.md"}), &["a/red.md"]),
        (json!({"path_glob": "a/*/*.md"}), &["a/b/green.md"]),
        (json!({"path_glob": "a/**"}), &["a/b/c/gen.md", "a/b/green.md", "a/red.md"]),
        (json!({"path_glob": "**/*.md"}), &markdown),
        (json!({"path_glob": "**/{red,green}.md"}), &["a/b/green.md", "a/red.md"]),
        (
            json!({"exclude_path_glob": "*"}),
            &["a/b/c/gen.md", "a/b/green.md", "a/red.md", "code/apple.py", "code/apple.rs"],
        ),
        (json!({"exclude_path_glob": "**"}), &[]),
        (json!({"exclude_path_glob": "a/**", "media": ["md"]}), &["ko.md"]),
        (json!({"trust_min": "generated"}), &all),
        (json!({"trust_min": "secondary", "path_glob": "a/**"}), &["a/b/green.md", "a/red.md"]),
        (json!({"trust_min": "primary", "path_glob": "a/**"}), &["a/red.md"]),
        (json!({"media": ["markdown"]}), &markdown),
        (json!({"media": ["md"]}), &markdown),
        (json!({"media": "[\"html\", \"text\"]"}), &["note.txt", "page.html"]),
        (json!({"media": ["code"]}), &["code/apple.py", "code/apple.rs"]),
        (json!({"media": ["unheard-of"]}), &[]),
        (json!({"code_lang": ["rust"]}), &["code/apple.rs"]),
        (json!({"code_lang": ["Rust", "python"]}), &["code/apple.py", "code/apple.rs"]),
        (json!({"repo": ["code"]}), &["code/apple.py", "code/apple.rs"]),
        (json!({"repo": ["other"]}), &[]),
        (json!({"source": ["workspace"]}), &all),
        (json!({"source": ["other"]}), &[]),
        (json!({"doc_id": red}), &["a/red.md"]),
        (json!({"doc_id": "0".repeat(32)}), &[]),
        (json!({"exclude_doc_id": [red, note], "path_glob": "{a/*,*}"}), &["ko.md", "page.html"]),
        (json!({"ingested_after": "2020-01-01"}), &all),
        (json!({"ingested_after": "2100-01-01T00:00:00Z"}), &[]),
    ];
    let queries: Vec<Value> = cases
        .iter()
        .map(|(filter, _)| {
            let mut query = filter.clone();
            query["query"] = json!("apple");
            query["k"] = json!("50");
            query
        })
        .collect();
    for (item, (filter, expected)) in bulk(&dir, &queries).iter().zip(&cases) {
        let mut found = paths(&item["response"]);
        found.sort();
        assert_eq!(found, *expected, "{filter}");
    }
}

#[test]
fn further_sources_can_be_asked_for() {
    let dir = Dir::new();
    dir.write("main/a.md", "One apple.\n");
    dir.write("more/b.md", "One apple.\n");
    let (main, more) = (dir.root().join("main"), dir.root().join("more"));
    dir.config(&format!(
        "[workspace]\nroot = '{}'\n[[workspace.sources]]\nid = 'more'\nroot = '{}'\ntrust_level = 'secondary'\n",
        main.display(),
        more.display()
    ));
    dir.cmd(["ingest"]).ok();
    assert_found(&dir, &[("apple", &["a.md", "b.md"])]);
    assert_eq!(found(&dir, "apple", "--source more"), ["b.md"]);
    assert_eq!(found(&dir, "apple", "--source workspace"), ["a.md"]);
    assert_eq!(found(&dir, "apple", "--trust-min primary"), ["a.md"]);
    let hit = search(&dir, "apple", "--source more").ok().json()["hits"][0].clone();
    assert_eq!((&hit["source_id"], &hit["trust_level"]), (&json!("more"), &json!("secondary")));
}

#[test]
fn a_time_that_divides_two_ingests_divides_their_documents() {
    let dir = Dir::indexed(&[("old.md", "One apple.\n")]);
    let old = search(&dir, "apple", "").ok().json()["hits"][0]["indexed_at"].as_str().unwrap().to_owned();
    dir.write("new.md", "One apple.\n");
    dir.cmd(["ingest"]).ok();
    assert_eq!(found(&dir, "apple", &format!("--ingested-after {old}")), ["new.md"]);
}
