//! The config file: which keys there are, typed reading of them, and what a path in it may contain.
//!
//! `READ` is the one list of keys this build uses: adding one here and reading it is all a further setting takes.
//! Refuses: defaults and meaning; those are `load`'s.

use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};

use toml::{Table, Value};

use super::Env;
use crate::error::{Error, Result};

/// Keys this build reads.
pub const READ: &[&str] = &[
    "workspace.root",
    "workspace.exclude",
    "workspace.sources",
    "storage.data_dir",
    "ingest.max_file_bytes",
    "ingest.allowed_dirs",
    "ingest.chunking.target_tokens",
    "ingest.chunking.overlap_tokens",
    "ingest.chunking.max_chunk_tokens",
    "index.graph_above",
    "search.default_k",
    "search.fusion.lambda",
    "search.fusion.c",
    "search.snippet_chars",
    "search.stale_threshold_days",
    "models.embedding.provider",
    "models.embedding.model",
    "models.embedding.dimensions",
    "models.embedding.endpoint",
    "models.embedding.request_timeout_secs",
    "models.embedding.onnxruntime",
    "models.reranker.model",
    "models.llm.provider",
    "models.llm.model",
    "models.llm.endpoint",
    "models.llm.temperature",
    "models.llm.seed",
    "models.llm.context_tokens",
    "models.llm.request_timeout_secs",
    "rag.score_gate",
    "rag.max_context_tokens",
    "rag.extractive",
];

/// Keys of one `[[workspace.sources]]`.
const OF_A_SOURCE: &[&str] = &["id", "root", "exclude", "trust_level", "source_type"];

/// Keys and whole tables of the original kebab and of the contract that mean nothing to this build. A table of
/// which one key is read is listed key by key.
const IGNORED: &[&str] = &[
    "schema_version",
    "workspace.include",
    "storage.sqlite",
    "storage.vector_dir",
    "storage.asset_dir",
    "storage.artifact_dir",
    "storage.model_dir",
    "storage.runs_dir",
    "storage.copy_threshold_mb",
    "ingest.max_parallel_extractors",
    "ingest.max_parallel_embeddings",
    "ingest.watch_filesystem",
    "ingest.code",
    "ingest.image",
    "ingest.pdf",
    "ingest.chunking.respect_markdown_headings",
    "ingest.chunking.chunker_version",
    "search.hybrid_fusion",
    "search.rrf_k",
    "search.cache_capacity",
    "chunking",
    "image",
    "indexing",
    "logging",
    "models.embedding.version",
    "models.embedding.batch_size",
    "models.embedding.max_input_tokens",
    "models.nli",
    "parser",
    "pdf",
    "rag.explain_default",
    "rag.multi_hop_max_depth",
    "rag.multi_hop_max_pool_chunks",
    "rag.multi_hop_max_sub_queries",
    "rag.nli_threshold",
    "rag.prompt_template_version",
    "ui",
];

/// A parsed config file; the default is an absent one.
#[derive(Debug, Default)]
pub struct File {
    pub path: Option<PathBuf>,
    table: Table,
}

/// One `[[workspace.sources]]`.
pub struct SourceTable<'a> {
    file: &'a File,
    table: &'a Table,
}

impl File {
    pub fn read(path: PathBuf) -> Result<File> {
        let invalid = |cause: String| Error::ConfigInvalid { path: Some(path.clone()), cause, hint: None };
        let bytes = std::fs::read(&path).map_err(|error| invalid(format!("it cannot be read: {error}")))?;
        let text = std::str::from_utf8(&bytes).map_err(|_| invalid("it is not UTF-8 text".into()))?;
        let text = text.strip_prefix('\u{feff}').unwrap_or(text);
        // The parser's own rendering quotes the line, which may hold a secret; its place is enough.
        let table = text.parse::<Table>().map_err(|error| {
            let line = error.span().map(|span| 1 + text[..span.start].matches('\n').count());
            let place = line.map_or(String::new(), |line| format!("line {line}: "));
            invalid(format!("{place}{}", error.message().trim().replace('\n', ", ")))
        })?;
        Ok(File { path: Some(path), table })
    }

    /// Holds every key against the tables above; the one warning names those that are passed over.
    pub fn check(&self) -> Result<Option<String>> {
        let mut ignored = Vec::new();
        self.check_table("", &self.table, &mut ignored)?;
        for source in self.sources()? {
            if let Some(name) = source.table.keys().find(|name| !OF_A_SOURCE.contains(&name.as_str())) {
                return Err(
                    self.unknown(&format!("workspace.sources.{name}"), nearest(name, OF_A_SOURCE.iter().copied()))
                );
            }
        }
        if ignored.is_empty() {
            return Ok(None);
        }
        let place = self.path.as_deref().map_or(String::new(), |path| format!("{}: ", path.display()));
        Ok(Some(format!("{place}this build does not use: {}", ignored.join(", "))))
    }

    fn check_table(&self, above: &str, table: &Table, ignored: &mut Vec<String>) -> Result<()> {
        for (name, value) in table {
            let key = if above.is_empty() { name.clone() } else { format!("{above}.{name}") };
            if READ.contains(&key.as_str()) {
                continue;
            }
            if IGNORED.contains(&key.as_str()) {
                ignored.push(key);
                continue;
            }
            let is_table = known().any(|known| known.strip_prefix(&key).is_some_and(|rest| rest.starts_with('.')));
            match value {
                Value::Table(inner) if is_table => self.check_table(&key, inner, ignored)?,
                other if is_table => {
                    return Err(self.invalid(&key, format!("found {}, expected a table", described(other))));
                }
                _ => return Err(self.unknown(&key, nearest_key(&key))),
            }
        }
        Ok(())
    }

    /// Relative paths in the file start here.
    pub fn folder<'a>(&'a self, otherwise: &'a Path) -> &'a Path {
        self.path.as_deref().and_then(Path::parent).unwrap_or(otherwise)
    }

    pub fn invalid(&self, key: &str, cause: impl Into<String>) -> Error {
        Error::ConfigInvalid { path: self.path.clone(), cause: format!("{key}: {}", cause.into()), hint: None }
    }

    fn unknown(&self, key: &str, nearest: Option<&str>) -> Error {
        let hint = match nearest {
            _ if key.ends_with("api_key") => {
                "Keys come from the environment only, such as KEBAB_MODELS_LLM_API_KEY; take it out of the file.".into()
            }
            Some(name) => format!("Did you mean `{name}`?"),
            None => format!("Known keys: {}.", READ.join(", ")),
        };
        Error::ConfigInvalid { path: self.path.clone(), cause: format!("{key}: no such key"), hint: Some(hint) }
    }

    pub fn text(&self, key: &str) -> Result<Option<&str>> {
        self.text_in(self.get(key), key)
    }

    pub fn list(&self, key: &str) -> Result<Option<Vec<String>>> {
        self.list_in(self.get(key), key)
    }

    pub fn whole(&self, key: &str, allowed: RangeInclusive<u64>) -> Result<Option<u64>> {
        let Some(value) = self.get(key) else { return Ok(None) };
        match value.as_integer().and_then(|number| u64::try_from(number).ok()) {
            Some(number) if allowed.contains(&number) => Ok(Some(number)),
            _ => {
                let (least, most) = (allowed.start(), allowed.end());
                let cause = format!("found {}, expected a whole number from {least} to {most}", described(value));
                Err(self.invalid(key, cause))
            }
        }
    }

    pub fn number(&self, key: &str, allowed: RangeInclusive<f64>) -> Result<Option<f64>> {
        let Some(value) = self.get(key) else { return Ok(None) };
        match value.as_float().or(value.as_integer().map(|whole| whole as f64)) {
            Some(number) if allowed.contains(&number) => Ok(Some(number)),
            _ => {
                let (least, most) = (allowed.start(), allowed.end());
                Err(self.invalid(key, format!("found {}, expected a number from {least} to {most}", described(value))))
            }
        }
    }

    pub fn flag(&self, key: &str) -> Result<Option<bool>> {
        let Some(value) = self.get(key) else { return Ok(None) };
        let wrong = || self.invalid(key, format!("found {}, expected true or false", described(value)));
        value.as_bool().map(Some).ok_or_else(wrong)
    }

    pub fn sources(&self) -> Result<Vec<SourceTable<'_>>> {
        let key = "workspace.sources";
        let wrong = |value| self.invalid(key, format!("found {}, expected [[{key}]] tables", described(value)));
        let Some(value) = self.get(key) else { return Ok(Vec::new()) };
        let entries = value.as_array().ok_or_else(|| wrong(value))?.iter();
        entries
            .map(|entry| Ok(SourceTable { file: self, table: entry.as_table().ok_or_else(|| wrong(entry))? }))
            .collect()
    }

    fn get(&self, key: &str) -> Option<&Value> {
        let (tables, name) = key.rsplit_once('.').unwrap_or(("", key));
        let mut table = &self.table;
        for part in tables.split('.').filter(|part| !part.is_empty()) {
            table = table.get(part)?.as_table()?;
        }
        table.get(name)
    }

    fn text_in<'a>(&self, value: Option<&'a Value>, key: &str) -> Result<Option<&'a str>> {
        match value {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(other) => Err(self.invalid(key, format!("found {}, expected a string", described(other)))),
        }
    }

    fn list_in(&self, value: Option<&Value>, key: &str) -> Result<Option<Vec<String>>> {
        let wrong = |value| self.invalid(key, format!("found {}, expected a list of strings", described(value)));
        let Some(value) = value else { return Ok(None) };
        let entries = value.as_array().ok_or_else(|| wrong(value))?.iter();
        entries
            .map(|entry| entry.as_str().map(str::to_owned).ok_or_else(|| wrong(entry)))
            .collect::<Result<_>>()
            .map(Some)
    }
}

impl<'a> SourceTable<'a> {
    pub fn text(&self, name: &str) -> Result<Option<&'a str>> {
        self.file.text_in(self.table.get(name), &format!("workspace.sources.{name}"))
    }

    pub fn list(&self, name: &str) -> Result<Option<Vec<String>>> {
        self.file.list_in(self.table.get(name), &format!("workspace.sources.{name}"))
    }
}

/// `~` and `${VAR}`. An unknown or empty variable is an error: `${NOTES}/x` must not become `/x`.
pub fn expand(text: &str, env: Env, home: Option<&Path>) -> Result<String, String> {
    let mut expanded = String::new();
    let mut rest = text;
    if let Some(below) = text.strip_prefix('~')
        && (below.is_empty() || below.starts_with(['/', '\\']))
    {
        let home = home.and_then(Path::to_str).ok_or("`~` stands for the home folder, and none is known")?;
        expanded.push_str(home);
        rest = below;
    }
    while let Some(at) = rest.find("${") {
        let (before, variable) = (&rest[..at], &rest[at + 2..]);
        let (name, behind) = variable.split_once('}').ok_or_else(|| format!("`${{` without `}}` in {text:?}"))?;
        let value = env(name).filter(|value| !value.is_empty());
        expanded.push_str(before);
        expanded.push_str(&value.ok_or_else(|| format!("the variable {name} is not set"))?);
        rest = behind;
    }
    expanded.push_str(rest);
    Ok(expanded)
}

/// The known name closest to a mistyped one, if any is close.
pub fn nearest<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let bound = 1 + name.chars().count() / 4;
    let distances = known.into_iter().map(|candidate| (strsim::osa_distance(name, candidate), candidate));
    distances.filter(|(distance, _)| *distance <= bound).min_by_key(|(distance, _)| *distance).map(|(_, name)| name)
}

/// As `nearest`; a key that stands in the wrong table is recognised by its own name.
fn nearest_key(key: &str) -> Option<&'static str> {
    let last = |key: &'static str| key.rsplit('.').next().unwrap_or(key);
    let own = key.rsplit('.').next().unwrap_or(key);
    let tables = known().filter_map(|key| key.rsplit_once('.')).map(|(table, _)| table);
    nearest(key, known().chain(tables)).or_else(|| {
        let name = nearest(own, READ.iter().copied().map(last))?;
        READ.iter().copied().find(|key| last(key) == name)
    })
}

fn known() -> impl Iterator<Item = &'static str> {
    READ.iter().chain(IGNORED).copied()
}

/// A value as an error shows it: numbers, dates and switches as they are, never the text of a string.
fn described(value: &Value) -> String {
    match value {
        Value::String(_) => "a string".into(),
        Value::Array(_) => "a list".into(),
        Value::Table(_) => "a table".into(),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_key_is_both_read_and_ignored() {
        for key in READ {
            let within =
                |table: &&&str| key.strip_prefix(**table).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'));
            assert_eq!(IGNORED.iter().find(within), None, "{key}");
        }
    }
}
