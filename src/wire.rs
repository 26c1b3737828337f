//! Every v1 shape that leaves the program, field for field in the order of the contract. Tools return
//! these structs and nothing stands between them and the wire.
//!
//! `SCHEMAS` is the one list of shapes this build can emit.

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Map, Value};
use std::collections::BTreeMap;

use crate::error::Error;
use crate::model::{Id, Media, Mode, ScoreKind, Trust};

/// Shapes this build emits; each has `docs/wire-schema/v1/<name>.schema.json`.
pub const SCHEMAS: &[&str] = &[
    "search_response.v1",
    "search_hit.v1",
    "bulk_search_item.v1",
    "bulk_search_response.v1",
    "bulk_search_summary.v1",
    "fetch_result.v1",
    "doc_summary.v1",
    "chunk_inspection.v1",
    "ingest_report.v1",
    "ingest_progress.v1",
    "schema.v1",
    "server_status.v1",
    "doctor.v1",
    "answer.v1",
    "answer_event.v1",
    "ask_sessions.v1",
    "error.v1",
];

/// A shape's own name, written as its `schema_version`.
macro_rules! version {
    ($name:ident, $text:literal) => {
        #[derive(Debug, Clone, Copy, Default, PartialEq)]
        pub struct $name;
        impl Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str($text)
            }
        }
        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let found = std::borrow::Cow::<str>::deserialize(deserializer)?;
                let wrong = || serde::de::Error::custom(format!("expected {}, found {found}", $text));
                if found == $text { Ok($name) } else { Err(wrong()) }
            }
        }
    };
}

version!(SearchResponseV1, "search_response.v1");
version!(SearchHitV1, "search_hit.v1");
version!(BulkSearchItemV1, "bulk_search_item.v1");
version!(BulkSearchResponseV1, "bulk_search_response.v1");
version!(BulkSearchSummaryV1, "bulk_search_summary.v1");
version!(FetchResultV1, "fetch_result.v1");
version!(DocSummaryV1, "doc_summary.v1");
version!(ChunkInspectionV1, "chunk_inspection.v1");
version!(IngestReportV1, "ingest_report.v1");
version!(IngestProgressV1, "ingest_progress.v1");
version!(SchemaV1, "schema.v1");
version!(ServerStatusV1, "server_status.v1");
version!(DoctorV1, "doctor.v1");
version!(AnswerV1, "answer.v1");
version!(AnswerEventV1, "answer_event.v1");
version!(AskSessionsV1, "ask_sessions.v1");
version!(ErrorV1, "error.v1");

// Below the macro that it needs.
mod answer;

pub use answer::{
    Answer, AnswerCitation, AnswerEvent, AnswerModel, AnswerRetrieval, AnswerStep, AskSession, AskSessions, Explain,
    ExplainedMessage, ExplainedPassage, Hop, Refusal, Usage,
};

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(bound(deserialize = "'de: 'static"))]
pub struct SearchResponse {
    pub schema_version: SearchResponseV1,
    pub hits: Vec<Hit>,
    pub next_cursor: Option<String>,
    pub truncated: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trace: Option<Trace>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Hit {
    pub schema_version: SearchHitV1,
    pub rank: usize,
    pub score: f32,
    pub score_kind: ScoreKind,
    pub weak: bool,
    pub chunk_id: Id,
    pub doc_id: Id,
    pub doc_path: String,
    pub heading_path: Vec<String>,
    pub section_label: Option<String>,
    pub snippet: String,
    pub snippet_full_text: bool,
    pub citation: Citation,
    pub retrieval: Retrieval,
    pub index_version: &'static str,
    pub embedding_model: Option<String>,
    pub chunker_version: &'static str,
    pub indexed_at: String,
    pub stale: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub repo: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub code_lang: Option<String>,
    pub source_id: String,
    pub trust_level: Trust,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Retrieval {
    pub method: Mode,
    pub fusion_score: f32,
    pub lexical_score: Option<f32>,
    pub vector_score: Option<f32>,
    pub lexical_rank: Option<usize>,
    pub vector_rank: Option<usize>,
}

/// Where a chunk stands in its file; the range covers the whole chunk.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub enum Citation {
    Line { path: String, start: u32, end: u32, section: Option<String>, uri: String },
    Code { path: String, line_start: u32, line_end: u32, symbol: Option<String>, lang: Option<String>, uri: String },
}

impl Citation {
    pub fn uri(&self) -> &str {
        match self {
            Citation::Line { uri, .. } | Citation::Code { uri, .. } => uri,
        }
    }

    /// First and last, inclusive.
    pub fn lines(&self) -> (u32, u32) {
        match *self {
            Citation::Line { start, end, .. } => (start, end),
            Citation::Code { line_start, line_end, .. } => (line_start, line_end),
        }
    }
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(bound(deserialize = "'de: 'static"))]
pub struct Trace {
    pub lexical: Vec<TraceEntry>,
    pub vector: Vec<TraceEntry>,
    pub rrf_inputs: Vec<FusionInput>,
    /// What closeness to this query says, by script group; empty where nothing was compared.
    pub fit: Vec<TraceFit>,
    /// How the nearest vectors were found.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nearest_by: Option<NearestBy>,
    pub timing: Timing,
}

#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum NearestBy {
    /// Exact.
    Scan,
    Graph,
}

/// ln E(cosine) = ln k + ln(chunks of the store / chunks) − (cosine − theta) / beta, for the chunks of one script.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct TraceFit {
    pub group: &'static str,
    pub chunks: usize,
    /// Whose cosines the numbers are read off: the group's, the store's, for mixed chunks those of either script, or none,
    /// where order takes their place.
    pub of: &'static str,
    pub k: Option<usize>,
    pub theta: Option<f32>,
    pub beta: Option<f32>,
    /// The query's words are mostly of the other script.
    pub blind: bool,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct TraceEntry {
    pub chunk_id: Id,
    pub doc_id: Id,
    pub doc_path: String,
    pub rank: usize,
    pub score: f32,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct FusionInput {
    pub chunk_id: Id,
    pub lexical_rank: Option<usize>,
    pub vector_rank: Option<usize>,
    pub fusion_score: f32,
    pub lexical_score: Option<f32>,
    pub vector_score: Option<f32>,
    /// In nats; null where nothing was fused.
    pub lexical_evidence: Option<f32>,
    pub vector_evidence: Option<f32>,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Timing {
    pub lexical_ms: f64,
    /// Beside the lexical search, waiting for the model included.
    pub embedding_ms: f64,
    pub vector_ms: f64,
    pub fusion_ms: f64,
    pub rerank_ms: f64,
    pub total_ms: f64,
}

/// Exactly one of `response` and `error` is not null: `outcome` is a `Result`.
#[derive(Debug, Clone)]
pub struct BulkItem {
    /// The input, echoed verbatim.
    pub query: Box<RawValue>,
    pub outcome: Result<SearchResponse, ErrorReport>,
}

impl Serialize for BulkItem {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Shape<'a> {
            schema_version: BulkSearchItemV1,
            query: &'a RawValue,
            response: Option<&'a SearchResponse>,
            error: Option<&'a ErrorReport>,
        }
        let (response, error) = match &self.outcome {
            Ok(response) => (Some(response), None),
            Err(error) => (None, Some(error)),
        };
        Shape { schema_version: BulkSearchItemV1, query: &self.query, response, error }.serialize(serializer)
    }
}

#[derive(Debug, Clone, Serialize)]
pub struct BulkResponse {
    pub schema_version: BulkSearchResponseV1,
    pub results: Vec<BulkItem>,
    pub summary: BulkCounts,
}

#[derive(Debug, Clone, Copy, Default, Serialize)]
pub struct BulkCounts {
    pub total: usize,
    pub succeeded: usize,
    pub failed: usize,
}

#[derive(Debug, Clone, Copy, Serialize)]
pub struct BulkSummary {
    pub schema_version: BulkSearchSummaryV1,
    #[serde(flatten)]
    pub counts: BulkCounts,
}

#[derive(Debug, Clone, Serialize)]
pub struct FetchResult {
    pub schema_version: FetchResultV1,
    pub doc_id: Id,
    pub doc_path: String,
    pub indexed_at: String,
    pub stale: bool,
    pub truncated: bool,
    #[serde(flatten)]
    pub body: FetchBody,
}

#[derive(Debug, Clone, Serialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub enum FetchBody {
    Chunk { chunk: ChunkInspection, context_before: Vec<ChunkInspection>, context_after: Vec<ChunkInspection> },
    Doc { text: String, doc: DocSummary },
    Span { text: String, line_start: u32, line_end: u32, effective_end: u32 },
}

#[derive(Debug, Clone, Serialize)]
pub struct DocSummary {
    pub schema_version: DocSummaryV1,
    pub doc_id: Id,
    pub doc_path: String,
    pub title: String,
    pub lang: String,
    pub tags: Vec<String>,
    pub trust_level: Trust,
    pub source_type: Option<String>,
    /// Where a text that lies in no file is from, as its bringer said.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source_uri: Option<String>,
    pub source_id: String,
    pub byte_len: u64,
    pub chunk_count: u32,
    pub created_at: Option<String>,
    pub updated_at: Option<String>,
    pub parser_version: &'static str,
    pub chunker_version: &'static str,
}

#[derive(Debug, Clone, Serialize)]
pub struct ChunkInspection {
    pub schema_version: ChunkInspectionV1,
    pub chunk_id: Id,
    pub doc_id: Id,
    pub doc_path: String,
    pub heading_path: Vec<String>,
    pub text: String,
    pub source_spans: Vec<SourceSpan>,
    pub token_estimate: u32,
    pub chunker_version: &'static str,
}

/// Bytes and lines of the source file on disk.
#[derive(Debug, Clone, Serialize)]
pub struct SourceSpan {
    pub byte_start: u64,
    pub byte_end: u64,
    pub line_start: u32,
    pub line_end: u32,
}

#[derive(Debug, Clone, Serialize)]
pub struct IngestReport {
    pub schema_version: IngestReportV1,
    pub scope: Scope,
    pub scanned: u64,
    pub new: u64,
    pub updated: u64,
    pub unchanged: u64,
    pub skipped: u64,
    pub errors: u64,
    pub purged_deleted_files: u64,
    pub duration_ms: u64,
    /// Skipped files by extension ("" for none).
    pub skipped_by_extension: BTreeMap<String, u64>,
    /// For each reason, the first few paths.
    pub skip_examples: BTreeMap<String, Vec<String>>,
    /// How many files each reason skipped.
    pub skipped_by_reason: BTreeMap<String, u64>,
    pub corpus_revision: u64,
    /// Asked to stop before the end; what was done is kept.
    pub aborted: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
    /// None where no embedding model is configured.
    pub embedding: Option<EmbeddingReport>,
    pub items: Option<Vec<IngestItem>>,
}

/// How far the corpus can be searched by meaning, in chunks.
#[derive(Debug, Clone, Serialize)]
pub struct EmbeddingReport {
    /// Names the vectors; null as long as the model was never opened.
    pub model: Option<String>,
    /// Chunks the model was given in this ingest.
    pub embedded: u64,
    /// Chunks whose text had been embedded before, wherever it stood.
    pub reused: u64,
    /// Chunks that have no vectors yet.
    pub pending: u64,
    /// Why no more were embedded, if that is not what was asked for.
    pub error: Option<ErrorReport>,
}

#[derive(Debug, Clone, Serialize)]
pub struct Scope {
    pub root: String,
    pub include: Vec<String>,
    pub exclude: Vec<String>,
}

#[derive(Debug, Clone, Serialize)]
pub struct IngestItem {
    pub path: String,
    pub result: IngestResult,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub doc_id: Option<Id>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub chunks: Option<u32>,
    /// Why a file was skipped.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<ErrorReport>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum IngestResult {
    New,
    Updated,
    Unchanged,
    Skipped,
    Error,
    Purged,
}

/// One line of ndjson while an ingest runs; exactly one of `completed` and `aborted` ends the stream.
#[derive(Debug, Clone, Serialize)]
pub struct IngestProgress {
    pub schema_version: IngestProgressV1,
    pub ts: String,
    #[serde(flatten)]
    pub event: IngestEvent,
}

#[derive(Debug, Clone, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum IngestEvent {
    ScanStarted {
        root: String,
    },
    ScanCompleted {
        total: u64,
    },
    AssetStarted {
        idx: u64,
        total: u64,
        path: String,
        media: Media,
    },
    AssetChunked {
        idx: u64,
        chunks: u32,
    },
    AssetFinished {
        idx: u64,
        total: u64,
        result: IngestResult,
        chunks: u32,
    },
    /// `total` chunks have no vectors. `replaces` names the model whose vectors go.
    EmbedStarted {
        model: String,
        total: u64,
        replaces: Option<String>,
    },
    EmbedBatchFinished {
        n_chunks: u64,
        ms: u64,
        done: u64,
        total: u64,
    },
    Completed {
        counts: IngestCounts,
    },
    Aborted {
        counts: IngestCounts,
    },
}

#[derive(Debug, Clone, Copy, Default, Serialize)]
pub struct IngestCounts {
    pub scanned: u64,
    pub new: u64,
    pub updated: u64,
    pub unchanged: u64,
    pub skipped: u64,
    pub errors: u64,
    pub purged_deleted_files: u64,
}

#[derive(Debug, Clone, Serialize)]
pub struct Schema {
    pub schema_version: SchemaV1,
    pub kebab_version: &'static str,
    pub wire: WireSchemas,
    pub capabilities: BTreeMap<&'static str, bool>,
    pub models: Models,
    pub stats: Stats,
}

#[derive(Debug, Clone, Serialize)]
pub struct WireSchemas {
    pub schemas: &'static [&'static str],
}

#[derive(Debug, Clone, Serialize)]
pub struct Models {
    pub parser_version: &'static str,
    pub chunker_version: &'static str,
    pub embedding_version: Option<String>,
    pub prompt_template_version: Option<&'static str>,
    pub index_version: &'static str,
    pub corpus_revision: u64,
    pub active_parsers: &'static [&'static str],
    pub active_chunkers: &'static [&'static str],
}

#[derive(Debug, Clone, Default, Serialize)]
pub struct Stats {
    pub doc_count: u64,
    pub chunk_count: u64,
    /// Files the index was made from.
    pub asset_count: u64,
    pub last_ingest_at: Option<String>,
    pub media_breakdown: BTreeMap<String, u64>,
    pub lang_breakdown: BTreeMap<String, u64>,
    pub code_lang_breakdown: BTreeMap<String, u64>,
    pub repo_breakdown: BTreeMap<String, u64>,
    pub index_bytes: IndexBytes,
    pub stale_doc_count: u64,
    /// Chunks with vectors of the model in use.
    pub embedded_chunk_count: u64,
}

#[derive(Debug, Clone, Copy, Default, Serialize)]
pub struct IndexBytes {
    pub sqlite: u64,
    pub index: u64,
    pub vectors: u64,
}

/// A server that other programs of this machine reach: its ready line, its endpoint file, and what `server status`
/// answers. Without one, only what is known of the place where it would be.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ServerStatus {
    pub schema_version: ServerStatusV1,
    pub running: bool,
    pub url: Option<String>,
    pub pid: Option<u32>,
    pub version: Option<String>,
    pub root: String,
    pub store: String,
    pub readonly: Option<bool>,
    /// Equal for configurations that give equal answers.
    pub config: Option<String>,
    pub token_file: String,
    pub started_at: Option<String>,
}

#[derive(Debug, Clone, Serialize)]
pub struct Doctor {
    pub schema_version: DoctorV1,
    pub ok: bool,
    pub checks: Vec<Check>,
}

#[derive(Debug, Clone, Serialize)]
pub struct Check {
    pub name: &'static str,
    pub ok: bool,
    pub detail: String,
    pub hint: Option<String>,
}

/// error.v1: what an `Error` says, as data.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ErrorReport {
    pub schema_version: ErrorV1,
    pub code: &'static str,
    pub message: String,
    pub details: Value,
    pub hint: Option<String>,
}

impl From<&Error> for ErrorReport {
    fn from(error: &Error) -> Self {
        let details = match error.details() {
            Value::Object(details) => Value::Object(details),
            _ => Value::Object(Map::new()),
        };
        ErrorReport {
            schema_version: ErrorV1,
            code: error.code(),
            message: error.to_string(),
            details,
            hint: error.hint(),
        }
    }
}
