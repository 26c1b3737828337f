//! CommonMark with tables → blocks. Refuses inline markup, apart from the plain text of headings; a block of
//! nothing but HTML tags and comments is none.

use pulldown_cmark::{Event, Options, Parser, Tag, TagEnd};

use super::inline_html::is_markup_only;
use super::{BlockKind, Blocks, html, title_of};
use crate::model::Metadata;

/// Top-level blocks, a list item being one: a list may be cut between its items, a table or code not at all. A `#` in
/// a quotation or a list item opens no section. An `<h1>` above all headings is the title, as on many a front page.
pub(super) fn read(blocks: &mut Blocks, metadata: &mut Metadata) {
    let from = blocks.end;
    let mut depth = 0;
    let mut titled = metadata.title.is_some();
    let mut heading = None;
    for (event, range) in Parser::new_ext(&blocks.text[from..], Options::ENABLE_TABLES).into_offset_iter() {
        let range = from + range.start..from + range.end;
        match event {
            Event::Start(tag) => {
                if depth == 0 && !titled {
                    titled = matches!(tag, Tag::Heading { .. });
                    if let Tag::HtmlBlock = tag {
                        metadata.title = html::first_title(&blocks.text[range.clone()]);
                        titled = metadata.title.is_some();
                    }
                }
                match (depth, tag) {
                    (0, Tag::Heading { level, .. }) => heading = Some((level as u8, String::new())),
                    (0, Tag::CodeBlock(_) | Tag::Table(_)) => blocks.push(BlockKind::Verbatim, range),
                    (0, Tag::List(_)) => {}
                    (0, _) | (1, Tag::Item) if is_markup_only(&blocks.text[range.clone()]) => blocks.pass(range),
                    (0, _) | (1, Tag::Item) => blocks.push(BlockKind::Prose, range),
                    _ => {}
                }
                depth += 1;
            }
            Event::End(tag) => {
                depth -= 1;
                if let (TagEnd::Heading(_), 0, Some((level, raw))) = (tag, depth, heading.take_if(|_| depth == 0)) {
                    blocks.push(BlockKind::Heading { level, title: title_of(without_id(&raw)) }, range);
                }
            }
            Event::Text(words) | Event::Code(words) => {
                if let Some((_, raw)) = &mut heading {
                    raw.push_str(&words);
                }
            }
            Event::SoftBreak | Event::HardBreak => {
                if let Some((_, raw)) = &mut heading {
                    raw.push(' ');
                }
            }
            _ => {}
        }
    }
}

/// `Title {#anchor}` is Title; other braces belong to the words.
fn without_id(raw: &str) -> &str {
    match raw.trim_end().strip_suffix('}').and_then(|rest| rest.rsplit_once("{#")) {
        Some((title, id)) if !id.contains(char::is_whitespace) => title,
        _ => raw,
    }
}
