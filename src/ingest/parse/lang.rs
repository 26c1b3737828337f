//! The language of a document whose author did not say: counts of scripts and of English function words.
//!
//! Refuses to tell languages of one script apart, English excepted.

use super::{Block, BlockKind};

/// `ko`, `ja`, `zh`, `en` or `und`, from a sample of the running text (of everything, where there is none).
///
/// - CJK, if its letters are at least one in twenty and outnumber English function words four to one: so a Korean
///   document full of English commands stays Korean, and an English one that quotes Korean stays English.
/// - Within CJK: Hangul if it is at least half, else Japanese if one letter in ten is kana, else Chinese.
/// - English, if Latin letters prevail and one word in twenty is a function word that programs do not use.
pub(super) fn detect(text: &str, blocks: &[Block]) -> &'static str {
    let mut counts = Counts::default();
    let prose = |block: &&Block| matches!(block.kind, BlockKind::Prose | BlockKind::Heading { .. });
    let some_prose = blocks.iter().any(|block| block.kind == BlockKind::Prose);
    let mut left = SAMPLE;
    let step = blocks.len() / 64 + 1;
    for block in blocks.iter().filter(|block| !some_prose || prose(block)).step_by(step) {
        let body = &text[block.range.clone()];
        let sample = &body[..body.floor_char_boundary(left.min(SAMPLE / 4))];
        counts.add(sample);
        left -= sample.len();
        if left < 8 {
            break;
        }
    }
    counts.verdict()
}

const SAMPLE: usize = 4096;

/// Function words of English that are neither keywords of programming languages nor words of other large languages.
const ENGLISH: [u64; 24] = {
    let words: [&str; 24] = [
        "the", "of", "to", "are", "that", "be", "you", "it", "can", "has", "have", "which", "will", "should", "an",
        "when", "your", "they", "we", "how", "what", "there", "its", "was",
    ];
    let mut keys = [0; 24];
    let mut i = 0;
    while i < keys.len() {
        keys[i] = key(words[i].as_bytes());
        i += 1;
    }
    keys
};

/// A short ASCII word without regard to case, as a number.
const fn key(word: &[u8]) -> u64 {
    let mut key = 0;
    let mut i = 0;
    while i < word.len() && i < 8 {
        key = key << 8 | word[i].to_ascii_lowercase() as u64;
        i += 1;
    }
    key
}

#[derive(Default)]
struct Counts {
    hangul: usize,
    kana: usize,
    han: usize,
    latin: usize,
    other: usize,
    words: usize,
    english: usize,
}

impl Counts {
    fn add(&mut self, sample: &str) {
        for word in sample.split(|c: char| c.is_ascii() && !c.is_ascii_alphanumeric()).filter(|word| !word.is_empty()) {
            if word.is_ascii() {
                self.latin += word.bytes().filter(u8::is_ascii_alphabetic).count();
                self.words += 1;
                self.english += usize::from(word.len() <= 6 && ENGLISH.contains(&key(word.as_bytes())));
                continue;
            }
            for c in word.chars() {
                match c {
                    '\u{AC00}'..='\u{D7A3}' | '\u{1100}'..='\u{11FF}' | '\u{3131}'..='\u{318E}' => self.hangul += 1,
                    '\u{3041}'..='\u{30FF}' | '\u{31F0}'..='\u{31FF}' => self.kana += 1,
                    '\u{3400}'..='\u{9FFF}' | '\u{F900}'..='\u{FAFF}' | '\u{20000}'..='\u{3FFFF}' => self.han += 1,
                    'a'..='z' | 'A'..='Z' | '\u{C0}'..='\u{24F}' => self.latin += 1,
                    _ => self.other += usize::from(c.is_alphabetic()),
                }
            }
        }
    }

    fn verdict(&self) -> &'static str {
        let cjk = self.hangul + self.kana + self.han;
        let letters = cjk + self.latin + self.other;
        if cjk * 20 >= letters && cjk > 4 * self.english && cjk > self.other {
            return match () {
                () if self.hangul * 2 >= cjk => "ko",
                () if self.kana * 10 >= cjk => "ja",
                () => "zh",
            };
        }
        if self.latin * 2 > letters && self.english * 20 >= self.words && self.english > 0 { "en" } else { "und" }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str) -> &'static str {
        detect(text, &[Block { kind: BlockKind::Prose, range: 0..text.len() }])
    }

    #[test]
    fn scripts_and_function_words_decide() {
        assert_eq!(of("The server reads its configuration from a file that you name."), "en");
        assert_eq!(of("`cargo build --release --target x86_64-unknown-linux-gnu` 명령으로 빌드한다"), "ko");
        assert_eq!(of("The word 김치 is written the way it is said, and it has two syllables."), "en");
        assert_eq!(of("設定ファイルを読み込む"), "ja");
        assert_eq!(of("服务器读取配置文件"), "zh");
        assert_eq!(of("Der Server liest seine Einstellungen aus einer Datei."), "und");
        assert_eq!(of("Сервер читает настройки"), "und");
        assert_eq!(of("if (a == b) { return x.y(z); } else for i in 0..n { not(this) }"), "und");
        assert_eq!(of(""), "und");
    }
}
