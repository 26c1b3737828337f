//! The sessions that are kept: listing them and forgetting one.

use jiff::Timestamp;

use super::input::check_session;
use crate::error::{Error, Result};
use crate::ingest::nanoseconds;
use crate::kb::Kb;
use crate::store::Sessions;
use crate::tools::search::time_text;
use crate::wire::{AskSession, AskSessions, AskSessionsV1};

/// Forgets the session named, if one is, and lists what is left.
pub fn run(kb: &Kb, forget: Option<&str>) -> Result<AskSessions> {
    let mut sessions = Sessions::open(kb.data_dir())?;
    let mut forgotten = 0;
    if let Some(id) = forget {
        check_session(id)?;
        if kb.config.readonly {
            return Err(Error::ReadonlyMode { operation: "forgetting a session" });
        }
        let gone = sessions.as_mut().map(|sessions| sessions.forget(id)).transpose()?.unwrap_or(false);
        if !gone {
            let hint = "List them: `kebab-lite ask --list-sessions`.";
            return Err(Error::input_hint("session_id", format!("there is no session {id:?}"), hint));
        }
        forgotten = 1;
    }
    let listed = sessions.map(|sessions| sessions.list(nanoseconds(Timestamp::now()))).transpose()?;
    let shown = listed.unwrap_or_default().into_iter().map(|row| AskSession {
        session_id: row.id,
        created_at: time_text(row.created_ns),
        used_at: time_text(row.used_ns),
        turns: row.turns,
        bytes: row.bytes,
    });
    Ok(AskSessions { schema_version: AskSessionsV1, sessions: shown.collect(), forgotten })
}
