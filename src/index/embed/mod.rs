//! Text → unit vectors: the model within the program, a folder's, or an endpoint's, behind one `Embedder`.
//!
//! Two vectors may be compared if they were made under the same `id`. Refuses: keeping vectors (the store does) and
//! deciding when a text is worth one (ingest does).

#[cfg(feature = "onnx")]
mod library;
#[cfg(feature = "onnx")]
mod local;
mod remote;
#[cfg(feature = "onnx")]
mod rerank;
#[cfg(not(feature = "onnx"))]
#[path = "without.rs"]
mod rerank;
#[cfg(feature = "onnx")]
mod runtime;
#[cfg(feature = "onnx")]
mod spec;
#[cfg(feature = "onnx")]
mod tokens;

use std::sync::atomic::AtomicBool;

use crate::config::{BUILTIN, EmbeddingApi, EmbeddingModel, ModelSource};
use crate::error::{Error, Result};
#[cfg(feature = "onnx")]
pub use library::NO_REPORTS;
#[cfg(feature = "onnx")]
use local::{Local, Sessions};
use remote::Remote;
pub use rerank::Reranker;
#[cfg(feature = "onnx")]
pub use runtime::library_is_loaded;

/// A loaded model. Queries share it and wait for each other.
pub struct Embedder {
    engine: Engine,
    source: ModelSource,
    id: String,
    runtime: String,
}

enum Engine {
    #[cfg(feature = "onnx")]
    Local(Box<Local>),
    Remote(Box<Remote>),
}

/// What a bulk of passages is embedded with: for as long as it lives, a model on this machine has a session a core.
pub struct Bulk<'e> {
    #[cfg(feature = "onnx")]
    source: &'e ModelSource,
    engine: BulkEngine<'e>,
}

enum BulkEngine<'e> {
    #[cfg(feature = "onnx")]
    Local(Sessions<'e>),
    Remote(&'e Remote),
}

impl Embedder {
    /// Loads the model, or asks the endpoint, and embeds a text: what does not fit together is an error here.
    pub fn open(model: &EmbeddingModel) -> Result<Embedder> {
        let source = model.source.clone();
        let embedder = match &source {
            ModelSource::Endpoint { api, address, model: name, key, timeout } => {
                let remote = Remote::open(*api, address, name, key.clone(), model.dimensions, *timeout)?;
                let id = id_of_endpoint(*api, name, Some(remote.dimensions));
                Embedder { runtime: address.clone(), engine: Engine::Remote(Box::new(remote)), source, id }
            }
            #[cfg(feature = "onnx")]
            ModelSource::Builtin => {
                let local = Local::builtin(&model.onnxruntime).map_err(|cause| unusable(&source, cause))?;
                Embedder::local(local, source, spec::BUILTIN_ID.into())
            }
            #[cfg(feature = "onnx")]
            ModelSource::Folder(folder) => {
                let opened = Local::of_folder(folder, &model.onnxruntime);
                let (local, id) = opened.map_err(|cause| unusable(&source, cause))?;
                Embedder::local(local, source, id)
            }
            #[cfg(not(feature = "onnx"))]
            ModelSource::Builtin | ModelSource::Folder(_) => return Err(unusable(&source, WITHOUT.into())),
        };
        match model.dimensions {
            Some(expected) if expected != embedder.dimensions() => {
                let cause = format!(
                    "it has {} dimensions, and models.embedding.dimensions is {expected}",
                    embedder.dimensions()
                );
                Err(unusable(&embedder.source, cause))
            }
            _ => Ok(embedder),
        }
    }

    #[cfg(feature = "onnx")]
    fn local(local: Local, source: ModelSource, id: String) -> Embedder {
        Embedder { runtime: local.runtime.name(), engine: Engine::Local(Box::new(local)), source, id }
    }

    /// Names weights, vocabulary and prefixes: part of the key of everything embedded.
    pub fn id(&self) -> &str {
        &self.id
    }

    pub fn provider(&self) -> &'static str {
        match &self.source {
            ModelSource::Builtin => "builtin",
            ModelSource::Folder(_) => "onnx",
            ModelSource::Endpoint { api, .. } => provider(*api),
        }
    }

    pub fn dimensions(&self) -> usize {
        match &self.engine {
            #[cfg(feature = "onnx")]
            Engine::Local(local) => local.spec.dimensions,
            Engine::Remote(remote) => remote.dimensions,
        }
    }

    /// What runs it: the engine, its version and its place, or the endpoint's address.
    pub fn runtime(&self) -> &str {
        &self.runtime
    }

    /// Libraries of ONNX Runtime that were found and passed over, and why.
    pub fn passed_over(&self) -> &[String] {
        match &self.engine {
            #[cfg(feature = "onnx")]
            Engine::Local(local) => &local.runtime.rejected,
            Engine::Remote(_) => &[],
        }
    }

    /// The unit vector of a question, on one thread.
    pub fn query(&self, text: &str) -> Result<Vec<f32>> {
        match &self.engine {
            #[cfg(feature = "onnx")]
            Engine::Local(local) => local.query(text).map_err(|cause| unusable(&self.source, cause)),
            Engine::Remote(remote) => remote.query(text),
        }
    }

    pub fn bulk(&self) -> Result<Bulk<'_>> {
        let engine = match &self.engine {
            #[cfg(feature = "onnx")]
            Engine::Local(local) => BulkEngine::Local(local.sessions()),
            Engine::Remote(remote) => BulkEngine::Remote(remote),
        };
        Ok(Bulk {
            #[cfg(feature = "onnx")]
            source: &self.source,
            engine,
        })
    }

    /// The cosine of a known question's vector to the one kept with the model; None where none is kept.
    pub fn agreement(&self) -> Result<Option<f32>> {
        let vector = self.query(GOLDEN_TEXT)?;
        if self.source != ModelSource::Builtin {
            return Ok(None);
        }
        Ok(Some(golden().zip(&vector).map(|(kept, found)| kept * found).sum()))
    }
}

impl Bulk<'_> {
    /// Texts × windows × dimensions: a text longer than the model takes has several vectors, one that was not reached
    /// before `stop` has none. Uses all cores.
    pub fn passages(&mut self, texts: &[String], stop: &AtomicBool) -> Result<Vec<Vec<Vec<f32>>>> {
        match &mut self.engine {
            #[cfg(feature = "onnx")]
            BulkEngine::Local(sessions) => sessions.passages(texts, stop).map_err(|cause| unusable(self.source, cause)),
            BulkEngine::Remote(remote) => remote.passages(texts, stop),
        }
    }
}

/// The id an embedder of this model will have, as far as it is known without loading it.
pub fn id(model: &EmbeddingModel) -> Option<String> {
    match &model.source {
        #[cfg(feature = "onnx")]
        ModelSource::Builtin => Some(spec::BUILTIN_ID.into()),
        #[cfg(feature = "onnx")]
        ModelSource::Folder(folder) => spec::id_of_folder(folder).ok(),
        #[cfg(not(feature = "onnx"))]
        ModelSource::Builtin | ModelSource::Folder(_) => None,
        ModelSource::Endpoint { api, model: name, .. } => Some(id_of_endpoint(*api, name, model.dimensions)),
    }
}

/// True once a library of ONNX Runtime is in use by this process.
#[cfg(not(feature = "onnx"))]
pub fn library_is_loaded() -> bool {
    false
}

/// A vector of the model within the program, made by tract, and the question it is of.
pub const GOLDEN_TEXT: &str = "how do I stop the server";

/// Below it, vectors of two engines are not of one model.
pub const LEAST_AGREEMENT: f32 = 0.999;

fn golden() -> impl Iterator<Item = f32> {
    include_bytes!("../../../models/golden.f32").chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]))
}

#[cfg(not(feature = "onnx"))]
const WITHOUT: &str = "this build runs no models";

fn provider(api: EmbeddingApi) -> &'static str {
    match api {
        EmbeddingApi::Ollama => "ollama",
        EmbeddingApi::OpenAi => "openai",
    }
}

fn id_of_endpoint(api: EmbeddingApi, model: &str, dimensions: Option<usize>) -> String {
    let dimensions = dimensions.map_or(String::new(), |n| format!("/{n}"));
    format!("{}/{model}{dimensions}", provider(api))
}

/// A vector of length 1 in the same direction.
fn unit(mut vector: Vec<f32>) -> Result<Vec<f32>, String> {
    let length = vector.iter().map(|x| f64::from(*x) * f64::from(*x)).sum::<f64>().sqrt();
    if !length.is_finite() {
        return Err("it gives values that are not numbers".into());
    }
    if length < 1e-12 {
        return Err("it gives vectors of zeros".into());
    }
    vector.iter_mut().for_each(|x| *x = (f64::from(*x) / length) as f32);
    Ok(vector)
}

/// The error of a model that cannot be used.
fn unusable(source: &ModelSource, cause: String) -> Error {
    let without = !cfg!(feature = "onnx");
    let (endpoint, model, hint) = match source {
        ModelSource::Builtin if without => (String::new(), BUILTIN.to_owned(), "Build without --no-default-features."),
        ModelSource::Builtin => (String::new(), BUILTIN.to_owned(), "Run `kebab-lite doctor`."),
        ModelSource::Folder(folder) => {
            let name = folder.file_name().map_or("model".into(), |name| name.to_string_lossy().into_owned());
            let hint = match without {
                true => "Build without --no-default-features.",
                false => {
                    "Correct the folder or models.embedding.model, or take models.embedding.provider = \"builtin\"."
                }
            };
            (folder.display().to_string(), name, hint)
        }
        ModelSource::Endpoint { address, model, .. } => {
            (address.clone(), model.clone(), "Correct models.embedding.dimensions, or leave it out.")
        }
    };
    Error::ModelUnreachable { endpoint, model, cause, hint: hint.into() }
}

#[cfg(all(test, feature = "onnx"))]
mod tests;
