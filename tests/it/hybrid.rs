//! Search by meaning, and by meaning and words together, through an endpoint whose vectors mean something: words of one
//! concept point the same way, whatever their language.

use std::collections::BTreeSet;
use std::time::Instant;

use serde_json::{Value, json};

use crate::harness::{Cmd, Dir, Output};
use crate::mcp::{PATIENCE, Server};
use crate::model_server::{MEANING, ModelServer};

pub struct Library {
    pub dir: Dir,
    model: ModelServer,
}

impl Library {
    /// These files among `others` notes about bread and prices, all embedded.
    pub fn new(files: &[(&str, &str)], others: usize) -> Library {
        let library = Library { dir: Dir::new(), model: ModelServer::start() };
        for (path, text) in files {
            library.dir.write(path, text);
        }
        for i in 0..others {
            let about = ["bread from the oven", "the price of flour", "an oven and its price"][i % 3];
            library.dir.write(&format!("notes/{i:03}.md"), format!("# Note {i}\n\nA word{i} on {about}.\n"));
        }
        library.cmd(["ingest"]).ok();
        library
    }

    pub fn cmd<const N: usize>(&self, args: [&str; N]) -> Cmd {
        self.model.for_model(MEANING, self.dir.cmd(args))
    }

    /// A search by the fields of its input.
    #[track_caller]
    pub fn search(&self, input: Value) -> Value {
        let output = self.cmd(["search", "--bulk", "--json"]).stdin(format!("{input}\n")).ok();
        let item = output.json_lines()[0].clone();
        if item["response"].is_null() {
            output.fail("expected an answer");
        }
        item["response"].clone()
    }
}

pub fn hits(response: &Value) -> &Vec<Value> {
    response["hits"].as_array().expect("hits")
}

pub fn paths(response: &Value) -> Vec<&str> {
    hits(response).iter().map(|hit| hit["doc_path"].as_str().expect("a path")).collect()
}

pub fn scores(response: &Value) -> Vec<f64> {
    hits(response).iter().map(|hit| hit["score"].as_f64().expect("a score")).collect()
}

pub const DAEMON: (&str, &str) =
    ("daemon.md", "# Daemon\n\nShut the daemon by a signal, then wait until it has ended.\n");
const KOREAN: (&str, &str) = ("데몬.md", "# 데몬\n\n데몬을 종료하려면 신호를 보내고 기다린다.\n");

#[test]
fn a_passage_is_found_that_shares_no_word_with_the_question() {
    let library = Library::new(&[DAEMON], 60);
    let response = library.search(json!({"query": "halt my server"}));
    let first = &hits(&response)[0];
    assert_eq!(first["doc_path"], "daemon.md");
    assert_eq!((&first["score_kind"], &first["retrieval"]["method"]), (&json!("evidence"), &json!("hybrid")));
    assert_eq!(first["retrieval"]["lexical_score"], Value::Null);
    assert_eq!(first["retrieval"]["vector_rank"], 1);
    assert!(first["embedding_model"].as_str().is_some_and(|model| model.contains(MEANING)), "{first}");
    assert!(response.get("hint").is_none(), "{response}");
    // Words alone find nothing.
    assert_eq!(paths(&library.search(json!({"query": "halt my server", "mode": "lexical"}))), [""; 0]);
}

/// Enough Korean notes for a group of their own, which a Korean question's language favours.
fn korean_notes() -> Vec<(String, String)> {
    (0..60).map(|i| (format!("노트/{i}.md"), format!("# 노트 {i}\n\n낱말{i} 빵과 요금 이야기.\n"))).collect()
}

fn borrowed(files: &[(String, String)]) -> impl Iterator<Item = (&str, &str)> {
    files.iter().map(|(path, text)| (path.as_str(), text.as_str()))
}

#[test]
fn a_question_finds_the_other_language() {
    let korean = korean_notes();
    let files: Vec<(&str, &str)> = borrowed(&korean).chain([DAEMON]).collect();
    let library = Library::new(&files, 60);
    let response = library.search(json!({"query": "서버 멈추기", "trace": true}));
    assert_eq!(paths(&response)[0], "daemon.md");
    let fit = response["trace"]["fit"].as_array().unwrap();
    let of = |at: usize| [&fit[at]["group"], &fit[at]["chunks"], &fit[at]["of"], &fit[at]["blind"]].map(Value::clone);
    assert_eq!(of(0), [json!("hangul"), json!(60), json!("group"), json!(false)]);
    assert_eq!(of(1), [json!("other"), json!(61), json!("group"), json!(true)]);
}

/// English pages with a Korean word in them are near to any Korean question. That makes them no answers, and does not
/// hide the English one.
#[test]
fn pages_in_both_scripts_are_judged_by_the_one_that_expects_them() {
    let mut files = korean_notes();
    files
        .extend((0..15).map(|i| (format!("shops/{i}.md"), format!("# Shop {i}\n\nThe shop{i} sells flour, or 빵.\n"))));
    let files: Vec<(&str, &str)> = borrowed(&files).chain([DAEMON]).collect();
    let library = Library::new(&files, 60);
    let response = library.search(json!({"query": "서버 멈추기", "trace": true, "k": 100}));
    assert_eq!(paths(&response)[0], "daemon.md");
    let [hangul, other, mixed] = &response["trace"]["fit"].as_array().unwrap()[..] else { panic!("{response}") };
    let of = |fit: &Value| [&fit["group"], &fit["chunks"], &fit["of"], &fit["k"]].map(Value::clone);
    assert_eq!(of(hangul), [json!("hangul"), json!(60), json!("group"), json!(12)]);
    assert_eq!(of(other), [json!("other"), json!(61), json!("group"), json!(13)]);
    assert_eq!(of(mixed), [json!("mixed"), json!(15), json!("scripts"), Value::Null]);
    let number = |value: &Value| value.as_f64().expect("a number");
    let chance = |fit: &Value, cosine: f64| {
        let (k, chunks) = (number(&fit["k"]), number(&fit["chunks"]));
        k.ln() + (136.0 / chunks).ln() - (cosine - number(&fit["theta"])) / number(&fit["beta"])
    };
    let shops = response["trace"]["rrf_inputs"].as_array().unwrap().iter();
    let chunk_ids: Vec<&Value> = hits(&response)
        .iter()
        .filter(|hit| hit["doc_path"].as_str().is_some_and(|path| path.starts_with("shops/")))
        .map(|hit| &hit["chunk_id"])
        .collect();
    let shops: Vec<&Value> = shops.filter(|input| chunk_ids.contains(&&input["chunk_id"])).collect();
    assert!(shops.len() >= 10, "{} shops", shops.len());
    for shop in shops {
        let cosine = number(&shop["vector_score"]);
        let (hangul, other) = (chance(hangul, cosine), chance(other, cosine));
        let expected = (1.0 + 20.0 / hangul.max(other).exp()).ln();
        assert!((number(&shop["vector_evidence"]) - expected).abs() < 1e-2 * expected.max(1.0), "{expected} in {shop}");
        // Among English pages alone it would look like an answer.
        assert!(hangul > other + 3.0, "{hangul} and {other}");
    }
}

#[test]
fn both_sides_and_their_evidence_are_traced() {
    let library = Library::new(&[DAEMON], 60);
    let response = library.search(json!({"query": "halt the daemon", "trace": true, "k": 5}));
    let trace = &response["trace"];
    assert_eq!(trace["nearest_by"], "scan");
    assert_eq!(trace["lexical"][0]["doc_path"], "daemon.md");
    assert_eq!(trace["vector"].as_array().unwrap().len(), 61);
    let fit = &trace["fit"][0];
    let number = |value: &Value| value.as_f64().expect("a number");
    assert_eq!((&fit["group"], &fit["chunks"], &fit["k"]), (&json!("other"), &json!(61), &json!(13)));
    assert_eq!(number(&fit["theta"]), number(&trace["vector"][12]["score"]));
    for input in trace["rrf_inputs"].as_array().unwrap() {
        let sum = number(&input["lexical_evidence"]) + number(&input["vector_evidence"]);
        assert!((sum - number(&input["fusion_score"])).abs() < 1e-4, "{input}");
        // λ · BM25 without its (k1 + 1), and ln(1 + C / E).
        let words = 0.7 * input["lexical_score"].as_f64().unwrap_or(0.0) / 2.2;
        assert!((words - number(&input["lexical_evidence"])).abs() < 1e-4, "{input}");
        let chance = 13f64.ln() - (number(&input["vector_score"]) - number(&fit["theta"])) / number(&fit["beta"]);
        let meaning = (1.0 + 20.0 / chance.exp()).ln();
        assert!((meaning - number(&input["vector_evidence"])).abs() < 1e-2 * meaning.max(1.0), "{meaning} in {input}");
    }
    let (hit, input) = (&hits(&response)[0], &trace["rrf_inputs"][0]);
    assert_eq!(hit["chunk_id"], input["chunk_id"]);
    assert_eq!(hit["score"], input["fusion_score"]);
    for stage in ["lexical_ms", "embedding_ms", "vector_ms", "fusion_ms", "total_ms"] {
        assert!(number(&trace["timing"][stage]) > 0.0, "{stage} in {trace}");
    }
    let shown = library.cmd(["search", "--trace", "halt the daemon"]).ok();
    shown.stdout_has("fit of other: 61 chunks, by group");
}

#[test]
fn the_same_query_gives_the_same_bytes() {
    let library = Library::new(&[DAEMON, KOREAN], 40);
    for mode in ["hybrid", "vector"] {
        let once = || library.cmd(["search", "--json", "--mode", mode, "the price of a daemon"]).ok().stdout;
        assert_eq!(once(), once());
    }
}

/// All pages of a search, by chunk.
fn pages(library: &Library, mode: &str, k: usize) -> (Vec<String>, Vec<f64>) {
    let (mut chunks, mut all, mut cursor) = (Vec::new(), Vec::new(), Value::Null);
    loop {
        let mut input = json!({"query": "the oven price of a daemon", "mode": mode, "k": k});
        if cursor.is_string() {
            input["cursor"] = cursor;
        }
        let response = library.search(input);
        chunks.extend(hits(&response).iter().map(|hit| hit["chunk_id"].as_str().unwrap().to_owned()));
        all.extend(scores(&response));
        cursor = response["next_cursor"].clone();
        if cursor.is_null() {
            return (chunks, all);
        }
    }
}

#[test]
fn pages_neither_overlap_nor_skip() {
    // More than either side's candidates of the first pages.
    let library = Library::new(&[DAEMON, KOREAN], 260);
    for mode in ["hybrid", "vector"] {
        let (chunks, scores) = pages(&library, mode, 70);
        assert!(scores.is_sorted_by(|a, b| a >= b), "{mode}: {scores:?}");
        assert_eq!(chunks.iter().collect::<BTreeSet<_>>().len(), chunks.len(), "{mode}: a chunk twice");
        // Every chunk has a vector, so every chunk is somewhere on the list.
        assert_eq!(chunks.len(), 262, "{mode}");
        let (first, _) = pages(&library, mode, 100);
        assert_eq!(first, chunks, "{mode}: the size of pages changes nothing");
    }
}

#[test]
fn quotes_and_filters_mean_the_same() {
    let library = Library::new(&[DAEMON, ("b.md", "# Halt\n\nHalt the server; a signal tells it.\n")], 30);
    // Only what holds the phrase, whoever finds it.
    for mode in ["hybrid", "vector", "lexical"] {
        let response = library.search(json!({"query": "\"by a signal\"", "mode": mode}));
        assert_eq!(paths(&response), ["daemon.md"], "{mode}");
    }
    let filtered = library.search(json!({"query": "halt my server", "path_glob": "notes/*", "k": 100}));
    assert_eq!(hits(&filtered).len(), 30);
    assert!(paths(&filtered).iter().all(|path| path.starts_with("notes/")));
    let one = library.search(json!({"query": "halt my server", "path_glob": "daemon.md"}));
    assert_eq!(paths(&one), ["daemon.md"]);
    // Chance is read off the rest of the store where a filter leaves too little: closeness still says how much.
    let far = library.search(json!({"query": "halt my server", "path_glob": "notes/000.md"}));
    assert!(scores(&one)[0] > 3.0 * scores(&far)[0], "{:?} {:?}", scores(&one), scores(&far));
}

#[test]
fn a_query_without_words_goes_by_meaning_and_by_itself() {
    let library = Library::new(&[("rocket.md", "# Launch\n\nWe celebrate 🚀 tonight.\n")], 20);
    let response = library.search(json!({"query": "🚀"}));
    assert_eq!(paths(&response)[0], "rocket.md");
    assert_eq!(hits(&response)[0]["score_kind"], "evidence");
    assert!(hits(&response).len() > 1, "the nearest follow");
}

#[test]
fn weak_hits_are_marked_folded_and_dropped_on_request() {
    let library = Library::new(&[DAEMON], 60);
    for mode in ["hybrid", "vector"] {
        let response = library.search(json!({"query": "halt my server", "mode": mode}));
        let weak: Vec<bool> = hits(&response).iter().map(|hit| hit["weak"].as_bool().unwrap()).collect();
        assert!(!weak[0] && weak[9], "{mode}: {weak:?}");
        let kept = library.search(json!({"query": "halt my server", "mode": mode, "drop_weak": true}));
        assert_eq!(hits(&kept).len(), weak.iter().filter(|weak| !**weak).count(), "{mode}");
    }
    let response = library.search(json!({"query": "halt my server"}));
    for hit in hits(&response) {
        let share = hit["score"].as_f64().unwrap() / scores(&response)[0];
        assert_eq!(hit["weak"], share < 0.4, "{hit}");
    }
}

#[test]
fn the_weights_are_the_configurations() {
    let files = [("words.md", "# Halt\n\nHalt server, halt my server! A price.\n"), DAEMON];
    let library = Library::new(&files, 60);
    // The first hit, and what the passage that shares words has.
    let ranked = |config: &str| {
        library.dir.config(config);
        let response = library.search(json!({"query": "halt my server"}));
        let worded = hits(&response).iter().find(|hit| hit["doc_path"] == "words.md").expect("it matches both ways");
        (paths(&response)[0].to_owned(), worded["score"].as_f64().expect("a score"))
    };
    let (_, usual) = ranked("");
    let (by_meaning, without_words) = ranked("[search.fusion]\nlambda = 0\n");
    let (by_words, _) = ranked("[search.fusion]\nlambda = 100\n");
    let (_, less_meaning) = ranked("[search.fusion]\nc = 1\n");
    // The other says more of prices than of servers.
    assert_eq!((by_meaning.as_str(), by_words.as_str()), ("daemon.md", "words.md"));
    assert!(without_words < usual && less_meaning < usual, "{without_words} and {less_meaning} of {usual}");
    let refused = library.cmd(["search", "x"]);
    library.dir.config("[search.fusion]\nc = 0\n");
    refused.run().code(2).stderr_has("search.fusion.c: found 0");
}

#[test]
fn without_a_model_the_answer_is_lexical_and_says_so() {
    let library = Library::new(&[DAEMON], 5);
    let run = |args: &[&str]| -> Output { library.dir.cmd(args.iter().copied()).run() };
    let response = run(&["search", "--json", "daemon"]).json();
    assert_eq!(paths(&response), ["daemon.md"]);
    assert_eq!(hits(&response)[0]["retrieval"]["method"], "lexical");
    assert_eq!(response["hint"], "No embedding model is configured, so the answer is lexical.");
    let refused = run(&["search", "--json", "--mode", "vector", "daemon"]).code(2).error();
    assert_eq!(refused["code"], "model_unreachable");
    assert!(refused["hint"].as_str().unwrap().contains("lexical"), "{refused}");
}

#[test]
fn an_endpoint_that_is_down_and_vectors_of_another_model_leave_the_words() {
    let library = Library::new(&[DAEMON], 5);
    let down = |cmd: Cmd| cmd.env("KEBAB_MODELS_EMBEDDING_ENDPOINT", "http://127.0.0.1:9");
    let response = down(library.cmd(["search", "--json", "daemon"])).ok().json();
    assert_eq!(paths(&response), ["daemon.md"]);
    assert!(response["hint"].as_str().unwrap().starts_with("The answer is lexical: model "), "{response}");
    let refused = down(library.cmd(["search", "--json", "--mode", "vector", "daemon"])).run().code(2).error();
    assert_eq!(refused["code"], "model_unreachable");

    let other = |args: [&str; 5]| library.model.for_model("another", library.dir.cmd(args)).ok().json();
    let response = other(["search", "--json", "--mode", "hybrid", "daemon"]);
    assert_eq!(paths(&response), ["daemon.md"]);
    assert!(response["hint"].as_str().unwrap().contains("vectors of another model"), "{response}");
}

#[test]
fn what_is_not_embedded_yet_is_found_by_words_and_counted() {
    let library = Library::new(&[], 9);
    library.dir.write(DAEMON.0, DAEMON.1);
    library.cmd(["ingest", "--no-embed"]).ok();
    let response = library.search(json!({"query": "a daemon in the oven"}));
    assert_eq!(
        response["hint"],
        "90 % of the passages are embedded, the rest is found by words alone; `kebab-lite ingest` embeds it."
    );
    let hit = hits(&response).iter().find(|hit| hit["doc_path"] == "daemon.md").expect("found by its word");
    assert_eq!((&hit["retrieval"]["vector_score"], &hit["embedding_model"]), (&Value::Null, &Value::Null));
    let response = library.search(json!({"query": "a daemon in the oven", "mode": "vector"}));
    assert_eq!(hits(&response).len(), 9);
    assert!(response["hint"].as_str().unwrap().contains("cannot be found by meaning yet"), "{response}");

    let empty = Library { dir: Dir::indexed(&[DAEMON]), model: ModelServer::start() };
    let response = empty.search(json!({"query": "daemon"}));
    assert_eq!(response["hint"], "Nothing is embedded yet, so the answer is lexical; `kebab-lite ingest` embeds.");
    let response = empty.search(json!({"query": "daemon", "mode": "vector"}));
    assert_eq!(
        (hits(&response).len(), &response["hint"]),
        (0, &json!("Nothing is embedded yet: run `kebab-lite ingest`."))
    );
    assert_eq!(empty.model.take_texts(), [""; 0], "nothing to compare with, nothing to ask");
}

#[test]
fn the_nearest_of_the_few_embedded_do_not_stand_before_what_the_words_found() {
    let library = Library::new(&[], 3);
    for i in 0..60 {
        let about = if i % 20 == 0 { "a lantern in the window" } else { "a chair at the table" };
        library.dir.write(&format!("plain/{i:02}.md"), format!("# Plain {i}\n\nThing{i}: {about}.\n"));
    }
    library.cmd(["ingest", "--no-embed"]).ok();
    let response = library.search(json!({"query": "a lantern that sheds light", "k": 5}));
    let first = paths(&response)[0];
    assert!(first.starts_with("plain/"), "{response}");
}

#[test]
fn a_page_of_another_kind_of_answer_is_stale() {
    let library = Library::new(&[DAEMON], 30);
    let first = library.search(json!({"query": "oven", "k": 5}));
    let cursor = first["next_cursor"].as_str().unwrap();
    let lexical = library.dir.cmd(["search", "--json", "--k", "5", "--cursor", cursor, "oven"]);
    assert_eq!(lexical.run().code(2).error()["code"], "stale_cursor");
}

#[test]
fn a_server_of_a_large_store_asks_a_graph() {
    let library = Library::new(&[DAEMON], 60);
    library.dir.config("[index]\ngraph_above = 10\n");
    let exact = library.search(json!({"query": "halt my server", "k": 3}));
    let mut server = Server::run(library.cmd(["mcp", "--no-sync"]).into_command());
    server.shake_hands("2025-11-25");
    let started = Instant::now();
    let response = loop {
        let response = server.told("search", json!({"query": "halt my server", "k": 3, "trace": true}));
        if response["trace"]["nearest_by"] == "graph" {
            break response;
        }
        assert!(started.elapsed() < PATIENCE, "no graph: {}", response["trace"]["nearest_by"]);
    };
    assert_eq!(paths(&response)[0], paths(&exact)[0]);
    assert_eq!(scores(&response)[0], scores(&exact)[0]);
    // A filter is answered exactly.
    let filter = json!({"query": "halt my server", "path_glob": "notes/*", "trace": true});
    assert_eq!(server.told("search", filter)["trace"]["nearest_by"], "scan");
}
