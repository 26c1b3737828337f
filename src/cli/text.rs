//! Text on its way to a person: what documents say is cleaned of everything that could steer a terminal, then
//! coloured if there is a terminal to see it.
//!
//! Refuses: layout.

use std::borrow::Cow;
use std::io::IsTerminal;
use std::ops::Range;

/// How stdout is to look.
#[derive(Debug, Clone, Copy)]
pub struct Style {
    /// A person is looking: weak hits are folded.
    pub terminal: bool,
    pub colour: bool,
}

#[derive(Debug, Clone, Copy)]
pub enum Ink {
    Path,
    Line,
    Dim,
    Match,
    Good,
    Bad,
}

impl Ink {
    fn code(self) -> &'static str {
        match self {
            Ink::Path => "35",
            Ink::Line => "32",
            Ink::Dim => "2",
            Ink::Match => "1;31",
            Ink::Good => "32",
            Ink::Bad => "1;31",
        }
    }
}

impl Style {
    pub fn of_stdout(env: &dyn Fn(&str) -> Option<String>) -> Style {
        let terminal = std::io::stdout().is_terminal();
        let given = |name: &str| env(name).is_some_and(|value| !value.is_empty());
        let dumb = env("TERM").is_some_and(|term| term == "dumb");
        // Old Windows consoles print escape sequences as they are; these variables tell the others.
        let understands = !cfg!(windows) || given("WT_SESSION") || given("TERM");
        Style { terminal, colour: terminal && !given("NO_COLOR") && !dumb && understands }
    }

    pub fn paint(self, ink: Ink, text: &str) -> String {
        if !self.colour || text.is_empty() {
            return text.to_owned();
        }
        format!("\x1b[{}m{text}\x1b[0m", ink.code())
    }

    /// Paints the given ranges of `text`, which are in order and apart.
    pub fn paint_ranges(self, ink: Ink, text: &str, ranges: impl Iterator<Item = Range<usize>>) -> String {
        let mut painted = String::new();
        let mut done = 0;
        for range in ranges.filter(|_| self.colour) {
            if range.start < done {
                continue;
            }
            painted.push_str(&text[done..range.start]);
            painted.push_str(&self.paint(ink, &text[range.clone()]));
            done = range.end;
        }
        painted.push_str(&text[done..]);
        painted
    }
}

/// Without escape sequences, control characters and marks that turn the direction of text; lines and tabs stay.
pub fn clean(text: &str) -> Cow<'_, str> {
    if !text.chars().any(is_unwanted) {
        return Cow::Borrowed(text);
    }
    let mut kept = String::with_capacity(text.len());
    let mut rest = text.chars();
    while let Some(c) = rest.next() {
        match c {
            '\x1b' => skip_escape(&mut rest),
            '\u{9b}' => skip_parameters(&mut rest),
            '\u{90}' | '\u{98}' | '\u{9d}' | '\u{9e}' | '\u{9f}' => skip_string(&mut rest),
            '\u{2028}' | '\u{2029}' => kept.push(' '),
            c if is_unwanted(c) => {}
            c => kept.push(c),
        }
    }
    Cow::Owned(kept)
}

/// As `clean`, on one line.
pub fn clean_line(text: &str) -> String {
    clean(text).replace(['\n', '\t'], " ")
}

fn is_unwanted(c: char) -> bool {
    let control = c.is_control() && c != '\n' && c != '\t';
    control || matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{2028}' | '\u{2029}')
}

/// Behind ESC: a whole sequence, never beyond the end of the line, so that a stray one cannot hide text below it.
fn skip_escape(rest: &mut std::str::Chars) {
    let mut ahead = rest.clone();
    match ahead.next() {
        Some('[') => {
            *rest = ahead;
            skip_parameters(rest);
        }
        Some(']' | 'P' | 'X' | '^' | '_') => {
            *rest = ahead;
            skip_string(rest);
        }
        Some(' '..='/') => {
            *rest = ahead.clone();
            while let Some(c @ ' '..='~') = ahead.next() {
                *rest = ahead.clone();
                if c > '/' {
                    break;
                }
            }
        }
        Some('0'..='~') => *rest = ahead,
        _ => {}
    }
}

/// Behind CSI: parameters up to and with the final character.
fn skip_parameters(rest: &mut std::str::Chars) {
    let mut ahead = rest.clone();
    while let Some(c @ ' '..='~') = ahead.next() {
        *rest = ahead.clone();
        if c >= '@' {
            break;
        }
    }
}

/// Behind OSC, DCS and their like: up to BEL or ST; without an end on this line only the introducer goes.
fn skip_string(rest: &mut std::str::Chars) {
    let mut ahead = rest.clone();
    while let Some(c) = ahead.next() {
        match c {
            '\n' => return,
            '\x07' | '\u{9c}' => {
                *rest = ahead;
                return;
            }
            '\x1b' => {
                let mut end = ahead.clone();
                if end.next() == Some('\\') {
                    *rest = end;
                    return;
                }
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_that_steers_a_terminal_passes() {
        let cases = [
            ("plain 한글\ttext\n", "plain 한글\ttext\n"),
            ("a\x1b[31mred\x1b[0m b", "ared b"),
            ("\x1b]0;title\x07x", "x"),
            ("\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\", "link"),
            ("\x1b]52;c;no end\nnext", "52;c;no end\nnext"),
            ("a\u{9b}2Jb", "ab"),
            ("a\u{9d}0;t\u{9c}b", "ab"),
            ("\x1b(Bx\x1bcy", "xy"),
            ("bell\x07 nul\0 del\x7f back\x08", "bell nul del back"),
            ("line\r\nnext\rover", "line\nnextover"),
            ("abc\u{202e}gpj.exe\u{2066}x\u{2069}", "abcgpj.exex"),
            ("one\u{2028}two", "one two"),
            ("end\x1b", "end"),
            ("end\x1b[", "end"),
            ("\x1b한", "한"),
            ("\x1b[한", "한"),
        ];
        for (text, expected) in cases {
            assert_eq!(clean(text), expected, "{text:?}");
        }
        assert_eq!(clean_line("a\nb\tc"), "a b c");
    }

    #[test]
    fn ranges_are_painted_only_in_colour() {
        let colour = Style { terminal: true, colour: true };
        let ranges = || [1..2, 3..4].into_iter();
        assert_eq!(colour.paint_ranges(Ink::Match, "abcde", ranges()), "a\x1b[1;31mb\x1b[0mc\x1b[1;31md\x1b[0me");
        let plain = Style { terminal: true, colour: false };
        assert_eq!(plain.paint_ranges(Ink::Match, "abcde", ranges()), "abcde");
    }
}
