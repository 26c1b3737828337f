//! Requests to a running server, for the command line: one after another on one connection.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use serde::Deserialize;
use serde_json::value::RawValue;

use super::find::{Find, dial, none};
use crate::error::Result;
use crate::http::{MAX_BODY, WHOLE};
use crate::rendezvous::{Folder, Token};
use crate::rpc::MODERN;
use crate::wire::ServerStatus;

/// A connection to the running server.
pub struct Client {
    stream: BufReader<TcpStream>,
    address: SocketAddr,
    token: Token,
    /// It has not answered once; whoever asks has to find out by itself from then on.
    broken: bool,
}

/// The first question may have to wait for a model.
const ANSWER_TIME: Duration = Duration::from_secs(60);

/// A head is short; an answer is no longer than what it holds.
const MAX_HEAD: u64 = 16 << 10;

impl Client {
    /// None where there is no server whose answers would be those of this configuration.
    pub fn of(find: &Find) -> Option<Client> {
        Client::open(&find.folder, &find.running()?).ok()
    }

    fn open(folder: &Folder, status: &ServerStatus) -> Result<Client> {
        let (address, stream) = dial(status)?;
        let token = folder.read_token()?;
        stream.set_read_timeout(Some(ANSWER_TIME)).map_err(broken)?;
        Ok(Client { stream: BufReader::new(stream), address, token, broken: false })
    }

    /// The wire JSON that a tool finds, as the command line prints it; `arguments` are JSON. None where the server has no
    /// answer, be it that the tool failed: this process then finds both out by itself.
    pub fn call(&mut self, tool: &str, arguments: &str) -> Option<String> {
        let message = format!(
            r#"{{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{{"name":"{tool}","arguments":{arguments},"_meta":{{"io.modelcontextprotocol/protocolVersion":"{MODERN}","io.modelcontextprotocol/clientCapabilities":{{}}}}}}}}"#
        );
        if self.broken || message.len() as u64 > MAX_BODY {
            return None;
        }
        let fields = format!(
            "{WHOLE}: true\r\nContent-Type: application/json\r\nMCP-Protocol-Version: {MODERN}\r\nMcp-Method: tools/call\r\nMcp-Name: {tool}\r\n"
        );
        let answer = self.post("/mcp", &fields, &message);
        self.broken = answer.is_err();
        let answer = answer.ok()?;
        let answer: Answer = serde_json::from_str(&answer).ok()?;
        answer.result.content.map(|content| content.get().to_owned())
    }

    fn post(&mut self, path: &str, fields: &str, body: &str) -> Result<String> {
        let request = format!(
            "POST {path} HTTP/1.1\r\nHost: {}\r\nAuthorization: Bearer {}\r\n{fields}Content-Length: {}\r\n\r\n{body}",
            self.address,
            self.token.text(),
            body.len()
        );
        self.stream.get_mut().write_all(request.as_bytes()).map_err(broken)?;
        let mut head = String::new();
        let mut begin = 0;
        while &head[begin..] != "\r\n" {
            begin = head.len();
            let left = MAX_HEAD.saturating_sub(begin as u64);
            if self.stream.by_ref().take(left).read_line(&mut head).map_err(broken)? == 0 {
                return Err(none("it answers no head"));
            }
        }
        if !head.starts_with("HTTP/1.1 2") {
            return Err(none(&format!("it answers {:?}", head.lines().next().unwrap_or_default())));
        }
        let length = head.lines().find_map(|line| line.strip_prefix("Content-Length: "));
        let length: u64 = length.and_then(|text| text.parse().ok()).ok_or_else(|| none("its answer has no length"))?;
        let mut body = Vec::new();
        self.stream.by_ref().take(length).read_to_end(&mut body).map_err(broken)?;
        if (body.len() as u64) < length {
            return Err(none("its answer breaks off"));
        }
        String::from_utf8(body).map_err(|_| none("its answer is not UTF-8"))
    }
}

/// Tells the server to end.
pub fn stop(folder: &Folder, status: &ServerStatus) -> Result<()> {
    Client::open(folder, status)?.post("/stop", "", "").map(drop)
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

fn broken(error: std::io::Error) -> crate::error::Error {
    none(&format!("it does not answer: {error}"))
}
