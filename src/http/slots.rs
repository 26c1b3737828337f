//! The connections there are, and which of them gives way when there are too many: whoever has shown no token and still
//! owes a request, before a client that is merely slow, before one that idles. One that waits for its answer stays.
//!
//! So a thousand connections that each drip a byte a second hold no place that anybody else wants.

use std::collections::HashMap;
use std::net::{Shutdown, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

pub const MOST: usize = 64;

pub struct Slots {
    table: Mutex<Table>,
}

struct Table {
    slots: HashMap<u64, Slot>,
    next: u64,
    /// When a client with the token was last answered.
    used: Instant,
}

struct Slot {
    stream: Arc<TcpStream>,
    phase: Phase,
    since: Instant,
    /// It has shown the token.
    trusted: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// Nothing has come yet.
    New,
    /// The rest of a request is awaited.
    Reading,
    /// Between two requests.
    Idle,
    /// A request is being answered.
    Busy,
    /// What is left unread is thrown away.
    Closing,
}

/// A place among the connections, given back when dropped.
pub struct Place {
    slots: Arc<Slots>,
    number: u64,
}

/// A client that opens many connections writes to the first of them after it has opened the last.
const FRESH: Duration = Duration::from_millis(50);
/// Who has begun a head has it all at hand: what is still missing then is being held back.
const BEGUN: Duration = Duration::from_millis(5);
const STALLED: Duration = Duration::from_millis(25);
const LINGERING: Duration = Duration::from_secs(1);

impl Slots {
    pub fn new(now: Instant) -> Arc<Slots> {
        let table = Table { slots: HashMap::new(), next: 0, used: now };
        Arc::new(Slots { table: Mutex::new(table) })
    }

    /// None where every place is taken by somebody who may keep it.
    pub fn take(self: &Arc<Slots>, stream: &Arc<TcpStream>, now: Instant) -> Option<Place> {
        let mut table = self.locked();
        if table.slots.len() >= MOST {
            let evicted =
                table.slots.iter().filter_map(|(number, slot)| Some((slot.rank(now)?, slot.since, *number))).min();
            let slot = table.slots.remove(&evicted?.2)?;
            // Its thread is woken by this; a socket that is gone already needs no more.
            slot.stream.shutdown(Shutdown::Both).ok();
        }
        let number = table.next;
        table.next += 1;
        let slot = Slot { stream: stream.clone(), phase: Phase::New, since: now, trusted: false };
        table.slots.insert(number, slot);
        Some(Place { slots: self.clone(), number })
    }

    /// Since when no client with the token has wanted anything; None while one does.
    pub fn quiet_since(&self) -> Option<Instant> {
        let table = self.locked();
        let busy = table.slots.values().any(|slot| slot.phase == Phase::Busy);
        (!busy).then_some(table.used)
    }

    fn locked(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Slot {
    /// Who has to go first has the lowest rank; who may stay has none.
    fn rank(&self, now: Instant) -> Option<u8> {
        let age = now.saturating_duration_since(self.since);
        match (self.phase, self.trusted) {
            (Phase::Busy, _) => None,
            (Phase::Closing, _) => Some(0),
            (Phase::Reading, false) => (age >= BEGUN).then_some(1),
            (Phase::New, _) => (age >= FRESH).then_some(2),
            (Phase::Idle, false) => (age >= FRESH).then_some(2),
            (Phase::Reading, true) => (age >= STALLED).then_some(3),
            (Phase::Idle, true) => (age >= LINGERING).then_some(4),
        }
    }
}

impl Place {
    pub fn enter(&self, phase: Phase) {
        let now = Instant::now();
        let mut table = self.slots.locked();
        let Some(slot) = table.slots.get_mut(&self.number) else { return };
        let answered = slot.trusted && slot.phase == Phase::Busy;
        (slot.phase, slot.since) = (phase, now);
        if answered {
            table.used = now;
        }
    }

    /// The client has shown the token.
    pub fn trust(&self) {
        if let Some(slot) = self.slots.locked().slots.get_mut(&self.number) {
            slot.trusted = true;
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut table = self.slots.locked();
        if let Some(slot) = table.slots.remove(&self.number)
            && slot.trusted
        {
            table.used = Instant::now();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn the_least_deserving_gives_way() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = || Arc::new(TcpStream::connect(listener.local_addr().unwrap()).unwrap());
        let start = Instant::now();
        let slots = Slots::new(start);
        let places: Vec<Place> = (0..MOST).map(|_| slots.take(&stream(), start).unwrap()).collect();
        let taken = |place: &Place| slots.locked().slots.contains_key(&place.number);
        // Everybody has only just come, and may be about to write.
        assert!(slots.take(&stream(), start + FRESH / 2).is_none());
        places.iter().for_each(|place| place.enter(Phase::Busy));
        let later = Instant::now() + Duration::from_secs(60);
        assert!(slots.take(&stream(), later).is_none());
        assert_eq!(slots.quiet_since(), None);

        places[5].trust();
        places[5].enter(Phase::Idle);
        places[6].trust();
        places[6].enter(Phase::Reading);
        places[7].enter(Phase::Idle);
        places[8].enter(Phase::Reading);
        places[9].enter(Phase::Closing);
        places[10].enter(Phase::New);
        for expected in [9, 8, 7, 10, 6, 5] {
            let newcomer = slots.take(&stream(), later).unwrap();
            newcomer.enter(Phase::Busy);
            assert!(!taken(&places[expected]), "{expected}");
            assert_eq!(slots.locked().slots.len(), MOST);
            std::mem::forget(newcomer);
        }
        assert!(slots.take(&stream(), later).is_none());
    }
}
