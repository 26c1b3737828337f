//! The arguments of `ask`: its own, and those of `search` that choose documents.

use serde_json::{Map, Value};

use crate::error::{Error, Result};
use crate::tools::search::SearchInput;

/// A question, validated.
#[derive(Debug, Clone, Default)]
pub struct AskInput {
    /// Its query is the question.
    pub search: SearchInput,
    /// None: as configured.
    pub extractive: Option<bool>,
    pub session_id: Option<String>,
    pub multi_hop: bool,
    pub temperature: Option<f64>,
    pub seed: Option<u64>,
    pub explain: bool,
    pub show_citations: bool,
}

/// A longer question is a document; it would leave no room for passages.
const MAX_QUESTION_CHARS: usize = 8_000;

/// What `search` takes and an answer has no use for.
const NOT_OF_ASK: &[&str] = &["max_tokens", "snippet_chars", "cursor", "trace", "drop_weak", "query"];

impl AskInput {
    pub fn from_json(value: Value) -> Result<AskInput> {
        let Value::Object(mut map) = value else {
            let hint = "Pass the arguments as {\"question\": \"…\"}.";
            return Err(Error::input_hint("arguments", "a JSON object is needed", hint));
        };
        let Some(question) = map.remove("question").filter(|question| !question.is_null()) else {
            return Err(Error::input_hint("question", "it is missing", "Add \"question\" to the arguments."));
        };
        let Value::String(question) = question else {
            return Err(Error::input("question", "a string is needed"));
        };
        if question.trim().is_empty() {
            return Err(Error::input_hint("question", "it is empty", "Ask for at least one word."));
        }
        let chars = question.chars().count();
        if chars > MAX_QUESTION_CHARS {
            let hint = "Ask for the point of it; put long texts into the documents.";
            let reason = format!("it has {chars} characters, at most {MAX_QUESTION_CHARS} are allowed");
            return Err(Error::input_hint("question", reason, hint));
        }
        if let Some(filters) = map.remove("filters").filter(|filters| !filters.is_null()) {
            let Value::Object(filters) = filters else {
                return Err(Error::input_hint(
                    "filters",
                    "an object is needed",
                    "Such as {\"path_glob\": \"docs/**\"}.",
                ));
            };
            for (name, value) in filters {
                if matches!(name.as_str(), "mode" | "k") || map.insert(name.clone(), value).is_some() {
                    return Err(Error::input(name, "no filter, or given twice"));
                }
            }
        }
        if let Some(name) = NOT_OF_ASK.iter().find(|name| map.contains_key(**name)) {
            return Err(Error::input_hint(*name, "no such argument", "It is one of search; ask takes `question`."));
        }
        let extractive = flag(&mut map, "extractive")?;
        let input = AskInput {
            extractive,
            session_id: session_id(&mut map)?,
            multi_hop: flag(&mut map, "multi_hop")?.unwrap_or(false),
            temperature: number(&mut map, "temperature", 2.0)?,
            seed: number(&mut map, "seed", f64::from(u32::MAX))?.map(|seed| seed as u64),
            explain: flag(&mut map, "explain")?.unwrap_or(false),
            show_citations: flag(&mut map, "show_citations")?.unwrap_or(false),
            search: {
                map.insert("query".into(), question.into());
                SearchInput::from_json(Value::Object(map))?
            },
        };
        Ok(input)
    }
}

fn take(map: &mut Map<String, Value>, name: &str) -> Option<Value> {
    map.remove(name).filter(|value| !value.is_null())
}

/// Some hosts turn everything into strings.
fn flag(map: &mut Map<String, Value>, name: &str) -> Result<Option<bool>> {
    match take(map, name) {
        None => Ok(None),
        Some(Value::Bool(flag)) => Ok(Some(flag)),
        Some(Value::String(text)) if text == "true" || text == "false" => Ok(Some(text == "true")),
        Some(_) => Err(Error::input(name, "true or false is needed")),
    }
}

fn number(map: &mut Map<String, Value>, name: &str, most: f64) -> Result<Option<f64>> {
    let Some(value) = take(map, name) else { return Ok(None) };
    let number = match &value {
        Value::String(text) => text.trim().parse().ok(),
        other => other.as_f64(),
    };
    let whole = name == "seed";
    match number.filter(|number: &f64| (0.0..=most).contains(number) && (!whole || number.fract() == 0.0)) {
        Some(number) => Ok(Some(number)),
        None => {
            let kind = if whole { "whole number" } else { "number" };
            Err(Error::input(name, format!("a {kind} from 0 to {most} is needed")))
        }
    }
}

/// A name of a session, never a path.
fn session_id(map: &mut Map<String, Value>) -> Result<Option<String>> {
    match take(map, "session_id") {
        None => Ok(None),
        Some(Value::String(id)) => check_session(&id).map(|()| Some(id)),
        Some(_) => Err(Error::input("session_id", "a string is needed")),
    }
}

pub fn check_session(id: &str) -> Result<()> {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-_".contains(&byte);
    if (1..=64).contains(&id.len()) && id.bytes().all(allowed) {
        return Ok(());
    }
    let hint = "Name it with letters, digits, `-` and `_`, such as billing-2.";
    Err(Error::input_hint("session_id", "1 to 64 ASCII letters, digits, `-` and `_` are needed", hint))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn arguments_of_both_kinds() {
        let input = AskInput::from_json(json!({
            "question": "when?", "k": "3", "path_glob": "docs/**", "filters": {"tag": ["ops"]}, "seed": "7",
            "temperature": 0.5, "multi_hop": "true", "extractive": null, "session_id": "a-1_B"
        }))
        .unwrap();
        assert_eq!((input.search.query.as_str(), input.search.k, input.seed), ("when?", Some(3), Some(7)));
        assert_eq!((input.search.filter.tags.clone(), input.temperature), (vec!["ops".to_owned()], Some(0.5)));
        assert!(input.multi_hop && input.extractive.is_none() && input.search.filter.path_glob.is_some());
        assert_eq!(input.session_id.as_deref(), Some("a-1_B"));
    }

    #[test]
    fn wrong_arguments_are_named() {
        for (arguments, field) in [
            (json!([]), "arguments"),
            (json!({}), "question"),
            (json!({"question": 3}), "question"),
            (json!({"question": " \n"}), "question"),
            (json!({"question": "x".repeat(100_000)}), "question"),
            (json!({"question": "x", "query": "y"}), "query"),
            (json!({"question": "x", "cursor": "y"}), "cursor"),
            (json!({"question": "x", "nope": 1}), "nope"),
            (json!({"question": "x", "filters": {"nope": 1}}), "nope"),
            (json!({"question": "x", "filters": {"k": 1}}), "k"),
            (json!({"question": "x", "filters": 1}), "filters"),
            (json!({"question": "x", "lang": "en", "filters": {"lang": "ko"}}), "lang"),
            (json!({"question": "x", "k": 0}), "k"),
            (json!({"question": "x", "temperature": -1}), "temperature"),
            (json!({"question": "x", "temperature": "warm"}), "temperature"),
            (json!({"question": "x", "seed": 1.5}), "seed"),
            (json!({"question": "x", "seed": -1}), "seed"),
            (json!({"question": "x", "multi_hop": 1}), "multi_hop"),
            (json!({"question": "x", "session_id": 1}), "session_id"),
            (json!({"question": "x", "session_id": ""}), "session_id"),
            (json!({"question": "x", "session_id": "../../etc/passwd"}), "session_id"),
            (json!({"question": "x", "session_id": "a b"}), "session_id"),
            (json!({"question": "x", "session_id": "세션"}), "session_id"),
            (json!({"question": "x", "session_id": "x".repeat(65)}), "session_id"),
        ] {
            let Err(Error::InvalidInput { field: found, .. }) = AskInput::from_json(arguments.clone()) else {
                panic!("{arguments} was taken");
            };
            assert_eq!(found, field, "{arguments}");
        }
    }
}
