//! Chunks of bytes made into lines, with memory bounded by the longest line that is read.

use crate::rpc::message::MAX_LINE;

#[derive(Default)]
pub struct Lines {
    /// The beginning of a line whose end has not come yet.
    begun: Vec<u8>,
    /// The line under way is too long and is thrown away.
    skipping: bool,
}

#[derive(Debug, PartialEq)]
pub enum Line<'l> {
    /// Without its line feed.
    Whole(&'l [u8]),
    TooLong,
}

impl Lines {
    /// Hands out the lines that this chunk ends.
    pub fn feed(&mut self, mut chunk: &[u8], mut each: impl FnMut(Line)) {
        while let Some(end) = chunk.iter().position(|byte| *byte == b'\n') {
            let (line, rest) = (&chunk[..end], &chunk[end + 1..]);
            chunk = rest;
            if self.skipping || self.begun.len() + line.len() > MAX_LINE {
                each(Line::TooLong);
            } else if self.begun.is_empty() {
                each(Line::Whole(line));
                continue;
            } else {
                self.begun.extend_from_slice(line);
                each(Line::Whole(&self.begun));
            }
            self.skipping = false;
            self.forget();
        }
        if self.skipping || self.begun.len() + chunk.len() > MAX_LINE {
            self.skipping = true;
            self.forget();
        } else {
            self.begun.extend_from_slice(chunk);
        }
    }

    /// True in the middle of a line.
    pub fn has_begun(&self) -> bool {
        self.skipping || !self.begun.is_empty()
    }

    /// The last line, if the input ends without a line feed.
    pub fn finish(self, each: impl FnOnce(Line)) {
        if self.skipping {
            each(Line::TooLong);
        } else if !self.begun.is_empty() {
            each(Line::Whole(&self.begun));
        }
    }

    /// One long line must not hold its memory for ever.
    fn forget(&mut self) {
        self.begun.clear();
        self.begun.shrink_to(64 << 10);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(chunks: &[&[u8]]) -> Vec<String> {
        let mut lines = Lines::default();
        let mut found = Vec::new();
        let show = |line: Line| match line {
            Line::Whole(bytes) if bytes.len() > 100 => format!("{} bytes", bytes.len()),
            Line::Whole(bytes) => String::from_utf8_lossy(bytes).into_owned(),
            Line::TooLong => "too long".to_owned(),
        };
        for chunk in chunks {
            lines.feed(chunk, |line| found.push(show(line)));
        }
        lines.finish(|line| found.push(show(line)));
        found
    }

    #[test]
    fn lines_do_not_depend_on_how_the_bytes_come() {
        let input = b"one\n\ntwo\r\nthree";
        let expected = ["one", "", "two\r", "three"];
        for size in 1..=input.len() {
            assert_eq!(lines(&input.chunks(size).collect::<Vec<_>>()), expected, "{size}");
        }
        assert_eq!(lines(&[]), [""; 0]);
        assert_eq!(lines(&[b"end\n"]), ["end"]);
    }

    #[test]
    fn a_line_over_the_limit_is_skipped_to_its_end() {
        let longest = vec![b'x'; MAX_LINE];
        let longer = vec![b'x'; MAX_LINE + 1];
        let whole = format!("{MAX_LINE} bytes");
        assert_eq!(lines(&[&longest, b"\nnext\n"]), [&whole, "next"]);
        assert_eq!(lines(&[&longer, b"\nnext\n"]), ["too long", "next"]);
        assert_eq!(lines(&[&longest, b"x", b"more\nnext"]), ["too long", "next"]);
        assert_eq!(lines(&[&longest, b"x\nnext"]), ["too long", "next"]);
        assert_eq!(lines(&[&longer, &longer, &longer]), ["too long"]);
        assert_eq!(lines(&[b"a\n", &longer, b"\n", &longest, b"\nb"]), ["a", "too long", &whole, "b"]);
    }

    #[test]
    fn the_memory_of_a_long_line_is_given_back() {
        let mut lines = Lines::default();
        let mut most = 0;
        for _ in 0..100 {
            lines.feed(&vec![b'x'; 1 << 20], |_| {});
            most = most.max(lines.begun.capacity());
        }
        assert!(most <= 2 * MAX_LINE, "{most}");
        lines.feed(b"\n", |_| {});
        assert!(lines.begun.capacity() <= 64 << 10);
    }
}
