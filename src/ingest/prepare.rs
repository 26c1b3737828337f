//! The parallel half of an ingest: texts are read from files (or are at hand), decoded, parsed, chunked and weighed in
//! runs of consecutive jobs, on all cores; the runs arrive at one consumer in order.

use std::collections::{BTreeMap, HashMap};
use std::io::Read;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use super::chunk;
use super::decode::{Decoded, HEAD_BYTES, Unreadable, decode, opens_binary};
use super::parse::{Parsed, parse, readable_part};
use super::walk::{Found, Skip, mtime_ns};
use crate::config::{Config, Source};
use crate::error::{Error, Result};
use crate::index::build::{self, Averages, Builder, Passage, WeightTables};
use crate::model::{Chunk, Encoding, Given, Id};
use crate::store::Known;

/// A document to be made.
pub struct Job<'i> {
    pub source: &'i Source,
    pub file: Found,
    pub content: Content,
    /// A walk of the source finds it.
    pub walked: bool,
    pub given: Given,
    /// What shapes the document beside its text.
    pub shape: String,
    pub before: Option<Known>,
    /// Store it even if its content is what is stored.
    pub reread: bool,
}

/// Where a document's text comes from.
pub enum Content {
    /// The file itself.
    OnDisk,
    AtHand(Loaded),
}

/// A text, and what is known of the bytes that it was.
#[derive(Clone)]
pub struct Loaded {
    pub text: String,
    pub encoding: Encoding,
    pub bom: bool,
    pub hash: [u8; 32],
    pub size: u64,
    pub mtime_ns: i64,
    /// The name on disk where it is not the document's path.
    pub disk_path: Option<Vec<u8>>,
}

/// What became of a file.
pub enum Outcome {
    Document(Box<Prepared>),
    /// It holds what is stored.
    Same {
        size: u64,
        mtime_ns: i64,
    },
    Skipped(Skip),
    Vanished,
    Failed(Error),
}

/// A document ready to be stored.
pub struct Prepared {
    pub doc_id: Id,
    pub title: String,
    pub loaded: Loaded,
    pub parsed: Parsed,
    pub chunks: Vec<(Id, Chunk)>,
}

/// Consecutive jobs with their outcomes, and the postings of the chunks among them.
pub struct Run {
    pub jobs: Range<usize>,
    pub outcomes: Vec<Outcome>,
    pub build: build::Run,
}

/// Calls `consume` with each run, in order. Ends early when `stop` is set or `consume` fails.
pub fn each_run(
    jobs: &[Job],
    config: &Config,
    averages: Averages,
    stop: &AtomicBool,
    mut consume: impl FnMut(Run) -> Result<()>,
) -> Result<()> {
    let runs = runs(jobs);
    let next = AtomicUsize::new(0);
    let ended = AtomicBool::new(false);
    let workers = rayon::current_num_threads().min(runs.len());
    // One finished run a worker may wait: enough to keep both sides busy, little enough to stay in memory.
    let (send, receive) = crossbeam_channel::bounded(workers.max(1));
    rayon::in_place_scope(|scope| {
        for _ in 0..workers {
            let (send, runs, next, ended) = (send.clone(), &runs, &next, &ended);
            scope.spawn(move |_| {
                let mut weights = WeightTables::new(averages);
                while !stop.load(Ordering::Relaxed) && !ended.load(Ordering::Relaxed) {
                    let i = next.fetch_add(1, Ordering::Relaxed);
                    let Some(range) = runs.get(i) else { break };
                    let run;
                    (run, weights) = prepare_run(jobs, range.clone(), config, weights, stop);
                    if send.send((i, run)).is_err() {
                        break;
                    }
                }
            });
        }
        drop(send);
        let mut early = BTreeMap::new();
        let mut expected = 0;
        let mut result = Ok(());
        for (i, run) in &receive {
            early.insert(i, run);
            while let Some(run) = early.remove(&expected) {
                expected += 1;
                if result.is_ok() {
                    result = consume(run);
                    ended.store(result.is_err(), Ordering::Relaxed);
                }
            }
        }
        result
    })
}

/// Mean terms a chunk over a sample of the files: what BM25 measures lengths by until there are better figures.
pub fn sample_averages(jobs: &[Job], config: &Config) -> Averages {
    let mut builder = Builder::new(build::DEFAULT_AVERAGES);
    for job in jobs.iter().step_by(jobs.len().div_ceil(SAMPLE_FILES).max(1)) {
        if let Outcome::Document(prepared) = prepare(job, config) {
            add_chunks(&mut builder, &job.file.path, &prepared);
        }
    }
    builder.averages()
}

/// Source bytes in a run.
const RUN_BYTES: u64 = 4 << 20;
const RUN_FILES: usize = 2048;

const SAMPLE_FILES: usize = 48;

fn runs(jobs: &[Job]) -> Vec<Range<usize>> {
    let mut runs = Vec::new();
    let (mut start, mut bytes) = (0, 0);
    for (i, job) in jobs.iter().enumerate() {
        bytes += job.file.size;
        if bytes >= RUN_BYTES || i + 1 - start >= RUN_FILES {
            runs.push(start..i + 1);
            (start, bytes) = (i + 1, 0);
        }
    }
    if start < jobs.len() {
        runs.push(start..jobs.len());
    }
    runs
}

fn prepare_run(
    jobs: &[Job],
    range: Range<usize>,
    config: &Config,
    weights: WeightTables,
    stop: &AtomicBool,
) -> (Run, WeightTables) {
    let mut builder = Builder::with(weights);
    let mut outcomes = Vec::with_capacity(range.len());
    for job in &jobs[range.clone()] {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        let outcome = catch_unwind(AssertUnwindSafe(|| prepare(job, config))).unwrap_or_else(|_| {
            Outcome::Failed(Error::Internal { cause: format!("the parser of {} panicked", job.file.path) })
        });
        if let Outcome::Document(prepared) = &outcome {
            add_chunks(&mut builder, &job.file.path, prepared);
        }
        outcomes.push(outcome);
    }
    let (build, weights) = builder.finish_keeping();
    (Run { jobs: range.start..range.start + outcomes.len(), outcomes, build }, weights)
}

fn add_chunks(builder: &mut Builder, path: &str, prepared: &Prepared) {
    for (_, chunk) in &prepared.chunks {
        builder.add(&Passage {
            title: &prepared.title,
            title_is_name: prepared.title == file_stem(path),
            headings: &chunk.heading_path,
            symbol: chunk.symbol.as_deref(),
            body: &readable_part(prepared.parsed.media, &prepared.loaded.text, chunk.bytes.clone()),
        });
    }
}

fn prepare(job: &Job, config: &Config) -> Outcome {
    let known = if job.reread { None } else { job.before.as_ref().map(|known| &known.hash) };
    let loaded = match &job.content {
        Content::OnDisk => load(&job.file.on_disk, disk_path(job.source, &job.file), config, known),
        Content::AtHand(loaded) if known == Some(&loaded.hash) => {
            Err(Outcome::Same { size: loaded.size, mtime_ns: loaded.mtime_ns })
        }
        Content::AtHand(loaded) => Ok(loaded.clone()),
    };
    let loaded = match loaded {
        Ok(loaded) => loaded,
        Err(outcome) => return outcome,
    };
    let mut parsed = parse(&job.file.path, &loaded.text);
    job.given.apply(&mut parsed.metadata);
    let title = parsed.metadata.title.clone().unwrap_or_else(|| file_stem(&job.file.path).to_owned());
    let doc_id = Id::document(&job.source.id, &job.file.path);
    // By the id of a first occurrence, which most texts are: one hash does for both.
    let mut occurrences: HashMap<Id, u32> = HashMap::new();
    let chunks = chunk::chunk(&loaded.text, &parsed, &config.ingest.limits)
        .into_iter()
        .map(|chunk| {
            let body = &loaded.text[chunk.bytes.clone()];
            let first = Id::chunk(doc_id, body, 0);
            let occurrence = occurrences.entry(first).or_insert(0);
            let id = if *occurrence == 0 { first } else { Id::chunk(doc_id, body, *occurrence) };
            *occurrence += 1;
            (id, chunk)
        })
        .collect();
    Outcome::Document(Box::new(Prepared { doc_id, title, loaded, parsed, chunks }))
}

/// Reads and decodes a file; `Err` if no document comes of it. `known` is the hash of what is stored already.
pub fn load(
    path: &Path,
    disk_path: Option<Vec<u8>>,
    config: &Config,
    known: Option<&[u8; 32]>,
) -> Result<Loaded, Outcome> {
    let (bytes, mtime_ns) = match read(path, config.ingest.max_file_bytes) {
        Ok(Ok(read)) => read,
        Ok(Err(skip)) => return Err(Outcome::Skipped(skip)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Err(Outcome::Vanished),
        Err(error) => return Err(Outcome::Failed(Error::io("read", path)(error))),
    };
    let (size, hash) = (bytes.len() as u64, *blake3::hash(&bytes).as_bytes());
    if known == Some(&hash) {
        return Err(Outcome::Same { size, mtime_ns });
    }
    match decode(bytes) {
        Ok(Decoded { text, encoding, had_bom: bom }) => {
            Ok(Loaded { text, encoding, bom, hash, size, mtime_ns, disk_path })
        }
        Err(Unreadable::Binary) => Err(Outcome::Skipped(Skip::Binary)),
        Err(Unreadable::UnknownEncoding) => Err(Outcome::Skipped(Skip::UnknownEncoding)),
        Err(broken) => {
            let cause = format!("the text is {}", broken.reason());
            Err(Outcome::Failed(Error::Io { operation: "decode", path: path.to_owned(), cause }))
        }
    }
}

/// The name of a file below its source, if it cannot be opened under the document's path: that one is NFC and Unicode.
pub fn disk_path(source: &Source, file: &Found) -> Option<Vec<u8>> {
    let on_disk = file.on_disk.strip_prefix(&source.root).unwrap_or(&file.on_disk);
    (on_disk != Path::new(&file.path)).then(|| on_disk.as_os_str().as_encoded_bytes().to_vec())
}

/// The file's bytes and the time it had before they were read: a change meanwhile is seen by the next ingest. A
/// binary file is read no further than to see that, one that has grown past the limit no further than that.
fn read(path: &Path, max_bytes: u64) -> std::io::Result<Result<(Vec<u8>, i64), Skip>> {
    let file = std::fs::File::open(path)?;
    let metadata = file.metadata()?;
    let mut bytes = Vec::with_capacity((metadata.len().min(max_bytes) + 1) as usize);
    let mut file = file.take(max_bytes + 1);
    file.by_ref().take(HEAD_BYTES as u64).read_to_end(&mut bytes)?;
    if opens_binary(&bytes) {
        return Ok(Err(Skip::Binary));
    }
    file.read_to_end(&mut bytes)?;
    Ok(if bytes.len() as u64 <= max_bytes { Ok((bytes, mtime_ns(&metadata))) } else { Err(Skip::TooLarge) })
}

/// What a document is called that does not say so itself.
pub fn file_stem(path: &str) -> &str {
    let name = path.rsplit('/').next().unwrap_or(path);
    match name.rsplit_once('.') {
        Some((stem, _)) if !stem.is_empty() => stem,
        _ => name,
    }
}
