//! A document's text → what it says about itself and its blocks, each a byte range of that text.
//!
//! Refuses: sizes (the chunker's business) and rewriting: a block is a range of the source, never a rendered copy.

mod code;
mod front_matter;
mod html;
mod inline_html;
mod lang;
mod markdown;
mod markup;
mod media;

use std::borrow::Cow;
use std::ops::Range;

pub use code::separator;
pub use front_matter::primary_tag;
pub use html::text_spans;
pub use inline_html::{LOOK_BACK, seems_markup};
pub use media::media_of;

use crate::model::{Media, Metadata};
use media::Format;

#[derive(Debug, Clone, PartialEq)]
pub struct Parsed {
    pub media: Media,
    pub code_lang: Option<&'static str>,
    pub metadata: Metadata,
    /// Ascending, apart, none blank. Outside HTML, and but for tags and comments in
    /// Markdown, they hold every letter and digit that follows the front matter.
    pub blocks: Vec<Block>,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Block {
    pub kind: BlockKind,
    /// Bytes of the text, on character boundaries.
    pub range: Range<usize>,
}

#[derive(Debug, Clone, PartialEq)]
pub enum BlockKind {
    /// `level` is 1 to 6; `title` is plain text of at most `MAX_TITLE` bytes, perhaps empty.
    Heading {
        level: u8,
        title: String,
    },
    Prose,
    /// Code, a table or the like, that loses its meaning when split.
    Verbatim,
    /// A piece of code and the definition it belongs to, outermost first: `Store::open`, `Store.open`.
    Unit {
        symbol: Option<String>,
    },
}

/// Headings are repeated with every chunk below them, so one line of ten megabytes must not become one.
pub const MAX_TITLE: usize = 256;

pub fn parse(path: &str, text: &str) -> Parsed {
    let (media, code_lang) = media_of(path);
    let format = media::format_of(path);
    let mut metadata = Metadata::default();
    let mut blocks = Blocks::new(text);
    if media != Media::Code {
        front_matter::read(&mut blocks, &mut metadata);
    }
    match format {
        Format::Markdown => markdown::read(&mut blocks, &mut metadata),
        Format::Rst => markup::read_rst(&mut blocks),
        Format::AsciiDoc => markup::read_asciidoc(&mut blocks),
        Format::Org => markup::read_org(&mut blocks, &mut metadata),
        Format::Html => html::read(&mut blocks, &mut metadata),
        Format::Code(lang) => code::read(&mut blocks, separator(lang)),
        Format::Plain | Format::Pdf | Format::Other => markup::read_paragraphs(&mut blocks),
    }
    let blocks = if format == Format::Html { blocks.list } else { blocks.finish() };
    if metadata.title.is_none() {
        metadata.title = blocks.iter().find_map(|block| match &block.kind {
            BlockKind::Heading { title, .. } if !title.is_empty() => Some(title.clone()),
            _ => None,
        });
    }
    if metadata.lang.is_empty() {
        metadata.lang = lang::detect(text, &blocks).to_owned();
    }
    Parsed { media, code_lang, metadata, blocks }
}

/// What a passage is found by: HTML without its markup, Markdown without the HTML in it, anything else as it
/// stands. `above` gives the text before the passage, the last `LOOK_BACK` bytes of it at least; few ask for it.
pub fn readable<S: AsRef<str>, E>(
    media: Media,
    passage: &str,
    above: impl FnOnce() -> Result<S, E>,
) -> Result<Cow<'_, str>, E> {
    match media {
        Media::Html => Ok(Cow::Owned(html::readable(passage))),
        Media::Markdown => inline_html::readable(passage, above),
        Media::Text | Media::Code | Media::Pdf | Media::Other => Ok(Cow::Borrowed(passage)),
    }
}

/// What is shown of a passage: HTML without its markup; anything else as it stands, so that the lines it is cited by hold
/// it word for word.
pub fn shown(media: Media, passage: &str) -> Cow<'_, str> {
    match media {
        Media::Html => Cow::Owned(html::readable(passage)),
        Media::Markdown | Media::Text | Media::Code | Media::Pdf | Media::Other => Cow::Borrowed(passage),
    }
}

/// `readable` of bytes of a text that is all at hand.
pub fn readable_part(media: Media, text: &str, bytes: Range<usize>) -> Cow<'_, str> {
    let above = || {
        let from = text.ceil_char_boundary(bytes.start.saturating_sub(LOOK_BACK));
        Ok::<_, std::convert::Infallible>(&text[from..bytes.start])
    };
    let Ok(read) = readable(media, &text[bytes.clone()], above);
    read
}

/// The blocks read so far. Readers push in ascending order; what they pass over becomes prose if it says anything.
struct Blocks<'t> {
    text: &'t str,
    /// Everything before this byte is in a block, or says nothing.
    end: usize,
    list: Vec<Block>,
}

impl<'t> Blocks<'t> {
    fn new(text: &'t str) -> Self {
        let end = if text.starts_with('\u{FEFF}') { '\u{FEFF}'.len_utf8() } else { 0 };
        Blocks { text, end, list: Vec::new() }
    }

    /// Adds a block and, before it, the text that no reader claimed (link definitions, for one).
    fn push(&mut self, kind: BlockKind, range: Range<usize>) {
        let gap = self.end..range.start.max(self.end);
        if self.text[gap.clone()].contains(char::is_alphanumeric) {
            self.push_bare(BlockKind::Prose, gap);
        }
        self.push_bare(kind, range);
    }

    /// Passes over a range that says nothing, after what no reader claimed before it.
    fn pass(&mut self, range: Range<usize>) {
        self.push(BlockKind::Prose, range.start..range.start);
        self.end = self.end.max(range.end);
    }

    fn push_bare(&mut self, kind: BlockKind, range: Range<usize>) {
        if let Some(range) = self.fitted(range) {
            self.end = range.end;
            self.list.push(Block { kind, range });
        }
    }

    fn finish(mut self) -> Vec<Block> {
        let len = self.text.len();
        self.push(BlockKind::Prose, len..len);
        self.list
    }

    /// Without the blank lines around it and with the indentation of its first line; None if nothing is left.
    fn fitted(&self, range: Range<usize>) -> Option<Range<usize>> {
        let start = range.start.max(self.end);
        let body = self.text.get(start..range.end)?.trim_end();
        let first = start + (body.len() - body.trim_start().len());
        let before = self.text[self.end..first].trim_end_matches([' ', '\t']);
        let at_line_start = before.is_empty() || before.ends_with('\n');
        let start_of_line = if at_line_start { self.end + before.len() } else { first };
        (!body.is_empty()).then(|| start_of_line..start + body.len())
    }
}

/// The lines from byte `from` on, each with its start and without its line end.
fn lines(text: &str, from: usize) -> impl Iterator<Item = (usize, &str)> {
    let mut at = from;
    text[from..].split_inclusive('\n').map(move |line| {
        let start = at;
        at += line.len();
        (start, line.strip_suffix('\n').map_or(line, |line| line.strip_suffix('\r').unwrap_or(line)))
    })
}

/// At most `MAX_TITLE` bytes, with white space collapsed.
fn title_of(raw: &str) -> String {
    let mut title = String::new();
    for word in raw.split_whitespace() {
        if !title.is_empty() {
            title.push(' ');
        }
        title.push_str(&word[..word.floor_char_boundary(MAX_TITLE + 1)]);
        if title.len() > MAX_TITLE {
            title.truncate(title.floor_char_boundary(MAX_TITLE));
            break;
        }
    }
    title
}

#[cfg(test)]
mod tests;
