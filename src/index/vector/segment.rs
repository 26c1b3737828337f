//! The vectors of some chunks as one file, all of one model. Written once, mapped, never changed; deletions are
//! tombstones kept by the store.
//!
//! ```text
//! model    the model's name
//! rows     chunk row u32 × n, document row u32 × n     (rows of the store; sorted by chunk row, then window)
//! windows  u16 × n, the number of the piece of its text
//! groups   a byte × n, the script: 0 without Hangul, 1 mostly Hangul, 2 both
//! scales   f32 × n
//! keys     16 bytes × n, sorted, and the place each belongs to, u32 × n
//! high     i8 × dimensions × n
//! low      i8 × dimensions × n
//! footer   counts
//! ```
//! A coordinate is a 16-bit integer q = round(v / scale) in two planes, q = 256 · high + low. A scan reads only the
//! high plane; both together are within scale / 2 of the model's number, which is 1/65278 of the vector's largest.
//! Every section starts at a multiple of 64 bytes, and `pages` keeps all of it behind checksums.

use std::cmp::Ordering;
use std::io::{self, Write};
use std::ops::Range;
use std::path::Path;

use crate::error::Result;
use crate::index::pages::{HEADER_BYTES, Kind, PageWriter, Pages};
use crate::model::{Id, Rows};

const KIND: Kind = Kind { magic: b"KBLITVEC", format: 1 };

/// Vectors in a segment at most, so that writing and merging need little memory.
pub const MOST_VECTORS: usize = 1 << 16;

const ALIGN: usize = 64;
const KEY_BYTES: usize = 16;

/// The script of a text. A multilingual model puts texts of a query's own language nearer to it, whatever they say;
/// evidence is therefore weighed within each group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Group {
    /// Most letters are Hangul.
    Hangul,
    /// None is.
    Other,
    /// Some are: code with Korean comments, a page that quotes a Korean one. Near to queries of either kind.
    Mixed,
}

impl Group {
    pub fn of(text: &str) -> Group {
        let (mut hangul, mut other) = (0usize, 0usize);
        for c in text.chars().filter(|c| c.is_alphabetic()) {
            match c {
                '\u{1100}'..='\u{11FF}'
                | '\u{3130}'..='\u{318F}'
                | '\u{A960}'..='\u{A97F}'
                | '\u{AC00}'..='\u{D7FF}' => {
                    hangul += 1;
                }
                _ => other += 1,
            }
        }
        // A syllable says about as much as two Latin letters.
        match (hangul, 2 * hangul > other) {
            (0, _) => Group::Other,
            (_, true) => Group::Hangul,
            (_, false) => Group::Mixed,
        }
    }

    fn byte(self) -> u8 {
        match self {
            Group::Other => 0,
            Group::Hangul => 1,
            Group::Mixed => 2,
        }
    }
}

/// A vector in sixteen bits a coordinate.
#[derive(Debug, Clone, PartialEq)]
pub struct Quantised {
    pub scale: f32,
    pub high: Vec<i8>,
    pub low: Vec<i8>,
}

impl Quantised {
    pub fn of(vector: &[f32]) -> Quantised {
        let largest = vector.iter().fold(0f32, |largest, v| largest.max(v.abs()));
        let scale = largest / LARGEST;
        let whole = |v: &f32| if scale > 0.0 { (v / scale).round().clamp(-LARGEST, LARGEST) as i32 } else { 0 };
        let mut quantised = Quantised { scale, high: Vec::with_capacity(vector.len()), low: Vec::new() };
        for q in vector.iter().map(whole) {
            let high = (q + 128) >> 8;
            quantised.high.push(high as i8);
            quantised.low.push((q - 256 * high) as i8);
        }
        quantised
    }
}

/// The largest 16-bit number whose high half, rounded, is still one of eight bits.
const LARGEST: f32 = 32639.0;

/// A vector to be written.
#[derive(Debug, Clone, Copy)]
pub struct Record<'r> {
    pub rows: Rows,
    /// Which piece of its text, from 0.
    pub window: u16,
    pub group: Group,
    /// Hash of the model and the text.
    pub key: Id,
    pub scale: f32,
    pub high: &'r [i8],
    pub low: &'r [i8],
}

pub struct VectorSegment {
    pages: Pages,
    model: String,
    dimensions: usize,
    vectors: usize,
    at: Sections,
}

/// Where the sections start.
#[derive(Debug, Clone, Copy)]
struct Sections {
    rows: usize,
    windows: usize,
    groups: usize,
    scales: usize,
    keys: usize,
    places: usize,
    high: usize,
    low: usize,
    end: usize,
}

impl Sections {
    fn of(model: usize, vectors: usize, dimensions: usize) -> Option<Sections> {
        let mut next = HEADER_BYTES.checked_add(model)?;
        let mut section = |bytes_each: usize| {
            let start = next.checked_next_multiple_of(ALIGN)?;
            next = start.checked_add(vectors.checked_mul(bytes_each)?)?;
            Some(start)
        };
        Some(Sections {
            rows: section(8)?,
            windows: section(2)?,
            groups: section(1)?,
            scales: section(4)?,
            keys: section(KEY_BYTES)?,
            places: section(4)?,
            high: section(dimensions)?,
            low: section(dimensions)?,
            end: next,
        })
    }
}

impl VectorSegment {
    /// Maps a segment file. `IndexDamaged` if it is missing, is not one, is damaged at its end, or was cut short.
    pub fn open(path: &Path) -> Result<VectorSegment> {
        VectorSegment::new(Pages::open(path, KIND)?)
    }

    /// A segment that was written to memory.
    pub fn from_bytes(bytes: Vec<u8>) -> Result<VectorSegment> {
        VectorSegment::new(Pages::from_bytes(bytes, KIND)?)
    }

    fn new((pages, numbers): (Pages, [u64; 4])) -> Result<VectorSegment> {
        let [model, vectors, dimensions, end] = numbers.map(|number| number as usize);
        let at = Sections::of(model, vectors, dimensions).filter(|at| at.end == end);
        let Some(at) = at else { return Err(pages.damaged("has sections that do not fit")) };
        let model = String::from_utf8_lossy(pages.slice(HEADER_BYTES..HEADER_BYTES + model)?).into_owned();
        Ok(VectorSegment { pages, model, dimensions, vectors, at })
    }

    pub fn path(&self) -> &Path {
        self.pages.path()
    }

    pub fn model(&self) -> &str {
        &self.model
    }

    pub fn dimensions(&self) -> usize {
        self.dimensions
    }

    /// Vectors, deleted ones included.
    pub fn len(&self) -> usize {
        self.vectors
    }

    pub fn is_empty(&self) -> bool {
        self.vectors == 0
    }

    /// Reads every page against its checksum.
    pub fn verify(&self) -> Result<()> {
        self.pages.verify()
    }

    /// All that is kept of each vector beside its coordinates.
    pub fn columns(&self) -> Result<Columns<'_>> {
        let (n, at) = (self.vectors, &self.at);
        let (chunks, documents) = self.pages.slice(at.rows..at.rows + 8 * n)?.split_at(4 * n);
        Ok(Columns {
            chunks,
            documents,
            windows: self.pages.slice(at.windows..at.windows + 2 * n)?,
            groups: self.pages.slice(at.groups..at.groups + n)?,
            scales: self.pages.slice(at.scales..at.scales + 4 * n)?,
        })
    }

    /// The upper halves of the coordinates, a vector after the other.
    pub fn high(&self) -> Result<&[i8]> {
        Ok(signed(self.pages.slice(self.at.high..self.at.high + self.vectors * self.dimensions)?))
    }

    /// The upper halves of neighbouring vectors' coordinates.
    pub fn high_of(&self, places: Range<usize>) -> Result<&[i8]> {
        let at = |place: usize| self.at.high + place * self.dimensions;
        Ok(signed(self.pages.slice(at(places.start)..at(places.end))?))
    }

    /// The upper halves of one vector's coordinates.
    pub fn high_at(&self, place: usize) -> Result<&[i8]> {
        self.plane(self.at.high, place)
    }

    /// The lower halves of one vector's coordinates.
    pub fn low_at(&self, place: usize) -> Result<&[i8]> {
        self.plane(self.at.low, place)
    }

    /// Where the vectors of a chunk lie, one for each window.
    pub fn places_of(&self, chunk_row: u32) -> Result<Range<usize>> {
        let rows = self.pages.slice(self.at.rows..self.at.rows + 4 * self.vectors)?;
        let first = partition(self.vectors, |i| number(rows, i) < chunk_row);
        let windows = (first..self.vectors).take_while(|i| number(rows, *i) == chunk_row).count();
        Ok(first..first + windows)
    }

    /// The places of all vectors with this key, ascending.
    pub fn find(&self, key: Id) -> Result<Vec<usize>> {
        let key_at = |i: usize| self.pages.slice(self.at.keys + KEY_BYTES * i..self.at.keys + KEY_BYTES * (i + 1));
        let (mut low, mut high) = (0, self.vectors);
        while low < high {
            let middle = low + (high - low) / 2;
            match key_at(middle)?.cmp(&key.0[..]) {
                Ordering::Less => low = middle + 1,
                Ordering::Equal | Ordering::Greater => high = middle,
            }
        }
        let mut places = Vec::new();
        while low < self.vectors && key_at(low)? == &key.0[..] {
            let at = self.at.places + 4 * low;
            let place = number(self.pages.slice(at..at + 4)?, 0) as usize;
            if place >= self.vectors {
                return Err(self.pages.damaged("has a key of no vector"));
            }
            places.push(place);
            low += 1;
        }
        Ok(places)
    }

    /// All vectors as they were written, in the order of their places.
    pub fn records(&self) -> Result<Vec<Record<'_>>> {
        let columns = self.columns()?;
        let (n, dimensions) = (self.vectors, self.dimensions);
        let high = self.high()?;
        let low = signed(self.pages.slice(self.at.low..self.at.low + n * dimensions)?);
        let places = self.pages.slice(self.at.places..self.at.places + 4 * n)?;
        let keys = self.pages.slice(self.at.keys..self.at.keys + KEY_BYTES * n)?;
        let mut by_place = vec![Id([0; KEY_BYTES]); n];
        for (i, key) in keys.chunks_exact(KEY_BYTES).enumerate() {
            if let Some(slot) = by_place.get_mut(number(places, i) as usize) {
                slot.0.copy_from_slice(key);
            }
        }
        let record = |(place, key)| Record {
            rows: columns.rows(place),
            window: columns.window(place),
            group: columns.group(place),
            key,
            scale: columns.scale(place),
            high: &high[place * dimensions..][..dimensions],
            low: &low[place * dimensions..][..dimensions],
        };
        Ok(by_place.into_iter().enumerate().map(record).collect())
    }

    fn plane(&self, start: usize, place: usize) -> Result<&[i8]> {
        let at = start + place * self.dimensions;
        Ok(signed(self.pages.slice(at..at + self.dimensions)?))
    }
}

/// Columns of a segment, checked against their sums.
#[derive(Debug, Clone, Copy)]
pub struct Columns<'s> {
    chunks: &'s [u8],
    documents: &'s [u8],
    windows: &'s [u8],
    groups: &'s [u8],
    scales: &'s [u8],
}

impl Columns<'_> {
    pub fn rows(&self, place: usize) -> Rows {
        Rows { chunk: number(self.chunks, place), document: number(self.documents, place) }
    }

    pub fn chunk(&self, place: usize) -> u32 {
        number(self.chunks, place)
    }

    pub fn document(&self, place: usize) -> u32 {
        number(self.documents, place)
    }

    pub fn window(&self, place: usize) -> u16 {
        u16::from_le_bytes([self.windows[2 * place], self.windows[2 * place + 1]])
    }

    pub fn group(&self, place: usize) -> Group {
        match self.groups[place] {
            0 => Group::Other,
            1 => Group::Hangul,
            _ => Group::Mixed,
        }
    }

    pub fn scale(&self, place: usize) -> f32 {
        f32::from_bits(number(self.scales, place))
    }
}

/// Writes a segment of these vectors, which are sorted by chunk row and window and have as many dimensions each.
pub fn write<W: Write>(out: W, model: &str, dimensions: usize, records: &[Record]) -> io::Result<W> {
    let mut out = PageWriter::new(out, KIND)?;
    out.put(model.as_bytes())?;
    out.align(ALIGN)?;
    records.iter().try_for_each(|record| out.put(&record.rows.chunk.to_le_bytes()))?;
    records.iter().try_for_each(|record| out.put(&record.rows.document.to_le_bytes()))?;
    out.align(ALIGN)?;
    records.iter().try_for_each(|record| out.put(&record.window.to_le_bytes()))?;
    out.align(ALIGN)?;
    records.iter().try_for_each(|record| out.put(&[record.group.byte()]))?;
    out.align(ALIGN)?;
    records.iter().try_for_each(|record| out.put(&record.scale.to_le_bytes()))?;
    let mut keys: Vec<(Id, u32)> = records.iter().zip(0..).map(|(record, place)| (record.key, place)).collect();
    keys.sort_unstable();
    out.align(ALIGN)?;
    keys.iter().try_for_each(|(key, _)| out.put(&key.0))?;
    out.align(ALIGN)?;
    keys.iter().try_for_each(|(_, place)| out.put(&place.to_le_bytes()))?;
    out.align(ALIGN)?;
    records.iter().try_for_each(|record| out.put(&unsigned(record.high)))?;
    out.align(ALIGN)?;
    records.iter().try_for_each(|record| out.put(&unsigned(record.low)))?;
    let end = out.written();
    out.finish(&[model.len(), records.len(), dimensions, end].map(|number| number as u64))
}

/// The number of leading places for which `before` holds.
fn partition(n: usize, before: impl Fn(usize) -> bool) -> usize {
    let (mut low, mut high) = (0, n);
    while low < high {
        let middle = low + (high - low) / 2;
        if before(middle) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    low
}

/// The `i`-th little-endian number of a slice.
fn number(bytes: &[u8], i: usize) -> u32 {
    u32::from_le_bytes([bytes[4 * i], bytes[4 * i + 1], bytes[4 * i + 2], bytes[4 * i + 3]])
}

fn signed(bytes: &[u8]) -> &[i8] {
    // SAFETY: u8 and i8 have the same size and alignment, and every bit pattern is one of each.
    unsafe { std::slice::from_raw_parts(bytes.as_ptr().cast(), bytes.len()) }
}

fn unsigned(numbers: &[i8]) -> Vec<u8> {
    numbers.iter().map(|number| number.cast_unsigned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const DIMENSIONS: usize = 48;

    /// Numbers that differ from place to place, all within ±1.
    fn vector(seed: u32) -> Vec<f32> {
        (0..DIMENSIONS as u32).map(|i| ((seed * 31 + i * 17) % 201) as f32 / 100.0 - 1.0).collect()
    }

    fn key(n: u32) -> Id {
        Id::of(&[b"model", &n.to_le_bytes()])
    }

    fn bytes(rows: &[(u32, u16)]) -> Vec<u8> {
        let vectors: Vec<Quantised> = rows.iter().map(|(row, _)| Quantised::of(&vector(*row))).collect();
        let records: Vec<Record> = rows
            .iter()
            .zip(&vectors)
            .map(|((row, window), vector)| Record {
                rows: Rows { chunk: *row, document: row / 10 },
                window: *window,
                group: [Group::Hangul, Group::Other, Group::Mixed][*row as usize % 3],
                key: key(row % 7),
                scale: vector.scale,
                high: &vector.high,
                low: &vector.low,
            })
            .collect();
        write(Vec::new(), "a-model/2", DIMENSIONS, &records).unwrap()
    }

    fn segment(rows: &[(u32, u16)]) -> VectorSegment {
        VectorSegment::from_bytes(bytes(rows)).unwrap()
    }

    #[test]
    fn what_is_written_is_read() {
        let segment = segment(&[(3, 0), (20, 0), (20, 1), (21, 0)]);
        assert_eq!((segment.model(), segment.len(), segment.dimensions()), ("a-model/2", 4, DIMENSIONS));
        let columns = segment.columns().unwrap();
        assert_eq!(columns.rows(1), Rows { chunk: 20, document: 2 });
        assert_eq!((columns.chunk(3), columns.document(3)), (21, 2));
        assert_eq!((0..4).map(|i| columns.window(i)).collect::<Vec<_>>(), [0, 0, 1, 0]);
        assert_eq!([0, 1, 3].map(|at| columns.group(at)), [Group::Hangul, Group::Mixed, Group::Hangul]);
        assert_eq!(segment.places_of(20).unwrap(), 1..3);
        assert_eq!(segment.places_of(19).unwrap(), 1..1);
        assert_eq!(segment.places_of(99).unwrap(), 4..4);
        assert_eq!(segment.find(key(0)).unwrap(), [3]);
        assert_eq!(segment.find(key(6)).unwrap(), [1, 2]);
        assert_eq!(segment.find(key(5)).unwrap(), [0usize; 0]);
        assert_eq!(segment.high().unwrap().len(), 4 * DIMENSIONS);
        assert_eq!(segment.high_at(2).unwrap(), &segment.high().unwrap()[2 * DIMENSIONS..3 * DIMENSIONS]);
        let records = segment.records().unwrap();
        assert_eq!((records[3].key, records[3].window, records[3].rows.chunk), (key(0), 0, 21));
        assert_eq!(records[2].low, segment.low_at(2).unwrap());
    }

    #[test]
    fn both_planes_give_the_vector_back() {
        let segment = segment(&[(1, 0), (77, 0), (4000, 0)]);
        for (place, row) in [(0, 1), (1, 77), (2, 4000)] {
            let scale = segment.columns().unwrap().scale(place);
            let planes = segment.high_at(place).unwrap().iter().zip(segment.low_at(place).unwrap());
            for ((high, low), expected) in planes.zip(vector(row)) {
                let found = (256.0 * f32::from(*high) + f32::from(*low)) * scale;
                assert!((found - expected).abs() <= 0.51 * scale, "{found} for {expected}");
                // The high plane alone is within half of its own step.
                assert!((256.0 * f32::from(*high) * scale - expected).abs() <= 129.0 * scale);
            }
        }
    }

    #[test]
    fn the_largest_and_the_smallest_coordinates_fit() {
        let quantised = Quantised::of(&[1.0, -1.0, 0.0, 0.25]);
        assert_eq!((&quantised.high[..], &quantised.low[..]), (&[127, -127, 0, 32][..], &[127, -127, 0, -32][..]));
        assert_eq!(Quantised::of(&[0.0; 3]), Quantised { scale: 0.0, high: vec![0; 3], low: vec![0; 3] });
    }

    #[test]
    fn a_group_is_the_script_of_a_text() {
        for (text, group) in [
            ("서버를 다시 시작한다", Group::Hangul),
            ("kubectl로 서버를 다시 시작하는 방법", Group::Hangul),
            ("the Korean word 서버 means server", Group::Mixed),
            ("日本語の文章", Group::Other),
            ("12 + 34", Group::Other),
            ("", Group::Other),
        ] {
            assert_eq!(Group::of(text), group, "{text}");
        }
    }

    #[test]
    fn any_flipped_byte_and_any_cut_is_noticed() {
        let rows: Vec<(u32, u16)> = (0..500).map(|row| (row, 0)).collect();
        let bytes = bytes(&rows);
        for at in (0..bytes.len()).step_by(997) {
            let mut damaged = bytes.clone();
            damaged[at] ^= 0x10;
            let noticed = match VectorSegment::from_bytes(damaged) {
                Err(error) => error.code(),
                Ok(segment) => segment.verify().unwrap_err().code(),
            };
            assert_eq!(noticed, "store_corrupt", "byte {at}");
        }
        for len in [0, 20, bytes.len() / 2, bytes.len() - 1] {
            assert_eq!(VectorSegment::from_bytes(bytes[..len].to_vec()).err().map(|e| e.code()), Some("store_corrupt"));
        }
    }

    #[test]
    fn sections_start_where_a_wide_load_is_aligned() {
        let at = Sections::of("a-model/2".len(), 4, DIMENSIONS).unwrap();
        for start in [at.rows, at.windows, at.groups, at.scales, at.keys, at.places, at.high, at.low] {
            assert_eq!(start % ALIGN, 0);
        }
        assert!(Sections::of(9, usize::MAX / 2, 384).is_none());
    }
}
