//! What of a chunk the embedding model is given.

use crate::ingest::prepare::file_stem;
use crate::model::{Chunk, Media};

/// A chunk's own words under what tells what they are about: the document's title and the headings it stands under, or
/// a source file's path and the symbol. The model sees no more of the document than this, and each of it once.
pub fn passage(path: &str, media: Media, title: &str, chunk: &Chunk, body: &str) -> String {
    let body = body.trim();
    let mut text = String::with_capacity(body.len() + 128);
    let mut line = |part: &str| {
        text.push_str(part);
        text.push('\n');
    };
    if media == Media::Code {
        line(path);
        if let Some(symbol) = &chunk.symbol {
            line(symbol);
        }
        text.push_str(body);
        return text;
    }
    let (own, rest) = opening(body);
    // A name that counts or encodes something is no title.
    if title != own && (title != file_stem(path) || !title.contains(|c: char| c.is_ascii_digit())) {
        line(title);
    }
    let above: Vec<&str> =
        chunk.heading_path.iter().map(String::as_str).filter(|heading| *heading != title && *heading != own).collect();
    if !above.is_empty() {
        line(&above.join(" > "));
    }
    match chunk.heading_path.iter().any(|heading| heading == own) {
        // The chunk opens with its own heading, which says the same without its marks.
        true => {
            line(own);
            text.push_str(rest.trim_start());
        }
        false => text.push_str(body),
    }
    text
}

/// The first line without the marks of a heading, and what follows it.
fn opening(body: &str) -> (&str, &str) {
    let (first, rest) = body.split_once('\n').unwrap_or((body, ""));
    (first.trim_matches(|c: char| c.is_whitespace() || "#=*".contains(c)), rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chunk(headings: &[&str], symbol: Option<&str>) -> Chunk {
        Chunk {
            bytes: 0..0,
            lines: (1, 1),
            heading_path: headings.iter().map(|heading| (*heading).to_owned()).collect(),
            symbol: symbol.map(str::to_owned),
            tokens: 0,
        }
    }

    #[test]
    fn a_passage_says_what_it_is_about_once() {
        let headings = chunk(&["Guide", "Server", "Stopping"], None);
        let text = passage("docs/guide.md", Media::Markdown, "Guide", &headings, "## Stopping\n\nPress Ctrl-C.\n");
        assert_eq!(text, "Guide\nServer\nStopping\nPress Ctrl-C.");
        let text = passage("docs/guide.md", Media::Markdown, "Guide", &headings, "Press Ctrl-C.");
        assert_eq!(text, "Guide\nServer > Stopping\nPress Ctrl-C.");
        let top = chunk(&["Guide"], None);
        let text = passage("docs/guide.md", Media::Markdown, "Guide", &top, "# Guide\n\nRead it.\n");
        assert_eq!(text, "Guide\nRead it.");
    }

    #[test]
    fn a_name_is_a_title_if_it_is_made_of_words() {
        let none = chunk(&[], None);
        assert_eq!(passage("a/shutdown-notes.txt", Media::Text, "shutdown-notes", &none, "x"), "shutdown-notes\nx");
        assert_eq!(passage("a/00172-ab3f.txt", Media::Text, "00172-ab3f", &none, "x"), "x");
        assert_eq!(passage("a/00172.txt", Media::Text, "Chapter 7", &none, "x"), "Chapter 7\nx");
    }

    #[test]
    fn code_stands_under_its_path_and_symbol() {
        let symbol = chunk(&[], Some("Store::open"));
        let text = passage("src/store.rs", Media::Code, "store", &symbol, "pub fn open() {}\n");
        assert_eq!(text, "src/store.rs\nStore::open\npub fn open() {}");
    }
}
