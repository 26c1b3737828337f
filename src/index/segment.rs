//! An immutable piece of the index as one file: which chunks it holds, a sorted dictionary of their terms,
//! and a posting list a term. Written once, mapped, never changed; deletions are tombstones kept by the store.
//!
//! ```text
//! rows     chunk row u32 × n, document row u32 × n     (rows of the store, by ordinal)
//! lists    posting lists in the order of the dictionary
//! terms    front-coded blocks of 16 terms, each term with its list's length in postings and bytes
//! blocks   for each block of terms: its place in `terms` u64, its lists' place in `lists` u64
//! footer   counts, section offsets, the analyser's fingerprint
//! ```
//! `pages` keeps all of it behind checksums.

use std::cmp::{self, Reverse};
use std::collections::BinaryHeap;
use std::io::{self, Write};
use std::ops::Range;
use std::path::Path;

use super::pages::{HEADER_BYTES, Kind, PageWriter, Pages, fingerprint, read_u64};
use super::postings::{Posting, Postings, encode, put_varint, take_varint};
use super::tokenize;
use crate::error::{Error, Result};
use crate::model::{Bits, Rows};

const KIND: Kind = Kind { magic: b"KBLITSEG", format: 2 };

const TERMS_A_BLOCK: usize = 16;
const BLOCK_ENTRY_BYTES: usize = 16;

pub struct Segment {
    pages: Pages,
    layout: Layout,
}

#[derive(Debug, Clone, Copy, Default)]
struct Layout {
    chunks: usize,
    terms: usize,
    lists: usize,
    dictionary: usize,
    blocks: usize,
}

impl Segment {
    /// Maps a segment file. `IndexDamaged` if it is missing, is not one, is damaged at its end, or was cut short.
    pub fn open(path: &Path) -> Result<Segment> {
        Segment::new(Pages::open(path, KIND)?)
    }

    /// A segment that was written to memory.
    pub fn from_bytes(bytes: Vec<u8>) -> Result<Segment> {
        Segment::new(Pages::from_bytes(bytes, KIND)?)
    }

    fn new((pages, numbers): (Pages, [u64; 6])) -> Result<Segment> {
        let [chunks, terms, lists, dictionary, blocks] = std::array::from_fn(|i| numbers[i] as usize);
        if numbers[5] != analyzer_fingerprint() {
            return Err(pages.damaged("was made by another analyser"));
        }
        Ok(Segment { pages, layout: Layout { chunks, terms, lists, dictionary, blocks } })
    }

    pub fn path(&self) -> &Path {
        self.pages.path()
    }

    /// Chunks in the segment, deleted ones included.
    pub fn chunks(&self) -> usize {
        self.layout.chunks
    }

    pub fn rows(&self, ordinal: u32) -> Result<Rows> {
        let (n, i) = (self.layout.chunks, ordinal as usize);
        let at = |index: usize| -> Result<u32> {
            let start = HEADER_BYTES + 4 * index;
            let bytes = self.slice(start..start + 4)?;
            Ok(u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]))
        };
        Ok(Rows { chunk: at(i)?, document: at(n + i)? })
    }

    /// Where a chunk row lies in the segment; rows ascend with the ordinals.
    pub fn ordinal_of(&self, chunk_row: u32) -> Result<Option<u32>> {
        let (mut low, mut high) = (0, self.layout.chunks as u32);
        while low < high {
            let middle = low + (high - low) / 2;
            match self.rows(middle)?.chunk.cmp(&chunk_row) {
                cmp::Ordering::Less => low = middle + 1,
                cmp::Ordering::Equal => return Ok(Some(middle)),
                cmp::Ordering::Greater => high = middle,
            }
        }
        Ok(None)
    }

    /// The list of exactly this term.
    pub fn postings(&self, term: &str) -> Result<Option<Postings<'_>>> {
        let mut terms = self.terms_from(self.block_of(term.as_bytes())?)?;
        for _ in 0..TERMS_A_BLOCK {
            if !terms.advance()? {
                break;
            }
            match terms.last.term.as_slice().cmp(term.as_bytes()) {
                cmp::Ordering::Less => {}
                cmp::Ordering::Equal => return Ok(Some(self.list(&terms.last)?)),
                cmp::Ordering::Greater => break,
            }
        }
        Ok(None)
    }

    /// The terms that start with `prefix`, in order.
    pub fn terms_with_prefix(&self, prefix: &str) -> Result<Vec<String>> {
        let mut found = Vec::new();
        for entry in self.terms_from(self.block_of(prefix.as_bytes())?)? {
            let term = entry?.term;
            if term.starts_with(prefix.as_bytes()) {
                found.push(String::from_utf8_lossy(&term).into_owned());
            } else if term.as_slice() > prefix.as_bytes() {
                break;
            }
        }
        Ok(found)
    }

    /// Reads every page against its checksum.
    pub fn verify(&self) -> Result<()> {
        self.pages.verify()
    }

    /// The last block of terms whose first term is at or before `term`.
    fn block_of(&self, term: &[u8]) -> Result<usize> {
        let (mut low, mut high) = (0, self.layout.terms.div_ceil(TERMS_A_BLOCK));
        while low + 1 < high {
            let middle = low + (high - low) / 2;
            let (start, _) = self.block_entry(middle)?;
            // The first term of a block shares nothing with the one before it: `0, length, bytes`.
            let mut head = self.slice(start..(start + 12).min(self.layout.blocks))?;
            let before = head.len();
            take_varint(&mut head);
            let len = take_varint(&mut head) as usize;
            let text = start + before - head.len();
            match self.slice(text..text + len)? <= term {
                true => low = middle,
                false => high = middle,
            }
        }
        Ok(low)
    }

    /// Where a block's terms and its first list start, in the file.
    fn block_entry(&self, block: usize) -> Result<(usize, usize)> {
        let at = self.layout.blocks + block * BLOCK_ENTRY_BYTES;
        let bytes = self.slice(at..at + BLOCK_ENTRY_BYTES)?;
        Ok((self.layout.dictionary + read_u64(bytes, 0) as usize, self.layout.lists + read_u64(bytes, 1) as usize))
    }

    fn terms_from(&self, block: usize) -> Result<Terms<'_>> {
        let mut terms = Terms { segment: self, index: block * TERMS_A_BLOCK, rest: &[], last: Term::default() };
        if terms.index < self.layout.terms {
            terms.enter(block)?;
        }
        Ok(terms)
    }

    fn list(&self, term: &Term) -> Result<Postings<'_>> {
        Ok(Postings::new(term.count, self.slice(term.list.clone())?))
    }

    fn slice(&self, range: Range<usize>) -> Result<&[u8]> {
        self.pages.slice(range)
    }

    fn damaged(&self, cause: &str) -> Error {
        self.pages.damaged(cause)
    }
}

#[derive(Debug, Clone, Default)]
struct Term {
    term: Vec<u8>,
    count: usize,
    list: Range<usize>,
}

/// The dictionary from some block on.
struct Terms<'s> {
    segment: &'s Segment,
    index: usize,
    /// What is left of the current block.
    rest: &'s [u8],
    /// The term that was read last.
    last: Term,
}

impl Terms<'_> {
    fn enter(&mut self, block: usize) -> Result<()> {
        let (start, list) = self.segment.block_entry(block)?;
        let end = match (block + 1) * TERMS_A_BLOCK < self.segment.layout.terms {
            true => self.segment.block_entry(block + 1)?.0,
            false => self.segment.layout.blocks,
        };
        self.rest = self.segment.slice(start..end)?;
        self.last.list = list..list;
        Ok(())
    }

    /// Reads the next term; false behind the last.
    fn advance(&mut self) -> Result<bool> {
        if self.index == self.segment.layout.terms {
            return Ok(false);
        }
        if self.index.is_multiple_of(TERMS_A_BLOCK) {
            self.enter(self.index / TERMS_A_BLOCK)?;
        }
        let shared = take_varint(&mut self.rest) as usize;
        let len = take_varint(&mut self.rest) as usize;
        if shared > self.last.term.len() || len > self.rest.len() {
            return Err(self.segment.damaged("has a broken dictionary"));
        }
        self.last.term.truncate(shared);
        self.last.term.extend(&self.rest[..len]);
        self.rest = &self.rest[len..];
        self.last.count = take_varint(&mut self.rest) as usize;
        let bytes = take_varint(&mut self.rest) as usize;
        self.last.list = self.last.list.end..self.last.list.end + bytes;
        self.index += 1;
        Ok(true)
    }
}

impl Iterator for Terms<'_> {
    type Item = Result<Term>;

    fn next(&mut self) -> Option<Result<Term>> {
        match self.advance() {
            Ok(more) => more.then(|| Ok(self.last.clone())),
            Err(error) => Some(Err(error)),
        }
    }
}

/// A segment to be merged, with the ordinals that are deleted.
pub struct MergeInput<'s> {
    pub segment: &'s Segment,
    pub tombstones: &'s Bits,
}

/// Writes one segment that holds the live chunks of all inputs, in their order.
pub fn merge<W: Write>(inputs: &[MergeInput<'_>], out: W) -> Result<(W, usize)> {
    let mut rows = Vec::new();
    let mut renumbered: Vec<Vec<u32>> = Vec::new();
    for input in inputs {
        let mut ordinals = Vec::with_capacity(input.segment.chunks());
        for ordinal in 0..input.segment.chunks() as u32 {
            ordinals.push(rows.len() as u32);
            match input.tombstones.has(ordinal as usize) {
                true => ordinals[ordinal as usize] = u32::MAX,
                false => rows.push(input.segment.rows(ordinal)?),
            }
        }
        renumbered.push(ordinals);
    }

    let failed = Error::io("write segment", Path::new("segment"));
    let mut writer = match Writer::new(out, &rows) {
        Ok(writer) => writer,
        Err(error) => return Err(failed(error)),
    };
    let mut dictionaries = Vec::with_capacity(inputs.len());
    let mut heads = BinaryHeap::with_capacity(inputs.len());
    for (i, input) in inputs.iter().enumerate() {
        let mut terms = input.segment.terms_from(0)?;
        if let Some(head) = terms.next().transpose()? {
            heads.push(Reverse((head.term, i, head.count, head.list.start, head.list.end)));
        }
        dictionaries.push(terms);
    }
    let mut list = Vec::new();
    while let Some(Reverse((term, i, count, start, end))) = heads.pop() {
        let ordinals = &renumbered[i];
        let postings = Postings::new(count, inputs[i].segment.slice(start..end)?);
        postings.for_each(|posting| {
            let ordinal = ordinals[posting.ordinal as usize];
            if ordinal != u32::MAX {
                list.push(Posting { ordinal, ..posting });
            }
        });
        if let Some(head) = dictionaries[i].next().transpose()? {
            heads.push(Reverse((head.term, i, head.count, head.list.start, head.list.end)));
        }
        // Equal terms come off the heap in the order of the inputs.
        let more = heads.peek().is_some_and(|Reverse((next, ..))| *next == term);
        if !more && !list.is_empty() {
            writer.term(&term, &list).map_err(Error::io("write segment", Path::new("segment")))?;
        }
        if !more {
            list.clear();
        }
    }
    let out = writer.finish().map_err(Error::io("write segment", Path::new("segment")))?;
    Ok((out, rows.len()))
}

/// Writes a segment front to back; terms come in byte order.
pub struct Writer<W: Write> {
    out: PageWriter<W>,
    chunks: usize,
    terms: usize,
    lists_at: usize,
    dictionary: Vec<u8>,
    blocks: Vec<u8>,
    previous: Vec<u8>,
    scratch: Vec<u8>,
}

impl<W: Write> Writer<W> {
    pub fn new(out: W, rows: &[Rows]) -> io::Result<Writer<W>> {
        let mut out = PageWriter::new(out, KIND)?;
        for row in rows {
            out.put(&row.chunk.to_le_bytes())?;
        }
        for row in rows {
            out.put(&row.document.to_le_bytes())?;
        }
        let lists_at = out.written();
        Ok(Writer {
            out,
            chunks: rows.len(),
            terms: 0,
            lists_at,
            dictionary: Vec::new(),
            blocks: Vec::new(),
            previous: Vec::new(),
            scratch: Vec::new(),
        })
    }

    pub fn term(&mut self, term: &[u8], postings: &[Posting]) -> io::Result<()> {
        let mut shared = 0;
        if self.terms.is_multiple_of(TERMS_A_BLOCK) {
            self.blocks.extend((self.dictionary.len() as u64).to_le_bytes());
            self.blocks.extend(((self.out.written() - self.lists_at) as u64).to_le_bytes());
        } else {
            shared = term.iter().zip(&self.previous).take_while(|(a, b)| a == b).count();
        }
        self.scratch.clear();
        encode(postings, &mut self.scratch);
        put_varint(shared as u64, &mut self.dictionary);
        put_varint((term.len() - shared) as u64, &mut self.dictionary);
        self.dictionary.extend(&term[shared..]);
        put_varint(postings.len() as u64, &mut self.dictionary);
        put_varint(self.scratch.len() as u64, &mut self.dictionary);
        self.out.put(&self.scratch)?;
        self.previous.clear();
        self.previous.extend(term);
        self.terms += 1;
        Ok(())
    }

    pub fn finish(mut self) -> io::Result<W> {
        let dictionary_at = self.out.written();
        self.out.put(&self.dictionary)?;
        let blocks_at = self.out.written();
        self.out.put(&self.blocks)?;
        let numbers = [self.chunks, self.terms, self.lists_at, dictionary_at, blocks_at];
        let mut footer = numbers.map(|number| number as u64).to_vec();
        footer.push(analyzer_fingerprint());
        self.out.finish(&footer)
    }
}

/// Two builds whose analysers differ must not share segments.
fn analyzer_fingerprint() -> u64 {
    fingerprint(tokenize::VERSION.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn segment(first_row: u32, lists: &[(&str, &[u32])]) -> Segment {
        let chunks = lists.iter().flat_map(|(_, list)| *list).max().map_or(0, |max| max + 1);
        let rows: Vec<Rows> = (0..chunks).map(|i| Rows { chunk: first_row + i, document: first_row }).collect();
        let mut writer = Writer::new(Vec::new(), &rows).unwrap();
        for (term, list) in lists {
            let postings: Vec<Posting> = list.iter().map(|&ordinal| Posting { ordinal, impact: 7 }).collect();
            writer.term(term.as_bytes(), &postings).unwrap();
        }
        Segment::from_bytes(writer.finish().unwrap()).unwrap()
    }

    fn ordinals(segment: &Segment, term: &str) -> Option<Vec<u32>> {
        segment.postings(term).unwrap().map(|list| {
            let mut ordinals = Vec::new();
            list.for_each(|posting| ordinals.push(posting.ordinal));
            ordinals
        })
    }

    #[test]
    fn every_term_of_a_large_dictionary_is_found_and_no_other() {
        let names: Vec<String> = (0..1000).map(|i| format!("term{i:04}")).collect();
        let lists: Vec<(&str, &[u32])> = names.iter().map(|name| (name.as_str(), &[3, 5][..])).collect();
        let segment = segment(100, &lists);
        for name in &names {
            assert_eq!(ordinals(&segment, name), Some(vec![3, 5]), "{name}");
        }
        for absent in ["", "term", "term0000x", "zebra", "a"] {
            assert_eq!(ordinals(&segment, absent), None, "{absent}");
        }
        assert_eq!(segment.terms_with_prefix("term001").unwrap().len(), 10);
        assert_eq!(segment.rows(5).unwrap(), Rows { chunk: 105, document: 100 });
    }

    #[test]
    fn a_merge_drops_the_dead_and_renumbers_the_rest() {
        let a = segment(10, &[("apple", &[0, 1]), ("both", &[1, 2])]);
        let b = segment(20, &[("both", &[0]), ("cherry", &[1])]);
        let mut dead = Bits::default();
        dead.insert(1);
        let inputs =
            [MergeInput { segment: &a, tombstones: &dead }, MergeInput { segment: &b, tombstones: &Bits::default() }];
        let (bytes, chunks) = merge(&inputs, Vec::new()).unwrap();
        let merged = Segment::from_bytes(bytes).unwrap();
        assert_eq!(chunks, 4);
        assert_eq!(ordinals(&merged, "apple"), Some(vec![0]));
        assert_eq!(ordinals(&merged, "both"), Some(vec![1, 2]));
        assert_eq!(ordinals(&merged, "cherry"), Some(vec![3]));
        assert_eq!(merged.rows(1).unwrap(), Rows { chunk: 12, document: 10 });
    }

    #[test]
    fn any_flipped_byte_and_any_cut_is_noticed() {
        let names: Vec<String> = (0..3000).map(|i| format!("term{i:04}")).collect();
        let lists: Vec<(&str, &[u32])> = names.iter().map(|name| (name.as_str(), &[1, 2, 9][..])).collect();
        let bytes = segment(0, &lists).pages.into_bytes();
        for at in (0..bytes.len()).step_by(97) {
            let mut damaged = bytes.clone();
            damaged[at] ^= 0x10;
            let noticed = match Segment::from_bytes(damaged) {
                Err(error) => error.code(),
                Ok(segment) => segment.verify().unwrap_err().code(),
            };
            assert_eq!(noticed, "store_corrupt", "byte {at}");
        }
        for len in [0, 20, bytes.len() / 2, bytes.len() - 1] {
            assert_eq!(Segment::from_bytes(bytes[..len].to_vec()).err().map(|e| e.code()), Some("store_corrupt"));
        }
    }
}
