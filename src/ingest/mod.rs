//! Files → documents → chunks → the store and the index.
//!
//! ```text
//! walk ─► compare with the store ─► prepare (all cores: read, parse, chunk, weigh)
//!                                      └─► one thread stores in order ─► publish: segment, revision + 1 ─► embed
//! ```
//! An ingest lands in one transaction, a very large one in several; each leaves a whole corpus. From then on it is
//! searched by words; `embed`, the second stage, makes it searchable by meaning.

pub mod chunk;
pub mod decode;
pub mod embed;
mod one;
pub mod parse;
mod prepare;
mod progress;
mod publish;
mod stages;
mod walk;

pub use publish::rebuild;
pub use stages::{file, run, text};
pub use walk::{Found, Skip, document_path, mtime_ns};

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use jiff::Timestamp;

use crate::config::{Config, INGESTED, Source};
use crate::error::{Error, Result};
use crate::kb::{self, Kb};
use crate::model::{Given, Id, Rows};
use crate::store::{Known, NewDocument, Reader, Writer};
use crate::wire::{
    ErrorReport, IngestCounts, IngestEvent, IngestItem, IngestReport, IngestReportV1, IngestResult, Scope,
};
use prepare::{Content, Job, Loaded, Outcome, Prepared};
use progress::Once;
use publish::Step;

/// Names the parsers; documents read by others are read again.
pub const PARSER_VERSION: &str = "parse-2";

#[derive(Debug, Clone)]
pub struct Input {
    /// Files and folders to look at; the whole workspace if empty.
    pub paths: Vec<PathBuf>,
    /// Read every file, whatever its size and time say, and every page of the index against its checksum.
    pub force: bool,
    /// How long to wait for another writer.
    pub wait: Duration,
    /// Report every file, not only those that failed.
    pub list: bool,
    /// How far texts without vectors get them.
    pub embed: embed::Effort,
}

/// Brings the store and the lexical index up to date with the files.
fn take_in(kb: &Kb, input: &Input, observe: &mut dyn FnMut(IngestEvent), stop: &AtomicBool) -> Result<IngestReport> {
    require_writable(kb, "ingest")?;
    let starts = walk::starts(&kb.config, &input.paths)?;
    // A slip of the pen makes no index where there is none.
    if let Some(nothing) = starts.iter().flatten().flatten().find(|start| start.symlink_metadata().is_err())
        && Reader::open(&kb.config.data_dir)?.is_none()
    {
        return Err(nothing_at(nothing));
    }
    let task = Task {
        include: input.paths.iter().map(|path| path.display().to_string()).collect(),
        force: input.force,
        wait: input.wait,
        list: input.list,
        whole: input.paths.is_empty(),
    };
    perform(kb, &task, observe, stop, |ingest, writer| {
        for (source, starts) in kb.config.sources.iter().zip(&starts) {
            if let Some(starts) = starts {
                ingest.compare(writer, source, starts)?;
            }
        }
        if task.whole {
            ingest.leave_sources(writer)?;
            ingest.parse_kept(writer)?;
        }
        Ok(())
    })
}

/// What all ingests have in common, whatever is to be read.
struct Task {
    /// What was asked for, as the report says it.
    include: Vec<String>,
    force: bool,
    wait: Duration,
    list: bool,
    /// All documents are looked at.
    whole: bool,
}

fn require_writable(kb: &Kb, operation: &'static str) -> Result<()> {
    if kb.config.readonly { Err(Error::ReadonlyMode { operation }) } else { Ok(()) }
}

/// Has `plan` say what to read, then reads and stores it. If the index turns out damaged, it is rebuilt from the store
/// and all begins again, once.
fn perform<'i>(
    kb: &'i Kb,
    task: &'i Task,
    observe: &mut dyn FnMut(IngestEvent),
    stop: &'i AtomicBool,
    plan: impl Fn(&mut Ingest<'i>, &Writer) -> Result<()>,
) -> Result<IngestReport> {
    let mut once = Once::new(observe);
    let mut attempt = || attempt(kb, task, &mut |event| once.pass(event), stop, &plan);
    match attempt() {
        Err(Error::IndexDamaged { .. }) => {
            rebuild(kb)?;
            attempt()
        }
        other => other,
    }
}

fn attempt<'i>(
    kb: &'i Kb,
    task: &'i Task,
    observe: &mut dyn FnMut(IngestEvent),
    stop: &'i AtomicBool,
    plan: &impl Fn(&mut Ingest<'i>, &Writer) -> Result<()>,
) -> Result<IngestReport> {
    let started = Instant::now();
    let config = &kb.config;
    let now = Timestamp::now();
    let writer = Writer::open(&config.data_dir, task.wait, &now.to_string(), stop)?;
    let moved_from = claim(&writer, config)?;
    match task.force {
        true => publish::verify(&writer)?,
        false => drop(publish::open_all(&writer)?),
    }
    embed::publish::repair(&writer, task.force)?;

    let main = &config.sources[0];
    observe(IngestEvent::ScanStarted { root: main.root.display().to_string() });
    let found_revision = writer.revision()?;
    let mut ingest = Ingest::new(config, task, now, stop);
    plan(&mut ingest, &writer)?;
    observe(IngestEvent::ScanCompleted { total: ingest.jobs.len() as u64 });
    let revision = ingest.store(&writer, observe)?;

    let counts = ingest.counts;
    let interrupted = writer.interrupted.as_ref().map(|before| {
        let since_then = match found_revision {
            0 => "it had stored nothing yet, and this one began anew",
            _ => "the corpus stayed whole, and this one went on from its last complete step",
        };
        format!("The ingest that process {} began at {} was interrupted; {since_then}.", before.pid, before.since)
    });
    let moved = moved_from.map(|old| {
        let main = main.root.display();
        format!(
            "The index was made of {old}, which is no more; it is taken for that of {main}, to where that has moved."
        )
    });
    let hints: Vec<String> = interrupted.into_iter().chain(moved).collect();
    let hint = (!hints.is_empty()).then(|| hints.join(" "));
    let by_reason = |reason: Skip| ingest.skipped.iter().filter(move |(_, skip)| *skip == reason);
    let reasons: BTreeSet<Skip> = ingest.skipped.iter().map(|(_, skip)| *skip).collect();
    let mut skipped_by_extension = BTreeMap::new();
    for (path, _) in &ingest.skipped {
        *skipped_by_extension.entry(extension(path)).or_insert(0) += 1;
    }
    Ok(IngestReport {
        schema_version: IngestReportV1,
        scope: Scope {
            root: main.root.display().to_string(),
            include: task.include.clone(),
            exclude: main.exclude.clone(),
        },
        scanned: counts.scanned,
        new: counts.new,
        updated: counts.updated,
        unchanged: counts.unchanged,
        skipped: counts.skipped,
        errors: counts.errors,
        purged_deleted_files: counts.purged_deleted_files,
        duration_ms: started.elapsed().as_millis() as u64,
        skipped_by_extension,
        skip_examples: reasons
            .iter()
            .map(|reason| {
                (
                    reason.as_str().to_owned(),
                    by_reason(*reason).take(SKIP_EXAMPLES).map(|(path, _)| path.clone()).collect(),
                )
            })
            .collect(),
        skipped_by_reason: reasons
            .iter()
            .map(|reason| (reason.as_str().to_owned(), by_reason(*reason).count() as u64))
            .collect(),
        corpus_revision: revision,
        aborted: stop.load(Ordering::Relaxed),
        hint,
        embedding: None,
        items: (task.list || !ingest.items.is_empty()).then_some(ingest.items),
    })
}

/// Notes whose index this is. That of another root is left alone: taken for this one's, all of its documents would go.
/// Returns the root it had, if that is no more.
fn claim(writer: &Writer, config: &Config) -> Result<Option<String>> {
    let root = config.sources[0].root.to_string_lossy();
    let stored: Option<String> = writer.meta(kb::ROOT)?;
    if stored.as_deref() == Some(&root) {
        return Ok(None);
    }
    match kb::other_root(stored.clone(), config) {
        None => writer.set_meta(kb::ROOT, &root).map(|()| stored),
        Some(other) => Err(Error::ConfigInvalid {
            path: None,
            cause: format!("the data folder {} holds the index of {other}, not of {root}", config.data_dir.display()),
            hint: Some(kb::OWN_FOLDER.into()),
        }),
    }
}

const SKIP_EXAMPLES: usize = 5;

/// Text that one transaction stores at most: what a kill can cost, and how long the log grows.
const STEP_BYTES: usize = 256 << 20;

/// A file this much older than its last check cannot have changed within the resolution of its time stamp.
const RACY_NS: i64 = 2_000_000_000;

struct Ingest<'i> {
    config: &'i Config,
    task: &'i Task,
    now: Timestamp,
    stop: &'i AtomicBool,
    jobs: Vec<Job<'i>>,
    /// Documents whose files are gone: row, path.
    gone: Vec<(u32, String)>,
    skipped: Vec<(String, Skip)>,
    counts: IngestCounts,
    items: Vec<IngestItem>,
}

impl<'i> Ingest<'i> {
    fn new(config: &'i Config, task: &'i Task, now: Timestamp, stop: &'i AtomicBool) -> Self {
        Ingest {
            config,
            task,
            now,
            stop,
            jobs: Vec::new(),
            gone: Vec::new(),
            skipped: Vec::new(),
            counts: IngestCounts::default(),
            items: Vec::new(),
        }
    }

    /// Decides by names, sizes and times alone which files must be read and which documents go.
    fn compare(&mut self, writer: &Writer, source: &'i Source, starts: &[PathBuf]) -> Result<()> {
        let walk = match walk::walk(self.config, source, starts) {
            // A further source may be away for a while; the others are read and nothing of it is lost.
            Err(error @ Error::Io { .. }) if source.id != self.config.sources[0].id => {
                self.failed(&source.id, &error);
                return Ok(());
            }
            walk => walk?,
        };
        let mut known = writer.known(&source.id)?;
        let below = |path: &str, folder: &str| {
            folder.is_empty() || path == folder || path.strip_prefix(folder).is_some_and(|rest| rest.starts_with('/'))
        };
        let scope: Vec<String> =
            starts.iter().map(|start| document_path(start.strip_prefix(&source.root).unwrap_or(start))).collect();
        for (start, name) in starts.iter().zip(&scope) {
            if start.symlink_metadata().is_err() && !known.keys().any(|path| below(path, name)) {
                return Err(nothing_at(start));
            }
        }
        self.counts.scanned += walk.found.len() as u64;
        for file in walk.found {
            let before = known.remove(&file.path);
            let shape = shape(self.config, source, file.repo.as_deref());
            let reread = self.task.force || before.as_ref().is_some_and(|known| known.parsed != shape);
            let same = |known: &Known| {
                known.size == file.size && known.mtime_ns == file.mtime_ns && file.mtime_ns < known.checked_ns - RACY_NS
            };
            if !reread && before.as_ref().is_some_and(same) {
                self.counts.unchanged += 1;
                self.item(source, &file.path, IngestResult::Unchanged, None);
                continue;
            }
            let given = before.as_ref().map_or(Ok(Given::default()), |known| writer.given(known.row))?;
            self.jobs.push(Job { source, file, content: Content::OnDisk, walked: true, given, shape, before, reread });
        }
        let failed: Vec<String> = walk.failed.iter().map(|(path, _)| path.clone()).collect();
        for (path, error) in walk.failed {
            self.failed(&path, &error);
        }
        for (path, skip) in walk.skipped {
            self.skip(path, skip);
        }
        self.gone.extend(
            known
                .into_iter()
                .filter(|(_, known)| known.walked)
                .filter(|(path, _)| scope.is_empty() || scope.iter().any(|start| below(path, start)))
                .filter(|(path, _)| !failed.iter().any(|folder| below(path, folder)))
                .map(|(path, known)| (known.row, path)),
        );
        Ok(())
    }

    /// Adds a document whose text is at hand. What `given` leaves open stays as it was given before.
    fn add(
        &mut self,
        writer: &Writer,
        source: &'i Source,
        file: Found,
        walked: bool,
        loaded: Loaded,
        given: Given,
    ) -> Result<()> {
        let before = writer.known_by_id(Id::document(&source.id, &file.path))?;
        let earlier = before.as_ref().map_or(Ok(Given::default()), |known| writer.given(known.row))?;
        let given = given.or(&earlier);
        let shape = shape(self.config, source, file.repo.as_deref());
        let reread = given != earlier || before.as_ref().is_some_and(|known| known.parsed != shape);
        self.counts.scanned += 1;
        self.jobs.push(Job { source, file, content: Content::AtHand(loaded), walked, given, shape, before, reread });
        Ok(())
    }

    /// Documents of sources that are configured no more go.
    fn leave_sources(&mut self, writer: &Writer) -> Result<()> {
        for source in writer.sources()? {
            if source != INGESTED && self.config.sources.iter().all(|known| known.id != source) {
                self.gone.extend(writer.known(&source)?.into_iter().map(|(path, known)| (known.row, path)));
            }
        }
        Ok(())
    }

    /// Documents that lie in no source have only the store to be parsed from again when the rules have changed.
    fn parse_kept(&mut self, writer: &Writer) -> Result<()> {
        let known = writer.known(INGESTED)?;
        let Some(reader) = Reader::open(writer.folder())?.filter(|_| !known.is_empty()) else { return Ok(()) };
        for (path, known) in known {
            let document = reader.document(known.row)?;
            if known.parsed == shape(self.config, &one::IN_STORE, document.repo.as_deref()) {
                continue;
            }
            let loaded = Loaded {
                text: reader.text(known.row, 0..reader.text_len(known.row)?)?,
                encoding: document.encoding,
                bom: document.bom,
                hash: known.hash,
                size: known.size,
                mtime_ns: known.mtime_ns,
                disk_path: document.disk_path,
            };
            let file = Found {
                path,
                on_disk: PathBuf::new(),
                size: known.size,
                mtime_ns: known.mtime_ns,
                repo: document.repo,
            };
            self.add(writer, &one::IN_STORE, file, false, loaded, Given::default())?;
        }
        Ok(())
    }

    /// Reads what must be read, stores it, publishes. Returns the revision in force.
    fn store(&mut self, writer: &Writer, observe: &mut dyn FnMut(IngestEvent)) -> Result<u64> {
        let jobs = std::mem::take(&mut self.jobs);
        let total = jobs.len() as u64;
        let averages = publish::averages(writer, self.config, &jobs)?;
        writer.begin()?;
        let stored = (|| {
            let mut step = Step::new(averages);
            for (row, path) in std::mem::take(&mut self.gone) {
                step.dead.extend(writer.remove_chunks(row)?);
                writer.remove_document(row)?;
                self.counts.purged_deleted_files += 1;
                self.gone_item(&path);
                step.changed = true;
            }
            let mut idx = 0;
            prepare::each_run(&jobs, self.config, averages, self.stop, |run| {
                let mut rows = Vec::with_capacity(run.build.chunks());
                for (job, outcome) in jobs[run.jobs.clone()].iter().zip(run.outcomes) {
                    idx += 1;
                    let path = job.file.path.clone();
                    let media = parse::media_of(&path).0;
                    observe(IngestEvent::AssetStarted { idx, total, path, media });
                    let (result, chunks) = self.store_file(writer, job, outcome, &mut step, &mut rows)?;
                    if matches!(result, IngestResult::New | IngestResult::Updated) {
                        observe(IngestEvent::AssetChunked { idx, chunks });
                    }
                    observe(IngestEvent::AssetFinished { idx, total, result, chunks });
                }
                step.add(run.build, &rows)?;
                if step.bytes >= STEP_BYTES {
                    publish::publish(writer, std::mem::replace(&mut step, Step::new(averages)), self.now)?;
                    writer.commit()?;
                    writer.begin()?;
                }
                Ok(())
            })?;
            let revision = publish::publish(writer, step, self.now)?;
            if self.task.whole && !self.stop.load(Ordering::Relaxed) {
                writer.set_meta(kb::ALL_CHECKED, self.now_ns())?;
            }
            writer.commit()?;
            Ok(revision)
        })();
        let revision = match stored {
            Ok(revision) => revision,
            Err(error) => {
                writer.rollback();
                return Err(error);
            }
        };
        let revision = publish::keep_averages(writer)?.unwrap_or(revision);
        writer.remove_unnamed_segments()?;
        writer.checkpoint()?;
        Ok(revision)
    }

    fn store_file(
        &mut self,
        writer: &Writer,
        job: &Job,
        outcome: Outcome,
        step: &mut Step,
        rows: &mut Vec<Rows>,
    ) -> Result<(IngestResult, u32)> {
        let before = job.before.as_ref().map(|known| known.row);
        let result = match outcome {
            Outcome::Document(prepared) => {
                if let Some(row) = before {
                    step.dead.extend(writer.remove_chunks(row)?);
                }
                rows.extend(writer.put_document(&self.new_document(job, &prepared), before)?);
                step.changed = true;
                step.bytes += prepared.loaded.text.len();
                let chunks = prepared.chunks.len() as u32;
                let result = if before.is_some() { IngestResult::Updated } else { IngestResult::New };
                match before {
                    Some(_) => self.counts.updated += 1,
                    None => self.counts.new += 1,
                }
                self.item(job.source, &job.file.path, result, Some(chunks));
                return Ok((result, chunks));
            }
            Outcome::Same { size, mtime_ns } => {
                if let Some(row) = before {
                    writer.touch(row, size, mtime_ns, self.now_ns())?;
                }
                self.counts.unchanged += 1;
                self.item(job.source, &job.file.path, IngestResult::Unchanged, None);
                IngestResult::Unchanged
            }
            Outcome::Skipped(skip) => {
                self.forget(writer, before, step)?;
                self.skip(job.file.path.clone(), skip);
                IngestResult::Skipped
            }
            Outcome::Vanished => {
                self.forget(writer, before, step)?;
                self.counts.purged_deleted_files += u64::from(before.is_some());
                self.gone_item(&job.file.path);
                IngestResult::Purged
            }
            Outcome::Failed(error) => {
                self.failed(&job.file.path, &error);
                IngestResult::Error
            }
        };
        Ok((result, 0))
    }

    fn new_document<'d>(&self, job: &'d Job, prepared: &'d Prepared) -> NewDocument<'d> {
        let (metadata, loaded) = (&prepared.parsed.metadata, &prepared.loaded);
        NewDocument {
            doc_id: prepared.doc_id,
            source: &job.source.id,
            path: &job.file.path,
            disk_path: loaded.disk_path.as_deref(),
            walked: job.walked,
            size: loaded.size,
            mtime_ns: loaded.mtime_ns,
            checked_ns: self.now_ns(),
            hash: loaded.hash,
            parsed: &job.shape,
            media: prepared.parsed.media,
            code_lang: prepared.parsed.code_lang,
            encoding: loaded.encoding,
            bom: loaded.bom,
            title: &prepared.title,
            metadata,
            given: &job.given,
            trust: metadata.trust_level.or(job.source.trust_level).unwrap_or(crate::model::Trust::Primary),
            source_type: metadata.source_type.as_deref().or(job.source.source_type.as_deref()),
            repo: job.file.repo.as_deref(),
            text: &loaded.text,
            chunks: &prepared.chunks,
            indexed_ns: self.now_ns(),
        }
    }

    /// The file is no document any more.
    fn forget(&self, writer: &Writer, before: Option<u32>, step: &mut Step) -> Result<()> {
        if let Some(row) = before {
            step.dead.extend(writer.remove_chunks(row)?);
            writer.remove_document(row)?;
            step.changed = true;
        }
        Ok(())
    }

    fn skip(&mut self, path: String, reason: Skip) {
        self.counts.skipped += 1;
        if self.task.list {
            self.push(&path, IngestResult::Skipped).reason = Some(reason.as_str());
        }
        self.skipped.push((path, reason));
    }

    fn failed(&mut self, path: &str, error: &Error) {
        self.counts.errors += 1;
        self.push(path, IngestResult::Error).error = Some(ErrorReport::from(error));
    }

    fn item(&mut self, source: &Source, path: &str, result: IngestResult, chunks: Option<u32>) {
        if self.task.list {
            let item = self.push(path, result);
            item.doc_id = Some(Id::document(&source.id, path));
            item.chunks = chunks;
        }
    }

    fn gone_item(&mut self, path: &str) {
        if self.task.list {
            self.push(path, IngestResult::Purged);
        }
    }

    fn push(&mut self, path: &str, result: IngestResult) -> &mut IngestItem {
        let at = self.items.len();
        self.items.push(IngestItem {
            path: path.to_owned(),
            result,
            doc_id: None,
            chunks: None,
            reason: None,
            error: None,
        });
        &mut self.items[at]
    }

    fn now_ns(&self) -> i64 {
        nanoseconds(self.now)
    }
}

pub fn nanoseconds(time: Timestamp) -> i64 {
    i64::try_from(time.as_nanosecond()).unwrap_or(i64::MAX)
}

fn nothing_at(path: &Path) -> Error {
    let reason = format!("there is nothing at {}", path.display());
    Error::input_hint("path", reason, "Name a file or a folder inside the workspace.")
}

/// What shapes a document beside its text and what was given with it; one shaped otherwise is read again.
fn shape(config: &Config, source: &Source, repo: Option<&str>) -> String {
    let settings = format!("{:?}", (config.ingest.limits, source.trust_level, &source.source_type, repo));
    let hash = blake3::hash(settings.as_bytes()).to_hex();
    format!("{PARSER_VERSION}/{}/{}", chunk::VERSION, &hash[..16])
}

fn extension(path: &str) -> String {
    let name = path.rsplit('/').next().unwrap_or(path);
    match name.rsplit_once('.') {
        Some((stem, extension)) if !stem.is_empty() => extension.to_lowercase(),
        _ => String::new(),
    }
}
