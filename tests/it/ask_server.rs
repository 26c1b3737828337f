//! Questions beside other work: what a slow model may hold up, how soon one is left, and what an answer costs besides it.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use kebab_lite::tools::ask::{self, AskInput};
use kebab_lite::tools::search::{self, SearchInput};
use serde_json::{Value, json};

use crate::ask::{QUESTION, corpus};
use crate::ask_trouble::until;
use crate::http::Http;
use crate::mcp::{MODERN, Server, modern};
use crate::parity::library;
use crate::stub::{Act, Dialect, Stub, head};

fn call(id: u32, name: &str, arguments: Value) -> Value {
    json!({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": {"name": name, "arguments": arguments}})
}

fn question(id: u32) -> Value {
    call(id, "ask", json!({"question": QUESTION, "mode": "lexical"}))
}

#[test]
fn questions_hold_up_neither_searches_nor_ingests_and_end_when_cancelled() {
    // It reads a long prompt and says nothing.
    let stub = Stub::start(Dialect::Ollama, |_, _| Act::Hang(Vec::new()));
    let dir = corpus(&stub);
    let mut server = Server::start(&dir);
    server.shake_hands("2025-11-25");
    let asked = 12;
    (1..=asked).for_each(|id| server.say(&question(id)));
    until(|| stub.requests().len() >= 2);
    for round in 0..3 {
        let started = Instant::now();
        let hits = server.told("search", json!({"query": "nightly backup", "mode": "lexical"}));
        assert_eq!(hits["hits"][0]["doc_path"], "docs/backup.md");
        let text = format!("# Note {round}\n\nA note.\n");
        dir.write("docs/note.md", &text);
        let ingested = server.told("ingest_file", json!({"path": "docs/note.md"}));
        assert_eq!(ingested["schema_version"], "ingest_report.v1", "{ingested}");
        // Not one of the questions has been answered, and none will be.
        assert!(started.elapsed() < Duration::from_secs(10), "{:?}", started.elapsed());
    }
    let begun = stub.requests().len();
    for id in 1..=asked {
        server.say(&json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": id}}));
    }
    let started = Instant::now();
    until(|| stub.hung_up() >= begun);
    assert!(started.elapsed() < Duration::from_secs(3), "{:?}", started.elapsed());
    // Those that waited for their turn were never asked.
    assert_eq!((stub.requests().len(), stub.hung_up()), (begun, begun));
    let (lines, code) = server.end();
    assert_eq!(code, Some(0), "{lines:?}");
}

#[test]
fn a_client_that_leaves_takes_its_question_along() {
    let stub = Stub::start(Dialect::OpenAi, |_, _| Act::Hang(head(Dialect::OpenAi).into_bytes()));
    let dir = corpus(&stub);
    let http = Http::start(&dir, &[]);
    let params = modern(json!({"name": "ask", "arguments": {"question": QUESTION, "mode": "lexical"}}));
    let message = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params});
    let fields = [("MCP-Protocol-Version", MODERN), ("Mcp-Method", "tools/call"), ("Mcp-Name", "ask")];
    let mut wire = http.wire();
    wire.send(http.request(&fields, &message.to_string()));
    until(|| stub.requests().len() == 1);
    wire.hang_up();
    until(|| stub.hung_up() == 1);
}

/// The fastest of some runs: a busy machine only ever adds.
fn least(runs: usize, mut run: impl FnMut()) -> Duration {
    (0..runs)
        .map(|_| {
            let started = Instant::now();
            run();
            started.elapsed()
        })
        .min()
        .expect("some runs")
}

#[test]
fn an_answer_costs_little_besides_its_search_and_its_model() {
    let stub = Stub::saying(
        Dialect::Ollama,
        "The nightly backup of the daemon runs beside other work [1]. It keeps its copies.",
    );
    let dir = corpus(&stub);
    for number in 0..40 {
        let words = "The nightly backup of the daemon runs beside other work that keeps its copies. ".repeat(12);
        dir.write(&format!("notes/{number}.md"), format!("# Night {number}\n\n{words}\n"));
    }
    dir.cmd(["ingest"]).ok();
    let kb = library(&dir);
    let never = AtomicBool::new(false);
    let input = AskInput::from_json(json!({"question": QUESTION, "mode": "lexical"})).unwrap();
    let found = SearchInput::from_json(json!({"query": QUESTION, "mode": "lexical", "snippet_chars": 400})).unwrap();
    let ask = || {
        let answer = ask::run(&kb, &input, &never, &mut |_| {}).unwrap();
        assert!(answer.grounded && answer.retrieval.chunks_used > 5, "{answer:?}");
    };
    ask();
    let (host, body) = (stub.address.strip_prefix("http://").unwrap(), stub.requests()[0].body.to_string());
    let model = || {
        let mut stream = TcpStream::connect(host).unwrap();
        let length = body.len();
        write!(stream, "POST /api/chat HTTP/1.1\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n{body}")
            .unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert!(answer.contains("copies"), "{answer}");
    };
    let search = || assert_eq!(search::run(&kb, &found).unwrap().hits.len(), 10);
    let (asked, searched, modelled) = (least(40, ask), least(40, search), least(40, model));
    let besides = asked.saturating_sub(searched + modelled);
    eprintln!("an answer {asked:?}, its search {searched:?}, its model {modelled:?}, besides {besides:?}");
    // Unoptimised code takes some ten times as long.
    let most = Duration::from_millis(if cfg!(debug_assertions) { 50 } else { 5 });
    assert!(besides <= most, "{besides:?}");
}
