//! What is to be known of a model beside its graph: dimensions, prefixes, pooling, length. The model within the program
//! is described here, a folder describes itself in its model.toml.
//!
//! Refuses: guessing. A key that is missing where no default fits, a misspelt one and a value out of range are errors.

use std::fs::File;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use super::runtime::Graph;

/// How texts become what the graph takes, and what it gives becomes a vector.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Spec {
    pub dimensions: usize,
    #[serde(default)]
    pub query_prefix: String,
    #[serde(default)]
    pub passage_prefix: String,
    #[serde(default)]
    pub pooling: Pooling,
    /// False where the graph gives unit vectors already; it is held to that.
    #[serde(default = "yes")]
    pub normalize: bool,
    #[serde(default = "usual_length")]
    pub max_tokens: usize,
    /// The output to take; without it the first.
    #[serde(default)]
    pub output: Option<String>,
}

/// How the vectors of tokens become one.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Pooling {
    /// The graph gives one vector.
    None,
    #[default]
    Mean,
    /// The first token's.
    Cls,
}

fn yes() -> bool {
    true
}

fn usual_length() -> usize {
    512
}

/// The files of a model.
pub struct Files {
    pub graph: Graph<'static>,
    pub tokenizer: Tokenizer,
}

pub enum Tokenizer {
    Bytes(&'static [u8]),
    File(PathBuf),
}

/// Names the weights, the vocabulary and the prefixes within the program: vectors made under another name are not
/// comparable to these.
pub const BUILTIN_ID: &str = "multilingual-e5-small-q4-b03acd6d";

pub const GRAPH: &str = "model.onnx";
pub const TOKENIZER: &str = "tokenizer.json";
pub const DESCRIPTION: &str = "model.toml";

pub fn builtin() -> (Spec, Files) {
    let spec = Spec {
        dimensions: 384,
        query_prefix: "query: ".into(),
        passage_prefix: "passage: ".into(),
        pooling: Pooling::None,
        normalize: false,
        max_tokens: 512,
        output: Some("sentence_embedding".into()),
    };
    let files = Files {
        graph: Graph::Bytes(include_bytes!("../../../models/model.onnx")),
        tokenizer: Tokenizer::Bytes(include_bytes!("../../../models/tokenizer.json")),
    };
    (spec, files)
}

/// The files of a folder, which must be there.
pub fn files(folder: &Path) -> Result<Files, String> {
    for name in [GRAPH, TOKENIZER] {
        if !folder.join(name).is_file() {
            return Err(format!("there is no {name} in {}", folder.display()));
        }
    }
    Ok(Files { graph: Graph::File(folder.join(GRAPH)), tokenizer: Tokenizer::File(folder.join(TOKENIZER)) })
}

/// A folder's model.toml, as a T; None if there is none.
pub fn description<T: for<'d> Deserialize<'d>>(folder: &Path) -> Result<Option<T>, String> {
    let text = match std::fs::read_to_string(folder.join(DESCRIPTION)) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(format!("{DESCRIPTION}: {error}")),
    };
    match toml::from_str(&text) {
        Ok(description) => Ok(Some(description)),
        Err(error) => Err(format!("{DESCRIPTION}: {}", error.message().replace('\n', ", "))),
    }
}

pub fn of_folder(folder: &Path) -> Result<Spec, String> {
    let spec: Spec = description(folder)?
        .ok_or_else(|| format!("there is no {DESCRIPTION} in {}: it tells the dimensions", folder.display()))?;
    let in_range = |name: &str, value: usize, least: usize, most: usize| match (least..=most).contains(&value) {
        true => Ok(()),
        false => Err(format!("{DESCRIPTION}: {name} is {value}, expected {least} to {most}")),
    };
    in_range("dimensions", spec.dimensions, 1, 65_536)?;
    in_range("max_tokens", spec.max_tokens, 16, 131_072)?;
    Ok(spec)
}

/// A name for what is in the folder: any change of its files changes it.
pub fn id_of_folder(folder: &Path) -> Result<String, String> {
    let entries = std::fs::read_dir(folder).map_err(|error| error.to_string())?;
    let mut names: Vec<String> = entries.flatten().filter_map(|entry| entry.file_name().into_string().ok()).collect();
    // A large model keeps its weights in files beside the graph.
    names.retain(|name| name.starts_with(GRAPH) || name == TOKENIZER || name == DESCRIPTION);
    names.sort();
    let mut hasher = blake3::Hasher::new();
    for name in names {
        let file = File::open(folder.join(&name)).map_err(|error| format!("{name}: {error}"))?;
        let length = file.metadata().map_err(|error| format!("{name}: {error}"))?.len();
        hasher.update(&(name.len() as u64).to_le_bytes()).update(name.as_bytes()).update(&length.to_le_bytes());
        hasher.update_reader(file).map_err(|error| format!("{name}: {error}"))?;
    }
    let name = folder.file_name().map_or("model".into(), |name| name.to_string_lossy());
    Ok(format!("{name}-{}", &hasher.finalize().to_hex()[..12]))
}
