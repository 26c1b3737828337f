//! Is what a model says in the passages it cites? Pure: an answer and passages in, a verdict out.
//!
//! Every mark must name a passage that was given. Then each sentence is held against the passages it cites, by its
//! content words as the index sees them (stems, Korean without particles) and by its numbers. A paraphrase shares most
//! of its content words with what it paraphrases, an invention does not; what cannot be compared, because a passage is
//! in another script, counts neither way.
//!
//! Small models write no marks. A sentence without one is given that of the passage that holds nearly all of its words
//! and every number, if there is one: the mark is then ours, which the answer says, and counts for less.
//!
//! Refuses: telling true from false. A wrong sentence made of a passage's words is not found here.

use std::ops::Range;

use super::prompt::{NO_ANSWER, unmarked};
use crate::index::lexical::Query;
use crate::index::snippet::Matcher;
use crate::index::tokenize::{Script, WORD_MARK, script_of};

/// What of an answer can be given to anybody.
#[derive(Debug, Clone, PartialEq)]
pub struct Verdict {
    /// With marks of passages that were given only, each in its own brackets.
    pub text: String,
    /// Numbers of the passages it cites, ascending.
    pub cited: Vec<usize>,
    /// From 0 to 1.
    pub confidence: f32,
    /// How many sentences have a mark that the answer had not.
    pub attributed: usize,
}

/// Below this an answer is not given. It separates the examples of the tests here; no run of a model has fitted it, nor the
/// factors below.
pub const LEAST_CONFIDENCE: f32 = 0.35;

/// A mark of a passage that does not exist makes the rest less credible, too; and no mark is then set by us.
const FORGED: f32 = 0.7;

const OTHER_LANGUAGE: f32 = 0.5;

/// A sentence without a mark is a claim nobody can check.
const UNMARKED: f32 = 0.4;

/// A sentence whose mark is ours: its words are there, but nobody said that it was made of them.
const ATTRIBUTED: f32 = 0.8;

/// The share of its content words that a passage holds of a sentence without a mark to be given its own.
const ATTRIBUTABLE: f32 = 0.85;

/// A number that the passage does not have.
const WRONG_NUMBER: f32 = 0.5;

/// What nothing speaks for or against.
const UNDECIDED: f32 = 0.6;

/// The share of its content words that a paraphrase is taken to keep.
const FULL_SUPPORT: f32 = 0.7;

pub fn judge(answer: &str, question: &str, passages: &[&str]) -> Verdict {
    let (text, forged) = normalised(answer.trim(), passages.len());
    if declines(&text) {
        return Verdict { text, cited: Vec::new(), confidence: 0.0, attributed: 0 };
    }
    let (mut sum, mut all, mut attributed, mut marked) = (0.0, 0.0, 0, String::with_capacity(text.len()));
    let mut done = 0;
    for sentence in sentences(&text) {
        let (start, said) = (sentence.start, &text[sentence]);
        let claim = Claim::of(said);
        // Whoever names a passage that was not given did not make the rest of those that were.
        let source = if forged { None } else { claim.source(passages) };
        let (score, weight) = claim.support(passages, source);
        sum += score * weight;
        all += weight;
        if let Some(source) = source {
            let at = start + end_of_words(said);
            marked.push_str(&text[done..at]);
            marked.push_str(&format!(" [{}]", source + 1));
            done = at;
            attributed += 1;
        }
    }
    marked.push_str(&text[done..]);
    let mut cited: Vec<usize> = marks(&marked).into_iter().map(|(_, number)| number).collect();
    cited.sort_unstable();
    cited.dedup();
    let mut confidence = if all > 0.0 && !cited.is_empty() { sum / all } else { 0.0 };
    if forged {
        confidence *= FORGED;
    }
    if speaks_otherwise(&text, question) {
        confidence *= OTHER_LANGUAGE;
    }
    Verdict { text: marked, cited, confidence, attributed }
}

/// A sentence, as it is compared.
struct Claim {
    text: String,
    query: Query,
    /// Numbers of the passages it names, from 1.
    cited: Vec<usize>,
}

/// How much of a claim stands in passages.
struct Held {
    /// Content words that can be looked for there, and those that are there.
    asked: usize,
    had: usize,
    /// A number of the claim is not there.
    wrong_number: bool,
}

impl Claim {
    fn of(sentence: &str) -> Claim {
        let cited = marks(sentence).into_iter().map(|(_, number)| number).collect();
        let text = without_marks(sentence);
        let query = Query { phrases: Vec::new(), ..Query::parse(&text.replace('"', " ")) };
        Claim { text, query, cited }
    }

    fn held(&self, passages: &[&str]) -> Held {
        let terms = &self.query.terms;
        let matcher = Matcher::new(&self.query);
        let mut found = vec![false; terms.len()];
        for passage in passages {
            for word in matcher.matches(passage) {
                word.terms.iter().for_each(|term| found[*term] = true);
            }
        }
        let comparable = comparable_scripts(&self.text, passages);
        let mut held = Held { asked: 0, had: 0, wrong_number: false };
        for ((term, _), found) in terms.iter().zip(&found) {
            let number = term.bytes().any(|byte| byte.is_ascii_digit());
            held.wrong_number |= number && !found;
            if number || (comparable(term) && !is_ending(term)) {
                held.asked += 1;
                held.had += usize::from(*found);
            }
        }
        held
    }

    /// The passage that a sentence without a mark is of, if one holds it. None for a question, which claims nothing, and
    /// for words too few to tell one passage from another.
    fn source(&self, passages: &[&str]) -> Option<usize> {
        let asks = self.text.trim_end().ends_with(['?', '？']);
        if !self.cited.is_empty() || asks || self.leads_on() || self.query.terms.len() < 2 {
            return None;
        }
        let mut best = None;
        for (place, passage) in passages.iter().enumerate() {
            let held = self.held(&[*passage]);
            let share = held.had as f32 / held.asked.max(1) as f32;
            let enough = held.asked >= 2 && share >= ATTRIBUTABLE && !held.wrong_number;
            // Of equals the first, which ranks higher.
            if enough && best.is_none_or(|(most, _)| share > most) {
                best = Some((share, place));
            }
        }
        best.map(|(_, place)| place)
    }

    /// True for a line that only leads to the next ones.
    fn leads_on(&self) -> bool {
        self.cited.is_empty() && self.text.trim_end().ends_with(':')
    }

    /// How far the passages hold it, and how much it says. `source` is the passage that it was found to be of.
    fn support(&self, passages: &[&str], source: Option<usize>) -> (f32, f32) {
        let words = self.query.terms.len();
        if self.leads_on() || (words < 2 && self.cited.is_empty()) {
            return (0.0, 0.0);
        }
        let given: Vec<&str> = match (source, self.cited.is_empty()) {
            (Some(source), _) => passages.get(source).copied().into_iter().collect(),
            (None, true) => passages.to_vec(),
            (None, false) => self.cited.iter().filter_map(|number| passages.get(number - 1).copied()).collect(),
        };
        let held = self.held(&given);
        let mut score = match held.asked {
            0 => UNDECIDED,
            asked => (held.had as f32 / asked as f32 / FULL_SUPPORT).min(1.0),
        };
        if held.wrong_number {
            score *= WRONG_NUMBER;
        }
        if source.is_some() {
            score *= ATTRIBUTED;
        } else if self.cited.is_empty() {
            score *= UNMARKED;
        }
        // A mark with nothing before it says nothing.
        let weight = if words == 0 { 0.0 } else { (words as f32).clamp(2.0, 30.0) };
        (score, weight)
    }
}

/// Pairs of syllables that end Korean sentences: they tell how politely something is said.
#[rustfmt::skip]
const ENDINGS: &[&str] = &[
    "있습", "없습", "습니", "니다", "입니", "합니", "됩니", "십니", "겠습", "었습", "았습", "했습", "였습", "이다", "하다", "되다",
    "있다", "없다", "한다", "된다", "했다", "됐다", "였다", "었다", "았다", "는다", "세요", "어요", "아요", "에요", "예요", "해요",
];

/// True for what a Korean sentence ends with, and for its last word as a whole.
fn is_ending(term: &str) -> bool {
    match term.strip_prefix(WORD_MARK) {
        Some(word) => word.ends_with(['다', '요']),
        None => ENDINGS.contains(&term),
    }
}

/// Where a mark goes: behind the last word of a sentence, before its full stop.
fn end_of_words(sentence: &str) -> usize {
    let words = sentence.trim_end();
    words.strip_suffix(['.', '!', '。', '！']).unwrap_or(words).len()
}

/// Which terms can be looked for in these passages: those of a script that they are written in.
pub fn comparable_scripts(claim: &str, passages: &[&str]) -> impl Fn(&str) -> bool {
    let share = |script: Script| {
        let letters = passages.iter().flat_map(|passage| passage.chars()).filter(|c| c.is_alphabetic());
        let (mut of_it, mut all) = (0usize, 0usize);
        for c in letters {
            all += 1;
            of_it += usize::from(script_of(c) == script);
        }
        of_it as f32 / all.max(1) as f32
    };
    // Names and commands are written in Latin letters everywhere; whole sentences are not.
    let latin_claim = {
        let letters: Vec<char> = claim.chars().filter(|c| c.is_alphabetic()).collect();
        let latin = letters.iter().filter(|c| script_of(**c) == Script::Alphabetic).count();
        latin as f32 > 0.6 * letters.len() as f32
    };
    let hangul = share(Script::Hangul) >= 0.1;
    let unspaced = share(Script::Unspaced) >= 0.1;
    let alphabetic = share(Script::Alphabetic) >= 0.3 || !latin_claim;
    move |term| match term.chars().find(|c| c.is_alphabetic()).map(script_of) {
        Some(Script::Hangul) => hangul,
        Some(Script::Unspaced) => unspaced,
        Some(Script::Alphabetic) => alphabetic,
        None => true,
    }
}

/// True if the answer is in letters that the question has not got, or has none of the question's.
fn speaks_otherwise(answer: &str, question: &str) -> bool {
    let share = |text: &str, script: Script| {
        let letters: Vec<char> = text.chars().filter(|c| c.is_alphabetic()).collect();
        let of_it = letters.iter().filter(|c| script_of(**c) == script).count();
        of_it as f32 / letters.len().max(1) as f32
    };
    let (asked, told) = (share(question, Script::Hangul), share(answer, Script::Hangul));
    if asked > 0.0 {
        return asked >= 0.3 && told < 0.15;
    }
    told > 0.5 || share(answer, Script::Unspaced) > share(question, Script::Unspaced) + 0.5
}

/// True if the model says that the passages do not answer.
fn declines(text: &str) -> bool {
    let plain = without_marks(text);
    let plain = plain.trim().trim_matches(|c: char| !c.is_alphanumeric());
    if plain.is_empty() || plain.to_uppercase().replace(' ', "_").starts_with(NO_ANSWER) {
        return true;
    }
    // Only an answer that says nothing else: a list of what a tool does not contain is one, too.
    if sentences(text).len() > 1 {
        return false;
    }
    let said = plain.to_lowercase();
    let names = |words: &[&str]| words.iter().any(|word| said.contains(word));
    let of_documents = names(&["passage", "document", "text", "context", "문서", "구절", "자료", "본문"]);
    let lacking = names(&[
        "not contain",
        "not mention",
        "not provide",
        "not specif",
        "not answer",
        "no information",
        "not include",
        "언급되지 않",
        "언급이 없",
        "정보가 없",
        "나와 있지 않",
        "나오지 않",
        "찾을 수 없",
        "포함되어 있지 않",
        "답할 수 없",
    ]);
    of_documents && lacking
}

/// Every mark as `[1]`, those of passages that do not exist taken out; true if there were any of these.
fn normalised(answer: &str, passages: usize) -> (String, bool) {
    let mut text = String::with_capacity(answer.len());
    let (mut forged, mut done) = (false, 0);
    for (range, numbers) in raw_marks(answer) {
        text.push_str(&answer[done..range.start]);
        done = range.end;
        let mut any = false;
        for number in numbers {
            match (1..=passages).contains(&number) {
                true => {
                    any = true;
                    text.push_str(&format!("[{number}]"));
                }
                false => forged = true,
            }
        }
        if !any {
            text.truncate(text.trim_end_matches(' ').len());
        }
    }
    text.push_str(&answer[done..]);
    (text.trim().to_owned(), forged)
}

/// Marks of an answer that is normalised, with their places.
fn marks(text: &str) -> Vec<(Range<usize>, usize)> {
    raw_marks(text)
        .into_iter()
        .flat_map(|(range, numbers)| numbers.into_iter().map(move |number| (range.clone(), number)))
        .collect()
}

fn without_marks(text: &str) -> String {
    let (mut plain, mut done) = (String::with_capacity(text.len()), 0);
    for (range, _) in raw_marks(text) {
        plain.push_str(&text[done..range.start]);
        done = range.end;
    }
    plain.push_str(&text[done..]);
    plain
}

/// `[1]`, `[1, 2]`, `[1-3]`, `[^1]`, `[passage 2]` and `【1】` outside of quoted code.
fn raw_marks(text: &str) -> Vec<(Range<usize>, Vec<usize>)> {
    let code = code_spans(text);
    let mut found = Vec::new();
    let mut from = 0;
    while let Some(at) = text[from..].find(['[', '【']).map(|at| from + at) {
        let open = text[at..].chars().next().map_or(1, char::len_utf8);
        from = at + open;
        let Some(len) = text[from..].find([']', '】']) else { break };
        let close = text[from + len..].chars().next().map_or(1, char::len_utf8);
        if let Some(numbers) = numbers(&text[from..from + len])
            && !code.iter().any(|span| span.contains(&at))
        {
            from += len + close;
            found.push((at..from, numbers));
        }
    }
    found
}

fn numbers(inside: &str) -> Option<Vec<usize>> {
    if inside.len() > 60 {
        return None;
    }
    let lower = inside.to_lowercase();
    let mut numbers = Vec::new();
    for part in lower.split([',', ';', '&']) {
        let part =
            part.trim().trim_start_matches("passages").trim_start_matches("passage").trim_start_matches("source");
        let part = part.trim().trim_start_matches(['^', '#']);
        let whole = |text: &str| text.trim().parse::<usize>().ok().filter(|_| text.trim().len() <= 6);
        match part.split_once(['-', '–']) {
            None => numbers.push(whole(part)?),
            Some((first, last)) => {
                let (first, last) = (whole(first)?, whole(last)?);
                if last < first || last - first > 20 {
                    return None;
                }
                numbers.extend(first..=last);
            }
        }
    }
    (!numbers.is_empty()).then_some(numbers)
}

/// Between backticks, one or more.
fn code_spans(text: &str) -> Vec<Range<usize>> {
    let mut spans = Vec::new();
    let mut from = 0;
    while let Some(at) = text[from..].find('`').map(|at| from + at) {
        let ticks = text[at..].bytes().take_while(|byte| *byte == b'`').count();
        let inside = at + ticks;
        let Some(len) = text[inside..].find(&text[at..inside]) else { break };
        from = inside + len + ticks;
        spans.push(at..from);
    }
    spans
}

/// A sentence ends with its line or with a full stop before a space; the marks behind it belong to it.
fn sentences(text: &str) -> Vec<Range<usize>> {
    let mut found = Vec::new();
    let mut start = 0;
    let marks = raw_marks(text);
    for (at, c) in text.char_indices() {
        if at < start {
            continue;
        }
        let mut end = at + c.len_utf8();
        let next = text[end..].chars().next();
        let opens_mark = |at: usize| marks.iter().find(|(range, _)| range.start == at);
        let stops = match c {
            '\n' => true,
            // A letter by itself is short for a word: `e.g.`
            '.' if text[start..at].chars().rev().take_while(|c| c.is_alphanumeric()).take(2).count() == 1
                && text[..at].ends_with(|c: char| c.is_ascii_alphabetic()) =>
            {
                false
            }
            '.' | '?' | '!' => next.is_none_or(char::is_whitespace) || opens_mark(end).is_some(),
            '。' | '？' | '！' => true,
            _ => false,
        };
        if !stops {
            continue;
        }
        if c != '\n' {
            loop {
                let blank = text[end..].len() - text[end..].trim_start_matches(' ').len();
                match opens_mark(end + blank) {
                    Some((range, _)) => end = range.end,
                    None => break,
                }
            }
            // `… at night [1].` and a full stop behind the marks of `… at night. [1].`
            if text[end..].starts_with('.') {
                end += 1;
            }
        }
        found.push(start..end);
        start = end;
    }
    found.push(start..text.len());
    found.retain(|range| !text[range.clone()].trim().is_empty());
    found
}

/// A verbatim excerpt as an answer shows it.
pub fn quoted(text: &str, marker: &str) -> String {
    let text = unmarked(text.trim());
    let mut lines: Vec<String> =
        text.lines().map(|line| format!("> {}", line.trim_end()).trim_end().to_owned()).collect();
    if let Some(last) = lines.last_mut() {
        last.push(' ');
        last.push_str(marker);
    }
    lines.join("\n")
}

#[cfg(test)]
#[path = "ground_tests.rs"]
mod tests;
