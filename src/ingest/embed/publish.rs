//! Vectors → segments of the store's folder: what is new becomes a segment, small ones merge, and the revision that
//! names them counts up. Vectors of chunks that go become tombstones, in the transaction the chunks go in.
//!
//! A tombstone's vector stays until the corpus is embedded as a whole: an edit gives every chunk of a document a new
//! row, and those whose text is as before take their vectors along. Damaged segments are left out, which makes their
//! chunks pending again.

use std::path::Path;
use std::sync::Arc;

use crate::error::{Error, Result};
use crate::index::vector::segment::{Group, MOST_VECTORS, Quantised, Record, VectorSegment, write};
use crate::model::{Bits, Id, Rows, VectorEntry};
use crate::store::{Writer, segments_folder};

/// A chunk with its vectors, a window each.
pub struct Ready {
    pub rows: Rows,
    pub group: Group,
    pub key: Id,
    pub windows: Arc<[Quantised]>,
}

/// Whose vectors are published.
#[derive(Debug, Clone)]
pub struct Model {
    pub id: String,
    /// The settings under which this id was found; the same settings need no look at the model.
    pub settings: String,
}

/// Under which the store keeps the model of its vectors and the settings that name it.
pub const MODEL: &str = "embedding_model";
pub const SETTINGS: &str = "embedding_settings";

/// Names new vectors under the next revision and drops those of other models, in a transaction of its own. Chunks that
/// are gone meanwhile are left out. `complete`: no chunk waits for a vector that might be a tombstone's.
pub fn publish(writer: &Writer, model: &Model, ready: &[Ready], complete: bool) -> Result<()> {
    writer.begin()?;
    let published = (|| {
        let mut entries = writer.vector_segments()?;
        entries.retain(|entry| entry.model == model.id);
        let mut live = Vec::with_capacity(ready.len());
        for chunk in ready {
            if writer.has_chunk(chunk.rows.chunk)? {
                live.push(chunk);
            }
        }
        live.sort_unstable_by_key(|chunk| chunk.rows.chunk);
        for part in parts(&live) {
            entries.push(write_new(writer, model, part)?);
        }
        let entries = compact(writer, entries, complete)?;
        writer.replace_vector_segments(&entries)?;
        writer.set_meta(MODEL, &model.id)?;
        writer.set_meta(SETTINGS, &model.settings)?;
        writer.set_meta("revision", writer.revision()? as i64 + 1)?;
        writer.commit()
    })();
    if published.is_err() {
        writer.rollback();
    }
    published?;
    writer.remove_unnamed_segments()?;
    writer.checkpoint()
}

/// Notes under which settings the model in force is found, where nothing else changes.
pub fn note_settings(writer: &Writer, model: &Model) -> Result<()> {
    writer.set_meta(MODEL, &model.id)?;
    writer.set_meta(SETTINGS, &model.settings)
}

/// True if a complete corpus has segments that are mostly tombstones.
pub fn is_untidy(entries: &[VectorEntry]) -> bool {
    entries.iter().any(is_wasteful)
}

/// Makes tombstones of the vectors of removed chunks, in the transaction that is open.
pub fn bury(writer: &Writer, dead: &[u32]) -> Result<()> {
    let folder = segments_folder(writer.folder());
    let mut changed = false;
    let mut entries = writer.vector_segments()?;
    let mut bury_in = |entry: &mut VectorEntry| -> Result<()> {
        let mut rows = dead.iter().filter(|row| entry.rows.contains(row)).peekable();
        if rows.peek().is_none() {
            return Ok(());
        }
        let segment = open(&folder, entry)?;
        for row in rows {
            let places = segment.places_of(*row)?;
            if !places.is_empty() && !entry.tombstones.has(places.start) {
                places.for_each(|place| entry.tombstones.insert(place));
                entry.chunks -= 1;
                changed = true;
            }
        }
        Ok(())
    };
    let mut sound = Vec::with_capacity(entries.len());
    let count = entries.len();
    for mut entry in entries.drain(..) {
        match bury_in(&mut entry) {
            Ok(()) => sound.push(entry),
            Err(Error::IndexDamaged { .. }) => {}
            Err(error) => return Err(error),
        }
    }
    if changed || sound.len() < count {
        writer.replace_vector_segments(&sound)?;
    }
    Ok(())
}

/// Leaves damaged segments out from the next revision on; with `verify` every page is read. True if there were any.
pub fn repair(writer: &Writer, verify: bool) -> Result<bool> {
    let folder = segments_folder(writer.folder());
    let mut entries = writer.vector_segments()?;
    let count = entries.len();
    entries.retain(|entry| {
        let opened = open(&folder, entry);
        opened.and_then(|segment| if verify { segment.verify() } else { Ok(()) }).is_ok()
    });
    if entries.len() == count {
        return Ok(false);
    }
    writer.begin()?;
    let repaired = (|| {
        writer.replace_vector_segments(&entries)?;
        writer.set_meta("revision", writer.revision()? as i64 + 1)?;
        writer.commit()
    })();
    if repaired.is_err() {
        writer.rollback();
    }
    repaired?;
    writer.remove_unnamed_segments()?;
    Ok(true)
}

/// Opens the segment of an entry; one that is another than the entry says is damaged.
pub fn open(folder: &Path, entry: &VectorEntry) -> Result<VectorSegment> {
    let path = folder.join(&entry.file);
    let segment = VectorSegment::open(&path)?;
    let as_named = segment.model() == entry.model
        && segment.len() == entry.vectors as usize
        && segment.dimensions() == entry.dimensions as usize;
    match as_named {
        true => Ok(segment),
        false => Err(Error::IndexDamaged { path, cause: "the segment is not the one that the store names".into() }),
    }
}

/// Chunks as they go into a segment each; none holds more vectors than a segment may.
fn parts<'c, 'r>(chunks: &'c [&'r Ready]) -> Vec<&'c [&'r Ready]> {
    let mut parts = Vec::new();
    let (mut start, mut vectors) = (0, 0);
    for (i, chunk) in chunks.iter().enumerate() {
        if vectors + chunk.windows.len() > MOST_VECTORS && i > start {
            parts.push(&chunks[start..i]);
            (start, vectors) = (i, 0);
        }
        vectors += chunk.windows.len();
    }
    if start < chunks.len() {
        parts.push(&chunks[start..]);
    }
    parts
}

fn write_new(writer: &Writer, model: &Model, chunks: &[&Ready]) -> Result<VectorEntry> {
    let mut records = Vec::with_capacity(chunks.len());
    for chunk in chunks {
        for (window, vector) in (0..).zip(chunk.windows.iter()) {
            records.push(Record {
                rows: chunk.rows,
                window,
                group: chunk.group,
                key: chunk.key,
                scale: vector.scale,
                high: &vector.high,
                low: &vector.low,
            });
        }
    }
    write_records(writer, &model.id, &records, Bits::default())
}

/// `records` are sorted by row and window.
fn write_records(writer: &Writer, model: &str, records: &[Record], tombstones: Bits) -> Result<VectorEntry> {
    let dimensions = records.first().map_or(0, |record| record.high.len());
    let (file, bytes) = writer.write_segment("vec", |out| {
        write(out, model, dimensions, records).map_err(Error::io("write segment", "vectors".as_ref()))?;
        Ok(())
    })?;
    let live = records.iter().enumerate().filter(|(place, record)| record.window == 0 && !tombstones.has(*place));
    Ok(VectorEntry {
        file,
        model: model.to_owned(),
        dimensions: dimensions as u32,
        vectors: records.len() as u32,
        chunks: live.count() as u32,
        bytes,
        rows: records.first().map_or(0, |record| record.rows.chunk)
            ..records.last().map_or(0, |record| record.rows.chunk + 1),
        tombstones,
    })
}

/// As segments of terms do, those of vectors fall in size from front to back, up to the size that none exceeds. Deleted
/// vectors go once the corpus is `complete`.
fn compact(writer: &Writer, mut entries: Vec<VectorEntry>, complete: bool) -> Result<Vec<VectorEntry>> {
    let kept = |entry: &VectorEntry| match complete {
        true => entry.vectors as usize - entry.tombstones.len(),
        false => entry.vectors as usize,
    };
    entries.retain(|entry| kept(entry) > 0);
    let mut tail = entries.len();
    let mut sum = 0;
    for (i, entry) in entries.iter().enumerate().rev() {
        if i + 1 < entries.len() && (kept(entry) > 2 * sum || kept(entry) + sum > MOST_VECTORS) {
            break;
        }
        sum += kept(entry);
        tail = i;
    }
    let merged = entries.split_off(tail);
    let rewrite = |entries: &[VectorEntry]| rewrite(writer, entries, complete);
    for entry in &mut entries {
        if complete && is_wasteful(entry) {
            *entry = rewrite(std::slice::from_ref(entry))?;
        }
    }
    if merged.len() > 1 || complete && merged.iter().any(is_wasteful) {
        entries.push(rewrite(&merged)?);
    } else {
        entries.extend(merged);
    }
    Ok(entries)
}

fn is_wasteful(entry: &VectorEntry) -> bool {
    entry.tombstones.len() * 3 > entry.vectors as usize
}

fn rewrite(writer: &Writer, entries: &[VectorEntry], drop_dead: bool) -> Result<VectorEntry> {
    let folder = segments_folder(writer.folder());
    let opened = entries.iter().map(|entry| open(&folder, entry)).collect::<Result<Vec<_>>>()?;
    let mut all = Vec::new();
    for (segment, entry) in opened.iter().zip(entries) {
        let records = segment.records()?.into_iter().enumerate();
        let records = records.map(|(place, record)| (record, entry.tombstones.has(place)));
        all.extend(records.filter(|(_, dead)| !(drop_dead && *dead)));
    }
    all.sort_by_key(|(record, _)| (record.rows.chunk, record.window));
    let mut tombstones = Bits::default();
    all.iter().enumerate().filter(|(_, (_, dead))| *dead).for_each(|(place, _)| tombstones.insert(place));
    let records: Vec<Record> = all.into_iter().map(|(record, _)| record).collect();
    let model = opened.first().map_or("", VectorSegment::model);
    write_records(writer, model, &records, tombstones)
}
