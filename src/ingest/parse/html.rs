//! HTML → blocks of the raw source, and what a person reads of a piece of it.
//!
//! Refuses a tree: start and end tags are taken as they come, so broken pages lose no text. Scripts, styles,
//! navigation and the like are in no block.

use std::convert::Infallible;
use std::ops::Range;

use html5gum::emitters::callback::{CallbackEmitter, CallbackEvent};
use html5gum::{Span, Tokenizer};

use super::{BlockKind, Blocks, front_matter, title_of};
use crate::model::Metadata;

/// Blocks begin and end at words or at `<pre>` tags, so each is readable without what surrounds it.
pub(super) fn read(blocks: &mut Blocks, metadata: &mut Metadata) {
    let from = blocks.end;
    let mut open: Option<Range<usize>> = None;
    let mut heading: Option<(u8, String)> = None;
    let mut title = String::new();
    let (mut pre, mut tables) = (0usize, 0usize);
    let text = blocks.text;
    walk(&text[from..], &mut |event, range| {
        let range = from + range.start..from + range.end;
        let kind = if pre + tables > 0 { BlockKind::Verbatim } else { BlockKind::Prose };
        match event {
            Event::Lang(lang) => {
                if metadata.lang.is_empty()
                    && let Some(lang) = front_matter::primary_tag(lang)
                {
                    metadata.lang = lang;
                }
            }
            Event::Title(words) => title.push_str(words),
            Event::Text(words) => {
                if let Some((_, raw)) = &mut heading {
                    raw.push_str(words);
                }
                if open.is_some() || !words.trim().is_empty() {
                    open = Some(open.take().map_or(range.start, |open| open.start)..range.end);
                }
            }
            Event::Tag { name, is_end } => match role(name) {
                Role::Cell if tables > 0 => {}
                Role::Inline | Role::LineBreak => {}
                Role::Heading(level) => {
                    match heading.take() {
                        Some((level, raw)) => {
                            flush(blocks, &mut open, BlockKind::Heading { level, title: title_of(&raw) })
                        }
                        None => flush(blocks, &mut open, kind),
                    }
                    heading = (!is_end).then(|| (level, String::new()));
                }
                Role::Pre if is_end => {
                    if let Some(open) = &mut open {
                        open.end = range.end;
                    }
                    flush(blocks, &mut open, kind);
                    pre = pre.saturating_sub(1);
                }
                Role::Pre => {
                    flush(blocks, &mut open, kind);
                    pre += 1;
                    open = Some(range);
                }
                Role::Table => {
                    flush(blocks, &mut open, kind);
                    tables = if is_end { tables.saturating_sub(1) } else { tables + 1 };
                }
                Role::Block | Role::Cell | Role::Noise => match heading.take() {
                    Some((level, raw)) => flush(blocks, &mut open, BlockKind::Heading { level, title: title_of(&raw) }),
                    None => flush(blocks, &mut open, kind),
                },
            },
        }
    });
    if let Some(open) = open {
        blocks.push_bare(BlockKind::Prose, open);
    }
    let title = title_of(&title);
    if metadata.title.is_none() && !title.is_empty() {
        metadata.title = Some(title);
    }
    if metadata.title.is_none() {
        metadata.title = blocks.list.iter().find_map(|block| match &block.kind {
            BlockKind::Heading { level: 1, title } => Some(title.clone()),
            _ => None,
        });
    }
}

fn flush(blocks: &mut Blocks, open: &mut Option<Range<usize>>, kind: BlockKind) {
    if let Some(range) = open.take() {
        blocks.push_bare(kind, range);
    }
}

/// Text without tags, entities decoded; blocks and line breaks end a line, cells are parted by tabs, and outside
/// `<pre>` the indentation of the source is gone.
pub(super) fn readable(raw: &str) -> String {
    let mut out = String::with_capacity(raw.len() / 2);
    let mut pre = 0usize;
    walk(raw, &mut |event, _| match event {
        Event::Lang(_) | Event::Title(_) => {}
        Event::Text(words) if pre > 0 => out.push_str(words),
        Event::Text(words) => {
            for (i, line) in words.split('\n').enumerate() {
                if i > 0 {
                    end_line(&mut out);
                }
                push_collapsed(&mut out, line);
            }
        }
        Event::Tag { name, is_end } => match role(name) {
            Role::Inline => {}
            Role::Cell if name == b"td" || name == b"th" => {
                if is_end {
                    out.push('\t');
                }
            }
            Role::Pre => {
                end_line(&mut out);
                pre = if is_end { pre.saturating_sub(1) } else { pre + 1 };
            }
            Role::LineBreak | Role::Block | Role::Cell | Role::Table | Role::Heading(_) | Role::Noise => {
                end_line(&mut out);
            }
        },
    });
    out.truncate(out.trim_end().len());
    out
}

/// The byte ranges of `raw` that `readable` shows; what lies between them is markup and must not be cut.
pub fn text_spans(raw: &str) -> Vec<Range<usize>> {
    let mut spans = Vec::new();
    walk(raw, &mut |event, range| {
        if matches!(event, Event::Text(_)) {
            spans.push(range);
        }
    });
    spans
}

/// The words of the first `<h1>` that has any.
pub(super) fn first_title(raw: &str) -> Option<String> {
    let (mut title, mut open) = (String::new(), false);
    walk(raw, &mut |event, _| match event {
        Event::Tag { name: b"h1", is_end } => open = !is_end && title.trim().is_empty(),
        Event::Text(words) if open => title.push_str(words),
        _ => {}
    });
    let title = title_of(&title);
    (!title.is_empty()).then_some(title)
}

/// Calls back with the stretches of `raw` that are markup: comments, noise, and tags of what `is_element` knows; and
/// whether what stands on both sides of one are two words.
pub(super) fn each_markup(raw: &str, is_element: fn(&[u8]) -> bool, mut each: impl FnMut(Range<usize>, bool)) {
    let (mut at, mut parts) = (0, false);
    walk(raw, &mut |event, range| {
        match event {
            Event::Lang(_) | Event::Title(_) => return,
            Event::Tag { name, .. } if is_element(name) => {
                parts |= role(name) != Role::Inline;
                return;
            }
            Event::Tag { .. } | Event::Text(_) => {}
        }
        if at < range.start {
            each(at..range.start, parts);
        }
        (at, parts) = (range.end, false);
    });
    if at < raw.len() {
        each(at..raw.len(), parts);
    }
}

fn end_line(out: &mut String) {
    out.truncate(out.trim_end_matches([' ', '\t']).len());
    if !out.is_empty() && !out.ends_with('\n') {
        out.push('\n');
    }
}

fn push_collapsed(out: &mut String, line: &str) {
    let mut gap = line.starts_with(char::is_whitespace);
    for word in line.split_whitespace() {
        if gap && !out.is_empty() && !out.ends_with(['\n', ' ', '\t']) {
            out.push(' ');
        }
        out.push_str(word);
        gap = true;
    }
    if gap && line.ends_with(char::is_whitespace) && !out.is_empty() && !out.ends_with(['\n', ' ', '\t']) {
        out.push(' ');
    }
}

enum Event<'e> {
    /// The value of `<html lang>`.
    Lang(&'e str),
    /// Words of `<title>`.
    Title(&'e str),
    /// Visible words, entities decoded.
    Text(&'e str),
    /// A tag outside of noise, or the first and last tag of a noisy element.
    Tag { name: &'e [u8], is_end: bool },
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Role {
    Inline,
    LineBreak,
    Block,
    Table,
    /// A part of a table: a block only outside of one.
    Cell,
    Heading(u8),
    Pre,
    /// The element and all that is in it is not read.
    Noise,
}

fn role(name: &[u8]) -> Role {
    match name {
        [b'h', level @ b'1'..=b'6'] => Role::Heading(level - b'0'),
        b"pre" => Role::Pre,
        b"br" => Role::LineBreak,
        b"table" => Role::Table,
        b"td" | b"th" | b"tr" | b"tbody" | b"thead" | b"tfoot" | b"caption" => Role::Cell,
        b"script" | b"style" | b"nav" | b"head" | b"template" | b"svg" | b"noscript" | b"iframe" | b"select"
        | b"object" | b"canvas" | b"noembed" => Role::Noise,
        b"p" | b"div" | b"li" | b"ul" | b"ol" | b"dl" | b"dt" | b"dd" | b"section" | b"article" | b"main"
        | b"aside" | b"header" | b"footer" | b"body" | b"html" | b"blockquote" | b"figure" | b"figcaption"
        | b"address" | b"details" | b"summary" | b"form" | b"fieldset" | b"hr" | b"option" | b"textarea"
        | b"hgroup" => Role::Block,
        _ => Role::Inline,
    }
}

/// Calls back for everything outside of noise, with byte ranges of `raw`. A noisy element that is never closed ends
/// where the page's content begins, and the tokenizer itself ends scripts and styles. The states of the tokenizer are
/// 130 KB of code for each type of callback, hence one type for all.
fn walk(raw: &str, each: &mut dyn FnMut(Event<'_>, Range<usize>)) {
    // The noisy element and how many of its name are open.
    let mut noise: Option<(Vec<u8>, usize)> = None;
    let (mut in_title, mut at_lang, mut in_html) = (false, false, false);
    let mut tag_start = 0;
    let mut name = Vec::new();
    let range = |span: Span<usize>| {
        let start = raw.floor_char_boundary(span.start.min(raw.len()));
        start..raw.floor_char_boundary(span.end.clamp(start, raw.len()))
    };
    let callback = |event: CallbackEvent<'_>, span: Span<usize>| -> Option<Infallible> {
        match event {
            CallbackEvent::OpenStartTag { name: tag } => {
                name.clear();
                name.extend_from_slice(tag);
                tag_start = span.start;
                in_html = tag == b"html";
            }
            CallbackEvent::AttributeName { name: attribute } => at_lang = in_html && attribute == b"lang",
            CallbackEvent::AttributeValue { value } if at_lang => {
                each(Event::Lang(&String::from_utf8_lossy(value)), 0..0);
                at_lang = false;
            }
            CallbackEvent::CloseStartTag { self_closing } => {
                in_html = false;
                in_title = name == b"title" && noise.as_ref().is_none_or(|(noisy, _)| noisy == b"head");
                let range = range(Span { start: tag_start, end: span.end });
                if let Some((noisy, open)) = &mut noise {
                    if *noisy == name && noisy != b"head" {
                        *open += usize::from(!self_closing);
                    } else if ends_noise(noisy, &name) {
                        noise = None;
                    }
                }
                if noise.is_none() {
                    each(Event::Tag { name: &name, is_end: false }, range);
                    if role(&name) == Role::Noise && !self_closing {
                        noise = Some((name.clone(), 1));
                    }
                }
            }
            CallbackEvent::EndTag { name: tag } => {
                in_title = false;
                if let Some((noisy, open)) = &mut noise {
                    *open -= usize::from(noisy == tag);
                    if *open > 0 {
                        return None;
                    }
                    noise = None;
                }
                each(Event::Tag { name: tag, is_end: true }, range(span));
            }
            CallbackEvent::String { value } => {
                let words = String::from_utf8_lossy(value);
                match noise {
                    _ if in_title => each(Event::Title(&words), range(span)),
                    Some(_) => {}
                    None => each(Event::Text(&words), range(span)),
                }
            }
            _ => {}
        }
        None
    };
    let mut emitter = CallbackEmitter::new(callback);
    emitter.naively_switch_states(true);
    // Reading from a string cannot fail, and no token is ever emitted.
    let Ok(()) = Tokenizer::new_with_emitter(raw, emitter).finish();
}

fn ends_noise(noisy: &[u8], tag: &[u8]) -> bool {
    match noisy {
        b"head" => matches!(role(tag), Role::Block | Role::Table | Role::Heading(_) | Role::Pre),
        b"nav" | b"select" | b"object" | b"svg" => matches!(tag, b"main" | b"article" | b"h1" | b"body" | b"footer"),
        _ => false,
    }
}
