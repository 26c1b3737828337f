//! Servers of models that say what a test wants, in the dialects of Ollama and OpenAI, over plain sockets.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dialect {
    Ollama,
    OpenAi,
}

/// What a server does with one request.
pub enum Act {
    /// Answers as its API has it, a word at a time.
    Say(String),
    /// The same, with a pause after each word.
    SaySlowly(String, Duration),
    /// A head with this status, and a body.
    Status(&'static str, &'static str, String),
    /// Bytes as they are; then the connection is closed.
    Raw(Vec<u8>),
    /// Bytes, then silence for as long as the client stays.
    Hang(Vec<u8>),
}

#[derive(Debug, Clone)]
pub struct Request {
    /// `POST /api/chat`
    pub line: String,
    pub head: String,
    pub body: Value,
}

pub struct Stub {
    pub address: String,
    pub dialect: Dialect,
    requests: Arc<Mutex<Vec<Request>>>,
    /// How many connections ended because the client was gone.
    hung_up: Arc<Mutex<usize>>,
}

impl Stub {
    /// `act` sees each request for an answer, and how many there were before it.
    pub fn start(dialect: Dialect, act: impl Fn(&Request, usize) -> Act + Send + Sync + 'static) -> Stub {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = format!("http://{}", listener.local_addr().expect("bound"));
        let requests: Arc<Mutex<Vec<Request>>> = Arc::default();
        let hung_up: Arc<Mutex<usize>> = Arc::default();
        let (seen, gone, act) = (requests.clone(), hung_up.clone(), Arc::new(act));
        thread::spawn(move || {
            for stream in listener.incoming() {
                let Ok(mut stream) = stream else { return };
                let (seen, gone, act) = (seen.clone(), gone.clone(), act.clone());
                thread::spawn(move || {
                    let Some(request) = read(&mut stream) else { return };
                    let bytes = match request.line.as_str() {
                        "GET /api/tags" => Act::Status("200 OK", "application/json", tags()),
                        "GET /v1/models" => Act::Status("200 OK", "application/json", models()),
                        _ => {
                            let mut seen = seen.lock().expect("requests");
                            let before = seen.len();
                            seen.push(request.clone());
                            drop(seen);
                            act(&request, before)
                        }
                    };
                    if !perform(&mut stream, dialect, bytes) {
                        *gone.lock().expect("a count") += 1;
                    }
                });
            }
        });
        Stub { address, dialect, requests, hung_up }
    }

    /// Says the same to whoever asks.
    pub fn saying(dialect: Dialect, text: &str) -> Stub {
        let text = text.to_owned();
        Stub::start(dialect, move |_, _| Act::Say(text.clone()))
    }

    /// Requests for answers so far.
    pub fn requests(&self) -> Vec<Request> {
        self.requests.lock().expect("requests").clone()
    }

    pub fn hung_up(&self) -> usize {
        *self.hung_up.lock().expect("a count")
    }

    /// The settings that lead to it.
    pub fn config(&self) -> String {
        let provider = match self.dialect {
            Dialect::Ollama => "ollama",
            Dialect::OpenAi => "openai",
        };
        format!("[models.llm]\nprovider = \"{provider}\"\nmodel = \"tiny\"\nendpoint = \"{}\"\n", self.address)
    }
}

fn tags() -> String {
    json!({"models": [{"name": "tiny:latest", "model": "tiny:latest"}, {"name": "other:7b"}]}).to_string()
}

fn models() -> String {
    json!({"object": "list", "data": [{"id": "tiny", "object": "model"}, {"id": "other", "object": "model"}]})
        .to_string()
}

/// The head and the body that it announces; None if the client went before.
fn read(stream: &mut TcpStream) -> Option<Request> {
    let mut bytes = Vec::new();
    let mut buffer = [0; 16384];
    loop {
        if let Some(end) = bytes.windows(4).position(|window| window == b"\r\n\r\n") {
            let head = String::from_utf8_lossy(&bytes[..end]).into_owned();
            let length = head.lines().find_map(|line| line.strip_prefix("Content-Length: ")?.parse::<usize>().ok());
            let length = length.unwrap_or(0);
            if bytes.len() >= end + 4 + length {
                let body = serde_json::from_slice(&bytes[end + 4..end + 4 + length]).unwrap_or(Value::Null);
                let line = head.lines().next()?.trim_end_matches(" HTTP/1.1").to_owned();
                return Some(Request { line, head, body });
            }
        }
        match stream.read(&mut buffer) {
            Ok(0) | Err(_) => return None,
            Ok(len) => bytes.extend_from_slice(&buffer[..len]),
        }
    }
}

/// False if the client hung up before all was said.
fn perform(stream: &mut TcpStream, dialect: Dialect, act: Act) -> bool {
    match act {
        Act::Raw(bytes) => stream.write_all(&bytes).is_ok(),
        Act::Status(status, kind, body) => {
            let head = format!("HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\n\r\n", body.len());
            stream.write_all(format!("{head}{body}").as_bytes()).is_ok()
        }
        Act::Hang(bytes) => {
            let sent = stream.write_all(&bytes).is_ok();
            stream.set_read_timeout(Some(Duration::from_secs(60))).expect("a timeout");
            // Ends when the client closes its side.
            sent && !matches!(stream.read(&mut [0; 16]), Ok(0) | Err(_))
        }
        Act::Say(text) => say(stream, dialect, &text, Duration::ZERO),
        Act::SaySlowly(text, pause) => say(stream, dialect, &text, pause),
    }
}

fn say(stream: &mut TcpStream, dialect: Dialect, text: &str, pause: Duration) -> bool {
    let chunks = std::iter::once(head(dialect).into_bytes()).chain(spoken(dialect, text));
    for bytes in chunks {
        if stream.write_all(&bytes).is_err() {
            return false;
        }
        thread::sleep(pause);
    }
    true
}

/// The head of an answer that streams.
pub fn head(dialect: Dialect) -> String {
    let kind = match dialect {
        Dialect::Ollama => "application/x-ndjson",
        Dialect::OpenAi => "text/event-stream",
    };
    format!("HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\nTransfer-Encoding: chunked\r\n\r\n")
}

/// The chunks of an answer, a word each, and its end.
pub fn spoken(dialect: Dialect, text: &str) -> Vec<Vec<u8>> {
    let pieces: Vec<&str> = text.split_inclusive(' ').collect();
    let words = pieces.iter().map(|piece| match dialect {
        Dialect::Ollama => {
            let message = json!({"role": "assistant", "content": piece});
            format!("{}\n", json!({"model": "tiny", "created_at": CREATED, "message": message, "done": false}))
        }
        Dialect::OpenAi => {
            event(json!([{"index": 0, "delta": {"content": piece}, "finish_reason": null}]), Value::Null)
        }
    });
    let (prompt, reply) = (100, pieces.len());
    let end = match dialect {
        Dialect::Ollama => {
            let message = json!({"role": "assistant", "content": ""});
            let last = json!({"model": "tiny", "created_at": CREATED, "message": message, "done_reason": "stop",
                "done": true, "total_duration": 1, "prompt_eval_count": prompt, "eval_count": reply});
            format!("{last}\n")
        }
        Dialect::OpenAi => {
            let stop = event(json!([{"index": 0, "delta": {}, "finish_reason": "stop"}]), Value::Null);
            let usage = json!({"prompt_tokens": prompt, "completion_tokens": reply, "total_tokens": prompt + reply});
            format!("{stop}{}data: [DONE]\n\n", event(json!([]), usage))
        }
    };
    let mut chunks: Vec<Vec<u8>> = words.chain([end]).map(|line| chunk(line.as_bytes())).collect();
    chunks.push(b"0\r\n\r\n".to_vec());
    chunks
}

const CREATED: &str = "2025-01-01T00:00:00Z";

fn event(choices: Value, usage: Value) -> String {
    let event = json!({"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "tiny", "choices": choices, "usage": usage});
    format!("data: {event}\n\n")
}

fn chunk(bytes: &[u8]) -> Vec<u8> {
    [format!("{:x}\r\n", bytes.len()).as_bytes(), bytes, b"\r\n"].concat()
}
