//! The server over real pipes: what it says, message by message.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::harness::Dir;

/// For an answer; far longer than any takes.
pub const PATIENCE: Duration = Duration::from_secs(20);

pub const MODERN: &str = "2026-07-28";

/// A running server and the client that talks to it.
pub struct Server {
    pub child: Child,
    stdin: Option<ChildStdin>,
    lines: Receiver<String>,
}

impl Server {
    /// In the workspace of this folder, on its index, without the ingest in the background.
    pub fn start(dir: &Dir) -> Server {
        Server::run(dir.cmd(["mcp", "--no-sync"]).into_command())
    }

    pub fn run(mut command: Command) -> Server {
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().expect("the program starts");
        let stdout = BufReader::new(child.stdout.take().expect("piped"));
        let (say, lines) = channel();
        thread::spawn(move || {
            for line in stdout.lines() {
                let Ok(line) = line else { return };
                if say.send(line).is_err() {
                    return;
                }
            }
        });
        let stdin = child.stdin.take();
        Server { child, stdin, lines }
    }

    /// Sends bytes as they are.
    pub fn send(&mut self, bytes: impl AsRef<[u8]>) {
        self.stdin.as_mut().expect("open").write_all(bytes.as_ref()).expect("the server reads");
    }

    pub fn say(&mut self, message: &Value) {
        self.send(format!("{message}\n"));
    }

    #[track_caller]
    pub fn line(&mut self) -> String {
        self.lines.recv_timeout(PATIENCE).expect("a line from the server")
    }

    /// The next line.
    #[track_caller]
    pub fn hear(&mut self) -> Value {
        let line = self.line();
        serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line}"))
    }

    #[track_caller]
    pub fn hears_nothing(&mut self) {
        assert_eq!(self.lines.recv_timeout(Duration::from_millis(100)), Err(RecvTimeoutError::Timeout));
    }

    /// Asks, and hears the next line.
    #[track_caller]
    pub fn ask(&mut self, method: &str, params: Value) -> Value {
        self.say(&json!({"jsonrpc": "2.0", "id": "ask", "method": method, "params": params}));
        let answer = self.hear();
        assert_eq!(answer["id"], "ask", "{answer}");
        answer
    }

    /// The result of a tool.
    #[track_caller]
    pub fn call(&mut self, name: &str, arguments: Value) -> Value {
        self.ask("tools/call", json!({"name": name, "arguments": arguments}))["result"].clone()
    }

    /// What the tool says, be it an answer or an error.v1.
    #[track_caller]
    pub fn told(&mut self, name: &str, arguments: Value) -> Value {
        let result = self.call(name, arguments);
        let text = result["content"][0]["text"].as_str().unwrap_or_else(|| panic!("{result}"));
        serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
    }

    #[track_caller]
    pub fn shake_hands(&mut self, revision: &str) {
        let answer = self.ask(
            "initialize",
            json!({"protocolVersion": revision, "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}),
        );
        assert_eq!(answer["result"]["protocolVersion"], revision);
        self.say(&json!({"jsonrpc": "2.0", "method": "notifications/initialized"}));
    }

    pub fn close_stdin(&mut self) {
        self.stdin = None;
    }

    /// Closes stdin; the lines that were left and the exit code.
    #[track_caller]
    pub fn end(mut self) -> (Vec<String>, Option<i32>) {
        self.close_stdin();
        let code = self.wait(PATIENCE);
        (self.lines.iter().collect(), code)
    }

    /// The exit code, if the server ends in time.
    #[track_caller]
    pub fn wait(&mut self, limit: Duration) -> Option<i32> {
        let started = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().expect("a process can be waited for") {
                return status.code();
            }
            assert!(started.elapsed() < limit, "the server did not end within {limit:?}");
            thread::sleep(Duration::from_millis(1));
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Ended already, unless the test failed.
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

pub fn modern(mut params: Value) -> Value {
    params["_meta"]["io.modelcontextprotocol/protocolVersion"] = json!(MODERN);
    params["_meta"]["io.modelcontextprotocol/clientCapabilities"] = json!({});
    params
}

pub fn notes() -> Dir {
    Dir::indexed(&[
        ("guide/backup.md", "# Backups\n\nCopy the store every night. The copy is checked.\n"),
        ("notes.txt", "The daemon listens on port 4711.\n"),
    ])
}

#[test]
fn the_same_search_says_the_same_over_the_command_line_and_the_protocol() {
    let dir = notes();
    let mut server = Server::start(&dir);
    for (argv, arguments) in [
        (vec!["search", "--json", "backups"], json!({"query": "backups"})),
        (vec!["search", "--json", "--k", "1", "copy store"], json!({"query": "copy store", "k": 1})),
        (vec!["search", "--json", "nothing_of_this_kind"], json!({"query": "nothing_of_this_kind"})),
    ] {
        let line = dir.cmd(argv).ok().stdout;
        let result = server.call("search", arguments);
        assert_eq!(result["content"][0]["text"].as_str().unwrap(), line.trim_end());
        assert_eq!(result["structuredContent"], serde_json::from_str::<Value>(&line).unwrap());
    }
    for (argv, tool) in [(["schema", "--json"], "schema"), (["doctor", "--json"], "doctor")] {
        let line = dir.cmd(argv).ok().stdout;
        assert_eq!(server.call(tool, json!({}))["content"][0]["text"].as_str().unwrap(), line.trim_end());
    }
    let error = dir.cmd(["search", "--json", "--k", "0", "x"]).run().code(2).error();
    assert_eq!(server.told("search", json!({"query": "x", "k": "0"})), error);
}

#[test]
fn a_client_without_a_handshake_and_one_with_share_a_pipe() {
    let dir = notes();
    let mut server = Server::start(&dir);
    assert_eq!(server.ask("ping", json!({}))["result"], json!({}));
    assert_eq!(server.ask("server/discover", modern(json!({})))["result"]["supportedVersions"][0], MODERN);
    let early = server.call("search", json!({"query": "backups"}));
    assert_eq!(early["structuredContent"]["hits"][0]["doc_path"], "guide/backup.md");
    server.shake_hands("2025-06-18");
    let answer = server.ask("tools/call", modern(json!({"name": "search", "arguments": {"query": "backups"}})));
    assert_eq!(answer["result"]["resultType"], "complete");
    assert_eq!(answer["result"]["structuredContent"], early["structuredContent"]);
    server.say(&json!({"jsonrpc": "2.0", "method": "notifications/of/no/kind", "params": {"x": 1}}));
    assert_eq!(server.ask("ping", json!({}))["result"], json!({}));
    assert_eq!(server.end(), (vec![], Some(0)));
}

#[test]
fn ids_and_tokens_come_back_as_they_went() {
    let dir = notes();
    let mut server = Server::start(&dir);
    for id in ["0", "-1", "18446744073709551616", "\"\"", "\"\\u0061\"", "\"한글\""] {
        server.send(format!("{{\"jsonrpc\":\"2.0\",\"id\":{id},\"method\":\"tools/call\",\"params\":{{\"name\":\"search\",\"arguments\":{{\"query\":\"port\"}}}}}}\n"));
        let line = server.line();
        assert!(line.starts_with(&format!("{{\"jsonrpc\":\"2.0\",\"id\":{id},\"result\":{{\"content\"")), "{line}");
    }
    for (token, place) in [("\"t\"", 1), ("7", 2), ("\"7\"", 3)] {
        server.send(format!("{{\"jsonrpc\":\"2.0\",\"id\":{place},\"method\":\"tools/call\",\"params\":{{\"name\":\"bulk_search\",\"arguments\":{{\"queries\":[{{\"query\":\"port\"}}]}},\"_meta\":{{\"progressToken\":{token}}}}}}}\n"));
        assert_eq!(
            server.line(),
            format!(
                "{{\"jsonrpc\":\"2.0\",\"method\":\"notifications/progress\",\"params\":{{\"progressToken\":{token},\"progress\":1,\"total\":1,\"message\":\"searching\"}}}}"
            )
        );
        assert_eq!(server.hear()["id"], json!(place));
    }
    server.hears_nothing();
}

#[test]
fn broken_lines_are_answered_and_lived_through() {
    let dir = notes();
    let mut server = Server::start(&dir);
    let deep = "[".repeat(200_000);
    let nested = format!(
        "{{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"tools/call\",\"params\":{{\"name\":\"search\",\"arguments\":{{\"query\":{deep}{}}}}}}}",
        "]".repeat(200_000)
    );
    for (line, code) in [
        (b"{\n".to_vec(), -32700),
        (b"\xff\xfe\n".to_vec(), -32700),
        (format!("{deep}\n").into_bytes(), -32700),
        (b"[]\n".to_vec(), -32600),
        (b"[{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"ping\"}]\n".to_vec(), -32600),
        (b"{\"jsonrpc\":\"2.0\",\"id\":null,\"method\":\"ping\"}\n".to_vec(), -32600),
        (b"{\"jsonrpc\":\"2.0\",\"id\":1.5,\"method\":\"ping\"}\n".to_vec(), -32600),
        (b"{\"jsonrpc\":\"2.0\",\"id\":1,\"id\":1,\"method\":\"ping\"}\n".to_vec(), -32600),
    ] {
        server.send(&line);
        let answer = server.hear();
        assert_eq!((&answer["id"], &answer["error"]["code"]), (&Value::Null, &json!(code)), "{answer}");
    }
    server.send(format!("{nested}\n"));
    assert_eq!(server.hear()["result"]["isError"], true);
    server.send("\n\r\n  \n\u{feff}{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"ping\"}\r\n");
    assert_eq!(server.line(), "{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{}}");
    server.hears_nothing();
}

#[test]
fn a_line_of_20_mb_is_skipped_in_little_memory() {
    let dir = notes();
    let mut server = Server::start(&dir);
    assert_eq!(server.ask("ping", json!({}))["result"], json!({}));
    server.send("{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"");
    let piece = "x".repeat(1 << 20);
    for _ in 0..20 {
        server.send(&piece);
    }
    server.hears_nothing();
    #[cfg(target_os = "linux")]
    {
        let status = std::fs::read_to_string(format!("/proc/{}/status", server.child.id())).unwrap();
        let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
        let kilobytes: u64 = peak.trim().trim_end_matches(" kB").parse().unwrap();
        assert!(kilobytes < 64 << 10, "{kilobytes} kB");
    }
    server.send("\"}\n");
    assert_eq!(server.hear()["error"]["code"], -32600);
    assert_eq!(server.ask("ping", json!({}))["result"], json!({}));
    let almost = format!(
        "{{\"jsonrpc\":\"2.0\",\"id\":2,\"method\":\"ping\",\"params\":{{\"x\":\"{}\"}}}}",
        "x".repeat(4_000_000)
    );
    server.send(format!("{almost}\n"));
    assert_eq!(server.line(), "{\"jsonrpc\":\"2.0\",\"id\":2,\"result\":{}}");
}

#[test]
fn the_last_line_needs_no_line_feed() {
    let dir = notes();
    for (input, expected) in [
        ("{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"ping\"}", vec!["{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{}}"]),
        (
            "{\"jsonrpc\":\"2.0\",\"id\":1,\"meth",
            vec![
                "{\"jsonrpc\":\"2.0\",\"id\":null,\"error\":{\"code\":-32700,\"message\":\"EOF while parsing a string at line 1 column 29\"}}",
            ],
        ),
        ("", vec![]),
    ] {
        let mut server = Server::start(&dir);
        server.send(input);
        let (lines, code) = server.end();
        assert_eq!((lines, code), (expected.iter().map(|line| (*line).to_owned()).collect(), Some(0)), "{input}");
    }
}

#[test]
fn jobs_in_flight_are_finished_at_the_end() {
    let dir = notes();
    let mut server = Server::start(&dir);
    for id in 0..200 {
        server.say(&json!({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": {"name": "search", "arguments": {"query": "port"}}}));
    }
    let (lines, code) = server.end();
    assert_eq!((lines.len(), code), (200, Some(0)));
}

#[test]
fn ten_thousand_requests_in_one_write_are_all_answered() {
    let dir = notes();
    let mut server = Server::start(&dir);
    let line = |id: usize| match id % 10 {
        0 => {
            json!({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": {"name": "search", "arguments": {"query": "port", "k": 1}}})
        }
        _ => json!({"jsonrpc": "2.0", "id": id, "method": "ping"}),
    };
    let all: String = (0..10_000).map(|id| format!("{}\n", line(id))).collect();
    server.send(all);
    let mut seen = vec![false; 10_000];
    for _ in 0..10_000 {
        let answer = server.hear();
        assert!(answer.get("result").is_some(), "{answer}");
        assert!(!std::mem::replace(&mut seen[answer["id"].as_u64().unwrap() as usize], true));
    }
    server.hears_nothing();
}

#[test]
fn a_cancelled_request_is_silent_and_others_are_not() {
    let dir = notes();
    let mut server = Server::start(&dir);
    let cancel = |id: Value| json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": id, "reason": "test"}});
    // Of no request, of one that is finished, of a method that is never under way.
    server.say(&cancel(json!("nobody")));
    assert_eq!(server.ask("ping", json!({}))["result"], json!({}));
    server.say(&cancel(json!("ask")));
    server.say(&cancel(json!({"not": "an id"})));

    let queries: Vec<Value> = (0..100).map(|place| json!({"query": format!("port copy store {place}")})).collect();
    let bulk = |id: u32| json!({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": {"name": "bulk_search", "arguments": {"queries": queries}, "_meta": {"progressToken": id}}});
    // Many of them wait for the one worker that takes slow work, so the last cannot have begun.
    let all: String = (0..20).map(|id| format!("{}\n", bulk(id))).collect();
    server.send(format!("{all}{}\n{}\n", cancel(json!(19)), cancel(json!("18"))));
    assert_eq!(server.ask_among("ping")["result"], json!({}));
    let mut answered = Vec::new();
    while answered.len() < 19 {
        let message = server.hear();
        if message.get("method").is_some() {
            assert_ne!(message["params"]["progressToken"], 19, "{message}");
            assert!(!answered.contains(&message["params"]["progressToken"]), "progress after the answer: {message}");
        } else {
            answered.push(message["id"].clone());
        }
    }
    assert!(!answered.contains(&json!(19)) && answered.contains(&json!(18)), "{answered:?}");
    server.hears_nothing();
}

impl Server {
    /// Asks, and hears the answer among whatever else comes; the rest is lost.
    #[track_caller]
    fn ask_among(&mut self, method: &str) -> Value {
        self.say(&json!({"jsonrpc": "2.0", "id": "among", "method": method}));
        let mut early = Vec::new();
        loop {
            let message = self.hear();
            if message["id"] == "among" {
                assert!(early.len() < 10, "a cheap request waited for slow ones: {early:?}");
                return message;
            }
            early.push(message["id"].clone());
        }
    }
}

#[test]
fn slow_calls_delay_neither_pings_nor_searches() {
    let dir = notes();
    let mut server = Server::start(&dir);
    let queries: Vec<Value> =
        (0..100).map(|place| json!({"query": format!("port copy store {place}"), "k": 50})).collect();
    let bulks: String = (0..50).map(|id| {
        format!("{}\n", json!({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": {"name": "bulk_search", "arguments": {"queries": queries}}}))
    }).collect();
    server.send(bulks);
    server.say(&json!({"jsonrpc": "2.0", "id": "ping", "method": "ping"}));
    server.say(&json!({"jsonrpc": "2.0", "id": "search", "method": "tools/call", "params": {"name": "search", "arguments": {"query": "port"}}}));
    let order: Vec<Value> = (0..52).map(|_| server.hear()["id"].clone()).collect();
    let place = |id: &str| order.iter().position(|other| other == id).unwrap();
    assert!(place("ping") < 25 && place("search") < 25, "{order:?}");
}

#[test]
fn batches_are_answered_as_arrays_once_agreed_on() {
    let dir = notes();
    let mut server = Server::start(&dir);
    let batch = json!([
        {"jsonrpc": "2.0", "id": 1, "method": "ping"},
        {"jsonrpc": "2.0", "method": "notifications/initialized"},
        {"jsonrpc": "2.0", "id": "s", "method": "tools/call", "params": {"name": "search", "arguments": {"query": "port"}}},
        {"jsonrpc": "2.0", "id": 2, "method": "nope"},
        5
    ]);
    server.say(&batch);
    assert_eq!(server.hear()["error"]["code"], -32600);
    server.shake_hands("2025-03-26");
    server.say(&batch);
    let answers = server.hear();
    let mut ids: Vec<String> = answers.as_array().unwrap().iter().map(|answer| answer["id"].to_string()).collect();
    ids.sort();
    assert_eq!(ids, ["\"s\"", "1", "2", "null"]);
    server.say(&json!([{"jsonrpc": "2.0", "method": "notifications/initialized"}]));
    server.say(&json!([]));
    assert_eq!(server.hear()["error"]["code"], -32600);
    server.hears_nothing();
    server.shake_hands("2025-06-18");
    server.say(&batch);
    assert_eq!(server.hear()["error"]["code"], -32600);
}

#[test]
fn resources_are_read_by_id() {
    let text = "# Backups\n\nCopy the store every night. The copy is checked.\n";
    let dir = notes();
    let mut server = Server::start(&dir);
    let hit = server.call("search", json!({"query": "backups"}))["structuredContent"]["hits"][0].clone();
    assert_eq!(server.ask("resources/list", json!({}))["result"], json!({"resources": []}));
    let templates = server.ask("resources/templates/list", json!({}))["result"]["resourceTemplates"].clone();
    assert_eq!(templates[0]["uriTemplate"], "kebab://doc/{id}");
    assert_eq!(templates[1]["uriTemplate"], "kebab://chunk/{id}");
    let uri = format!("kebab://doc/{}", hit["doc_id"].as_str().unwrap());
    let read = server.ask("resources/read", json!({"uri": uri}))["result"].clone();
    assert_eq!(read, json!({"contents": [{"uri": uri, "mimeType": "text/markdown", "text": text}]}));
    let uri = format!("kebab://chunk/{}", hit["chunk_id"].as_str().unwrap());
    let read = server.ask("resources/read", modern(json!({"uri": uri})))["result"].clone();
    assert_eq!(read["contents"][0]["text"], hit["snippet"]);
    assert_eq!((&read["ttlMs"], &read["cacheScope"]), (&json!(0), &json!("private")));
    let nobody = "kebab://chunk/00000000000000000000000000000000";
    assert_eq!(server.ask("resources/read", json!({"uri": nobody}))["error"]["code"], -32002);
    assert_eq!(server.ask("resources/read", modern(json!({"uri": nobody})))["error"]["code"], -32602);
}

#[test]
fn an_answer_stays_under_a_mebibyte_whatever_is_asked_for() {
    let dir = Dir::new();
    dir.config("[ingest.chunking]\ntarget_tokens = 4000\nmax_chunk_tokens = 4000\n");
    for place in 0..120 {
        dir.write(&format!("{place}.md"), format!("# Apple {place}\n\n{}\n", "\"b\" \\\"가나다\" ".repeat(250)));
    }
    dir.cmd(["ingest"]).ok();
    let mut server = Server::start(&dir);
    server.say(&json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "search", "arguments": {"query": "apple", "k": 100, "snippet_chars": 100000}}}));
    let line = server.line();
    assert!(line.len() < 500_000, "{}", line.len());
    for max_tokens in [500_000, 100_000_000] {
        server.say(&json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "search", "arguments": {"query": "apple", "k": 100, "snippet_chars": 100000, "max_tokens": max_tokens}}}));
        let line = server.line();
        assert!(line.len() < 1 << 20 && line.len() > 300_000, "{}", line.len());
        let answer: Value = serde_json::from_str(&line).unwrap();
        assert_eq!(answer["result"]["structuredContent"]["truncated"], true);
    }
    let queries: Vec<Value> =
        (0..8).map(|_| json!({"query": "apple", "k": 50, "snippet_chars": 100000, "max_tokens": 10_000_000})).collect();
    server.say(&json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "bulk_search", "arguments": {"queries": queries}}}));
    let line = server.line();
    assert!(line.len() < 1 << 20, "{}", line.len());
    let answer: Value = serde_json::from_str(&line).unwrap();
    assert_eq!(answer["result"]["structuredContent"]["summary"], json!({"total": 8, "succeeded": 8, "failed": 0}));
    let (lines, code) = server.end();
    assert_eq!((lines.len(), code), (0, Some(0)));
}

#[test]
fn nothing_but_the_protocol_is_on_stdout() {
    let dir = notes();
    let mut command = dir.cmd(["mcp", "--json"]).into_command();
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    child.stdin.take().unwrap().write_all(b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"ping\"}\n").unwrap();
    let (mut out, mut err) = (String::new(), String::new());
    child.stdout.take().unwrap().read_to_string(&mut out).unwrap();
    child.stderr.take().unwrap().read_to_string(&mut err).unwrap();
    assert_eq!((out.as_str(), err.as_str()), ("{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{}}\n", ""));
    assert_eq!(child.wait().unwrap().code(), Some(0));
}
