//! The knowledge base: configuration, connections and the current snapshot. What every tool runs on.
//!
//! A request reads one revision: `read` opens a transaction, and the snapshot it hands out is that revision's. When
//! another process has published a new one, the next request swaps to it; a request in flight keeps what it has.

mod slot;

use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::config::Config;
use crate::error::{Error, Result};
use crate::index::Index;
use crate::index::embed::{Embedder, Reranker};
use crate::index::vector::graph::Keeper;
use crate::store::{FileIdentity, Interrupted, Reader, segments_folder};
use slot::Loader;

pub struct Kb {
    pub config: Config,
    /// Connections that no request is using.
    readers: Mutex<Vec<Reader>>,
    current: Mutex<Option<(Option<FileIdentity>, Arc<Index>)>>,
    under_way: Mutex<UnderWay>,
    /// A request has stored texts that it did not embed.
    texts_left: Mutex<bool>,
    texts_came: Condvar,
    /// The graph of a process that stays.
    pub graphs: Keeper,
    embedder: Arc<Loader<Embedder>>,
    reranker: Arc<Loader<Reranker>>,
}

pub use slot::Slot;

/// The embedding model as far as it is loaded.
pub type EmbedderState = Slot<Embedder>;

/// What is known of an ingest under way, for those who find no index yet.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum UnderWay {
    #[default]
    Nothing,
    /// In this process; the total is known once the folder has been walked.
    Here { done: u64, total: Option<u64> },
    /// Another process holds the store.
    Elsewhere,
}

/// One revision of the corpus, for the time of a request.
pub struct View<'r> {
    pub store: &'r Reader,
    pub index: Arc<Index>,
}

impl Kb {
    /// Opens nothing yet: there may be no index.
    pub fn open(config: Config) -> Result<Kb> {
        Ok(Kb {
            config,
            readers: Mutex::default(),
            current: Mutex::default(),
            under_way: Mutex::default(),
            texts_left: Mutex::default(),
            texts_came: Condvar::new(),
            graphs: Keeper::default(),
            embedder: Arc::default(),
            reranker: Arc::default(),
        })
    }

    /// As `open`, for a process that ends when this does: models stay, as the system takes their memory back at once
    /// and piece by piece that takes longer than a search.
    pub fn open_to_the_end(config: Config) -> Result<Kb> {
        let kb = Kb::open(config)?;
        std::mem::forget((kb.embedder.clone(), kb.reranker.clone()));
        Ok(kb)
    }

    pub fn data_dir(&self) -> &Path {
        &self.config.data_dir
    }

    /// Runs `read` on the newest revision. `not_indexed` if there is none.
    pub fn read<T>(&self, read: impl Fn(&View) -> Result<T>) -> Result<T> {
        // Between reading the list of segments and mapping them, an ingest may replace them.
        for attempt in 1..=RETRIES {
            let reader = self.reader()?;
            let result = reader.snapshot(|store| {
                self.require_own(store)?;
                let revision = store.revision()?;
                if revision == 0 {
                    return Err(self.not_indexed());
                }
                match self.index_at(store, revision, attempt == RETRIES)? {
                    Some(index) => read(&View { store, index }).map(Some),
                    None => Ok(None),
                }
            });
            self.keep(reader);
            match result {
                Ok(Some(value)) => return Ok(value),
                Ok(None) => {}
                Err(error) => return Err(error),
            }
        }
        let cause = "segments named by the store are missing".to_owned();
        Err(Error::IndexDamaged { path: segments_folder(self.data_dir()), cause })
    }

    /// Runs `read` on the store alone; the index need not be usable.
    pub fn read_store<T>(&self, read: impl FnOnce(&Reader) -> Result<T>) -> Result<T> {
        let reader = self.reader()?;
        let result = reader.snapshot(|store| {
            self.require_own(store)?;
            read(store)
        });
        self.keep(reader);
        result
    }

    /// Drops the snapshot, so that the next request maps its segments afresh.
    pub fn forget_snapshot(&self) {
        *locked(&self.current) = None;
    }

    /// The writer before, if it died before its end: what it was doing did not land.
    pub fn interrupted(&self) -> Option<Interrupted> {
        Interrupted::find(self.data_dir())
    }

    /// The embedding model. It is loaded on first use; whoever comes while it is waits at most `wait`.
    pub fn embedder(&self, wait: Duration) -> EmbedderState {
        match self.config.models.embedding.clone() {
            Some(model) => self.embedder.get(move || Embedder::open(&model), wait),
            None => Slot::Off,
        }
    }

    /// Begins to load the embedding model, so that it is there when it is asked for.
    pub fn preload_embedder(&self) {
        self.embedder(Duration::ZERO);
    }

    /// The cross-encoder, in the same way.
    pub fn reranker(&self, wait: Duration) -> Slot<Reranker> {
        match self.config.models.reranker.clone() {
            Some(model) => self.reranker.get(move || Reranker::open(&model), wait),
            None => Slot::Off,
        }
    }

    /// Tells of an ingest that this process runs or waits for.
    pub fn set_under_way(&self, under_way: UnderWay) {
        *locked(&self.under_way) = under_way;
    }

    /// Hands stored texts to whoever embeds in the background of this process, if anybody does; also wakes him to end.
    pub fn leave_texts(&self) {
        *locked(&self.texts_left) = true;
        self.texts_came.notify_all();
    }

    /// Sleeps until texts are left, at most for `limit`.
    pub fn await_texts(&self, limit: Option<Duration>) {
        let left = locked(&self.texts_left);
        let mut left = match limit {
            Some(limit) => {
                let waited = self.texts_came.wait_timeout_while(left, limit, |left| !*left);
                waited.unwrap_or_else(PoisonError::into_inner).0
            }
            None => self.texts_came.wait_while(left, |left| !*left).unwrap_or_else(PoisonError::into_inner),
        };
        *left = false;
    }

    /// The error of a store that is not there yet.
    pub fn not_indexed(&self) -> Error {
        let root = self.config.sources.first().map(|source| source.root.display().to_string());
        Error::NotIndexed {
            expected: format!("an index in {}", self.data_dir().display()),
            found: "none".into(),
            hint: match (*locked(&self.under_way), root) {
                (UnderWay::Here { done, total: Some(total) }, _) => {
                    format!("The index is being built, {done} of {total} files are done: try again in a few seconds.")
                }
                (UnderWay::Here { total: None, .. }, _) => {
                    "The index is being built, files are being counted: try again in a few seconds.".into()
                }
                (UnderWay::Elsewhere, _) => "Another process is building the index: try again in a few seconds.".into(),
                (UnderWay::Nothing, Some(root)) => {
                    format!("Run `kebab-lite ingest --root {}` first, or search with --sync.", shell_word(&root))
                }
                (UnderWay::Nothing, None) => "Run `kebab-lite ingest` first, or search with --sync.".into(),
            },
        }
    }

    /// Refuses the index of another root: its documents are not this one's.
    fn require_own(&self, store: &Reader) -> Result<()> {
        match other_root(store.meta_text(ROOT)?, &self.config) {
            None => Ok(()),
            Some(other) => Err(Error::NotIndexed {
                expected: format!("an index of {}", self.config.sources[0].root.display()),
                found: format!("the index of {other} in {}", self.data_dir().display()),
                hint: OWN_FOLDER.into(),
            }),
        }
    }

    fn reader(&self) -> Result<Reader> {
        while let Some(reader) = locked(&self.readers).pop() {
            if reader.is_current() {
                return Ok(reader);
            }
        }
        Reader::open(self.data_dir())?.ok_or_else(|| self.not_indexed())
    }

    fn keep(&self, reader: Reader) {
        locked(&self.readers).push(reader);
    }

    /// The snapshot of this revision; None if its segments are gone, because a newer one has replaced it. Vectors that
    /// are gone for good are done without: `finally`.
    fn index_at(&self, store: &Reader, revision: u64, finally: bool) -> Result<Option<Arc<Index>>> {
        let mut current = locked(&self.current);
        let previous = current.as_ref().filter(|(identity, _)| *identity == store.identity());
        if let Some((_, index)) = previous
            && index.revision == revision
        {
            return Ok(Some(index.clone()));
        }
        let folder = segments_folder(self.data_dir());
        let entries = store.segments()?;
        let files: Vec<_> = entries.iter().map(|entry| folder.join(&entry.file)).collect();
        let vectors = store.vector_segments()?;
        let index = match Index::open(&folder, revision, entries, vectors, previous.map(|(_, index)| &**index)) {
            Ok(index) if !finally && index.lost.iter().any(|file| !file.exists()) => return Ok(None),
            Ok(index) => Arc::new(index),
            Err(Error::IndexDamaged { .. }) if files.iter().any(|file| !file.exists()) => return Ok(None),
            Err(error) => return Err(error),
        };
        // A request that began before a newer one swapped must not swap back.
        if current.as_ref().is_none_or(|(identity, newer)| *identity != store.identity() || newer.revision < revision) {
            *current = Some((store.identity(), index.clone()));
        }
        Ok(Some(index))
    }
}

const RETRIES: usize = 5;

/// Under which the store keeps the path of the main root it is of.
pub const ROOT: &str = "root";

/// Under which the store keeps when an ingest last looked at every file of every source, in nanoseconds since 1970.
pub const ALL_CHECKED: &str = "all_checked_ns";

/// The root that a data folder belongs to, if it is not the configured one. A root that is no more was moved here:
/// paths in the store are relative to it.
pub fn other_root(stored: Option<String>, config: &Config) -> Option<String> {
    stored.filter(|stored| *stored != config.sources[0].root.to_string_lossy() && Path::new(stored).exists())
}

/// What helps whose data folder is another root's.
pub const OWN_FOLDER: &str =
    "Name another data folder for this root: --data-dir DIR, or storage.data_dir in the config file.";

/// A lock that a panicking request held guards nothing half-written: values are replaced whole.
fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A path as a shell takes it.
fn shell_word(text: &str) -> String {
    let plain = |c: char| c.is_alphanumeric() || "/._-+:@".contains(c);
    match text.chars().all(plain) {
        true => text.to_owned(),
        false => format!("'{}'", text.replace('\'', "'\\''")),
    }
}
