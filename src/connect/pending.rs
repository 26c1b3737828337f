//! What a shared server has been asked and has not answered, as far as another one has to know it that takes its place:
//! the requests under way, how far their progress was told, and whether arrays are batches.

use std::borrow::Cow;
use std::collections::VecDeque;

use serde_json::value::RawValue;

use crate::rpc;
use crate::rpc::message::{Fault, Id, Incoming, Message, parse};

#[derive(Default)]
pub struct Pending {
    requests: VecDeque<Request>,
    /// The revision last agreed on has batches, as the server remembers it of the connection.
    batches: bool,
    /// Batches so far.
    count: u64,
}

/// A request under way.
struct Request {
    id: Id,
    text: Box<[u8]>,
    /// The batch it came in: its answer belongs into an array with theirs.
    batch: Option<u64>,
    progress: Option<Progress>,
    /// It was under way when a server died.
    again: bool,
}

struct Progress {
    token: Id,
    /// What the client was told last.
    done: u64,
}

impl Pending {
    pub fn is_empty(&self) -> bool {
        self.requests.is_empty()
    }

    pub fn batches(&self) -> bool {
        self.batches
    }

    /// Notes what a line asks for. False for a blank one, and an error for what is no message: no server is asked.
    pub fn note(&mut self, line: &[u8]) -> Result<bool, Fault> {
        match parse(line, self.batches).transpose()? {
            None => return Ok(false),
            Some(Incoming::One(message)) => {
                if let Some(revision) = rpc::agreed(&message) {
                    self.batches = rpc::takes_batches(revision);
                }
                self.begin(&message, line, None);
            }
            Some(Incoming::Batch(messages)) => {
                self.count += 1;
                let batch = Some(self.count);
                for (message, text) in messages.iter().zip(items(line)) {
                    message.iter().for_each(|message| self.begin(message, text.get().as_bytes(), batch));
                }
            }
        }
        Ok(true)
    }

    fn begin(&mut self, message: &Message, text: &[u8], batch: Option<u64>) {
        match message {
            Message::Request { id, params, .. } => {
                let token = params.meta().ok().and_then(|meta| meta.token());
                let progress = token.map(|token| Progress { token, done: 0 });
                self.requests.push_back(Request { id: id.clone(), text: text.into(), batch, progress, again: false });
            }
            Message::Notification { params, .. } => {
                if let Some(id) = params.cancelled() {
                    self.requests.retain(|request| !request.id.same_as(&id));
                }
            }
            Message::Response => {}
        }
    }

    /// Forgets the requests that these lines of a server answer. What is returned goes on to the client: a request that
    /// was asked again tells nothing that its client has been told.
    pub fn answered<'l>(&mut self, lines: &'l [u8]) -> Cow<'l, [u8]> {
        let mut kept = Cow::Borrowed(lines);
        if self.requests.is_empty() {
            return kept;
        }
        let mut begin = 0;
        for line in lines.split_inclusive(|byte| *byte == b'\n') {
            let end = begin + line.len();
            if self.is_old_news(line) {
                // From here on what is kept is built line by line.
                kept = Cow::Owned(match kept {
                    Cow::Borrowed(_) => lines[..begin].to_vec(),
                    Cow::Owned(kept) => kept,
                });
            } else if let Cow::Owned(kept) = &mut kept {
                kept.extend_from_slice(line);
            }
            for id in answered_ids(line) {
                if let Some(place) = self.requests.iter().position(|request| request.id.raw().as_bytes() == id) {
                    self.requests.remove(place);
                }
            }
            begin = end;
        }
        kept
    }

    /// True for progress that does not rise.
    fn is_old_news(&mut self, line: &[u8]) -> bool {
        let Some((token, done)) = told_progress(line) else { return false };
        let told = self.requests.iter_mut().filter_map(|request| request.progress.as_mut());
        let Some(told) = told.into_iter().find(|told| told.token.raw().as_bytes() == token) else { return false };
        let old = done <= told.done;
        told.done = told.done.max(done);
        old
    }

    /// The lines that ask for what is under way.
    pub fn lines(&self) -> Vec<u8> {
        let mut lines = Vec::new();
        let mut before = None;
        for request in &self.requests {
            match request.batch {
                Some(batch) if before == Some(batch) => lines.push(b','),
                batch => {
                    end_line(&mut lines, before);
                    lines.extend(batch.map(|_| b'['));
                }
            }
            lines.extend_from_slice(&request.text);
            before = request.batch;
            if before.is_none() {
                lines.push(b'\n');
            }
        }
        end_line(&mut lines, before);
        lines
    }

    /// What is under way has lost its server once.
    pub fn lose(&mut self) {
        self.requests.iter_mut().for_each(|request| request.again = true);
    }

    /// Gives up those that have lost a server before.
    pub fn give_up_lost(&mut self) -> Vec<Id> {
        self.give_up(|request| request.again)
    }

    /// Gives up those whose progress was told: who answers the others keeps no count of it.
    pub fn give_up_told(&mut self) -> Vec<Id> {
        self.give_up(|request| request.progress.as_ref().is_some_and(|progress| progress.done > 0))
    }

    pub fn give_up_all(&mut self) -> Vec<Id> {
        self.give_up(|_| true)
    }

    fn give_up(&mut self, which: impl Fn(&Request) -> bool) -> Vec<Id> {
        let (lost, kept) = std::mem::take(&mut self.requests).into_iter().partition(|request| which(request));
        self.requests = kept;
        let lost: VecDeque<Request> = lost;
        lost.into_iter().map(|request| request.id).collect()
    }
}

fn end_line(lines: &mut Vec<u8>, batch: Option<u64>) {
    if batch.is_some() {
        lines.extend_from_slice(b"]\n");
    }
}

/// The messages of a batch that has been read.
fn items(line: &[u8]) -> Vec<&RawValue> {
    let line = line.strip_prefix(b"\xef\xbb\xbf").unwrap_or(line);
    serde_json::from_slice(line).unwrap_or_default()
}

/// The ids that a line of the server's answers: they stand in the same place in each, and nothing behind them is read.
fn answered_ids(line: &[u8]) -> Vec<&[u8]> {
    const START: &[u8] = br#"{"jsonrpc":"2.0","id":"#;
    if line.starts_with(START) {
        return raw(&line[START.len()..]).into_iter().collect();
    }
    if !line.starts_with(b"[{") {
        return Vec::new();
    }
    let places = line.windows(START.len()).enumerate().filter(|(_, window)| *window == START);
    places.filter_map(|(at, _)| raw(&line[at + START.len()..])).collect()
}

/// The token and the count of a notification of progress, which stand in the same place in each.
fn told_progress(line: &[u8]) -> Option<(&[u8], u64)> {
    const START: &[u8] = br#"{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":"#;
    let rest = line.strip_prefix(START)?;
    let token = raw(rest)?;
    let digits = rest[token.len()..].strip_prefix(br#","progress":"#)?;
    let end = digits.iter().position(|byte| !byte.is_ascii_digit())?;
    let done = std::str::from_utf8(&digits[..end]).ok()?.parse().ok()?;
    Some((token, done))
}

/// The string or number at the front.
fn raw(text: &[u8]) -> Option<&[u8]> {
    if text.first() != Some(&b'"') {
        return text.iter().position(|byte| *byte == b',').map(|end| &text[..end]);
    }
    let mut escaped = false;
    let end = text.iter().skip(1).position(|byte| {
        let ends = *byte == b'"' && !escaped;
        escaped = *byte == b'\\' && !escaped;
        ends
    });
    end.map(|end| &text[..end + 2])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(id: &str, token: &str) -> String {
        format!(
            r#"{{"jsonrpc":"2.0","id":{id},"method":"tools/call","params":{{"_meta":{{"progressToken":{token}}}}}}}"#
        )
    }

    fn initialize(revision: &str) -> String {
        format!(r#"{{"jsonrpc":"2.0","id":0,"method":"initialize","params":{{"protocolVersion":"{revision}"}}}}"#)
    }

    fn lines(pending: &Pending) -> String {
        String::from_utf8(pending.lines()).unwrap()
    }

    #[test]
    fn what_is_under_way_is_asked_again_as_it_came() {
        let mut pending = Pending::default();
        let (one, other) = (call("1", "7"), call(r#""a\"b""#, r#""t""#));
        for line in [&one, "", r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#, &other] {
            assert_eq!(pending.note(line.as_bytes()), Ok(!line.is_empty()));
        }
        assert_eq!(lines(&pending), format!("{one}\n{other}\n"));
        assert!(pending.note(b"{").is_err() && pending.note(b"[]").is_err());
        let answer = b"{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{}}\n";
        assert_eq!(pending.answered(answer), Cow::Borrowed(answer));
        assert_eq!(lines(&pending), format!("{other}\n"));
        let cancel = r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":"a\u0022b"}}"#;
        assert_eq!(pending.note(cancel.as_bytes()), Ok(true));
        assert!(pending.is_empty() && lines(&pending).is_empty());
    }

    #[test]
    fn what_is_left_of_a_batch_is_a_batch() {
        let mut pending = Pending::default();
        let batch = |ids: &[&str]| format!("[{}]", ids.iter().map(|id| call(id, "1")).collect::<Vec<_>>().join(","));
        assert!(pending.note(batch(&["1"]).as_bytes()).is_err());
        assert_eq!(pending.note(initialize("2025-03-26").as_bytes()), Ok(true));
        pending.answered(b"{\"jsonrpc\":\"2.0\",\"id\":0,\"result\":{}}\n");
        assert!(pending.batches());
        for line in [batch(&["1", "2", "3"]), format!("\u{feff} {}", batch(&["4"])), batch(&["5", "6"]), call("7", "1")]
        {
            assert_eq!(pending.note(line.as_bytes()), Ok(true));
        }
        let cancel = r#"[{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":2}},{}]"#;
        assert_eq!(pending.note(cancel.as_bytes()), Ok(true));
        pending.answered(b"[{\"jsonrpc\":\"2.0\",\"id\":6,\"result\":{}}]\n");
        let expected = [batch(&["1", "3"]), batch(&["4"]), batch(&["5"]), call("7", "1")].join("\n");
        assert_eq!(lines(&pending), expected + "\n");
        pending.note(initialize("2025-06-18").as_bytes()).unwrap();
        assert!(!pending.batches());
    }

    #[test]
    fn progress_rises_over_the_end_of_a_server() {
        let mut pending = Pending::default();
        pending.note(call("1", "7").as_bytes()).unwrap();
        pending.note(call("2", r#""t""#).as_bytes()).unwrap();
        let told = |token: &str, done: u64| {
            let token = serde_json::from_str(token).unwrap();
            let token = Id::token(token).unwrap();
            rpc::answer::progress(&token, done, Some(9), "searching") + "\n"
        };
        let all = told("7", 1) + &told("7", 3) + &told(r#""t""#, 2);
        assert_eq!(pending.answered(all.as_bytes()), Cow::Borrowed(all.as_bytes()));
        pending.lose();
        let answer = "{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{}}\n";
        let again = told("7", 1) + &told(r#""t""#, 3) + &told("7", 3) + &told("7", 4) + answer + &told("9", 1);
        let expected = told(r#""t""#, 3) + &told("7", 4) + answer + &told("9", 1);
        assert_eq!(String::from_utf8_lossy(&pending.answered(again.as_bytes())), expected);

        pending.note(call("3", "8").as_bytes()).unwrap();
        let names = |ids: Vec<Id>| ids.iter().map(|id| id.raw().to_owned()).collect::<Vec<_>>();
        assert_eq!(names(pending.give_up_lost()), ["2"]);
        assert_eq!(names(pending.give_up_told()), [""; 0]);
        pending.answered(told("8", 1).as_bytes());
        assert_eq!(names(pending.give_up_told()), ["3"]);
        pending.note(call("4", "8").as_bytes()).unwrap();
        assert_eq!(names(pending.give_up_all()), ["4"]);
        assert!(pending.is_empty());
    }

    #[test]
    fn ids_are_read_off_the_servers_lines() {
        let ids = |line: &str| -> Vec<String> {
            answered_ids(line.as_bytes()).into_iter().map(|id| String::from_utf8_lossy(id).into_owned()).collect()
        };
        for (line, expected) in [
            (r#"{"jsonrpc":"2.0","id":7,"result":{}}"#, vec!["7"]),
            (r#"{"jsonrpc":"2.0","id":"a\"b\\","result":{}}"#, vec![r#""a\"b\\""#]),
            (r#"{"jsonrpc":"2.0","id":"","error":{}}"#, vec![r#""""#]),
            (r#"{"jsonrpc":"2.0","method":"notifications/progress","params":{"id":7}}"#, vec![]),
            (r#"[{"jsonrpc":"2.0","id":1,"result":{}},{"jsonrpc":"2.0","id":"x","result":{}}]"#, vec!["1", "\"x\""]),
            ("", vec![]),
        ] {
            assert_eq!(ids(line), expected, "{line}");
        }
    }
}
