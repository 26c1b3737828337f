//! The server over HTTP: what it answers, to whom, and what it refuses.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::harness::Dir;
use crate::mcp::{MODERN, PATIENCE, modern, notes};

/// A running server and what its ready line said.
pub struct Http {
    pub child: Child,
    pub status: Value,
    pub port: u16,
    pub token: String,
    /// Open for as long as the server may want to say something.
    _stderr: BufReader<std::process::ChildStderr>,
}

/// One connection, kept for as long as both sides like.
pub struct Wire {
    stream: BufReader<TcpStream>,
}

#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub head: String,
    pub body: String,
}

impl Http {
    /// On any free port, without the ingest in the background.
    pub fn start(dir: &Dir, flags: &[&str]) -> Http {
        let mut args = vec!["mcp", "--transport", "http", "--http-port", "0", "--no-sync"];
        args.extend(flags);
        Http::run(dir.cmd(args).into_command())
    }

    pub fn run(mut command: Command) -> Http {
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the program starts");
        let mut stderr = BufReader::new(child.stderr.take().expect("piped"));
        let mut line = String::new();
        while !line.starts_with('{') {
            line.clear();
            assert!(stderr.read_line(&mut line).expect("stderr") > 0, "no ready line");
        }
        let status: Value = serde_json::from_str(&line).expect("a ready line");
        let url = status["url"].as_str().unwrap();
        let port = url.strip_suffix("/mcp").unwrap().rsplit(':').next().unwrap().parse().unwrap();
        let token = std::fs::read_to_string(status["token_file"].as_str().unwrap()).unwrap();
        Http { child, status, port, token, _stderr: stderr }
    }

    pub fn wire(&self) -> Wire {
        let stream = TcpStream::connect(("127.0.0.1", self.port)).expect("the server listens");
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_nodelay(true).unwrap();
        Wire { stream: BufReader::new(stream) }
    }

    /// A POST with the token, these fields and this message.
    pub fn post(&self, fields: &[(&str, &str)], message: &Value) -> Answer {
        let mut wire = self.wire();
        wire.send(self.request(fields, &message.to_string()));
        wire.hear()
    }

    pub fn request(&self, fields: &[(&str, &str)], body: &str) -> String {
        let mut head = format!(
            "POST /mcp HTTP/1.1\r\nHost: 127.0.0.1:{}\r\nAuthorization: Bearer {}\r\nContent-Length: {}\r\n",
            self.port,
            self.token,
            body.len()
        );
        if !fields.iter().any(|(name, _)| *name == "Content-Type") {
            head += "Content-Type: application/json\r\n";
        }
        fields.iter().for_each(|(name, value)| head += &format!("{name}: {value}\r\n"));
        format!("{head}\r\n{body}")
    }

    /// Bytes on a connection of their own.
    pub fn raw(&self, bytes: impl AsRef<[u8]>) -> Answer {
        let mut wire = self.wire();
        wire.send(bytes);
        wire.hear()
    }

    /// The name of a new session.
    pub fn session(&self, revision: &str) -> String {
        let params =
            json!({"protocolVersion": revision, "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}});
        let answer = self.post(&[], &json!({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params}));
        assert_eq!((answer.status, &answer.json()["result"]["protocolVersion"]), (200, &json!(revision)), "{answer:?}");
        answer.field("Mcp-Session-Id").expect("a session").to_owned()
    }

    /// A request of the era without sessions, its fields as they should be.
    pub fn ask_modern(&self, method: &str, params: Value) -> Answer {
        let name = params.get("name").or(params.get("uri")).and_then(Value::as_str).unwrap_or_default().to_owned();
        let mut fields = vec![("MCP-Protocol-Version", MODERN), ("Mcp-Method", method)];
        if !name.is_empty() {
            fields.push(("Mcp-Name", &name));
        }
        self.post(&fields, &json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": modern(params)}))
    }

    #[track_caller]
    pub fn works(&self) {
        let answer = self.ask_modern("tools/call", json!({"name": "search", "arguments": {"query": "backups"}}));
        assert_eq!(answer.status, 200, "{answer:?}");
        assert_eq!(answer.json()["result"]["structuredContent"]["hits"][0]["doc_path"], "guide/backup.md");
    }

    #[track_caller]
    pub fn wait(&mut self, limit: Duration) -> Option<i32> {
        let started = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status.code();
            }
            assert!(started.elapsed() < limit, "the server did not end within {limit:?}");
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    #[cfg(target_os = "linux")]
    pub fn peak_kilobytes(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
        peak.trim().trim_end_matches(" kB").parse().unwrap()
    }
}

impl Drop for Http {
    fn drop(&mut self) {
        // Ended already, unless the test failed.
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

impl Wire {
    /// The server may have ended the connection by now.
    pub fn send(&mut self, bytes: impl AsRef<[u8]>) -> bool {
        self.stream.get_mut().write_all(bytes.as_ref()).is_ok()
    }

    /// The next answer; status 0 where the connection ends instead.
    pub fn hear(&mut self) -> Answer {
        let mut head = String::new();
        loop {
            let before = head.len();
            match self.stream.read_line(&mut head) {
                Ok(0) | Err(_) => return Answer { status: 0, head, body: String::new() },
                Ok(_) if head.ends_with("\r\n") && head.len() == before + 2 => break,
                Ok(_) => {}
            }
        }
        let mut answer = Answer { status: head[9..12].parse().unwrap(), head, body: String::new() };
        if let Some(length) = answer.field("Content-Length") {
            let mut body = vec![0; length.parse().unwrap()];
            self.stream.read_exact(&mut body).expect("the body");
            answer.body = String::from_utf8(body).unwrap();
        } else if answer.field("Transfer-Encoding").is_some() {
            loop {
                let mut line = String::new();
                self.stream.read_line(&mut line).expect("a chunk");
                let mut chunk = vec![0; usize::from_str_radix(line.trim(), 16).unwrap() + 2];
                self.stream.read_exact(&mut chunk).expect("a chunk");
                if chunk.len() == 2 {
                    break;
                }
                answer.body += std::str::from_utf8(&chunk[..chunk.len() - 2]).unwrap();
            }
        }
        answer
    }

    /// True if the server has ended the connection.
    pub fn is_over(&mut self) -> bool {
        matches!(self.stream.read(&mut [0]), Ok(0) | Err(_))
    }

    pub fn hang_up(self) {
        self.stream.into_inner().shutdown(Shutdown::Both).ok();
    }
}

impl Answer {
    pub fn field(&self, name: &str) -> Option<&str> {
        self.head.lines().find_map(|line| {
            let (found, value) = line.split_once(": ")?;
            found.eq_ignore_ascii_case(name).then_some(value)
        })
    }

    #[track_caller]
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// The messages of a stream of events.
    pub fn events(&self) -> Vec<Value> {
        let data = self.body.split("\n\n").filter_map(|event| event.strip_prefix("event: message\ndata: "));
        data.map(|data| serde_json::from_str(data).unwrap()).collect()
    }
}

fn ping(id: u32) -> Value {
    json!({"jsonrpc": "2.0", "id": id, "method": "ping"})
}

fn call(id: u32, query: &str) -> Value {
    json!({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": {"name": "search", "arguments": {"query": query}}})
}

#[test]
fn a_session_goes_from_initialize_to_delete() {
    let dir = notes();
    let http = Http::start(&dir, &[]);
    let missing = http.post(&[], &ping(1));
    assert_eq!((missing.status, missing.body.as_str()), (400, r#"{"error":"missing Mcp-Session-Id header"}"#));
    let session = http.session("2025-06-18");
    assert!(session.len() >= 22);
    let fields = [("Mcp-Session-Id", session.as_str()), ("MCP-Protocol-Version", "2025-06-18")];
    let note = http.post(&fields, &json!({"jsonrpc": "2.0", "method": "notifications/initialized"}));
    assert_eq!((note.status, note.body.as_str()), (202, ""));
    assert_eq!(http.post(&fields, &ping(1)).body, r#"{"jsonrpc":"2.0","id":1,"result":{}}"#);
    let found = http.post(&fields, &call(2, "backups"));
    assert_eq!(found.json()["result"]["structuredContent"]["hits"][0]["doc_path"], "guide/backup.md");
    assert_eq!(found.field("Content-Type"), Some("application/json"));
    let unknown = http.post(&fields, &json!({"jsonrpc": "2.0", "id": 3, "method": "nope"}));
    assert_eq!((unknown.status, &unknown.json()["error"]["code"]), (200, &json!(-32601)));
    // Absent means the revision before the field came; one that is none is refused.
    assert_eq!(http.post(&fields[..1], &ping(1)).status, 200);
    for bad in ["1999-01-01", "banana", &"9".repeat(100)] {
        assert_eq!(http.post(&[fields[0], ("MCP-Protocol-Version", bad)], &ping(1)).status, 400, "{bad}");
    }
    for (body, code) in [("{", -32700), ("", -32700), ("\u{feff}[]", -32600), ("5", -32600), ("[{}]", -32600)] {
        let broken = http.raw(http.request(&fields, body));
        assert_eq!((broken.status, &broken.json()["error"]["code"]), (400, &json!(code)), "{body:?}");
    }
    let end = |session: &str| {
        http.raw(format!(
            "DELETE /mcp HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {}\r\nMcp-Session-Id: {session}\r\n\r\n",
            http.token
        ))
    };
    assert_eq!(end(&session).status, 204);
    let over = http.post(&fields, &ping(1));
    assert_eq!((over.status, over.body.as_str()), (404, r#"{"error":"session expired or invalid"}"#));
    assert_eq!(end(&session).status, 404);
}

#[test]
fn batches_belong_to_sessions_of_their_revision() {
    let dir = notes();
    let http = Http::start(&dir, &[]);
    let batch = json!([ping(1), call(2, "port"), {"jsonrpc": "2.0", "method": "notifications/x"}, 5]);
    let session = http.session("2025-03-26");
    let answer = http.post(&[("Mcp-Session-Id", &session)], &batch);
    let mut ids: Vec<String> =
        answer.json().as_array().unwrap().iter().map(|answer| answer["id"].to_string()).collect();
    ids.sort();
    assert_eq!((answer.status, ids), (200, vec!["1".into(), "2".into(), "null".into()]));
    let notes = json!([{"jsonrpc": "2.0", "method": "notifications/x"}]);
    assert_eq!(http.post(&[("Mcp-Session-Id", &session)], &notes).status, 202);
    let other = http.session("2025-06-18");
    for fields in [vec![("Mcp-Session-Id", other.as_str())], vec![]] {
        let refused = http.post(&fields, &batch);
        assert_eq!((refused.status, &refused.json()["error"]["code"]), (400, &json!(-32600)));
    }
}

#[test]
fn a_request_without_a_handshake_says_the_same_in_its_fields_as_in_its_body() {
    let dir = notes();
    let http = Http::start(&dir, &[]);
    http.works();
    let discover = http.ask_modern("server/discover", json!({}));
    assert_eq!(discover.json()["result"]["supportedVersions"][0], MODERN);
    assert!(discover.field("Mcp-Session-Id").is_none());
    let unknown = http.ask_modern("nope", json!({}));
    assert_eq!((unknown.status, &unknown.json()["error"]["code"]), (404, &json!(-32601)));
    let uri = "kebab://doc/00000000000000000000000000000000";
    assert_eq!(http.ask_modern("resources/read", json!({"uri": uri})).json()["error"]["code"], -32602);

    let params = modern(json!({"name": "search", "arguments": {"query": "port"}}));
    let search = json!({"jsonrpc": "2.0", "id": "s", "method": "tools/call", "params": params});
    let version = ("MCP-Protocol-Version", MODERN);
    let (method, name) = (("Mcp-Method", "tools/call"), ("Mcp-Name", "search"));
    for fields in [
        vec![],
        vec![version],
        vec![version, method],
        vec![version, name],
        vec![method, name],
        vec![version, ("Mcp-Method", "tools/list"), name],
        vec![version, method, ("Mcp-Name", "fetch")],
        vec![version, method, ("Mcp-Name", "Search")],
        vec![version, method, ("Mcp-Name", "=?base64?ZmV0Y2g=?=")],
        vec![version, method, ("Mcp-Name", "=?base64?%%%?=")],
        vec![("MCP-Protocol-Version", "2025-06-18"), method, name],
    ] {
        let refused = http.post(&fields, &search);
        let error = refused.json();
        assert_eq!(
            (refused.status, &error["error"]["code"], &error["id"]),
            (400, &json!(-32020), &json!("s")),
            "{fields:?}"
        );
    }
    assert_eq!(http.post(&[version, method, ("Mcp-Name", "=?base64?c2VhcmNo?=")], &search).status, 200);

    let mut old = search.clone();
    old["params"]["_meta"]["io.modelcontextprotocol/protocolVersion"] = json!("1900-01-01");
    let refused = http.post(&[("MCP-Protocol-Version", "1900-01-01"), method, name], &old);
    assert_eq!((refused.status, &refused.json()["error"]["code"]), (400, &json!(-32022)));
    assert_eq!(refused.json()["error"]["data"]["requested"], "1900-01-01");
    old["params"]["_meta"] = json!({});
    let refused = http.post(&[version, method, name], &old);
    assert_eq!((refused.status, &refused.json()["error"]["code"]), (400, &json!(-32602)));
    let note = json!({"jsonrpc": "2.0", "method": "notifications/x"});
    assert_eq!(http.post(&[version, ("Mcp-Method", "notifications/x")], &note).status, 202);
}

#[test]
fn pages_from_elsewhere_are_refused_before_the_token_is_looked_at() {
    let dir = notes();
    let http = Http::start(&dir, &[]);
    let forged = [
        "null",
        "http://evil.example",
        "http://localhost.evil.example",
        "http://evil.localhost",
        "http://127.0.0.1.evil.example",
        "http://localhost@evil.example",
        "http://localhost:80@evil.example",
        "http://localhost:",
        "http://localhost:99999",
        "http://LOCALHOST",
        "http://localhost.",
        "http://[0:0:0:0:0:0:0:1]",
        "http://[::ffff:127.0.0.1]",
        "http://127.1",
        "http://0.0.0.0",
        "file://localhost",
        "http://localhost/",
        "http://localhost, http://evil.example",
    ];
    for origin in forged {
        for authorization in ["Bearer wrong", &format!("Bearer {}", http.token)] {
            for (method, path) in [("POST", "/mcp"), ("OPTIONS", "/mcp"), ("GET", "/healthz"), ("GET", "/lines")] {
                let answer = http.raw(format!(
                    "{method} {path} HTTP/1.1\r\nHost: localhost\r\nOrigin: {origin}\r\nAuthorization: {authorization}\r\n\r\n"
                ));
                assert_eq!(
                    (answer.status, answer.body.as_str()),
                    (403, r#"{"error":"origin not allowed"}"#),
                    "{origin}"
                );
                assert_eq!(answer.field("Access-Control-Allow-Origin"), None);
            }
        }
        let host = origin.trim_start_matches("http://");
        if host != "localhost" {
            let answer = http.raw(format!("GET /healthz HTTP/1.1\r\nHost: {host}\r\n\r\n"));
            assert_eq!(answer.status, 403, "{host}");
        }
    }
    assert_eq!(http.raw("GET /healthz HTTP/1.1\r\n\r\n").status, 400);
    for host in ["localhost", "localhost:1", "127.0.0.1:65535", "[::1]:3847"] {
        assert_eq!(http.raw(format!("GET /healthz HTTP/1.1\r\nHost: {host}\r\n\r\n")).body, r#"{"status":"ok"}"#);
    }
}

#[test]
fn a_page_of_this_machine_may_ask_and_read() {
    let dir = notes();
    let http = Http::start(&dir, &[]);
    let origin = "http://localhost:3000";
    let preflight = http.raw(format!("OPTIONS /mcp HTTP/1.1\r\nHost: localhost\r\nOrigin: {origin}\r\n\r\n"));
    for (name, value) in [
        ("Access-Control-Allow-Origin", origin),
        ("Vary", "Origin"),
        ("Access-Control-Allow-Methods", "POST, OPTIONS, DELETE"),
        (
            "Access-Control-Allow-Headers",
            "Authorization, Content-Type, Accept, Mcp-Session-Id, MCP-Protocol-Version, Mcp-Method, Mcp-Name",
        ),
        ("Access-Control-Expose-Headers", "Mcp-Session-Id"),
        ("Access-Control-Max-Age", "86400"),
    ] {
        assert_eq!((preflight.status, preflight.field(name)), (204, Some(value)), "{preflight:?}");
    }
    let fields = [("Origin", origin), ("Mcp-Session-Id", "nobody's")];
    let refused = http.post(&fields, &ping(1));
    assert_eq!((refused.status, refused.field("Access-Control-Allow-Origin")), (404, Some(origin)));
    assert_eq!(http.post(&[], &ping(1)).field("Access-Control-Allow-Origin"), None);
}

#[test]
fn ten_thousand_wrong_tokens_are_refused_and_the_right_one_is_not() {
    let dir = notes();
    let http = Http::start(&dir, &[]);
    let mut wire = http.wire();
    for number in 0..10_000 {
        let mut wrong = http.token.clone();
        match number % 4 {
            0 => wrong.truncate(number % 43),
            1 => wrong += "x",
            2 => wrong = format!("{number:043}"),
            _ => {
                let swapped = if wrong.ends_with('A') { "B" } else { "A" };
                wrong.replace_range(42.., swapped);
            }
        }
        assert!(wire.send(format!("POST /mcp HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {wrong}\r\n\r\n")));
        let answer = wire.hear();
        assert_eq!((answer.status, answer.body.as_str()), (401, r#"{"error":"invalid or missing token"}"#), "{wrong}");
        assert_eq!(answer.field("WWW-Authenticate"), Some("Bearer"));
    }
    http.works();
}

#[test]
fn each_path_has_its_methods() {
    let dir = notes();
    let http = Http::start(&dir, &[]);
    let ask = |line: &str, token: bool| {
        let authorization = if token { format!("Authorization: Bearer {}\r\n", http.token) } else { String::new() };
        http.raw(format!("{line} HTTP/1.1\r\nHost: localhost\r\n{authorization}\r\n"))
    };
    assert_eq!(ask("GET /healthz", false).body, r#"{"status":"ok"}"#);
    assert_eq!(ask("GET /mcp", true).field("Allow"), Some("POST, OPTIONS, DELETE"));
    for (line, expected) in
        [("GET /mcp", 405), ("PUT /mcp", 405), ("BREW /mcp", 405), ("GET /", 404), ("GET /mcp/", 404)]
    {
        assert_eq!(ask(line, true).status, expected, "{line}");
    }
    assert_eq!((ask("GET /mcp", false).status, ask("POST /stop", false).status), (401, 401));
    let mut wire = http.wire();
    wire.send("HEAD /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    let mut all = String::new();
    wire.stream.read_to_string(&mut all).unwrap();
    assert!(
        all.starts_with("HTTP/1.1 200 OK\r\n") && all.contains("Content-Length: 15\r\n") && all.ends_with("\r\n\r\n")
    );
    for kind in ["text/plain", "application/x-www-form-urlencoded", "application/jsonp"] {
        let refused = http.post(&[("Content-Type", kind)], &ping(1));
        assert_eq!((refused.status, refused.body.as_str()), (415, r#"{"error":"expected application/json"}"#));
    }
}

#[test]
fn requests_come_in_every_framing() {
    let dir = notes();
    let http = Http::start(&dir, &[]);
    let session = http.session("2025-06-18");
    let fields = [("Mcp-Session-Id", session.as_str())];
    // Three in one write, then one in many.
    let mut wire = http.wire();
    let line = |id: u32| http.request(&fields, &ping(id).to_string());
    wire.send(format!("{}{}{}", line(1), line(2), line(3)));
    for id in 1..=3 {
        assert_eq!(wire.hear().json()["id"], id);
    }
    for byte in line(4).as_bytes() {
        wire.send([*byte]);
    }
    assert_eq!(wire.hear().json()["id"], 4);
    let head = format!(
        "POST /mcp HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {}\r\nContent-Type: application/json\r\nMcp-Session-Id: {session}\r\n",
        http.token
    );
    let body = ping(5).to_string();
    let (front, back) = body.split_at(10);
    wire.send(format!("{head}Transfer-Encoding: chunked\r\n\r\n{:x}\r\n{front}\r\n", front.len()));
    wire.send(format!("{:x}\r\n{back}\r\n0\r\n\r\n", back.len()));
    assert_eq!(wire.hear().json()["id"], 5);
    wire.send(format!("{head}Expect: 100-continue\r\nContent-Length: {}\r\n\r\n", body.len()));
    assert_eq!(wire.hear().status, 100);
    wire.send(&body);
    assert_eq!(wire.hear().json()["id"], 5);
    wire.send(format!("{head}Connection: close\r\nContent-Length: {}\r\n\r\n{body}", body.len()));
    assert_eq!(wire.hear().field("Connection"), Some("close"));
    assert!(wire.is_over());
    let old = http.raw(format!("{}Content-Length: {}\r\n\r\n{body}", head.replace("1.1", "1.0"), body.len()));
    assert_eq!((old.status, old.field("Connection")), (200, Some("close")));
    let large = json!({"jsonrpc": "2.0", "id": 1, "method": "ping", "params": {"x": "y".repeat(4_100_000)}});
    assert_eq!(http.post(&fields, &large).status, 200);
    let larger = json!({"jsonrpc": "2.0", "id": 1, "method": "ping", "params": {"x": "y".repeat(4 << 20)}});
    assert_eq!(http.post(&fields, &larger).status, 413);
}

#[test]
fn two_requests_are_never_made_of_one() {
    let dir = notes();
    let http = Http::start(&dir, &[]);
    let hidden = format!("GET /healthz HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {}\r\n\r\n", http.token);
    let start = format!(
        "POST /mcp HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {}\r\nContent-Type: application/json\r\n",
        http.token
    );
    let cases: Vec<Vec<u8>> = [
        "Content-Length: 4\r\nContent-Length: 100\r\n\r\nabcd",
        "Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        "Transfer-Encoding: chunked\r\nContent-Length: 4\r\n\r\n0\r\n\r\n",
        "Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n0\r\n\r\n",
        "Transfer-Encoding:\tchunked, identity\r\n\r\n0\r\n\r\n",
        "Content-Length: +4\r\n\r\nabcd",
        "Content-Length: -4\r\n\r\nabcd",
        "Content-Length: 4 \u{b}\r\n\r\nabcd",
        "Content-Length : 4\r\n\r\nabcd",
        " Content-Length: 4\r\n\r\nabcd",
        "Content-Length: 99999999999999999999\r\n\r\nabcd",
        "Content-Length: 4294967296\r\n\r\nabcd",
        "X: y\r\n z\r\n\r\n",
        "X: y\nContent-Length: 4\r\n\r\nabcd",
        "X: \u{0}\r\n\r\n",
        "Transfer-Encoding: chunked\r\n\r\nfffffffffffffffff\r\n",
        "Transfer-Encoding: chunked\r\n\r\n4\nabcd\n0\n\n",
        "Transfer-Encoding: chunked\r\n\r\n4\r\nabcdX0\r\n\r\n",
    ]
    .iter()
    .map(|case| format!("{start}{case}{hidden}").into_bytes())
    .chain([
        start.replace("\r\n", "\n").into_bytes(),
        [start.as_bytes(), b"X: ", &vec![b'y'; 64 << 20]].concat(),
        [start.as_bytes(), "X: y\r\n".repeat(10_000).as_bytes(), b"\r\n"].concat(),
    ])
    .collect();
    for bytes in cases {
        let shown = String::from_utf8_lossy(&bytes[..bytes.len().min(300)]).into_owned();
        let mut wire = http.wire();
        wire.send(&bytes);
        let answer = wire.hear();
        assert!([0, 400, 413, 431].contains(&answer.status), "{shown:?}: {answer:?}");
        assert!(wire.is_over(), "{shown:?}: a second answer");
    }
    #[cfg(target_os = "linux")]
    assert!(http.peak_kilobytes() < 128 << 10, "{} kB", http.peak_kilobytes());
    http.works();
}

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
    // Of the era without sessions, whoever hangs up has cancelled.
    let params = modern(json!({"name": "bulk_search", "arguments": {"queries": queries}}));
    let bulk = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params});
    let fields = [("MCP-Protocol-Version", MODERN), ("Mcp-Method", "tools/call"), ("Mcp-Name", "bulk_search")];
    for _ in 0..20 {
        let mut wire = http.wire();
        wire.send(http.request(&fields, &bulk.to_string()));
        wire.hang_up();
    }
    http.works();
}
