//! Which models are used: the tables `models.embedding` and `models.reranker` of the file, and what the environment and
//! the flags say over them.
//!
//! Refuses: opening anything (a model folder or an endpoint may come and go) and a key in the file: keys are read from
//! the environment only, and nothing prints them.

use std::path::{Path, PathBuf};
use std::time::Duration;

use super::{Flags, Layers, Named, Secret, address, invalid_env};
use crate::error::{Error, Result};

#[derive(Debug, Clone, PartialEq)]
pub struct Models {
    /// None: searching is lexical.
    pub embedding: Option<EmbeddingModel>,
    pub reranker: Option<RerankingModel>,
}

/// What makes vectors of texts.
#[derive(Debug, Clone, PartialEq)]
pub struct EmbeddingModel {
    pub source: ModelSource,
    /// What the model is expected to give; None takes what it gives.
    pub dimensions: Option<usize>,
    pub onnxruntime: RuntimeLibrary,
}

#[derive(Debug, Clone, PartialEq)]
pub enum ModelSource {
    /// The model within the program.
    Builtin,
    /// A folder with model.onnx, tokenizer.json and model.toml.
    Folder(PathBuf),
    Endpoint {
        api: EmbeddingApi,
        address: String,
        model: String,
        key: Option<Secret>,
        timeout: Duration,
    },
}

/// How an endpoint is spoken to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EmbeddingApi {
    /// `/api/embed`
    Ollama,
    /// `/v1/embeddings`
    OpenAi,
}

/// A cross-encoder: a folder with model.onnx, tokenizer.json and, if it is not as usual, model.toml.
#[derive(Debug, Clone, PartialEq)]
pub struct RerankingModel {
    pub folder: PathBuf,
    pub onnxruntime: RuntimeLibrary,
}

/// Where the library of ONNX Runtime may be.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct RuntimeLibrary {
    /// Files or folders somebody named, by what, in their order.
    pub named: Vec<(&'static str, PathBuf)>,
    /// Folders to look in after those and the program's own; None looks nowhere.
    pub folders: Option<Vec<PathBuf>>,
}

/// The name of the model within the program.
pub const BUILTIN: &str = "multilingual-e5-small";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Provider {
    Builtin,
    Onnx,
    Ollama,
    OpenAi,
    None,
    /// The local provider of the original kebab: its models are downloaded, so the one within the program stands in.
    Fastembed,
}

const PROVIDERS: &[(&str, Provider)] = &[
    ("builtin", Provider::Builtin),
    ("onnx", Provider::Onnx),
    ("ollama", Provider::Ollama),
    ("openai", Provider::OpenAi),
    ("none", Provider::None),
    ("fastembed", Provider::Fastembed),
];

/// A build without a runtime searches lexically unless an endpoint is named.
const DEFAULT: Provider = if cfg!(feature = "onnx") { Provider::Builtin } else { Provider::None };

const PROVIDER_KEY: &str = "models.embedding.provider";
const MODEL_KEY: &str = "models.embedding.model";
const ENDPOINT_KEY: &str = "models.embedding.endpoint";
const DIMENSIONS_KEY: &str = "models.embedding.dimensions";
const TIMEOUT_KEY: &str = "models.embedding.request_timeout_secs";
const KEY_NAME: &str = "KEBAB_MODELS_EMBEDDING_API_KEY";
const RUNTIME_KEY: &str = "models.embedding.onnxruntime";

pub(super) fn models(flags: &Flags, layers: &Layers, warnings: &mut Vec<String>) -> Result<Models> {
    let onnxruntime = runtime_library(flags, layers)?;
    let reranker = match layers.file.text("models.reranker.model")? {
        None | Some("" | "none") => None,
        Some(text) => {
            let folder = layers.file_path("models.reranker.model", text)?;
            Some(RerankingModel { folder, onnxruntime: onnxruntime.clone() })
        }
    };
    Ok(Models { embedding: embedding(layers, onnxruntime, warnings)?, reranker })
}

fn embedding(
    layers: &Layers,
    onnxruntime: RuntimeLibrary,
    warnings: &mut Vec<String>,
) -> Result<Option<EmbeddingModel>> {
    let (provider, origin) = provider(layers)?;
    let model = layers.text("KEBAB_MODELS_EMBEDDING_MODEL", MODEL_KEY)?;
    let mut dimensions = layers.file.whole(DIMENSIONS_KEY, 0..=65_536)?.map(|n| n as usize);
    let source = match provider {
        Provider::None => return Ok(None),
        Provider::Fastembed => {
            let given = model.map_or("its models".into(), |model| format!("{model:?}"));
            warnings
                .push(format!("{origin}: fastembed downloads {given}; the model within the program is used instead"));
            dimensions = None;
            ModelSource::Builtin
        }
        Provider::Builtin => match model.as_deref() {
            None | Some(BUILTIN) => ModelSource::Builtin,
            Some(other) => {
                return Err(Error::ConfigInvalid {
                    path: layers.file.path.clone(),
                    cause: format!("{MODEL_KEY}: found {other:?}, and the model within the program is {BUILTIN:?}"),
                    hint: Some(format!("For a model of your own set {PROVIDER_KEY} = \"onnx\" and name its folder.")),
                });
            }
        },
        Provider::Onnx => {
            let names = ["", "KEBAB_MODELS_EMBEDDING_MODEL", MODEL_KEY];
            let Some(Named { path, .. }) = layers.path(None, names)? else {
                return Err(layers.file.invalid(MODEL_KEY, "missing; the provider onnx needs the folder of the model"));
            };
            ModelSource::Folder(path)
        }
        Provider::Ollama | Provider::OpenAi => {
            let Some(model) = model else {
                return Err(layers.file.invalid(MODEL_KEY, "missing; an endpoint needs the name of a model"));
            };
            let (api, default) = match provider {
                Provider::Ollama => (EmbeddingApi::Ollama, "http://127.0.0.1:11434"),
                _ => (EmbeddingApi::OpenAi, "https://api.openai.com"),
            };
            let address = endpoint(layers)?.unwrap_or(default.into());
            let key = (layers.env)(KEY_NAME).map_or(Ok(None), |text| Secret::parse(&text));
            let key = key.map_err(|cause| invalid_env(KEY_NAME, cause))?;
            let timeout = Duration::from_secs(layers.file.whole(TIMEOUT_KEY, 1..=3600)?.unwrap_or(60));
            ModelSource::Endpoint { api, address, model, key, timeout }
        }
    };
    // The original writes 0 where it knows of none.
    let dimensions = dimensions.filter(|n| *n > 0);
    Ok(Some(EmbeddingModel { source, dimensions, onnxruntime }))
}

/// The provider and what named it.
fn provider(layers: &Layers) -> Result<(Provider, &'static str)> {
    let name = "KEBAB_MODELS_EMBEDDING_PROVIDER";
    let from_env = (layers.env)(name).filter(|text| !text.is_empty());
    let (text, origin) = match (&from_env, layers.file.text(PROVIDER_KEY)?) {
        (Some(text), _) => (text.trim(), name),
        (None, Some(text)) => (text, PROVIDER_KEY),
        (None, None) => return Ok((DEFAULT, PROVIDER_KEY)),
    };
    if let Some((_, provider)) = PROVIDERS.iter().find(|(name, _)| *name == text) {
        return Ok((*provider, origin));
    }
    let choices = PROVIDERS.iter().filter(|(_, provider)| *provider != Provider::Fastembed).map(|(name, _)| *name);
    let cause = format!("found {text:?}, expected one of: {}", choices.collect::<Vec<_>>().join(", "));
    Err(if from_env.is_some() { invalid_env(name, cause) } else { layers.file.invalid(PROVIDER_KEY, cause) })
}

fn endpoint(layers: &Layers) -> Result<Option<String>> {
    let name = "KEBAB_MODELS_EMBEDDING_ENDPOINT";
    let Some(text) = layers.text(name, ENDPOINT_KEY)? else { return Ok(None) };
    let in_env = (layers.env)(name).is_some_and(|text| !text.is_empty());
    let wrong = |cause| if in_env { invalid_env(name, cause) } else { layers.file.invalid(ENDPOINT_KEY, cause) };
    Ok(Some(address(&text).map_err(wrong)?))
}

/// `none` in the file or the flag turns the search for a library off.
fn runtime_library(flags: &Flags, layers: &Layers) -> Result<RuntimeLibrary> {
    let none = Path::new("none");
    let mut named = Vec::new();
    let mut find = true;
    if let Some(path) = &flags.onnxruntime {
        if path == none {
            return Ok(RuntimeLibrary::default());
        }
        let path = layers.resolve_path(path, layers.cwd).map_err(|reason| Error::input("onnxruntime", reason))?;
        named.push(("--onnxruntime", path));
    }
    if let Some(text) = (layers.env)("ORT_DYLIB_PATH").filter(|text| !text.is_empty()) {
        let path = layers.resolve(&text, layers.cwd).map_err(|cause| invalid_env("ORT_DYLIB_PATH", cause))?;
        named.push(("ORT_DYLIB_PATH", path));
    }
    match layers.file.text(RUNTIME_KEY)? {
        Some("none") => find = false,
        Some(text) => named.push((RUNTIME_KEY, layers.file_path(RUNTIME_KEY, text)?)),
        None => {}
    }
    Ok(RuntimeLibrary { named, folders: find.then(|| library_folders(layers)) })
}

/// Where the loader of the system would look, and where packages put libraries.
fn library_folders(layers: &Layers) -> Vec<PathBuf> {
    let variable = if cfg!(target_os = "macos") { "DYLD_LIBRARY_PATH" } else { "LD_LIBRARY_PATH" };
    let listed = (layers.env)(variable).filter(|_| !cfg!(windows)).unwrap_or_default();
    let mut folders: Vec<PathBuf> = std::env::split_paths(&listed).filter(|path| path.is_absolute()).collect();
    let usual: &[&str] = match () {
        () if cfg!(windows) => &[r"C:\Program Files\onnxruntime\lib"],
        () if cfg!(target_os = "macos") => &["/usr/local/lib", "/opt/homebrew/lib", "/opt/onnxruntime/lib"],
        () => &["/usr/local/lib", "/usr/lib", "/usr/lib64", "/lib64", "/opt/onnxruntime/lib"],
    };
    folders.extend(usual.iter().map(PathBuf::from));
    if cfg!(target_os = "linux") {
        // Debian's and its children's.
        folders.push(format!("/usr/lib/{}-linux-gnu", std::env::consts::ARCH).into());
    }
    folders
}
