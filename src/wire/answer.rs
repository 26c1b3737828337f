//! Shapes of `ask`: the answer with its citations, its events while it comes, and the sessions that are kept.

use serde::Serialize;

use super::{AnswerEventV1, AnswerV1, AskSessionsV1, Citation, Hit};
use crate::model::Mode;

#[derive(Debug, Clone, Serialize)]
pub struct Answer {
    pub schema_version: AnswerV1,
    pub answer: String,
    pub citations: Vec<AnswerCitation>,
    pub grounded: bool,
    pub refusal_reason: Option<Refusal>,
    /// From 0 to 1: how far the passages cited hold what is said. Left out where a model said nothing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub confidence: Option<f32>,
    pub model: AnswerModel,
    pub embedding: Option<AnswerModel>,
    pub prompt_template_version: &'static str,
    pub retrieval: AnswerRetrieval,
    pub usage: Usage,
    pub created_at: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hops: Option<Vec<Hop>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub explain: Option<Explain>,
}

#[derive(Debug, Clone, Serialize)]
pub struct AnswerCitation {
    /// As it stands in the answer: `[1]`.
    pub marker: String,
    pub citation: Citation,
    pub indexed_at: String,
    pub stale: bool,
    /// The passage itself, where it was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
}

/// Why there is no answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Refusal {
    ScoreGate,
    LlmSelfJudge,
    NoIndex,
    NoChunks,
    LlmStreamAborted,
    MultiHopDecomposeFailed,
}

#[derive(Debug, Clone, Serialize)]
pub struct AnswerModel {
    pub id: String,
    pub provider: String,
    pub dimensions: Option<usize>,
}

#[derive(Debug, Clone, Serialize)]
pub struct AnswerRetrieval {
    /// The same for the same question to the same corpus.
    pub trace_id: String,
    pub mode: Mode,
    pub k: usize,
    pub score_gate: f64,
    /// The best passage's evidence, from 0 to 1: what the gate judges.
    pub top_score: f64,
    pub chunks_returned: usize,
    pub chunks_used: usize,
}

#[derive(Debug, Clone, Copy, Default, Serialize)]
pub struct Usage {
    pub prompt_tokens: u64,
    pub completion_tokens: u64,
    pub latency_ms: u64,
}

/// A part of a question that was looked up by itself.
#[derive(Debug, Clone, Serialize)]
pub struct Hop {
    pub question: String,
    pub chunks_returned: usize,
}

#[derive(Debug, Clone, Serialize)]
pub struct Explain {
    /// What was looked up: the question, rewritten to stand alone in a session.
    pub question: String,
    pub passages: Vec<ExplainedPassage>,
    pub prompt: Vec<ExplainedMessage>,
    /// What the model said, before it was checked.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reply: Option<String>,
}

#[derive(Debug, Clone, Serialize)]
pub struct ExplainedPassage {
    pub marker: String,
    pub uri: String,
    pub score: f32,
    pub lexical_score: Option<f32>,
    pub vector_score: Option<f32>,
    /// The share of the question's words that the passage holds, by their rarity.
    pub words_held: f64,
    pub evidence: f64,
    pub tokens: u32,
}

#[derive(Debug, Clone, Serialize)]
pub struct ExplainedMessage {
    pub role: &'static str,
    pub content: String,
}

/// One line of ndjson while an answer comes; exactly one `final` ends the stream.
#[derive(Debug, Clone, Serialize)]
pub struct AnswerEvent<'a> {
    pub schema_version: AnswerEventV1,
    pub ts: String,
    #[serde(flatten)]
    pub event: AnswerStep<'a>,
}

#[derive(Debug, Clone, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum AnswerStep<'a> {
    RetrievalDone { hits: &'a [Hit] },
    Token { delta: &'a str },
    Final { answer: &'a Answer },
}

#[derive(Debug, Clone, Serialize)]
pub struct AskSessions {
    pub schema_version: AskSessionsV1,
    /// The last used first.
    pub sessions: Vec<AskSession>,
    /// How many were just forgotten.
    pub forgotten: usize,
}

#[derive(Debug, Clone, Serialize)]
pub struct AskSession {
    pub session_id: String,
    pub created_at: String,
    pub used_at: String,
    pub turns: u32,
    pub bytes: i64,
}
