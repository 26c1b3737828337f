//! Responses: the statuses this server gives and the bytes of a head. Head and body go out in one write.

use std::fmt::Write;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Status {
    SwitchingProtocols,
    Ok,
    Accepted,
    NoContent,
    BadRequest,
    Unauthorized,
    Forbidden,
    NotFound,
    MethodNotAllowed,
    RequestTimeout,
    ContentTooLarge,
    UnsupportedMediaType,
    ExpectationFailed,
    HeadTooLarge,
    InternalError,
    Unavailable,
}

impl Status {
    fn line(self) -> &'static str {
        match self {
            Status::SwitchingProtocols => "101 Switching Protocols",
            Status::Ok => "200 OK",
            Status::Accepted => "202 Accepted",
            Status::NoContent => "204 No Content",
            Status::BadRequest => "400 Bad Request",
            Status::Unauthorized => "401 Unauthorized",
            Status::Forbidden => "403 Forbidden",
            Status::NotFound => "404 Not Found",
            Status::MethodNotAllowed => "405 Method Not Allowed",
            Status::RequestTimeout => "408 Request Timeout",
            Status::ContentTooLarge => "413 Content Too Large",
            Status::UnsupportedMediaType => "415 Unsupported Media Type",
            Status::ExpectationFailed => "417 Expectation Failed",
            Status::HeadTooLarge => "431 Request Header Fields Too Large",
            Status::InternalError => "500 Internal Server Error",
            Status::Unavailable => "503 Service Unavailable",
        }
    }
}

/// Why there is no answer, with the `error` that its body says.
#[derive(Debug, Clone, PartialEq)]
pub struct Refusal {
    pub status: Status,
    pub reason: String,
}

impl Refusal {
    pub fn new(status: Status, reason: impl Into<String>) -> Refusal {
        Refusal { status, reason: reason.into() }
    }
}

#[derive(Debug, PartialEq)]
pub struct Response {
    pub status: Status,
    /// Lines of the head that only this response has, each with its line end.
    pub fields: String,
    /// JSON.
    pub body: String,
}

impl Response {
    pub fn json(status: Status, body: impl Into<String>) -> Response {
        Response { status, fields: String::new(), body: body.into() }
    }

    pub fn empty(status: Status) -> Response {
        Response::json(status, "")
    }

    pub fn with(mut self, name: &str, value: &str) -> Response {
        // Writing to a String cannot fail.
        write!(self.fields, "{name}: {value}\r\n").ok();
        self
    }

    /// The bytes to send. `origin`: the page that may read it. A HEAD request gets no body, but its length.
    pub fn bytes(&self, origin: Option<&str>, keep_alive: bool, without_body: bool) -> Vec<u8> {
        let mut head = String::with_capacity(256 + self.fields.len() + self.body.len());
        begin(&mut head, self.status, origin);
        head.push_str(&self.fields);
        if !keep_alive && self.status != Status::SwitchingProtocols {
            head.push_str("Connection: close\r\n");
        }
        if !matches!(self.status, Status::SwitchingProtocols | Status::NoContent) {
            if !self.body.is_empty() {
                head.push_str("Content-Type: application/json\r\n");
            }
            write!(head, "Content-Length: {}\r\n", self.body.len()).ok();
        }
        head.push_str("\r\n");
        if !without_body {
            head.push_str(&self.body);
        }
        head.into_bytes()
    }
}

impl From<Refusal> for Response {
    fn from(refusal: Refusal) -> Response {
        let reason = serde_json::Value::from(refusal.reason);
        let response = Response::json(refusal.status, format!("{{\"error\":{reason}}}"));
        match refusal.status {
            Status::Unauthorized => response.with("WWW-Authenticate", "Bearer"),
            Status::MethodNotAllowed => response.with("Allow", ALLOWED),
            Status::Unavailable => response.with("Retry-After", "1"),
            _ => response,
        }
    }
}

/// Methods of `/mcp`.
pub const ALLOWED: &str = "POST, OPTIONS, DELETE";

/// The head of a stream of events, whose end is its last chunk, or the end of the connection.
pub fn stream_head(origin: Option<&str>, keep_alive: bool, chunked: bool) -> String {
    let mut head = String::with_capacity(512);
    begin(&mut head, Status::Ok, origin);
    head.push_str("Content-Type: text/event-stream\r\nX-Accel-Buffering: no\r\n");
    if chunked {
        head.push_str("Transfer-Encoding: chunked\r\n");
    }
    if !keep_alive {
        head.push_str("Connection: close\r\n");
    }
    head.push_str("\r\n");
    head
}

/// One message as an event, framed as a chunk where the stream is chunked.
pub fn event(message: &str, chunked: bool) -> String {
    let length = "event: message\ndata: \n\n".len() + message.len();
    match chunked {
        true => format!("{length:x}\r\nevent: message\ndata: {message}\n\n\r\n"),
        false => format!("event: message\ndata: {message}\n\n"),
    }
}

pub const LAST_CHUNK: &str = "0\r\n\r\n";

fn begin(head: &mut String, status: Status, origin: Option<&str>) {
    // Writing to a String cannot fail.
    write!(head, "HTTP/1.1 {}\r\nCache-Control: no-store\r\n", status.line()).ok();
    if let Some(origin) = origin {
        write!(
            head,
            "Access-Control-Allow-Origin: {origin}\r\nVary: Origin\r\nAccess-Control-Expose-Headers: Mcp-Session-Id\r\n"
        )
        .ok();
    }
}
