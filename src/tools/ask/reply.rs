//! A model's reply while it comes: what of it may be shown, and where it ends though the model goes on. Pure.
//!
//! Refuses: whether what it says is true (that is `ground`'s).

use super::prompt::NO_ANSWER;

/// Holds the beginning of a reply back for as long as it may be the mark of having no answer.
#[derive(Default)]
pub struct Held {
    text: String,
    passing: bool,
}

impl Held {
    /// What may be shown.
    pub fn pass(&mut self, piece: &str) -> Option<String> {
        if self.passing {
            return Some(piece.to_owned());
        }
        self.text.push_str(piece);
        let begun = self.text.trim_start();
        let may_be_mark = NO_ANSWER.starts_with(begun) || begun.starts_with(NO_ANSWER);
        self.passing = !may_be_mark;
        self.passing.then(|| std::mem::take(&mut self.text))
    }
}

/// Small models that have answered go on with the passages they were shown, or say the same for ever.
pub struct Ramble {
    fence: String,
    text: String,
}

/// What is repeated without end has at least this many bytes, so that no line of a table is taken for it.
const MIN_LOOP: usize = 240;

/// The longest piece that is noticed when it is repeated, in bytes.
const MAX_PERIOD: usize = 400;

impl Ramble {
    pub fn new(tag: &str) -> Ramble {
        Ramble { fence: format!("passage-{tag}"), text: String::new() }
    }

    /// False once nothing that follows can be part of the answer.
    pub fn goes_on(&mut self, piece: &str) -> bool {
        self.text.push_str(piece);
        !self.text.contains(&self.fence) && period(&self.text).is_none()
    }

    /// The answer before it: without the fence, and with what is repeated said once.
    pub fn before<'r>(reply: &'r str, tag: &str) -> &'r str {
        let end = reply.find(&format!("passage-{tag}")).map_or(reply.len(), |at| {
            let before = reply[..at].trim_end_matches(['<', '/']);
            before.len()
        });
        let reply = &reply[..end];
        let Some(period) = period(reply) else { return reply };
        let bytes = reply.as_bytes();
        let mut end = bytes.len();
        while end > period && bytes[end - 1] == bytes[end - 1 - period] {
            end -= 1;
        }
        &reply[..reply.floor_char_boundary(end)]
    }
}

/// How many bytes the piece has whose repetition ends the text: three times at least, and `MIN_LOOP` bytes of them.
fn period(text: &str) -> Option<usize> {
    let bytes = text.as_bytes();
    (1..=MAX_PERIOD.min(bytes.len() / 3)).find(|period| {
        let looped = (3 * period).max(MIN_LOOP);
        looped <= bytes.len()
            && bytes[bytes.len() - looped..].iter().zip(&bytes[bytes.len() - looped + period..]).all(|(a, b)| a == b)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mark_of_no_answer_is_never_shown() {
        let show = |pieces: &[&str]| {
            let mut held = Held::default();
            pieces.iter().filter_map(|piece| held.pass(piece)).collect::<String>()
        };
        assert_eq!(show(&["NO", "_ANS", "WER", "\n", "anything"]), "");
        assert_eq!(show(&["No", "t at night"]), "Not at night");
        assert_eq!(show(&["\nNO_", "WAY [1]", "."]), "\nNO_WAY [1].");
    }

    #[test]
    fn what_small_models_add_is_left_out() {
        let said = "The backup runs at night.";
        for (reply, expected) in [
            (said.to_owned(), said.to_owned()),
            (format!("{said}\n</passage-ab>\n\n<passage-ab number=\"2\">"), format!("{said}\n")),
            (format!("{said}\n\n").repeat(20), format!("{said}\n\n")),
            (format!("밤이다. {}", "가나다 ".repeat(40)), "밤이다. 가나다".to_owned()),
            (format!("{said}\n{}\n", "-".repeat(100)), format!("{said}\n{}\n", "-".repeat(100))),
        ] {
            assert_eq!(Ramble::before(&reply, "ab"), expected);
            let mut ramble = Ramble::new("ab");
            let taken = reply.chars().take_while(|c| ramble.goes_on(&c.to_string())).count();
            assert_eq!(taken == reply.chars().count(), reply == expected, "{reply}");
        }
    }
}
