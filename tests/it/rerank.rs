//! The cross-encoder's last word over the best of a hybrid search, from a model folder made here: one logit a word, and
//! a pair's is the mean of those of its words.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::harness::Dir;
use crate::hybrid::{DAEMON, Library, hits, paths, scores};
use crate::mcp::Server;
use crate::onnx::{self, Output, WORDS};

const QUERY: &str = "the price of an oven";
/// It has a word of the query, as many others have.
const SOUP: (&str, &str) = ("soup.md", "# Broth\n\nsoup soup soup soup soup: the price of an oven\n");

/// The logits of `WORDS`: it loves soup.
const LOGITS: [f32; 6] = [0.0, 0.0, 0.0, 0.0, 0.0, 4.0];

fn judge(folder: &Path, columns: usize) {
    let table: Vec<Vec<f32>> = LOGITS.iter().map(|logit| vec![*logit; columns]).collect();
    assert_eq!(table.len(), WORDS.len());
    onnx::folder(folder, &table, Output::Mean, "");
}

/// Passages that all have a vector, and a judge that is not yet configured.
fn library() -> (Library, PathBuf) {
    let library = Library::new(&[DAEMON, SOUP], 70);
    let folder = library.dir.home().join("judge");
    judge(&folder, 1);
    (library, folder)
}

fn configure(dir: &Dir, folder: &Path) {
    dir.config(&format!("[models.reranker]\nmodel = {:?}\n", folder.display().to_string()));
}

fn chunks(response: &Value) -> Vec<&str> {
    hits(response).iter().map(|hit| hit["chunk_id"].as_str().expect("a chunk")).collect()
}

fn kinds(response: &Value) -> Vec<&str> {
    hits(response).iter().map(|hit| hit["score_kind"].as_str().expect("a kind")).collect()
}

#[test]
fn the_best_fifty_are_read_again_and_the_rest_stays() {
    let (library, folder) = library();
    let input = json!({"query": QUERY, "k": 100, "trace": true});
    let before = library.search(input.clone());
    assert_eq!(hits(&before).len(), 72);
    let place = paths(&before).iter().position(|path| *path == "soup.md").expect("it has the word");
    assert!((1..50).contains(&place), "soup.md is at {place}: neither first nor out of reach");

    configure(&library.dir, &folder);
    let after = library.search(input);
    assert_eq!(after["hint"], Value::Null);
    assert_eq!(paths(&after)[0], "soup.md");
    assert!(kinds(&after)[..50].iter().all(|kind| *kind == "rerank"), "{:?}", kinds(&after));
    assert!(kinds(&after)[50..].iter().all(|kind| *kind == "evidence"), "{:?}", kinds(&after));
    let best = &scores(&after)[..50];
    // Five of the pair's seventeen words at 4, the rest at 0: σ(20/17).
    assert!((best[0] - 0.76430).abs() < 1e-4 && best[1..].iter().all(|score| *score == 0.5), "{best:?}");
    // Those it found equal stay in the order they came in, and so do those it did not read.
    let others = |response: &Value| -> Vec<String> {
        let ids = hits(response).iter().filter(|hit| hit["doc_path"] != "soup.md");
        ids.map(|hit| hit["chunk_id"].as_str().expect("a chunk").to_owned()).collect()
    };
    assert_eq!(others(&after), others(&before));
    // What fusion said of a hit is still told.
    assert_eq!(hits(&after)[0]["retrieval"]["fusion_score"], hits(&before)[place]["retrieval"]["fusion_score"]);
    assert!(after["trace"]["timing"]["rerank_ms"].as_f64().expect("a time") > 0.0, "{}", after["trace"]["timing"]);
    assert_eq!(before["trace"]["timing"]["rerank_ms"], 0.0);
    // One side alone is not reranked.
    for (mode, kind) in [("lexical", "bm25"), ("vector", "cosine")] {
        let one = library.search(json!({"query": QUERY, "mode": mode, "k": 5}));
        assert!(kinds(&one).iter().all(|found| *found == kind), "{mode}: {:?}", kinds(&one));
    }
}

#[test]
fn the_title_is_read_with_the_passage() {
    let (library, folder) = library();
    library.dir.write(
        "titled.md",
        "---\ntitle: soup soup soup soup soup soup soup soup soup\n---\n# Oven\n\nNo price on the oven.\n",
    );
    library.cmd(["ingest"]).ok();
    configure(&library.dir, &folder);
    let response = library.search(json!({"query": QUERY, "k": 3}));
    assert_eq!(paths(&response)[..2], ["titled.md", "soup.md"], "{response}");
}

#[test]
fn pages_and_repetitions_agree() {
    let (library, folder) = library();
    configure(&library.dir, &folder);
    let whole = library.search(json!({"query": QUERY, "k": 100}));
    assert_eq!(whole, library.search(json!({"query": QUERY, "k": 100})));
    let (mut paged, mut cursor) = (Vec::new(), Value::Null);
    loop {
        let mut input = json!({"query": QUERY, "k": 20});
        if cursor.is_string() {
            input["cursor"] = cursor.clone();
        }
        let page = library.search(input);
        paged.extend(chunks(&page).into_iter().map(str::to_owned));
        cursor = page["next_cursor"].clone();
        if cursor.is_null() {
            break;
        }
    }
    assert_eq!(paged, chunks(&whole));

    // A server says the same, byte for byte.
    let input = json!({"query": QUERY, "k": 20});
    let mut server = Server::run(library.cmd(["mcp", "--no-sync"]).into_command());
    server.shake_hands("2025-11-25");
    let told = server.told("search", input.clone());
    assert_eq!(told.to_string(), library.search(input).to_string());

    // Without the judge the order is another, so its cursors are void.
    let cursor = library.search(json!({"query": QUERY, "k": 20}))["next_cursor"].clone();
    library.dir.config("");
    let cursor = cursor.as_str().expect("more hits");
    let refused = library.cmd(["search", "--json", "--k", "20", "--cursor", cursor, QUERY]).run().code(2).error();
    assert_eq!(refused["code"], "stale_cursor");
}

#[test]
fn a_folder_that_is_no_judge_leaves_the_order_and_is_named() {
    let (library, folder) = library();
    let input = json!({"query": QUERY, "k": 10});
    let usual = library.search(input.clone());
    configure(&library.dir, &folder);
    let halve = |name: &str| {
        let bytes = std::fs::read(folder.join(name)).expect("a file");
        std::fs::write(folder.join(name), &bytes[..bytes.len() / 2]).expect("a file");
    };
    let nan = || onnx::folder(&folder, &vec![vec![f32::NAN]; WORDS.len()], Output::Mean, "");
    type Case<'a> = (&'a dyn Fn(), &'a str);
    let cases: [Case; 6] = [
        (&|| std::fs::remove_file(folder.join("model.onnx")).expect("a file"), "there is no model.onnx in "),
        (&|| std::fs::remove_file(folder.join("tokenizer.json")).expect("a file"), "there is no tokenizer.json in "),
        (&|| halve("tokenizer.json"), "tokenizer.json: "),
        (&|| halve("model.onnx"), "model"),
        (&|| judge(&folder, 3), "it gives [1, 3] values a pair, expected one or two"),
        (&nan, "it gives values that are not numbers"),
    ];
    for (change, said) in cases {
        judge(&folder, 1);
        change();
        let response = library.search(input.clone());
        assert_eq!((chunks(&response), kinds(&response)), (chunks(&usual), kinds(&usual)), "{said}");
        let hint = response["hint"].as_str().expect("a hint");
        assert!(hint.starts_with("The hits are not reranked: ") && hint.contains(said), "{said}: {hint}");
        assert!(hint.contains("judge"), "the folder is named: {hint}");
    }
}
