//! HTML within Markdown: what a person reads of a passage when tags and comments are gone.
//!
//! Refuses to touch code, the name of anything that is no element of HTML (`Vec<String>`), and Markdown's own marks.

use std::borrow::Cow;
use std::ops::Range;

use pulldown_cmark::{Event, Options, Parser, Tag};

use super::html;

/// How much of what stands above a passage is looked through for the fence of a code block that it continues.
pub const LOOK_BACK: usize = 64 << 10;

/// The passage without tags and comments; as it stands, if it holds none. `above` gives the text before it, the last
/// `LOOK_BACK` bytes of that at least, and is asked only where the answer depends on it.
pub(super) fn readable<S: AsRef<str>, E>(
    passage: &str,
    above: impl FnOnce() -> Result<S, E>,
) -> Result<Cow<'_, str>, E> {
    if !may_hold_tags(passage) {
        return Ok(Cow::Borrowed(passage));
    }
    let mut found = cuts(passage, 0);
    // A block of code that was too long for one passage goes on in the next, where nothing else tells it from prose.
    if !found.is_empty()
        && let Some(fence) = fence_above(above()?.as_ref())
    {
        found = cuts(passage, end_of_code(passage, fence));
    }
    Ok(if found.is_empty() { Cow::Borrowed(passage) } else { Cow::Owned(without(passage, &found)) })
}

/// True of a block that is nothing but tags and comments: badges, rulers, licence headers.
pub(super) fn is_markup_only(block: &str) -> bool {
    if !may_hold_tags(block) {
        return false;
    }
    let cuts = cuts(block, 0);
    !cuts.is_empty() && !without(block, &cuts).contains(char::is_alphanumeric)
}

/// A stretch to leave out.
struct Cut {
    range: Range<usize>,
    /// What stands before and after it are two words.
    parts: bool,
}

fn cuts(passage: &str, from: usize) -> Vec<Cut> {
    let mut cuts = Vec::new();
    for (event, range) in Parser::new_ext(&passage[from..], Options::ENABLE_TABLES).into_offset_iter() {
        if let Event::Start(Tag::HtmlBlock) | Event::InlineHtml(_) = event {
            let start = from + range.start;
            html::each_markup(&passage[start..from + range.end], is_element, |range, parts| {
                cuts.push(Cut { range: start + range.start..start + range.end, parts });
            });
        }
    }
    cuts
}

/// Lines that a cut leaves blank go with it, and of blank lines that would then follow each other one stays.
fn without(passage: &str, cuts: &[Cut]) -> String {
    let mut out = String::with_capacity(passage.len());
    let (mut at, mut line, mut cut_in_line, mut line_gone, mut parted) = (0, 0, false, false, false);
    let ends = cuts.iter().map(|cut| (cut.range.clone(), cut.parts));
    for (range, parts) in ends.chain([(passage.len()..passage.len(), false)]) {
        for piece in passage[at..range.start.max(at)].split_inclusive('\n') {
            if parted
                && !piece.starts_with(char::is_whitespace)
                && !out.is_empty()
                && !out.ends_with(char::is_whitespace)
            {
                out.push(' ');
            }
            parted = false;
            // The spaces before and after a tag are one.
            let spaced = cut_in_line && out.ends_with(' ');
            out.push_str(if spaced { piece.trim_start_matches(' ') } else { piece });
            if piece.ends_with('\n') {
                let blank = out[line..].trim().is_empty();
                let doubled = line_gone && blank && (line == 0 || out[..line].ends_with("\n\n"));
                if (blank && cut_in_line) || doubled {
                    out.truncate(line);
                    line_gone = true;
                } else {
                    line_gone &= blank;
                }
                (line, cut_in_line) = (out.len(), false);
            }
        }
        cut_in_line |= !range.is_empty();
        parted |= parts;
        at = range.end.max(at);
    }
    out
}

/// A first look that most passages end with.
fn may_hold_tags(text: &str) -> bool {
    text.match_indices('<').any(|(at, _)| opens_markup(&text[at + 1..]))
}

/// Whether the byte at `at` seems to stand in a tag or a comment: told by the nearest bracket before it, so code that
/// shows tags is not told apart.
pub fn seems_markup(passage: &str, at: usize) -> bool {
    let bracket = passage[..at].rfind(['<', '>']);
    bracket.is_some_and(|at| passage[at..].strip_prefix('<').is_some_and(opens_markup))
}

fn opens_markup(behind_bracket: &str) -> bool {
    if behind_bracket.starts_with("!--") {
        return true;
    }
    let name = behind_bracket.strip_prefix('/').unwrap_or(behind_bracket);
    let end = name.bytes().position(|byte| !byte.is_ascii_alphanumeric()).unwrap_or(name.len());
    is_element(name[..end].to_ascii_lowercase().as_bytes())
}

#[derive(Debug, Clone, Copy, PartialEq)]
struct Fence {
    mark: u8,
    length: usize,
    /// Nothing follows the marks, so it may end code.
    bare: bool,
}

/// The fence that a line consists of, within quotations and list items too.
fn fence_of(line: &str) -> Option<Fence> {
    let line = line.trim_start_matches([' ', '\t', '>', '-', '*', '+']);
    let mark = *line.as_bytes().first().filter(|byte| matches!(byte, b'`' | b'~'))?;
    let length = line.bytes().take_while(|byte| *byte == mark).count();
    let rest = &line[length..];
    (length >= 3 && !(mark == b'`' && rest.contains('`'))).then(|| Fence { mark, length, bare: rest.trim().is_empty() })
}

fn closes(fence: Fence, open: Fence) -> bool {
    fence.bare && fence.mark == open.mark && fence.length >= open.length
}

/// The fence that is still open where a text ends. Where the text itself may have begun within code, the first fence
/// that names a language is the first one that surely opens.
fn fence_above(above: &str) -> Option<Fence> {
    let above = &above[above.ceil_char_boundary(above.len().saturating_sub(LOOK_BACK))..];
    let begins_in_text = above.len() < LOOK_BACK - 4;
    let mut open = None;
    let mut sure = begins_in_text;
    for fence in above.split('\n').filter_map(fence_of) {
        sure |= !fence.bare;
        open = match open {
            _ if !sure => None,
            Some(opened) if closes(fence, opened) => None,
            Some(opened) => Some(opened),
            None => Some(fence),
        };
    }
    open
}

/// Where the code ends that a passage begins within.
fn end_of_code(passage: &str, open: Fence) -> usize {
    let mut at = 0;
    for line in passage.split_inclusive('\n') {
        at += line.len();
        if fence_of(line.trim_end()).is_some_and(|fence| closes(fence, open)) {
            break;
        }
    }
    at
}

fn is_element(name: &[u8]) -> bool {
    ELEMENTS.binary_search(&name).is_ok()
}

/// The elements of HTML, those of its past that READMEs still use, and MathML's and SVG's roots.
const ELEMENTS: &[&[u8]] = &[
    b"a",
    b"abbr",
    b"acronym",
    b"address",
    b"area",
    b"article",
    b"aside",
    b"audio",
    b"b",
    b"bdi",
    b"bdo",
    b"big",
    b"blockquote",
    b"body",
    b"br",
    b"button",
    b"canvas",
    b"caption",
    b"center",
    b"cite",
    b"code",
    b"col",
    b"colgroup",
    b"data",
    b"datalist",
    b"dd",
    b"del",
    b"details",
    b"dfn",
    b"dialog",
    b"div",
    b"dl",
    b"dt",
    b"em",
    b"embed",
    b"fieldset",
    b"figcaption",
    b"figure",
    b"font",
    b"footer",
    b"form",
    b"h1",
    b"h2",
    b"h3",
    b"h4",
    b"h5",
    b"h6",
    b"head",
    b"header",
    b"hgroup",
    b"hr",
    b"html",
    b"i",
    b"iframe",
    b"img",
    b"input",
    b"ins",
    b"kbd",
    b"label",
    b"legend",
    b"li",
    b"link",
    b"main",
    b"map",
    b"mark",
    b"math",
    b"menu",
    b"meta",
    b"meter",
    b"nav",
    b"noscript",
    b"object",
    b"ol",
    b"optgroup",
    b"option",
    b"output",
    b"p",
    b"picture",
    b"pre",
    b"progress",
    b"q",
    b"rp",
    b"rt",
    b"ruby",
    b"s",
    b"samp",
    b"script",
    b"search",
    b"section",
    b"select",
    b"slot",
    b"small",
    b"source",
    b"span",
    b"strike",
    b"strong",
    b"style",
    b"sub",
    b"summary",
    b"sup",
    b"svg",
    b"table",
    b"tbody",
    b"td",
    b"template",
    b"textarea",
    b"tfoot",
    b"th",
    b"thead",
    b"time",
    b"title",
    b"tr",
    b"track",
    b"tt",
    b"u",
    b"ul",
    b"var",
    b"video",
    b"wbr",
];

#[cfg(test)]
mod tests {
    use super::*;

    fn read_below(above: &str, passage: &str) -> String {
        readable(passage, || Ok::<_, ()>(above)).expect("nothing fails").into_owned()
    }

    #[test]
    fn tags_and_comments_go_and_words_stay() {
        for (passage, read) in [
            ("Plain *words* [link](https://a.b/c).", "Plain *words* [link](https://a.b/c)."),
            ("<!-- note -->\n# Title\n\nText.", "# Title\n\nText."),
            ("<p align=\"center\">\n  <img src=\"a.png\"\n       alt=\"x\">\n</p>\n\nText.", "Text."),
            ("<details>\n<summary>More</summary>\n\nInside.\n\n</details>\n\nAfter.", "More\n\nInside.\n\nAfter."),
            ("one<br>two <kbd>Ctrl</kbd>+<kbd>C</kbd>, H<sub>2</sub>O <!-- x -->end", "one two Ctrl+C, H2O end"),
            ("<table><tr><td>a</td><td>b &amp; c</td></tr></table>", "a b &amp; c"),
            ("- item <a href='x > y'>one</a>\n- <span\n  class=\"z\">two</span>", "- item one\n- two"),
            ("A `<div>` and Vec<String>, <Steps> too.", "A `<div>` and Vec<String>, <Steps> too."),
            ("```html\n<p>code</p>\n```\n\n    <p>code</p>\n", "```html\n<p>code</p>\n```\n\n    <p>code</p>\n"),
            ("<script>\nlet a = 1;\n</script>\nText <b>한글</b>입니다.", "Text 한글입니다."),
            ("1 < 2 and <b> unclosed", "1 < 2 and unclosed"),
        ] {
            assert_eq!(read_below("", passage).trim_end(), read.trim_end(), "{passage}");
        }
    }

    #[test]
    fn code_that_began_above_stays() {
        let opened = "Text.\n\n```html\n<head></head>\n";
        assert_eq!(read_below(opened, "<p>code</p>\n"), "<p>code</p>\n");
        assert_eq!(read_below(opened, "<i>code</i>\n```\nand <i>text</i>"), "<i>code</i>\n```\nand text");
        assert_eq!(read_below("```\nx\n```\n", "<i>text</i>"), "text");
        assert_eq!(read_below("````\n```\n", "<i>code</i>"), "<i>code</i>");
        assert_eq!(read_below("- a\n  ~~~ sh\n", "<i>code</i>\n  ~~~\n<i>x</i>"), "<i>code</i>\n  ~~~\nx");
    }

    #[test]
    fn far_above_only_a_fence_that_names_a_language_counts() {
        let far = |near: &str| format!("{}{near}", "words\n".repeat(LOOK_BACK / 6 + 1));
        assert_eq!(read_below(&far("```\n"), "<i>text</i>"), "text");
        assert_eq!(read_below(&far("```sh\n"), "<i>code</i>"), "<i>code</i>");
        assert_eq!(read_below(&far("```\n```sh\nx\n```\n"), "<i>text</i>"), "text");
    }

    #[test]
    fn a_place_in_a_tag_is_told() {
        let passage = "a <p class='x'>b</p> c <T> d <!-- e";
        let told = |word: char| seems_markup(passage, passage.find(word).unwrap());
        assert_eq!(['a', 'x', 'b', 'T', 'd', 'e'].map(told), [false, true, false, false, false, true]);
    }

    #[test]
    fn elements_are_sorted() {
        assert!(ELEMENTS.is_sorted());
    }

    #[test]
    fn a_block_of_markup_alone_is_told() {
        assert!(is_markup_only("<!-- © 2024, all of it -->"));
        assert!(is_markup_only("<a href=\"x\"><img src=\"badge.svg\" alt=\"CI\"></a>"));
        assert!(!is_markup_only("<summary>Words</summary>"));
        assert!(!is_markup_only("---"));
        assert!(!is_markup_only("`<div>`"));
    }
}
