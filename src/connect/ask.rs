//! One request to a running server, for the command line.

use std::io::{Read, Write};
use std::time::Duration;

use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};

use super::find::{Find, dial, none};
use crate::error::Result;
use crate::http::WHOLE;
use crate::rendezvous::Folder;
use crate::rpc::MODERN;
use crate::wire::ServerStatus;

/// The first question may have to wait for a model.
const ANSWER_TIME: Duration = Duration::from_secs(60);

/// A head is short; an answer is no longer than what it holds.
const MAX_HEAD: usize = 16 << 10;

/// The wire JSON that the running server finds, as the command line prints it. None where there is no such server, or
/// where it has no answer: this process then finds both out by itself.
pub fn search(find: &Find, arguments: &Map<String, Value>) -> Option<String> {
    let status = find.running()?;
    let meta = json!({
        "io.modelcontextprotocol/protocolVersion": MODERN,
        "io.modelcontextprotocol/clientCapabilities": {}
    });
    let params = json!({"name": "search", "arguments": arguments, "_meta": meta});
    let message = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}).to_string();
    let fields = format!(
        "{WHOLE}: true\r\nContent-Type: application/json\r\nMCP-Protocol-Version: {MODERN}\r\nMcp-Method: tools/call\r\nMcp-Name: search\r\n"
    );
    let answer = post(&find.folder, &status, "/mcp", &fields, &message).ok()?;
    let answer: Answer = serde_json::from_str(&answer).ok()?;
    answer.result.content.map(|content| content.get().to_owned())
}

/// Tells the server to end.
pub fn stop(folder: &Folder, status: &ServerStatus) -> Result<()> {
    post(folder, status, "/stop", "", "").map(drop)
}

#[derive(Deserialize)]
struct Answer<'l> {
    #[serde(borrow)]
    result: Found<'l>,
}

#[derive(Deserialize)]
struct Found<'l> {
    /// What a tool found; its failures have none.
    #[serde(borrow, rename = "structuredContent")]
    content: Option<&'l RawValue>,
}

fn post(folder: &Folder, status: &ServerStatus, path: &str, fields: &str, body: &str) -> Result<String> {
    let (address, mut stream) = dial(status)?;
    let token = folder.read_token()?;
    let request = format!(
        "POST {path} HTTP/1.1\r\nHost: {address}\r\nAuthorization: Bearer {}\r\nConnection: close\r\n{fields}Content-Length: {}\r\n\r\n{body}",
        token.text(),
        body.len()
    );
    let broken = |error: std::io::Error| none(&format!("it does not answer: {error}"));
    stream.set_read_timeout(Some(ANSWER_TIME)).map_err(broken)?;
    stream.write_all(request.as_bytes()).map_err(broken)?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).map_err(broken)?;
    let end = answer.windows(4).take(MAX_HEAD).position(|window| window == b"\r\n\r\n");
    let (head, body) = answer.split_at(end.ok_or_else(|| none("it answers no head"))? + 4);
    if !head.starts_with(b"HTTP/1.1 2") {
        let line = String::from_utf8_lossy(head).lines().next().unwrap_or_default().to_owned();
        return Err(none(&format!("it answers {line:?}")));
    }
    String::from_utf8(body.to_vec()).map_err(|_| none("its answer is not UTF-8"))
}
