//! One run of the second stage: which chunks there are to embed, and batch after batch until they are.

use std::cell::OnceCell;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use jiff::Timestamp;

use super::batch::{Batch, Passage, READ_CHUNKS, Size};
use super::coverage::Coverage;
use super::passage::passage;
use super::publish::{self, Model, SETTINGS};
use super::{Effort, Embedded};
use crate::config::EmbeddingModel;
use crate::error::{Error, Result};
use crate::index::embed::{Bulk, Embedder};
use crate::index::vector::segment::{Group, Quantised, VectorSegment};
use crate::ingest::parse::{LOOK_BACK, readable};
use crate::kb::{EmbedderState, Kb};
use crate::model::{Bits, Id, Rows};
use crate::store::{DocumentRow, Reader, Writer, segments_folder};
use crate::wire::{EmbeddingReport, ErrorReport, IngestEvent};

/// Where by far not everything can be done in the time there is, so much of it is spent.
const MOMENT: Duration = Duration::from_secs(2);
const FAR_FROM: u32 = 3;

/// Between two texts, a question that waits for the model gets it.
const BREATH: Duration = Duration::from_millis(2);

/// A writer may hold the store for as long as a large ingest takes.
const WRITER_WAIT: Duration = Duration::from_secs(600);
const LAST_WAIT: Duration = Duration::from_secs(2);

pub struct Stage<'k> {
    kb: &'k Kb,
    source: &'k EmbeddingModel,
    effort: Effort,
    stop: &'k AtomicBool,
    settings: String,
    pub coverage: Coverage,
    started: Instant,
    /// Segments of the model in force, to find known texts in.
    segments: Vec<Arc<VectorSegment>>,
    /// Rows without vectors, ascending: the last comes first.
    pending: Vec<u32>,
    /// Above it, rows are newer than `pending`.
    highest: u32,
    batch: Batch,
    embedded: u64,
    reused: u64,
    /// Of these, how many were told of.
    told: u64,
    pub notes: Vec<String>,
    pub elsewhere: bool,
}

/// Whether the run went to its end.
enum Run {
    Done,
    /// The model is another one than the settings promised.
    OtherModel,
}

impl<'k> Stage<'k> {
    pub fn new(
        kb: &'k Kb,
        source: &'k EmbeddingModel,
        effort: Effort,
        stop: &'k AtomicBool,
        settings: String,
        coverage: Coverage,
    ) -> Stage<'k> {
        let started = Instant::now();
        let batch = Batch::new();
        Stage {
            kb,
            source,
            effort,
            stop,
            settings,
            coverage,
            started,
            segments: Vec::new(),
            pending: Vec::new(),
            highest: 0,
            batch,
            embedded: 0,
            reused: 0,
            told: 0,
            notes: Vec::new(),
            elsewhere: false,
        }
    }

    pub fn run(&mut self, observe: &mut dyn FnMut(IngestEvent)) -> Result<()> {
        let embedder = OnceCell::new();
        // Twice at most: a damaged segment is left out, and a model that turns out to be another is known then.
        loop {
            match self.attempt(&embedder, observe) {
                Ok(Run::Done) => return Ok(()),
                Ok(Run::OtherModel) => {}
                Err(Error::IndexDamaged { path, cause }) => {
                    let writer = self.writer()?;
                    if !publish::repair(&writer, true)? {
                        return Err(Error::IndexDamaged { path, cause });
                    }
                    self.notes.push("Damaged vectors were dropped; their texts are embedded again.".into());
                }
                Err(error) => return Err(error),
            }
        }
    }

    fn attempt(&mut self, opened: &OnceCell<Arc<Embedder>>, observe: &mut dyn FnMut(IngestEvent)) -> Result<Run> {
        if self.coverage.model.is_none() && self.coverage.chunks > 0 {
            let Some(embedder) = self.embedder(opened)? else { return Ok(Run::Done) };
            self.coverage.model = Some(embedder.id().to_owned());
        }
        let Some(id) = self.coverage.model.clone() else { return Ok(Run::Done) };
        let model = Model { id: id.clone(), settings: self.settings.clone() };
        self.plan(&id)?;
        if self.pending.is_empty() {
            return self.end(&model).map(|()| Run::Done);
        }
        self.announce(&id, observe)?;

        let mut bulk: Option<Bulk> = None;
        let mut size = Size::of(self.effort, &self.source.source);
        while let Some(passages) = self.next_passages(&model)? {
            let mut rest = &passages[..];
            while !rest.is_empty() && !self.is_over() {
                let bulk = match &mut bulk {
                    Some(bulk) => bulk,
                    None => {
                        let Some(embedder) = self.embedder(opened)? else { return Ok(Run::Done) };
                        if embedder.id() != id {
                            self.coverage.model = Some(embedder.id().to_owned());
                            self.reused = 0;
                            return Ok(Run::OtherModel);
                        }
                        bulk.insert(embedder.bulk()?)
                    }
                };
                let (now, later) = rest.split_at(size.part_of(rest.len()));
                rest = later;
                let begun = Instant::now();
                let outcome = self.embed_some(bulk, now);
                size.adapt(now.len(), begun.elapsed());
                self.tell(begun.elapsed(), observe);
                if let Err(error) = outcome {
                    // What was done before counts.
                    self.publish(&model)?;
                    return Err(error);
                }
                if self.batch.is_due() {
                    self.publish(&model)?;
                }
            }
            if self.is_over() {
                break;
            }
        }
        self.publish(&model)?;
        self.tell(Duration::ZERO, observe);
        self.end(&model).map(|()| Run::Done)
    }

    /// Tells of the chunks that have come since it was last told.
    fn tell(&mut self, took: Duration, observe: &mut dyn FnMut(IngestEvent)) {
        let (done, total) = (self.done(), self.total());
        let n_chunks = done.saturating_sub(self.told);
        if n_chunks > 0 {
            observe(IngestEvent::EmbedBatchFinished { n_chunks, ms: took.as_millis() as u64, done, total });
            self.told = done;
        }
    }

    /// What there is to do under this model.
    fn plan(&mut self, model: &str) -> Result<()> {
        let folder = segments_folder(self.kb.data_dir());
        let mut highest = 0;
        let (pending, segments, coverage) = self.kb.read_store(|store| {
            let entries = store.vector_segments()?;
            let coverage = Coverage::count(&store.segments()?, &entries, Some(model.to_owned()));
            let mut covered = Bits::default();
            let mut segments = Vec::new();
            for entry in entries.iter().filter(|entry| entry.model == model) {
                let segment = publish::open(&folder, entry)?;
                let columns = segment.columns()?;
                let live = (0..segment.len()).filter(|place| !entry.tombstones.has(*place));
                live.for_each(|place| covered.insert(columns.chunk(place) as usize));
                segments.push(Arc::new(segment));
            }
            let wanted = coverage.pending() as usize;
            let mut pending = Vec::with_capacity(wanted);
            // The newest chunks are those that have no vectors, unless something was lost: the walk ends soon.
            store.chunk_rows_down(0, |row| {
                highest = highest.max(row);
                if pending.len() < wanted && !covered.has(row as usize) {
                    pending.push(row);
                }
                pending.len() < wanted
            })?;
            pending.reverse();
            Ok((pending, segments, coverage))
        })?;
        (self.pending, self.segments, self.coverage) = (pending, segments, coverage);
        self.highest = highest;
        self.batch = Batch::new();
        Ok(())
    }

    fn announce(&mut self, model: &str, observe: &mut dyn FnMut(IngestEvent)) -> Result<()> {
        let entries = self.kb.read_store(Reader::vector_segments)?;
        let replaces = entries.into_iter().map(|entry| entry.model).find(|other| other != model);
        if let Some(other) = &replaces {
            self.notes
                .push(format!("The embedding model changed from {other} to {model}: all texts are embedded anew."));
        }
        let total = self.pending.len() as u64;
        observe(IngestEvent::EmbedStarted { model: model.to_owned(), total, replaces });
        Ok(())
    }

    /// The next chunks whose texts the model must be given; those whose texts are known are made ready on the way. None
    /// behind the last.
    fn next_passages(&mut self, model: &Model) -> Result<Option<Vec<Passage>>> {
        while !self.is_over() {
            let rows = self.pending.split_off(self.pending.len().saturating_sub(READ_CHUNKS));
            if rows.is_empty() {
                self.publish(model)?;
                if !self.look_for_newer()? {
                    return Ok(None);
                }
                continue;
            }
            let mut unknown = Vec::new();
            for passage in self.read(&rows, &model.id)? {
                match self.known(passage.key)? {
                    Some(windows) => {
                        self.reused += 1;
                        self.batch.add(&passage, windows);
                    }
                    None => unknown.push(passage),
                }
            }
            if self.batch.is_due() {
                self.publish(model)?;
            }
            if !unknown.is_empty() {
                return Ok(Some(unknown));
            }
        }
        Ok(None)
    }

    /// The chunks at these rows, newest first.
    fn read(&self, rows: &[u32], model: &str) -> Result<Vec<Passage>> {
        self.kb.read_store(|store| {
            let mut passages = Vec::with_capacity(rows.len());
            let mut document: Option<DocumentRow> = None;
            for row in rows.iter().rev() {
                let Some(chunk) = store.chunk_if_any(*row)? else { continue };
                if document.as_ref().is_none_or(|document| document.row != chunk.document) {
                    document = Some(store.document(chunk.document)?);
                }
                let Some(document) = &document else { continue };
                let source = store.text(chunk.document, chunk.chunk.bytes.clone())?;
                let above = || store.text_above(chunk.document, chunk.chunk.bytes.start, LOOK_BACK);
                let body = readable(document.media, &source, above)?;
                let text = passage(&document.path, document.media, &document.title, &chunk.chunk, &body);
                passages.push(Passage {
                    rows: Rows { chunk: *row, document: chunk.document },
                    group: Group::of(&body),
                    key: Id::of(&[model.as_bytes(), text.as_bytes()]),
                    text,
                });
            }
            Ok(passages)
        })
    }

    /// The vectors of a text that was embedded before.
    fn known(&self, key: Id) -> Result<Option<Arc<[Quantised]>>> {
        if let Some(windows) = self.batch.by_key.get(&key) {
            return Ok(Some(windows.clone()));
        }
        for segment in &self.segments {
            let places = segment.find(key)?;
            let Some(first) = places.first() else { continue };
            let columns = segment.columns()?;
            let chunk = columns.chunk(*first);
            let mut windows = Vec::new();
            for place in segment.places_of(chunk)? {
                windows.push(Quantised {
                    scale: columns.scale(place),
                    high: segment.high_at(place)?.to_vec(),
                    low: segment.low_at(place)?.to_vec(),
                });
            }
            return Ok(Some(windows.into()));
        }
        Ok(None)
    }

    /// Gives texts to the model; those it did not come to before a stop wait again.
    fn embed_some(&mut self, bulk: &mut Bulk, passages: &[Passage]) -> Result<()> {
        let mut distinct: HashMap<Id, usize> = HashMap::new();
        let mut texts = Vec::with_capacity(passages.len());
        let mut known = Vec::with_capacity(passages.len());
        for passage in passages {
            // Since these were read, an equal text may have been embedded, and published too.
            known.push(self.known(passage.key)?);
            if known.last().is_some_and(Option::is_none) && !distinct.contains_key(&passage.key) {
                distinct.insert(passage.key, texts.len());
                texts.push(passage.text.clone());
            }
        }
        if self.effort == Effort::Behind {
            thread::sleep(BREATH);
        }
        let mut vectors = bulk.passages(&texts, self.stop)?;
        vectors.resize_with(texts.len(), Vec::new);
        let mut given = 0;
        for (passage, known) in passages.iter().zip(known) {
            let first = distinct.remove(&passage.key);
            let windows = match (known, first) {
                (Some(known), _) => known,
                (None, Some(place)) => vectors[place].iter().map(|vector| Quantised::of(vector)).collect(),
                (None, None) => match self.batch.by_key.get(&passage.key) {
                    Some(twin) => twin.clone(),
                    None => continue,
                },
            };
            if windows.is_empty() {
                if self.stop.load(Ordering::Relaxed) {
                    continue;
                }
                return Err(Error::Internal { cause: "the embedding model gave no vector for a text".into() });
            }
            match first {
                Some(_) => given += 1,
                None => self.reused += 1,
            }
            self.batch.add(passage, windows);
        }
        self.embedded += given;
        self.batch.texts += given as usize;
        Ok(())
    }

    /// Chunks that were stored while these were embedded.
    fn look_for_newer(&mut self) -> Result<bool> {
        let floor = self.highest + 1;
        let mut newer = Vec::new();
        self.kb.read_store(|store| {
            store.chunk_rows_down(floor, |row| {
                newer.push(row);
                true
            })
        })?;
        newer.reverse();
        self.highest = newer.last().copied().unwrap_or(self.highest);
        self.coverage.chunks += newer.len() as u64;
        self.pending.extend(newer);
        Ok(!self.pending.is_empty())
    }

    fn publish(&mut self, model: &Model) -> Result<()> {
        if !self.batch.ready.is_empty() {
            let writer = self.writer()?;
            publish::publish(&writer, model, &self.batch.ready, false)?;
            drop(writer);
            self.reopen(&model.id)?;
            self.batch.clear();
            self.look_for_newer()?;
        }
        Ok(())
    }

    /// Once every chunk has its vectors, those of deleted chunks may go.
    fn end(&mut self, model: &Model) -> Result<()> {
        let settings = &self.settings;
        let (coverage, untidy, noted) = self.kb.read_store(|store| {
            let entries = store.vector_segments()?;
            let coverage = Coverage::count(&store.segments()?, &entries, Some(model.id.clone()));
            let noted = store.meta_text(SETTINGS)?.as_ref() == Some(settings);
            Ok((coverage, publish::is_untidy(&entries), noted))
        })?;
        let complete = coverage.pending() == 0;
        self.coverage = coverage;
        if complete && untidy {
            let writer = self.writer()?;
            // Others may have stored more since.
            let left =
                Coverage::count(&writer.segments()?, &writer.vector_segments()?, Some(model.id.clone())).pending();
            publish::publish(&writer, model, &[], left == 0)
        } else if !noted {
            publish::note_settings(&self.writer()?, model)
        } else {
            Ok(())
        }
    }

    fn reopen(&mut self, model: &str) -> Result<()> {
        let folder = segments_folder(self.kb.data_dir());
        let entries = self.kb.read_store(Reader::vector_segments)?;
        let own = entries.iter().filter(|entry| entry.model == model);
        let old = std::mem::take(&mut self.segments);
        let opened = own.map(|entry| {
            let path = folder.join(&entry.file);
            match old.iter().find(|segment| segment.path() == path) {
                Some(segment) => Ok(segment.clone()),
                None => publish::open(&folder, entry).map(Arc::new),
            }
        });
        self.segments = opened.collect::<Result<_>>()?;
        Ok(())
    }

    fn writer(&self) -> Result<Writer> {
        let now = Timestamp::now().to_string();
        let open = |wait, stop| Writer::open(self.kb.data_dir(), wait, &now, stop);
        match open(WRITER_WAIT, self.stop) {
            // What is done is kept even if whoever asked for it has gone.
            Err(Error::StoreBusy { .. } | Error::Cancelled) if self.stop.load(Ordering::Relaxed) => {
                open(LAST_WAIT, &AtomicBool::new(false))
            }
            opened => opened,
        }
    }

    /// None if it was not there in time.
    fn embedder<'c>(&self, opened: &'c OnceCell<Arc<Embedder>>) -> Result<Option<&'c Arc<Embedder>>> {
        loop {
            if let Some(embedder) = opened.get() {
                return Ok(Some(embedder));
            }
            match self.kb.embedder(Duration::from_millis(100)) {
                EmbedderState::Off => return Ok(None),
                EmbedderState::Loading if self.is_over() => return Ok(None),
                EmbedderState::Loading => {}
                EmbedderState::Ready(embedder) => drop(opened.set(embedder)),
                EmbedderState::Failed(error) => return Err(error),
            }
        }
    }

    /// True once somebody has stopped it or the time is up, or will be before much is done.
    fn is_over(&self) -> bool {
        if self.stop.load(Ordering::Relaxed) {
            return true;
        }
        let Effort::Within(limit) = self.effort else { return false };
        let spent = self.started.elapsed();
        let left = self.total().saturating_sub(self.done());
        let expected = match self.done() {
            0 => spent,
            done => spent.mul_f64(left as f64 / done as f64),
        };
        spent >= limit || spent >= MOMENT && spent + expected > FAR_FROM * limit
    }

    /// Chunks that have got their vectors in this run.
    fn done(&self) -> u64 {
        self.embedded + self.reused
    }

    fn total(&self) -> u64 {
        self.coverage.pending().max(self.done())
    }

    pub fn report(mut self, error: Option<Error>) -> Result<Embedded> {
        let model = self.coverage.model.clone();
        let coverage = self.kb.read_store(|store| match &model {
            Some(model) => Ok(Coverage::count(&store.segments()?, &store.vector_segments()?, Some(model.clone()))),
            None => Coverage::of(store, self.source, &self.settings),
        })?;
        let pending = coverage.pending();
        if pending > 0 && error.is_none() {
            let (embedded, chunks) = (coverage.embedded, coverage.chunks);
            self.notes.push(format!("{embedded} of {chunks} passages are embedded; `kebab-lite ingest` goes on."));
        }
        if let Some(error) = &error {
            let hint = error.hint().map_or(String::new(), |hint| format!(" {hint}"));
            self.notes.push(format!("{pending} passages could not be embedded: {error}.{hint}"));
        }
        let report = EmbeddingReport {
            model,
            embedded: self.embedded,
            reused: self.reused,
            pending,
            error: error.as_ref().map(ErrorReport::from),
        };
        Ok(Embedded { report, elsewhere: self.elsewhere, notes: self.notes })
    }
}
