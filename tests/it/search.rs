//! What a search finds, shows and refuses.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::harness::{Cmd, Dir, Output};

/// `search QUERY FLAGS --json`, the flags separated by spaces.
fn search(dir: &Dir, query: &str, flags: &str) -> Cmd {
    let flags = flags.split(' ').filter(|flag| !flag.is_empty());
    dir.cmd(["search"].into_iter().chain(flags).chain(["--json", "--", query]))
}

/// Paths of the hits, sorted.
#[track_caller]
fn found(dir: &Dir, query: &str, flags: &str) -> Vec<String> {
    let mut paths = search(dir, query, flags).ok().paths();
    paths.sort();
    paths
}

/// Items of a bulk call, one query each.
#[track_caller]
fn bulk(dir: &Dir, queries: &[Value]) -> Vec<Value> {
    let lines: String = queries.iter().map(|query| format!("{query}\n")).collect();
    let items = dir.cmd(["search", "--bulk", "--json"]).stdin(lines).ok().json_lines();
    assert_eq!(items.len(), queries.len());
    items
}

fn hits(response: &Value) -> Vec<Value> {
    response["hits"].as_array().unwrap_or_else(|| panic!("no hits in {response}")).clone()
}

fn paths(response: &Value) -> Vec<String> {
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

/// 150 short notes on apples; those in `rare/` say so least and rank last.
fn orchard() -> Dir {
    let dir = Dir::new();
    for note in 0..150 {
        let (folder, filler) = if note % 15 == 0 { ("rare", 60) } else { ("common", 1 + note % 20) };
        let text = format!("Note {note} on an apple. {}\n", "And something else. ".repeat(filler));
        dir.write(&format!("{folder}/{note:03}.md"), text);
    }
    dir.cmd(["ingest"]).ok();
    dir
}

#[test]
fn a_filter_loses_no_match_that_ranks_below_the_page() {
    let dir = orchard();
    let top = search(&dir, "apple", "--k 20").ok().paths();
    assert!(top.iter().all(|path| path.starts_with("common/")), "{top:?}");
    let rare = found(&dir, "apple", "--k 20 --path-glob rare/*");
    let expected = ["000", "015", "030", "045", "060", "075", "090", "105", "120", "135"];
    assert_eq!(rare, expected.map(|note| format!("rare/{note}.md")));
}

fn cursor(response: &Value) -> Option<String> {
    response["next_cursor"].as_str().map(str::to_owned)
}

/// All pages, with `k` changing from page to page.
fn pages(dir: &Dir, query: &str, flags: &str, sizes: &[usize]) -> Vec<Value> {
    let mut all = Vec::new();
    let mut next: Option<String> = None;
    for k in sizes.iter().cycle() {
        let cursor_flag = next.as_ref().map(|cursor| format!(" --cursor {cursor}")).unwrap_or_default();
        let response = search(dir, query, &format!("--k {k} {flags}{cursor_flag}")).ok().json();
        all.extend(hits(&response));
        assert!(all.len() <= 1000, "pages without end");
        next = cursor(&response);
        if next.is_none() {
            break;
        }
    }
    all
}

#[test]
fn pages_neither_overlap_nor_skip() {
    let dir = orchard();
    let [first, second] = [100, 50].map(|k| {
        let response = search(&dir, "apple", "--k 100").ok().json();
        let rest = search(&dir, "apple", &format!("--k {k} --cursor {}", cursor(&response).unwrap())).ok().json();
        assert_eq!(cursor(&rest), None);
        [hits(&response), hits(&rest)].concat()
    });
    assert_eq!((first.len(), &first), (150, &second));
    for sizes in [&[7][..], &[1, 40, 3], &[50, 100]] {
        assert_eq!(pages(&dir, "apple", "", sizes), first, "{sizes:?}");
    }
    let ranks: Vec<u64> = first.iter().map(|hit| hit["rank"].as_u64().unwrap()).collect();
    assert_eq!(ranks, (1..=150).collect::<Vec<u64>>());
    let different: BTreeSet<&str> = first.iter().map(|hit| hit["chunk_id"].as_str().unwrap()).collect();
    assert_eq!(different.len(), 150);
    let scores: Vec<f64> = first.iter().map(|hit| hit["score"].as_f64().unwrap()).collect();
    assert!(scores.windows(2).all(|pair| pair[0] >= pair[1]), "{scores:?}");
    assert!(scores[0] > scores[149] && scores[149] > 0.0, "{scores:?}");
}

#[test]
fn a_cursor_belongs_to_its_query_filters_and_revision() {
    let dir = orchard();
    let response = search(&dir, "apple", "--k 5 --path-glob **").ok().json();
    let cursor = cursor(&response).unwrap();
    let page =
        |query: &str, flags: &str, cursor: &str| search(&dir, query, &format!("{flags} --cursor {cursor}")).run();
    page("apple", "--k 9 --path-glob **", &cursor).code(0);
    let mut long = cursor.clone();
    long.push('0');
    let mut flipped = cursor.clone();
    let last = if flipped.pop() == Some('z') { 'y' } else { 'z' };
    flipped.push(last);
    let foreign = [
        page("apples", "--k 5 --path-glob **", &cursor),
        page("apple", "--k 5", &cursor),
        page("apple", "--k 5 --path-glob common/*", &cursor),
        page("apple", "--k 5 --path-glob ** --mode lexical", &cursor),
        page("apple", "--k 5 --path-glob **", &cursor[..cursor.len() - 1]),
        page("apple", "--k 5 --path-glob **", &long),
        page("apple", "--k 5 --path-glob **", &flipped),
        page("apple", "--k 5 --path-glob **", "nonsense"),
        page("apple", "--k 5 --path-glob **", "한글"),
    ];
    for output in foreign {
        assert_eq!(output.code(2).error()["code"], "stale_cursor");
    }
    dir.write("common/more.md", "Another apple.\n");
    dir.cmd(["ingest"]).ok();
    let error = page("apple", "--k 5 --path-glob **", &cursor).code(2).error();
    assert_eq!(error["code"], "stale_cursor");
    assert_eq!(error["hint"], "Repeat the search without `cursor` and page from the start.");
}

#[test]
fn a_token_budget_is_kept() {
    let dir = orchard();
    let plain = search(&dir, "apple", "--k 20").ok().json();
    assert_eq!((&plain["truncated"], hits(&plain).len()), (&json!(false), 20));
    let mut counts = BTreeSet::new();
    for budget in [1, 300, 500, 1000, 2000, 3500, 5000, 50_000] {
        let response = search(&dir, "apple", &format!("--k 20 --max-tokens {budget}")).ok().json();
        let hits = hits(&response);
        let size = serde_json::to_string(&hits).unwrap().chars().count();
        assert!(size <= 4 * budget || hits.len() == 1, "{size} characters for {budget} tokens");
        let shortened = serde_json::to_string(&plain["hits"]).unwrap().chars().count() > 4 * budget;
        assert_eq!(response["truncated"], shortened, "{budget}");
        assert!(!hits.is_empty());
        counts.insert(hits.len());
        // What was dropped is on the next page.
        let rest = search(&dir, "apple", &format!("--k 100 --cursor {}", cursor(&response).unwrap())).ok().json();
        assert_eq!(rest["hits"][0]["rank"], hits.len() as u64 + 1);
    }
    assert!(counts.contains(&1) && counts.contains(&20) && counts.len() > 3, "{counts:?}");
    let all = pages(&dir, "apple", "--max-tokens 1500", &[30]);
    let ranks: Vec<u64> = all.iter().map(|hit| hit["rank"].as_u64().unwrap()).collect();
    assert_eq!(ranks, (1..=150).collect::<Vec<u64>>());
}

#[test]
fn snippets_are_as_long_as_asked_and_show_the_match() {
    let filler = "Some other words stand here. ".repeat(12);
    let text = format!("{filler}The needle lies here in the hay. {filler}\n");
    let dir = Dir::indexed(&[("a.txt", &text)]);
    for chars in [1, 20, 60, 200] {
        let hit = search(&dir, "needle", &format!("--snippet-chars {chars}")).ok().json()["hits"][0].clone();
        let snippet = hit["snippet"].as_str().unwrap();
        assert!(snippet.chars().count() <= chars, "{chars}: {snippet}");
        assert!(text.contains(snippet));
        assert_eq!(snippet.contains("needle"), chars >= 20, "{chars}: {snippet}");
        assert_eq!(hit["snippet_full_text"], false);
    }
    let whole = search(&dir, "needle", "--snippet-chars 100000").ok().json()["hits"][0].clone();
    assert_eq!(whole["snippet_full_text"], true);
    assert_eq!(whole["snippet"].as_str().unwrap(), text.trim_end());
}

#[test]
fn a_trace_lists_the_candidates() {
    let dir = Dir::indexed(&[("a.md", "apple apple\n"), ("b.md", "one apple among more words\n")]);
    assert_eq!(search(&dir, "apple", "").ok().json().get("trace"), None);
    let response = search(&dir, "apple", "--trace").ok().json();
    let trace = &response["trace"];
    for (i, hit) in hits(&response).iter().enumerate() {
        let candidate = &trace["lexical"][i];
        for field in ["chunk_id", "doc_id", "doc_path", "rank", "score"] {
            assert_eq!(candidate[field], hit[field], "{field}");
        }
        assert_eq!(trace["rrf_inputs"][i]["chunk_id"], hit["chunk_id"]);
        assert_eq!(trace["rrf_inputs"][i]["lexical_rank"], i as u64 + 1);
        assert_eq!(trace["rrf_inputs"][i]["vector_rank"], Value::Null);
    }
    assert_eq!((&trace["vector"], trace["lexical"].as_array().unwrap().len()), (&json!([]), 2));
    let ms = |name: &str| trace["timing"][name].as_f64().unwrap();
    assert!(ms("lexical_ms") > 0.0 && ms("lexical_ms") <= ms("total_ms"), "{trace}");
}

#[test]
fn weak_hits_are_marked_and_can_be_dropped() {
    let dir = Dir::indexed(&[
        ("strong.md", "flux capacitor flux capacitor\n"),
        ("weak.md", &format!("flux. {}\n", "Many other words stand in this note. ".repeat(30))),
        ("c.md", "other\n"),
        ("d.md", "other\n"),
    ]);
    let response = search(&dir, "flux capacitor", "").ok().json();
    let scores: Vec<f64> = hits(&response).iter().map(|hit| hit["score"].as_f64().unwrap()).collect();
    assert!(scores[1] < 0.4 * scores[0], "{scores:?}");
    let weak: Vec<bool> = hits(&response).iter().map(|hit| hit["weak"].as_bool().unwrap()).collect();
    assert_eq!(weak, [false, true]);
    assert_eq!(found(&dir, "flux capacitor", "--drop-weak"), ["strong.md"]);
    // The same first hit decides on later pages.
    let orchard = orchard();
    let kept = pages(&orchard, "apple", "--drop-weak", &[100]);
    assert_eq!(pages(&orchard, "apple", "--drop-weak", &[4, 9]), kept);
    assert!(kept.iter().all(|hit| hit["weak"] == false) && kept.len() > 20 && kept.len() < 150, "{}", kept.len());
}

#[test]
fn the_same_call_gives_the_same_bytes() {
    let dir = orchard();
    for (query, flags) in [("apple", "--k 100"), ("apple something note", "--k 37"), ("\"an apple\" note", "--k 50")] {
        let first = search(&dir, query, flags).ok();
        let second = search(&dir, query, flags).ok();
        assert!(first.stdout == second.stdout, "{query}");
    }
    let untimed = |output: Output| {
        let mut response = output.json();
        response["trace"]["timing"] = Value::Null;
        response.to_string()
    };
    let traced = || untimed(search(&dir, "apple", "--trace").ok());
    assert_eq!(traced(), traced());
    // Bulk and single calls agree.
    let single = search(&dir, "apple", "--k 9").ok().json();
    assert_eq!(bulk(&dir, &[json!({"query": "apple", "k": 9})])[0]["response"], single);
}

#[test]
fn equal_scores_stand_in_the_order_of_the_store() {
    let names: Vec<String> = (0..30).map(|n| format!("{n:02}.md")).collect();
    let files: Vec<(&str, &str)> = names.iter().map(|name| (name.as_str(), "the very same apple\n")).collect();
    let dir = Dir::indexed(&files);
    assert_eq!(search(&dir, "apple", "--k 30").ok().paths(), names);
}

#[test]
fn changed_and_vanished_files_are_stale() {
    let dir = Dir::indexed(&[("a.md", "One apple.\n"), ("b.md", "One apple.\n"), ("c.md", "One apple.\n")]);
    let stale = || -> Vec<bool> {
        let response = search(&dir, "apple", "").ok().json();
        hits(&response).iter().map(|hit| hit["stale"].as_bool().unwrap()).collect()
    };
    assert_eq!(stale(), [false, false, false]);
    dir.write("a.md", "One apple, two apples.\n");
    std::fs::remove_file(dir.root().join("b.md")).unwrap();
    assert_eq!(stale(), [true, true, false]);
    let response = search(&dir, "apple", "").ok().json();
    let hint = response["hint"].as_str().unwrap();
    assert!(hint.contains("2 of 3 hits are stale; run `kebab-lite ingest`"), "{hint}");
    assert_eq!(dir.cmd(["schema", "--json"]).ok().json()["stats"]["stale_doc_count"], 2);
    dir.cmd(["ingest"]).ok();
    assert_eq!(stale(), [false, false]);
}

#[test]
fn wrong_input_has_a_field_and_spoils_nothing_else() {
    let dir = Dir::indexed(&[("a.md", "One apple.\n")]);
    let good = json!({"query": "apple"});
    let cases = [
        (json!({"query": ""}), "query"),
        (json!({"query": " \t\n"}), "query"),
        (json!({"query": null}), "query"),
        (json!({"query": 5}), "query"),
        (json!({"query": ["apple"]}), "query"),
        (json!({}), "query"),
        (json!({"query": "apple", "k": 0}), "k"),
        (json!({"query": "apple", "k": -1}), "k"),
        (json!({"query": "apple", "k": 1000}), "k"),
        (json!({"query": "apple", "k": 1.5}), "k"),
        (json!({"query": "apple", "k": "five"}), "k"),
        (json!({"query": "apple", "k": [5]}), "k"),
        (json!({"query": "apple", "k": 1e300}), "k"),
        (json!({"query": "apple", "max_tokens": 0}), "max_tokens"),
        (json!({"query": "apple", "snippet_chars": 0}), "snippet_chars"),
        (json!({"query": "apple", "mode": "fuzzy"}), "mode"),
        (json!({"query": "apple", "mode": "Lexical"}), "mode"),
        (json!({"query": "apple", "trace": "maybe"}), "trace"),
        (json!({"query": "apple", "cursor": 5}), "cursor"),
        (json!({"query": "apple", "tag": [1]}), "tag"),
        (json!({"query": "apple", "tag": {"a": 1}}), "tag"),
        (json!({"query": "apple", "path_glob": "a[b"}), "path_glob"),
        (json!({"query": "apple", "exclude_path_glob": "{a"}), "exclude_path_glob"),
        (json!({"query": "apple", "ingested_after": "yesterday"}), "ingested_after"),
        (json!({"query": "apple", "ingested_after": "2026-13-01"}), "ingested_after"),
        (json!({"query": "apple", "trust_min": "high"}), "trust_min"),
        (json!({"query": "apple", "doc_id": "short"}), "doc_id"),
        (json!({"query": "apple", "exclude_doc_id": ["x"]}), "exclude_doc_id"),
        (json!({"query": "apple", "paht_glob": "x"}), "paht_glob"),
        (json!({"query": "apple", "Query": "x"}), "Query"),
    ];
    let queries: Vec<Value> = cases.iter().flat_map(|(bad, _)| [bad.clone(), good.clone()]).collect();
    let items = bulk(&dir, &queries);
    for (pair, (bad, field)) in items.chunks(2).zip(&cases) {
        let error = &pair[0]["error"];
        assert_eq!((&error["code"], &error["details"]["field"]), (&json!("invalid_input"), &json!(field)), "{bad}");
        assert_eq!(pair[0]["query"], *bad);
        assert_eq!(paths(&pair[1]["response"]), ["a.md"], "after {bad}");
    }
    let typo = &items[2 * cases.len() - 4]["error"];
    assert!(typo["hint"].as_str().unwrap().starts_with("Did you mean `path_glob`?"), "{typo}");
}

#[test]
fn odd_but_right_input_is_answered() {
    let dir = Dir::indexed(&[("a.md", "One apple.\n")]);
    let cases = [
        json!({"query": "apple", "k": "5"}),
        json!({"query": "apple", "k": 5.0}),
        json!({"query": "apple", "k": null, "tag": null, "mode": null}),
        json!({"query": "apple", "trace": "false", "drop_weak": "true"}),
        json!({"query": "apple\u{0}apple"}),
        json!({"query": "\u{1b}[31m apple\u{7}"}),
        json!({"query": "apple \u{1F469}\u{200D}\u{1F680}"}),
        json!({"query": "\u{202e}apple \u{5e9}\u{5dc}\u{5d5}\u{5dd}"}),
        json!({"query": "apple ".repeat(200_000)}),
        json!({"query": format!("apple {}", "x".repeat(1_000_000))}),
        json!({"query": format!("apple {}", (0..50_000).map(|n| format!("w{n} ")).collect::<String>())}),
        json!({"query": format!("apple {}", "\"".repeat(99_999))}),
        json!({"query": "apple\\\"'`$(){}[]*?;--"}),
    ];
    for (item, query) in bulk(&dir, &cases).iter().zip(&cases) {
        let shown: String = query.to_string().chars().take(60).collect();
        assert_eq!(paths(&item["response"]), ["a.md"], "{shown}");
    }
    let items = bulk(
        &dir,
        &[json!({"query": "한".repeat(300_000)}), json!({"query": "\u{301}\u{301}"}), json!({"query": "\u{0}"})],
    );
    assert!(items.iter().all(|item| item["response"]["hits"] == json!([])));
}

#[test]
#[cfg(unix)]
fn a_query_that_is_not_unicode_is_refused_by_name() {
    use std::os::unix::ffi::OsStringExt;
    let dir = Dir::indexed(&[("a.md", "One apple.\n")]);
    let query = std::ffi::OsString::from_vec(b"apple\xff".to_vec());
    let output = dir.cmd([std::ffi::OsString::from("search"), "--json".into(), query]).run().code(2).stdout("");
    assert_eq!(output.error()["code"], "invalid_input");
}

#[test]
fn vectors_are_refused_and_their_absence_is_told() {
    let dir = Dir::indexed(&[("a.md", "One apple.\n")]);
    let error = search(&dir, "apple", "--mode vector").run().code(2).error();
    assert_eq!(error["code"], "model_unreachable");
    let hybrid = search(&dir, "apple", "").ok().json();
    assert!(hybrid["hint"].as_str().unwrap().contains("lexical"), "{hybrid}");
    let lexical = search(&dir, "apple", "--mode lexical").ok().json();
    assert_eq!(lexical.get("hint"), None);
    assert_eq!(hybrid["hits"], lexical["hits"]);
    assert_eq!(lexical["hits"][0]["score_kind"], "bm25");
    assert_eq!(lexical["hits"][0]["retrieval"]["method"], "lexical");
}
