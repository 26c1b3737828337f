//! Answers as lines of JSON, without their line end.

use std::fmt::Write;

use serde::Serialize;

use super::message::{Fault, Id};

/// How results are dressed: decided by each request, never remembered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Era {
    /// The handshake revisions.
    Legacy,
    /// 2026-07-28: every result names its type and the server.
    Modern,
}

/// How long a client may keep a result of the modern era. The handshake revisions have no such fields.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cache {
    /// The result has no cache fields at all.
    None,
    /// The same for every caller until the server is started again.
    Fixed,
    /// The caller's own documents, which may change at any time.
    Never,
}

pub const SERVER: &str =
    concat!(r#"{"name":"kebab-lite","title":"kebab-lite","version":""#, env!("CARGO_PKG_VERSION"), r#""}"#);

/// `fields` are the inner fields of the result object, possibly none.
pub fn result(id: &Id, era: Era, cache: Cache, fields: &str) -> String {
    let mut line = String::with_capacity(fields.len() + id.raw().len() + 256);
    line.push_str(r#"{"jsonrpc":"2.0","id":"#);
    line.push_str(id.raw());
    line.push_str(r#","result":{"#);
    if era == Era::Modern {
        line.push_str(r#""resultType":"complete","#);
        line.push_str(match cache {
            Cache::None => "",
            Cache::Fixed => r#""ttlMs":3600000,"cacheScope":"public","#,
            Cache::Never => r#""ttlMs":0,"cacheScope":"private","#,
        });
    }
    line.push_str(fields);
    if era == Era::Modern {
        if !fields.is_empty() {
            line.push(',');
        }
        line.push_str(r#""_meta":{"io.modelcontextprotocol/serverInfo":"#);
        line.push_str(SERVER);
        line.push('}');
    }
    line.push_str("}}");
    line
}

impl Fault {
    pub fn line(&self) -> String {
        let id = self.id.as_ref().map_or("null", Id::raw);
        let (code, message) = (self.code.number(), quoted(&self.message));
        let data = self.data.as_ref().map_or(String::new(), |data| format!(r#","data":{data}"#));
        format!(r#"{{"jsonrpc":"2.0","id":{id},"error":{{"code":{code},"message":{message}{data}}}}}"#)
    }
}

/// The fields of a tool's answer: its JSON once as text and once as it is.
pub fn tool_fields(json: &str) -> String {
    let mut fields = String::with_capacity(json.len() * 5 / 2 + 128);
    fields.push_str(r#""content":[{"type":"text","text":"#);
    fields.push_str(&quoted(json));
    fields.push_str(r#"}],"structuredContent":"#);
    fields.push_str(json);
    fields.push_str(r#","isError":false"#);
    fields
}

/// The fields of a tool's failure; hosts show the text to the model.
pub fn failure_fields(json: &str) -> String {
    format!(r#""content":[{{"type":"text","text":{}}}],"isError":true"#, quoted(json))
}

pub fn progress(token: &Id, done: u64, total: Option<u64>, message: &str) -> String {
    let mut line = format!(
        r#"{{"jsonrpc":"2.0","method":"notifications/progress","params":{{"progressToken":{},"progress":{done}"#,
        token.raw()
    );
    if let Some(total) = total {
        // Writing to a String cannot fail.
        write!(line, r#","total":{total}"#).ok();
    }
    if !message.is_empty() {
        write!(line, r#","message":{}"#, quoted(message)).ok();
    }
    line.push_str("}}");
    line
}

/// A JSON string.
pub fn quoted(text: &str) -> String {
    json(&text).unwrap_or_else(|error| format!("\"{}\"", error.to_string().replace(['"', '\\'], "'")))
}

pub fn json(value: &impl Serialize) -> serde_json::Result<String> {
    serde_json::to_string(value)
}
