//! Whose turn it is to embed a store's texts: one process at a time, for two would embed the same texts twice. Writing
//! the store is a matter of its own (`Writer`): an ingest goes on while another process embeds.

use std::fs::{File, OpenOptions, TryLockError};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use crate::error::{Error, Result};

/// Held until dropped, or until the process ends in whatever way.
pub struct Turn {
    _lock: File,
}

impl Turn {
    /// None if somebody else still embeds after `wait`. The data folder exists.
    pub fn take(folder: &Path, wait: Duration) -> Result<Option<Turn>> {
        let path = folder.join("embedder.lock");
        let lock = OpenOptions::new()
            .create(true)
            .truncate(false)
            .read(true)
            .write(true)
            .open(&path)
            .map_err(Error::io("open lock", &path))?;
        let deadline = Instant::now() + wait;
        loop {
            match lock.try_lock() {
                Ok(()) => return Ok(Some(Turn { _lock: lock })),
                Err(TryLockError::WouldBlock) if Instant::now() < deadline => thread::sleep(PAUSE),
                Err(TryLockError::WouldBlock) => return Ok(None),
                Err(TryLockError::Error(error)) => return Err(Error::io("lock", &path)(error)),
            }
        }
    }
}

const PAUSE: Duration = Duration::from_millis(10);
