//! The head of a request: bytes to a `Head`, or the refusal that whoever sent them gets. Pure functions.
//!
//! Stricter than HTTP where leniency lets two readers see two different requests in the same bytes: lines end in CRLF,
//! a length is digits and is said once, nothing is folded, and a field this server looks at stands at most once.

use super::response::{Refusal, Status};

/// A head, its closing blank line included.
pub const MAX_HEAD: usize = 16 << 10;
const MAX_FIELDS: usize = 64;

/// A body.
pub const MAX_BODY: u64 = 4 << 20;

#[derive(Debug, Default, PartialEq)]
pub struct Head {
    pub method: Method,
    /// Without the query.
    pub path: String,
    pub body: Framing,
    pub keep_alive: bool,
    /// HTTP/1.1 at least: chunks and interim answers are understood.
    pub modern: bool,
    pub expects_continue: bool,
    pub host: Option<String>,
    pub origin: Option<String>,
    pub authorization: Option<String>,
    pub content_type: Option<String>,
    pub accept: Option<String>,
    pub upgrade: Option<String>,
    pub session: Option<String>,
    pub protocol_version: Option<String>,
    pub mcp_method: Option<String>,
    pub mcp_name: Option<String>,
    pub whole: bool,
    pub readonly: bool,
    pub batches: bool,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Method {
    #[default]
    Get,
    Head,
    Post,
    Delete,
    Options,
    Other,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Framing {
    #[default]
    None,
    Length(u64),
    Chunked,
}

/// Asks for an answer as the command line gives it, for a session in which nothing may be written, and for one whose
/// client has agreed with another server that arrays are batches.
pub const WHOLE: &str = "Kebab-Whole";
pub const READONLY: &str = "Kebab-Readonly";
pub const BATCHES: &str = "Kebab-Batches";

/// Where the head ends, if it is all there; how much of `bytes` was looked at before need not be looked at again.
pub fn end(bytes: &[u8], looked_at: usize) -> Option<usize> {
    let from = looked_at.saturating_sub(3);
    bytes[from..].windows(4).position(|window| window == b"\r\n\r\n").map(|at| from + at + 4)
}

/// What is wrong with the beginning of a head already.
pub fn refuse_early(bytes: &[u8]) -> Result<(), Refusal> {
    // A head begins with a word; blank lines before it are how one request hides behind another.
    match bytes.first() {
        Some(byte) if !byte.is_ascii_alphabetic() => Err(bad("the request line must begin with a method")),
        _ if bytes.len() >= MAX_HEAD => Err(too_large()),
        _ => strict_lines(bytes),
    }
}

/// Reads a head that ends with its blank line.
pub fn parse(bytes: &[u8]) -> Result<Head, Refusal> {
    if bytes.len() > MAX_HEAD {
        return Err(too_large());
    }
    refuse_early(&bytes[..bytes.len().min(MAX_HEAD - 1)])?;
    let mut fields = [httparse::EMPTY_HEADER; MAX_FIELDS];
    let mut request = httparse::Request::new(&mut fields);
    match request.parse(bytes) {
        Ok(httparse::Status::Complete(length)) if length == bytes.len() => {}
        Ok(_) => return Err(bad("the head does not end where its blank line is")),
        Err(httparse::Error::TooManyHeaders) => return Err(too_large()),
        Err(error) => return Err(bad(&format!("the head cannot be read: {error}"))),
    }
    let target = request.path.unwrap_or_default();
    if !target.starts_with('/') {
        return Err(bad("the target must be a path"));
    }
    let modern = request.version == Some(1);
    let mut head = Head {
        method: Method::of(request.method.unwrap_or_default()),
        path: target.split('?').next().unwrap_or_default().to_owned(),
        keep_alive: modern,
        modern,
        ..Head::default()
    };
    let (mut length, mut coding) = (None, None);
    for field in request.headers.iter() {
        let text = std::str::from_utf8(field.value).map_err(|_| bad("a field is not UTF-8"))?;
        let once = |place: &mut Option<String>| match place.replace(text.to_owned()) {
            None => Ok(()),
            Some(_) => Err(bad(&format!("{} stands twice", field.name))),
        };
        match field.name.to_ascii_lowercase().as_str() {
            "host" => once(&mut head.host)?,
            "origin" => once(&mut head.origin)?,
            "authorization" => once(&mut head.authorization)?,
            "content-type" => once(&mut head.content_type)?,
            "content-length" => once(&mut length)?,
            "transfer-encoding" => once(&mut coding)?,
            "mcp-session-id" => once(&mut head.session)?,
            "mcp-protocol-version" => once(&mut head.protocol_version)?,
            "mcp-method" => once(&mut head.mcp_method)?,
            "mcp-name" => once(&mut head.mcp_name)?,
            "upgrade" => once(&mut head.upgrade)?,
            "kebab-whole" => head.whole = true,
            "kebab-readonly" => head.readonly = true,
            "kebab-batches" => head.batches = true,
            "accept" => {
                let accept = head.accept.get_or_insert_default();
                accept.push(',');
                accept.push_str(text);
            }
            "connection" if names(text, "close") => head.keep_alive = false,
            "connection" if names(text, "keep-alive") => head.keep_alive = true,
            "expect" if text.eq_ignore_ascii_case("100-continue") => head.expects_continue = modern,
            "expect" => return Err(Refusal::new(Status::ExpectationFailed, "only 100-continue can be expected")),
            _ => {}
        }
    }
    head.body = framing(length.as_deref(), coding.as_deref(), modern)?;
    Ok(head)
}

impl Method {
    fn of(name: &str) -> Method {
        match name {
            "GET" => Method::Get,
            "HEAD" => Method::Head,
            "POST" => Method::Post,
            "DELETE" => Method::Delete,
            "OPTIONS" => Method::Options,
            _ => Method::Other,
        }
    }
}

/// One of the words of a list, whatever its case.
pub fn names(list: &str, word: &str) -> bool {
    list.split(',').any(|part| part.trim().eq_ignore_ascii_case(word))
}

/// Digits and nothing else; more than a body may have is another refusal.
pub fn length(text: &str) -> Result<u64, Refusal> {
    if text.is_empty() || !text.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(bad("Content-Length must be digits"));
    }
    match text.parse() {
        Ok(length) if length <= MAX_BODY => Ok(length),
        _ => Err(Refusal::new(Status::ContentTooLarge, format!("a body has at most {MAX_BODY} bytes"))),
    }
}

fn framing(declared: Option<&str>, coding: Option<&str>, modern: bool) -> Result<Framing, Refusal> {
    match (declared, coding) {
        (Some(_), Some(_)) => Err(bad("a body has a length or is chunked, never both")),
        (Some(text), None) => length(text).map(Framing::Length),
        (None, Some(coding)) if modern && coding.eq_ignore_ascii_case("chunked") => Ok(Framing::Chunked),
        (None, Some(_)) => Err(bad("the only transfer coding is chunked, in HTTP/1.1")),
        (None, None) => Ok(Framing::None),
    }
}

/// Every line ends in CRLF, and no control character stands in one.
fn strict_lines(bytes: &[u8]) -> Result<(), Refusal> {
    let mut before = 0;
    for byte in bytes {
        let fine = match (before, byte) {
            (b'\r', b'\n') => true,
            (b'\r', _) | (_, b'\n') => false,
            (_, b'\r' | b'\t') => true,
            _ => *byte >= b' ' && *byte != 0x7f,
        };
        if !fine {
            return Err(bad("lines end in CRLF and hold no control characters"));
        }
        before = *byte;
    }
    Ok(())
}

pub fn bad(reason: &str) -> Refusal {
    Refusal::new(Status::BadRequest, reason)
}

fn too_large() -> Refusal {
    let reason = format!("a head has at most {MAX_HEAD} bytes and {MAX_FIELDS} fields");
    Refusal::new(Status::HeadTooLarge, reason)
}
