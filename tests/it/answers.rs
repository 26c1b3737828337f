//! How a search answers: pages, budgets, traces, staleness, and what it refuses.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::harness::{Dir, Output};
use crate::search::{bulk, found, hits, paths, search};

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
    assert!(hint.contains("files of 2 of 3 hits have changed since; run `kebab-lite ingest`"), "{hint}");
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

#[test]
fn phrases_are_found_in_compounds_titles_and_among_function_words() {
    let dir = Dir::indexed(&[
        ("compound.md", "검색엔진 최적화와 재검색\n"),
        ("particle.md", "검색을 한다\n"),
        ("hamlet.md", "To be or not to be, said Hamlet.\n"),
        ("other.md", "Hamlet may well be to blame.\n"),
        ("titled.md", "---\ntitle: Release Checklist\n---\nTick every box.\n"),
        ("apart.md", "A checklist comes before each release.\n"),
    ]);
    assert_eq!(found(&dir, "\"검색\"", ""), ["compound.md", "particle.md"]);
    assert_eq!(found(&dir, "\"Release Checklist\"", ""), ["titled.md"]);
    let answer = search(&dir, "\"to be\" hamlet", "").ok().json();
    assert_eq!(paths(&answer), ["hamlet.md", "other.md"]);
    assert!(!answer["hint"].as_str().unwrap_or_default().contains("quoted"), "{answer}");
    let filtered = search(&dir, "\"검색을 한다\"", "--media code").ok().json();
    assert!(filtered["hint"].as_str().unwrap_or_default().contains("within the filters"), "{filtered}");
}

#[test]
fn single_characters_and_foreign_identifiers_are_found_wherever_they_stand() {
    let many: String = (0..150).map(|i| format!("한{} ", char::from_u32(0xAC00 + i * 7).unwrap())).collect();
    let dir = Dir::indexed(&[
        ("many.md", many.as_str()),
        ("last.md", "한힣\n"),
        ("key.md", "단축키\n"),
        ("naive.md", "see naïve.js and Straße_test\n"),
    ]);
    assert_eq!(found(&dir, "한", ""), ["last.md", "many.md"]);
    assert_eq!(found(&dir, "한", "--path-glob last.md"), ["last.md"]);
    assert_eq!(found(&dir, "키", ""), ["key.md"]);
    assert_eq!(found(&dir, "naïve", ""), ["naive.md"]);
    assert_eq!(found(&dir, "straße", ""), ["naive.md"]);
    assert_eq!(found(&dir, "naïve", "--path-glob ./*.md"), ["naive.md"]);
}

#[test]
fn snippets_show_irregular_stems_and_literal_matches() {
    let filler = "Filler words stand here. ".repeat(30);
    let dir = Dir::indexed(&[
        ("stem.md", format!("{filler} While using kangaroo pouches. {filler}\n").as_str()),
        ("rocket.md", format!("{filler} Launch 🚀 day. {filler}\n").as_str()),
    ]);
    for (query, shown) in [("use", "using"), ("🚀", "🚀")] {
        let answer = search(&dir, query, "--snippet-chars 60").ok().json();
        assert!(hits(&answer)[0]["snippet"].as_str().unwrap().contains(shown), "{answer}");
    }
}
