//! Blocks → chunks: the passages that are ranked, shown and cited.
//!
//! Refuses to look at syntax: what belongs together, and what may be cut, follows from the kinds of blocks.

mod split;
mod tokens;

use std::ops::Range;

use super::parse::{BlockKind, Parsed, separator};
use crate::model::{Chunk, ChunkLimits, Media};
use tokens::{Meter, UNITS};

pub use tokens::estimate_tokens;

/// Names the rules of this file; another name means other chunks for the same document.
pub const VERSION: &str = "structure-1";

/// The chunks of a document, in order. Together they hold every block.
///
/// A heading opens a chunk and stays with what follows it. A section of up to a quarter of the target joins its
/// equally small neighbours under the same parent, and is then cited by what they have in common; code does the same
/// with definitions.
pub fn chunk(text: &str, parsed: &Parsed, limits: &ChunkLimits) -> Vec<Chunk> {
    let sizes = Sizes::new(limits);
    let meter = Meter { text, markup: parsed.media == Media::Html };
    let separator = separator(parsed.code_lang.unwrap_or(""));
    let drafts = merge(draft(parsed, &meter, &sizes, separator), &meter, &sizes);
    // The line on which byte `at` stands; starts ascend, and only an overlap begins before the last end.
    let (mut at, mut line) = (0, 1);
    let mut first = (0, 1);
    let finish = |draft: Draft| {
        if draft.bytes.start < at {
            (at, line) = first;
        }
        line += newlines(&text[at..draft.bytes.start]);
        first = (draft.bytes.start, line);
        line += newlines(&text[draft.bytes.clone()]);
        at = draft.bytes.end;
        let lines = (first.1, line);
        let tokens = u32::try_from(draft.units.div_ceil(UNITS)).unwrap_or(u32::MAX);
        let (heading_path, symbol) = match draft.of_code {
            true => (Vec::new(), (!draft.path.is_empty()).then(|| draft.path.join(separator))),
            false => (draft.path.iter().map(|title| (*title).to_owned()).collect(), None),
        };
        Chunk { bytes: draft.bytes, lines, heading_path, symbol, tokens }
    };
    drafts.into_iter().map(finish).collect()
}

/// The limits in units of the estimate, made consistent.
struct Sizes {
    target: u64,
    max: u64,
    overlap: u64,
    /// A section up to this size may be merged with others.
    small: u64,
    /// A passage up to this size goes with what follows below it: a badge line, the head of a class.
    tiny: u64,
}

impl Sizes {
    fn new(limits: &ChunkLimits) -> Self {
        // One character may cost two tokens, and a cut needs some choice.
        let max = u64::from(limits.max_tokens.max(8)) * UNITS;
        let target = (u64::from(limits.target_tokens) * UNITS).clamp(max / 4, max);
        let overlap = (u64::from(limits.overlap_tokens) * UNITS).min(target / 2);
        Sizes { target, max, overlap, small: target / 4, tiny: target / 13 }
    }
}

struct Draft<'a> {
    bytes: Range<usize>,
    units: u64,
    /// Headings or symbols, outermost first.
    path: Vec<&'a str>,
    of_code: bool,
    /// Nothing but headings so far.
    bare: bool,
    /// Not a piece of a longer section.
    whole: bool,
}

/// One or more drafts for each section.
fn draft<'a>(parsed: &'a Parsed, meter: &Meter, sizes: &Sizes, separator: &str) -> Vec<Draft<'a>> {
    let mut done: Vec<Draft<'a>> = Vec::new();
    let mut open: Option<Draft<'a>> = None;
    let mut headings: Vec<(u8, &'a str)> = Vec::new();
    for block in &parsed.blocks {
        let mut path: Vec<&str> = headings.iter().map(|(_, title)| *title).collect();
        let (mut opens, mut bare, mut of_code) = (false, false, false);
        match &block.kind {
            BlockKind::Heading { level, title } => {
                headings.truncate(headings.iter().position(|(l, _)| l >= level).unwrap_or(headings.len()));
                if !title.is_empty() {
                    headings.push((*level, title));
                }
                path = headings.iter().map(|(_, title)| *title).collect();
                (opens, bare) = (true, true);
            }
            BlockKind::Unit { symbol } => {
                path = symbol.iter().flat_map(|symbol| symbol.split(separator)).collect();
                (opens, of_code) = (true, true);
            }
            BlockKind::Prose | BlockKind::Verbatim => {}
        }
        let bytes = block.range.clone();
        if opens && let Some(section) = open.take_if(|open| !open.bare) {
            done.push(section);
        }
        if let Some(mut section) = open.take() {
            let units = section.units + meter.more(section.bytes.end, &bytes);
            let joined = section.bytes.start..bytes.end;
            if units <= sizes.target || (section.bare && !bare && units <= sizes.max) {
                section.path = if bare { common(&section.path, &path).to_vec() } else { path };
                open = Some(Draft { bytes: joined, units, bare: section.bare && bare, ..section });
                continue;
            }
            if section.bare && !bare {
                cut(&mut done, &mut open, meter, sizes, Draft { bytes: joined, units, path, bare, ..section });
                continue;
            }
            section.whole &= opens;
            done.push(section);
        }
        let whole = opens || done.last().is_none_or(|last| last.path != path);
        let units = meter.of(&bytes);
        let fresh = Draft { bytes, units, path, of_code, bare, whole };
        if units <= sizes.max {
            open = Some(fresh);
        } else {
            cut(&mut done, &mut open, meter, sizes, fresh);
        }
    }
    match open {
        // Headings at the very end have nothing to introduce.
        Some(tail) if tail.bare => match done.last_mut() {
            Some(last) if last.units + meter.more(last.bytes.end, &tail.bytes) <= sizes.max => {
                last.units += meter.more(last.bytes.end, &tail.bytes);
                last.bytes.end = tail.bytes.end;
            }
            _ => done.push(tail),
        },
        Some(tail) => done.push(tail),
        None => {}
    }
    done
}

/// Cuts what is longer than the maximum; the last piece stays open for what follows.
fn cut<'a>(done: &mut Vec<Draft<'a>>, open: &mut Option<Draft<'a>>, meter: &Meter, sizes: &Sizes, long: Draft<'a>) {
    for bytes in split::pieces(meter, long.bytes, sizes.target, sizes.max, sizes.overlap) {
        let path = long.path.clone();
        let piece = Draft { units: meter.of(&bytes), bytes, path, whole: false, bare: false, ..long };
        done.extend(open.replace(piece));
    }
}

/// A draft, or several small ones that became one.
struct Group<'a> {
    draft: Draft<'a>,
    /// All parts are small.
    small: bool,
    /// What joins must share so many names of the path: those of the first part's parent.
    base: usize,
    /// Holds definitions that have no name in common.
    mixed: bool,
}

/// Joins small sections to their neighbours, and tiny passages to what stands below them.
fn merge<'a>(drafts: Vec<Draft<'a>>, meter: &Meter, sizes: &Sizes) -> Vec<Draft<'a>> {
    let mut merged: Vec<Group<'a>> = Vec::with_capacity(drafts.len());
    for draft in drafts {
        let small = draft.whole && draft.units <= sizes.small;
        let base = draft.path.len().saturating_sub(1);
        let next = Group { draft, small, base, mixed: false };
        let apart = match merged.last_mut() {
            Some(last) => join(last, next, meter, sizes),
            None => Some(next),
        };
        merged.extend(apart);
    }
    merged.into_iter().map(|group| group.draft).collect()
}

/// Adds `next` to `last`, or gives it back. A small rest of a section joins what precedes it there.
fn join<'a>(last: &mut Group<'a>, next: Group<'a>, meter: &Meter, sizes: &Sizes) -> Option<Group<'a>> {
    let units = last.draft.units + meter.gap(last.draft.bytes.end, next.draft.bytes.start) + next.draft.units;
    let (above, below) = (&last.draft.path, &next.draft.path);
    let tail = !last.draft.whole && !next.draft.whole && above == below && next.draft.units <= sizes.small;
    if tail && last.draft.bytes.end <= next.draft.bytes.start && units <= sizes.max {
        last.draft.bytes.end = next.draft.bytes.end;
        last.draft.units = units;
        return None;
    }
    let leads = below.starts_with(above) && last.small && last.draft.units <= sizes.tiny && !last.mixed;
    if leads && units <= sizes.max {
        let bytes = last.draft.bytes.start..next.draft.bytes.end;
        *last = Group { draft: Draft { bytes, units, ..next.draft }, ..next };
        return None;
    }
    let base = &above[..last.base];
    let of_code = last.draft.of_code;
    let related = [above, base].iter().any(|path| below.starts_with(path) && (of_code || !path.is_empty()));
    if !(last.small && next.small && related && units <= sizes.target) {
        return Some(next);
    }
    let kept = common(above, below).len();
    if of_code && below.is_empty() {
        // What has no name, such as a constant, takes none away.
    } else if of_code && above.is_empty() && !last.mixed {
        last.draft.path = next.draft.path;
    } else {
        last.mixed |= kept == 0;
        last.draft.path.truncate(kept);
    }
    last.draft.bytes.end = next.draft.bytes.end;
    last.draft.units = units;
    None
}

fn common<'a, 'b>(one: &'b [&'a str], other: &[&str]) -> &'b [&'a str] {
    &one[..one.iter().zip(other).take_while(|(a, b)| a == b).count()]
}

fn newlines(text: &str) -> u32 {
    // Sums of bytes, few enough not to overflow, are what the compiler turns into vector code.
    let count = |bytes: &[u8]| u32::from(bytes.iter().map(|b| u8::from(*b == b'\n')).sum::<u8>());
    text.as_bytes().chunks(255).map(count).sum()
}

#[cfg(test)]
mod tests;
