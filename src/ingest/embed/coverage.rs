//! How many chunks have vectors of the configured model, and which model that is, found without opening it.

use crate::config::{EmbeddingModel, ModelSource};
use crate::error::Result;
use crate::index::embed;
use crate::kb::Kb;
use crate::model::{Id, SegmentEntry, VectorEntry};
use crate::store::Reader;

use super::publish::{self, MODEL, SETTINGS};

/// How many chunks there are and how many have vectors.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Coverage {
    /// The model in force, if it is known without opening it.
    pub model: Option<String>,
    pub chunks: u64,
    pub embedded: u64,
    /// Deleted vectors take up much room.
    pub untidy: bool,
}

impl Coverage {
    /// Of the configured model; None where none is.
    pub fn known(kb: &Kb, store: &Reader) -> Result<Option<Coverage>> {
        let model = kb.config.models.embedding.as_ref();
        model.map(|model| Coverage::of(store, model, &settings(model))).transpose()
    }

    pub fn of(store: &Reader, source: &EmbeddingModel, settings: &str) -> Result<Coverage> {
        let known = store.meta_text(SETTINGS)?.is_some_and(|stored| stored == settings);
        let model = match &source.source {
            _ if known => store.meta_text(MODEL)?,
            // Its dimensions are part of its name.
            ModelSource::Endpoint { .. } if source.dimensions.is_none() => None,
            _ => embed::id(source),
        };
        Ok(Coverage::count(&store.segments()?, &store.vector_segments()?, model))
    }

    pub fn count(segments: &[SegmentEntry], vectors: &[VectorEntry], model: Option<String>) -> Coverage {
        let own = || vectors.iter().filter(|entry| Some(&entry.model) == model.as_ref());
        Coverage {
            chunks: segments.iter().map(|entry| u64::from(entry.chunks) - entry.tombstones.len() as u64).sum(),
            embedded: own().map(|entry| u64::from(entry.chunks)).sum(),
            untidy: publish::is_untidy(vectors),
            model,
        }
    }

    pub fn pending(&self) -> u64 {
        self.chunks.saturating_sub(self.embedded)
    }

    pub fn has_work(&self) -> bool {
        self.pending() > 0 || self.untidy
    }
}

/// What names the model without opening it: under the same settings it is the model it was.
pub fn settings(model: &EmbeddingModel) -> String {
    let mut parts = format!("{} {:?} {:?}", env!("CARGO_PKG_VERSION"), model.source, model.dimensions);
    if let ModelSource::Folder(folder) = &model.source {
        let files = ["model.onnx", "tokenizer.json", "model.toml"].map(|name| folder.join(name));
        for metadata in files.iter().filter_map(|file| std::fs::metadata(file).ok()) {
            parts.push_str(&format!(" {} {:?}", metadata.len(), metadata.modified().ok()));
        }
    }
    Id::of(&[parts.as_bytes()]).to_string()
}
