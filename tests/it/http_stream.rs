//! Answers over HTTP that take their time: streams of events, and requests that are no longer wanted.

use std::io::BufRead;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::ask::{ANSWER, QUESTION, corpus};
use crate::ask_trouble::begun;
use crate::harness::Dir;
use crate::http::{Http, call};
use crate::mcp::{MODERN, PATIENCE, modern, notes};
use crate::stub::{Act, Dialect, Stub};

#[test]
fn who_asks_for_progress_gets_a_stream_of_events() {
    let dir = notes();
    let http = Http::start(&dir, &[]);
    let session = http.session("2025-11-25");
    let queries: Vec<Value> = (0..50).map(|place| json!({"query": format!("port copy store {place}")})).collect();
    let bulk = json!({"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": {"name": "bulk_search", "arguments": {"queries": queries}, "_meta": {"progressToken": "p"}}});
    let mut wire = http.wire();
    for accept in ["application/json, text/event-stream", "*/*"] {
        let fields = [("Mcp-Session-Id", session.as_str()), ("Accept", accept)];
        wire.send(http.request(&fields, &bulk.to_string()));
        let answer = wire.hear();
        assert_eq!(answer.field("Content-Type"), Some("text/event-stream"));
        let mut events = answer.events();
        assert_eq!(events.pop().unwrap()["id"], 7);
        let steps: Vec<u64> = events.iter().map(|event| event["params"]["progress"].as_u64().unwrap()).collect();
        assert!(!steps.is_empty() && steps.is_sorted_by(|one, next| one < next), "{steps:?}");
        assert!(events.iter().all(|event| event["params"]["progressToken"] == "p"));
    }
    let fields = [("Mcp-Session-Id", session.as_str()), ("Accept", "application/json")];
    wire.send(http.request(&fields, &bulk.to_string()));
    assert_eq!(wire.hear().json()["id"], 7);
    wire.send(http.request(&[("Mcp-Session-Id", session.as_str())], &call(8, "port").to_string()));
    assert_eq!(wire.hear().field("Content-Type"), Some("application/json"));
}

#[test]
fn a_cancelled_request_ends_without_an_answer() {
    let dir = notes();
    let http = Http::start(&dir, &[]);
    let session = http.session("2025-03-26");
    let fields = [("Mcp-Session-Id", session.as_str())];
    let queries: Vec<Value> =
        (0..100).map(|place| json!({"query": format!("port copy store {place}"), "k": 50})).collect();
    let bulk = |id: u32| json!({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": {"name": "bulk_search", "arguments": {"queries": queries}}});
    // They wait for the workers that take slow work, one behind the other, so the last cannot have begun.
    let batch: Vec<Value> = (0..20).map(bulk).collect();
    let (mut many, mut one) = (http.wire(), http.wire());
    many.send(http.request(&fields, &Value::from(batch).to_string()));
    std::thread::sleep(Duration::from_millis(50));
    one.send(http.request(&fields, &bulk(20).to_string()));
    std::thread::sleep(Duration::from_millis(50));
    for id in [19, 20] {
        let params = json!({"requestId": id, "reason": "test"});
        let cancel = json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params});
        assert_eq!(http.post(&fields, &cancel).status, 202);
    }
    let answer = one.hear();
    assert_eq!((answer.status, answer.body.len()), (202, 0));
    let answers = many.hear().json();
    let mut ids: Vec<u64> = answers.as_array().unwrap().iter().map(|answer| answer["id"].as_u64().unwrap()).collect();
    ids.sort_unstable();
    assert_eq!(ids, (0..19).collect::<Vec<u64>>());
}

/// A question to a model that takes its time.
fn question(id: u32, session_id: &str) -> Value {
    let arguments = json!({"question": QUESTION, "mode": "lexical", "session_id": session_id});
    json!({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": {"name": "ask", "arguments": arguments}})
}

fn modern_question(session_id: &str, progress: bool) -> Value {
    let mut question = question(1, session_id);
    question["params"] = modern(question["params"].take());
    if progress {
        question["params"]["_meta"]["progressToken"] = json!("p");
    }
    question
}

/// Waits for what is certain to come, or not to.
pub fn until(mut done: impl FnMut() -> bool) {
    let started = Instant::now();
    while !done() {
        assert!(started.elapsed() < PATIENCE, "it did not come to that");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Sessions of `ask` that have kept a turn: what was finished, whoever heard of it.
fn kept(dir: &Dir) -> Vec<String> {
    let kept = dir.cmd(["ask", "--json", "--list-sessions"]).ok().json();
    let names = kept["sessions"].as_array().unwrap().iter();
    let mut names: Vec<String> = names.map(|session| session["session_id"].as_str().unwrap().to_owned()).collect();
    names.sort();
    names
}

#[test]
fn who_hangs_up_without_a_session_has_cancelled() {
    // It begins an answer that never ends.
    let stub = Stub::start(Dialect::OpenAi, |_, _| Act::Hang(begun(Dialect::OpenAi)));
    let dir = corpus(&stub);
    let http = Http::start(&dir, &[]);
    let fields = [("MCP-Protocol-Version", MODERN), ("Mcp-Method", "tools/call"), ("Mcp-Name", "ask")];
    // Whoever waits for one answer, and whoever has seen the stream begin.
    for (round, progress) in [false, true].into_iter().enumerate() {
        let mut wire = http.wire();
        wire.send(http.request(&fields, &modern_question("modern", progress).to_string()));
        until(|| stub.requests().len() == round + 1);
        if progress {
            let mut line = String::new();
            while !line.starts_with("data: ") {
                line.clear();
                wire.stream.read_line(&mut line).unwrap();
            }
            assert!(line.contains("notifications/progress"), "{line}");
        }
        assert_eq!(stub.hung_up(), round);
        wire.hang_up();
        until(|| stub.hung_up() == round + 1);
    }
    assert_eq!(kept(&dir), [""; 0]);
    assert_eq!(http.ask_modern("server/discover", json!({})).status, 200);
}

#[test]
fn who_hangs_up_within_a_session_has_not_cancelled() {
    let stub = Stub::start(Dialect::OpenAi, |_, _| Act::SaySlowly(ANSWER.into(), Duration::from_millis(60)));
    let dir = corpus(&stub);
    let http = Http::start(&dir, &[]);
    let session = http.session("2025-11-25");
    let fields = [("Mcp-Session-Id", session.as_str())];
    let mut wire = http.wire();
    wire.send(http.request(&fields, &question(1, "legacy").to_string()));
    until(|| stub.requests().len() == 1);
    wire.hang_up();
    // The answer is kept though nobody hears of it.
    until(|| kept(&dir) == ["legacy"]);
    assert_eq!(stub.hung_up(), 0);
    // The session lives on, and what is cancelled in it by word stops.
    let mut wire = http.wire();
    wire.send(http.request(&fields, &question(2, "cancelled").to_string()));
    until(|| stub.requests().len() == 2);
    let cancel = json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 2}});
    assert_eq!(http.post(&fields, &cancel).status, 202);
    assert_eq!(wire.hear().status, 202);
    until(|| stub.hung_up() == 1);
    assert_eq!(kept(&dir), ["legacy"]);
}
