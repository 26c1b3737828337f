//! In place of the cross-encoder in a build that runs no models on this machine.

use std::convert::Infallible;

use super::WITHOUT;
use crate::config::RerankingModel;
use crate::error::{Error, Result};

/// There is none.
pub struct Reranker(Infallible);

impl Reranker {
    pub fn open(model: &RerankingModel) -> Result<Reranker> {
        Err(Error::ModelUnreachable {
            endpoint: model.folder.display().to_string(),
            model: model.folder.file_name().map_or("model".into(), |name| name.to_string_lossy().into_owned()),
            cause: WITHOUT.into(),
            hint: "Leave models.reranker.model out, or build without --no-default-features.".into(),
        })
    }

    pub fn name(&self) -> &str {
        match self.0 {}
    }

    pub fn runtime(&self) -> &str {
        match self.0 {}
    }

    pub fn score(&self, _query: &str, _passages: &[&str]) -> Result<Vec<f32>> {
        match self.0 {}
    }
}
