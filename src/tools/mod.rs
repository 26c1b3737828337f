//! The verbs: each a file with `run`, the one way from an input to a wire struct for the command line, the
//! protocol and library callers alike. `TOOLS` is the table of those that the protocol offers.
//!
//! The table is what every host shows every model on every turn: all of it together stays under 8 KB.

pub mod args;
pub mod ask;
pub mod bulk;
pub mod doctor;
pub mod fetch;
mod freshness;
mod hybrid;
pub mod ingest_file;
pub mod ingest_stdin;
mod rank;
mod rerank;
pub mod resource;
pub mod schema;
pub mod search;
#[cfg(test)]
pub mod tests;

use std::fmt::Write;
use std::sync::atomic::AtomicBool;

use serde::Serialize;
use serde_json::Value;
use serde_json::value::RawValue;

use crate::error::{Error, Result};
use crate::ingest;
use crate::kb::Kb;
use search::SearchInput;

/// A tool as the protocol offers it.
#[derive(Debug)]
pub struct Tool {
    pub name: &'static str,
    pub title: &'static str,
    /// When to use it and what comes back, for the model.
    pub description: &'static str,
    pub effect: Effect,
    pub cost: Cost,
    /// JSON Schema. No combinators, references or unions, every array typed, ranges repeated in words: hosts drop
    /// all tools over one construct they do not know.
    pub input_schema: &'static str,
    /// JSON Schema of the wire struct: what a reader may rely on. What may be null is required, no more: a list of types
    /// is as strange to some hosts as a union.
    pub output_schema: &'static str,
    /// Arguments that work on any corpus, as JSON objects; none where a tool needs something of this one.
    pub examples: &'static [&'static str],
    /// The wire struct as compact JSON.
    pub run: fn(&Kb, &RawValue, &Context) -> Result<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effect {
    Reads,
    /// Not offered under --readonly.
    Writes,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cost {
    Quick,
    /// May take seconds, or writes: runs beside the quick ones, never before them.
    Slow,
    /// May wait for another server, for minutes.
    Waits,
}

/// What a call brings besides its arguments.
pub struct Context<'c> {
    pub tokens: Tokens,
    /// Set when nobody wants the answer any more.
    pub stop: &'c AtomicBool,
    /// Takes (done, total, what is being done).
    pub progress: &'c dyn Fn(u64, Option<u64>, &str),
}

/// Lengths of answers, in tokens of `CHARS_A_TOKEN` characters.
#[derive(Debug, Clone, Copy, Default)]
pub struct Tokens {
    /// Where the arguments name none.
    pub default: Option<usize>,
    /// Whatever the arguments name.
    pub most: Option<usize>,
}

/// A budget counts four characters a token.
pub const CHARS_A_TOKEN: usize = 4;

impl Tokens {
    /// The budget in force for a call that asked for this one.
    pub fn of(self, asked: Option<usize>) -> Option<usize> {
        asked.or(self.default).into_iter().chain(self.most).min()
    }
}

/// In this order, from start to start: search, bulk_search, ask, fetch, schema, doctor, ingest_file, ingest_stdin.
pub const TOOLS: &[Tool] = &[
    Tool {
        name: "search",
        title: "Search documents",
        description: "Find passages in the user's documents. Use it first for any question they may answer. Returns \
            hits, best first: snippet, path, lines (citation.uri) and ids for fetch. Filters all hold; of a list, any \
            value.",
        effect: Effect::Reads,
        cost: Cost::Quick,
        input_schema: r#"{"type": "object", "additionalProperties": false, "required": ["query"], "properties": {
            "query": {"type": "string", "description": "question or key words; \"quoted words\" stand together"},
            "mode": {"type": "string", "enum": ["hybrid", "lexical", "vector"]},
            "k": {"type": "integer", "description": "hits, 1-100, default 10"},
            "max_tokens": {"type": "integer", "description": "size of the answer, from 1, default 20000"},
            "snippet_chars": {"type": "integer", "description": "1-100000, default 240"},
            "cursor": {"type": "string", "description": "next_cursor of the page before"},
            "trace": {"type": "boolean"},
            "drop_weak": {"type": "boolean", "description": "no hits far below the first"},
            "path_glob": {"type": "string", "description": "such as docs/**/*.md"},
            "exclude_path_glob": {"type": "string"},
            "tag": {"type": "array", "items": {"type": "string"}},
            "exclude_tag": {"type": "array", "items": {"type": "string"}},
            "lang": {"type": "string", "description": "of the text: en, ko"},
            "code_lang": {"type": "array", "items": {"type": "string"}},
            "media": {"type": "array", "items": {"type": "string"}, "description": "markdown, text, code, pdf, html, other"},
            "trust_min": {"type": "string", "enum": ["primary", "secondary", "generated"]},
            "ingested_after": {"type": "string", "description": "RFC 3339"},
            "source": {"type": "array", "items": {"type": "string"}},
            "repo": {"type": "array", "items": {"type": "string"}},
            "doc_id": {"type": "string"},
            "exclude_doc_id": {"type": "array", "items": {"type": "string"}}
        }}"#,
        output_schema: r#"{"type": "object", "required": ["schema_version", "hits", "next_cursor", "truncated"], "properties": {
            "schema_version": {"const": "search_response.v1"},
            "hits": {"type": "array", "items": {"type": "object", "required": ["rank", "score", "chunk_id", "doc_id", "doc_path", "snippet", "citation", "stale"]}},
            "truncated": {"type": "boolean"},
            "hint": {"type": "string"}
        }}"#,
        examples: &[
            r#"{"query": "backup schedule"}"#,
            r#"{"query": "\"error handling\" retry", "k": 5, "path_glob": "docs/**", "drop_weak": true}"#,
            r#"{"query": "설정 파일", "mode": "lexical", "lang": "ko", "trace": true, "max_tokens": 2000}"#,
        ],
        run: |kb, arguments, context| {
            let mut input = SearchInput::from_json(value(arguments)?)?;
            input.max_tokens = context.tokens.of(input.max_tokens);
            text(&search::run(kb, &input)?)
        },
    },
    Tool {
        name: "bulk_search",
        title: "Search many queries",
        description: "Run up to 100 searches in one call, such as several wordings of a question. Each fails by itself.",
        effect: Effect::Reads,
        cost: Cost::Slow,
        input_schema: r#"{"type": "object", "additionalProperties": false, "required": ["queries"], "properties": {
            "queries": {"type": "array", "description": "0-100 items, each with the arguments of search", "items": {"type": "object", "required": ["query"], "properties": {"query": {"type": "string"}}}}
        }}"#,
        output_schema: r#"{"type": "object", "required": ["schema_version", "results", "summary"], "properties": {
            "schema_version": {"const": "bulk_search_response.v1"},
            "results": {"type": "array", "items": {"type": "object", "required": ["query", "response", "error"]}},
            "summary": {"type": "object"}
        }}"#,
        examples: &[
            r#"{"queries": []}"#,
            r#"{"queries": [{"query": "backup"}, {"query": "restore", "k": 3}, {"query": "x", "k": 0}, {}, {"query": "x", "nope": 1}]}"#,
        ],
        run: |kb, arguments, context| text(&bulk::run(kb, bulk::queries(arguments)?, context)?),
    },
    Tool {
        name: "ask",
        title: "Answer from documents",
        description: "A configured model answers from the documents, with citations, or refuses (grounded false). Slow; to \
            read passages yourself use search.",
        effect: Effect::Reads,
        cost: Cost::Waits,
        input_schema: r#"{"type": "object", "additionalProperties": false, "required": ["question"], "properties": {
            "question": {"type": "string"},
            "extractive": {"type": "boolean", "description": "quotes, no model"},
            "session_id": {"type": "string", "description": "for follow-up questions"},
            "multi_hop": {"type": "boolean"},
            "mode": {"type": "string", "enum": ["hybrid", "lexical", "vector"]},
            "k": {"type": "integer", "description": "1-100"},
            "filters": {"type": "object", "description": "as search's: {\"path_glob\": \"docs/**\"}", "properties": {}}
        }}"#,
        output_schema: r#"{"type": "object", "required": ["schema_version", "answer", "citations", "grounded", "refusal_reason"], "properties": {
            "schema_version": {"const": "answer.v1"},
            "answer": {"type": "string"},
            "citations": {"type": "array"},
            "grounded": {"type": "boolean"}
        }}"#,
        examples: &[
            r#"{"question": "When does the backup run?", "extractive": true}"#,
            r#"{"question": "설정 파일은 언제 복사하나요?", "extractive": true, "k": 3, "filters": {"media": ["markdown"]}}"#,
        ],
        run: |kb, arguments, context| text(&ask::over_protocol(kb, value(arguments)?, context)?),
    },
    Tool {
        name: "fetch",
        title: "Read a passage",
        description: "Read the exact text behind a hit: a chunk with its neighbours, a document, or a span of lines. \
            Give one of chunk_id, doc_id, path and uri (a citation's).",
        effect: Effect::Reads,
        cost: Cost::Quick,
        input_schema: r#"{"type": "object", "additionalProperties": false, "properties": {
            "chunk_id": {"type": "string"},
            "doc_id": {"type": "string"},
            "path": {"type": "string"},
            "uri": {"type": "string", "description": "such as docs/a.md#L3-L9"},
            "source": {"type": "string", "description": "with path, where two sources have it"},
            "context": {"type": "integer", "description": "chunks before and after, 0-20, default 0"},
            "line_start": {"type": "integer", "description": "from 1"},
            "line_end": {"type": "integer", "description": "inclusive"},
            "max_tokens": {"type": "integer", "description": "from 1, default 20000"}
        }}"#,
        output_schema: r#"{"type": "object", "required": ["schema_version", "kind", "doc_id", "doc_path", "stale", "truncated"], "properties": {
            "schema_version": {"const": "fetch_result.v1"},
            "kind": {"type": "string", "enum": ["chunk", "doc", "span"]},
            "text": {"type": "string"},
            "chunk": {"type": "object", "required": ["chunk_id", "text"]}
        }}"#,
        examples: &[],
        run: |kb, arguments, context| {
            let mut input = fetch::Input::from_json(value(arguments)?)?;
            input.max_tokens = context.tokens.of(input.max_tokens);
            text(&fetch::run(kb, &input)?)
        },
    },
    Tool {
        name: "schema",
        title: "What is indexed",
        description: "What the index holds (documents by kind, language and repository, last ingest) and what this \
            server can do. Use it to choose filters for search.",
        effect: Effect::Reads,
        cost: Cost::Slow,
        input_schema: NO_INPUT,
        output_schema: r#"{"type": "object", "required": ["schema_version", "kebab_version", "wire", "capabilities", "models", "stats"], "properties": {
            "schema_version": {"const": "schema.v1"},
            "capabilities": {"type": "object"},
            "stats": {"type": "object"}
        }}"#,
        examples: &["{}"],
        run: |kb, arguments, _| {
            no_input(arguments)?;
            text(&schema::run(kb)?)
        },
    },
    Tool {
        name: "doctor",
        title: "Check the server",
        description: "Check configuration, store and index. Use it when searches fail; each failed check has a hint.",
        effect: Effect::Reads,
        cost: Cost::Slow,
        input_schema: NO_INPUT,
        output_schema: r#"{"type": "object", "required": ["schema_version", "ok", "checks"], "properties": {
            "schema_version": {"const": "doctor.v1"},
            "ok": {"type": "boolean"},
            "checks": {"type": "array", "items": {"type": "object", "required": ["name", "ok", "detail", "hint"]}}
        }}"#,
        examples: &["{}"],
        run: |kb, arguments, _| {
            no_input(arguments)?;
            text(&doctor::run(kb))
        },
    },
    Tool {
        name: "ingest_file",
        title: "Index a file",
        description: "Index one file of the user's folder, new or changed, at once.",
        effect: Effect::Writes,
        cost: Cost::Slow,
        input_schema: r#"{"type": "object", "additionalProperties": false, "required": ["path"], "properties": {
            "path": {"type": "string", "description": "absolute, or relative to the root"},
            "title": {"type": "string"},
            "tags": {"type": "array", "items": {"type": "string"}}
        }}"#,
        output_schema: INGEST_OUTPUT,
        examples: &[],
        run: |kb, arguments, context| {
            text(&ingest_file::run(kb, &ingest_file::Input::from_json(value(arguments)?)?, context.stop)?)
        },
    },
    Tool {
        name: "ingest_stdin",
        title: "Remember a text",
        description: "Keep a text as a document of its own, found by later searches. The same title and source_uri \
            replace it. No file of the user's is written.",
        effect: Effect::Writes,
        cost: Cost::Slow,
        input_schema: r#"{"type": "object", "additionalProperties": false, "required": ["text", "title"], "properties": {
            "text": {"type": "string", "description": "Markdown"},
            "title": {"type": "string"},
            "source_uri": {"type": "string", "description": "where it comes from"},
            "tags": {"type": "array", "items": {"type": "string"}},
            "lang": {"type": "string"},
            "trust_level": {"type": "string", "enum": ["primary", "secondary", "generated"]}
        }}"#,
        output_schema: INGEST_OUTPUT,
        examples: &[r##"{"text": "# Plan\n\nShip on Friday.", "title": "Plan", "tags": ["note"]}"##],
        run: |kb, arguments, context| {
            text(&ingest_stdin::run(kb, &ingest_stdin::Input::from_json(value(arguments)?)?, context.stop)?)
        },
    },
];

const INGEST_OUTPUT: &str = r#"{"type": "object", "required": ["schema_version", "new", "updated", "errors", "items"], "properties": {
    "schema_version": {"const": "ingest_report.v1"}
}}"#;

const NO_INPUT: &str = r#"{"type": "object", "additionalProperties": false, "properties": {}}"#;

/// The tools of this session.
pub fn offered(readonly: bool) -> impl Iterator<Item = &'static Tool> {
    TOOLS.iter().filter(move |tool| !readonly || tool.effect == Effect::Reads)
}

/// The fields of a tools/list result.
pub fn list(readonly: bool) -> String {
    let mut fields = String::from(r#""tools":["#);
    for (place, tool) in offered(readonly).enumerate() {
        let comma = if place > 0 { "," } else { "" };
        let reads = tool.effect == Effect::Reads;
        let destroys = if reads { "" } else { r#""destructiveHint":false,"# };
        // Writing to a String cannot fail.
        write!(
            fields,
            r#"{comma}{{"name":"{}","title":"{}","description":{},"inputSchema":{},"outputSchema":{},"annotations":{{"readOnlyHint":{reads},{destroys}"idempotentHint":true,"openWorldHint":false}}}}"#,
            tool.name,
            tool.title,
            Value::from(tool.description),
            compact(tool.input_schema),
            compact(tool.output_schema),
        )
        .ok();
    }
    fields.push(']');
    fields
}

/// JSON text without the spaces between its tokens.
fn compact(json: &str) -> String {
    let (mut inside, mut escaped) = (false, false);
    let keep = |c: &char| {
        let keep = inside || !c.is_ascii_whitespace();
        if *c == '"' && !escaped {
            inside = !inside;
        }
        escaped = *c == '\\' && !escaped;
        keep
    };
    json.chars().filter(keep).collect()
}

/// `{}`.
pub fn no_arguments() -> Box<RawValue> {
    serde_json::value::to_raw_value(&serde_json::Map::new()).unwrap_or_default()
}

/// Arguments as a tool's input reads them.
fn value(arguments: &RawValue) -> Result<Value> {
    serde_json::from_str(arguments.get()).map_err(|error| Error::input("arguments", error.to_string()))
}

fn no_input(arguments: &RawValue) -> Result<()> {
    args::Args::new(value(arguments)?)?.finish()
}

fn text(answer: &impl Serialize) -> Result<String> {
    serde_json::to_string(answer).map_err(|error| Error::Internal { cause: format!("an answer is not JSON: {error}") })
}

/// Runs a read; if the index turns out damaged, it is rebuilt from the store and the read is tried once more.
fn with_repair<T>(kb: &Kb, read: impl Fn() -> Result<T>) -> Result<T> {
    match read() {
        Err(Error::IndexDamaged { .. }) if !kb.config.readonly => {
            ingest::rebuild(kb)?;
            kb.forget_snapshot();
            read()
        }
        other => other,
    }
}
