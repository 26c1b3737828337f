//! A posting list as bytes: chunk ordinals in ascending order, each with a one-byte impact.
//!
//! Lists of `BLOCK` entries and more are cut into blocks of bit-packed deltas. Each block has a directory
//! entry with its last ordinal and its largest impact, so a query skips blocks without reading them.
//! Shorter lists, and the rest of a long one, are variable-length deltas.
//!
//! List:  directory (one `ENTRY_BYTES` entry a block, none in a short list), then the blocks.
//! Block: deltas, then one impact a posting.

use bitpacking::{BitPacker, BitPacker4x};

/// Postings in a full block.
pub const BLOCK: usize = BitPacker4x::BLOCK_LEN;

/// last ordinal u32 · offset of the block from the end of the directory u32 · bits a delta u8 · largest impact u8.
const ENTRY_BYTES: usize = 10;

/// Marks a block of variable-length deltas in the directory.
const VARINT_BITS: u8 = u8::MAX;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Posting {
    pub ordinal: u32,
    pub impact: u8,
}

/// Appends a list; `postings` ascend strictly by ordinal.
pub fn encode(postings: &[Posting], out: &mut Vec<u8>) {
    debug_assert!(postings.is_sorted_by(|a, b| a.ordinal < b.ordinal));
    if postings.len() < BLOCK {
        encode_varints(None, postings, out);
        return;
    }
    let directory = out.len();
    out.resize(directory + postings.len().div_ceil(BLOCK) * ENTRY_BYTES, 0);
    let blocks = out.len();
    let packer = BitPacker4x::new();
    let mut previous = None;
    for (i, block) in postings.chunks(BLOCK).enumerate() {
        let offset = (out.len() - blocks) as u32;
        let bits = if block.len() == BLOCK {
            let mut ordinals = [0; BLOCK];
            ordinals.iter_mut().zip(block).for_each(|(slot, posting)| *slot = posting.ordinal);
            let bits = packer.num_bits_strictly_sorted(previous, &ordinals);
            let at = out.len();
            out.resize(at + BitPacker4x::compressed_block_size(bits), 0);
            packer.compress_strictly_sorted(previous, &ordinals, &mut out[at..], bits);
            out.extend(block.iter().map(|posting| posting.impact));
            bits
        } else {
            encode_varints(previous, block, out);
            VARINT_BITS
        };
        let last = block[block.len() - 1].ordinal;
        let entry = &mut out[directory + i * ENTRY_BYTES..][..ENTRY_BYTES];
        entry[..4].copy_from_slice(&last.to_le_bytes());
        entry[4..8].copy_from_slice(&offset.to_le_bytes());
        entry[8] = bits;
        entry[9] = block.iter().map(|posting| posting.impact).max().unwrap_or(0);
        previous = Some(last);
    }
}

fn encode_varints(previous: Option<u32>, postings: &[Posting], out: &mut Vec<u8>) {
    let mut next = previous.map_or(0, |ordinal| ordinal + 1);
    for posting in postings {
        put_varint(u64::from(posting.ordinal - next), out);
        next = posting.ordinal + 1;
    }
    out.extend(postings.iter().map(|posting| posting.impact));
}

pub fn put_varint(mut value: u64, out: &mut Vec<u8>) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Reads a number and moves `bytes` behind it; a truncated one reads as what is there.
pub fn take_varint(bytes: &mut &[u8]) -> u64 {
    let (mut value, mut shift) = (0, 0);
    while let [byte, rest @ ..] = *bytes {
        let byte = *byte;
        *bytes = rest;
        value |= u64::from(byte & 0x7F) << shift;
        if byte < 0x80 || shift >= 56 {
            break;
        }
        shift += 7;
    }
    value
}

/// A list where it lies, not decoded.
#[derive(Debug, Clone, Copy)]
pub struct Postings<'s> {
    pub len: usize,
    bytes: &'s [u8],
}

impl<'s> Postings<'s> {
    /// `bytes` is what `encode` appended for `len` postings, as a verified segment holds it.
    pub fn new(len: usize, bytes: &'s [u8]) -> Postings<'s> {
        Postings { len, bytes }
    }

    fn blocks(&self) -> usize {
        if self.len < BLOCK { usize::from(self.len > 0) } else { self.len.div_ceil(BLOCK) }
    }

    fn entry(&self, block: usize) -> &'s [u8] {
        &self.bytes[block * ENTRY_BYTES..][..ENTRY_BYTES]
    }

    fn last(&self, block: usize) -> u32 {
        let entry = self.entry(block);
        u32::from_le_bytes([entry[0], entry[1], entry[2], entry[3]])
    }

    fn decode(&self, block: usize, out: &mut Block) {
        if self.len < BLOCK {
            out.decode_varints(None, self.len, self.bytes);
            return;
        }
        let entry = self.entry(block);
        let offset = u32::from_le_bytes([entry[4], entry[5], entry[6], entry[7]]) as usize;
        let bytes = &self.bytes[self.blocks() * ENTRY_BYTES + offset..];
        let previous = block.checked_sub(1).map(|before| self.last(before));
        if entry[8] == VARINT_BITS {
            out.decode_varints(previous, self.len - block * BLOCK, bytes);
            return;
        }
        let packed = BitPacker4x::compressed_block_size(entry[8]);
        BitPacker4x::new().decompress_strictly_sorted(previous, &bytes[..packed], &mut out.ordinals, entry[8]);
        out.impacts.copy_from_slice(&bytes[packed..packed + BLOCK]);
        out.len = BLOCK;
    }

    /// Every posting, in order.
    pub fn for_each(self, mut visit: impl FnMut(Posting)) {
        let mut block = Block::default();
        for i in 0..self.blocks() {
            self.decode(i, &mut block);
            for (&ordinal, &impact) in block.ordinals[..block.len].iter().zip(&block.impacts) {
                visit(Posting { ordinal, impact });
            }
        }
    }
}

#[derive(Clone)]
struct Block {
    ordinals: [u32; BLOCK],
    impacts: [u8; BLOCK],
    len: usize,
}

impl Default for Block {
    fn default() -> Self {
        Block { ordinals: [0; BLOCK], impacts: [0; BLOCK], len: 0 }
    }
}

impl Block {
    fn decode_varints(&mut self, previous: Option<u32>, len: usize, mut bytes: &[u8]) {
        let mut next = previous.map_or(0, |ordinal| ordinal + 1);
        for slot in &mut self.ordinals[..len] {
            *slot = next + take_varint(&mut bytes) as u32;
            next = *slot + 1;
        }
        self.impacts[..len].copy_from_slice(&bytes[..len]);
        self.len = len;
    }
}

/// A position in a list that only moves forward.
pub struct Cursor<'s> {
    postings: Postings<'s>,
    block: usize,
    at: usize,
    decoded: Block,
    /// The largest impact of a list without blocks.
    short_max: u8,
}

impl<'s> Cursor<'s> {
    pub fn new(postings: Postings<'s>) -> Cursor<'s> {
        let mut cursor = Cursor { postings, block: 0, at: 0, decoded: Block::default(), short_max: 0 };
        if postings.len > 0 {
            postings.decode(0, &mut cursor.decoded);
        }
        if postings.len < BLOCK {
            cursor.short_max = cursor.decoded.impacts[..cursor.decoded.len].iter().copied().max().unwrap_or(0);
        }
        cursor
    }

    /// The posting under the cursor; None behind the end.
    pub fn ordinal(&self) -> Option<u32> {
        (self.at < self.decoded.len).then(|| self.decoded.ordinals[self.at])
    }

    pub fn impact(&self) -> u8 {
        self.decoded.impacts[self.at]
    }

    /// The largest impact among postings in `[cursor, end)`, as far as whole blocks tell.
    pub fn max_before(&self, end: u32) -> u8 {
        let Some(ordinal) = self.ordinal() else { return 0 };
        if self.postings.len < BLOCK {
            return if ordinal < end { self.short_max } else { 0 };
        }
        let (mut max, mut first) = (0, ordinal);
        for block in self.block..self.postings.blocks() {
            if first >= end {
                break;
            }
            max = max.max(self.postings.entry(block)[9]);
            first = self.postings.last(block) + 1;
        }
        max
    }

    /// Moves to the first posting at or behind `target`.
    pub fn seek(&mut self, target: u32) {
        if self.ordinal().is_none_or(|ordinal| ordinal >= target) {
            return;
        }
        if self.decoded.ordinals[self.decoded.len - 1] < target {
            let blocks = self.postings.blocks();
            let mut block = self.block + 1;
            while block < blocks && self.postings.last(block) < target {
                block += 1;
            }
            self.block = block;
            if block >= blocks {
                self.at = self.decoded.len;
                return;
            }
            self.postings.decode(block, &mut self.decoded);
            self.at = 0;
        }
        self.at += self.decoded.ordinals[self.at..self.decoded.len].partition_point(|&ordinal| ordinal < target);
    }

    /// Adds `weight × impact` to `sums[ordinal − base]` for each posting before `base + sums.len()`, and moves
    /// behind them.
    pub fn accumulate(&mut self, base: u32, sums: &mut [u32], weight: u32) {
        self.seek(base);
        let end = base.saturating_add(sums.len() as u32);
        while self.at < self.decoded.len {
            let ordinals = &self.decoded.ordinals[self.at..self.decoded.len];
            let inside = match ordinals[ordinals.len() - 1] < end {
                true => ordinals.len(),
                false => ordinals.partition_point(|&ordinal| ordinal < end),
            };
            for (ordinal, impact) in ordinals[..inside].iter().zip(&self.decoded.impacts[self.at..]) {
                sums[(ordinal - base) as usize] += weight * u32::from(*impact);
            }
            self.at += inside;
            if self.at < self.decoded.len || self.block + 1 >= self.postings.blocks() {
                return;
            }
            self.block += 1;
            self.at = 0;
            self.postings.decode(self.block, &mut self.decoded);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(len: u32, step: u32) -> Vec<Posting> {
        (0..len).map(|i| Posting { ordinal: i * step + i % step.max(1), impact: (i % 255 + 1) as u8 }).collect()
    }

    #[test]
    fn lists_of_every_length_come_back_and_seek_lands_on_the_next_posting() {
        for len in [0, 1, 2, 127, 128, 129, 255, 256, 1000] {
            for step in [1, 3, 1000] {
                let postings = list(len, step);
                let mut bytes = vec![0xAA; 3];
                encode(&postings, &mut bytes);
                let view = Postings::new(postings.len(), &bytes[3..]);
                let mut back = Vec::new();
                view.for_each(|posting| back.push(posting));
                assert_eq!(back, postings, "{len} × {step}");
                for target in [0, 1, step * 5 + 1, step * 127, step * 129, step * 999, u32::MAX] {
                    let mut cursor = Cursor::new(view);
                    cursor.seek(target);
                    let expected = postings.iter().find(|p| p.ordinal >= target);
                    assert_eq!(cursor.ordinal(), expected.map(|p| p.ordinal), "{len} × {step} to {target}");
                    assert_eq!(cursor.ordinal().map(|_| cursor.impact()), expected.map(|p| p.impact));
                }
            }
        }
    }

    #[test]
    fn windows_add_up_to_the_list_and_bounds_hold() {
        let postings = list(700, 3);
        let mut bytes = Vec::new();
        encode(&postings, &mut bytes);
        let mut cursor = Cursor::new(Postings::new(postings.len(), &bytes));
        let mut sums = Vec::new();
        for base in (0..2200).step_by(100) {
            let bound = cursor.max_before(base + 100);
            let mut window = [0; 100];
            cursor.accumulate(base, &mut window, 2);
            assert!(window.iter().all(|sum| *sum <= 2 * u32::from(bound)));
            sums.extend(window);
        }
        let expected: Vec<(usize, u32)> =
            postings.iter().map(|p| (p.ordinal as usize, 2 * u32::from(p.impact))).collect();
        assert_eq!(sums.into_iter().enumerate().filter(|(_, sum)| *sum > 0).collect::<Vec<_>>(), expected);
    }
}
