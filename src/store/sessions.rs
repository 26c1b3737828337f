//! Conversations with `ask`: what was asked and answered, in a database of its own beside the index.
//!
//! It is apart because an ingest holds the store's one writer for as long as it takes, and a turn must not wait for it;
//! nor is a conversation lost when the index is made anew. Each turn is one transaction, so turns of two processes land
//! one behind the other, whole. Everything is bounded: turns of a session, its bytes, sessions, their age.

use std::path::{Path, PathBuf};
use std::time::Duration;

use rusqlite::{Connection, OptionalExtension, TransactionBehavior};

use super::sql;
use crate::error::{Error, Result};

/// A question as it was asked, as it was understood, and its answer; empty where there was none.
#[derive(Debug, Clone, PartialEq)]
pub struct Exchange {
    pub question: String,
    pub stand_alone: String,
    pub answer: String,
}

#[derive(Debug, Clone, PartialEq)]
pub struct SessionRow {
    pub id: String,
    pub created_ns: i64,
    pub used_ns: i64,
    pub turns: u32,
    pub bytes: i64,
}

pub struct Sessions {
    connection: Connection,
    path: PathBuf,
}

/// The earliest turns of a session go first, and the sessions that were used longest ago.
pub const MAX_TURNS: usize = 20;
pub const MAX_BYTES: i64 = 64 << 10;
pub const MAX_SESSIONS: usize = 100;
pub const MAX_AGE_NS: i64 = 90 * 86_400 * 1_000_000_000;

/// "kbls": tells our database from any other SQLite file.
const APPLICATION_ID: i64 = 0x6B62_6C73;

const FORMAT: i64 = 1;

const SCHEMA: &str = "
CREATE TABLE sessions(id TEXT PRIMARY KEY, created_ns INTEGER NOT NULL, used_ns INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE turns(
    session TEXT NOT NULL,
    number INTEGER NOT NULL,
    question TEXT NOT NULL,
    stand_alone TEXT NOT NULL,
    answer TEXT NOT NULL,
    PRIMARY KEY(session, number)
) WITHOUT ROWID;
";

pub fn sessions_path(folder: &Path) -> PathBuf {
    folder.join("sessions.sqlite")
}

impl Sessions {
    /// None if nothing was ever kept there.
    pub fn open(folder: &Path) -> Result<Option<Sessions>> {
        let path = sessions_path(folder);
        match path.try_exists().map_err(Error::io("open sessions", &path))? {
            true => Sessions::at(path).map(Some),
            false => Ok(None),
        }
    }

    /// Makes the database if there is none.
    pub fn create(folder: &Path) -> Result<Sessions> {
        std::fs::create_dir_all(folder).map_err(Error::io("create data folder", folder))?;
        Sessions::at(sessions_path(folder))
    }

    fn at(path: PathBuf) -> Result<Sessions> {
        let mut connection = Connection::open(&path).map_err(sql(&path))?;
        prepare(&mut connection).map_err(sql(&path))?;
        let number = |pragma: &str| connection.pragma_query_value(None, pragma, |row| row.get::<_, i64>(0));
        let found = (number("application_id").map_err(sql(&path))?, number("user_version").map_err(sql(&path))?);
        if found != (APPLICATION_ID, FORMAT) {
            let cause = format!("it holds no sessions of format {FORMAT}; move it away to begin new ones");
            return Err(Error::StoreCorrupt { path, cause });
        }
        Ok(Sessions { connection, path })
    }

    /// The turns of a session, the first first; none of one that is not there or too old.
    pub fn turns(&self, id: &str, now_ns: i64) -> Result<Vec<Exchange>> {
        let read = || {
            let mut statement = self.connection.prepare(
                "SELECT question, stand_alone, answer FROM turns JOIN sessions ON sessions.id = turns.session
                 WHERE session = ?1 AND used_ns > ?2 ORDER BY number",
            )?;
            let rows = statement.query_map((id, now_ns - MAX_AGE_NS), |row| {
                Ok(Exchange { question: row.get(0)?, stand_alone: row.get(1)?, answer: row.get(2)? })
            })?;
            rows.collect::<rusqlite::Result<_>>()
        };
        read().map_err(sql(&self.path))
    }

    /// Adds a turn behind all that are there by now, and drops what is over the bounds.
    pub fn add(&mut self, id: &str, turn: &Exchange, now_ns: i64) -> Result<()> {
        let path = self.path.clone();
        self.write(|tx| {
            tx.execute("DELETE FROM sessions WHERE used_ns <= ?1", [now_ns - MAX_AGE_NS])?;
            tx.execute("DELETE FROM turns WHERE session NOT IN (SELECT id FROM sessions)", [])?;
            tx.execute(
                "INSERT INTO sessions VALUES(?1, ?2, ?2) ON CONFLICT(id) DO UPDATE SET used_ns = max(used_ns, ?2)",
                (id, now_ns),
            )?;
            tx.execute(
                "INSERT INTO turns SELECT ?1, coalesce(max(number), 0) + 1, ?2, ?3, ?4 FROM turns WHERE session = ?1",
                (id, &turn.question, &turn.stand_alone, &turn.answer),
            )?;
            // From the last turn back: those beyond the count or the bytes go.
            let mut statement = tx.prepare(
                "SELECT number, length(CAST(question AS BLOB)) + length(CAST(stand_alone AS BLOB)) + length(CAST(answer AS BLOB))
                 FROM turns WHERE session = ?1 ORDER BY number DESC",
            )?;
            let sizes: Vec<(i64, i64)> =
                statement.query_map([id], |row| Ok((row.get(0)?, row.get(1)?)))?.collect::<rusqlite::Result<_>>()?;
            let mut bytes = 0;
            let fits = |(place, (_, size)): &(usize, &(i64, i64))| {
                bytes += size;
                *place == 0 || (*place < MAX_TURNS && bytes <= MAX_BYTES)
            };
            if let Some((_, (oldest, _))) = sizes.iter().enumerate().take_while(fits).last() {
                tx.execute("DELETE FROM turns WHERE session = ?1 AND number < ?2", (id, oldest))?;
            }
            tx.execute(
                "DELETE FROM sessions WHERE id NOT IN (SELECT id FROM sessions ORDER BY used_ns DESC, id LIMIT ?1)",
                [MAX_SESSIONS as i64],
            )?;
            tx.execute("DELETE FROM turns WHERE session NOT IN (SELECT id FROM sessions)", [])?;
            Ok(())
        })
        .map_err(sql(&path))
    }

    /// The last used first.
    pub fn list(&self, now_ns: i64) -> Result<Vec<SessionRow>> {
        let read = || {
            let mut statement = self.connection.prepare(
                "SELECT id, created_ns, used_ns, count(number), coalesce(sum(length(CAST(question AS BLOB)) +
                     length(CAST(stand_alone AS BLOB)) + length(CAST(answer AS BLOB))), 0)
                 FROM sessions LEFT JOIN turns ON session = id WHERE used_ns > ?1
                 GROUP BY id ORDER BY used_ns DESC, id",
            )?;
            let rows = statement.query_map([now_ns - MAX_AGE_NS], |row| {
                Ok(SessionRow {
                    id: row.get(0)?,
                    created_ns: row.get(1)?,
                    used_ns: row.get(2)?,
                    turns: row.get(3)?,
                    bytes: row.get(4)?,
                })
            })?;
            rows.collect::<rusqlite::Result<_>>()
        };
        read().map_err(sql(&self.path))
    }

    /// False if there was none.
    pub fn forget(&mut self, id: &str) -> Result<bool> {
        let path = self.path.clone();
        self.write(|tx| {
            tx.execute("DELETE FROM turns WHERE session = ?1", [id])?;
            tx.execute("DELETE FROM sessions WHERE id = ?1", [id])
        })
        .map(|forgotten| forgotten > 0)
        .map_err(sql(&path))
    }

    fn write<T>(&mut self, write: impl FnOnce(&Connection) -> rusqlite::Result<T>) -> rusqlite::Result<T> {
        let tx = self.connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        let value = write(&tx)?;
        tx.commit()?;
        Ok(value)
    }
}

fn prepare(connection: &mut Connection) -> rusqlite::Result<()> {
    connection.busy_timeout(Duration::from_secs(5))?;
    connection.pragma_update(None, "secure_delete", "on")?;
    let tables = |connection: &Connection| {
        let query = "SELECT 1 FROM sqlite_schema LIMIT 1";
        connection.query_row(query, [], |_| Ok(())).optional().map(|found| found.is_some())
    };
    if tables(connection)? {
        return Ok(());
    }
    // Two processes may find it empty at once; the second finds the tables of the first.
    let tx = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    if !tables(&tx)? {
        tx.execute_batch(SCHEMA)?;
        tx.pragma_update(None, "application_id", APPLICATION_ID)?;
        tx.pragma_update(None, "user_version", FORMAT)?;
    }
    tx.commit()
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    struct Folder(PathBuf);

    impl Folder {
        fn new() -> Folder {
            static COUNT: AtomicUsize = AtomicUsize::new(0);
            let name = format!("kebab-sessions-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
            Folder(std::env::temp_dir().join(name))
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            if !std::thread::panicking() {
                std::fs::remove_dir_all(&self.0).unwrap();
            }
        }
    }

    fn turn(question: &str) -> Exchange {
        Exchange { question: question.into(), stand_alone: question.into(), answer: "yes [1]".into() }
    }

    #[test]
    fn turns_are_kept_in_order_and_forgotten() {
        let folder = Folder::new();
        assert!(Sessions::open(&folder.0).unwrap().is_none());
        let mut sessions = Sessions::create(&folder.0).unwrap();
        sessions.add("a", &turn("one"), 1).unwrap();
        sessions.add("b", &turn("other"), 2).unwrap();
        sessions.add("a", &turn("two"), 3).unwrap();
        let reopened = Sessions::open(&folder.0).unwrap().unwrap();
        assert_eq!(reopened.turns("a", 4).unwrap(), [turn("one"), turn("two")]);
        assert_eq!(reopened.turns("c", 4).unwrap(), []);
        let listed: Vec<_> = reopened.list(4).unwrap().into_iter().map(|row| (row.id, row.turns, row.bytes)).collect();
        assert_eq!(listed, [("a".into(), 2, 26), ("b".into(), 1, 17)]);
        assert!(sessions.forget("a").unwrap() && !sessions.forget("a").unwrap());
        assert_eq!(sessions.turns("a", 4).unwrap(), []);
    }

    #[test]
    fn everything_is_bounded() {
        let folder = Folder::new();
        let mut sessions = Sessions::create(&folder.0).unwrap();
        for number in 0..MAX_TURNS + 5 {
            sessions.add("long", &turn(&number.to_string()), 1).unwrap();
        }
        let turns = sessions.turns("long", 1).unwrap();
        assert_eq!((turns.len(), turns[0].question.as_str()), (MAX_TURNS, "5"));
        // A turn alone is kept whatever its size; all before it must go.
        sessions.add("long", &turn(&"x".repeat(MAX_BYTES as usize)), 1).unwrap();
        assert_eq!(sessions.turns("long", 1).unwrap().len(), 1);
        for number in 0..MAX_SESSIONS + 3 {
            sessions.add(&format!("s{number}"), &turn("q"), 10 + number as i64).unwrap();
        }
        let listed = sessions.list(500).unwrap();
        assert_eq!((listed.len(), listed[0].id.as_str()), (MAX_SESSIONS, "s102"));
        assert_eq!(sessions.turns("long", 500).unwrap(), []);
        let later = 600 + MAX_AGE_NS;
        assert_eq!((sessions.list(later).unwrap().len(), sessions.turns("s102", later).unwrap().len()), (0, 0));
        sessions.add("new", &turn("q"), later).unwrap();
        assert_eq!(sessions.list(0).unwrap().len(), 1);
    }

    #[test]
    fn two_writers_lose_nothing() {
        let folder = Folder::new();
        let write = |name: &'static str| {
            let folder = folder.0.clone();
            std::thread::spawn(move || {
                for _ in 0..8 {
                    Sessions::create(&folder).unwrap().add("shared", &turn(name), 1).unwrap();
                }
            })
        };
        [write("one"), write("two")].into_iter().for_each(|writer| writer.join().unwrap());
        let turns = Sessions::open(&folder.0).unwrap().unwrap().turns("shared", 1).unwrap();
        let of = |name: &str| turns.iter().filter(|turn| turn.question == name).count();
        assert_eq!((of("one"), of("two")), (8, 8));
    }

    #[test]
    fn another_database_is_refused() {
        let folder = Folder::new();
        std::fs::create_dir_all(&folder.0).unwrap();
        Connection::open(sessions_path(&folder.0)).unwrap().execute_batch("CREATE TABLE t(a)").unwrap();
        assert_eq!(Sessions::create(&folder.0).err().unwrap().code(), "store_corrupt");
        std::fs::write(sessions_path(&folder.0), "no database at all, but long enough to look at".repeat(50)).unwrap();
        assert_eq!(Sessions::open(&folder.0).err().unwrap().code(), "store_corrupt");
    }
}
