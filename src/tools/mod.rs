//! The verbs: each a file with `run`, the one way from an input to a wire struct for the command line, the
//! protocol and library callers alike.

pub mod args;
pub mod bulk;
pub mod doctor;
pub mod fetch;
pub mod ingest_file;
pub mod ingest_stdin;
pub mod schema;
pub mod search;

use crate::error::{Error, Result};
use crate::ingest;
use crate::kb::Kb;

/// Runs a read; if the index turns out damaged, it is rebuilt from the store and the read is tried once more.
fn with_repair<T>(kb: &Kb, read: impl Fn() -> Result<T>) -> Result<T> {
    match read() {
        Err(Error::IndexDamaged { .. }) if !kb.config.readonly => {
            ingest::rebuild(kb)?;
            kb.forget_snapshot();
            read()
        }
        other => other,
    }
}
