//! A tool's arguments, by name and type. Messages say which argument is wrong, what was found and what is allowed.
//!
//! Numbers, booleans and lists may come as strings, because some hosts turn everything into strings.

use jiff::Timestamp;
use jiff::civil::Date;
use jiff::tz::TimeZone;
use serde_json::{Map, Value};

use crate::error::{Error, Result};
use crate::model::Id;

pub struct Args {
    map: Map<String, Value>,
    /// Every name asked for, for suggestions.
    known: Vec<&'static str>,
}

impl Args {
    pub fn new(value: Value) -> Result<Args> {
        match value {
            Value::Object(map) => Ok(Args { map, known: Vec::new() }),
            other => Err(Error::input_hint(
                "arguments",
                format!("a JSON object is needed, found {}", shown(&other)),
                "Pass the arguments as {\"query\": \"…\"}.",
            )),
        }
    }

    /// Fails if an argument was not asked for.
    pub fn finish(self) -> Result<()> {
        let Some(unknown) = self.map.keys().next() else { return Ok(()) };
        let similarity = |known: &&&str| (strsim::jaro_winkler(unknown, known) * 1000.0) as u64;
        let hint = match self.known.iter().max_by_key(similarity).filter(|known| similarity(known) > 700) {
            Some(nearest) => format!("Did you mean `{nearest}`? Known are {}.", self.known.join(", ")),
            None => format!("Known are {}.", self.known.join(", ")),
        };
        Err(Error::input_hint(unknown.clone(), "no such argument", hint))
    }

    pub fn text(&mut self, name: &'static str) -> Result<Option<String>> {
        match self.take(name) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(other) => Err(wrong(name, "a string", &other)),
        }
    }

    pub fn required_text(&mut self, name: &'static str) -> Result<String> {
        let missing = || Error::input_hint(name, "it is missing", format!("Add \"{name}\" to the arguments."));
        self.text(name)?.ok_or_else(missing)
    }

    pub fn flag(&mut self, name: &'static str) -> Result<bool> {
        match self.take(name) {
            None => Ok(false),
            Some(Value::Bool(flag)) => Ok(flag),
            Some(Value::String(text)) if text == "true" => Ok(true),
            Some(Value::String(text)) if text == "false" => Ok(false),
            Some(other) => Err(wrong(name, "true or false", &other)),
        }
    }

    pub fn whole(&mut self, name: &'static str, range: std::ops::RangeInclusive<u64>) -> Result<Option<u64>> {
        let needed = match *range.end() {
            u64::MAX => format!("a whole number of at least {}", range.start()),
            end => format!("a whole number from {} to {end}", range.start()),
        };
        let Some(value) = self.take(name) else { return Ok(None) };
        let number = match &value {
            Value::Number(number) => number.as_u64().or_else(|| number.as_f64().and_then(whole)),
            Value::String(text) => text.trim().parse().ok(),
            _ => None,
        };
        match number.filter(|number| range.contains(number)) {
            Some(number) => Ok(Some(number)),
            None => Err(wrong(name, &needed, &value)),
        }
    }

    /// A list of strings; one string stands for a list of it, and a string that is a JSON array for that array.
    pub fn list(&mut self, name: &'static str) -> Result<Vec<String>> {
        let needed = "a list of strings";
        let items = match self.take(name) {
            None => return Ok(Vec::new()),
            Some(Value::Array(items)) => items,
            Some(Value::String(text)) => match serde_json::from_str(&text) {
                Ok(Value::Array(items)) if text.starts_with('[') => items,
                _ => vec![Value::String(text)],
            },
            Some(other) => return Err(wrong(name, needed, &other)),
        };
        if items.len() > MAX_LIST {
            return Err(Error::input(name, format!("at most {MAX_LIST} entries are allowed, found {}", items.len())));
        }
        let texts = items.into_iter().map(|item| match item {
            Value::String(text) => Ok(text),
            other => Err(wrong(name, needed, &other)),
        });
        texts.collect()
    }

    /// A word of a closed set.
    pub fn word<T>(&mut self, name: &'static str, parse: fn(&str) -> Option<T>, choices: &str) -> Result<Option<T>> {
        let Some(text) = self.text(name)? else { return Ok(None) };
        let wrong = || {
            let hint = format!("Use one of {choices}.");
            Error::input_hint(name, format!("{text:?} is not one of {choices}"), hint)
        };
        parse(&text).map(Some).ok_or_else(wrong)
    }

    /// An RFC 3339 time or a date, which stands for its first instant in UTC.
    pub fn time(&mut self, name: &'static str) -> Result<Option<Timestamp>> {
        let Some(text) = self.text(name)? else { return Ok(None) };
        let parsed = text.parse::<Timestamp>().ok().or_else(|| {
            let date: Date = text.parse().ok().filter(|_| !text.contains(['T', ' ', ':']))?;
            Some(date.to_zoned(TimeZone::UTC).ok()?.timestamp())
        });
        let wrong = || {
            let hint = "Write it like 2026-01-31 or 2026-01-31T09:00:00Z.";
            Error::input_hint(name, format!("{text:?} is not an RFC 3339 time"), hint)
        };
        parsed.map(Some).ok_or_else(wrong)
    }

    pub fn id(&mut self, name: &'static str) -> Result<Option<Id>> {
        self.text(name)?.map(|text| parse_id(name, &text)).transpose()
    }

    pub fn ids(&mut self, name: &'static str) -> Result<Vec<Id>> {
        self.list(name)?.iter().map(|text| parse_id(name, text)).collect()
    }

    /// The argument, if given; null is as good as absent.
    fn take(&mut self, name: &'static str) -> Option<Value> {
        self.known.push(name);
        self.map.remove(name).filter(|value| !value.is_null())
    }

    /// Accepts `other` as another name of `name`; both at once are refused as an unknown argument.
    pub fn alias(&mut self, other: &str, name: &'static str) {
        if !self.map.contains_key(name)
            && let Some(value) = self.map.remove(other)
        {
            self.map.insert(name.to_owned(), value);
        }
    }
}

/// Entries of a list: more of them would be a mistake, or an attack on the store's statement size.
const MAX_LIST: usize = 1000;

fn parse_id(name: &str, text: &str) -> Result<Id> {
    let wrong =
        || Error::input_hint(name, format!("{text:?} is not an id"), "An id is 32 hex digits, as hits show it.");
    Id::parse(text).ok_or_else(wrong)
}

fn whole(number: f64) -> Option<u64> {
    (number >= 0.0 && number.fract() == 0.0 && number < 9.0e15).then_some(number as u64)
}

fn wrong(name: &str, needed: &str, found: &Value) -> Error {
    Error::input_hint(
        name,
        format!("{needed} is needed, found {}", shown(found)),
        format!("Pass {needed} as `{name}`."),
    )
}

/// A value as a message shows it: short.
fn shown(value: &Value) -> String {
    let text = value.to_string();
    match text.char_indices().nth(60) {
        Some((at, _)) => format!("{}…", &text[..at]),
        None => text,
    }
}
