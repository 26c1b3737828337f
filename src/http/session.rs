//! Sessions of the handshake revisions: what a client agreed on, and its requests under way. An id names a session and
//! proves nothing; the token does that.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::error::Result;
use crate::rendezvous::random_text;
use crate::rpc::message::Id;

#[derive(Default)]
pub struct Sessions {
    all: Mutex<HashMap<String, Entry>>,
}

struct Entry {
    session: Arc<Session>,
    used: Instant,
}

pub struct Session {
    pub revision: &'static str,
    requests: Mutex<Vec<Request>>,
}

struct Request {
    id: Id,
    stop: Arc<AtomicBool>,
}

/// Sessions at most; one more ends the one that was used least lately.
const MOST: usize = 64;

/// A session that nobody has used for this long is over.
const IDLE: Duration = Duration::from_secs(30 * 60);

impl Sessions {
    /// Begins a session and names it.
    pub fn mint(&self, revision: &'static str, now: Instant) -> Result<String> {
        let name = random_text::<24>()?;
        let mut all = self.locked();
        if all.len() >= MOST {
            let oldest = all.iter().min_by_key(|(_, entry)| entry.used).map(|(name, _)| name.clone());
            oldest.and_then(|name| all.remove(&name));
        }
        let session = Arc::new(Session { revision, requests: Mutex::default() });
        all.insert(name.clone(), Entry { session, used: now });
        Ok(name)
    }

    /// None if it never was or is over.
    pub fn find(&self, name: &str, now: Instant) -> Option<Arc<Session>> {
        let mut all = self.locked();
        let entry = all.get_mut(name).filter(|entry| now.saturating_duration_since(entry.used) < IDLE)?;
        entry.used = now;
        Some(entry.session.clone())
    }

    /// False if there is none of this name.
    pub fn end(&self, name: &str) -> bool {
        self.locked().remove(name).is_some()
    }

    /// Forgets those that are over.
    pub fn sweep(&self, now: Instant) {
        self.locked().retain(|_, entry| now.saturating_duration_since(entry.used) < IDLE);
    }

    fn locked(&self) -> MutexGuard<'_, HashMap<String, Entry>> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Session {
    /// A request is under way; the flag is set when it is cancelled.
    pub fn begin(&self, id: Id, stop: Arc<AtomicBool>) {
        self.locked().push(Request { id, stop });
    }

    pub fn finish(&self, stop: &Arc<AtomicBool>) {
        self.locked().retain(|request| !Arc::ptr_eq(&request.stop, stop));
    }

    pub fn cancel(&self, id: &Id) {
        for request in self.locked().iter().filter(|request| request.id.same_as(id)) {
            request.stop.store(true, Ordering::Relaxed);
        }
    }

    fn locked(&self) -> MutexGuard<'_, Vec<Request>> {
        self.requests.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sessions_end_by_themselves_by_request_and_by_number() {
        let sessions = Sessions::default();
        let start = Instant::now();
        let after = |minutes: u64| start + Duration::from_secs(60 * minutes);
        let first = sessions.mint("2025-06-18", start).unwrap();
        assert_eq!(first.len(), 32);
        assert_eq!(sessions.find(&first, after(29)).unwrap().revision, "2025-06-18");
        assert!(sessions.find(&first, after(58)).is_some());
        assert!(sessions.find(&first, after(88)).is_none());
        sessions.sweep(after(88));
        assert_eq!(sessions.locked().len(), 0);

        let second = sessions.mint("2025-06-18", start).unwrap();
        assert!(sessions.end(&second) && !sessions.end(&second));
        assert!(sessions.find(&second, start).is_none());

        let names: Vec<String> = (0..64).map(|minute| sessions.mint("2025-06-18", after(minute)).unwrap()).collect();
        assert!(sessions.find(&names[0], after(0)).is_some());
        // The first has been used since; the second is used at its own time, which is the oldest but one.
        sessions.find(&names[0], after(29));
        let last = sessions.mint("2025-06-18", after(63)).unwrap();
        assert_eq!(sessions.locked().len(), 64);
        let left = |name: &String| sessions.locked().contains_key(name);
        assert!(!left(&names[1]) && left(&names[0]) && left(&names[2]) && left(&last));
    }

    #[test]
    fn a_cancelled_request_is_told_so_and_others_are_not() {
        let session = Session { revision: "2025-06-18", requests: Mutex::default() };
        let id = |text: &str| Id::token(&serde_json::value::RawValue::from_string(text.into()).unwrap()).unwrap();
        let (one, other) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
        session.begin(id("1"), one.clone());
        session.begin(id("\"1\""), other.clone());
        session.cancel(&id("1"));
        session.cancel(&id("7"));
        assert!(one.load(Ordering::Relaxed) && !other.load(Ordering::Relaxed));
        session.finish(&other);
        session.cancel(&id("\"1\""));
        assert!(!other.load(Ordering::Relaxed));
    }
}
