//! The best window of a chunk for a query, as a verbatim slice of its text.
//!
//! Refuses: marks of omission and colours; those are the terminal's.

use std::cell::RefCell;
use std::ops::Range;

use rustc_hash::FxHashMap;
use unicode_segmentation::UnicodeSegmentation;

use super::lexical::Query;
use super::tokenize::{Analyzer, Field, WORD_MARK, is_syllable, words};

/// Finds a query's terms in texts.
pub struct Matcher {
    /// For each term of the query its place in the query.
    terms: FxHashMap<String, usize>,
    /// `beginning` of the terms in ASCII: most words of a text are passed over by this alone.
    beginnings: Vec<Vec<u8>>,
    /// The first characters of terms in Hangul.
    syllables: Vec<char>,
    grams: Analyzer,
    words: Analyzer,
    /// Words met before with their terms: hits on one query share most of theirs.
    known: RefCell<FxHashMap<Box<str>, Vec<usize>>>,
}

/// A word of a text that holds terms of the query.
#[derive(Debug, Clone, PartialEq)]
pub struct Match {
    pub range: Range<usize>,
    /// Places of the terms in the query.
    pub terms: Vec<usize>,
}

impl Matcher {
    pub fn new(query: &Query) -> Matcher {
        let terms: FxHashMap<String, usize> =
            query.terms.iter().enumerate().map(|(place, (term, _))| (term.clone(), place)).collect();
        let mut beginnings: Vec<Vec<u8>> =
            terms.keys().filter(|term| term.is_ascii()).map(|term| beginning(term.as_bytes())).collect();
        beginnings.sort_unstable();
        beginnings.dedup();
        let first = |term: &String| term.trim_start_matches(WORD_MARK).chars().next();
        let syllables = terms.keys().filter_map(first).filter(|c| is_syllable(*c)).collect();
        Matcher {
            terms,
            beginnings,
            syllables,
            grams: Analyzer::new(Field::Grams),
            words: Analyzer::new(Field::Words),
            known: RefCell::default(),
        }
    }

    /// False if the word certainly holds no term.
    fn may_hold(&self, word: &str) -> bool {
        let bytes = word.as_bytes();
        if !word.is_ascii() {
            // A term of Hangul begins with a syllable of the word; of other scripts nothing is known beforehand.
            return !word.chars().all(is_syllable) || word.chars().any(|c| self.syllables.contains(&c));
        }
        // Terms begin where a word, a part of an identifier or a number after `v` does.
        let begins = |i: usize| match i.checked_sub(1).map(|before| bytes[before]) {
            None => true,
            Some(before) => {
                bytes[i].is_ascii_uppercase() || !before.is_ascii_alphanumeric() || (i == 1 && before | 32 == b'v')
            }
        };
        (0..bytes.len()).any(|i| bytes[i].is_ascii_alphanumeric() && begins(i) && self.may_begin(&bytes[i..]))
    }

    /// Whether a term begins like this, separators left out.
    fn may_begin(&self, part: &[u8]) -> bool {
        let begins_like = |beginning: &Vec<u8>| {
            let mut letters = part.iter().filter(|byte| byte.is_ascii_alphanumeric());
            beginning.iter().all(|letter| letters.next().is_some_and(|byte| byte.to_ascii_lowercase() == *letter))
        };
        self.beginnings.iter().any(begins_like)
    }

    /// The words of `text` that hold a term, in order.
    pub fn matches(&self, text: &str) -> Vec<Match> {
        let mut found = Vec::new();
        if self.terms.is_empty() {
            return found;
        }
        let mut known = self.known.borrow_mut();
        for (start, word) in words(text) {
            if !self.may_hold(word) {
                continue;
            }
            if let Some(terms) = known.get(word) {
                if !terms.is_empty() {
                    found.push(Match { range: start..start + word.len(), terms: terms.clone() });
                }
                continue;
            }
            let terms = self.terms_of(word);
            if !terms.is_empty() {
                found.push(Match { range: start..start + word.len(), terms: terms.clone() });
            }
            known.insert(word.into(), terms);
        }
        found
    }

    /// Places of the terms that the word holds.
    fn terms_of(&self, word: &str) -> Vec<usize> {
        let mut terms = Vec::new();
        let mut note = |term: &str| {
            if let Some(&place) = self.terms.get(term)
                && !terms.contains(&place)
            {
                terms.push(place);
            }
        };
        self.grams.terms(word, &mut note);
        if !word.is_ascii() {
            self.words.terms(word, &mut note);
        }
        terms
    }
}

/// The letters that a word surely shares with its stem: all but the last two, and the first. The stemmer takes endings
/// away, and of what it leaves it changes two letters at most: `usability` becomes `usabl`, `dying` becomes `die`.
fn beginning(term: &[u8]) -> Vec<u8> {
    let mut letters: Vec<u8> =
        term.iter().filter(|byte| byte.is_ascii_alphanumeric()).map(u8::to_ascii_lowercase).collect();
    letters.truncate(letters.len().saturating_sub(2).max(1));
    letters
}

/// The window of at most `limit` characters that holds the most different terms, then the most matches, then
/// comes first. It starts at a line or a word and ends at one, or at a grapheme where a word is longer than the
/// window; blank edges are trimmed.
pub fn window(text: &str, matches: &[Match], limit: usize) -> Range<usize> {
    let whole = trim(text, 0..text.len());
    if text[whole.clone()].chars().nth(limit).is_none() {
        return whole;
    }
    let first = best_run(text, matches, limit).unwrap_or(whole.start);
    // A third of the window leads up to the first match, so that it can be read.
    let earliest = back(text, whole.start, first, limit / 3);
    let start = opening(text, whole.start, earliest, first);
    let end = forward(text, start, whole.end, limit);
    let cut = closing(text, start, end, whole.end);
    trim(text, start..cut)
}

/// Where the best run of matches that fits the window begins. The window slides: each match enters and leaves once.
fn best_run(text: &str, matches: &[Match], limit: usize) -> Option<usize> {
    let room = limit - limit / 3;
    let places = matches.iter().flat_map(|found| &found.terms).max().map_or(0, |place| place + 1);
    let mut counts = vec![0usize; places];
    let (mut different, mut all, mut entered) = (0, 0, 0);
    let mut best: Option<((usize, usize), usize)> = None;
    let mut at = matches.first()?.range.start;
    let mut end = forward(text, at, text.len(), room);
    for (i, first) in matches.iter().enumerate() {
        let moved = text[at..first.range.start].chars().count();
        at = first.range.start;
        end = forward(text, end, text.len(), moved);
        while let Some(next) = matches.get(entered).filter(|next| entered <= i || next.range.end <= end) {
            for &place in &next.terms {
                different += usize::from(counts[place] == 0);
                counts[place] += 1;
                all += 1;
            }
            entered += 1;
        }
        if best.is_none_or(|(most, _)| (different, all) > most) {
            best = Some(((different, all), at));
        }
        for &place in &first.terms {
            counts[place] -= 1;
            different -= usize::from(counts[place] == 0);
            all -= 1;
        }
    }
    best.map(|(_, start)| start)
}

/// The start of the last line in `earliest..=first`, else of the first word there.
fn opening(text: &str, floor: usize, earliest: usize, first: usize) -> usize {
    if earliest <= floor {
        return floor;
    }
    if let Some(at) = text[earliest..first].find('\n') {
        return earliest + at + 1;
    }
    text[earliest..first].find(char::is_whitespace).map_or(first, |at| earliest + at)
}

/// The last word boundary in `start..end`, else the last grapheme boundary, if more text follows.
fn closing(text: &str, start: usize, end: usize, whole: usize) -> usize {
    if end >= whole || text[end..].starts_with(char::is_whitespace) {
        return end;
    }
    let half = back(text, start, end, text[start..end].chars().count() / 3);
    if let Some(at) = text[half..end].rfind(char::is_whitespace) {
        return half + at;
    }
    let last = text[start..]
        .grapheme_indices(true)
        .map(|(at, grapheme)| start + at + grapheme.len())
        .take_while(|at| *at <= end)
        .last();
    last.unwrap_or(end)
}

/// `count` characters before `from`, not before `floor`.
fn back(text: &str, floor: usize, from: usize, count: usize) -> usize {
    match count.checked_sub(1) {
        Some(skipped) => text[floor..from].char_indices().rev().nth(skipped).map_or(floor, |(at, _)| floor + at),
        None => from,
    }
}

/// `count` characters behind `from`, not behind `ceiling`.
fn forward(text: &str, from: usize, ceiling: usize, count: usize) -> usize {
    text[from..ceiling].char_indices().nth(count).map_or(ceiling, |(at, _)| from + at)
}

fn trim(text: &str, range: Range<usize>) -> Range<usize> {
    let slice = &text[range.clone()];
    let start = range.start + slice.len() - slice.trim_start().len();
    start..(range.start + slice.trim_end().len()).max(start)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn snippet<'t>(text: &'t str, query: &str, limit: usize) -> &'t str {
        let matches = Matcher::new(&Query::parse(query)).matches(text);
        &text[window(text, &matches, limit)]
    }

    #[test]
    fn a_short_text_is_shown_whole() {
        assert_eq!(snippet("  All of it.\n", "nothing", 50), "All of it.");
    }

    #[test]
    fn no_word_that_holds_a_term_is_passed_over() {
        let words = [
            "getUserName",
            "get_user_name",
            "_private",
            "HTTPServer",
            "parseHTTPRequest",
            "v1.0.21",
            "V2.5",
            "3.14",
            "Node.js",
            "user's",
            "don't",
            "Don't",
            "sky",
            "skies",
            "crying",
            "cries",
            "try",
            "Yes",
            "yearly",
            "dying",
            "dies",
            "skies",
            "ties",
            "tying",
            "usability",
            "usable",
            "ability",
            "hoping",
            "hopped",
            "relational",
            "rationally",
            "sensibilities",
            "gently",
            "only",
            "innings",
            "generically",
            "communism",
            "agency",
            "agent's",
            "a_b",
            "aB",
            "x86_64",
            "A.B.C",
            "검색",
            "검색을",
            "검색하는",
            "저장소에서는",
            "재시작server",
            "MCP를",
            "東京都",
            "café",
            "CaféLatte",
            "ＡＢＣ",
            "한",
            "을",
            "sha256sum",
            "__init__",
            "ABC",
            "ab",
            "a",
            "I",
            "é",
            "o'clock",
            "2nd",
            "4711",
            "u\u{308}ber",
        ];
        for query in words {
            let matcher = Matcher::new(&Query::parse(query));
            for word in words {
                let found = !matcher.matches(word).is_empty();
                assert_eq!(found, !matcher.terms_of(word).is_empty(), "{query} in {word}");
            }
            assert!(Query::parse(query).terms.is_empty() || !matcher.matches(query).is_empty(), "{query}");
        }
    }

    #[test]
    fn the_window_goes_where_the_terms_are() {
        let text = format!(
            "{} To shut down the daemon, send SIGTERM. {}",
            "Filler words here. ".repeat(20),
            "More of them. ".repeat(20)
        );
        assert_eq!(
            snippet(&text, "daemon shutdown SIGTERM", 60),
            "To shut down the daemon, send SIGTERM. More of them. More"
        );
    }

    #[test]
    fn korean_is_cut_between_words() {
        let text = format!(
            "{}저장소 전략은 하나의 파일입니다. {}",
            "다른 이야기를 합니다. ".repeat(20),
            "그리고 끝. ".repeat(20)
        );
        assert_eq!(snippet(&text, "저장소 전략", 30), "합니다. 저장소 전략은 하나의 파일입니다. 그리고");
    }

    #[test]
    fn graphemes_stay_whole_where_there_are_no_words() {
        let family = "👨‍👩‍👧";
        let text = family.repeat(40);
        let shown = snippet(&text, "x", 13);
        assert_eq!(shown, family.repeat(2));
    }
}
