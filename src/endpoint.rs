//! One HTTP request to a model server: JSON out, JSON or lines of a stream back, under one deadline.
//!
//! minreq counts whole seconds, blocks in reads and follows redirects; here it runs in a thread of its own that hands
//! on what it reads, so a deadline and a stop take effect within `PATIENCE`. A request given up on has its connection cut
//! at once, so that a server does not work for nobody.
//!
//! Refuses: what is asked and what an answer means, redirects (a key would follow them), proxies, and repeating a
//! request that a server may have begun to work on.

#[cfg(test)]
mod tests;
mod tunnel;

use std::io::{self, ErrorKind, Read};
use std::sync::Once;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, bounded};
use minreq::{Method, Proxy, Request};
use serde_json::Value;

use crate::config::Secret;
use crate::error::{Error, Result};
use tunnel::{Cutter, Tunnel};

/// A model on a server.
#[derive(Debug, Clone)]
pub struct Endpoint {
    api: Api,
    /// Without a slash at its end.
    address: String,
    pub model: String,
    key: Option<Secret>,
    /// The table of settings it comes from, such as `models.llm`.
    settings: &'static str,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Api {
    Ollama,
    OpenAi,
}

/// How often a wait looks whether it is still wanted.
const PATIENCE: Duration = Duration::from_millis(20);

/// More than a full answer of any dialect; embeddings of a batch are the longest.
const MAX_BODY: usize = 32 << 20;
const MAX_LINE: usize = 1 << 20;

/// Of an answer that tells of a failure.
const MAX_FAILURE: usize = 64 << 10;

/// A server that turns a request away unworked is asked again so often, if it names a wait that is worth it.
const RETRIES: usize = 2;
const LONGEST_WAIT: Duration = Duration::from_secs(20);

/// Requests at once, those given up on while a name is looked up or a connection opened included.
const MAX_THREADS: usize = 64;

impl Endpoint {
    pub fn new(api: Api, address: &str, model: &str, key: Option<Secret>, settings: &'static str) -> Endpoint {
        Endpoint { api, address: address.trim_end_matches('/').to_owned(), model: model.to_owned(), key, settings }
    }

    /// `path` as the API's own pages have it: `/api/embed`, `/v1/embeddings`.
    pub fn post_json(&self, path: &str, body: &Value, deadline: Instant, stop: &AtomicBool) -> Result<Value> {
        self.json(self.open(Method::Post, path, Some(body), deadline, stop)?)
    }

    pub fn get_json(&self, path: &str, deadline: Instant, stop: &AtomicBool) -> Result<Value> {
        self.json(self.open(Method::Get, path, None, deadline, stop)?)
    }

    /// Hands each line of the answer to `take` as it comes, until that returns false or the answer ends. Lines are
    /// whole: a character cut by the network is put together, one that is no UTF-8 is replaced.
    pub fn post_lines(
        &self,
        path: &str,
        body: &Value,
        deadline: Instant,
        stop: &AtomicBool,
        take: &mut dyn FnMut(&str) -> Result<bool>,
    ) -> Result<()> {
        let mut answer = self.open(Method::Post, path, Some(body), deadline, stop)?;
        if answer.content_type.contains("html") {
            return Err(self.unreachable("it answered with a page of HTML, not JSON", Some(self.other_path())));
        }
        let (mut line, mut total) = (Vec::new(), 0);
        while let Some(bytes) = answer.next()? {
            total += bytes.len();
            let mut rest = &bytes[..];
            while let Some(at) = rest.iter().position(|byte| *byte == b'\n') {
                line.extend_from_slice(&rest[..at]);
                rest = &rest[at + 1..];
                if !take(String::from_utf8_lossy(&line).trim_end_matches('\r'))? {
                    return Ok(());
                }
                line.clear();
            }
            line.extend_from_slice(rest);
            if line.len() > MAX_LINE || total > MAX_BODY {
                return Err(self.unreachable("its answer does not end", None));
            }
        }
        if !line.is_empty() {
            take(&String::from_utf8_lossy(&line))?;
        }
        Ok(())
    }

    /// What a server says of a failure: by the status of its answer, or within a stream that began well.
    pub fn failure(&self, status: u16, body: &str) -> Error {
        let told = serde_json::from_str(body).ok().and_then(|body: Value| reason(&body));
        let text = told.as_deref().map(|text| self.clean(text));
        let cause = match (&text, status) {
            (Some(text), 200) => text.clone(),
            (Some(text), _) => format!("{status}: {text}"),
            (None, _) if body.trim_start().starts_with('<') => format!("{status}, with a page of HTML"),
            (None, _) => status.to_string(),
        };
        let words = text.unwrap_or_default().to_lowercase();
        let missing = words.contains("model")
            && ["not found", "not exist", "not_found", "no such"].iter().any(|said| words.contains(said));
        match status {
            401 | 403 => {
                let name = self.settings.replace('.', "_").to_uppercase();
                let what = if self.key.is_some() { "Correct" } else { "Set" };
                self.unreachable(&cause, Some(format!("{what} the key in the environment: KEBAB_{name}_API_KEY.")))
            }
            200 | 400 | 404 | 500 if missing => Error::ModelNotPulled {
                endpoint: self.address.clone(),
                model: self.model.clone(),
                cause,
                hint: match self.api {
                    Api::Ollama => format!("Run `ollama pull {}`.", self.model),
                    Api::OpenAi => format!("Name a model that the server has in {}.model.", self.settings),
                },
            },
            404 | 405 => self.unreachable(&cause, Some(self.other_path())),
            300..400 => {
                let hint = format!("Name the address it leads to in {}.endpoint.", self.settings);
                self.unreachable(&format!("{status}: it redirects, which is not followed"), Some(hint))
            }
            _ => self.unreachable(&cause, None),
        }
    }

    /// It cannot be reached, or what it answers is of no use.
    pub fn unreachable(&self, cause: &str, hint: Option<String>) -> Error {
        let hint = hint.unwrap_or_else(|| "Look into the log of the model server, or try again.".into());
        Error::ModelUnreachable { endpoint: self.address.clone(), model: self.model.clone(), cause: cause.into(), hint }
    }

    fn timed_out(&self) -> Error {
        Error::Timeout {
            endpoint: self.address.clone(),
            model: self.model.clone(),
            cause: "no answer in time".into(),
            hint: format!("Raise {}.request_timeout_secs, or use a smaller model.", self.settings),
        }
    }

    fn nobody_listens(&self, cause: &str) -> Error {
        let hint = match self.api {
            Api::Ollama if self.address.ends_with(":11434") => "Start it: `ollama serve`.".into(),
            _ => format!("Start the model server, or correct {}.endpoint.", self.settings),
        };
        self.unreachable(cause, Some(hint))
    }

    fn other_path(&self) -> String {
        let other = match self.api {
            Api::Ollama => "openai",
            Api::OpenAi => "ollama",
        };
        let settings = self.settings;
        format!("Check {settings}.endpoint; a server of the other API needs {settings}.provider = \"{other}\".")
    }

    /// A server's words as an error may show them: short, of one line, without the key.
    fn clean(&self, text: &str) -> String {
        let text = match &self.key {
            Some(key) => text.replace(key.reveal(), "***"),
            None => text.to_owned(),
        };
        let text: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).take(MAX_REASON).collect();
        text.trim().to_owned()
    }

    /// An address that has a path of its own replaces the API's root: `https://host/v1beta/openai` is one.
    fn url(&self, path: &str) -> String {
        let authority = self.address.find("://").map_or(0, |at| at + 3);
        let own_path = self.address[authority..].contains('/');
        let below = match self.api {
            Api::OpenAi if own_path => path.strip_prefix("/v1"),
            Api::Ollama if self.address.ends_with("/api") => path.strip_prefix("/api"),
            _ => None,
        };
        format!("{}{}", self.address, below.unwrap_or(path))
    }

    /// Where to connect to; the configuration has checked the address.
    fn host(&self) -> (String, u16) {
        let (scheme, rest) = self.address.split_once("://").unwrap_or(("http", &self.address));
        let authority = rest.split('/').next().unwrap_or(rest);
        let usual = if scheme == "https" { 443 } else { 80 };
        let (host, port) = authority.split_once(':').unwrap_or((authority, ""));
        (host.to_owned(), port.parse().unwrap_or(usual))
    }

    fn json(&self, mut answer: Answer) -> Result<Value> {
        let body = answer.body(MAX_BODY)?;
        serde_json::from_slice(&body).map_err(|error| {
            let cause = match body.trim_ascii_start().first() {
                Some(b'<') => {
                    return self.unreachable("it answered with a page of HTML, not JSON", Some(self.other_path()));
                }
                None => "it answered with nothing".to_owned(),
                _ if error.is_eof() => "its answer broke off".to_owned(),
                _ => format!("its answer is not JSON: {error}"),
            };
            self.unreachable(&cause, None)
        })
    }

    /// Sends the request and waits for the head of an answer that is a success.
    fn open<'a>(
        &'a self,
        method: Method,
        path: &str,
        body: Option<&Value>,
        deadline: Instant,
        stop: &'a AtomicBool,
    ) -> Result<Answer<'a>> {
        if self.address.starts_with("https:") {
            choose_tls();
        }
        let mut request = Request::new(method, self.url(path))
            .with_follow_redirects(false)
            .with_max_headers_size(MAX_FAILURE)
            .with_header("Accept", "application/json")
            .with_header("Connection", "close");
        if let Some(key) = &self.key {
            request = request.with_header("Authorization", format!("Bearer {}", key.reveal()));
        }
        if let Some(body) = body {
            request = request.with_header("Content-Type", "application/json").with_body(body.to_string());
        }
        for attempt in 0.. {
            let mut answer = self.attempt(request.clone(), deadline, stop)?;
            if (200..300).contains(&answer.status) {
                return Ok(answer);
            }
            let status = answer.status;
            let body = String::from_utf8_lossy(&answer.body(MAX_FAILURE)?).into_owned();
            if status == 503 && answer.reason.starts_with("Server did not provide") {
                return Err(self.unreachable("what listens there does not speak HTTP", Some(self.other_path())));
            }
            // Both say that nothing was begun.
            if !matches!(status, 429 | 503) {
                return Err(self.failure(status, &body));
            }
            let wait = answer.retry_after.unwrap_or(Duration::from_secs(1));
            let left = deadline.saturating_duration_since(Instant::now());
            if attempt >= RETRIES || wait > LONGEST_WAIT || wait > left / 2 {
                return Err(match (self.failure(status, &body), answer.retry_after) {
                    (Error::ModelUnreachable { endpoint, model, cause, .. }, Some(wait)) => {
                        let hint = format!("Try again in {} seconds.", wait.as_secs());
                        Error::ModelUnreachable { endpoint, model, cause, hint }
                    }
                    (error, _) => error,
                });
            }
            self.sleep(wait, stop)?;
        }
        Err(self.timed_out())
    }

    fn sleep(&self, wait: Duration, stop: &AtomicBool) -> Result<()> {
        let until = Instant::now() + wait;
        loop {
            if stop.load(Ordering::Relaxed) {
                return Err(Error::Cancelled);
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(());
            }
            thread::sleep(left.min(PATIENCE));
        }
    }

    fn attempt<'a>(&'a self, request: Request, deadline: Instant, stop: &'a AtomicBool) -> Result<Answer<'a>> {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(self.timed_out());
        }
        let Some(place) = Place::take() else {
            return Err(self.unreachable("too many earlier requests still hang", None));
        };
        // The exact deadline is held by whoever waits; this one only ends the thread behind it.
        let request = request.with_timeout(left.as_secs() + 1);
        let (send, pieces) = bounded(8);
        let cutter = Cutter::default();
        let (line, (host, port)) = (cutter.line(), self.host());
        let spawned = thread::Builder::new().name("model request".into()).spawn(move || {
            match Tunnel::open(&host, port, deadline, &line) {
                Ok(tunnel) => fetch(request, &tunnel, &send),
                // Nobody left to tell is fine.
                Err(error) => drop(send.send(Piece::Failed(unconnected(error)))),
            }
            drop(place);
        });
        spawned.map_err(|error| self.unreachable(&format!("no thread for the request: {error}"), None))?;
        let none = String::new();
        let mut answer = Answer {
            endpoint: self,
            pieces,
            _cutter: cutter,
            deadline,
            stop,
            status: 0,
            reason: none.clone(),
            content_type: none,
            retry_after: None,
        };
        match answer.wait()? {
            Piece::Head { status, reason, content_type, retry_after } => {
                Ok(Answer { status, reason, content_type, retry_after, ..answer })
            }
            _ => Err(self.unreachable("its answer has no head", None)),
        }
    }
}

const MAX_REASON: usize = 300;

/// `{"error": "…"}`, `{"error": {"message": "…"}}`, `{"message": "…"}`, `{"detail": "…"}`.
fn reason(body: &Value) -> Option<String> {
    let text = |value: &Value| value.as_str().map(str::to_owned);
    let error = &body["error"];
    text(error)
        .or_else(|| text(&error["message"]))
        .or_else(|| text(&body["message"]))
        .or_else(|| text(&body["detail"]))
        .or_else(|| error.is_object().then(|| error.to_string()))
}

/// An answer whose head has come.
struct Answer<'a> {
    endpoint: &'a Endpoint,
    pieces: Receiver<Piece>,
    /// The connection lives as long as this.
    _cutter: Cutter,
    deadline: Instant,
    stop: &'a AtomicBool,
    status: u16,
    reason: String,
    content_type: String,
    retry_after: Option<Duration>,
}

enum Piece {
    Head { status: u16, reason: String, content_type: String, retry_after: Option<Duration> },
    Bytes(Vec<u8>),
    End,
    Failed(Failure),
}

enum Failure {
    Timeout,
    Refused(String),
    Broken(String),
}

impl Answer<'_> {
    /// The next bytes; None at the end of the answer.
    fn next(&mut self) -> Result<Option<Vec<u8>>> {
        match self.wait()? {
            Piece::Bytes(bytes) => Ok(Some(bytes)),
            _ => Ok(None),
        }
    }

    /// All of it, up to a limit.
    fn body(&mut self, limit: usize) -> Result<Vec<u8>> {
        let mut body = Vec::new();
        while let Some(bytes) = self.next()? {
            body.extend_from_slice(&bytes);
            if body.len() > limit {
                return Err(self.endpoint.unreachable("its answer does not end", None));
            }
        }
        Ok(body)
    }

    fn wait(&mut self) -> Result<Piece> {
        loop {
            if self.stop.load(Ordering::Relaxed) {
                return Err(Error::Cancelled);
            }
            let left = self.deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(self.endpoint.timed_out());
            }
            match self.pieces.recv_timeout(left.min(PATIENCE)) {
                Ok(Piece::Failed(Failure::Timeout)) => return Err(self.endpoint.timed_out()),
                Ok(Piece::Failed(Failure::Refused(cause))) => return Err(self.endpoint.nobody_listens(&cause)),
                Ok(Piece::Failed(Failure::Broken(cause))) => return Err(self.endpoint.unreachable(&cause, None)),
                Ok(piece) => return Ok(piece),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(self.endpoint.unreachable("its answer could not be read", None));
                }
            }
        }
    }
}

/// One of the `MAX_THREADS`, given back when dropped.
struct Place;

static TAKEN: AtomicUsize = AtomicUsize::new(0);

impl Place {
    fn take() -> Option<Place> {
        let free = |taken: usize| (taken < MAX_THREADS).then_some(taken + 1);
        TAKEN.fetch_update(Ordering::Relaxed, Ordering::Relaxed, free).ok().map(|_| Place)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        TAKEN.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Runs in its own thread until the answer ends or nobody takes the next piece.
fn fetch(request: Request, tunnel: &Tunnel, pieces: &Sender<Piece>) {
    let sent = Proxy::new(format!("127.0.0.1:{}", tunnel.port)).and_then(|near| request.with_proxy(near).send_lazy());
    let mut response = match sent {
        Ok(response) => response,
        Err(error) => {
            // Nobody left to tell is fine.
            pieces.send(Piece::Failed(failed(error))).ok();
            return;
        }
    };
    let header = |name: &str| {
        let found = response.headers.iter().find(|(known, _)| known.eq_ignore_ascii_case(name));
        found.map(|(_, value)| value.trim().to_ascii_lowercase())
    };
    let head = Piece::Head {
        status: response.status_code,
        reason: response.reason_phrase.clone(),
        content_type: header("content-type").unwrap_or_default(),
        retry_after: header("retry-after").and_then(|value| value.parse().ok()).map(Duration::from_secs),
    };
    let mut wanted = pieces.send(head).is_ok();
    let mut buffer = [0; 8192];
    while wanted {
        let piece = match response.read(&mut buffer) {
            Ok(0) => Piece::End,
            Ok(len) => Piece::Bytes(buffer[..len].to_vec()),
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            Err(error) => Piece::Failed(failed(minreq::Error::IoError(error))),
        };
        let last = !matches!(piece, Piece::Bytes(_));
        wanted = pieces.send(piece).is_ok() && !last;
    }
}

/// rustls does its cryptography by ring. With two providers built in it wants one named, and what nobody names is not
/// linked: the other one, which minreq brings along, would be a fifth of the program without models.
fn choose_tls() {
    static CHOSEN: Once = Once::new();
    // A program that this library is part of may have chosen already, which stands.
    CHOSEN.call_once(|| drop(rustls::crypto::ring::default_provider().install_default()));
}

fn failed(error: minreq::Error) -> Failure {
    match error {
        minreq::Error::IoError(error) => unconnected(error),
        other => Failure::Broken(other.to_string()),
    }
}

fn unconnected(error: io::Error) -> Failure {
    match error.kind() {
        ErrorKind::TimedOut | ErrorKind::WouldBlock => Failure::Timeout,
        ErrorKind::ConnectionRefused => Failure::Refused("nothing listens there".into()),
        ErrorKind::ConnectionReset | ErrorKind::UnexpectedEof | ErrorKind::BrokenPipe => {
            Failure::Broken("it closed the connection".into())
        }
        // A name that does not resolve has no kind of its own.
        _ => Failure::Refused(error.to_string()),
    }
}
