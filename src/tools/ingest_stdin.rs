//! `ingest_stdin`: a text that lies in no file into the index, as a markdown document.

use std::sync::atomic::AtomicBool;

use serde_json::Value;

use super::args::Args;
use super::ingest_file::{WAIT, tags, title};
use crate::error::{Error, Result};
use crate::ingest::{self, parse};
use crate::kb::Kb;
use crate::model::{Given, Trust};
use crate::wire::IngestReport;

/// A text to be ingested, and what its caller says about it: a title at least.
#[derive(Debug, Clone, PartialEq)]
pub struct Input {
    pub text: String,
    pub given: Given,
}

impl Input {
    pub fn from_json(value: Value) -> Result<Input> {
        let mut args = Args::new(value)?;
        args.alias("tag", "tags");
        let text = args.required_text("text")?;
        let title = title(Some(args.required_text("title")?))?;
        let given = Given {
            title,
            tags: tags(args.list("tags")?),
            lang: args.text("lang")?.map(|lang| language(&lang)).transpose()?,
            trust_level: args.word("trust_level", Trust::parse, &Trust::choices())?,
            source_type: Some(SOURCE_TYPE.into()),
            source_uri: args.text("source_uri")?.map(|uri| uri.trim().to_owned()).filter(|uri| !uri.is_empty()),
        };
        args.finish()?;
        if text.trim().is_empty() {
            return Err(Error::input_hint("text", "it is empty", "Pass the text to be stored."));
        }
        let trust_level = given.trust_level.or_else(|| Some(own_trust(&text)));
        Ok(Input { given: Given { trust_level, ..given }, text })
    }
}

/// `stop` ends the wait for another writer.
pub fn run(kb: &Kb, input: &Input, stop: &AtomicBool) -> Result<IngestReport> {
    ingest::text(kb, &input.text, &input.given, WAIT, stop)
}

const SOURCE_TYPE: &str = "stdin";

/// A text from anywhere may lower the trust in it, not raise it.
fn own_trust(text: &str) -> Trust {
    let own = parse::parse("text.md", text).metadata.trust_level;
    own.map_or(Trust::Secondary, |own| own.min(Trust::Secondary))
}

fn language(tag: &str) -> Result<String> {
    let wrong = || Error::input_hint("lang", format!("{tag:?} is not a language"), "Write it like en or ko.");
    parse::primary_tag(tag).ok_or_else(wrong)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn read(value: Value) -> Result<Given, String> {
        Input::from_json(value).map(|input| input.given).map_err(|error| error.to_string())
    }

    #[test]
    fn trust_is_secondary_unless_given_or_lowered() {
        let trust = |text: &str, given: Option<&str>| {
            read(json!({"text": text, "title": "T", "trust_level": given})).unwrap().trust_level.unwrap()
        };
        assert_eq!(trust("plain", None), Trust::Secondary);
        assert_eq!(trust("plain", Some("primary")), Trust::Primary);
        assert_eq!(trust("---\ntrust_level: primary\n---\nx", None), Trust::Secondary);
        assert_eq!(trust("---\ntrust_level: generated\n---\nx", None), Trust::Generated);
    }

    #[test]
    fn arguments_are_cleaned_or_refused() {
        let given = read(json!({"text": "x", "title": "T", "lang": "KO-kr", "tags": "a", "source_uri": " "})).unwrap();
        let expected = Given {
            title: Some("T".into()),
            tags: vec!["a".into()],
            lang: Some("ko".into()),
            trust_level: Some(Trust::Secondary),
            source_type: Some("stdin".into()),
            source_uri: None,
        };
        assert_eq!(given, expected);
        for (value, message) in [
            (json!({"title": "T"}), "text: it is missing"),
            (json!({"text": "x"}), "title: it is missing"),
            (json!({"text": " \n", "title": "T"}), "text: it is empty"),
            (json!({"text": "x", "title": ""}), "title: it is empty"),
            (json!({"text": "x", "title": "T", "lang": "한국어"}), "lang: \"한국어\" is not a language"),
            (json!({"text": "x", "title": "T", "url": "u"}), "url: no such argument"),
        ] {
            assert_eq!(read(value).unwrap_err(), message);
        }
    }
}
