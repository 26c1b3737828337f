//! The end of an ingest step: new chunks become a segment, deleted ones tombstones, small segments merge, and the
//! revision that names them all counts up. Also rebuilding every segment from the store.

use std::path::Path;
use std::sync::atomic::AtomicBool;

use jiff::Timestamp;
use rayon::prelude::*;

use super::embed::publish as vectors;
use super::parse::{LOOK_BACK, readable};
use super::prepare::{Job, file_stem, sample_averages};
use crate::config::Config;
use crate::error::{Error, Result};
use crate::index::build::{self, Averages, Builder, DEFAULT_AVERAGES, Passage};
use crate::index::segment::{MergeInput, Segment, merge};
use crate::kb::Kb;
use crate::model::{Bits, Rows, SegmentEntry};
use crate::store::{ChunkRow, DocumentRow, Reader, Writer, segments_folder};

/// What one transaction changes in the index.
pub struct Step {
    averages: Averages,
    segments: Vec<Segment>,
    terms: [u64; 2],
    rows: Option<(u32, u32)>,
    /// Rows of chunks that are gone.
    pub dead: Vec<u32>,
    /// Bytes of text stored so far.
    pub bytes: usize,
    pub changed: bool,
}

impl Step {
    pub fn new(averages: Averages) -> Step {
        Step { averages, segments: Vec::new(), terms: [0; 2], rows: None, dead: Vec::new(), bytes: 0, changed: false }
    }

    /// Adds a run whose chunks were stored at `rows`.
    pub fn add(&mut self, run: build::Run, rows: &[Rows]) -> Result<()> {
        let (Some(first), Some(last)) = (rows.first(), rows.last()) else { return Ok(()) };
        let start = self.rows.map_or(first.chunk, |(start, _)| start);
        self.rows = Some((start, last.chunk + 1));
        self.terms.iter_mut().zip(run.terms_seen).for_each(|(sum, seen)| *sum += seen);
        self.segments.push(run.into_segment(rows)?);
        Ok(())
    }

    /// Writes the segment file, if there is anything to write.
    fn write(&self, writer: &Writer) -> Result<Option<SegmentEntry>> {
        let Some((start, end)) = self.rows else { return Ok(None) };
        let none = Bits::default();
        let inputs: Vec<MergeInput> =
            self.segments.iter().map(|segment| MergeInput { segment, tombstones: &none }).collect();
        let mut entry = write_merged(writer, &inputs)?;
        (entry.rows, entry.terms) = (start..end, self.terms);
        Ok(Some(entry))
    }
}

/// Names the step's segments under the next revision, in the transaction that is open. Returns the revision in force.
pub fn publish(writer: &Writer, step: Step, now: Timestamp) -> Result<u64> {
    let folder = segments_folder(writer.folder());
    let mut entries = writer.segments()?;
    let revision = writer.revision()?;
    writer.set_meta("last_ingest_at", now.to_string())?;
    if !step.changed && revision > 0 {
        return Ok(revision);
    }
    bury(&folder, &mut entries, &step.dead)?;
    vectors::bury(writer, &step.dead)?;
    entries.extend(step.write(writer)?);
    let entries = compact(writer, &folder, entries)?;
    writer.replace_segments(&entries)?;
    writer.set_meta("average_grams", f64::from(step.averages.grams))?;
    writer.set_meta("average_words", f64::from(step.averages.words))?;
    writer.set_meta("revision", revision as i64 + 1)?;
    Ok(revision + 1)
}

/// Rows of deleted chunks become tombstones of the segments they lie in.
fn bury(folder: &Path, entries: &mut [SegmentEntry], dead: &[u32]) -> Result<()> {
    for entry in entries {
        let mut rows = dead.iter().filter(|row| entry.rows.contains(row)).peekable();
        if rows.peek().is_none() {
            continue;
        }
        let segment = Segment::open(&folder.join(&entry.file))?;
        for row in rows {
            if let Some(ordinal) = segment.ordinal_of(*row)? {
                entry.tombstones.insert(ordinal as usize);
            }
        }
    }
    Ok(())
}

/// The averages that the index is built with; for the first time, those of a sample of the files.
pub fn averages(writer: &Writer, config: &Config, jobs: &[Job]) -> Result<Averages> {
    match (writer.meta::<f64>("average_grams")?, writer.meta::<f64>("average_words")?) {
        (Some(grams), Some(words)) if !writer.segments()?.is_empty() => {
            Ok(Averages { grams: grams as f32, words: words as f32 })
        }
        _ => Ok(sample_averages(jobs, config)),
    }
}

/// Rebuilds the index once the corpus has outgrown the averages its weights were made with. Returns the new revision.
pub fn keep_averages(writer: &Writer) -> Result<Option<u64>> {
    let entries = writer.segments()?;
    let chunks: u64 = entries.iter().map(|entry| u64::from(entry.chunks)).sum();
    let (Some(used), true) = (writer.meta::<f64>("average_grams")?, chunks > 0) else { return Ok(None) };
    let mean = entries.iter().map(|entry| entry.terms[0]).sum::<u64>() as f64 / chunks as f64;
    if (mean / used).clamp(1.0 / MAX_DRIFT, MAX_DRIFT) == mean / used {
        return Ok(None);
    }
    rebuild_from_store(writer).map(Some)
}

/// Finds out which segments are missing, damaged or of another version, and makes all anew from the store if any is.
/// Returns the revision in force.
pub fn rebuild(kb: &Kb) -> Result<u64> {
    if kb.config.readonly {
        return Err(Error::ReadonlyMode { operation: "rebuilding the index" });
    }
    // Whoever needs the index has no use for an answer without it.
    let unstopped = AtomicBool::new(false);
    let writer = Writer::open(kb.data_dir(), REBUILD_WAIT, &Timestamp::now().to_string(), &unstopped)?;
    // Whoever held the lock before may have rebuilt it already.
    if vectors::repair(&writer, true)? {
        kb.leave_texts();
    }
    match verify(&writer) {
        Ok(()) => writer.revision(),
        Err(Error::IndexDamaged { .. } | Error::Io { .. }) => rebuild_from_store(&writer),
        Err(other) => Err(other),
    }
}

/// Opens every segment. Pages are not read, for that would cost each ingest time in the size of the corpus: those that
/// it needs are checked as it reads them.
pub fn open_all(writer: &Writer) -> Result<Vec<Segment>> {
    let folder = segments_folder(writer.folder());
    writer.segments()?.iter().map(|entry| Segment::open(&folder.join(&entry.file))).collect()
}

/// Reads every page of every segment against its checksum.
pub fn verify(writer: &Writer) -> Result<()> {
    open_all(writer)?.iter().try_for_each(Segment::verify)
}

/// How far the mean length of chunks may drift from the one in the weights, as a factor.
const MAX_DRIFT: f64 = 1.25;

const REBUILD_WAIT: std::time::Duration = std::time::Duration::from_secs(30);

/// Text that a rebuild weighs at a time.
const BATCH_BYTES: usize = 32 << 20;

fn rebuild_from_store(writer: &Writer) -> Result<u64> {
    let Some(reader) = Reader::open(writer.folder())? else { return Err(Error::Internal { cause: "no store".into() }) };
    let entries = writer.segments()?;
    let chunks: u64 = entries.iter().map(|entry| u64::from(entry.chunks)).sum();
    let mean = |field: usize| match chunks {
        0 => DEFAULT_AVERAGES.grams,
        chunks => entries.iter().map(|entry| entry.terms[field]).sum::<u64>() as f32 / chunks as f32,
    };
    let averages = Averages { grams: mean(0), words: mean(1) };
    writer.begin()?;
    let rebuilt = (|| {
        let mut rebuilt = Vec::new();
        let mut from = 0;
        while let Some(batch) = batch(&reader, from)? {
            from = batch.last().map_or(u32::MAX, |stored| stored.chunk.row + 1);
            let mut step = Step::new(averages);
            let pieces: Vec<_> = batch
                .par_chunks(batch.len().div_ceil(rayon::current_num_threads()))
                .map(|piece| weigh(averages, piece))
                .collect();
            for (run, rows) in pieces {
                step.add(run, &rows)?;
            }
            rebuilt.extend(step.write(writer)?);
        }
        let entries = compact(writer, &segments_folder(writer.folder()), rebuilt)?;
        writer.replace_segments(&entries)?;
        writer.set_meta("average_grams", f64::from(averages.grams))?;
        writer.set_meta("average_words", f64::from(averages.words))?;
        let revision = writer.revision()? + 1;
        writer.set_meta("revision", revision as i64)?;
        writer.commit()?;
        Ok(revision)
    })();
    if rebuilt.is_err() {
        writer.rollback();
    }
    let revision = rebuilt?;
    writer.remove_unnamed_segments()?;
    Ok(revision)
}

/// A chunk with what is searched of it, as the store has it.
struct Stored {
    chunk: ChunkRow,
    title: String,
    title_is_name: bool,
    body: String,
}

/// The next chunks by row, with what is searched of each; None behind the last.
fn batch(reader: &Reader, from: u32) -> Result<Option<Vec<Stored>>> {
    let mut batch = Vec::new();
    let mut bytes = 0;
    let mut document: Option<DocumentRow> = None;
    for chunk in reader.chunks_from(from, BATCH_CHUNKS)? {
        if document.as_ref().is_none_or(|document| document.row != chunk.document) {
            document = Some(reader.document(chunk.document)?);
        }
        let Some(document) = &document else { continue };
        let source = reader.text(chunk.document, chunk.chunk.bytes.clone())?;
        let above = || reader.text_above(chunk.document, chunk.chunk.bytes.start, LOOK_BACK);
        let body = readable(document.media, &source, above)?.into_owned();
        bytes += source.len();
        batch.push(Stored {
            chunk,
            title: document.title.clone(),
            title_is_name: document.title == file_stem(&document.path),
            body,
        });
        if bytes >= BATCH_BYTES {
            break;
        }
    }
    Ok((!batch.is_empty()).then_some(batch))
}

const BATCH_CHUNKS: usize = 1 << 16;

fn weigh(averages: Averages, batch: &[Stored]) -> (build::Run, Vec<Rows>) {
    let mut builder = Builder::new(averages);
    let mut rows = Vec::with_capacity(batch.len());
    for Stored { chunk, title, title_is_name, body } in batch {
        builder.add(&Passage {
            title,
            title_is_name: *title_is_name,
            headings: &chunk.chunk.heading_path,
            symbol: chunk.chunk.symbol.as_deref(),
            body,
        });
        rows.push(Rows { chunk: chunk.row, document: chunk.document });
    }
    (builder.finish(), rows)
}

/// Merges neighbours so that sizes fall from front to back, each at least twice what follows it: few segments, and each
/// chunk is rewritten a logarithmic number of times. A segment that is mostly tombstones is rewritten by itself.
fn compact(writer: &Writer, folder: &Path, mut entries: Vec<SegmentEntry>) -> Result<Vec<SegmentEntry>> {
    let live = |entry: &SegmentEntry| entry.chunks as usize - entry.tombstones.len();
    entries.retain(|entry| live(entry) > 0);
    let mut tail = entries.len();
    let mut sum = 0;
    for (i, entry) in entries.iter().enumerate().rev() {
        if i + 1 < entries.len() && live(entry) > 2 * sum {
            break;
        }
        sum += live(entry);
        tail = i;
    }
    let merged = entries.split_off(tail);
    for entry in &mut entries {
        if entry.tombstones.len() * 3 > entry.chunks as usize {
            *entry = rewrite(writer, folder, std::slice::from_ref(entry))?;
        }
    }
    if merged.len() > 1 || merged.iter().any(|entry| entry.tombstones.len() * 3 > entry.chunks as usize) {
        entries.push(rewrite(writer, folder, &merged)?);
    } else {
        entries.extend(merged);
    }
    Ok(entries)
}

fn rewrite(writer: &Writer, folder: &Path, entries: &[SegmentEntry]) -> Result<SegmentEntry> {
    let opened = entries.iter().map(|entry| Segment::open(&folder.join(&entry.file))).collect::<Result<Vec<_>>>()?;
    let inputs: Vec<MergeInput> = opened
        .iter()
        .zip(entries)
        .map(|(segment, entry)| MergeInput { segment, tombstones: &entry.tombstones })
        .collect();
    let mut merged = write_merged(writer, &inputs)?;
    let (first, last) = (entries.first(), entries.last());
    merged.rows = first.map_or(0, |entry| entry.rows.start)..last.map_or(0, |entry| entry.rows.end);
    for entry in entries {
        // The terms of deleted chunks are not known apart; they are taken to be like the others.
        let share = |terms: u64| {
            terms * (u64::from(entry.chunks) - entry.tombstones.len() as u64) / u64::from(entry.chunks).max(1)
        };
        merged.terms[0] += share(entry.terms[0]);
        merged.terms[1] += share(entry.terms[1]);
    }
    Ok(merged)
}

/// An entry without its rows and terms, which the caller knows.
fn write_merged(writer: &Writer, inputs: &[MergeInput]) -> Result<SegmentEntry> {
    let mut chunks = 0;
    let (file, bytes) = writer.write_segment("seg", |out| {
        (_, chunks) = merge(inputs, out)?;
        Ok(())
    })?;
    Ok(SegmentEntry {
        id: 0,
        file,
        chunks: chunks as u32,
        bytes,
        rows: 0..0,
        terms: [0; 2],
        tombstones: Bits::default(),
    })
}
