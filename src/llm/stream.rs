//! What the lines of a streamed answer mean, in the two dialects. Pure: lines in, events out.

use serde_json::Value;

use crate::endpoint::Api;

#[derive(Debug, PartialEq)]
pub enum Event {
    Nothing,
    Text(String),
    Usage {
        prompt: Option<u64>,
        completion: Option<u64>,
    },
    /// The server's words about its failure: the body of an error.
    Error(String),
    End,
}

/// Reads one answer.
pub struct Reader {
    api: Api,
    /// A server that does not stream answers with one JSON text, which may have several lines.
    whole: String,
    understood: bool,
    complete: bool,
}

impl Reader {
    pub fn new(api: Api) -> Reader {
        Reader { api, whole: String::new(), understood: false, complete: false }
    }

    /// True once anything was of the dialect.
    pub fn understood(&self) -> bool {
        self.understood
    }

    /// True if the answer said that it is at its end: the connection of one cut short ends all the same.
    pub fn complete(&self) -> bool {
        self.complete
    }

    pub fn line(&mut self, line: &str) -> Vec<Event> {
        let text = match self.api {
            Api::OpenAi => match line.strip_prefix("data:") {
                Some(data) => data.trim(),
                // Comments keep the connection alive; the other fields of an event say nothing here.
                None if line.starts_with([':', 'e', 'i', 'r']) || line.trim().is_empty() => return Vec::new(),
                None => line.trim(),
            },
            Api::Ollama => line.trim(),
        };
        if text.is_empty() {
            return Vec::new();
        }
        if self.api == Api::OpenAi && text == "[DONE]" {
            (self.understood, self.complete) = (true, true);
            return vec![Event::End];
        }
        match serde_json::from_str(text) {
            Ok(value) => self.value(&value),
            Err(_) => {
                self.whole.push_str(text);
                Vec::new()
            }
        }
    }

    /// After the last line.
    pub fn end(&mut self) -> Vec<Event> {
        let whole = std::mem::take(&mut self.whole);
        match serde_json::from_str(&whole) {
            Ok(value) => self.value(&value),
            Err(_) => Vec::new(),
        }
    }

    fn value(&mut self, value: &Value) -> Vec<Event> {
        if !value["error"].is_null() || value["object"] == "error" {
            return vec![Event::Error(value.to_string())];
        }
        let events = match self.api {
            Api::Ollama => self.ollama(value),
            Api::OpenAi => self.openai(value),
        };
        self.understood |= !events.is_empty();
        events
    }

    fn ollama(&mut self, value: &Value) -> Vec<Event> {
        let mut events = Vec::new();
        let Some(done) = value["done"].as_bool() else { return events };
        events.push(text(&value["message"]["content"]));
        if done {
            self.complete = true;
            events.push(Event::Usage {
                prompt: value["prompt_eval_count"].as_u64(),
                completion: value["eval_count"].as_u64(),
            });
            events.push(Event::End);
        }
        events
    }

    /// The counts come after the choice that ends, so only `[DONE]` or the end of the connection ends the answer.
    fn openai(&mut self, value: &Value) -> Vec<Event> {
        let mut events = Vec::new();
        let Some(choices) = value["choices"].as_array() else { return events };
        events.push(Event::Nothing);
        if let Some(choice) = choices.first() {
            events.push(text(&choice["delta"]["content"]));
            events.push(text(&choice["message"]["content"]));
            self.complete |= choice["finish_reason"].is_string();
        }
        let usage = &value["usage"];
        if usage.is_object() {
            let (prompt, completion) = (usage["prompt_tokens"].as_u64(), usage["completion_tokens"].as_u64());
            events.push(Event::Usage { prompt, completion });
        }
        events
    }
}

fn text(value: &Value) -> Event {
    value.as_str().filter(|text| !text.is_empty()).map_or(Event::Nothing, |text| Event::Text(text.to_owned()))
}

/// Models that think aloud do it at the beginning, between `<think>` and `</think>`; it is no part of the answer.
#[derive(Default)]
pub struct Thoughts {
    state: State,
    /// What may yet be a mark.
    held: String,
}

#[derive(Default, PartialEq)]
enum State {
    #[default]
    Before,
    Inside,
    Behind,
}

impl Thoughts {
    /// What of a further piece is to be shown.
    pub fn without(&mut self, piece: &str) -> String {
        if self.state == State::Behind {
            return piece.to_owned();
        }
        self.held.push_str(piece);
        if self.state == State::Before {
            let begun = self.held.trim_start();
            if "<think>".starts_with(begun) {
                return String::new();
            }
            if !begun.starts_with("<think>") {
                self.state = State::Behind;
                return std::mem::take(&mut self.held);
            }
            self.state = State::Inside;
        }
        match self.held.find("</think>") {
            Some(at) => {
                self.state = State::Behind;
                let held = std::mem::take(&mut self.held);
                held[at + "</think>".len()..].trim_start().to_owned()
            }
            None => {
                // The mark itself may be cut, no more has to be kept.
                let keep = self.held.len().saturating_sub("<think></think>".len());
                self.held.drain(..self.held.floor_char_boundary(keep));
                String::new()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The text, what ended it, and whether it is whole.
    fn read(api: Api, lines: &[&str]) -> (String, Vec<Event>, bool) {
        let mut reader = Reader::new(api);
        let mut said = String::new();
        let mut others = Vec::new();
        let mut events: Vec<Event> = lines.iter().flat_map(|line| reader.line(line)).collect();
        events.extend(reader.end());
        for event in events {
            match event {
                Event::Text(text) => said.push_str(&text),
                Event::Nothing => {}
                other => others.push(other),
            }
        }
        (said, others, reader.complete())
    }

    #[test]
    fn ollama() {
        let lines = [
            r#"{"model":"m","message":{"role":"assistant","content":"밤"},"done":false}"#,
            r#"{"model":"m","message":{"role":"assistant","content":"에"},"done":false}"#,
            r#"{"model":"m","message":{"content":""},"done":true,"prompt_eval_count":12,"eval_count":2}"#,
        ];
        let usage = Event::Usage { prompt: Some(12), completion: Some(2) };
        assert_eq!(read(Api::Ollama, &lines), ("밤에".into(), vec![usage, Event::End], true));
        assert_eq!(read(Api::Ollama, &lines[..2]), ("밤에".into(), vec![], false));
        let error = r#"{"error":"out of memory"}"#;
        assert_eq!(read(Api::Ollama, &[lines[0], error]), ("밤".into(), vec![Event::Error(error.into())], false));
    }

    #[test]
    fn openai() {
        let lines = [
            ": ping",
            r#"data: {"choices":[{"delta":{"role":"assistant","content":null},"finish_reason":null}]}"#,
            "",
            r#"data:{"choices":[{"delta":{"content":"at "},"finish_reason":null}]}"#,
            "event: message",
            r#"data: {"choices":[{"delta":{"content":"night"},"finish_reason":"stop"}]}"#,
            r#"data: {"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":2}}"#,
            "data: [DONE]",
        ];
        let usage = Event::Usage { prompt: Some(3), completion: Some(2) };
        assert_eq!(read(Api::OpenAi, &lines), ("at night".into(), vec![usage, Event::End], true));
        assert_eq!(read(Api::OpenAi, &lines[..4]), ("at ".into(), vec![], false));
        // A server that cannot stream.
        let whole = ["{", r#""choices": [{"message": {"content": "at night"},"#, r#""finish_reason": "stop"}]}"#];
        assert_eq!(read(Api::OpenAi, &whole), ("at night".into(), vec![], true));
    }

    #[test]
    fn what_is_of_no_dialect() {
        for api in [Api::Ollama, Api::OpenAi] {
            let mut reader = Reader::new(api);
            for line in ["<html>", "{}", "[1]", "\"done\"", "3", "data: x"] {
                assert_eq!(reader.line(line), vec![], "{line}");
            }
            assert!(!reader.understood() && !reader.complete());
        }
    }

    #[test]
    fn thoughts_are_left_out() {
        let show = |pieces: &[&str]| {
            let mut thoughts = Thoughts::default();
            pieces.iter().map(|piece| thoughts.without(piece)).collect::<String>()
        };
        assert_eq!(show(&["\n<th", "ink>음", "….</thi", "nk>\n\nAt ", "night."]), "At night.");
        assert_eq!(show(&["<", "b> or <think>"]), "<b> or <think>");
        assert_eq!(show(&["At <think>x</think> night"]), "At <think>x</think> night");
        assert_eq!(show(&["<think>", "endless"]), "");
    }
}
