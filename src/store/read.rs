//! Reading the store: each `Reader` is one connection, and within `snapshot` it sees one revision.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::str::Utf8Error;

use rusqlite::blob::Blob;
use rusqlite::types::Value;
use rusqlite::{Connection, OpenFlags, OptionalExtension, Row, params_from_iter};

use super::{HEADING_SEPARATOR, check_format, database_path, sql, unnamed_revision};
use crate::error::{Error, Result};
use crate::model::{Bits, Chunk, Encoding, Filter, Given, Id, Media, SegmentEntry, Trust, VectorEntry};

/// The columns of `document_row`, in its order.
macro_rules! document_columns {
    () => {
        "id, doc_id, source, path, walked, disk_path, size, mtime_ns, media, code_lang, encoding, bom, title, lang, tags, \
         trust, source_type, repo, created, updated, chunk_count, indexed_ns, checked_ns"
    };
}

/// The columns of `chunk_row`, in its order.
macro_rules! chunk_columns {
    () => {
        "id, document, chunk_id, start, end, line_start, line_end, headings, symbol, tokens"
    };
}

pub struct Reader {
    connection: Connection,
    path: PathBuf,
    identity: Option<FileIdentity>,
}

/// Tells a database from another one that has taken its place under the same name: device and inode.
pub type FileIdentity = (u64, u64);

/// A document as it is stored, without its text.
#[derive(Debug, Clone)]
pub struct DocumentRow {
    pub row: u32,
    pub doc_id: Id,
    pub source: String,
    pub path: String,
    /// Found by walking its source; otherwise the store is all there is of it.
    pub walked: bool,
    pub disk_path: Option<Vec<u8>>,
    pub size: u64,
    pub mtime_ns: i64,
    pub media: Media,
    pub code_lang: Option<String>,
    pub encoding: Encoding,
    pub bom: bool,
    pub title: String,
    pub lang: String,
    pub tags: Vec<String>,
    pub trust: Trust,
    pub source_type: Option<String>,
    pub repo: Option<String>,
    pub created: Option<String>,
    pub updated: Option<String>,
    pub chunk_count: u32,
    pub indexed_ns: i64,
    /// When the file was last found to be what is stored, by reading it.
    pub checked_ns: i64,
}

/// A chunk as it is stored.
#[derive(Debug, Clone)]
pub struct ChunkRow {
    pub row: u32,
    pub document: u32,
    pub chunk_id: Id,
    pub chunk: Chunk,
}

/// What an ingest compares a file with.
#[derive(Debug, Clone)]
pub struct Known {
    pub row: u32,
    pub size: u64,
    pub mtime_ns: i64,
    /// When the file was last found to be what is stored.
    pub checked_ns: i64,
    pub hash: [u8; 32],
    /// What shaped the document, as its ingest put it.
    pub parsed: String,
    /// Found by walking the source, so it goes when its file goes.
    pub walked: bool,
}

impl Reader {
    /// None if there is no database in the folder, or one that its first writer has only begun.
    pub fn open(folder: &Path) -> Result<Option<Reader>> {
        let path = database_path(folder);
        if !path.try_exists().map_err(Error::io("open store", &path))? {
            return Ok(None);
        }
        let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX | OpenFlags::SQLITE_OPEN_URI;
        let connection = Connection::open_with_flags(&path, flags).map_err(sql(&path))?;
        let opened = check_format(&connection, &path);
        // A folder that cannot be written has no place for the shared memory of WAL. Without a log, or with an empty
        // one, all is in the database and nobody can write, so it can be read as it lies.
        let log = std::fs::metadata(path.with_extension("sqlite-wal"));
        let (connection, made) = match opened {
            Err(Error::Io { .. }) if log.map_or(0, |log| log.len()) == 0 => {
                let uri = format!("file:{}?immutable=1", uri_path(&path));
                let connection = Connection::open_with_flags(uri, flags).map_err(sql(&path))?;
                let made = check_format(&connection, &path)?;
                (connection, made)
            }
            other => (connection, other?),
        };
        if !made {
            return Ok(None);
        }
        let identity = identity(&path);
        let reader = Reader { connection, path, identity };
        reader.prepare().map_err(sql(&reader.path))?;
        Ok(Some(reader))
    }

    fn prepare(&self) -> rusqlite::Result<()> {
        self.connection.busy_timeout(std::time::Duration::from_secs(5))?;
        self.connection.set_prepared_statement_cache_capacity(32);
        self.connection.pragma_update(None, "cache_size", -2048)
    }

    /// The file this reader has open; None where the system does not tell.
    pub fn identity(&self) -> Option<FileIdentity> {
        self.identity
    }

    /// False once the database was removed or replaced: this reader would go on reading the old one.
    pub fn is_current(&self) -> bool {
        identity(&self.path) == self.identity
    }

    /// Runs `read` on one revision of the store, whatever is written meanwhile.
    pub fn snapshot<T>(&self, read: impl FnOnce(&Reader) -> Result<T>) -> Result<T> {
        let execute = |statement| -> Result<()> {
            self.connection.prepare_cached(statement).and_then(|mut s| s.execute([])).map_err(sql(&self.path))?;
            Ok(())
        };
        execute("BEGIN")?;
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| read(self)));
        let ended = execute("COMMIT");
        match result {
            Ok(result) => result.and_then(|value| ended.map(|()| value)),
            Err(panic) => std::panic::resume_unwind(panic),
        }
    }

    /// Counts up with every change of the corpus; 0 before the first.
    pub fn revision(&self) -> Result<u64> {
        match self.meta_number("revision")? {
            Some(revision) => Ok(revision as u64),
            None => unnamed_revision(&self.connection, &self.path),
        }
    }

    pub fn meta_number(&self, key: &str) -> Result<Option<i64>> {
        let mut statement =
            self.connection.prepare_cached("SELECT value FROM meta WHERE key = ?").map_err(sql(&self.path))?;
        statement.query_row([key], |row| row.get(0)).optional().map_err(sql(&self.path))
    }

    pub fn meta_text(&self, key: &str) -> Result<Option<String>> {
        let mut statement =
            self.connection.prepare_cached("SELECT value FROM meta WHERE key = ?").map_err(sql(&self.path))?;
        statement.query_row([key], |row| row.get(0)).optional().map_err(sql(&self.path))
    }

    pub fn segments(&self) -> Result<Vec<SegmentEntry>> {
        segments(&self.connection).map_err(sql(&self.path))
    }

    pub fn vector_segments(&self) -> Result<Vec<VectorEntry>> {
        vector_segments(&self.connection).map_err(sql(&self.path))
    }

    pub fn document(&self, row: u32) -> Result<DocumentRow> {
        self.one(
            concat!("SELECT ", document_columns!(), " FROM documents WHERE id = ?"),
            Value::from(i64::from(row)),
            document_row,
        )?
        .ok_or_else(|| self.lost("document", row))
    }

    pub fn document_by_id(&self, id: Id) -> Result<Option<DocumentRow>> {
        self.one(
            concat!("SELECT ", document_columns!(), " FROM documents WHERE doc_id = ?"),
            Value::from(id.0.to_vec()),
            document_row,
        )
    }

    /// The documents at a path, of whatever source.
    pub fn documents_at(&self, path: &str) -> Result<Vec<DocumentRow>> {
        let query = concat!("SELECT ", document_columns!(), " FROM documents WHERE path = ? ORDER BY id");
        self.all(query, &[Value::from(path.to_owned())], document_row)
    }

    /// What was said about a document by whoever brought it.
    pub fn given(&self, document: u32) -> Result<Given> {
        let query = "SELECT json_extract(front, '$.given') FROM documents WHERE id = ?";
        let found = self.one(query, Value::from(i64::from(document)), |row| given(row, 0))?;
        found.ok_or_else(|| self.lost("document", document))
    }

    pub fn chunk(&self, row: u32) -> Result<ChunkRow> {
        self.one(
            concat!("SELECT ", chunk_columns!(), " FROM chunks WHERE id = ?"),
            Value::from(i64::from(row)),
            chunk_row,
        )?
        .ok_or_else(|| self.lost("chunk", row))
    }

    /// None if it was removed.
    pub fn chunk_if_any(&self, row: u32) -> Result<Option<ChunkRow>> {
        let query = concat!("SELECT ", chunk_columns!(), " FROM chunks WHERE id = ?");
        self.one(query, Value::from(i64::from(row)), chunk_row)
    }

    /// Rows of chunks, from the highest down to `floor`, as long as `visit` wants more.
    pub fn chunk_rows_down(&self, floor: u32, mut visit: impl FnMut(u32) -> bool) -> Result<()> {
        let mut walk = || -> rusqlite::Result<()> {
            let query = "SELECT id FROM chunks WHERE id >= ? ORDER BY id DESC";
            let mut statement = self.connection.prepare_cached(query)?;
            let mut rows = statement.query([floor])?;
            while let Some(row) = rows.next()? {
                if !visit(row.get(0)?) {
                    break;
                }
            }
            Ok(())
        };
        walk().map_err(sql(&self.path))
    }

    pub fn chunk_by_id(&self, id: Id) -> Result<Option<ChunkRow>> {
        self.one(
            concat!("SELECT ", chunk_columns!(), " FROM chunks WHERE chunk_id = ?"),
            Value::from(id.0.to_vec()),
            chunk_row,
        )
    }

    /// All chunks of a document, in its order.
    pub fn chunks_of(&self, document: u32) -> Result<Vec<ChunkRow>> {
        self.all(
            concat!("SELECT ", chunk_columns!(), " FROM chunks WHERE document = ? ORDER BY id"),
            &[Value::from(i64::from(document))],
            chunk_row,
        )
    }

    /// The next chunks by row, of all documents.
    pub fn chunks_from(&self, row: u32, limit: usize) -> Result<Vec<ChunkRow>> {
        let values = [Value::from(i64::from(row)), Value::from(limit as i64)];
        self.all(
            concat!("SELECT ", chunk_columns!(), " FROM chunks WHERE id >= ? ORDER BY id LIMIT ?"),
            &values,
            chunk_row,
        )
    }

    /// Bytes of a document's text, which are whole characters.
    pub fn text(&self, document: u32, bytes: Range<usize>) -> Result<String> {
        self.bodies().text(document, bytes)
    }

    /// As `Bodies::text_above`.
    pub fn text_above(&self, document: u32, end: usize, at_most: usize) -> Result<String> {
        self.bodies().text_above(document, end, at_most)
    }

    /// For reading many texts.
    pub fn bodies(&self) -> Bodies<'_> {
        Bodies { reader: self, open: None }
    }

    pub fn text_len(&self, document: u32) -> Result<usize> {
        self.connection
            .query_row("SELECT length(body) FROM texts WHERE document = ?", [document], |row| row.get::<_, i64>(0))
            .map(|len| len as usize)
            .map_err(sql(&self.path))
    }

    /// The documents a filter takes, as a set of rows.
    pub fn select(&self, filter: &Filter) -> Result<Bits> {
        let (condition, values) = condition(filter);
        let statement = format!("SELECT id, path, tags FROM documents WHERE {condition}");
        let mut statement = self.connection.prepare_cached(&statement).map_err(sql(&self.path))?;
        let mut rows = statement.query(params_from_iter(values)).map_err(sql(&self.path))?;
        let mut taken = Bits::default();
        while let Some(row) = rows.next().map_err(sql(&self.path))? {
            let take = (|| -> rusqlite::Result<bool> {
                let path = row.get_ref(1)?.as_str()?;
                if filter.path_glob.as_ref().is_some_and(|glob| !glob.is_match(path))
                    || filter.exclude_path_glob.as_ref().is_some_and(|glob| glob.is_match(path))
                {
                    return Ok(false);
                }
                if filter.tags.is_empty() && filter.exclude_tags.is_empty() {
                    return Ok(true);
                }
                let tags = json_list(row.get_ref(2)?.as_str()?);
                let holds = |wanted: &[String]| tags.iter().any(|tag| wanted.iter().any(|w| same_word(w, tag)));
                Ok((filter.tags.is_empty() || holds(&filter.tags)) && !holds(&filter.exclude_tags))
            })();
            if take.map_err(sql(&self.path))? {
                taken.insert(row.get::<_, i64>(0).map_err(sql(&self.path))? as usize);
            }
        }
        Ok(taken)
    }

    /// Every document, in the order of the store.
    pub fn documents(&self) -> Result<Vec<DocumentRow>> {
        self.all(concat!("SELECT ", document_columns!(), " FROM documents ORDER BY id"), &[], document_row)
    }

    /// Documents counted by a column of theirs; rows without a value are left out.
    pub fn breakdown(&self, column: Column) -> Result<BTreeMap<String, u64>> {
        let column = column.name();
        let statement =
            format!("SELECT {column}, count(*) FROM documents WHERE {column} IS NOT NULL GROUP BY {column}");
        let rows = self.all(&statement, &[], |row| Ok((row.get(0)?, row.get::<_, i64>(1)? as u64)))?;
        Ok(rows.into_iter().collect())
    }

    /// Documents and chunks.
    pub fn counts(&self) -> Result<(u64, u64)> {
        let count = |table: &str| -> Result<u64> {
            self.connection
                .query_row(&format!("SELECT count(*) FROM {table}"), [], |row| row.get::<_, i64>(0))
                .map(|n| n as u64)
                .map_err(sql(&self.path))
        };
        Ok((count("documents")?, count("chunks")?))
    }

    /// SQLite's own check of the whole file: "ok", or what is wrong.
    pub fn integrity(&self) -> Result<String> {
        self.connection.query_row("PRAGMA quick_check(1)", [], |row| row.get(0)).map_err(sql(&self.path))
    }

    fn one<T>(&self, query: &str, value: Value, read: impl FnOnce(&Row) -> rusqlite::Result<T>) -> Result<Option<T>> {
        let mut statement = self.connection.prepare_cached(query).map_err(sql(&self.path))?;
        statement.query_row([value], read).optional().map_err(sql(&self.path))
    }

    fn all<T>(&self, query: &str, values: &[Value], read: impl Fn(&Row) -> rusqlite::Result<T>) -> Result<Vec<T>> {
        let mut statement = self.connection.prepare_cached(query).map_err(sql(&self.path))?;
        let rows = statement.query_map(params_from_iter(values), read).map_err(sql(&self.path))?;
        rows.collect::<rusqlite::Result<_>>().map_err(sql(&self.path))
    }

    fn lost(&self, what: &str, row: u32) -> Error {
        Error::StoreCorrupt {
            path: self.path.clone(),
            cause: format!("the index names {what} {row}, the store has none"),
        }
    }
}

/// Texts read through one handle that moves from document to document: opening one compiles a statement.
pub struct Bodies<'r> {
    reader: &'r Reader,
    /// The document it stands on.
    open: Option<(u32, Blob<'r>)>,
}

impl Bodies<'_> {
    /// Bytes of a document's text, which are whole characters.
    pub fn text(&mut self, document: u32, bytes: Range<usize>) -> Result<String> {
        let text = self.bytes(document, bytes)?;
        String::from_utf8(text).map_err(|error| self.damaged(error.utf8_error()))
    }

    /// The last bytes of a document's text before `end`, as many whole characters as fit.
    pub fn text_above(&mut self, document: u32, end: usize, at_most: usize) -> Result<String> {
        let mut bytes = self.bytes(document, end.saturating_sub(at_most)..end)?;
        bytes.drain(..bytes.iter().take_while(|byte| (**byte & 0xC0) == 0x80).count());
        String::from_utf8(bytes).map_err(|error| self.damaged(error.utf8_error()))
    }

    fn damaged(&self, error: Utf8Error) -> Error {
        Error::StoreCorrupt { path: self.reader.path.clone(), cause: error.to_string() }
    }

    fn bytes(&mut self, document: u32, bytes: Range<usize>) -> Result<Vec<u8>> {
        let path = &self.reader.path;
        let blob = match self.open.take() {
            Some((row, blob)) if row == document => blob,
            Some((_, mut blob)) => {
                blob.reopen(i64::from(document)).map_err(sql(path))?;
                blob
            }
            None => {
                let connection = &self.reader.connection;
                connection.blob_open("main", "texts", "body", i64::from(document), true).map_err(sql(path))?
            }
        };
        let mut text = vec![0; bytes.len()];
        blob.read_at_exact(&mut text, bytes.start).map_err(sql(path))?;
        self.open = Some((document, blob));
        Ok(text)
    }
}

/// A column that documents can be counted by.
#[derive(Debug, Clone, Copy)]
pub enum Column {
    Media,
    Lang,
    CodeLang,
    Repo,
}

impl Column {
    fn name(self) -> &'static str {
        match self {
            Column::Media => "media",
            Column::Lang => "lang",
            Column::CodeLang => "code_lang",
            Column::Repo => "repo",
        }
    }
}

/// The SQL part of a filter; globs and tags are looked at row by row.
fn condition(filter: &Filter) -> (String, Vec<Value>) {
    let mut parts = vec!["1".to_owned()];
    let mut values = Vec::new();
    let mut any_of = |column: &str, negated: bool, wanted: Vec<Value>| {
        if !wanted.is_empty() {
            let marks = vec!["?"; wanted.len()].join(",");
            parts.push(format!("{column} {}IN ({marks})", if negated { "NOT " } else { "" }));
            values.extend(wanted);
        }
    };
    let texts = |list: &[String]| list.iter().cloned().map(Value::from).collect::<Vec<_>>();
    let ids = |list: &[Id]| list.iter().map(|id| Value::from(id.0.to_vec())).collect::<Vec<_>>();
    any_of("lang", false, filter.lang.iter().cloned().map(Value::from).collect());
    any_of("media", false, texts(&filter.media));
    any_of("source", false, texts(&filter.sources));
    any_of("repo", false, texts(&filter.repos));
    any_of("code_lang", false, texts(&filter.code_langs));
    any_of("doc_id", false, filter.doc_id.iter().map(|id| Value::from(id.0.to_vec())).collect());
    any_of("doc_id", true, ids(&filter.exclude_doc_ids));
    if let Some(least) = filter.trust_min {
        let enough = Trust::ALL.iter().filter(|trust| **trust >= least);
        any_of("trust", false, enough.map(|trust| Value::from(trust.as_str().to_owned())).collect());
    }
    if let Some(after) = filter.ingested_after {
        parts.push("indexed_ns > ?".to_owned());
        values.push(Value::from(after));
    }
    (parts.join(" AND "), values)
}

fn document_row(row: &Row) -> rusqlite::Result<DocumentRow> {
    Ok(DocumentRow {
        row: row.get(0)?,
        doc_id: Id(row.get(1)?),
        source: row.get(2)?,
        path: row.get(3)?,
        walked: row.get(4)?,
        disk_path: row.get(5)?,
        size: row.get::<_, i64>(6)? as u64,
        mtime_ns: row.get(7)?,
        media: word(row, 8, Media::parse)?,
        code_lang: row.get(9)?,
        encoding: word(row, 10, Encoding::parse)?,
        bom: row.get(11)?,
        title: row.get(12)?,
        lang: row.get(13)?,
        tags: json_list(row.get_ref(14)?.as_str()?),
        trust: word(row, 15, Trust::parse)?,
        source_type: row.get(16)?,
        repo: row.get(17)?,
        created: row.get(18)?,
        updated: row.get(19)?,
        chunk_count: row.get(20)?,
        indexed_ns: row.get(21)?,
        checked_ns: row.get(22)?,
    })
}

fn chunk_row(row: &Row) -> rusqlite::Result<ChunkRow> {
    let headings = row.get_ref(7)?.as_str()?;
    Ok(ChunkRow {
        row: row.get(0)?,
        document: row.get(1)?,
        chunk_id: Id(row.get(2)?),
        chunk: Chunk {
            bytes: row.get::<_, i64>(3)? as usize..row.get::<_, i64>(4)? as usize,
            lines: (row.get(5)?, row.get(6)?),
            heading_path: match headings {
                "" => Vec::new(),
                joined => joined.split(HEADING_SEPARATOR).map(str::to_owned).collect(),
            },
            symbol: row.get(8)?,
            tokens: row.get(9)?,
        },
    })
}

pub(super) fn segments(connection: &Connection) -> rusqlite::Result<Vec<SegmentEntry>> {
    let mut statement = connection.prepare_cached("SELECT * FROM segments ORDER BY first_row")?;
    let rows = statement.query_map([], |row| {
        Ok(SegmentEntry {
            id: row.get("id")?,
            file: row.get("file")?,
            chunks: row.get("chunks")?,
            bytes: row.get::<_, i64>("bytes")? as u64,
            rows: row.get("first_row")?..row.get("end_row")?,
            terms: [row.get::<_, i64>("terms_grams")? as u64, row.get::<_, i64>("terms_words")? as u64],
            tombstones: Bits::from_bytes(row.get_ref("tombstones")?.as_blob()?),
        })
    })?;
    rows.collect()
}

pub(super) fn vector_segments(connection: &Connection) -> rusqlite::Result<Vec<VectorEntry>> {
    let mut statement = connection.prepare_cached("SELECT * FROM vector_segments ORDER BY id")?;
    let rows = statement.query_map([], |row| {
        Ok(VectorEntry {
            file: row.get("file")?,
            model: row.get("model")?,
            dimensions: row.get("dimensions")?,
            vectors: row.get("vectors")?,
            chunks: row.get("chunks")?,
            bytes: row.get::<_, i64>("bytes")? as u64,
            rows: row.get("first_row")?..row.get("end_row")?,
            tombstones: Bits::from_bytes(row.get_ref("tombstones")?.as_blob()?),
        })
    })?;
    rows.collect()
}

/// Of a column that is `json_extract(front, '$.given')`.
pub(super) fn given(row: &Row, column: usize) -> rusqlite::Result<Given> {
    let Some(text) = row.get::<_, Option<String>>(column)? else { return Ok(Given::default()) };
    serde_json::from_str(&text).map_err(|error| {
        rusqlite::Error::FromSqlConversionFailure(column, rusqlite::types::Type::Text, Box::new(error))
    })
}

fn word<T>(row: &Row, column: usize, parse: impl Fn(&str) -> Option<T>) -> rusqlite::Result<T> {
    let text = row.get_ref(column)?.as_str()?;
    parse(text).ok_or_else(|| {
        let unknown = format!("column {column} is {text:?}");
        rusqlite::Error::FromSqlConversionFailure(column, rusqlite::types::Type::Text, unknown.into())
    })
}

/// Tags are written by `write` as a JSON array of strings; anything else reads as none.
fn json_list(text: &str) -> Vec<String> {
    serde_json::from_str(text).unwrap_or_else(|_| Vec::new())
}

/// Tags are compared without case: people write them both ways.
fn same_word(a: &str, b: &str) -> bool {
    a == b || a.to_lowercase() == b.to_lowercase()
}

#[cfg(unix)]
fn identity(path: &Path) -> Option<FileIdentity> {
    use std::os::unix::fs::MetadataExt;
    std::fs::metadata(path).ok().map(|metadata| (metadata.dev(), metadata.ino()))
}

/// Windows does not let an open database be removed or replaced.
#[cfg(not(unix))]
fn identity(_: &Path) -> Option<FileIdentity> {
    None
}

/// A path inside an SQLite URI: the characters that end or escape one are percent-encoded.
fn uri_path(path: &Path) -> String {
    path.to_string_lossy().replace('%', "%25").replace('?', "%3f").replace('#', "%23")
}
