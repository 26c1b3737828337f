//! The server over HTTP: sessions, batches, and requests that stand for themselves.

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
    pub stream: BufReader<TcpStream>,
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

pub fn ping(id: u32) -> Value {
    json!({"jsonrpc": "2.0", "id": id, "method": "ping"})
}

pub fn call(id: u32, query: &str) -> Value {
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
