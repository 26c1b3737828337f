//! A cross-encoder: it reads a query and a passage together and tells how well the one answers the other.
//!
//! Refuses: choosing what to rerank, and more than one model's length of a passage.

use std::sync::{Mutex, PoisonError};
use std::thread;

use serde::Deserialize;

use super::local::{cores, give_back};
use super::runtime::{Answer, Net, runtime};
use super::spec;
use super::tokens::Tokens;
use crate::config::RerankingModel;
use crate::error::{Error, Result};

pub struct Reranker {
    name: String,
    folder: String,
    runtime: String,
    output: String,
    tokens: Tokens,
    net: Mutex<Net>,
}

/// What a model.toml may say of a cross-encoder.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Description {
    max_tokens: Option<usize>,
    /// The output to take; without it the first.
    output: Option<String>,
}

impl Reranker {
    pub fn open(model: &RerankingModel) -> Result<Reranker> {
        let name = model.folder.file_name().map_or("model".into(), |name| name.to_string_lossy().into_owned());
        let folder = model.folder.display().to_string();
        let unusable = |cause| unusable(&name, &folder, cause);
        let files = spec::files(&model.folder).map_err(unusable)?;
        let description: Description = spec::description(&model.folder).map_err(unusable)?.unwrap_or_default();
        let max = description.max_tokens.unwrap_or(512);
        let (tokens, opened) = thread::scope(|scope| {
            let tokens = scope.spawn(|| Tokens::open(&files.tokenizer, max));
            let opened =
                runtime(&model.onnxruntime).and_then(|runtime| Ok((runtime, runtime.open(&files.graph, cores())?)));
            (tokens.join().unwrap_or_else(|_| Err("the tokenizer panicked".into())), opened)
        });
        let ((runtime, net), tokens) = (opened.map_err(unusable)?, tokens.map_err(unusable)?);
        let output = description.output.or_else(|| net.outputs().first().cloned()).unwrap_or_default();
        let runtime = runtime.name();
        let reranker = Reranker { name, folder, runtime, output, tokens, net: Mutex::new(net) };
        reranker.score("a", &["a"])?;
        give_back();
        Ok(reranker)
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    pub fn runtime(&self) -> &str {
        &self.runtime
    }

    /// How well each passage answers the query, from 0 to 1.
    pub fn score(&self, query: &str, passages: &[&str]) -> Result<Vec<f32>> {
        let mut net = self.net.lock().unwrap_or_else(PoisonError::into_inner);
        let score = |passage: &&str| {
            let pair = self.tokens.pair(query, passage)?;
            likelihood(&net.run(&pair.ids, &pair.types, &self.output)?)
        };
        let scores: Result<Vec<f32>, String> = passages.iter().map(score).collect();
        scores.map_err(|cause| unusable(&self.name, &self.folder, cause))
    }
}

/// One logit, or those of no and yes.
fn likelihood(answer: &Answer) -> Result<f32, String> {
    let logit = match answer.values[..] {
        [logit] => logit,
        [no, yes] => yes - no,
        _ => return Err(format!("it gives {:?} values a pair, expected one or two", answer.shape)),
    };
    match logit.is_nan() {
        true => Err("it gives values that are not numbers".into()),
        false => Ok(1.0 / (1.0 + (-logit).exp())),
    }
}

fn unusable(name: &str, folder: &str, cause: String) -> Error {
    Error::ModelUnreachable {
        endpoint: folder.to_owned(),
        model: name.to_owned(),
        cause,
        hint: "Correct models.reranker.model: a folder with model.onnx and tokenizer.json of a cross-encoder.".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logits_become_likelihoods() {
        let answer = |values: &[f32]| Answer { shape: vec![1, values.len()], values: values.to_vec() };
        assert_eq!(likelihood(&answer(&[0.0])), Ok(0.5));
        assert!(likelihood(&answer(&[4.0])).unwrap() > 0.98);
        assert!(likelihood(&answer(&[3.0, -3.0])).unwrap() < 0.01);
        assert_eq!(likelihood(&answer(&[f32::NAN])).unwrap_err(), "it gives values that are not numbers");
        assert!(likelihood(&answer(&[1.0, 2.0, 3.0])).is_err());
    }
}
