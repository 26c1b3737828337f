//! Who may ask over HTTP, and in what bytes.

use std::io::Read;

use serde_json::json;

use crate::http::{Http, ping};
use crate::mcp::notes;

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
