//! Is what a model says in the passages it cites? Pure: an answer and passages in, a verdict out.
//!
//! Every mark must name a passage that was given. Then each sentence is held against the passages it cites, by its
//! content words as the index sees them (stems, Korean without particles) and by its numbers. A paraphrase shares most
//! of its content words with what it paraphrases, an invention does not; what cannot be compared, because a passage is
//! in another script, counts neither way.
//!
//! Refuses: telling true from false. A wrong sentence made of a passage's words is not found here.

use std::ops::Range;

use super::prompt::{NO_ANSWER, unmarked};
use crate::index::lexical::Query;
use crate::index::snippet::Matcher;
use crate::index::tokenize::{Script, script_of};

/// What of an answer can be given to anybody.
#[derive(Debug, Clone, PartialEq)]
pub struct Verdict {
    /// With marks of passages that were given only, each in its own brackets.
    pub text: String,
    /// Numbers of the passages it cites, ascending.
    pub cited: Vec<usize>,
    /// From 0 to 1.
    pub confidence: f32,
}

/// Below this an answer is not given. It separates the examples of the tests here; no run of a model has fitted it, nor the
/// factors below.
pub const LEAST_CONFIDENCE: f32 = 0.35;

/// A mark of a passage that does not exist makes the rest less credible, too.
const FORGED: f32 = 0.7;

const OTHER_LANGUAGE: f32 = 0.5;

/// A sentence without a mark is a claim nobody can check.
const UNMARKED: f32 = 0.4;

/// A number that the passage does not have.
const WRONG_NUMBER: f32 = 0.5;

/// What nothing speaks for or against.
const UNDECIDED: f32 = 0.6;

/// The share of its content words that a paraphrase is taken to keep.
const FULL_SUPPORT: f32 = 0.7;

pub fn judge(answer: &str, question: &str, passages: &[&str]) -> Verdict {
    let (text, forged) = normalised(answer.trim(), passages.len());
    let mut cited: Vec<usize> = marks(&text).into_iter().map(|(_, number)| number).collect();
    cited.sort_unstable();
    cited.dedup();
    if cited.is_empty() || declines(&text) {
        return Verdict { text, cited, confidence: 0.0 };
    }
    let (mut sum, mut all) = (0.0, 0.0);
    for sentence in sentences(&text) {
        let (score, weight) = support(&text[sentence], passages);
        sum += score * weight;
        all += weight;
    }
    let mut confidence = if all > 0.0 { sum / all } else { 0.0 };
    if forged {
        confidence *= FORGED;
    }
    if speaks_otherwise(&text, question) {
        confidence *= OTHER_LANGUAGE;
    }
    Verdict { text, cited, confidence }
}

/// How far the passages hold a sentence, and how much it says.
fn support(sentence: &str, passages: &[&str]) -> (f32, f32) {
    let cited: Vec<usize> = marks(sentence).into_iter().map(|(_, number)| number).collect();
    let claim = without_marks(sentence);
    let query = Query { phrases: Vec::new(), ..Query::parse(&claim.replace('"', " ")) };
    if query.terms.len() < 2 && cited.is_empty() {
        return (0.0, 0.0);
    }
    // A line that only leads to the next ones claims nothing.
    if cited.is_empty() && claim.trim_end().ends_with(':') {
        return (0.0, 0.0);
    }
    let given: Vec<&str> = match cited.is_empty() {
        true => passages.to_vec(),
        false => cited.iter().filter_map(|number| passages.get(number - 1).copied()).collect(),
    };
    let matcher = Matcher::new(&query);
    let mut held = vec![false; query.terms.len()];
    for passage in &given {
        for found in matcher.matches(passage) {
            found.terms.iter().for_each(|term| held[*term] = true);
        }
    }
    let comparable = comparable_scripts(&claim, &given);
    let (mut had, mut asked, mut wrong_number) = (0, 0, false);
    for ((term, _), held) in query.terms.iter().zip(&held) {
        let number = term.bytes().any(|byte| byte.is_ascii_digit());
        wrong_number |= number && !held;
        if number || comparable(term) {
            asked += 1;
            had += usize::from(*held);
        }
    }
    let mut score = match asked {
        0 => UNDECIDED,
        _ => (had as f32 / asked as f32 / FULL_SUPPORT).min(1.0),
    };
    if wrong_number {
        score *= WRONG_NUMBER;
    }
    if cited.is_empty() {
        score *= UNMARKED;
    }
    // A mark with nothing before it says nothing.
    let weight = if query.terms.is_empty() { 0.0 } else { (query.terms.len() as f32).clamp(2.0, 30.0) };
    (score, weight)
}

/// Which terms can be looked for in these passages: those of a script that they are written in.
fn comparable_scripts(claim: &str, passages: &[&str]) -> impl Fn(&str) -> bool {
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
