//! Text → terms, the same for documents and queries.
//!
//! A term is NFKC-normalised, lower-case text of at most `MAX_TERM_BYTES`. Words of alphabetic scripts are
//! stemmed (Snowball English for ASCII), identifiers are split and kept whole, English stop words are dropped.
//! Han, Kana and the scripts of South-East Asia, which put no spaces between words, become bigrams.
//! Korean is indexed as two fields: bigrams of syllables, and whole words with their particles stripped.
//! The words of the second field start with `WORD_MARK`, so the two never meet in one posting list.

use std::borrow::Cow;
use std::sync::LazyLock;

use rust_stemmers::{Algorithm, Stemmer};
use rustc_hash::FxHashSet;
use unicode_normalization::{IsNormalized, UnicodeNormalization, char::is_combining_mark, is_nfkc_quick};

/// Names this analyser; a segment made by another one is rebuilt.
pub const VERSION: &str = "terms-2";

/// Longer words are cut here: nobody types them, but a pasted one is cut the same way and still matches.
pub const MAX_TERM_BYTES: usize = 64;

/// Leads the terms of whole Korean words.
pub const WORD_MARK: char = '\u{1}';

/// The two fields a Korean text is indexed as. They differ in Hangul alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Field {
    /// Hangul as bigrams of syllables.
    Grams,
    /// Hangul as whole words, particles stripped.
    Words,
}

/// Splits text into the terms of one field.
pub struct Analyzer {
    field: Field,
    stemmer: Stemmer,
}

impl Analyzer {
    pub fn new(field: Field) -> Analyzer {
        Analyzer { field, stemmer: Stemmer::create(Algorithm::English) }
    }

    /// Calls `emit` with each term in the order of the text.
    pub fn terms(&self, text: &str, mut emit: impl FnMut(&str)) {
        let mut scratch = String::new();
        for (_, run) in words(text) {
            self.run_terms(run, &mut scratch, &mut emit);
        }
    }

    /// The terms of one of the `words` of a text: they do not depend on what stands around it.
    pub fn run_terms(&self, run: &str, scratch: &mut String, emit: &mut impl FnMut(&str)) {
        match run.is_ascii() {
            true => self.ascii_run(run, scratch, emit),
            false => self.unicode_run(run, scratch, emit),
        }
    }

    fn ascii_run(&self, run: &str, scratch: &mut String, emit: &mut impl FnMut(&str)) {
        if let Some(version) = dotted_number(run) {
            emit(cut(version));
            return;
        }
        for word in run.split('.') {
            self.identifier(word, scratch, emit);
        }
    }

    /// A word of ASCII letters, digits, `_` and `'`: its parts, and the whole without separators, stemmed as the same
    /// word is that somebody types in lower case.
    fn identifier(&self, word: &str, scratch: &mut String, emit: &mut impl FnMut(&str)) {
        let word = word.trim_matches(|c| c == '_' || c == '\'');
        if word.is_empty() {
            return;
        }
        let mut parts = 0;
        for part in IdentifierParts::new(word) {
            parts += 1;
            self.word(part, scratch, emit);
        }
        if parts > 1 {
            scratch.clear();
            scratch.extend(word.bytes().filter(|b| b.is_ascii_alphanumeric()).map(|b| b.to_ascii_lowercase() as char));
            emit(&self.stemmer.stem(cut(scratch)));
        }
    }

    /// One plain ASCII word: dropped if a stop word, else its stem.
    fn word(&self, word: &str, scratch: &mut String, emit: &mut impl FnMut(&str)) {
        scratch.clear();
        scratch.push_str(cut(word));
        scratch.make_ascii_lowercase();
        if scratch.bytes().all(|b| b.is_ascii_digit()) {
            emit(scratch);
        } else if STOP_WORDS.binary_search(&scratch.as_str()).is_err() {
            let stem = self.stemmer.stem(scratch);
            match stem.contains('\'') {
                true => emit(&stem.replace('\'', "")),
                false => emit(&stem),
            }
        }
    }

    /// A word with letters beyond ASCII: its parts at `.` and `_` and where capitals begin, and the whole without
    /// separators.
    fn foreign_identifier(&self, piece: &str, scratch: &mut String, emit: &mut impl FnMut(&str)) {
        let mut parts = 0;
        for part in piece.split(['.', '_', '\'']).flat_map(CamelParts) {
            parts += 1;
            match part.is_ascii() {
                true => self.word(part, scratch, emit),
                false => emit(cut(&part.to_lowercase())),
            }
        }
        if parts > 1 {
            scratch.clear();
            scratch.push_str(&piece.replace(['.', '_', '\''], "").to_lowercase());
            emit(cut(scratch));
        }
    }

    /// A run with characters beyond ASCII: normalised, then split by script.
    fn unicode_run(&self, run: &str, scratch: &mut String, emit: &mut impl FnMut(&str)) {
        let normal = normalise(run);
        let mut previous_was_word = false;
        for (script, piece) in ScriptPieces(&normal) {
            match script {
                Script::Alphabetic if piece.is_ascii() => self.ascii_run(piece, scratch, emit),
                Script::Alphabetic => self.foreign_identifier(piece, scratch, emit),
                Script::Unspaced => {
                    grams(piece, emit);
                    last_of_run(piece, emit);
                }
                // A particle glued to a foreign word (`MCP를`) says nothing.
                Script::Hangul if previous_was_word && PARTICLE_SET.contains(piece) => {}
                Script::Hangul => match self.field {
                    Field::Grams => {
                        grams(piece, emit);
                        last_of_run(piece, emit);
                    }
                    Field::Words => {
                        scratch.clear();
                        scratch.push(WORD_MARK);
                        scratch.push_str(strip_particle(piece));
                        emit(cut(scratch));
                    }
                },
            }
            previous_was_word = script == Script::Alphabetic;
        }
    }
}

/// Whether the two fields of this text differ, so that it must be analysed twice.
pub fn has_hangul(text: &str) -> bool {
    // Every Hangul block begins at or after U+1100, which UTF-8 writes with a lead byte of 0xE1 or more.
    !text.is_ascii() && text.chars().any(is_hangul)
}

/// NFKC and lower case: how terms are written, and how phrases are compared.
pub fn fold(text: &str) -> Cow<'_, str> {
    if text.is_ascii() {
        return match text.bytes().any(|b| b.is_ascii_uppercase()) {
            true => Cow::Owned(text.to_ascii_lowercase()),
            false => Cow::Borrowed(text),
        };
    }
    Cow::Owned(normalise(text).to_lowercase())
}

/// NFKC.
fn normalise(text: &str) -> Cow<'_, str> {
    match text.chars().all(is_syllable) || is_nfkc_quick(text.chars()) == IsNormalized::Yes {
        true => Cow::Borrowed(text),
        false => Cow::Owned(text.nfkc().collect()),
    }
}

/// A Hangul syllable, which normalisation leaves alone.
pub fn is_syllable(c: char) -> bool {
    matches!(c, '\u{AC00}'..='\u{D7A3}')
}

/// The words of a text with their byte ranges, for snippets, highlighting and phrases: what `Analyzer` makes
/// terms of, before it does.
pub fn words(text: &str) -> impl Iterator<Item = (usize, &str)> {
    Runs::new(text).map(move |run| (run.as_ptr() as usize - text.as_ptr() as usize, run))
}

/// Words and numbers of a text, folded and joined by single spaces: the form phrases are compared in.
pub fn phrase_form(text: &str) -> String {
    let mut form = String::with_capacity(text.len());
    for run in Runs::new(text) {
        if !form.is_empty() {
            form.push(' ');
        }
        form.push_str(&fold(run));
    }
    form
}

/// Whether `form` (of a text) holds `phrase` at word boundaries. After a CJK character no boundary is asked
/// for: particles and compounds follow without a space.
pub fn holds_phrase(form: &str, phrase: &str) -> bool {
    form.match_indices(phrase).any(|(start, found)| {
        let open = |c: Option<char>| c.is_none_or(|c| !c.is_alphanumeric());
        let unspaced = |c: Option<char>| c.is_some_and(|c| !matches!(script_of(c), Script::Alphabetic));
        let before = form[..start].chars().next_back();
        let after = form[start + found.len()..].chars().next();
        (open(before) || unspaced(phrase.chars().next()) || unspaced(before))
            && (open(after) || unspaced(phrase.chars().next_back()) || unspaced(after))
    })
}

fn cut(term: &str) -> &str {
    &term[..term.floor_char_boundary(MAX_TERM_BYTES)]
}

/// `v1.0.21` → `1.0.21`; None if the run is not a dotted number.
fn dotted_number(run: &str) -> Option<&str> {
    let number = run.strip_prefix(['v', 'V']).unwrap_or(run);
    let dotted = number.contains('.')
        && number.split('.').all(|part| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit()));
    dotted.then_some(number)
}

/// Overlapping pairs of characters; a single character stands for itself.
fn grams(piece: &str, emit: &mut impl FnMut(&str)) {
    let mut starts = piece.char_indices().map(|(at, _)| at).chain([piece.len()]);
    let (Some(mut first), Some(mut second)) = (starts.next(), starts.next()) else { return };
    if second == piece.len() {
        emit(piece);
        return;
    }
    for third in starts {
        emit(&piece[first..third]);
        (first, second) = (second, third);
    }
}

/// The last character of a longer run alone, so that a query of one character finds every run it stands in: elsewhere it
/// leads a bigram, which the dictionary can look up by prefix.
fn last_of_run(piece: &str, emit: &mut impl FnMut(&str)) {
    if let Some((last, _)) = piece.char_indices().next_back().filter(|(at, _)| *at > 0) {
        emit(&piece[last..]);
    }
}

/// The word without its particle or ending, if at least two syllables remain.
fn strip_particle(word: &str) -> &str {
    let syllables = word.chars().count();
    for length in (1..=MAX_PARTICLE_SYLLABLES.min(syllables.saturating_sub(2))).rev() {
        let Some((at, _)) = word.char_indices().nth(syllables - length) else { continue };
        if PARTICLE_SET.contains(&word[at..]) {
            return &word[..at];
        }
    }
    word
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Script {
    Alphabetic,
    Hangul,
    /// Written without spaces between words.
    Unspaced,
}

pub fn script_of(c: char) -> Script {
    if is_hangul(c) {
        Script::Hangul
    } else if is_unspaced(c) {
        Script::Unspaced
    } else {
        Script::Alphabetic
    }
}

fn is_hangul(c: char) -> bool {
    matches!(c, '\u{1100}'..='\u{11FF}' | '\u{3131}'..='\u{318E}' | '\u{A960}'..='\u{A97C}' | '\u{AC00}'..='\u{D7FB}' | '\u{FFA0}'..='\u{FFDC}')
}

fn is_unspaced(c: char) -> bool {
    matches!(c,
        '\u{0E00}'..='\u{0EFF}' | '\u{1000}'..='\u{109F}' | '\u{1780}'..='\u{17FF}'          // Thai, Lao, Myanmar, Khmer
        | '\u{2E80}'..='\u{2FDF}' | '\u{3005}'..='\u{3007}' | '\u{3021}'..='\u{3029}'        // radicals, ideographic marks
        | '\u{3041}'..='\u{30FF}' | '\u{31F0}'..='\u{31FF}' | '\u{FF66}'..='\u{FF9F}'        // Kana
        | '\u{3105}'..='\u{312F}'                                                            // Bopomofo
        | '\u{3400}'..='\u{4DBF}' | '\u{4E00}'..='\u{9FFF}' | '\u{F900}'..='\u{FAFF}' | '\u{20000}'..='\u{3FFFF}') // Han
}

/// Maximal runs of word characters: letters, digits, marks, `_`, an apostrophe between letters, a dot between
/// letters or digits.
struct Runs<'t> {
    text: &'t str,
    at: usize,
}

impl<'t> Runs<'t> {
    fn new(text: &'t str) -> Self {
        Runs { text, at: 0 }
    }
}

impl<'t> Iterator for Runs<'t> {
    type Item = &'t str;

    fn next(&mut self) -> Option<&'t str> {
        let bytes = self.text.as_bytes();
        let mut at = self.at;
        while let Some(&byte) = bytes.get(at) {
            match byte {
                0..0x80 if ASCII_WORD[byte as usize] => break,
                0..0x80 => at += 1,
                _ => match unicode_word_char(self.text, at) {
                    (_, true) => break,
                    (len, false) => at += len,
                },
            }
        }
        let start = at;
        while let Some(&byte) = bytes.get(at) {
            match byte {
                0..0x80 if ASCII_WORD[byte as usize] => at += 1,
                b'.' | b'\''
                    if at > start
                        && bytes[at - 1].is_ascii_alphanumeric()
                        && bytes.get(at + 1).is_some_and(u8::is_ascii_alphanumeric) =>
                {
                    at += 1;
                }
                0..0x80 => break,
                _ => match unicode_word_char(self.text, at) {
                    (len, true) => at += len,
                    (_, false) => break,
                },
            }
        }
        self.at = at;
        (start < at).then(|| &self.text[start..at])
    }
}

const ASCII_WORD: [bool; 128] = {
    let mut table = [false; 128];
    let mut byte = 0;
    while byte < 128 {
        table[byte] = (byte as u8).is_ascii_alphanumeric() || byte as u8 == b'_';
        byte += 1;
    }
    table
};

/// The length of the character at `at`, and whether it is part of a word.
fn unicode_word_char(text: &str, at: usize) -> (usize, bool) {
    let c = text[at..].chars().next().unwrap_or('\u{FFFD}');
    // What most texts are made of, without a search through the tables of Unicode.
    let is_word = match c {
        '\u{AC00}'..='\u{D7A3}' | '\u{3041}'..='\u{3096}' | '\u{30A1}'..='\u{30FA}' | '\u{4E00}'..='\u{9FFF}' => true,
        '\u{C0}'..='\u{24F}' => !matches!(c, '×' | '÷'),
        '\u{2010}'..='\u{2027}' | '\u{3001}'..='\u{3004}' | '\u{3008}'..='\u{3020}' => false,
        _ => c.is_alphanumeric() || is_combining_mark(c),
    };
    (c.len_utf8(), is_word)
}

/// `getHTTPName_2` → `get`, `HTTP`, `Name`, `2`.
struct IdentifierParts<'w> {
    word: &'w str,
    at: usize,
}

impl<'w> IdentifierParts<'w> {
    fn new(word: &'w str) -> Self {
        IdentifierParts { word, at: 0 }
    }
}

impl<'w> Iterator for IdentifierParts<'w> {
    type Item = &'w str;

    fn next(&mut self) -> Option<&'w str> {
        let bytes = self.word.as_bytes();
        while self.at < bytes.len() && bytes[self.at] == b'_' {
            self.at += 1;
        }
        let start = self.at;
        for at in start..bytes.len() {
            let (byte, next) = (bytes[at], bytes.get(at + 1));
            let camel = at > start
                && byte.is_ascii_uppercase()
                && (bytes[at - 1].is_ascii_lowercase()
                    || bytes[at - 1].is_ascii_digit()
                    || (bytes[at - 1].is_ascii_uppercase() && next.is_some_and(u8::is_ascii_lowercase)));
            if byte == b'_' || camel {
                self.at = at;
                return Some(&self.word[start..at]);
            }
        }
        self.at = bytes.len();
        (start < bytes.len()).then(|| &self.word[start..])
    }
}

/// `größeÄndern` → `größe`, `Ändern`; `HTTPÜber` → `HTTP`, `Über`: as `IdentifierParts` does in ASCII.
struct CamelParts<'w>(&'w str);

impl<'w> Iterator for CamelParts<'w> {
    type Item = &'w str;

    fn next(&mut self) -> Option<&'w str> {
        let mut before = None;
        let mut chars = self.0.char_indices().peekable();
        let mut end = self.0.len();
        while let Some((at, c)) = chars.next() {
            let small_follows = chars.peek().is_some_and(|(_, next)| next.is_lowercase());
            let begins =
                |before: char| before.is_lowercase() || before.is_numeric() || (before.is_uppercase() && small_follows);
            if c.is_uppercase() && before.is_some_and(begins) {
                end = at;
                break;
            }
            before = Some(c);
        }
        let (part, rest) = self.0.split_at(end);
        self.0 = rest;
        (!part.is_empty()).then_some(part)
    }
}

/// Cuts a normalised run where its script changes; marks and digits stay with what precedes them.
struct ScriptPieces<'r>(&'r str);

impl<'r> Iterator for ScriptPieces<'r> {
    type Item = (Script, &'r str);

    fn next(&mut self) -> Option<(Script, &'r str)> {
        let script = script_of(self.0.chars().next()?);
        let end = self
            .0
            .char_indices()
            .find(|&(_, c)| !is_combining_mark(c) && script_of(c) != script)
            .map_or(self.0.len(), |(at, _)| at);
        let (piece, rest) = self.0.split_at(end);
        self.0 = rest;
        Some((script, piece))
    }
}

const MAX_PARTICLE_SYLLABLES: usize = 4;

/// Korean particles, the copula's common forms and the endings of 하다 and 되다 that turn a noun into a verb.
#[rustfmt::skip]
const PARTICLES: &[&str] = &[
    "은", "는", "이", "가", "을", "를", "의", "에", "와", "과", "도", "만", "로", "나", "야", "들",
    "에서", "에게", "한테", "께서", "으로", "로서", "로써", "까지", "부터", "조차", "마저", "밖에", "처럼", "같이", "보다",
    "마다", "이나", "이랑", "하고", "라도", "이란", "라는", "이며", "이고", "이다", "이야", "인가", "인지", "에는", "에도",
    "에만", "로는", "로도", "와는", "과는", "들은", "들이", "들을", "들의", "들도", "들에", "에의", "만의", "만이", "만을",
    "에게서", "한테서", "으로서", "으로써", "으로는", "으로도", "에서는", "에서도", "에서의", "에게는", "이라도", "이라는",
    "까지는", "까지의", "부터는", "부터의", "입니다", "인가요", "이에요", "입니까", "들에게", "들에서", "들까지", "으로의",
    "이었다", "에서만", "으로만", "였다", "예요", "네요", "이라고", "라고",
    "하는", "하다", "한다", "하여", "해서", "했다", "하면", "하기", "하지", "하고", "할지", "해야", "합니다", "합니까", "하나요",
    "하려면", "했습니다", "하도록", "하거나", "하면서", "하는지", "하세요", "해주는", "되는", "되다", "된다", "되어", "돼서",
    "됐다", "되면", "되기", "되고", "됩니다", "됩니까", "되나요", "되었다", "된",  "한", "할", "될", "함", "됨",
];

static PARTICLE_SET: LazyLock<FxHashSet<&str>> = LazyLock::new(|| PARTICLES.iter().copied().collect());

/// English function words. Sorted: looked up by binary search.
#[rustfmt::skip]
const STOP_WORDS: &[&str] = &[
    "a", "about", "above", "after", "again", "against", "all", "also", "am", "an", "and", "any", "are", "aren't", "as", "at",
    "be", "because", "been", "before", "being", "below", "between", "both", "but", "by", "can", "can't", "cannot", "could",
    "couldn't", "did", "didn't", "do", "does", "doesn't", "doing", "don't", "down", "during", "each", "few", "for", "from",
    "further", "had", "hadn't", "has", "hasn't", "have", "haven't", "having", "he", "her", "here", "hers", "him", "his", "how",
    "i", "if", "in", "into", "is", "isn't", "it", "it's", "its", "itself", "just", "let's", "me", "more", "most", "my",
    "no", "nor", "not", "of", "off", "on", "once", "only", "or", "other", "our", "ours", "out", "over", "own", "same", "she",
    "should", "shouldn't", "so", "some", "such", "than", "that", "that's", "the", "their", "theirs", "them", "then", "there",
    "these", "they", "this", "those", "through", "to", "too", "under", "until", "up", "very", "was", "wasn't", "we", "were",
    "weren't", "what", "what's", "when", "where", "which", "while", "who", "whom", "why", "will", "with", "won't", "would",
    "wouldn't", "you", "your", "yours",
];

#[cfg(test)]
mod tests {
    use super::*;

    fn terms(field: Field, text: &str) -> Vec<String> {
        let mut terms = Vec::new();
        Analyzer::new(field).terms(text, |term| terms.push(term.to_owned()));
        terms
    }

    #[test]
    fn english_is_stemmed_and_function_words_are_dropped() {
        assert_eq!(terms(Field::Grams, "The kernels of the Kernel's scheduler"), ["kernel", "kernel", "schedul"]);
    }

    #[test]
    fn identifiers_are_split_and_kept_whole() {
        assert_eq!(terms(Field::Grams, "getUserName"), ["get", "user", "name", "getusernam"]);
        assert_eq!(terms(Field::Grams, "get_user_name()"), ["get", "user", "name", "getusernam"]);
        assert_eq!(terms(Field::Grams, "parseHTTPRequest"), ["pars", "http", "request", "parsehttprequest"]);
        assert_eq!(terms(Field::Grams, "std::net v1.0.21, Node.js"), ["std", "net", "1.0.21", "node", "js"]);
    }

    #[test]
    fn identifiers_are_split_whatever_letters_they_have() {
        assert_eq!(terms(Field::Grams, "größeÄndern"), ["größe", "ändern", "größeändern"]);
        assert_eq!(terms(Field::Grams, "HTTPÜbertragung"), ["http", "übertragung", "httpübertragung"]);
        assert_eq!(terms(Field::Grams, "naïveBayes_v2"), ["naïve", "bay", "v2", "naïvebayesv2"]);
        assert_eq!(terms(Field::Grams, "ÜBER Über über"), ["über", "über", "über"]);
        assert_eq!(terms(Field::Grams, "getUserName을"), ["get", "user", "name", "getusernam"]);
        assert_eq!(terms(Field::Words, "설정getUserName"), ["\u{1}설정", "get", "user", "name", "getusernam"]);
    }

    #[test]
    fn korean_has_two_fields() {
        assert_eq!(terms(Field::Grams, "검색을 하는"), ["검색", "색을", "을", "하는", "는"]);
        assert_eq!(terms(Field::Words, "검색을 저장소에서는"), ["\u{1}검색", "\u{1}저장소"]);
        assert_eq!(terms(Field::Words, "검색하는 꽃을"), ["\u{1}검색", "\u{1}꽃을"]);
        assert_eq!(terms(Field::Words, "재시작server MCP를"), ["\u{1}재시작", "server", "mcp"]);
    }

    #[test]
    fn decomposed_hangul_and_full_width_letters_are_normalised() {
        assert_eq!(
            terms(Field::Grams, "\u{1100}\u{1165}\u{11B7}\u{1109}\u{1162}\u{11A8} ＡＢＣ"),
            ["검색", "색", "abc"]
        );
    }

    #[test]
    fn unspaced_scripts_become_bigrams_and_a_last_character() {
        assert_eq!(terms(Field::Words, "重跑gen后"), ["重跑", "跑", "gen", "后"]);
        assert_eq!(terms(Field::Grams, "検索する"), ["検索", "索す", "する", "る"]);
    }

    #[test]
    fn phrases_end_at_words_but_not_before_particles() {
        let form = phrase_form("Shut down the daemon (v1.0.21), 검색을 한다");
        assert_eq!(form, "shut down the daemon v1.0.21 검색을 한다");
        assert!(holds_phrase(&form, &phrase_form("down THE daemon")));
        assert!(holds_phrase(&form, &phrase_form("검색")));
        assert!(!holds_phrase(&form, &phrase_form("the dae")));
        assert!(!holds_phrase(&form, &phrase_form("daemon the")));
    }

    #[test]
    fn word_characters_are_those_of_unicode() {
        for c in '\u{80}'..=char::MAX {
            let expected = (c.len_utf8(), c.is_alphanumeric() || is_combining_mark(c));
            assert_eq!(unicode_word_char(&c.to_string(), 0), expected, "{c:?}");
        }
    }

    #[test]
    fn tables_are_in_order() {
        assert!(STOP_WORDS.is_sorted());
        assert!(PARTICLES.iter().all(|p| p.chars().count() <= MAX_PARTICLE_SYLLABLES));
    }
}
