//! Writing the store: one writer at a time across processes, one transaction an ingest step.
//!
//! Segment files are complete on disk before the transaction that names them commits, so whoever opens the
//! store sees the state before the step or the one after it, whole.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rusqlite::{Connection, ErrorCode, OptionalExtension, Row, params};
use serde_json::json;

use super::{
    APPLICATION_ID, FORMAT, HEADING_SEPARATOR, SCHEMA, check_format, database_path, read,
    read::{Known, given},
    segments_folder, sql, unnamed_revision,
};
use crate::error::{Error, Result};
use crate::model::{Chunk, Encoding, Given, Id, Media, Metadata, Rows, SegmentEntry, Trust, VectorEntry};

/// Holds the writer's lock until dropped.
pub struct Writer {
    connection: Connection,
    path: PathBuf,
    folder: PathBuf,
    /// Set if the writer before this one did not end cleanly.
    pub interrupted: Option<Interrupted>,
    _lock: Lock,
}

/// A writer that died: the store is as its last whole step left it.
#[derive(Debug, Clone, PartialEq)]
pub struct Interrupted {
    pub pid: String,
    pub since: String,
}

impl Interrupted {
    /// Reads who the last writer was, if it did not end cleanly and is not running.
    pub fn find(folder: &Path) -> Option<Interrupted> {
        let info = || Interrupted::parse(&std::fs::read_to_string(folder.join("writer.info")).ok()?);
        // Without one there is no need to stand in a writer's way, however shortly.
        info()?;
        let lock = File::open(folder.join("writer.lock")).ok()?;
        lock.try_lock_shared().ok()?;
        // A writer that has ended in between has taken it along.
        info()
    }

    fn parse(info: &str) -> Option<Interrupted> {
        let (pid, since) = info.trim().split_once(' ')?;
        Some(Interrupted { pid: pid.to_owned(), since: since.to_owned() })
    }
}

/// A document as parsed, to be stored.
pub struct NewDocument<'d> {
    pub doc_id: Id,
    pub source: &'d str,
    pub path: &'d str,
    pub disk_path: Option<&'d [u8]>,
    pub walked: bool,
    pub size: u64,
    pub mtime_ns: i64,
    pub checked_ns: i64,
    pub hash: [u8; 32],
    pub parsed: &'d str,
    pub media: Media,
    pub code_lang: Option<&'d str>,
    pub encoding: Encoding,
    pub bom: bool,
    pub title: &'d str,
    pub metadata: &'d Metadata,
    pub given: &'d Given,
    pub trust: Trust,
    pub source_type: Option<&'d str>,
    pub repo: Option<&'d str>,
    pub text: &'d str,
    pub chunks: &'d [(Id, Chunk)],
    pub indexed_ns: i64,
}

/// A document that no walk finds, with what tells it from others of the same name.
pub struct Kept {
    pub path: String,
    pub disk_path: Option<Vec<u8>>,
    pub given: Given,
}

impl Writer {
    /// Waits up to `wait` for another writer, or until `stop` is set, then `store_busy`. Creates the folder and the database
    /// if needed.
    pub fn open(folder: &Path, wait: Duration, now: &str, stop: &AtomicBool) -> Result<Writer> {
        create_private_folder(folder)?;
        let segments = segments_folder(folder);
        create_private_folder(&segments)?;
        let (lock, interrupted) = Lock::acquire(folder, wait, now, stop)?;
        let path = database_path(folder);
        let connection = Connection::open(&path).map_err(sql(&path))?;
        let writer = Writer { connection, path, folder: folder.to_owned(), interrupted, _lock: lock };
        writer.prepare(now)?;
        writer.remove_unnamed_segments()?;
        Ok(writer)
    }

    fn prepare(&self, now: &str) -> Result<()> {
        let fail = sql(&self.path);
        self.connection.busy_timeout(Duration::from_secs(5)).map_err(&fail)?;
        self.connection.set_prepared_statement_cache_capacity(32);
        let made = check_format(&self.connection, &self.path)?;
        // NORMAL: a power cut may cost the last steps, never the consistency of those before them.
        // A chunk is read by following the pages of its document from the first, so larger ones are fewer to follow; twice
        // as large again would waste more of the disk than it saves. Takes effect before a database has content.
        let settings = "PRAGMA page_size = 8192; PRAGMA journal_mode = WAL; PRAGMA synchronous = NORMAL; \
                        PRAGMA cache_size = -16384;";
        self.connection.execute_batch(settings).map_err(&fail)?;
        if !made {
            let create = format!(
                "BEGIN IMMEDIATE; {SCHEMA} PRAGMA application_id = {APPLICATION_ID}; PRAGMA user_version = {FORMAT};"
            );
            self.connection.execute_batch(&create).map_err(&fail)?;
            // Revisions of two stores that had the same folder must not be taken for one another.
            self.set_meta("store_id", format!("{} {now}", std::process::id()))?;
            self.commit()?;
        }
        Ok(())
    }

    pub fn begin(&self) -> Result<()> {
        self.connection.execute_batch("BEGIN IMMEDIATE").map_err(sql(&self.path))
    }

    pub fn rollback(&self) {
        // Fails only if SQLite has already rolled back by itself, as it does on a full disk.
        if let Err(error) = self.connection.execute_batch("ROLLBACK") {
            debug_assert!(self.connection.is_autocommit(), "{error}");
        }
    }

    pub fn commit(&self) -> Result<()> {
        self.connection.execute_batch("COMMIT").map_err(sql(&self.path))
    }

    /// Moves what is committed from the log into the database file, as far as readers and the disk allow: what stays in
    /// the log is stored all the same, and the next writer moves it.
    pub fn checkpoint(&self) -> Result<()> {
        match self.connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(())) {
            Err(error) if error.sqlite_error_code() == Some(ErrorCode::DiskFull) => Ok(()),
            moved => moved.map_err(sql(&self.path)),
        }
    }

    /// Stores a document in place of the one with its id, if there is one. Returns where its chunks went.
    pub fn put_document(&self, document: &NewDocument, replaces: Option<u32>) -> Result<Vec<Rows>> {
        self.put_document_rows(document, replaces).map_err(sql(&self.path))
    }

    fn put_document_rows(&self, document: &NewDocument, replaces: Option<u32>) -> rusqlite::Result<Vec<Rows>> {
        let d = document;
        let mut statement = self.connection.prepare_cached(
            "INSERT OR REPLACE INTO documents(id, doc_id, source, path, walked, disk_path, size, mtime_ns, checked_ns, hash, parsed, media,
                code_lang, encoding, bom, title, lang, tags, trust, source_type, repo, created, updated, front,
                chunk_count, indexed_ns)
             VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?)",
        )?;
        statement.execute(params![
            replaces,
            d.doc_id.0,
            d.source,
            d.path,
            d.walked,
            d.disk_path,
            d.size as i64,
            d.mtime_ns,
            d.checked_ns,
            d.hash,
            d.parsed,
            d.media.as_str(),
            d.code_lang,
            d.encoding.as_str(),
            d.bom,
            d.title,
            d.metadata.lang,
            json!(d.metadata.tags).to_string(),
            d.trust.as_str(),
            d.source_type,
            d.repo,
            d.metadata.created,
            d.metadata.updated,
            front(d),
            d.chunks.len() as i64,
            d.indexed_ns,
        ])?;
        let row = replaces.unwrap_or(self.connection.last_insert_rowid() as u32);
        self.connection
            .prepare_cached("INSERT OR REPLACE INTO texts(document, body) VALUES (?, ?)")?
            .execute(params![row, d.text.as_bytes()])?;
        let mut insert = self.connection.prepare_cached(
            "INSERT INTO chunks(id, document, chunk_id, start, end, line_start, line_end, headings, symbol, tokens)
             VALUES (?,?,?,?,?,?,?,?,?,?)",
        )?;
        let mut rows = Vec::with_capacity(d.chunks.len());
        let first = self.next_chunk_row(d.chunks.len())?;
        for (chunk_row, (id, chunk)) in (first..).zip(d.chunks) {
            let headings = join_headings(&chunk.heading_path);
            insert.execute(params![
                chunk_row,
                row,
                id.0,
                chunk.bytes.start as i64,
                chunk.bytes.end as i64,
                chunk.lines.0,
                chunk.lines.1,
                headings,
                chunk.symbol,
                chunk.tokens,
            ])?;
            rows.push(Rows { chunk: chunk_row, document: row });
        }
        Ok(rows)
    }

    /// Reserves row numbers for chunks. They are never used twice, so rows tell the order of storing.
    fn next_chunk_row(&self, count: usize) -> rusqlite::Result<u32> {
        let next: u32 = self
            .connection
            .prepare_cached(
                "INSERT INTO meta(key, value) VALUES ('next_chunk', ?1)
                 ON CONFLICT(key) DO UPDATE SET value = value + ?1 RETURNING value",
            )?
            .query_row([count as i64], |row| row.get(0))?;
        Ok(next - count as u32)
    }

    /// Notes that a file still holds what is stored.
    pub fn touch(&self, row: u32, size: u64, mtime_ns: i64, checked_ns: i64) -> Result<()> {
        let update = "UPDATE documents SET size = ?, mtime_ns = ?, checked_ns = ? WHERE id = ?";
        let mut statement = self.connection.prepare_cached(update).map_err(sql(&self.path))?;
        statement.execute(params![size as i64, mtime_ns, checked_ns, row]).map_err(sql(&self.path))?;
        Ok(())
    }

    /// Removes a document's chunks and returns the rows they had; the document itself stays for its successor.
    pub fn remove_chunks(&self, document: u32) -> Result<Vec<u32>> {
        let remove = || -> rusqlite::Result<Vec<u32>> {
            let mut select = self.connection.prepare_cached("SELECT id FROM chunks WHERE document = ?")?;
            let rows = select.query_map([document], |row| row.get(0))?.collect::<rusqlite::Result<_>>()?;
            self.connection.prepare_cached("DELETE FROM chunks WHERE document = ?")?.execute([document])?;
            Ok(rows)
        };
        remove().map_err(sql(&self.path))
    }

    /// Removes a document with its text. Its chunks must be gone already.
    pub fn remove_document(&self, document: u32) -> Result<()> {
        let remove = || -> rusqlite::Result<()> {
            self.connection.prepare_cached("DELETE FROM texts WHERE document = ?")?.execute([document])?;
            self.connection.prepare_cached("DELETE FROM documents WHERE id = ?")?.execute([document])?;
            Ok(())
        };
        remove().map_err(sql(&self.path))
    }

    pub fn folder(&self) -> &Path {
        &self.folder
    }

    pub fn revision(&self) -> Result<u64> {
        match self.meta::<i64>("revision")? {
            Some(revision) => Ok(revision as u64),
            None => unnamed_revision(&self.connection, &self.path),
        }
    }

    /// The sources that documents are of.
    pub fn sources(&self) -> Result<Vec<String>> {
        let select = || -> rusqlite::Result<Vec<String>> {
            let mut statement =
                self.connection.prepare_cached("SELECT DISTINCT source FROM documents ORDER BY source")?;
            statement.query_map([], |row| row.get(0))?.collect()
        };
        select().map_err(sql(&self.path))
    }

    /// What is known of a source's files, by path.
    pub fn known(&self, source: &str) -> Result<BTreeMap<String, Known>> {
        let select = || -> rusqlite::Result<BTreeMap<String, Known>> {
            let mut statement = self.connection.prepare_cached(
                "SELECT id, size, mtime_ns, checked_ns, hash, walked, parsed, path FROM documents WHERE source = ?",
            )?;
            let rows = statement.query_map([source], |row| Ok((row.get(7)?, known_row(row)?)))?;
            rows.collect()
        };
        select().map_err(sql(&self.path))
    }

    pub fn known_by_id(&self, id: Id) -> Result<Option<Known>> {
        self.connection
            .prepare_cached(
                "SELECT id, size, mtime_ns, checked_ns, hash, walked, parsed FROM documents WHERE doc_id = ?",
            )
            .and_then(|mut statement| statement.query_row([id.0], known_row).optional())
            .map_err(sql(&self.path))
    }

    /// What was said about a document by whoever brought it.
    pub fn given(&self, document: u32) -> Result<Given> {
        self.connection
            .prepare_cached("SELECT json_extract(front, '$.given') FROM documents WHERE id = ?")
            .and_then(|mut statement| statement.query_row([document], |row| given(row, 0)))
            .map_err(sql(&self.path))
    }

    /// The documents of a source that no walk finds.
    pub fn kept(&self, source: &str) -> Result<Vec<Kept>> {
        let select = || -> rusqlite::Result<Vec<Kept>> {
            let mut statement = self.connection.prepare_cached(
                "SELECT path, disk_path, json_extract(front, '$.given') FROM documents WHERE source = ? AND NOT walked ORDER BY id",
            )?;
            let rows = statement.query_map([source], |row| {
                Ok(Kept { path: row.get(0)?, disk_path: row.get(1)?, given: given(row, 2)? })
            })?;
            rows.collect()
        };
        select().map_err(sql(&self.path))
    }

    pub fn segments(&self) -> Result<Vec<SegmentEntry>> {
        read::segments(&self.connection).map_err(sql(&self.path))
    }

    /// Names exactly these segments, for the revision that the next `commit` publishes.
    pub fn replace_segments(&self, entries: &[SegmentEntry]) -> Result<()> {
        let replace = || -> rusqlite::Result<()> {
            self.connection.execute("DELETE FROM segments", [])?;
            let mut insert = self.connection.prepare_cached(
                "INSERT INTO segments(file, chunks, bytes, first_row, end_row, terms_grams, terms_words, tombstones)
                 VALUES (?,?,?,?,?,?,?,?)",
            )?;
            for entry in entries {
                insert.execute(params![
                    entry.file,
                    entry.chunks,
                    entry.bytes as i64,
                    entry.rows.start,
                    entry.rows.end,
                    entry.terms[0] as i64,
                    entry.terms[1] as i64,
                    entry.tombstones.to_bytes(),
                ])?;
            }
            Ok(())
        };
        replace().map_err(sql(&self.path))
    }

    pub fn has_chunk(&self, row: u32) -> Result<bool> {
        self.connection
            .prepare_cached("SELECT 1 FROM chunks WHERE id = ?")
            .and_then(|mut statement| statement.exists([row]))
            .map_err(sql(&self.path))
    }

    pub fn vector_segments(&self) -> Result<Vec<VectorEntry>> {
        read::vector_segments(&self.connection).map_err(sql(&self.path))
    }

    /// Names exactly these segments of vectors, in this order, for the revision that the next `commit` publishes.
    pub fn replace_vector_segments(&self, entries: &[VectorEntry]) -> Result<()> {
        let replace = || -> rusqlite::Result<()> {
            self.connection.execute("DELETE FROM vector_segments", [])?;
            let mut insert = self.connection.prepare_cached(
                "INSERT INTO vector_segments(file, model, dimensions, vectors, chunks, bytes, first_row, end_row, tombstones)
                 VALUES (?,?,?,?,?,?,?,?,?)",
            )?;
            for entry in entries {
                insert.execute(params![
                    entry.file,
                    entry.model,
                    entry.dimensions,
                    entry.vectors,
                    entry.chunks,
                    entry.bytes as i64,
                    entry.rows.start,
                    entry.rows.end,
                    entry.tombstones.to_bytes(),
                ])?;
            }
            Ok(())
        };
        replace().map_err(sql(&self.path))
    }

    pub fn set_meta(&self, key: &str, value: impl rusqlite::ToSql) -> Result<()> {
        let upsert = "INSERT INTO meta(key, value) VALUES (?1, ?2) ON CONFLICT(key) DO UPDATE SET value = ?2";
        self.connection
            .prepare_cached(upsert)
            .and_then(|mut s| s.execute(params![key, value]))
            .map_err(sql(&self.path))?;
        Ok(())
    }

    pub fn meta<T: rusqlite::types::FromSql>(&self, key: &str) -> Result<Option<T>> {
        self.connection
            .query_row("SELECT value FROM meta WHERE key = ?", [key], |row| row.get(0))
            .optional()
            .map_err(sql(&self.path))
    }

    /// Writes a segment file: temporary name, fsync, rename, fsync of the folder. Returns its name and size.
    pub fn write_segment(
        &self,
        extension: &str,
        write: impl FnOnce(&mut dyn Write) -> Result<()>,
    ) -> Result<(String, u64)> {
        let folder = segments_folder(&self.folder);
        let number = self.next_segment()?;
        let name = format!("{number:08}.{extension}");
        let (path, temporary) = (folder.join(&name), folder.join(format!("{name}.tmp")));
        let file = File::create(&temporary).map_err(Error::io("create segment", &temporary))?;
        let mut out = std::io::BufWriter::with_capacity(1 << 16, file);
        write(&mut out)?;
        let file = out.into_inner().map_err(|error| Error::io("write segment", &temporary)(error.into_error()))?;
        file.sync_all().map_err(Error::io("sync segment", &temporary))?;
        let bytes = file.metadata().map_err(Error::io("read size of segment", &temporary))?.len();
        std::fs::rename(&temporary, &path).map_err(Error::io("rename segment", &temporary))?;
        sync_folder(&folder)?;
        Ok((name, bytes))
    }

    /// Numbers are never used twice: a reader that still lists an old segment must not find another under its name.
    fn next_segment(&self) -> Result<i64> {
        let next = "INSERT INTO meta(key, value) VALUES ('next_segment', 1)
                    ON CONFLICT(key) DO UPDATE SET value = value + 1 RETURNING value";
        let in_store: i64 = self.connection.query_row(next, [], |row| row.get(0)).map_err(sql(&self.path))?;
        // A step that was rolled back or killed has left files whose numbers the store has forgotten.
        let on_disk = self.segment_files()?.iter().filter_map(|(_, number)| *number).max().unwrap_or(0);
        if on_disk >= in_store {
            self.set_meta("next_segment", on_disk + 1)?;
        }
        Ok(in_store.max(on_disk + 1))
    }

    fn segment_files(&self) -> Result<Vec<(PathBuf, Option<i64>)>> {
        let folder = segments_folder(&self.folder);
        let entries = std::fs::read_dir(&folder).map_err(Error::io("list segments", &folder))?;
        let mut files = Vec::new();
        for entry in entries {
            let path = entry.map_err(Error::io("list segments", &folder))?.path();
            let number = path.file_name().and_then(|name| name.to_str()?.split('.').next()?.parse().ok());
            files.push((path, number));
        }
        Ok(files)
    }

    /// Deletes files that no committed revision names. One that is still mapped elsewhere may refuse; it goes the
    /// next time.
    pub fn remove_unnamed_segments(&self) -> Result<()> {
        let mut named: Vec<String> = self.segments()?.into_iter().map(|entry| entry.file).collect();
        named.extend(self.vector_segments()?.into_iter().map(|entry| entry.file));
        for (path, _) in self.segment_files()? {
            let name = path.file_name().map(|name| name.to_string_lossy().into_owned());
            if name.is_some_and(|name| !named.contains(&name))
                && let Err(error) = std::fs::remove_file(&path)
                && !matches!(error.kind(), ErrorKind::NotFound | ErrorKind::PermissionDenied)
            {
                return Err(Error::io("remove segment", &path)(error));
            }
        }
        Ok(())
    }
}

struct Lock {
    file: File,
    info: PathBuf,
}

impl Lock {
    fn acquire(folder: &Path, wait: Duration, now: &str, stop: &AtomicBool) -> Result<(Lock, Option<Interrupted>)> {
        let path = folder.join("writer.lock");
        let info = folder.join("writer.info");
        let file = OpenOptions::new()
            .create(true)
            .truncate(false)
            .read(true)
            .write(true)
            .open(&path)
            .map_err(Error::io("open lock", &path))?;
        // A wait that no clock holds has no end.
        let deadline = Instant::now().checked_add(wait);
        let mut pause = Duration::from_millis(2);
        loop {
            match file.try_lock() {
                Ok(()) => break,
                Err(std::fs::TryLockError::WouldBlock)
                    if !stop.load(Ordering::Relaxed) && deadline.is_none_or(|deadline| Instant::now() < deadline) =>
                {
                    let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
                    std::thread::sleep(left.map_or(pause, |left| pause.min(left)));
                    pause = (pause * 2).min(Duration::from_millis(100));
                }
                Err(std::fs::TryLockError::WouldBlock) => {
                    let holder = std::fs::read_to_string(&info).ok().and_then(|text| Interrupted::parse(&text));
                    let cause = match holder {
                        Some(holder) => format!("process {} has been writing since {}", holder.pid, holder.since),
                        None => "another process is writing".to_owned(),
                    };
                    return Err(Error::StoreBusy { path: folder.to_owned(), cause });
                }
                Err(std::fs::TryLockError::Error(error)) => return Err(Error::io("lock", &path)(error)),
            }
        }
        let interrupted = std::fs::read_to_string(&info).ok().and_then(|text| Interrupted::parse(&text));
        std::fs::write(&info, format!("{} {now}", std::process::id())).map_err(Error::io("write", &info))?;
        Ok((Lock { file, info }, interrupted))
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        // Left behind, the file says that this writer died, which costs a needless notice and nothing else.
        drop(std::fs::remove_file(&self.info));
        drop(self.file.unlock());
    }
}

fn front(document: &NewDocument) -> String {
    let mut front = json!({"aliases": document.metadata.aliases, "extra": document.metadata.extra});
    if *document.given != Given::default() {
        front["given"] = json!(document.given);
    }
    front.to_string()
}

fn known_row(row: &Row) -> rusqlite::Result<Known> {
    Ok(Known {
        row: row.get(0)?,
        size: row.get::<_, i64>(1)? as u64,
        mtime_ns: row.get(2)?,
        checked_ns: row.get(3)?,
        hash: row.get(4)?,
        walked: row.get(5)?,
        parsed: row.get(6)?,
    })
}

fn join_headings(headings: &[String]) -> String {
    let mut joined = String::new();
    for (i, heading) in headings.iter().enumerate() {
        if i > 0 {
            joined.push(HEADING_SEPARATOR);
        }
        joined.extend(heading.chars().map(|c| if c.is_control() { ' ' } else { c }));
    }
    joined
}

fn create_private_folder(folder: &Path) -> Result<()> {
    let mut builder = std::fs::DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(folder).map_err(Error::io("create data folder", folder))
}

/// Makes a rename in the folder durable. Windows has no such call and needs none.
fn sync_folder(folder: &Path) -> Result<()> {
    if cfg!(unix) {
        File::open(folder).and_then(|file| file.sync_all()).map_err(Error::io("sync folder", folder))?;
    }
    Ok(())
}
