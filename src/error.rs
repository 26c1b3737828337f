//! What can go wrong, in one enum: each variant has a code of the wire contract, a message
//! "operation: detail", details as JSON and, where a remedy is known, one next step.
//!
//! Refuses: exit codes for refusals and health (those are answers, not errors).

use std::fmt;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::model::Id;

pub type Result<T, E = Error> = std::result::Result<T, E>;

#[derive(Debug, Clone)]
pub enum Error {
    ConfigInvalid {
        path: Option<PathBuf>,
        cause: String,
        hint: Option<String>,
    },
    ConfigNotFound {
        path: PathBuf,
    },
    InvalidInput {
        field: String,
        reason: String,
        hint: Option<String>,
    },
    NotIndexed {
        expected: String,
        found: String,
        hint: String,
    },
    StaleCursor,
    /// `id` is an id or a path, whichever was asked for.
    DocNotFound {
        id: String,
    },
    ChunkNotFound {
        id: String,
    },
    SpanNotSupported {
        id: String,
        reason: String,
    },
    ModelUnreachable {
        endpoint: String,
        model: String,
        cause: String,
        hint: String,
    },
    /// The server runs and does not have the model.
    ModelNotPulled {
        endpoint: String,
        model: String,
        cause: String,
        hint: String,
    },
    Timeout {
        endpoint: String,
        model: String,
        cause: String,
        hint: String,
    },
    /// Whoever asked no longer wants the answer.
    Cancelled,
    ReadonlyMode {
        operation: &'static str,
    },
    StoreBusy {
        path: PathBuf,
        cause: String,
    },
    StoreCorrupt {
        path: PathBuf,
        cause: String,
    },
    /// A segment is damaged; unlike the store it can be rebuilt.
    IndexDamaged {
        path: PathBuf,
        cause: String,
    },
    Io {
        operation: &'static str,
        path: PathBuf,
        cause: String,
    },
    Internal {
        cause: String,
    },
}

impl Error {
    /// An argument is wrong: which, and why.
    pub fn input(field: impl Into<String>, reason: impl Into<String>) -> Self {
        Error::InvalidInput { field: field.into(), reason: reason.into(), hint: None }
    }

    pub fn input_hint(field: impl Into<String>, reason: impl Into<String>, hint: impl Into<String>) -> Self {
        Error::InvalidInput { field: field.into(), reason: reason.into(), hint: Some(hint.into()) }
    }

    /// For `map_err` over file operations: `.map_err(Error::io("write", &path))`.
    pub fn io(operation: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.to_owned();
        move |source| Error::Io { operation, path, cause: source.to_string() }
    }

    /// The code of the wire contract.
    pub fn code(&self) -> &'static str {
        match self {
            Error::ConfigInvalid { .. } => "config_invalid",
            Error::ConfigNotFound { .. } => "config_not_found",
            Error::InvalidInput { .. } => "invalid_input",
            Error::NotIndexed { .. } => "not_indexed",
            Error::StaleCursor => "stale_cursor",
            Error::DocNotFound { .. } => "doc_not_found",
            Error::ChunkNotFound { .. } => "chunk_not_found",
            Error::SpanNotSupported { .. } => "span_not_supported",
            Error::ModelUnreachable { .. } => "model_unreachable",
            Error::ModelNotPulled { .. } => "model_not_pulled",
            // The contract has no code of its own for what nobody waits for.
            Error::Timeout { .. } | Error::Cancelled => "timeout",
            Error::ReadonlyMode { .. } => "readonly_mode",
            Error::StoreBusy { .. } => "store_busy",
            Error::StoreCorrupt { .. } | Error::IndexDamaged { .. } => "store_corrupt",
            Error::Io { .. } => "io_error",
            Error::Internal { .. } => "internal",
        }
    }

    /// Always a JSON object, possibly empty.
    pub fn details(&self) -> Value {
        let text = |path: &Path| path.to_string_lossy().into_owned();
        match self {
            Error::ConfigInvalid { path, cause, .. } => json!({"path": path.as_deref().map(text), "cause": cause}),
            Error::ConfigNotFound { path } => json!({"path": text(path), "cause": "no such file"}),
            Error::InvalidInput { field, reason, .. } => json!({"field": field, "reason": reason}),
            Error::NotIndexed { expected, found, .. } => json!({"expected": expected, "found": found}),
            Error::StaleCursor => json!({}),
            Error::DocNotFound { id } | Error::ChunkNotFound { id } | Error::SpanNotSupported { id, .. } => {
                json!({"id": id})
            }
            Error::ModelUnreachable { endpoint, model, cause, .. }
            | Error::ModelNotPulled { endpoint, model, cause, .. }
            | Error::Timeout { endpoint, model, cause, .. } => {
                json!({"endpoint": endpoint, "model": model, "source": cause})
            }
            Error::StoreBusy { path, cause }
            | Error::StoreCorrupt { path, cause }
            | Error::IndexDamaged { path, cause } => json!({"path": text(path), "cause": cause}),
            Error::Io { path, cause, .. } => json!({"path": text(path), "cause": cause}),
            Error::Cancelled | Error::ReadonlyMode { .. } | Error::Internal { .. } => json!({}),
        }
    }

    /// One short imperative next step, only where the remedy is known.
    pub fn hint(&self) -> Option<String> {
        match self {
            Error::ConfigInvalid { hint, .. } | Error::InvalidInput { hint, .. } => hint.clone(),
            Error::NotIndexed { hint, .. }
            | Error::ModelUnreachable { hint, .. }
            | Error::ModelNotPulled { hint, .. }
            | Error::Timeout { hint, .. } => Some(hint.clone()),
            Error::Cancelled => None,
            Error::ConfigNotFound { .. } => {
                Some("Give an existing file to --config, or leave the flag out: no config file is needed.".into())
            }
            Error::StaleCursor => Some("Repeat the search without `cursor` and page from the start.".into()),
            Error::DocNotFound { .. } => {
                Some("Take ids and paths as search hits show them; paths are relative to the workspace.".into())
            }
            Error::ChunkNotFound { .. } => Some("Search again: chunk ids change when a document changes.".into()),
            Error::SpanNotSupported { .. } => Some("Fetch the document or the chunk instead.".into()),
            Error::ReadonlyMode { .. } => Some("Start without --readonly (or KEBAB_READONLY) to write.".into()),
            Error::StoreBusy { .. } => Some("Wait for the other ingest to end, or raise --wait.".into()),
            Error::StoreCorrupt { path, .. } if path.ends_with("sessions.sqlite") => {
                Some("Move the file away: only conversations with `ask` are in it.".into())
            }
            Error::StoreCorrupt { .. } => Some(
                "Move the data folder away and run `kebab-lite ingest`: the index is rebuilt from your files (keep a copy if you kept texts with ingest-stdin)."
                    .into(),
            ),
            Error::IndexDamaged { .. } => {
                Some("Run `kebab-lite ingest --force`: what is damaged is rebuilt from the store.".into())
            }
            Error::Io { cause, .. } if cause.contains("full") || cause.contains("No space") => {
                Some("Free some disk space and run the command again; what the index holds is whole.".into())
            }
            Error::Io { .. } => None,
            Error::Internal { .. } => Some("This is a bug in kebab-lite; please report it with the message.".into()),
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::ConfigInvalid { path: Some(path), cause, .. } => write!(f, "config {}: {cause}", path.display()),
            Error::ConfigInvalid { path: None, cause, .. } => write!(f, "config: {cause}"),
            Error::ConfigNotFound { path } => write!(f, "config: no file at {}", path.display()),
            Error::InvalidInput { field, reason, .. } => write!(f, "{field}: {reason}"),
            Error::NotIndexed { expected, found, .. } => write!(f, "not indexed: expected {expected}, found {found}"),
            Error::StaleCursor => {
                f.write_str("cursor: it belongs to another query or to an earlier state of the index")
            }
            Error::DocNotFound { id } if Id::parse(id).is_none() => write!(f, "no document has the path {id}"),
            Error::DocNotFound { id } => write!(f, "no document has the id {id}"),
            Error::ChunkNotFound { id } => write!(f, "no chunk has the id {id}"),
            Error::SpanNotSupported { id, reason } => write!(f, "span of {id}: {reason}"),
            Error::ModelUnreachable { endpoint, model, cause, .. } if endpoint.is_empty() => {
                write!(f, "model {model}: {cause}")
            }
            Error::ModelUnreachable { endpoint, model, cause, .. }
            | Error::ModelNotPulled { endpoint, model, cause, .. }
            | Error::Timeout { endpoint, model, cause, .. } => write!(f, "model {model} at {endpoint}: {cause}"),
            Error::Cancelled => f.write_str("cancelled"),
            Error::ReadonlyMode { operation } => write!(f, "readonly: {operation} would write"),
            Error::StoreBusy { path, cause } => write!(f, "store {}: {cause}", path.display()),
            Error::StoreCorrupt { path, cause } => write!(f, "store {}: {cause}", path.display()),
            Error::IndexDamaged { path, cause } => write!(f, "index {}: {cause}", path.display()),
            Error::Io { operation, path, cause } => write!(f, "{operation} {}: {cause}", path.display()),
            Error::Internal { cause } => write!(f, "internal: {cause}"),
        }
    }
}

impl std::error::Error for Error {}
