//! YAML (`---`) and TOML (`+++`) front matter → metadata.
//!
//! Refuses guesses: front matter that does not parse stays in the document as a searchable block.

use jiff::Timestamp;
use jiff::civil;
use jiff::tz::TimeZone;
use saphyr::{LoadableYamlNode, Scalar, Yaml};
use serde_json::{Map, Number, Value};

use super::{BlockKind, Blocks, lines};
use crate::model::{Metadata, Trust};

/// Reads front matter at the start of the text and moves `blocks` past it.
pub(super) fn read(blocks: &mut Blocks, metadata: &mut Metadata) {
    let Some(found) = find(blocks.text, blocks.end) else { return };
    let table = match found.syntax {
        Syntax::Yaml => yaml(found.body),
        Syntax::Toml => toml(found.body),
    };
    match table {
        Some(table) => {
            for (key, value) in table {
                keep(metadata, key, value);
            }
            blocks.end = found.end;
        }
        None if starts_with_key(found.body) => blocks.push(BlockKind::Verbatim, blocks.end..found.end),
        None => {}
    }
}

/// A date or an RFC 3339 time as RFC 3339 in UTC; a time without an offset is taken as UTC.
pub(super) fn normal_time(raw: &str) -> Option<String> {
    let raw = raw.trim();
    let joined = raw.rsplit_once(' ').filter(|(_, offset)| offset.starts_with(['+', '-']));
    let joined = joined.map(|(time, offset)| format!("{time}{offset}"));
    let raw = joined.as_deref().unwrap_or(raw);
    let time = raw.parse::<Timestamp>().ok().or_else(|| {
        let civil = raw.parse::<civil::DateTime>().ok()?;
        Some(civil.to_zoned(TimeZone::UTC).ok()?.timestamp())
    })?;
    Some(time.to_string())
}

/// The lower-case primary tag of a BCP 47 language tag.
pub fn primary_tag(raw: &str) -> Option<String> {
    let tag = raw.trim().split(['-', '_']).next()?.to_ascii_lowercase();
    ((2..=8).contains(&tag.len()) && tag.bytes().all(|b| b.is_ascii_lowercase())).then_some(tag)
}

#[derive(Clone, Copy)]
enum Syntax {
    Yaml,
    Toml,
}

struct Found<'t> {
    syntax: Syntax,
    body: &'t str,
    end: usize,
}

/// The closing fence must come within this many bytes.
const MAX_BYTES: usize = 64 * 1024;
/// Values, nested ones and repeated anchors included.
const MAX_VALUES: usize = 10_000;
/// The YAML loader recurses once a level: a line opens at most half as many levels as it has leading indicators.
const MAX_INDENT: usize = 64;

fn find(text: &str, start: usize) -> Option<Found<'_>> {
    let head = &text[..text.floor_char_boundary(start + MAX_BYTES)];
    let mut lines = lines(head, start);
    let (syntax, closing): (_, &[&str]) = match lines.next()?.1.trim_end() {
        "---" => (Syntax::Yaml, &["---", "..."]),
        "+++" => (Syntax::Toml, &["+++"]),
        _ => return None,
    };
    let mut body = None;
    for (at, line) in lines {
        let body = *body.get_or_insert(at);
        if closing.contains(&line.trim_end()) {
            return Some(Found { syntax, body: &text[body..at], end: at + line.len() });
        }
    }
    None
}

/// Tells broken front matter from a rule between paragraphs.
fn starts_with_key(body: &str) -> bool {
    let line = body.lines().find(|line| !line.trim().is_empty()).unwrap_or("");
    line.split_once([':', '=']).is_some_and(|(key, _)| {
        !key.is_empty() && key.trim_end().chars().all(|c| c.is_alphanumeric() || matches!(c, '_' | '-' | '.'))
    })
}

fn toml(body: &str) -> Option<Map<String, Value>> {
    fn json(value: toml::Value) -> Value {
        match value {
            toml::Value::String(text) => Value::String(text),
            toml::Value::Integer(number) => number.into(),
            toml::Value::Float(number) => number.into(),
            toml::Value::Boolean(flag) => flag.into(),
            toml::Value::Datetime(time) => Value::String(time.to_string()),
            toml::Value::Array(items) => items.into_iter().map(json).collect(),
            toml::Value::Table(table) => table.into_iter().map(|(key, value)| (key, json(value))).collect(),
        }
    }
    let table: toml::Table = body.parse().ok()?;
    Some(table.into_iter().map(|(key, value)| (key, json(value))).collect())
}

fn yaml(body: &str) -> Option<Map<String, Value>> {
    let too_deep = |line: &str| line.bytes().take_while(|b| b" -?:\t".contains(b)).count() > MAX_INDENT;
    if body.lines().any(too_deep) {
        return None;
    }
    let documents = Yaml::load_from_str(body).ok()?;
    let mut left = MAX_VALUES;
    match documents.as_slice() {
        [] => Some(Map::new()),
        [only] => match json(only, &mut left)? {
            Value::Object(table) => Some(table),
            Value::Null => Some(Map::new()),
            _ => None,
        },
        _ => None,
    }
}

/// None if there are too many values or a key that is no scalar.
fn json(yaml: &Yaml, left: &mut usize) -> Option<Value> {
    *left = left.checked_sub(1)?;
    Some(match yaml {
        Yaml::Value(scalar) => match scalar {
            Scalar::Null => Value::Null,
            Scalar::Boolean(flag) => Value::Bool(*flag),
            Scalar::Integer(number) => Value::Number((*number).into()),
            Scalar::FloatingPoint(number) => Number::from_f64(**number).map_or(Value::Null, Value::Number),
            Scalar::String(text) => Value::String(text.to_string()),
        },
        Yaml::Representation(text, ..) => Value::String(text.to_string()),
        Yaml::Tagged(_, inner) => json(inner, left)?,
        Yaml::Sequence(items) => items.iter().map(|item| json(item, left)).collect::<Option<Value>>()?,
        Yaml::Mapping(table) => {
            let mut object = Map::new();
            for (key, value) in table {
                object.insert(scalar_text(&json(key, left)?)?, json(value, left)?);
            }
            Value::Object(object)
        }
        Yaml::Alias(_) | Yaml::BadValue => return None,
    })
}

/// Known keys find their field; a known key with a value of the wrong form stays among the extras, as it was.
fn keep(metadata: &mut Metadata, key: String, value: Value) {
    let text = scalar_text(&value).map(|text| text.trim().to_owned()).filter(|text| !text.is_empty());
    let known = match key.to_ascii_lowercase().as_str() {
        "title" => set(&mut metadata.title, text),
        "source_type" => set(&mut metadata.source_type, text),
        "created" | "date" => set(&mut metadata.created, text.and_then(|text| normal_time(&text))),
        "updated" | "modified" | "lastmod" => set(&mut metadata.updated, text.and_then(|text| normal_time(&text))),
        "trust_level" => set(&mut metadata.trust_level, text.and_then(|text| Trust::parse(&text.to_ascii_lowercase()))),
        "lang" | "language" => match text.and_then(|text| primary_tag(&text)) {
            Some(lang) => {
                metadata.lang = lang;
                true
            }
            None => false,
        },
        "tags" => list(&mut metadata.tags, &value, ","),
        "aliases" => list(&mut metadata.aliases, &value, "\n"),
        _ => false,
    };
    if !known {
        metadata.extra.insert(key, value);
    }
}

/// Of two keys of one meaning the first by alphabet wins: `created` over `date`.
fn set<T>(field: &mut Option<T>, value: Option<T>) -> bool {
    let fits = value.is_some() && field.is_none();
    if fits {
        *field = value;
    }
    fits
}

fn list(field: &mut Vec<String>, value: &Value, separator: &str) -> bool {
    let items: Option<Vec<String>> = match value {
        Value::Array(items) => items.iter().map(scalar_text).collect(),
        Value::Null => Some(Vec::new()),
        other => scalar_text(other).map(|text| text.split(separator).map(str::to_owned).collect()),
    };
    let Some(items) = items else { return false };
    for item in items {
        let item = item.trim();
        if !item.is_empty() && !field.iter().any(|known| known == item) {
            field.push(item.to_owned());
        }
    }
    true
}

fn scalar_text(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        Value::Bool(flag) => Some(flag.to_string()),
        Value::Null | Value::Array(_) | Value::Object(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn read_all(text: &str) -> (Metadata, usize) {
        let (mut blocks, mut metadata) = (Blocks::new(text), Metadata::default());
        read(&mut blocks, &mut metadata);
        (metadata, blocks.end)
    }

    #[test]
    fn known_keys_find_their_fields_and_others_are_kept() {
        let text = "\u{FEFF}---\r\nTitle: 안녕\r\ntags: a, b,a\r\nlanguage: ko-KR\r\ndate: 2024-05-06\r\n\
                    modified: 2024-05-06 10:00:00 +0900\r\ntrust_level: primary\r\naliases:\r\n- x, y\r\n\
                    created: 2020-01-01\r\ndraft: true\r\nweight: 3\r\n---\r\n# H\r\n";
        let (metadata, end) = read_all(text);
        assert_eq!(&text[end..], "\r\n# H\r\n");
        assert_eq!(metadata.title.as_deref(), Some("안녕"));
        assert_eq!((metadata.tags, metadata.aliases), (vec!["a".to_owned(), "b".into()], vec!["x, y".to_owned()]));
        assert_eq!((metadata.lang.as_str(), metadata.trust_level), ("ko", Some(Trust::Primary)));
        assert_eq!(metadata.created.as_deref(), Some("2020-01-01T00:00:00Z"));
        assert_eq!(metadata.updated.as_deref(), Some("2024-05-06T01:00:00Z"));
        let extra = json!({"date": "2024-05-06", "draft": true, "weight": 3});
        assert_eq!(Value::Object(metadata.extra), extra);
    }

    #[test]
    fn toml_front_matter_is_read() {
        let (metadata, end) =
            read_all("+++\ntitle = \"T\"\ndate = 2024-05-06T07:08:09+09:00\n[extra]\nx = [1]\n+++\nbody");
        assert_eq!((metadata.title.as_deref(), end), (Some("T"), 68));
        assert_eq!(metadata.created.as_deref(), Some("2024-05-05T22:08:09Z"));
        assert_eq!(Value::Object(metadata.extra), json!({"extra": {"x": [1]}}));
    }

    #[test]
    fn a_value_of_the_wrong_form_is_an_extra() {
        let (metadata, _) = read_all("---\ntrust_level: high\ndate: soon\nlang: 한국어\ntags: [[1]]\n---\n");
        let extra = json!({"trust_level": "high", "date": "soon", "lang": "한국어", "tags": [[1]]});
        assert_eq!((Value::Object(metadata.extra), metadata.created, metadata.lang), (extra, None, String::new()));
    }

    #[test]
    fn what_is_not_front_matter_stays_text() {
        for text in ["---\ntitle: x\n", "---\nsome prose\n---\n", "text\n---\na: 1\n---\n", "----\na: 1\n----\n"] {
            assert_eq!(read_all(text), (Metadata::default(), 0), "{text}");
        }
        let (metadata, end) = read_all("---\ntitle: a: b: c\n---\nbody");
        assert_eq!((metadata, end), (Metadata::default(), 22));
    }

    #[test]
    fn hostile_front_matter_is_refused_quickly() {
        let laughs: String =
            (1..20).map(|i| format!("k{i}: &a{i} [{}]\n", format!("*a{},", i - 1).repeat(9))).collect();
        let wide: String = (0..9_000).map(|i| format!("k{i}:\n")).collect();
        for body in
            [format!("k0: &a0 x\n{laughs}"), "- ".repeat(30_000), "[".repeat(60_000), "{a: ".repeat(15_000), wide]
        {
            let (metadata, _) = read_all(&format!("---\n{body}\n---\n"));
            assert!(metadata.extra.is_empty());
        }
        let (metadata, _) = read_all(&format!("+++\na = {}\n+++\n", "[".repeat(60_000)));
        assert!(metadata.extra.is_empty());
    }
}
