//! Files of the index behind checksums: content in pages, a checksum a page, numbers in a footer. Written once, front to
//! back; mapped; never changed.
//!
//! ```text
//! header   magic, format version
//! content  whatever the file is about
//! sums     a checksum for each page of all the above
//! footer   the file's own numbers, length of header and content, length of the file, a checksum of sums and footer
//! ```
//! Opening reads the footer alone. A page is checked against its sum when it is first read, so damage is always found
//! before it is used, and opening costs the same at every size.

use std::fs::File;
use std::io::{self, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use memmap2::Mmap;

use crate::error::{Error, Result};

pub const HEADER_BYTES: usize = 16;

pub const PAGE: usize = 16 << 10;

const SUM_BYTES: usize = 8;

/// What tells one kind of file from another.
#[derive(Debug, Clone, Copy)]
pub struct Kind {
    pub magic: &'static [u8; 8],
    pub format: u32,
}

/// An open file whose footer is sound.
pub struct Pages {
    path: PathBuf,
    bytes: Bytes,
    /// Length of header and content.
    end: usize,
    /// One bit a page: set once the page has matched its sum.
    verified: Box<[AtomicU64]>,
}

enum Bytes {
    Mapped(Mmap),
    Owned(Vec<u8>),
}

impl Pages {
    /// Maps a file and returns the `N` numbers of its footer. `IndexDamaged` if it is missing, is not one of this kind,
    /// is damaged at its end, or was cut short.
    pub fn open<const N: usize>(path: &Path, kind: Kind) -> Result<(Pages, [u64; N])> {
        let file = File::open(path).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => {
                Error::IndexDamaged { path: path.to_owned(), cause: "the segment is missing".into() }
            }
            _ => Error::io("open segment", path)(error),
        })?;
        // SAFETY: files of the index are written once under a temporary name and never changed afterwards, so the
        // mapping does not change underneath. Another program that truncates one could raise SIGBUS; the data
        // folder is private to this program.
        let map = unsafe { Mmap::map(&file) }.map_err(Error::io("map segment", path))?;
        Pages::new(path.to_owned(), Bytes::Mapped(map), kind)
    }

    /// A file that was written to memory.
    pub fn from_bytes<const N: usize>(bytes: Vec<u8>, kind: Kind) -> Result<(Pages, [u64; N])> {
        Pages::new(PathBuf::from("(memory)"), Bytes::Owned(bytes), kind)
    }

    fn new<const N: usize>(path: PathBuf, bytes: Bytes, kind: Kind) -> Result<(Pages, [u64; N])> {
        let damaged = |cause: &str| Error::IndexDamaged { path: path.clone(), cause: format!("the segment {cause}") };
        let footer_bytes = (N + 2) * 8 + SUM_BYTES;
        let all = bytes.all();
        if all.len() < HEADER_BYTES + footer_bytes || &all[..8] != kind.magic {
            return Err(damaged("is not one, or was cut short"));
        }
        let format = u32::from_le_bytes([all[8], all[9], all[10], all[11]]);
        if format != kind.format {
            return Err(damaged(&format!("has format {format}, this build reads {}", kind.format)));
        }
        let footer = &all[all.len() - footer_bytes..];
        let (end, length) = (read_u64(footer, N) as usize, read_u64(footer, N + 1));
        let tail = end.min(all.len() - footer_bytes)..all.len() - SUM_BYTES;
        let sums = (all.len() - footer_bytes).checked_sub(end).filter(|sums| *sums == end.div_ceil(PAGE) * SUM_BYTES);
        if length != all.len() as u64 || sums.is_none() || footer[footer_bytes - SUM_BYTES..] != sum(&all[tail]) {
            return Err(damaged("footer does not match its checksum"));
        }
        let numbers = std::array::from_fn(|i| read_u64(footer, i));
        let verified = (0..end.div_ceil(PAGE).div_ceil(64)).map(|_| AtomicU64::new(0)).collect();
        Ok((Pages { path, bytes, end, verified }, numbers))
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Bytes of header or content, each page checked before its first use.
    pub fn slice(&self, range: Range<usize>) -> Result<&[u8]> {
        let all = self.bytes.all();
        if range.is_empty() {
            return Ok(&[]);
        }
        if range.end > self.end || range.start > range.end {
            return Err(self.damaged("points outside itself"));
        }
        for page in range.start / PAGE..range.end.div_ceil(PAGE) {
            let (word, bit) = (&self.verified[page / 64], 1 << (page % 64));
            if word.load(Ordering::Relaxed) & bit == 0 {
                let content = &all[page * PAGE..((page + 1) * PAGE).min(self.end)];
                let expected = &all[self.end + page * SUM_BYTES..][..SUM_BYTES];
                if sum(content) != expected {
                    return Err(self.damaged(&format!("page {page} does not match its checksum")));
                }
                word.fetch_or(bit, Ordering::Relaxed);
            }
        }
        Ok(&all[range])
    }

    /// Reads every page against its checksum.
    pub fn verify(&self) -> Result<()> {
        (0..self.end).step_by(PAGE).try_for_each(|at| self.slice(at..at + 1).map(drop))
    }

    pub fn damaged(&self, cause: &str) -> Error {
        Error::IndexDamaged { path: self.path.clone(), cause: format!("the segment {cause}") }
    }

    #[cfg(test)]
    pub fn into_bytes(self) -> Vec<u8> {
        self.bytes.all().to_vec()
    }
}

impl Bytes {
    fn all(&self) -> &[u8] {
        match self {
            Bytes::Mapped(map) => map,
            Bytes::Owned(bytes) => bytes,
        }
    }
}

/// Writes a file front to back and sums up each page of it.
pub struct PageWriter<W: Write> {
    out: W,
    written: usize,
    page: Vec<u8>,
    sums: Vec<u8>,
}

impl<W: Write> PageWriter<W> {
    pub fn new(out: W, kind: Kind) -> io::Result<PageWriter<W>> {
        let mut writer = PageWriter { out, written: 0, page: Vec::with_capacity(PAGE), sums: Vec::new() };
        writer.put(kind.magic)?;
        writer.put(&kind.format.to_le_bytes())?;
        writer.put(&[0; HEADER_BYTES - 12])?;
        Ok(writer)
    }

    /// Where the next byte goes.
    pub fn written(&self) -> usize {
        self.written
    }

    pub fn put(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        self.written += bytes.len();
        while !bytes.is_empty() {
            let (head, rest) = bytes.split_at(bytes.len().min(PAGE - self.page.len()));
            self.page.extend(head);
            bytes = rest;
            if self.page.len() == PAGE {
                self.close_page()?;
            }
        }
        Ok(())
    }

    /// Zeros up to the next multiple of `unit`, which is at most 64.
    pub fn align(&mut self, unit: usize) -> io::Result<()> {
        let gap = self.written.next_multiple_of(unit) - self.written;
        self.put(&[0; 64][..gap])
    }

    pub fn finish(mut self, numbers: &[u64]) -> io::Result<W> {
        let end = self.written;
        self.close_page()?;
        let PageWriter { mut out, sums: mut tail, .. } = self;
        let length = end + tail.len() + (numbers.len() + 2) * 8 + SUM_BYTES;
        for number in numbers.iter().copied().chain([end as u64, length as u64]) {
            tail.extend(number.to_le_bytes());
        }
        let checksum = sum(&tail);
        tail.extend(checksum);
        out.write_all(&tail)?;
        Ok(out)
    }

    fn close_page(&mut self) -> io::Result<()> {
        if !self.page.is_empty() {
            self.out.write_all(&self.page)?;
            self.sums.extend(sum(&self.page));
            self.page.clear();
        }
        Ok(())
    }
}

/// The `i`-th little-endian number of a slice.
pub fn read_u64(bytes: &[u8], i: usize) -> u64 {
    bytes[i * 8..][..8].iter().rev().fold(0, |sum, byte| sum << 8 | u64::from(*byte))
}

/// A number that stands for some bytes.
pub fn fingerprint(bytes: &[u8]) -> u64 {
    u64::from_le_bytes(sum(bytes))
}

fn sum(bytes: &[u8]) -> [u8; SUM_BYTES] {
    let hash = blake3::hash(bytes);
    let mut sum = [0; SUM_BYTES];
    sum.copy_from_slice(&hash.as_bytes()[..SUM_BYTES]);
    sum
}
