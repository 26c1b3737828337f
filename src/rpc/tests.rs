//! The dispatcher, message by message, and a great many broken ones.

use std::sync::Mutex;
use std::sync::atomic::AtomicBool;

use serde_json::{Value, json};

use super::*;
use crate::tools::tests::Folder;

fn server() -> Server {
    Server::new(Err(Error::ConfigInvalid { path: None, cause: "no root".into(), hint: None }), false)
}

/// The lines a transport would send about this one.
fn answers(server: &Server, line: &[u8], batches: bool) -> Vec<String> {
    fn done(server: &Server, step: Step) -> Vec<String> {
        match step {
            Step::Silence | Step::Cancel(_) => Vec::new(),
            Step::Answer(answer) | Step::Welcome { answer, .. } => vec![answer],
            Step::Refused(fault) => vec![fault.line()],
            Step::Call(work) => vec![call(server, &work, &AtomicBool::new(false), &|_| {})],
            Step::Batch(steps) => {
                let all: Vec<String> = steps.into_iter().flat_map(|step| done(server, step)).collect();
                if all.is_empty() { all } else { vec![format!("[{}]", all.join(","))] }
            }
        }
    }
    done(server, handle(server, line, batches))
}

fn ask(line: &str) -> Value {
    let lines = answers(&server(), line.as_bytes(), false);
    assert_eq!(lines.len(), 1, "{line}: {lines:?}");
    serde_json::from_str(&lines[0]).unwrap()
}

/// A request with the params of this method, of the modern era where `version` is given.
fn request(method: &str, params: Value, version: Option<&str>) -> String {
    let mut params = params;
    if let Some(version) = version {
        params["_meta"] = json!({
            "io.modelcontextprotocol/protocolVersion": version,
            "io.modelcontextprotocol/clientCapabilities": {}
        });
    }
    json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).to_string()
}

fn code(line: &str) -> i64 {
    let answer = ask(line);
    answer["error"]["code"].as_i64().unwrap_or_else(|| panic!("{line}: {answer}"))
}

#[test]
fn ids_are_echoed_as_they_came() {
    for id in ["0", "-7", "123456789012345678901234567890", "\"\"", "\"a\"", r#""\u0061\"""#, "\"한\"", "\"1\""] {
        let lines = answers(&server(), format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"ping"}}"#).as_bytes(), false);
        assert_eq!(lines, [format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{{}}}}"#)]);
    }
    for id in ["null", "1.5", "1.0", "1e3", "true", "[]", "{}", "[1]"] {
        let answer = ask(&format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"ping"}}"#));
        assert_eq!((&answer["id"], &answer["error"]["code"]), (&Value::Null, &json!(-32600)), "{id}");
    }
    let huge = format!(r#"{{"jsonrpc":"2.0","id":"{}","method":"ping"}}"#, "x".repeat(100_000));
    assert_eq!(ask(&huge)["error"]["code"], -32600);
}

#[test]
fn ids_that_mean_the_same_are_the_same() {
    let id = |text: &str| Id::token(&serde_json::from_str::<Box<RawValue>>(text).unwrap()).unwrap();
    assert!(id("\"a\"").same_as(&id("\"a\"")));
    assert!(id("\"a\"").same_as(&id(r#""\u0061""#)));
    assert!(!id("\"1\"").same_as(&id("1")));
    assert!(!id("\"a\"").same_as(&id(r#""\u0062""#)));
}

#[test]
fn a_line_that_is_no_message_has_one_answer() {
    for (line, expected) in [
        ("{", -32700),
        ("x", -32700),
        ("{}x", -32700),
        ("[1,", -32700),
        ("\"a", -32700),
        ("1 2", -32700),
        ("{\"id\":1}", -32600),
        ("{}", -32600),
        ("[]", -32600),
        ("[{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"ping\"}]", -32600),
        ("5", -32600),
        ("null", -32600),
        ("\"ping\"", -32600),
        ("{\"id\":1,\"method\":\"ping\"}", -32600),
        ("{\"jsonrpc\":\"1.0\",\"id\":1,\"method\":\"ping\"}", -32600),
        ("{\"jsonrpc\":2.0,\"id\":1,\"method\":\"ping\"}", -32600),
        ("{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":5}", -32600),
        ("{\"jsonrpc\":\"2.0\",\"method\":5}", -32600),
        ("{\"jsonrpc\":\"2.0\",\"id\":1,\"id\":2,\"method\":\"ping\"}", -32600),
        ("{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"ping\",\"params\":5}", -32600),
        ("{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"ping\",\"params\":[]}", -32602),
        ("{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"ping\",\"params\":{\"_meta\":5}}", -32602),
        ("{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"ping\",\"params\":{\"_meta\":{},\"_meta\":{}}}", -32602),
    ] {
        assert_eq!(code(line), expected, "{line}");
    }
    assert_eq!(answers(&server(), b"{\"a\":\"\xff\"}", false).len(), 1);
    let deep =
        format!("{{\"jsonrpc\":\"2.0\",\"id\":{}1{},\"method\":\"ping\"}}", "[".repeat(100_000), "]".repeat(100_000));
    assert_eq!(code(&deep), -32600);
    assert_eq!(code(&"[".repeat(1_000_000)), -32700);
    let deep = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
    assert_eq!(code(&deep), -32600);
}

#[test]
fn marks_and_line_ends_are_no_matter_and_some_lines_are_not_answered() {
    let ping = "{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"ping\"}";
    for line in
        [format!("\u{feff}{ping}"), format!("{ping}\r"), format!("  {ping} \t"), ping.replace("ping", "pi\\u006eg")]
    {
        assert_eq!(ask(&line), json!({"jsonrpc": "2.0", "id": 1, "result": {}}));
    }
    for line in [
        "",
        "  \r",
        "\u{feff}",
        "{\"jsonrpc\":\"2.0\",\"method\":\"notifications/initialized\"}",
        "{\"jsonrpc\":\"2.0\",\"method\":\"notifications/nobody/knows\",\"params\":{\"a\":[]}}",
        "{\"jsonrpc\":\"2.0\",\"method\":\"tools/list\"}",
        "{\"jsonrpc\":\"2.0\",\"method\":\"ping\",\"params\":5}",
        "{\"method\":\"ping\"}",
        "{\"jsonrpc\":\"2.0\",\"id\":9,\"result\":{}}",
        "{\"jsonrpc\":\"2.0\",\"id\":9,\"error\":{\"code\":1,\"message\":\"\"}}",
        "{\"jsonrpc\":\"2.0\",\"method\":\"notifications/cancelled\",\"params\":{\"requestId\":1}}",
        "{\"jsonrpc\":\"2.0\",\"method\":\"notifications/cancelled\",\"params\":{\"requestId\":[]}}",
        "{\"jsonrpc\":\"2.0\",\"method\":\"notifications/cancelled\"}",
    ] {
        assert_eq!(answers(&server(), line.as_bytes(), false), [""; 0], "{line}");
    }
}

#[test]
fn a_handshake_agrees_on_a_legacy_revision() {
    for (asked, agreed) in [
        ("2024-11-05", "2024-11-05"),
        ("2025-03-26", "2025-03-26"),
        ("2025-06-18", "2025-06-18"),
        ("2025-11-25", "2025-11-25"),
        ("2026-07-28", "2025-11-25"),
        ("2099-01-01", "2025-11-25"),
        ("", "2025-11-25"),
    ] {
        let line = request("initialize", json!({"protocolVersion": asked, "capabilities": {}}), None);
        let Step::Welcome { answer, revision } = handle(&server(), line.as_bytes(), false) else { panic!("{asked}") };
        let result = &serde_json::from_str::<Value>(&answer).unwrap()["result"];
        assert_eq!((revision, &result["protocolVersion"]), (agreed, &json!(agreed)));
        assert_eq!(result["capabilities"], json!({"tools": {}, "resources": {}}));
        assert_eq!(result["serverInfo"]["name"], "kebab-lite");
        assert!(result.get("resultType").is_none() && result.get("_meta").is_none());
        assert_eq!(takes_batches(revision), agreed == "2025-03-26");
    }
    assert_eq!(code(&request("initialize", json!({}), None)), -32602);
    assert_eq!(code(&request("initialize", json!({"protocolVersion": 5}), None)), -32602);
    assert!(INSTRUCTIONS.len() < 2048);
}

#[test]
fn the_modern_era_is_checked_in_order_and_dressed() {
    let discover = ask(&request("server/discover", json!({}), Some(MODERN)));
    let result = &discover["result"];
    assert_eq!(
        result["supportedVersions"],
        json!(["2026-07-28", "2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05"])
    );
    for method in ["server/discover", "tools/list", "resources/list", "resources/templates/list"] {
        let answer = ask(&request(method, json!({}), Some(MODERN)));
        let result = &answer["result"];
        assert_eq!(result["resultType"], "complete", "{method}");
        assert!(result["ttlMs"].is_u64() && result["cacheScope"] == "public", "{method}");
        assert_eq!(result["_meta"]["io.modelcontextprotocol/serverInfo"]["name"], "kebab-lite", "{method}");
    }
    let called = ask(&request("tools/call", json!({"name": "search", "arguments": {"query": "x"}}), Some(MODERN)));
    assert_eq!((&called["result"]["resultType"], &called["result"]["isError"]), (&json!("complete"), &json!(true)));
    assert!(called["result"].get("ttlMs").is_none());

    // Keys before version, version before method, method before params.
    let with = |meta: Value, method: &str| {
        json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": {"_meta": meta}}).to_string()
    };
    let (version, capabilities) =
        ("io.modelcontextprotocol/protocolVersion", "io.modelcontextprotocol/clientCapabilities");
    assert_eq!(code(&with(json!({version: "1900-01-01"}), "nope")), -32602);
    assert_eq!(code(&with(json!({version: MODERN}), "nope")), -32602);
    assert_eq!(code(&with(json!({version: MODERN, capabilities: 5}), "nope")), -32602);
    assert_eq!(code(&with(json!({version: 5, capabilities: {}}), "nope")), -32602);
    assert_eq!(code(&with(json!({capabilities: {}}), "nope")), -32602);
    assert_eq!(code(&with(json!({}), "server/discover")), -32602);
    assert_eq!(code(&with(json!({version: MODERN, capabilities: {}}), "nope")), -32601);
    for gone in ["initialize", "ping", "logging/setLevel", "resources/subscribe"] {
        assert_eq!(code(&with(json!({version: MODERN, capabilities: {}}), gone)), -32601, "{gone}");
    }
    let refused = ask(&with(json!({version: "1900-01-01", capabilities: {}}), "nope"));
    assert_eq!(refused["error"]["code"], -32022);
    assert_eq!(refused["error"]["data"], json!({"supported": REVISIONS, "requested": "1900-01-01"}));
    // A revision with a handshake, named in a request of its own, is one we serve.
    let legacy = ask(&with(json!({version: "2025-06-18"}), "tools/list"));
    assert!(legacy["result"]["tools"].is_array() && legacy["result"].get("resultType").is_none());
}

#[test]
fn eras_may_change_from_message_to_message() {
    let server = server();
    let lines = [
        (request("server/discover", json!({}), Some(MODERN)), true),
        (request("initialize", json!({"protocolVersion": "2025-06-18"}), None), false),
        (request("tools/list", json!({}), Some(MODERN)), true),
        (request("tools/list", json!({}), None), false),
        (request("ping", json!({}), None), false),
    ];
    for (line, modern) in lines {
        let answer: Value = serde_json::from_str(&answers(&server, line.as_bytes(), false)[0]).unwrap();
        assert_eq!(answer["result"].get("resultType").is_some(), modern, "{line}");
    }
}

#[test]
fn methods_and_params_that_do_not_exist_are_named() {
    for (method, params, expected) in [
        ("nope", json!({}), -32601),
        ("prompts/list", json!({}), -32601),
        ("tools/call", json!({}), -32602),
        ("tools/call", json!({"name": 5}), -32602),
        ("tools/call", json!({"name": "nope", "arguments": {}}), -32602),
        ("tools/list", json!({"cursor": "x"}), -32602),
        ("resources/list", json!({"cursor": "x"}), -32602),
        ("resources/read", json!({}), -32602),
        ("resources/read", json!({"uri": "file:///etc/passwd"}), -32002),
        ("resources/read", json!({"uri": "kebab://doc/../x"}), -32002),
        ("resources/read", json!({"uri": "kebab://file/00000000000000000000000000000000"}), -32002),
    ] {
        assert_eq!(code(&request(method, params, None)), expected, "{method}");
    }
    assert_eq!(code(&request("resources/read", json!({"uri": "x"}), Some(MODERN))), -32602);
    assert!(ask(&request("tools/list", json!({"cursor": null}), None))["result"]["tools"].is_array());
    let long = ask(&request(&"x".repeat(1 << 20), json!({}), None));
    assert!(long["error"]["message"].as_str().unwrap().len() < 200);
}

#[test]
fn batches_are_arrays_of_answers_where_the_revision_has_them() {
    let server = server();
    let batch = |line: &str| answers(&server, line.as_bytes(), true);
    let ping = |id: u32| format!("{{\"jsonrpc\":\"2.0\",\"id\":{id},\"method\":\"ping\"}}");
    let note = "{\"jsonrpc\":\"2.0\",\"method\":\"notifications/initialized\"}";
    let parsed = |line: &str| -> Vec<Value> { serde_json::from_str(&batch(line)[0]).unwrap() };
    assert_eq!(batch(&format!("[{note},{note}]")), [""; 0]);
    let ids: Vec<Value> =
        parsed(&format!("[{},{note},{}]", ping(1), ping(2))).iter().map(|a| a["id"].clone()).collect();
    assert_eq!(ids, [1, 2]);
    let codes: Vec<Value> = parsed("[5,[],{}]").iter().map(|a| a["error"]["code"].clone()).collect();
    assert_eq!(codes, [-32600, -32600, -32600]);
    for empty in ["[]", " [ ] "] {
        assert_eq!(serde_json::from_str::<Value>(&batch(empty)[0]).unwrap()["error"]["code"], -32600);
    }
    let handshake = format!("[{}]", request("initialize", json!({"protocolVersion": "2025-03-26"}), None));
    assert_eq!(parsed(&handshake)[0]["error"]["code"], -32600);
    let many = format!("[{}]", vec![ping(1); 1001].join(","));
    assert_eq!(serde_json::from_str::<Value>(&batch(&many)[0]).unwrap()["error"]["code"], -32600);
}

#[test]
fn tools_that_write_are_not_there_when_nothing_may_be_written() {
    let folder = Folder::new();
    let server = Server::new(Ok(folder.kb(true)), false);
    let list = &answers(&server, request("tools/list", json!({}), None).as_bytes(), false)[0];
    for tool in TOOLS {
        let named = list.contains(&format!("\"name\":\"{}\"", tool.name));
        assert_eq!(named, tool.effect == Effect::Reads, "{}", tool.name);
        if tool.effect == Effect::Writes {
            let line = request("tools/call", json!({"name": tool.name, "arguments": {}}), None);
            assert!(answers(&server, line.as_bytes(), false)[0].contains("readonly_mode"), "{}", tool.name);
        }
    }
}

#[test]
fn progress_rises_and_carries_the_token_as_it_came() {
    for token in ["\"a\"", "7", "1.5", "\"\\u0061\""] {
        let id = Id::token(&serde_json::from_str::<Box<RawValue>>(token).unwrap()).unwrap();
        let said = Mutex::new(Vec::new());
        let send = |line: String| said.lock().unwrap().push(line);
        let reporter = Reporter { token: Some(&id), send: &send, last: Cell::default() };
        reporter.report(0, Some(9), "");
        reporter.report(3, Some(9), "half \"way\"");
        std::thread::sleep(PAUSE);
        for done in [3, 2, 5, 6] {
            reporter.report(done, None, "");
        }
        let expected = [
            format!(
                r#"{{"jsonrpc":"2.0","method":"notifications/progress","params":{{"progressToken":{token},"progress":3,"total":9,"message":"half \"way\""}}}}"#
            ),
            format!(
                r#"{{"jsonrpc":"2.0","method":"notifications/progress","params":{{"progressToken":{token},"progress":5}}}}"#
            ),
        ];
        assert_eq!(*said.lock().unwrap(), expected);
    }
    for wrong in ["null", "true", "[]", "{}"] {
        assert_eq!(Id::token(&serde_json::from_str::<Box<RawValue>>(wrong).unwrap()), None);
    }
}

#[test]
fn an_error_that_repeats_its_input_stays_short() {
    let name = "x".repeat(3 << 20);
    let folder = Folder::new();
    let server = Server::new(Ok(folder.kb(false)), false);
    for arguments in [
        json!({ name.clone(): 1 }),
        json!({"query": "a", "mode": name.clone()}),
        json!({"query": "a", "path_glob": format!("[{name}")}),
    ] {
        let line = request("tools/call", json!({"name": "search", "arguments": arguments}), None);
        let answer = &answers(&server, line.as_bytes(), false)[0];
        assert!(answer.len() < 20_000 && answer.contains("invalid_input"), "{} bytes", answer.len());
    }
    let echoed = json!({"queries": [{"query": name}]});
    let line = request("tools/call", json!({"name": "bulk_search", "arguments": echoed}), None);
    let answer = &answers(&server, line.as_bytes(), false)[0];
    assert!(answer.len() < 20_000 && answer.contains("does not fit"), "{} bytes", answer.len());
}

/// What a transport does with a tool that panics: the pool hands back the message, `panicked` makes it an answer.
#[test]
fn a_panic_in_a_tool_is_that_requests_internal_error() {
    let server = server();
    let line = request("tools/call", json!({"name": "search", "arguments": {"query": "x"}}), Some(MODERN));
    let Step::Call(call) = handle(&server, line.as_bytes(), false) else { panic!("{line}") };
    let panic = crate::pool::guarded(|| -> String { panic!("index {} out of bounds", 7) }).unwrap_err();
    let answer: Value = serde_json::from_str(&call.panicked(&panic)).unwrap();
    assert_eq!((&answer["id"], &answer["error"]["code"]), (&json!(1), &json!(-32603)));
    assert_eq!(answer["error"]["message"], "internal: index 7 out of bounds");
    assert_eq!(answer["error"]["data"]["schema_version"], "error.v1");
}

/// A generator that gives the same numbers every time.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % limit.max(1) as u64) as usize
    }
}

#[test]
fn no_line_does_harm() {
    const CASES: usize = 40_000;
    const PIECES: &[&str] = &[
        "null",
        "\"id\":",
        "\"id\":null,",
        "{",
        "}",
        "[",
        "]",
        ",",
        ":",
        "\"",
        "\\",
        "\\ud800",
        "1e999",
        "-0",
        "0.5",
        "\u{feff}",
        "\r",
        "\t",
        "\"method\":5",
        "\"params\":{}",
        "\"_meta\":{}",
        "[[[[[[",
        "\"jsonrpc\":\"2.0\"",
        "notifications/cancelled",
        "9007199254740993",
        "\u{0}",
        "한",
        "\"k\":-1",
        "true",
        "//",
    ];
    let folder = Folder::new();
    let server = Server::new(Ok(folder.kb(false)), false);
    let seeds = [
        request("initialize", json!({"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "a", "version": "1"}}), None),
        request("ping", json!({}), None),
        request("tools/list", json!({}), Some(MODERN)),
        request("server/discover", json!({}), Some(MODERN)),
        request("tools/call", json!({"name": "search", "arguments": {"query": "backup \"a b\"", "k": 5, "tag": ["x"]}, "_meta": {"progressToken": 5}}), None),
        request("tools/call", json!({"name": "bulk_search", "arguments": {"queries": [{"query": "a"}, {"query": "b", "k": 2}]}}), Some(MODERN)),
        request("tools/call", json!({"name": "schema"}), None),
        request("resources/read", json!({"uri": "kebab://doc/00000000000000000000000000000000"}), Some(MODERN)),
        "{\"jsonrpc\":\"2.0\",\"method\":\"notifications/initialized\"}".to_owned(),
        "{\"jsonrpc\":\"2.0\",\"method\":\"notifications/cancelled\",\"params\":{\"requestId\":\"a\",\"reason\":\"b\"}}".to_owned(),
        "{\"jsonrpc\":\"2.0\",\"id\":3,\"result\":{\"roots\":[]}}".to_owned(),
        format!("[{},{}]", request("ping", json!({}), None), "{\"jsonrpc\":\"2.0\",\"method\":\"notifications/initialized\"}"),
    ];
    let mut random = Random(0x9E37_79B9_7F4A_7C15);
    let (mut refused, mut answered) = (0, 0);
    for case in 0..CASES {
        let mut line = seeds[case % seeds.len()].clone().into_bytes();
        for _ in 0..random.below(4) {
            let at = random.below(line.len() + 1);
            match random.below(6) {
                0 => drop(line.splice(at..(at + random.below(8)).min(line.len()), [])),
                1 => drop(line.splice(at..at, PIECES[random.below(PIECES.len())].bytes())),
                2 if at < line.len() => line[at] = random.below(256) as u8,
                3 => line.truncate(at),
                4 => {
                    let other = &seeds[random.below(seeds.len())].as_bytes();
                    let from = random.below(other.len());
                    line.splice(at..at, other[from..].iter().copied());
                }
                _ => {
                    let end = (at + random.below(40)).min(line.len());
                    let piece = line[at..end].to_vec();
                    line.splice(at..at, piece);
                }
            }
        }
        line.retain(|byte| *byte != b'\n');
        let shown = String::from_utf8_lossy(&line).into_owned();
        let batches = case % 2 == 0;
        let lines = answers(&server, &line, batches);
        assert!(lines.len() <= 1, "{shown}: {lines:?}");
        let Some(answer) = lines.first() else { continue };
        assert!(!answer.contains('\n') && answer.len() < MAX_ANSWER, "{shown}");
        let answer: Value = serde_json::from_str(answer).unwrap_or_else(|error| panic!("{shown}: {error}: {answer}"));
        let message: Option<Value> = serde_json::from_slice(&line).ok();
        for answer in answer.as_array().unwrap_or(&vec![answer.clone()]) {
            let ids = &answer["id"];
            assert!(
                answer["jsonrpc"] == "2.0" && (ids.is_string() || ids.is_number() || ids.is_null()),
                "{shown}: {answer}"
            );
            let (result, error) = (answer.get("result"), answer.get("error"));
            assert!(result.is_some() != error.is_some(), "{shown}: {answer}");
            if let Some(error) = error {
                assert!(error["code"].is_i64() && error["message"].is_string(), "{shown}: {answer}");
                refused += 1;
            } else {
                assert!(result.unwrap().is_object() && !ids.is_null(), "{shown}: {answer}");
                answered += 1;
            }
            // A key that stands twice makes a message that is none.
            let twice = answer["error"]["message"].as_str().is_some_and(|message| message.contains("duplicate field"));
            if let Some(Value::Object(message)) = &message
                && !twice
            {
                assert!(message.contains_key("id") || !message.get("method").is_some_and(Value::is_string), "{shown}");
                assert!(!ids.is_number() || ids == &message["id"], "{shown}: {answer}");
            }
        }
    }
    assert!(refused > CASES / 10 && answered > CASES / 10, "{refused} {answered}");
}
