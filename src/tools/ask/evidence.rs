//! How much speaks for it that a passage answers the question, from 0 to 1: what the gate judges.
//!
//! Two opinions, and both mean the same in every mode and on every page. The words: which share of the question's words
//! the passage holds, each weighing as much as it is rare. The meaning: how far their cosine lies between that of texts
//! that have nothing to do with each other and that of a question and its answer. Each is heard as far as it can know:
//! words of another script than the passage's cannot be looked for there, and of a cosine something is known for the
//! built-in model only.
//!
//! Refuses: telling an answer from a passage about the same thing. Of questions about the documents' own subjects that
//! they do not answer, most pass.

use super::ground::comparable_scripts;
use super::passages::Passage;
use crate::error::Result;
use crate::index::lexical::{self, Query};
use crate::index::snippet::Matcher;
use crate::kb::View;

/// Cosines of the built-in model: what a text that has nothing to do with the question has at most, half the time, in the
/// question's script and across scripts; and from there to what the nearest answers have.
const UNRELATED: f64 = 0.78;
const UNRELATED_ACROSS: f64 = 0.75;
const RANGE: f64 = 0.14;

/// A passage that answers holds so much of the question's words, by weight: questions have words of their own, such as
/// those that ask.
const FULL: f64 = 0.75;

/// What words that cannot be looked for in the passage say: as much as passes the gate where the passage was found by a
/// meaning that cannot be measured, little where it was found by the other words alone.
const FOUND_BY_MEANING: f64 = 0.4;
const FOUND_BY_WORDS: f64 = 0.2;

/// What speaks most for each passage: that it answers the question or one of its parts. `measured`: cosines are of the
/// built-in model.
pub fn weigh<'q>(
    view: &View,
    questions: impl IntoIterator<Item = &'q str>,
    passages: &mut [Passage],
    measured: bool,
) -> Result<()> {
    questions.into_iter().try_for_each(|question| weigh_one(view, question, passages, measured))
}

fn weigh_one(view: &View, question: &str, passages: &mut [Passage], measured: bool) -> Result<()> {
    let query = Query::parse(&without_asking(question));
    let rarity = lexical::rarity(&view.index, &query)?;
    let matcher = Matcher::new(&query);
    for passage in passages {
        let mut held = vec![false; rarity.len()];
        let headings = passage.heading.iter().map(String::as_str).chain([passage.path.as_str()]);
        for text in headings.chain([passage.text.as_str()]) {
            for found in matcher.matches(text) {
                found.terms.iter().for_each(|term| held[*term] = true);
            }
        }
        let text = [passage.text.as_str()];
        let comparable = comparable_scripts(question, &text);
        let (mut all, mut known, mut had) = (0.0, 0.0, 0.0);
        for ((term, _), (weight, held)) in query.terms.iter().zip(rarity.iter().zip(held)) {
            let weight = f64::from(*weight);
            all += weight;
            if held || comparable(term) {
                known += weight;
            }
            if held {
                had += weight;
            }
        }
        // A question of stop words alone is looked up as it stands.
        let share = if all > 0.0 { had / all } else { f64::from(u8::from(passage.lexical.is_some())) };
        let words = Opinion {
            says: if known > 0.0 { had / known } else { share },
            knows: if all > 0.0 { known / all } else { 1.0 },
        };
        passage.held = passage.held.max(share);
        let meaning = match passage.vector {
            Some(cosine) if measured => Meaning::Cosine(f64::from(cosine)),
            Some(_) => Meaning::Unmeasured,
            None => Meaning::None,
        };
        passage.evidence = passage.evidence.max(evidence(words, meaning));
    }
    Ok(())
}

/// How Korean words begin that ask, or say that something is asked: what English stop words are for English.
#[rustfmt::skip]
const ASKING: &[&str] = &[
    "뭐", "뭔", "뭘", "무엇", "무슨", "언제", "어디", "어느", "어떤", "어떻", "어때", "어떠", "누구", "누가", "얼마", "몇",
    "우리", "저희", "혹시", "알려", "설명해", "말해", "인가", "인지", "있나", "있어", "있는지", "되나", "하나요", "한가", "일까", "할까", "였지",
    "이었지", "였더라",
];

/// The question without them, unless nothing is left.
fn without_asking(question: &str) -> String {
    let asks = |word: &str| {
        let word = word.trim_matches(|c: char| !c.is_alphanumeric());
        // As a syllable of a longer word it means something else.
        word == "왜" || ASKING.iter().any(|asking| word.starts_with(asking))
    };
    let left = question.split_whitespace().filter(|word| !asks(word)).collect::<Vec<_>>().join(" ");
    if left.is_empty() { question.to_owned() } else { left }
}

/// From 0 to 1, both.
struct Opinion {
    says: f64,
    knows: f64,
}

/// What is known of a passage besides its words.
#[derive(Debug, Clone, Copy)]
enum Meaning {
    /// Of the built-in model.
    Cosine(f64),
    /// A cosine of another model.
    Unmeasured,
    None,
}

fn evidence(words: Opinion, meaning: Meaning) -> f64 {
    let said = (words.says / FULL).min(1.0);
    let by_words = |unknown: f64| words.knows * said + (1.0 - words.knows) * unknown;
    let cosine = match meaning {
        Meaning::Cosine(cosine) => cosine,
        Meaning::Unmeasured => return by_words(FOUND_BY_MEANING),
        Meaning::None => return by_words(FOUND_BY_WORDS),
    };
    let unrelated = words.knows * UNRELATED + (1.0 - words.knows) * UNRELATED_ACROSS;
    let near = ((cosine - unrelated) / RANGE).clamp(0.0, 1.0);
    (words.knows * said + (2.0 - words.knows) * near) / 2.0
}

#[cfg(test)]
mod tests {
    use super::Meaning::{Cosine, None, Unmeasured};
    use super::*;

    #[test]
    fn words_that_ask_are_no_subject() {
        for (question, subject) in [
            ("우리 저장소 전략이 뭐였지?", "저장소 전략이"),
            ("나래팀의 2024년 매출은 얼마인가?", "나래팀의 2024년 매출은"),
            ("왜?", "왜?"),
            ("When does it run?", "When does it run?"),
        ] {
            assert_eq!(without_asking(question), subject);
        }
    }

    #[test]
    fn each_opinion_counts_as_far_as_it_knows() {
        let rounded = |says, knows, meaning| (evidence(Opinion { says, knows }, meaning) * 100.0).round();
        for (says, knows, meaning, expected) in [
            // Words alone.
            (0.75, 1.0, None, 100.0),
            (0.3, 1.0, None, 40.0),
            (0.0, 1.0, None, 0.0),
            (0.0, 0.0, None, 20.0),
            (1.0, 0.3, None, 44.0),
            (0.0, 0.0, Unmeasured, 40.0),
            // Both alike.
            (1.0, 1.0, Cosine(0.92), 100.0),
            (1.0, 1.0, Cosine(0.70), 50.0),
            (0.0, 1.0, Cosine(0.92), 50.0),
            (0.0, 1.0, Cosine(0.78), 0.0),
            // A passage in another script.
            (0.0, 0.0, Cosine(0.82), 50.0),
            (1.0, 0.2, Cosine(0.82), 51.0),
        ] {
            assert_eq!(rounded(says, knows, meaning), expected, "{says} {knows} {meaning:?}");
        }
    }
}
