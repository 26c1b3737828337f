//! `schema`: what this build can do, and what the corpus holds.

use jiff::Timestamp;

use super::ask;
use super::freshness::Judge;
use crate::error::{Error, Result};
use crate::index::{self, embed};
use crate::ingest::embed::Coverage;
use crate::ingest::{PARSER_VERSION, chunk};
use crate::kb::Kb;
use crate::store::{Column, Reader, database_path};
use crate::wire::{IndexBytes, Models, SCHEMAS, Schema, SchemaV1, Stats, WireSchemas};

pub fn run(kb: &Kb) -> Result<Schema> {
    let (corpus_revision, stats) = match kb.read_store(|store| Ok((store.revision()?, stats(kb, store)?))) {
        Err(Error::NotIndexed { found, .. }) if found == "none" => (0, Stats::default()),
        other => other?,
    };
    Ok(Schema {
        schema_version: SchemaV1,
        kebab_version: env!("CARGO_PKG_VERSION"),
        wire: WireSchemas { schemas: SCHEMAS },
        capabilities: CAPABILITIES.iter().copied().collect(),
        models: Models {
            parser_version: PARSER_VERSION,
            chunker_version: chunk::VERSION,
            embedding_version: kb.config.models.embedding.as_ref().and_then(embed::id),
            prompt_template_version: Some(ask::prompt::VERSION),
            index_version: index::VERSION,
            corpus_revision,
            active_parsers: PARSERS,
            active_chunkers: &[chunk::VERSION],
        },
        stats,
    })
}

/// True only for what works in this build.
const CAPABILITIES: &[(&str, bool)] = &[
    ("bulk_search", true),
    ("http_daemon", true),
    ("incremental_ingest", true),
    ("ingest_cancellation", true),
    ("ingest_progress", true),
    ("json_mode", true),
    ("mcp_server", true),
    ("rag_multi_turn", true),
    ("search_cache", false),
    ("single_file_ingest", true),
    ("streaming_ask", true),
    ("vector_search", true),
];

const PARSERS: &[&str] = &["markdown", "rst", "asciidoc", "org", "html", "code", "text"];

fn stats(kb: &Kb, store: &Reader) -> Result<Stats> {
    let (doc_count, chunk_count) = store.counts()?;
    let judge = Judge::new(&kb.config, store, Timestamp::now())?;
    let stale = store.documents()?.iter().filter(|document| judge.judge(document).is_stale()).count();
    let sqlite = std::fs::metadata(database_path(kb.data_dir())).map_or(0, |metadata| metadata.len());
    Ok(Stats {
        doc_count,
        chunk_count,
        asset_count: doc_count,
        last_ingest_at: store.meta_text("last_ingest_at")?,
        media_breakdown: store.breakdown(Column::Media)?,
        lang_breakdown: store.breakdown(Column::Lang)?,
        code_lang_breakdown: store.breakdown(Column::CodeLang)?,
        repo_breakdown: store.breakdown(Column::Repo)?,
        index_bytes: IndexBytes {
            sqlite,
            index: store.segments()?.iter().map(|entry| entry.bytes).sum(),
            vectors: store.vector_segments()?.iter().map(|entry| entry.bytes).sum(),
        },
        stale_doc_count: stale as u64,
        embedded_chunk_count: Coverage::known(kb, store)?.map_or(0, |coverage| coverage.embedded),
    })
}
