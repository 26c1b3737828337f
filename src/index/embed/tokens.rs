//! Text → sequences of token ids no longer than the model takes: a longer text becomes several windows of about the same
//! length, cut between words, each with the prefix of the first.
//!
//! Refuses: cutting off (no part of a passage is lost) and padding (sequences are run one at a time).

use tokenizers::tokenizer::{TruncationDirection, TruncationParams, TruncationStrategy};

use super::spec::Tokenizer as Source;

pub struct Tokens {
    tokenizer: tokenizers::Tokenizer,
    /// What the model wants before and after a text: `<s>` and `</s>`, say.
    begin: Vec<i64>,
    end: Vec<i64>,
    max: usize,
}

/// A query and a passage as one sequence.
pub struct Pair {
    pub ids: Vec<i64>,
    /// Which of the two a token belongs to, for models that ask.
    pub types: Vec<i64>,
}

/// How far a cut moves to fall between words.
const CUT_REACH: usize = 24;

/// Fewer tokens for the text itself make no sense.
const LEAST_ROOM: usize = 8;

impl Tokens {
    pub fn open(source: &Source, max: usize) -> Result<Tokens, String> {
        let tokenizer = match source {
            Source::Bytes(bytes) => tokenizers::Tokenizer::from_bytes(bytes),
            Source::File(path) => tokenizers::Tokenizer::from_file(path),
        };
        let mut tokenizer = tokenizer.map_err(|error| format!("{}: {error}", super::spec::TOKENIZER))?;
        tokenizer.with_padding(None);
        tokenizer.with_truncation(None).map_err(|error| error.to_string())?;
        let framed = tokenizer.encode("a", true).map_err(|error| error.to_string())?;
        let special = |(_, mask): &(&u32, &u32)| **mask == 1;
        let ids = || framed.get_ids().iter().zip(framed.get_special_tokens_mask());
        let begin = ids().take_while(special).map(|(id, _)| i64::from(*id)).collect();
        let mut end: Vec<i64> = ids().rev().take_while(special).map(|(id, _)| i64::from(*id)).collect();
        end.reverse();
        Ok(Tokens { tokenizer, begin, end, max })
    }

    /// Refuses a prefix that leaves no room for a text.
    pub fn require_room(&self, prefix: &str) -> Result<(), String> {
        match self.room()?.saturating_sub(self.prefix(prefix)?) >= LEAST_ROOM {
            true => Ok(()),
            false => Err(format!("the prefix {prefix:?} fills the {} tokens the model takes", self.max)),
        }
    }

    /// Never empty, even for an empty text.
    pub fn windows(&self, prefix: &str, text: &str) -> Result<Vec<Vec<i64>>, String> {
        let room = self.room()?;
        let encoding = self.encode(format!("{prefix}{text}"))?;
        let ids = encoding.get_ids();
        if ids.len() <= room {
            return Ok(vec![self.framed(&[], ids)]);
        }
        let prefix = &ids[..self.prefix(prefix)?.min(room - LEAST_ROOM)];
        let body = &ids[prefix.len()..];
        let words = &encoding.get_word_ids()[prefix.len()..];
        let cuts = cuts(words, room - prefix.len());
        Ok(cuts.windows(2).map(|ends| self.framed(prefix, &body[ends[0]..ends[1]])).collect())
    }

    /// The passage gives way where both together are too long.
    pub fn pair(&self, query: &str, passage: &str) -> Result<Pair, String> {
        let mut encoding = self.tokenizer.encode((query, passage), true).map_err(|error| error.to_string())?;
        if encoding.is_empty() {
            return Ok(Pair { ids: vec![0], types: vec![0] });
        }
        if encoding.len() > self.max {
            let mut cut = self.tokenizer.clone();
            let truncation = TruncationParams {
                direction: TruncationDirection::Right,
                max_length: self.max,
                strategy: TruncationStrategy::LongestFirst,
                stride: 0,
            };
            cut.with_truncation(Some(truncation)).map_err(|error| error.to_string())?;
            encoding = cut.encode((query, passage), true).map_err(|error| error.to_string())?;
        }
        let whole = |numbers: &[u32]| numbers.iter().map(|n| i64::from(*n)).collect();
        Ok(Pair { ids: whole(encoding.get_ids()), types: whole(encoding.get_type_ids()) })
    }

    fn room(&self) -> Result<usize, String> {
        let room = self.max.saturating_sub(self.begin.len() + self.end.len());
        if room >= LEAST_ROOM { Ok(room) } else { Err(format!("{} tokens are too few for a text", self.max)) }
    }

    /// Tokens of the prefix alone; the space at its end belongs to the word behind it.
    fn prefix(&self, prefix: &str) -> Result<usize, String> {
        Ok(self.encode(prefix.trim_end().to_owned())?.len())
    }

    fn encode(&self, text: String) -> Result<tokenizers::Encoding, String> {
        self.tokenizer.encode(text, false).map_err(|error| error.to_string())
    }

    fn framed(&self, prefix: &[u32], body: &[u32]) -> Vec<i64> {
        let own = prefix.iter().chain(body).map(|id| i64::from(*id));
        let framed: Vec<i64> = self.begin.iter().copied().chain(own).chain(self.end.iter().copied()).collect();
        // Where nothing stands around a text, nothing is left of an empty one, and engines do not take that.
        if framed.is_empty() { vec![0] } else { framed }
    }
}

/// Ends of windows over tokens, of which each knows its word: from 0 to their number, at most `room` apart, about equally
/// long, and between words where one ends near.
fn cuts(words: &[Option<u32>], room: usize) -> Vec<usize> {
    let mut cuts = vec![0];
    let mut start = 0;
    while words.len() - start > room {
        let left = words.len() - start;
        let even = left.div_ceil(left.div_ceil(room));
        let between = |at: &usize| words[*at] != words[*at - 1];
        // Rather a little beyond the even share than before it, which might take a window more.
        let (share, most) = (start + even, start + room.min(even + CUT_REACH));
        let behind = (share..=most).find(between);
        let before = || (share - CUT_REACH.min(even / 2)..share).rev().find(between);
        start = behind.or_else(before).unwrap_or(share);
        cuts.push(start);
    }
    cuts.push(words.len());
    cuts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_cover_all_tokens_once_and_end_between_words() {
        for (tokens, room, word) in [(101, 100, 3), (1000, 100, 7), (250, 100, 1), (512, 508, 5), (333, 8, 2)] {
            let words: Vec<Option<u32>> = (0..tokens).map(|at| Some(at / word)).collect();
            let cuts = cuts(&words, room);
            assert_eq!((cuts[0], cuts[cuts.len() - 1]), (0, tokens as usize));
            for ends in cuts.windows(2) {
                assert!(ends[0] < ends[1] && ends[1] - ends[0] <= room, "{cuts:?}");
            }
            assert!(cuts[1..cuts.len() - 1].iter().all(|at| (*at as u32).is_multiple_of(word)), "{cuts:?}");
            assert!(cuts.len() - 1 <= (tokens as usize).div_ceil(room) + (tokens as usize / room) / 2 + 1, "{cuts:?}");
        }
    }

    #[test]
    fn one_endless_word_is_cut_where_it_must_be() {
        assert_eq!(cuts(&[Some(0); 250], 100), [0, 84, 167, 250]);
    }
}
