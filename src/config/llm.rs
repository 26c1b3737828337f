//! The model that answers questions, and how answers are made from passages.
//!
//! Refuses: talking to the model.

use std::time::Duration;

use super::address::{Secret, address, is_local};
use super::{Env, Layers, invalid_env};
use crate::error::Result;
use crate::model::LlmProvider;

/// A model on a server.
#[derive(Debug, Clone, PartialEq)]
pub struct Llm {
    pub provider: LlmProvider,
    pub model: String,
    pub endpoint: String,
    pub key: Option<Secret>,
    pub temperature: f64,
    /// None leaves it to the server.
    pub seed: Option<u64>,
    /// What the model takes in one call, its answer included.
    pub context_tokens: usize,
    /// Over all calls of one question.
    pub request_timeout: Duration,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Rag {
    /// Below this evidence, from 0 to 1, no answer is tried.
    pub score_gate: f64,
    /// Of passages in one prompt.
    pub max_context_tokens: usize,
    /// Quote passages where nothing else is asked for, and call no model.
    pub extractive: bool,
}

const OLLAMA: &str = "http://127.0.0.1:11434";

/// None where no model is configured, which is the default: nobody's server is called unasked.
pub fn llm(layers: &Layers, warnings: &mut Vec<String>) -> Result<Option<Llm>> {
    let provider = setting(layers, "PROVIDER", "provider", |text| {
        let wrong = || format!("found {text:?}, expected one of: {}", LlmProvider::choices());
        LlmProvider::parse(text).ok_or_else(wrong)
    })?;
    let model =
        setting(layers, "MODEL", "model", |text| match text.len() <= 200 && !text.contains(char::is_control) {
            true => Ok(text.to_owned()),
            false => Err("no name of a model".into()),
        })?;
    let endpoint = setting(layers, "ENDPOINT", "endpoint", address)?;
    let file = &layers.file;
    let temperature = file.number("models.llm.temperature", 0.0..=2.0)?.unwrap_or(0.0);
    let seed = file.whole("models.llm.seed", 0..=u64::from(u32::MAX))?;
    let context_tokens = file.whole("models.llm.context_tokens", 1024..=10_000_000)?.unwrap_or(8192) as usize;
    let seconds = file.whole("models.llm.request_timeout_secs", 1..=3600)?.unwrap_or(120);
    let key = secret("KEBAB_MODELS_LLM_API_KEY", layers.env)?;
    let provider = match (provider, &endpoint) {
        (Some(provider), _) => provider,
        (None, None) if model.is_none() => LlmProvider::None,
        (None, Some(endpoint)) if !endpoint.ends_with(":11434") => LlmProvider::OpenAi,
        (None, _) => LlmProvider::Ollama,
    };
    let endpoint = match (provider, endpoint) {
        (LlmProvider::None, _) => return Ok(None),
        (_, Some(endpoint)) => endpoint,
        (LlmProvider::Ollama, None) => OLLAMA.to_owned(),
        (LlmProvider::OpenAi, None) => {
            let cause = "missing; an OpenAI-compatible server needs its address, such as http://127.0.0.1:8080";
            return Err(file.invalid("models.llm.endpoint", cause));
        }
    };
    let Some(model) = model else {
        return Err(file.invalid("models.llm.model", "missing; name the model that is to answer, such as \"qwen3:4b\""));
    };
    if key.is_some() && endpoint.starts_with("http://") && !is_local(&endpoint) {
        warnings.push(format!("the key of models.llm goes to {endpoint} unencrypted; use an https:// address"));
    }
    let request_timeout = Duration::from_secs(seconds);
    Ok(Some(Llm { provider, model, endpoint, key, temperature, seed, context_tokens, request_timeout }))
}

/// A text of the environment, else of the file, read by `parse`; errors say where it stands. Blank is absent.
fn setting<T>(
    layers: &Layers,
    env_name: &str,
    name: &str,
    parse: impl Fn(&str) -> Result<T, String>,
) -> Result<Option<T>> {
    let (env_name, key) = (format!("KEBAB_MODELS_LLM_{env_name}"), format!("models.llm.{name}"));
    let below = layers.file.text(&key)?.filter(|text| !text.trim().is_empty());
    match (layers.env)(&env_name).filter(|text| !text.trim().is_empty()) {
        Some(text) => parse(text.trim()).map(Some).map_err(|cause| invalid_env(&env_name, cause)),
        None => below.map(|text| parse(text.trim())).transpose().map_err(|cause| layers.file.invalid(&key, cause)),
    }
}

pub fn rag(layers: &Layers) -> Result<Rag> {
    let file = &layers.file;
    Ok(Rag {
        score_gate: file.number("rag.score_gate", 0.0..=1.0)?.unwrap_or(SCORE_GATE),
        max_context_tokens: file.whole("rag.max_context_tokens", 100..=1_000_000)?.unwrap_or(3000) as usize,
        extractive: file.flag("rag.extractive")?.unwrap_or(false),
    })
}

/// Chosen on public collections of questions, a tenth of which was asked: next to none that has an answer lies below it.
const SCORE_GATE: f64 = 0.4;

/// A key of the environment; what is wrong with one is told without it.
fn secret(name: &str, env: Env) -> Result<Option<Secret>> {
    env(name).map_or(Ok(None), |text| Secret::parse(&text)).map_err(|cause| invalid_env(name, cause))
}
