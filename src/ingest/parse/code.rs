//! Source code of any language → units, cut where a definition or a paragraph of code begins.
//!
//! Refuses grammars: blank lines, indentation and a table of keywords decide. A wrong guess costs a title, never text.

use super::{BlockKind, Blocks, lines};

/// A unit opens at a line of the outermost level, or of the body of a class and the like, that follows a blank line
/// or holds a definition; comments, attributes and decorators right above a definition belong to it.
pub(super) fn read(blocks: &mut Blocks, separator: &str) {
    let text = blocks.text;
    let mut open: Vec<Definition> = Vec::new();
    let mut unit = Unit { start: blocks.end, indent: 0, path: Vec::new(), named: false };
    let mut after_blank = true;
    let mut lead: Option<usize> = None;
    for (at, line) in lines(text, blocks.end) {
        let code = line.trim_start();
        if code.is_empty() {
            (after_blank, lead) = (true, None);
            continue;
        }
        let indent = columns(&line[..line.len() - code.len()]);
        let is_lead = is_lead(code);
        let outer = open.iter().rposition(|d| d.indent < indent).map_or(0, |i| i + 1);
        // A brace on its own line, a bound or the end of a signature continues the definition above it.
        let continues = code.starts_with(['{', ')']) || code.split_whitespace().next() == Some("where");
        let closes = continues || code.starts_with(['}', ']']) || code == "end" || code.starts_with("end ");
        if !is_lead && !continues {
            open.truncate(outer);
        }
        let innermost = open[..outer].last_mut();
        let in_body = match innermost {
            None => indent == 0,
            Some(around) => around.holds_units && *around.body.get_or_insert(indent) == indent,
        };
        let found = if in_body && !is_lead && !closes { definition(code, outer > 0, separator) } else { None };
        if in_body && !closes && (after_blank || found.is_some()) {
            let start = lead.unwrap_or(at);
            if start > unit.start {
                close(blocks, &unit, start, separator);
                let path = open[..outer].iter().take(MAX_PATH).map(|d| d.name.clone()).collect();
                unit = Unit { start, indent, path, named: false };
            }
        }
        if let Some((mut name, holds_units)) = found {
            name.truncate(name.floor_char_boundary(MAX_NAME));
            if !unit.named && unit.indent == indent {
                unit.path.push(name.clone());
                unit.named = true;
            }
            open.push(Definition { indent, name, holds_units, body: None });
        }
        lead = is_lead.then(|| lead.unwrap_or(at));
        after_blank = false;
    }
    close(blocks, &unit, text.len(), separator);
}

/// Names of definitions around a unit, and bytes of each, that its symbol holds at most: nesting may be endless.
const MAX_PATH: usize = 8;
const MAX_NAME: usize = 128;

/// Between the parts of a symbol.
pub fn separator(lang: &str) -> &'static str {
    if matches!(lang, "rust" | "cpp" | "c") { "::" } else { "." }
}

struct Definition {
    indent: usize,
    name: String,
    holds_units: bool,
    /// The indentation of its first line of body.
    body: Option<usize>,
}

struct Unit {
    start: usize,
    indent: usize,
    path: Vec<String>,
    named: bool,
}

fn close(blocks: &mut Blocks, unit: &Unit, end: usize, separator: &str) {
    let symbol = (!unit.path.is_empty()).then(|| unit.path.join(separator));
    blocks.push_bare(BlockKind::Unit { symbol }, unit.start..end);
}

fn columns(indent: &str) -> usize {
    indent.chars().map(|c| if c == '\t' { 4 } else { 1 }).sum()
}

/// A comment, an attribute or a decorator.
fn is_lead(code: &str) -> bool {
    let hash = code.strip_prefix('#').is_some_and(|rest| rest.is_empty() || rest.starts_with([' ', '[', '!', '#']));
    hash || ["//", "/*", "* ", "*/", "--", ";;", "@", "%%", "(*", "<!--"].iter().any(|mark| code.starts_with(mark))
        || code == "*"
}

/// Keywords that open a definition, and whether units stand inside it.
const KEYWORDS: &[(&str, bool)] = &[
    ("fn", false),
    ("def", false),
    ("defp", false),
    ("defmacro", false),
    ("func", false),
    ("fun", false),
    ("function", false),
    ("sub", false),
    ("proc", false),
    ("procedure", false),
    ("macro", false),
    ("macro_rules!", false),
    ("type", false),
    ("typealias", false),
    ("message", false),
    ("class", true),
    ("struct", true),
    ("enum", true),
    ("union", true),
    ("trait", true),
    ("impl", true),
    ("interface", true),
    ("module", true),
    ("defmodule", true),
    ("mod", true),
    ("namespace", true),
    ("object", true),
    ("protocol", true),
    ("extension", true),
    ("record", true),
    ("actor", true),
    ("contract", true),
    ("library", true),
    ("service", true),
];

/// Words that may stand before a keyword or a return type.
const MODIFIERS: &str = "pub public private protected internal export default async static final abstract override \
     virtual inline constexpr unsafe extern const declare open data sealed suspend partial readonly local unsigned \
     synchronized native tailrec operator infix inner companion case implicit lazy rec crate mut fileprivate";

/// Words that open a statement, however much it looks like a signature.
const STATEMENTS: &str = "if else for while do switch match return throw new await yield assert catch try with using \
     import from include require package print del raise goto typedef delete elif when unless until case select let var val";

/// The name of what a line defines, and whether units stand inside it.
fn definition(code: &str, nested: bool, separator: &str) -> Option<(String, bool)> {
    let code = &code[..code.floor_char_boundary(512)];
    let has = |words: &str, word: &str| words.split_ascii_whitespace().any(|w| w == word);
    let mut rest = code;
    loop {
        let word = &rest[..rest.find(|c: char| !(c.is_alphanumeric() || c == '_' || c == '!')).unwrap_or(rest.len())];
        if let Some((_, holds_units)) = KEYWORDS.iter().find(|(keyword, _)| *keyword == word) {
            let after = &rest[word.len()..];
            if after.starts_with([' ', '\t', '<', '(', '*']) {
                return named(word, after, separator).map(|name| (name, *holds_units));
            }
        }
        if !has(MODIFIERS, word) {
            break;
        }
        rest = rest[word.len()..].trim_start();
        // `pub(crate)`, `extern "C"`.
        for (start, end) in [('(', ')'), ('"', '"')] {
            if let Some((_, after)) = rest.strip_prefix(start).and_then(|rest| rest.split_once(end)) {
                rest = after.trim_start();
            }
        }
    }
    let (before, after) = code.split_once('(').map(|(before, after)| (before.trim_end(), after))?;
    let ends_open = code.trim_end().ends_with(['{', ',', '(', ')']);
    let first = before.split(|c: char| !c.is_alphanumeric()).next()?;
    if has(STATEMENTS, first) && !has(MODIFIERS, first) {
        return None;
    }
    if let Some((name, _)) = code.split_once('=') {
        let is_function = code.contains("=>") || code.contains("function");
        let name = name.trim_end().rsplit([' ', '\t']).next()?;
        let plain = name.chars().all(|c| c.is_alphanumeric() || matches!(c, '_' | '$' | '.'));
        let is_const = code.trim_start_matches("export ").starts_with("const ");
        if is_const && is_function && plain && !name.is_empty() {
            return Some((name.to_owned(), false));
        }
        if before.contains('=') {
            return None;
        }
    }
    let name = identifier_at_end(before)?;
    let typed = before[..before.len() - name.len()].trim_end_matches(['*', '&', ' ', '\t']);
    let has_type = typed.ends_with(|c: char| c.is_alphanumeric() || matches!(c, '_' | '>' | ']' | '?'))
        && !typed.contains(['.', ',', '"', '\'', '(', ')', '=', '+']);
    let shell = after.starts_with(')') && typed.is_empty() && code.trim_end().ends_with('{');
    let method = nested && typed.is_empty() && code.trim_end().ends_with('{');
    ((has_type && ends_open) || shell || method).then(|| (name.to_owned(), false))
}

/// The name after a keyword: past type parameters and a Go receiver, which becomes part of it.
fn named(keyword: &str, after: &str, separator: &str) -> Option<String> {
    let after = skip_angles(after.trim_start_matches([' ', '\t', '*']));
    if keyword == "impl" {
        let head = after.split(['{', '\n']).next()?;
        let head = head.split(" where ").next()?;
        let target = head.rsplit_once(" for ").map_or(head, |(_, target)| target);
        let target = target.trim().trim_start_matches(['&', '*', '\'']);
        let name = target.split(['<', ' ']).next()?.rsplit("::").next()?;
        return (!name.is_empty()).then(|| name.to_owned());
    }
    if keyword == "func" && after.starts_with('(') {
        let (receiver, rest) = after[1..].split_once(')')?;
        let receiver = receiver.split('[').next()?.rsplit([' ', '*']).next()?;
        let name = identifier(rest.trim_start());
        return (!name.is_empty()).then(|| format!("{receiver}{separator}{name}"));
    }
    let name = identifier(after);
    (!name.is_empty() && name != "extends").then(|| name.to_owned())
}

fn skip_angles(text: &str) -> &str {
    if !text.starts_with('<') {
        return text;
    }
    let mut depth = 0;
    for (i, c) in text.char_indices() {
        match c {
            '<' => depth += 1,
            '>' => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return text[i + 1..].trim_start();
        }
    }
    text
}

fn is_name(c: char) -> bool {
    c.is_alphanumeric() || matches!(c, '_' | '$' | '.' | ':' | '~')
}

fn identifier(text: &str) -> &str {
    text[..text.find(|c| !is_name(c)).unwrap_or(text.len())].trim_end_matches(['.', ':'])
}

fn identifier_at_end(text: &str) -> Option<&str> {
    let text = text.trim_end();
    let name = text
        [text.rfind(|c| !is_name(c)).map_or(0, |i| i + text[i..].chars().next().map_or(1, char::len_utf8))..]
        .trim_start_matches(['.', ':']);
    name.starts_with(|c: char| c.is_alphabetic() || matches!(c, '_' | '$' | '~')).then_some(name)
}
