//! A blocking chat call to a language model, read as it streams: Ollama and OpenAI-compatible servers.
//!
//! Answers always stream: a call that is given up ends at the next token, and a model that hangs is told from one that
//! thinks. Refuses: HTTP (that is `endpoint`'s), prompts, and judging what a model says.

mod stream;

use std::cell::Cell;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use serde::Serialize;
use serde_json::{Value, json};

use crate::config;
use crate::endpoint::{Api, Endpoint};
use crate::error::{Error, Result};
use crate::model::LlmProvider;
use stream::{Event, Reader, Thoughts};

pub struct Llm<'c> {
    config: &'c config::Llm,
    api: Api,
    endpoint: Endpoint,
}

#[derive(Debug, Clone, Serialize)]
pub struct Message {
    pub role: Role,
    pub content: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    System,
    User,
}

/// One call, the configured values apart.
#[derive(Debug)]
pub struct Chat<'m> {
    pub messages: &'m [Message],
    pub max_tokens: usize,
    pub temperature: Option<f64>,
    pub seed: Option<u64>,
    pub deadline: Instant,
}

#[derive(Debug, Default)]
pub struct Reply {
    pub text: String,
    /// As the server counts; not all do.
    pub prompt_tokens: Option<u64>,
    pub completion_tokens: Option<u64>,
    /// Why it is not whole.
    pub broken: Option<Error>,
}

/// No answer to a question is longer; a model that goes on is caught in a loop.
const MAX_TEXT: usize = 64 << 10;

impl<'c> Llm<'c> {
    /// None where no model is configured.
    pub fn new(config: &'c Option<config::Llm>) -> Option<Llm<'c>> {
        let config = config.as_ref()?;
        let api = match config.provider {
            LlmProvider::Ollama => Api::Ollama,
            LlmProvider::OpenAi => Api::OpenAi,
            LlmProvider::None => return None,
        };
        let endpoint = Endpoint::new(api, &config.endpoint, &config.model, config.key.clone(), "models.llm");
        Some(Llm { config, api, endpoint })
    }

    /// Says what it reads to `say` until that has enough, which is false. A failure before the first word is an error;
    /// after it, the reply is broken.
    pub fn chat(&self, chat: &Chat, stop: &AtomicBool, say: &mut dyn FnMut(&str) -> bool) -> Result<Reply> {
        let mut body = self.body(chat);
        loop {
            match self.attempt(&body, chat.deadline, stop, say) {
                // Servers of the same API differ in what they take; a request refused for a setting is sent without it.
                Err(error) if without_refused(&mut body, &error) => {}
                other => return other,
            }
        }
    }

    fn body(&self, chat: &Chat) -> Value {
        let temperature = chat.temperature.unwrap_or(self.config.temperature);
        let seed = chat.seed.or(self.config.seed);
        let mut body = json!({"model": self.config.model, "messages": chat.messages, "stream": true});
        match self.api {
            Api::Ollama => {
                // Without num_ctx it cuts long prompts at their beginning, and says nothing.
                let (context, length) = (self.config.context_tokens, chat.max_tokens);
                body["options"] = json!({"temperature": temperature, "num_ctx": context, "num_predict": length});
                body["think"] = json!(false);
                if let Some(seed) = seed {
                    body["options"]["seed"] = json!(seed);
                }
            }
            Api::OpenAi => {
                body["temperature"] = json!(temperature);
                body["max_tokens"] = json!(chat.max_tokens);
                body["stream_options"] = json!({"include_usage": true});
                if let Some(seed) = seed {
                    body["seed"] = json!(seed);
                }
            }
        }
        body
    }

    fn attempt(
        &self,
        body: &Value,
        deadline: Instant,
        stop: &AtomicBool,
        say: &mut dyn FnMut(&str) -> bool,
    ) -> Result<Reply> {
        let path = match self.api {
            Api::Ollama => "/api/chat",
            Api::OpenAi => "/v1/chat/completions",
        };
        let mut reply = Reply::default();
        let mut reader = Reader::new(self.api);
        let mut thoughts = Thoughts::default();
        let mut begun = false;
        let enough = Cell::new(false);
        let mut take = |event: Event, reply: &mut Reply| -> Result<bool> {
            match event {
                Event::Nothing => {}
                Event::Text(text) => {
                    begun = true;
                    let shown = thoughts.without(&text);
                    if !shown.is_empty() {
                        reply.text.push_str(&shown);
                        enough.set(!say(&shown));
                    }
                    if enough.get() {
                        return Ok(false);
                    }
                    if reply.text.len() > MAX_TEXT {
                        return Err(self.endpoint.unreachable("its answer does not end", None));
                    }
                }
                Event::Usage { prompt, completion } => {
                    reply.prompt_tokens = prompt.or(reply.prompt_tokens);
                    reply.completion_tokens = completion.or(reply.completion_tokens);
                }
                Event::Error(body) => return Err(self.endpoint.failure(200, &body)),
                Event::End => return Ok(false),
            }
            Ok(true)
        };
        let outcome = self.endpoint.post_lines(path, body, deadline, stop, &mut |line| {
            for event in reader.line(line) {
                if !take(event, &mut reply)? {
                    return Ok(false);
                }
            }
            Ok(true)
        });
        let outcome = outcome.and_then(|()| {
            if enough.get() {
                return Ok(());
            }
            for event in reader.end() {
                take(event, &mut reply)?;
            }
            match reader.complete() {
                true => Ok(()),
                false if reader.understood() => Err(self.endpoint.unreachable("its answer broke off", None)),
                false => Err(self.endpoint.unreachable("its answer is not of its API", None)),
            }
        });
        match outcome {
            Ok(()) => Ok(reply),
            Err(error) if begun => Ok(Reply { broken: Some(error), ..reply }),
            Err(error) => Err(error),
        }
    }

    /// Asks the server whether it has the model. What it says is well.
    pub fn check(&self, timeout: Duration) -> Result<String> {
        let (path, list, name) = match self.api {
            Api::Ollama => ("/api/tags", "models", "name"),
            Api::OpenAi => ("/v1/models", "data", "id"),
        };
        let never = AtomicBool::new(false);
        let answer = self.endpoint.get_json(path, Instant::now() + timeout, &never)?;
        let Some(models) = answer[list].as_array() else {
            return Err(self.endpoint.unreachable("its list of models is not of its API", None));
        };
        let names: Vec<&str> = models.iter().filter_map(|model| model[name].as_str()).collect();
        let (model, endpoint) = (&self.config.model, &self.config.endpoint);
        let known = |name: &&str| *name == model || name.strip_suffix(":latest") == Some(model);
        if names.iter().any(known) {
            return Ok(format!("{model} at {endpoint}"));
        }
        match (self.api, &names[..]) {
            // A server of one model answers with it, whatever it is asked for.
            (Api::OpenAi, [only]) => Ok(format!("{endpoint} serves {only}; {model} is asked for")),
            _ => Err(self.endpoint.failure(404, &json!({"error": format!("model {model:?} not found")}).to_string())),
        }
    }
}

/// Takes out the setting that an error names; false if it names none that is there.
fn without_refused(body: &mut Value, error: &Error) -> bool {
    let Error::ModelUnreachable { cause, .. } = error else { return false };
    let (true, Some(fields)) = (cause.starts_with("400"), body.as_object_mut()) else { return false };
    let words = cause.to_lowercase();
    let named = |name: &str| words.contains(name) || (name == "think" && words.contains("thinking"));
    for name in ["stream_options", "max_tokens", "temperature", "seed", "think"] {
        if named(name) && fields.contains_key(name) {
            let value = fields.remove(name);
            if name == "max_tokens" && words.contains("max_completion_tokens") {
                fields.extend(value.map(|value| ("max_completion_tokens".to_owned(), value)));
            }
            return true;
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refused_setting_is_left_out_once() {
        let refusal = |cause: &str| Error::ModelUnreachable {
            endpoint: String::new(),
            model: String::new(),
            cause: cause.into(),
            hint: String::new(),
        };
        let mut body = json!({"max_tokens": 9, "temperature": 0, "seed": 1});
        let error = refusal("400: Unsupported parameter: 'max_tokens'. Use 'max_completion_tokens' instead.");
        assert!(without_refused(&mut body, &error));
        assert_eq!(body, json!({"max_completion_tokens": 9, "temperature": 0, "seed": 1}));
        assert!(without_refused(&mut body, &refusal("400: 'temperature' does not support 0")));
        assert!(!without_refused(&mut body, &refusal("400: 'temperature' does not support 0")));
        assert!(!without_refused(&mut body, &refusal("500: seed")));
        assert_eq!(body, json!({"max_completion_tokens": 9, "seed": 1}));
    }
}
