//! `ingest_file`: one file into the index, without a walk over the rest.

use std::path::PathBuf;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use serde_json::Value;

use super::args::Args;
use crate::error::{Error, Result};
use crate::ingest;
use crate::kb::Kb;
use crate::model::Given;
use crate::wire::IngestReport;

/// A file to be ingested, and what its caller says about it.
#[derive(Debug, Clone, PartialEq)]
pub struct Input {
    /// Absolute, or relative to the main root.
    pub path: PathBuf,
    pub given: Given,
}

impl Input {
    pub fn from_json(value: Value) -> Result<Input> {
        let mut args = Args::new(value)?;
        args.alias("tag", "tags");
        let path = args.required_text("path")?;
        let given = Given { title: title(args.text("title")?)?, tags: tags(args.list("tags")?), ..Given::default() };
        args.finish()?;
        if path.is_empty() {
            return Err(Error::input_hint("path", "it is empty", "Name a file."));
        }
        Ok(Input { path: path.into(), given })
    }
}

/// `stop` ends the wait for another writer.
pub fn run(kb: &Kb, input: &Input, stop: &AtomicBool) -> Result<IngestReport> {
    ingest::file(kb, &input.path, &input.given, WAIT, stop)
}

/// How long to wait for another writer.
pub(super) const WAIT: Duration = Duration::from_secs(30);

/// Titles are searched with every passage of their document.
const MAX_TITLE_CHARS: usize = 300;

/// On one line, as titles are.
pub(super) fn title(title: Option<String>) -> Result<Option<String>> {
    let Some(title) = title else { return Ok(None) };
    let words: Vec<&str> =
        title.split(|c: char| c.is_whitespace() || c.is_control()).filter(|w| !w.is_empty()).collect();
    let title = words.join(" ");
    match title.chars().count() {
        0 => Err(Error::input_hint("title", "it is empty", "Give a title of at least one word.")),
        chars if chars > MAX_TITLE_CHARS => {
            let reason = format!("{chars} characters are more than {MAX_TITLE_CHARS}");
            Err(Error::input_hint("title", reason, "Shorten the title."))
        }
        _ => Ok(Some(title)),
    }
}

/// Without blank and repeated ones.
pub(super) fn tags(given: Vec<String>) -> Vec<String> {
    let mut tags: Vec<String> = Vec::new();
    for tag in given {
        let tag = tag.trim();
        if !tag.is_empty() && !tags.iter().any(|known| known == tag) {
            tags.push(tag.to_owned());
        }
    }
    tags
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn titles_are_one_line_and_tags_differ() {
        let input = Input::from_json(json!({"path": "a.md", "title": " Two\n words ", "tag": ["x", " x", "", "y"]}));
        let given = Given { title: Some("Two words".into()), tags: vec!["x".into(), "y".into()], ..Given::default() };
        assert_eq!(input.unwrap(), Input { path: "a.md".into(), given });
    }

    #[test]
    fn wrong_arguments_are_named() {
        let long = "x".repeat(301);
        for (value, message) in [
            (json!({}), "path: it is missing"),
            (json!({"path": ""}), "path: it is empty"),
            (json!({"path": "a", "title": " \n"}), "title: it is empty"),
            (json!({"path": "a", "title": long}), "title: 301 characters are more than 300"),
            (json!({"path": "a", "lang": "en"}), "lang: no such argument"),
        ] {
            assert_eq!(Input::from_json(value).unwrap_err().to_string(), message);
        }
    }
}
