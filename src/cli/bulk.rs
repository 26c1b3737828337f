//! The queries of `search --bulk`: all of stdin, held against the limits before anything runs.
//!
//! Refuses: what a query may contain; that is each item's own matter.

use std::io::Read;
use std::ops::Range;
use std::path::Path;

use kebab_lite::error::{Error, Result};
use kebab_lite::tools::bulk::MAX_ITEMS;
use serde_json::value::RawValue;

/// The lines of `stdin`, each a JSON object.
pub fn read(stdin: impl Read) -> Result<Vec<Box<RawValue>>> {
    let mut bytes = Vec::new();
    stdin.take(MAX_BYTES as u64 + 1).read_to_end(&mut bytes).map_err(Error::io("read", Path::new("stdin")))?;
    if bytes.len() > MAX_BYTES {
        let cause = format!("--bulk takes at most {} MiB, and stdin has more", MAX_BYTES >> 20);
        let hint = format!("Send at most {MAX_ITEMS} lines, each a query.");
        return Err(Error::ConfigInvalid { path: None, cause, hint: Some(hint) });
    }
    let filled = filled_lines(&bytes);
    if filled.len() > MAX_ITEMS {
        let cause = format!("--bulk takes at most {MAX_ITEMS} queries, and stdin has {}", filled.len());
        let hint = format!("Send them in parts of {MAX_ITEMS} lines.");
        return Err(Error::ConfigInvalid { path: None, cause, hint: Some(hint) });
    }
    filled.into_iter().map(|(number, range)| object(&bytes[range], number)).collect()
}

/// Of a line.
const MAX_LINE: usize = 16 << 20;

/// Of all lines together.
const MAX_BYTES: usize = 64 << 20;

fn object(line: &[u8], number: usize) -> Result<Box<RawValue>> {
    let refused = |why: String| {
        let hint = "Write one JSON object a line, such as {\"query\": \"how do backups work\"}.".to_owned();
        Error::ConfigInvalid { path: None, cause: format!("line {number} of stdin is not {why}"), hint: Some(hint) }
    };
    if line.len() > MAX_LINE {
        return Err(refused(format!("a query: it is longer than {} MiB", MAX_LINE >> 20)));
    }
    let text = std::str::from_utf8(line).map_err(|_| refused("JSON: it is not UTF-8".into()))?;
    let value: Box<RawValue> = serde_json::from_str(text).map_err(|error| {
        // The parser counts lines of this one line only.
        refused(format!("JSON: {}", error.to_string().replace(" line 1", "")))
    })?;
    if !text.starts_with('{') {
        return Err(refused("a JSON object".into()));
    }
    Ok(value)
}

/// Where lines that are not blank stand, with their 1-based numbers; line ends and a byte order mark left out.
fn filled_lines(bytes: &[u8]) -> Vec<(usize, Range<usize>)> {
    let mut found = Vec::new();
    let mut start = if bytes.starts_with(b"\xef\xbb\xbf") { 3 } else { 0 };
    for (place, line) in bytes[start..].split(|byte| *byte == b'\n').enumerate() {
        let filled = line.trim_ascii();
        if !filled.is_empty() {
            let leading = line.len() - line.trim_ascii_start().len();
            found.push((place + 1, start + leading..start + leading + filled.len()));
        }
        start += line.len() + 1;
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(input: &[u8]) -> Vec<String> {
        read(input).unwrap().iter().map(|line| line.get().to_owned()).collect()
    }

    fn refused(input: &[u8]) -> String {
        refused_stream(input)
    }

    fn refused_stream(input: impl Read) -> String {
        let error = read(input).unwrap_err();
        assert_eq!(error.code(), "config_invalid");
        error.to_string()
    }

    #[test]
    fn blank_lines_line_ends_and_a_mark_are_no_matter() {
        assert_eq!(lines(b""), [""; 0]);
        assert_eq!(lines(b"\n \n\r\n"), [""; 0]);
        assert_eq!(lines(b"{}"), ["{}"]);
        assert_eq!(lines(b"\xef\xbb\xbf{\"a\":1}\r\n\r\n  {\"b\":2}  \n"), ["{\"a\":1}", "{\"b\":2}"]);
    }

    #[test]
    fn the_limit_counts_filled_lines_and_comes_before_everything() {
        assert_eq!(lines("{}\n\n".repeat(100).as_bytes()).len(), 100);
        let message = "config: --bulk takes at most 100 queries, and stdin has 101";
        assert_eq!(refused(format!("broken\n{}", "{}\n".repeat(100)).as_bytes()), message);
    }

    #[test]
    fn bytes_are_limited_by_line_and_in_all() {
        let line = |bytes: usize| format!("{{\"query\":\"{}\"}}\n", "x".repeat(bytes - 12)).into_bytes();
        assert_eq!(lines(&line(MAX_LINE)).len(), 1);
        let message = "config: line 2 of stdin is not a query: it is longer than 16 MiB";
        assert_eq!(refused(&[line(100), line(MAX_LINE + 1)].concat()), message);
        assert_eq!(refused(&vec![b' '; MAX_BYTES + 1]), "config: --bulk takes at most 64 MiB, and stdin has more");
        // No more is read than tells that it is too much.
        assert_eq!(refused_stream(std::io::repeat(b'\n')), "config: --bulk takes at most 64 MiB, and stdin has more");
    }

    #[test]
    fn a_broken_line_is_named_by_its_number() {
        assert_eq!(
            refused(b"{}\n\n{\"a\":"),
            "config: line 3 of stdin is not JSON: EOF while parsing a value at column 5"
        );
        assert_eq!(refused(b"[1]"), "config: line 1 of stdin is not a JSON object");
        assert_eq!(refused(b"{}\n\"x\""), "config: line 2 of stdin is not a JSON object");
        assert_eq!(refused(b"{\"a\":\"\xff\"}"), "config: line 1 of stdin is not JSON: it is not UTF-8");
    }
}
