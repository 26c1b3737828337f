//! The made-up language of the benches: the same words, passages and queries in every run.

pub struct Language {
    random: Random,
    vocabulary: Vec<String>,
}

impl Language {
    pub fn new() -> Language {
        let mut random = Random(0x5EED);
        let vocabulary = vocabulary(&mut random, 60_000);
        Language { random, vocabulary }
    }

    /// Words by Zipf's law: the rank is the exponential of a uniform number.
    pub fn passage(&mut self, words: usize) -> String {
        let mut text = String::new();
        for _ in 0..words {
            let rank = (self.vocabulary.len() as f64).powf(self.random.fraction()) as usize;
            text.push_str(&self.vocabulary[rank.min(self.vocabulary.len()) - 1]);
            text.push(' ');
        }
        text
    }

    /// Two to six words of some passage, none of the hundred most frequent: those are this language's function words,
    /// which no engine should be asked for.
    pub fn query(&mut self, corpus: &[String]) -> String {
        let random = &mut self.random;
        let words: Vec<&str> = corpus[random.below(corpus.len())].split(' ').filter(|word| word.len() >= 8).collect();
        let picked: Vec<&str> = (0..2 + random.below(5)).map(|_| words[random.below(words.len())]).collect();
        picked.join(" ")
    }
}

/// Pronounceable made-up words, the more frequent ones shorter.
fn vocabulary(random: &mut Random, size: usize) -> Vec<String> {
    const SYLLABLES: &[&str] =
        &["ka", "to", "mi", "ren", "sol", "ve", "dur", "pa", "lin", "gor", "ze", "fal", "bu", "nim"];
    (0..size)
        .map(|rank| {
            let syllables = 2 + rank.checked_ilog10().unwrap_or(0) as usize;
            (0..syllables).map(|_| SYLLABLES[random.below(SYLLABLES.len())]).collect()
        })
        .collect()
}

/// xorshift64*
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }

    fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }

    fn fraction(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }
}
