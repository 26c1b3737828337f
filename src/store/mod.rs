//! The source of truth: documents with their text, chunks as ranges of it, and the list of index segments,
//! in one SQLite database (WAL). Anything in the index can be rebuilt from here.
//!
//! Layout of the data folder: `kebab.sqlite`, `sessions.sqlite`, `segments/`, the writer's `writer.lock` and
//! `writer.info`, and `embedder.lock`. This file owns the schema, opening and errors; `read`, `write`, `sessions` and
//! `turn` what their names say.

mod read;
mod sessions;
mod turn;
mod write;

pub use read::{Bodies, ChunkRow, Column, DocumentRow, FileIdentity, Known, Reader};
pub use sessions::{Exchange, SessionRow, Sessions};
pub use turn::Turn;
pub use write::{Interrupted, Kept, NewDocument, Writer};

use std::path::{Path, PathBuf};

use rusqlite::{Connection, ErrorCode};

use crate::error::{Error, Result};

/// Version of everything in the data folder; another one is refused, never misread.
pub const FORMAT: i64 = 2;

/// "kblt": tells our database from any other SQLite file.
const APPLICATION_ID: i64 = 0x6B62_6C74;

const SCHEMA: &str = "
CREATE TABLE meta(key TEXT PRIMARY KEY, value NOT NULL) WITHOUT ROWID;
CREATE TABLE documents(
    id INTEGER PRIMARY KEY,
    doc_id BLOB NOT NULL UNIQUE,
    source TEXT NOT NULL,
    path TEXT NOT NULL,
    walked INTEGER NOT NULL,    -- found by walking the source, so it goes when its file goes
    disk_path BLOB,             -- the name on disk where it is not `path` (another Unicode form, not UTF-8)
    size INTEGER NOT NULL,
    mtime_ns INTEGER NOT NULL,
    checked_ns INTEGER NOT NULL,
    hash BLOB NOT NULL,
    parsed TEXT NOT NULL,       -- what shaped it beside its text: versions, settings, its repository
    media TEXT NOT NULL,
    code_lang TEXT,
    encoding TEXT NOT NULL,
    bom INTEGER NOT NULL,
    title TEXT NOT NULL,
    lang TEXT NOT NULL,
    tags TEXT NOT NULL,         -- JSON array
    trust TEXT NOT NULL,
    source_type TEXT,
    repo TEXT,
    created TEXT,
    updated TEXT,
    front TEXT NOT NULL,        -- JSON object: aliases, front-matter keys this program does not know, what was given
    chunk_count INTEGER NOT NULL,
    indexed_ns INTEGER NOT NULL
);
CREATE INDEX documents_by_path ON documents(path);
CREATE TABLE texts(document INTEGER PRIMARY KEY, body BLOB NOT NULL);
CREATE TABLE chunks(
    id INTEGER PRIMARY KEY,
    document INTEGER NOT NULL,
    chunk_id BLOB NOT NULL,
    start INTEGER NOT NULL,     -- bytes of the document's text
    end INTEGER NOT NULL,
    line_start INTEGER NOT NULL,
    line_end INTEGER NOT NULL,
    headings TEXT NOT NULL,     -- separated by U+001F
    symbol TEXT,
    tokens INTEGER NOT NULL
);
CREATE INDEX chunks_by_document ON chunks(document);
CREATE INDEX chunks_by_id ON chunks(chunk_id);
CREATE TABLE segments(
    id INTEGER PRIMARY KEY,
    file TEXT NOT NULL,
    chunks INTEGER NOT NULL,
    bytes INTEGER NOT NULL,
    first_row INTEGER NOT NULL,
    end_row INTEGER NOT NULL,
    terms_grams INTEGER NOT NULL,
    terms_words INTEGER NOT NULL,
    tombstones BLOB NOT NULL
);
CREATE TABLE vector_segments(
    id INTEGER PRIMARY KEY,     -- in the order of their making
    file TEXT NOT NULL,
    model TEXT NOT NULL,
    dimensions INTEGER NOT NULL,
    vectors INTEGER NOT NULL,
    chunks INTEGER NOT NULL,    -- with live vectors
    bytes INTEGER NOT NULL,
    first_row INTEGER NOT NULL,
    end_row INTEGER NOT NULL,
    tombstones BLOB NOT NULL
);
";

/// Stands between headings in a chunk's row; no heading holds it (control characters are spaces there).
const HEADING_SEPARATOR: char = '\u{1F}';

pub fn database_path(folder: &Path) -> PathBuf {
    folder.join("kebab.sqlite")
}

pub fn segments_folder(folder: &Path) -> PathBuf {
    folder.join("segments")
}

/// Refuses a database of another program or of another format version, with both numbers. False if it has no tables:
/// its first writer has come no further than to create the file.
fn check_format(connection: &Connection, path: &Path) -> Result<bool> {
    let number = |query: &str| connection.query_row(query, [], |row| row.get::<_, i64>(0)).map_err(sql(path));
    if number("SELECT count(*) FROM sqlite_schema")? == 0 {
        return Ok(false);
    }
    let application = number("PRAGMA application_id")?;
    let format = number("PRAGMA user_version")?;
    if application != APPLICATION_ID {
        let cause = "the file is an SQLite database of another program".to_owned();
        return Err(Error::StoreCorrupt { path: path.to_owned(), cause });
    }
    if format != FORMAT {
        return Err(Error::NotIndexed {
            expected: format!("store format {FORMAT}"),
            found: format!("store format {format}"),
            hint: format!(
                "Use the kebab-lite that wrote {}, or name another --data-dir and run `kebab-lite ingest`.",
                path.display()
            ),
        });
    }
    Ok(true)
}

/// The revision of a store that names none: 0, nothing has been stored, unless there is something of a revision.
fn unnamed_revision(connection: &Connection, path: &Path) -> Result<u64> {
    let count = "SELECT count(*) FROM segments";
    match connection.query_row(count, [], |row| row.get::<_, i64>(0)).map_err(sql(path))? {
        0 => Ok(0),
        _ => Err(Error::StoreCorrupt { path: path.to_owned(), cause: "it has segments of no revision".into() }),
    }
}

/// For `map_err` over database operations.
fn sql(path: &Path) -> impl Fn(rusqlite::Error) -> Error {
    let path = path.to_owned();
    move |error| {
        let (path, cause) = (path.clone(), error.to_string());
        if is_foreign_content(&error) {
            return Error::StoreCorrupt { path, cause };
        }
        match error.sqlite_error_code() {
            Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) => Error::StoreCorrupt { path, cause },
            Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => Error::StoreBusy { path, cause },
            Some(ErrorCode::DiskFull) => Error::Io { operation: "write store", path, cause: "the disk is full".into() },
            Some(
                ErrorCode::ReadOnly | ErrorCode::CannotOpen | ErrorCode::SystemIoFailure | ErrorCode::PermissionDenied,
            ) => Error::Io { operation: "use store", path, cause },
            _ => Error::Internal { cause: format!("store {}: {cause}", path.display()) },
        }
    }
}

/// The database can be read, but does not hold what this program writes: rows or tables are missing, values are of
/// another type or do not parse.
fn is_foreign_content(error: &rusqlite::Error) -> bool {
    use rusqlite::Error::*;
    match error {
        SqliteFailure(_, Some(message)) | SqlInputError { msg: message, .. } => message.starts_with("no such "),
        InvalidColumnType(..)
        | FromSqlConversionFailure(..)
        | IntegralValueOutOfRange(..)
        | Utf8Error(..)
        | QueryReturnedNoRows
        | BlobSizeError => true,
        _ => false,
    }
}
