//! reStructuredText, AsciiDoc, Org and plain paragraphs → blocks, line by line.
//!
//! Refuses inline markup and everything else that does not decide where a section or a block begins.

use std::collections::HashMap;
use std::ops::Range;

use super::{BlockKind, Blocks, front_matter, lines, title_of};
use crate::model::Metadata;

/// A title is underlined, or under- and overlined, with one punctuation character; levels follow the order in which
/// the styles appear. Directives with their indented bodies, literal blocks and tables stay whole.
pub(super) fn read_rst(blocks: &mut Blocks) {
    let text = blocks.text;
    let lines: Vec<(usize, &str)> = lines(text, blocks.end).collect();
    let mut styles: Vec<(u8, bool)> = Vec::new();
    let mut i = 0;
    while i < lines.len() {
        let line = lines[i].1;
        if is_blank(line) {
            i += 1;
            continue;
        }
        if let Some((title, style, used)) = rst_title(&lines[i..]) {
            let level = styles.iter().position(|known| *known == style).unwrap_or_else(|| {
                styles.push(style);
                styles.len() - 1
            });
            let kind = BlockKind::Heading { level: (level + 1).min(6) as u8, title: title_of(title) };
            blocks.push(kind, span(&lines, i..i + used));
            i += used;
            continue;
        }
        let mut end = i + 1;
        let explicit = line.trim_start().starts_with(".. ") || line.trim() == "..";
        if !explicit {
            end += lines[end..].iter().take_while(|(_, line)| !is_blank(line)).count();
        }
        let literal = lines[end - 1].1.trim_end().ends_with("::");
        if explicit || literal {
            blocks.push(BlockKind::Prose, if explicit { 0..0 } else { span(&lines, i..end) });
            let start = if explicit { i } else { end };
            let margin = indent(line);
            while end < lines.len() && (is_blank(lines[end].1) || indent(lines[end].1) > margin) {
                end += 1;
            }
            blocks.push(BlockKind::Verbatim, span(&lines, start..end));
        } else {
            let table = is_rule(line, b"+-=|") || is_rule(line, b"= ");
            blocks.push(if table { BlockKind::Verbatim } else { BlockKind::Prose }, span(&lines, i..end));
        }
        i = end;
    }
}

/// `= Title`, and blocks between two equal delimiter lines kept whole; a delimiter without its twin is prose.
pub(super) fn read_asciidoc(blocks: &mut Blocks) {
    let lines: Vec<(usize, &str)> = lines(blocks.text, blocks.end).collect();
    let mut last: HashMap<&str, usize> = HashMap::new();
    for (i, (_, line)) in lines.iter().enumerate() {
        if is_asciidoc_delimiter(line.trim_end()) {
            last.insert(line.trim_end(), i);
        }
    }
    read_marked(blocks, &lines, |i, line| {
        let delimiter = line.trim_end();
        if last.get(delimiter).is_some_and(|&last| last > i) {
            let inside = lines[i + 1..].iter().take_while(|(_, line)| line.trim_end() != delimiter).count();
            return Mark::Whole(inside + 2);
        }
        heading(line, b'=')
    });
}

/// `* Title` without its keyword and tags; `#+BEGIN_…` to `#+END_…` kept whole; the document's own keywords.
pub(super) fn read_org(blocks: &mut Blocks, metadata: &mut Metadata) {
    let lines: Vec<(usize, &str)> = lines(blocks.text, blocks.end).collect();
    let mut last: HashMap<String, usize> = HashMap::new();
    for (i, (_, line)) in lines.iter().enumerate() {
        if let Some((key, value)) = org_keyword(line) {
            match key.strip_prefix("end_") {
                Some(kind) => drop(last.insert(kind.to_owned(), i)),
                None => keep_org(metadata, &key, value),
            }
        }
    }
    read_marked(blocks, &lines, |i, line| {
        if let Some((key, _)) = org_keyword(line)
            && let Some(kind) = key.strip_prefix("begin_")
            && last.get(kind).is_some_and(|&last| last > i)
        {
            let is_end = |line: &str| org_keyword(line).is_some_and(|(key, _)| key.strip_prefix("end_") == Some(kind));
            let inside = lines[i + 1..].iter().take_while(|(_, line)| !is_end(line)).count();
            return Mark::Whole(inside + 2);
        }
        match heading(line, b'*') {
            Mark::Heading(level, title) => Mark::Heading(level, org_title(title)),
            other => other,
        }
    });
}

/// Paragraphs, parted by blank lines.
pub(super) fn read_paragraphs(blocks: &mut Blocks) {
    let lines: Vec<(usize, &str)> = lines(blocks.text, blocks.end).collect();
    read_marked(blocks, &lines, |_, _| Mark::None);
}

enum Mark<'t> {
    None,
    Heading(u8, &'t str),
    /// So many lines, this one included, belong together.
    Whole(usize),
}

fn read_marked<'t>(blocks: &mut Blocks, lines: &[(usize, &'t str)], mark: impl Fn(usize, &'t str) -> Mark<'t>) {
    let mut paragraph = 0..0;
    let mut i = 0;
    while i < lines.len() {
        let found = mark(i, lines[i].1);
        let blank = is_blank(lines[i].1);
        if blank || !matches!(found, Mark::None) {
            blocks.push(paragraph_kind(lines, &paragraph), span(lines, paragraph.clone()));
        }
        let used = match found {
            Mark::Heading(level, title) => {
                blocks.push(BlockKind::Heading { level, title: title_of(title) }, span(lines, i..i + 1));
                1
            }
            Mark::Whole(count) => {
                blocks.push(BlockKind::Verbatim, span(lines, i..i + count));
                count
            }
            Mark::None if !blank => {
                i += 1;
                paragraph.end = i;
                continue;
            }
            Mark::None => 1,
        };
        i += used;
        paragraph = i..i;
    }
    blocks.push(paragraph_kind(lines, &paragraph), span(lines, paragraph.clone()));
}

fn paragraph_kind(lines: &[(usize, &str)], paragraph: &Range<usize>) -> BlockKind {
    let table = lines[paragraph.clone()].iter().all(|(_, line)| line.trim_start().starts_with('|'));
    if table { BlockKind::Verbatim } else { BlockKind::Prose }
}

/// The bytes of a range of lines.
fn span(lines: &[(usize, &str)], range: Range<usize>) -> Range<usize> {
    match lines.get(range.clone()) {
        Some([(first, line)]) => *first..first + line.len(),
        Some([(first, _), .., (last, line)]) => *first..last + line.len(),
        Some([]) | None => 0..0,
    }
}

/// The title, its style and the number of lines it takes.
fn rst_title<'t>(lines: &[(usize, &'t str)]) -> Option<(&'t str, (u8, bool), usize)> {
    let line = |i: usize| lines.get(i).map_or("", |(_, line)| line.trim_end());
    if let Some(mark) = adornment(line(0)) {
        let boxed = !is_blank(line(1)) && line(2).len() == line(0).len() && adornment(line(2)) == Some(mark);
        return boxed.then(|| (line(1), (mark, true), 3));
    }
    let mark = adornment(line(1))?;
    let long_enough = line(1).len() >= line(0).chars().count();
    (long_enough && !line(0).starts_with([' ', '\t'])).then(|| (line(0), (mark, false), 2))
}

/// The character of a line of three or more equal punctuation characters.
fn adornment(line: &str) -> Option<u8> {
    let &mark = line.as_bytes().first()?;
    (line.len() >= 3 && mark.is_ascii_punctuation() && line.bytes().all(|b| b == mark)).then_some(mark)
}

fn is_rule(line: &str, marks: &[u8]) -> bool {
    let line = line.trim();
    line.len() >= 3 && line.as_bytes().first() == marks.first() && line.bytes().all(|b| marks.contains(&b))
}

fn is_blank(line: &str) -> bool {
    line.trim().is_empty()
}

fn indent(line: &str) -> usize {
    line.len() - line.trim_start_matches([' ', '\t']).len()
}

/// One or more marks, white space, words.
fn heading(line: &str, mark: u8) -> Mark<'_> {
    let level = line.bytes().take_while(|b| *b == mark).count();
    let rest = &line[level..];
    match level > 0 && rest.starts_with([' ', '\t']) && !is_blank(rest) {
        true => Mark::Heading(level.min(6) as u8, rest.trim()),
        false => Mark::None,
    }
}

fn is_asciidoc_delimiter(line: &str) -> bool {
    let table = line.strip_suffix("===").is_some_and(|mark| matches!(mark, "|" | "," | ":" | "!"));
    let fence = line == "--" || line == "```";
    table || fence || (line.len() >= 4 && adornment(line).is_some_and(|mark| b"-.=*_+/".contains(&mark)))
}

/// `#+KEY: value` and `#+KEY value`, the key in lower case.
fn org_keyword(line: &str) -> Option<(String, &str)> {
    let rest = line.trim_start().strip_prefix("#+")?;
    let (key, value) = rest.split_once([':', ' ', '\t']).unwrap_or((rest, ""));
    let key = key.trim_end();
    (key.len() <= 32).then(|| (key.to_ascii_lowercase(), value.trim()))
}

fn keep_org(metadata: &mut Metadata, key: &str, value: &str) {
    match key {
        "title" if metadata.title.is_none() && !value.is_empty() => metadata.title = Some(title_of(value)),
        "filetags" => {
            let tags = value.split([':', ' ']).filter(|tag| !tag.is_empty()).map(str::to_owned);
            metadata.tags.extend(tags);
        }
        "language" => {
            if let Some(lang) = front_matter::primary_tag(value) {
                metadata.lang = lang;
            }
        }
        "date" if metadata.created.is_none() => {
            let day = value.trim_matches(['<', '>', '[', ']']).split(' ').next().unwrap_or(value);
            metadata.created = front_matter::normal_time(day);
        }
        _ => {}
    }
}

/// Without `TODO` or `DONE` in front and `:tag:` behind.
fn org_title(raw: &str) -> &str {
    let raw = ["TODO ", "DONE "].iter().find_map(|keyword| raw.strip_prefix(keyword)).unwrap_or(raw).trim();
    match raw.rsplit_once([' ', '\t']) {
        Some((title, tags)) if tags.len() > 2 && tags.starts_with(':') && tags.ends_with(':') => title.trim_end(),
        _ => raw,
    }
}
