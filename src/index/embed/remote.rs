//! A model behind an endpoint: texts in batches out, vectors back, each answer held to what was asked.
//!
//! Refuses: trusting an answer (count, dimensions and values are looked at), cutting texts off (one that is too long is
//! split, as a server says so), and more than one request at a time.

#[cfg(test)]
mod tests;

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::unit;
use crate::config::{EmbeddingApi, Secret};
use crate::endpoint::{Api, Endpoint};
use crate::error::{Error, Result};

pub struct Remote {
    endpoint: Endpoint,
    api: EmbeddingApi,
    pub dimensions: usize,
    /// Sent along where the configuration names them: some models can be asked for fewer.
    wanted: Option<usize>,
    timeout: Duration,
}

/// A request's worth of texts: enough to spare round trips, few enough that a stop is soon heeded.
const BATCH_TEXTS: usize = 32;
const BATCH_BYTES: usize = 96 << 10;

/// Longer texts are split before a server is asked whether it takes them.
const MOST_BYTES: usize = 24 << 10;

/// A text this short that is still too long is not too long.
const LEAST_BYTES: usize = 64;

/// Whoever asks a question waits for it, and has an answer by words without it.
const QUERY_TIMEOUT: Duration = Duration::from_secs(10);

/// Pause before a request is made once more: embedding has no effects, so that is safe.
const PAUSE: Duration = Duration::from_millis(500);

/// A query does not take longer than its timeout; nothing stops it sooner.
static NEVER: AtomicBool = AtomicBool::new(false);

impl Remote {
    /// Asks for one vector where the dimensions are not known.
    pub fn open(
        api: EmbeddingApi,
        address: &str,
        model: &str,
        key: Option<Secret>,
        wanted: Option<usize>,
        timeout: Duration,
    ) -> Result<Remote> {
        let spoken = match api {
            EmbeddingApi::Ollama => Api::Ollama,
            EmbeddingApi::OpenAi => Api::OpenAi,
        };
        let endpoint = Endpoint::new(spoken, address, model, key, "models.embedding");
        let mut remote = Remote { endpoint, api, dimensions: wanted.unwrap_or(0), wanted, timeout };
        if wanted.is_none() {
            let found = remote.request(&["dimensions"], Instant::now() + timeout, &NEVER)?;
            remote.dimensions = found[0].len();
        }
        Ok(remote)
    }

    pub fn query(&self, text: &str) -> Result<Vec<f32>> {
        let deadline = Instant::now() + self.timeout.min(QUERY_TIMEOUT);
        let piece = pieces(text, MOST_BYTES).next().unwrap_or("");
        let mut vectors = self.text(piece, deadline, &NEVER)?;
        Ok(vectors.swap_remove(0))
    }

    /// Vectors of each text's pieces; none for a text that was not reached before `stop`.
    pub fn passages(&self, texts: &[String], stop: &AtomicBool) -> Result<Vec<Vec<Vec<f32>>>> {
        let pieces: Vec<(usize, &str)> = texts
            .iter()
            .enumerate()
            .flat_map(|(at, text)| pieces(text, MOST_BYTES).map(move |piece| (at, piece)))
            .collect();
        let mut done = vec![Vec::new(); texts.len()];
        let mut rest = &pieces[..];
        while !rest.is_empty() {
            let mut bytes = 0;
            let fits = |(_, piece): &&(usize, &str)| {
                bytes += piece.len();
                bytes <= BATCH_BYTES
            };
            let count = rest.iter().take(BATCH_TEXTS).take_while(fits).count().max(1);
            let (batch, behind) = rest.split_at(count);
            match self.batch(batch, stop) {
                Ok(vectors) => batch.iter().zip(vectors).for_each(|((text, _), found)| done[*text].extend(found)),
                Err(Error::Cancelled) => {
                    // A text of which only the first pieces were reached was not reached.
                    batch.iter().for_each(|(text, _)| done[*text].clear());
                    break;
                }
                Err(error) => return Err(error),
            }
            rest = behind;
        }
        Ok(done)
    }

    /// Vectors of each piece, more than one for one that had to be split.
    fn batch(&self, batch: &[(usize, &str)], stop: &AtomicBool) -> Result<Vec<Vec<Vec<f32>>>> {
        let texts: Vec<&str> = batch.iter().map(|(_, piece)| *piece).collect();
        match self.twice(&texts, stop) {
            Ok(vectors) => Ok(vectors.into_iter().map(|vector| vec![vector]).collect()),
            Err(error) if is_too_long(&error) => {
                texts.iter().map(|text| self.text(text, Instant::now() + self.timeout, stop)).collect()
            }
            Err(error) => Err(error),
        }
    }

    /// Vectors of a text, or of its halves where a server finds it too long.
    fn text(&self, text: &str, deadline: Instant, stop: &AtomicBool) -> Result<Vec<Vec<f32>>> {
        match self.request(&[text], deadline, stop) {
            Err(error) if is_too_long(&error) && text.len() > LEAST_BYTES => {
                let mut vectors = Vec::new();
                for half in pieces(text, text.len().div_ceil(2)) {
                    vectors.extend(self.text(half, deadline, stop)?);
                }
                Ok(vectors)
            }
            other => other,
        }
    }

    fn twice(&self, texts: &[&str], stop: &AtomicBool) -> Result<Vec<Vec<f32>>> {
        match self.request(texts, Instant::now() + self.timeout, stop) {
            // What the server understood and turned away, it will turn away again.
            Err(Error::ModelUnreachable { cause, .. }) if !cause.starts_with('4') => {
                let until = Instant::now() + PAUSE;
                while Instant::now() < until && !stop.load(Ordering::Relaxed) {
                    thread::sleep(PAUSE / 20);
                }
                self.request(texts, Instant::now() + self.timeout, stop)
            }
            other => other,
        }
    }

    fn request(&self, texts: &[&str], deadline: Instant, stop: &AtomicBool) -> Result<Vec<Vec<f32>>> {
        let mut body = json!({"model": self.endpoint.model, "input": texts});
        let path = match self.api {
            EmbeddingApi::Ollama => {
                body["truncate"] = false.into();
                "/api/embed"
            }
            EmbeddingApi::OpenAi => {
                body["encoding_format"] = "float".into();
                "/v1/embeddings"
            }
        };
        if let Some(wanted) = self.wanted {
            body["dimensions"] = wanted.into();
        }
        let answer = self.endpoint.post_json(path, &body, deadline, stop)?;
        self.vectors(&answer, texts.len()).map_err(|cause| self.endpoint.unreachable(&cause, None))
    }

    /// As many vectors as texts, in their order.
    fn vectors(&self, answer: &Value, texts: usize) -> Result<Vec<Vec<f32>>, String> {
        let listed = match self.api {
            EmbeddingApi::Ollama => answer["embeddings"].as_array(),
            EmbeddingApi::OpenAi => answer["data"].as_array(),
        };
        let listed = listed.ok_or("its answer holds no embeddings")?;
        if listed.len() != texts {
            return Err(format!("it answered with {} vectors for {texts} texts", listed.len()));
        }
        let mut vectors = vec![None; texts];
        for (at, entry) in listed.iter().enumerate() {
            let (place, values) = match self.api {
                EmbeddingApi::Ollama => (at, entry),
                EmbeddingApi::OpenAi => {
                    (entry["index"].as_u64().map_or(at, |index| index as usize), &entry["embedding"])
                }
            };
            let values = values.as_array().ok_or("a vector in its answer is no list")?;
            // `as_f64` of null, a text or a number out of range is none of them.
            let values =
                values.iter().map(|value| value.as_f64().map(|value| value as f32)).collect::<Option<Vec<_>>>();
            let values = values.ok_or("a vector in its answer holds what is no number")?;
            if values.is_empty() || (self.dimensions > 0 && values.len() != self.dimensions) {
                let (found, expected) = (values.len(), self.dimensions);
                return Err(format!("it answered with {found} dimensions, expected {expected}"));
            }
            *vectors.get_mut(place).ok_or("it numbered its vectors beyond the texts")? = Some(unit(values)?);
        }
        vectors.into_iter().collect::<Option<_>>().ok_or_else(|| "it numbered two vectors alike".to_owned())
    }
}

/// Servers have no code for it.
fn is_too_long(error: &Error) -> bool {
    let Error::ModelUnreachable { cause, .. } = error else { return false };
    let words = cause.to_lowercase();
    ["context length", "input length", "too long", "too large", "maximum context", "exceeds"]
        .iter()
        .any(|said| words.contains(said))
}

/// A text in pieces of at most so many bytes, cut at white space where there is some in the last quarter; one empty
/// piece of an empty text.
fn pieces(text: &str, most: usize) -> impl Iterator<Item = &str> {
    let mut rest = Some(text);
    std::iter::from_fn(move || {
        let text = rest.take()?;
        if text.len() <= most {
            return Some(text);
        }
        let mut end = most;
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        let white = text[..end].rfind(char::is_whitespace).filter(|at| *at > end - end / 4);
        let end = white.map_or(end, |at| at + text[at..].chars().next().map_or(1, char::len_utf8));
        let end = if end == 0 { text.chars().next().map_or(1, char::len_utf8) } else { end };
        rest = Some(&text[end..]).filter(|rest| !rest.is_empty());
        Some(&text[..end])
    })
}
