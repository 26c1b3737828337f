//! A block too long for one chunk → pieces, cut at the best place in the second half of each piece's room.
//!
//! Refuses to lose anything: the pieces leave out nothing but white space.

use std::ops::Range;

use unicode_segmentation::UnicodeSegmentation;

use super::tokens::{Meter, UNITS};
use crate::ingest::parse::text_spans;

/// Pieces of about `target` units; the last one may be up to `max`. Each after the first begins with up to `overlap`
/// units of the one before. Linear in the length of the block.
pub(super) fn pieces(meter: &Meter, block: Range<usize>, target: u64, max: u64, overlap: u64) -> Vec<Range<usize>> {
    let room = Room::new(meter, &block);
    let mut pieces = Vec::new();
    let mut start = block.start;
    let mut floor = block.start;
    while floor < block.end {
        let tail = room.reach(start..block.end, max) == block.end;
        let end = if tail { block.end } else { room.cut(start, floor, room.reach(start..block.end, target)) };
        pieces.extend(trimmed(meter.text, start..end));
        floor = end;
        start = if tail || overlap == 0 { end } else { room.overlap_start(start, end, overlap) };
    }
    pieces
}

/// Where a block may be cut: anywhere, or, in markup, in the visible text.
struct Room<'a> {
    meter: &'a Meter<'a>,
    spans: Vec<Range<usize>>,
}

impl<'a> Room<'a> {
    fn new(meter: &'a Meter<'a>, block: &Range<usize>) -> Self {
        let mut spans = Vec::new();
        if meter.markup {
            spans = text_spans(&meter.text[block.clone()]);
            spans.iter_mut().for_each(|span| *span = block.start + span.start..block.start + span.end);
        }
        Room { meter, spans }
    }

    fn reach(&self, bytes: Range<usize>, budget: u64) -> usize {
        if !self.meter.markup {
            return self.meter.reach(&bytes, budget);
        }
        let first = self.spans.partition_point(|span| span.end <= bytes.start);
        let mut left = budget;
        for span in &self.spans[first..] {
            let visible = span.start.max(bytes.start)..span.end;
            let end = self.meter.reach(&visible, left);
            if end < visible.end {
                return end;
            }
            left -= self.meter.fresh(visible).min(left);
        }
        bytes.end
    }

    fn may_cut(&self, at: usize) -> bool {
        if !self.meter.markup {
            return true;
        }
        let next = self.spans.partition_point(|span| span.end < at);
        self.spans.get(next).is_some_and(|span| span.start <= at)
    }

    /// The last line end after the middle of `start..limit`, preferably before an empty line; else the last end of a
    /// sentence, else of a word, else of a character. Beyond `floor` in any case.
    fn cut(&self, start: usize, floor: usize, limit: usize) -> usize {
        let text = self.meter.text;
        let middle = text.floor_char_boundary(start + (limit - start) / 2).max(floor);
        let after_middle = &text[middle..limit];
        let line_ends =
            || after_middle.rmatch_indices('\n').map(|(i, _)| middle + i + 1).filter(|&at| self.may_cut(at));
        let empty_line = |&at: &usize| text[at..].trim_start_matches([' ', '\t', '\r']).starts_with('\n');
        if let Some(at) = line_ends().take(40).find(empty_line).or_else(|| line_ends().next()) {
            return at;
        }
        let sentences = text[start..limit].split_sentence_bound_indices().map(|(i, _)| start + i);
        let sentence = sentences.filter(|&at| at > middle && self.may_cut(at)).last();
        let words = || after_middle.rmatch_indices(char::is_whitespace).map(|(i, space)| middle + i + space.len());
        if let Some(at) = sentence.or_else(|| words().find(|&at| at > floor && self.may_cut(at))) {
            return at;
        }
        let characters = after_middle.grapheme_indices(true).map(|(i, _)| middle + i);
        let character = characters.rev().find(|&at| at > floor && self.may_cut(at));
        let next = floor + text[floor..].chars().next().map_or(1, char::len_utf8);
        self.before_entity(floor, character.unwrap_or(limit.max(next)))
    }

    /// `&am` and `p;` would read as something else.
    fn before_entity(&self, floor: usize, at: usize) -> usize {
        if !self.meter.markup {
            return at;
        }
        let from = self.meter.text.floor_char_boundary(at.saturating_sub(32)).max(floor);
        let entity = self.meter.text[from..at].rfind('&').map(|i| from + i);
        entity.filter(|&and| and > floor && !self.meter.text[and..at].contains(';')).unwrap_or(at)
    }

    /// The start of the piece that follows a cut at `end`: whole words back, `overlap` units at most.
    fn overlap_start(&self, start: usize, end: usize, overlap: u64) -> usize {
        let text = self.meter.text;
        // A word costs at least a token and is rarely longer than this many bytes.
        let from = text.floor_char_boundary(end.saturating_sub((overlap / UNITS) as usize * 16)).max(start);
        let mut best = end;
        let mut left = overlap;
        for (i, space) in text[from..end].trim_end().rmatch_indices(char::is_whitespace) {
            let at = from + i + space.len();
            let units = self.meter.of(&(at..best));
            if units > left || at == start {
                break;
            }
            left -= units;
            if self.may_cut(at) {
                best = at;
            }
        }
        best
    }
}

/// Without the blank lines around it; a piece that begins at a line begins with its indentation.
fn trimmed(text: &str, bytes: Range<usize>) -> Option<Range<usize>> {
    let body = text[bytes.clone()].trim_end();
    let blank = body.len() - body.trim_start().len();
    let line = body[..blank].rfind('\n').map_or(0, |at| at + 1);
    let at_line = line > 0 || bytes.start == 0 || text.as_bytes()[bytes.start - 1] == b'\n';
    (blank < body.len()).then(|| bytes.start + if at_line { line } else { blank }..bytes.start + body.len())
}
