//! A line of bytes made into a message, or into the reason why it is none. Only the envelope is read here; what a
//! method does with its params is `rpc`'s matter.
//!
//! Ids stay raw JSON text: they are echoed as they came, whatever number or escape they are written with.

use std::borrow::Cow;

use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;

/// The longest line that is read.
pub const MAX_LINE: usize = 4 << 20;

/// Messages in one batch.
const MAX_BATCH: usize = 1000;

/// An id is echoed in every line about its request, so it has a limit.
const MAX_ID: usize = 64 << 10;

#[derive(Debug)]
pub enum Incoming<'l> {
    One(Message<'l>),
    Batch(Vec<Result<Message<'l>, Fault>>),
}

#[derive(Debug)]
pub enum Message<'l> {
    Request {
        id: Id,
        method: Cow<'l, str>,
        params: Params<'l>,
    },
    Notification {
        method: Cow<'l, str>,
        params: Params<'l>,
    },
    /// An answer to a request; this server sends none.
    Response,
}

/// A request's id or a progress token: the raw text of a JSON string or number.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Id(Box<str>);

/// What a JSON-RPC error says. `id` is None where the request's own could not be read.
#[derive(Debug, Clone, PartialEq)]
pub struct Fault {
    pub id: Option<Id>,
    pub code: Code,
    pub message: String,
    /// A JSON object.
    pub data: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Code {
    Parse,
    InvalidRequest,
    MethodNotFound,
    InvalidParams,
    Internal,
    /// Of the handshake revisions; later ones say `InvalidParams`.
    ResourceNotFound,
    UnsupportedVersion,
    /// What a transport says beside a message is not what the message says.
    HeaderMismatch,
}

/// The fields any method of ours looks at, unread.
#[derive(Debug, Default, Deserialize)]
pub struct Params<'l> {
    #[serde(borrow, rename = "_meta", default, deserialize_with = "present")]
    meta: Option<&'l RawValue>,
    #[serde(borrow, default, deserialize_with = "present")]
    pub name: Option<&'l RawValue>,
    #[serde(borrow, default, deserialize_with = "present")]
    pub arguments: Option<&'l RawValue>,
    #[serde(borrow, default, deserialize_with = "present")]
    pub uri: Option<&'l RawValue>,
    #[serde(borrow, default, deserialize_with = "present")]
    pub cursor: Option<&'l RawValue>,
    #[serde(borrow, rename = "protocolVersion", default, deserialize_with = "present")]
    pub protocol_version: Option<&'l RawValue>,
    #[serde(borrow, rename = "requestId", default, deserialize_with = "present")]
    pub request_id: Option<&'l RawValue>,
    /// Why the object could not be read; the fields are empty then.
    #[serde(skip)]
    broken: Option<String>,
}

/// The keys of `params._meta` that mean something here.
#[derive(Debug, Default, Deserialize)]
pub struct Meta<'l> {
    #[serde(borrow, rename = "io.modelcontextprotocol/protocolVersion", default, deserialize_with = "present")]
    pub version: Option<&'l RawValue>,
    #[serde(borrow, rename = "io.modelcontextprotocol/clientCapabilities", default, deserialize_with = "present")]
    pub capabilities: Option<&'l RawValue>,
    #[serde(borrow, rename = "progressToken", default, deserialize_with = "present")]
    pub progress_token: Option<&'l RawValue>,
}

/// None for a blank line. `batches`: whether arrays are accepted, as revision 2025-03-26 alone has it.
pub fn parse(line: &[u8], batches: bool) -> Option<Result<Incoming<'_>, Fault>> {
    let line = line.strip_prefix(b"\xef\xbb\xbf").unwrap_or(line).trim_ascii();
    let first = line.first()?;
    let Ok(text) = std::str::from_utf8(line) else { return Some(Err(Fault::parse("the line is not UTF-8"))) };
    Some(match first {
        b'{' => message(text).map(Incoming::One),
        b'[' if batches => batch(text),
        b'[' => Err(not_a_message(text, "batches belong to protocol revision 2025-03-26 only")),
        _ => Err(not_a_message(text, "a message is a JSON object")),
    })
}

/// The answer to a line longer than `MAX_LINE`.
pub fn too_long() -> Fault {
    Fault::new(None, Code::InvalidRequest, format!("the line is longer than {} MiB", MAX_LINE >> 20))
}

impl Id {
    /// None unless the value is a string or a whole number.
    fn of(raw: &RawValue) -> Option<Id> {
        let text = raw.get();
        let whole = || {
            let digits = text.strip_prefix('-').unwrap_or(text);
            digits.bytes().all(|byte| byte.is_ascii_digit())
        };
        ((text.starts_with('"') || whole()) && text.len() <= MAX_ID).then(|| Id(text.into()))
    }

    /// A progress token may be any number.
    pub fn token(raw: &RawValue) -> Option<Id> {
        let text = raw.get();
        let numeric = text.starts_with(|first: char| first == '-' || first.is_ascii_digit());
        ((text.starts_with('"') || numeric) && text.len() <= MAX_ID).then(|| Id(text.into()))
    }

    /// JSON text.
    pub fn raw(&self) -> &str {
        &self.0
    }

    /// Equal for ids that mean the same value, however a string's characters are escaped.
    pub fn same_as(&self, other: &Id) -> bool {
        let value = |id: &Id| serde_json::from_str::<String>(id.raw()).ok();
        self == other
            || (self.0.contains('\\') || other.0.contains('\\'))
                && value(self).is_some_and(|own| value(other).is_some_and(|o| own == o))
    }
}

impl Code {
    pub fn number(self) -> i32 {
        match self {
            Code::Parse => -32700,
            Code::InvalidRequest => -32600,
            Code::MethodNotFound => -32601,
            Code::InvalidParams => -32602,
            Code::Internal => -32603,
            Code::ResourceNotFound => -32002,
            Code::UnsupportedVersion => -32022,
            Code::HeaderMismatch => -32020,
        }
    }
}

impl Fault {
    pub fn new(id: Option<&Id>, code: Code, message: impl Into<String>) -> Fault {
        Fault { id: id.cloned(), code, message: message.into(), data: None }
    }

    fn parse(message: impl Into<String>) -> Fault {
        Fault::new(None, Code::Parse, message)
    }
}

impl Meta<'_> {
    /// What progress is told under, if it is wanted.
    pub fn token(&self) -> Option<Id> {
        self.progress_token.and_then(Id::token)
    }
}

impl<'l> Params<'l> {
    fn read(raw: Option<&'l RawValue>) -> Params<'l> {
        let broken = |why: String| Params { broken: Some(why), ..Params::default() };
        match raw.map(RawValue::get) {
            None | Some("null") => Params::default(),
            Some(text) if text.starts_with('{') => {
                serde_json::from_str(text).unwrap_or_else(|error| broken(format!("params: {error}")))
            }
            Some(_) => broken("params must be an object".into()),
        }
    }

    /// The object's `_meta`, or what is wrong with either.
    pub fn meta(&self) -> Result<Meta<'l>, String> {
        if let Some(why) = &self.broken {
            return Err(why.clone());
        }
        match self.meta.map(RawValue::get) {
            None | Some("null") => Ok(Meta::default()),
            Some(text) if text.starts_with('{') => {
                serde_json::from_str(text).map_err(|error| format!("_meta: {error}"))
            }
            Some(_) => Err("params._meta must be an object".into()),
        }
    }

    /// Which request `notifications/cancelled` is about.
    pub fn cancelled(&self) -> Option<Id> {
        self.request_id.and_then(Id::of)
    }
}

/// The text of a raw string.
pub fn string(raw: &RawValue) -> Option<Cow<'_, str>> {
    #[derive(Deserialize)]
    struct Text<'l>(#[serde(borrow)] Cow<'l, str>);
    serde_json::from_str::<Text>(raw.get()).ok().map(|text| text.0)
}

#[derive(Deserialize)]
struct Envelope<'l> {
    #[serde(borrow, default, deserialize_with = "present")]
    jsonrpc: Option<&'l RawValue>,
    #[serde(borrow, default, deserialize_with = "present")]
    id: Option<&'l RawValue>,
    #[serde(borrow, default, deserialize_with = "present")]
    method: Option<&'l RawValue>,
    #[serde(borrow, default, deserialize_with = "present")]
    params: Option<&'l RawValue>,
    #[serde(borrow, default, deserialize_with = "present")]
    result: Option<&'l RawValue>,
    #[serde(borrow, default, deserialize_with = "present")]
    error: Option<&'l RawValue>,
}

/// A field that is there, null included: an Option alone takes null for absent.
fn present<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<&'de RawValue>, D::Error> {
    <&RawValue>::deserialize(deserializer).map(Some)
}

fn message(text: &str) -> Result<Message<'_>, Fault> {
    let envelope: Envelope = match serde_json::from_str(text) {
        Ok(envelope) => envelope,
        Err(error) => return Err(not_a_message(text, &error.to_string())),
    };
    if envelope.method.is_none() && (envelope.result.is_some() || envelope.error.is_some()) {
        return Ok(Message::Response);
    }
    let method = envelope.method.and_then(string);
    // Whether it is a request is decided by the presence of the key, so that `"id": null` is not taken for silence.
    let Some(id) = envelope.id else {
        let method = method.ok_or_else(|| Fault::new(None, Code::InvalidRequest, "method must be a string"))?;
        return Ok(Message::Notification { method, params: Params::read(envelope.params) });
    };
    let invalid = |id: Option<&Id>, why: &str| Fault::new(id, Code::InvalidRequest, why);
    let id = Id::of(id).ok_or_else(|| invalid(None, "id must be a string or a whole number"))?;
    if envelope.jsonrpc.and_then(string).as_deref() != Some("2.0") {
        return Err(invalid(Some(&id), "jsonrpc must be \"2.0\""));
    }
    let method = method.ok_or_else(|| invalid(Some(&id), "method must be a string"))?;
    if envelope.params.is_some_and(|params| !params.get().starts_with(['{', '[', 'n'])) {
        return Err(invalid(Some(&id), "params must be an object"));
    }
    Ok(Message::Request { id, method, params: Params::read(envelope.params) })
}

fn batch(text: &str) -> Result<Incoming<'_>, Fault> {
    let items: Vec<&RawValue> = serde_json::from_str(text).map_err(|error| not_a_message(text, &error.to_string()))?;
    let refused = |why: String| Fault::new(None, Code::InvalidRequest, why);
    if items.is_empty() {
        return Err(refused("the batch is empty".into()));
    }
    if items.len() > MAX_BATCH {
        return Err(refused(format!("at most {MAX_BATCH} messages in a batch, found {}", items.len())));
    }
    let read = |item: &'_ &RawValue| match item.get().starts_with('{') {
        true => Ok(()),
        false => Err(refused("a message is a JSON object".into())),
    };
    Ok(Incoming::Batch(items.into_iter().map(|item| read(&item).and_then(|()| message(item.get()))).collect()))
}

/// Broken JSON is one fault, JSON that is no message another.
fn not_a_message(text: &str, why: &str) -> Fault {
    match serde_json::from_str::<serde::de::IgnoredAny>(text) {
        Ok(_) => Fault::new(None, Code::InvalidRequest, why),
        Err(error) => Fault::parse(error.to_string()),
    }
}
