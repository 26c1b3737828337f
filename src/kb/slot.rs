//! A thing that is loaded once, on first use, in a thread of its own: whoever asks waits as long as he likes.
//!
//! Refuses: giving up for good. What failed is tried again after a while; an endpoint may have been started since.

use std::panic::{self, AssertUnwindSafe};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use crate::error::{Error, Result};

/// What there is of a thing that is loaded on first use.
pub enum Slot<T> {
    /// The configuration names none.
    Off,
    Loading,
    Ready(Arc<T>),
    Failed(Error),
}

pub(super) struct Loader<T> {
    state: Mutex<State<T>>,
    changed: Condvar,
}

enum State<T> {
    Untried,
    Loading,
    Ready(Arc<T>),
    Failed { error: Error, at: Instant },
}

/// Before that, an error is answered as it was.
const RETRY_AFTER: Duration = Duration::from_secs(10);

impl<T> Default for Loader<T> {
    fn default() -> Self {
        Loader { state: Mutex::new(State::Untried), changed: Condvar::new() }
    }
}

impl<T: Send + Sync + 'static> Loader<T> {
    /// Has `load` run where nothing is loaded or being loaded, and waits for the outcome.
    pub fn get(self: &Arc<Self>, load: impl FnOnce() -> Result<T> + Send + 'static, wait: Duration) -> Slot<T> {
        let until = Instant::now() + wait;
        let mut state = self.locked();
        let start = match &*state {
            State::Untried => true,
            State::Failed { at, .. } => at.elapsed() >= RETRY_AFTER,
            State::Loading | State::Ready(_) => false,
        };
        if start {
            *state = State::Loading;
            let own = self.clone();
            let spawned = thread::Builder::new().name("model loader".into()).spawn(move || {
                let outcome = panic::catch_unwind(AssertUnwindSafe(load));
                let cause = "loading a model panicked".to_owned();
                own.settle(outcome.unwrap_or(Err(Error::Internal { cause })));
            });
            if let Err(error) = spawned {
                let error = Error::Internal { cause: format!("no thread for loading a model: {error}") };
                *state = State::Failed { error, at: Instant::now() };
            }
        }
        loop {
            let left = until.saturating_duration_since(Instant::now());
            match &*state {
                State::Ready(thing) => return Slot::Ready(thing.clone()),
                State::Failed { error, .. } => return Slot::Failed(error.clone()),
                _ if left.is_zero() => return Slot::Loading,
                _ => state = self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0,
            }
        }
    }

    fn settle(&self, outcome: Result<T>) {
        *self.locked() = match outcome {
            Ok(thing) => State::Ready(Arc::new(thing)),
            Err(error) => State::Failed { error, at: Instant::now() },
        };
        self.changed.notify_all();
    }

    fn locked(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[test]
    fn it_is_loaded_once_and_waited_for_no_longer_than_wanted() {
        let loader = Arc::new(Loader::default());
        let loads = Arc::new(AtomicUsize::new(0));
        let load = || {
            let loads = loads.clone();
            move || {
                loads.fetch_add(1, Ordering::Relaxed);
                thread::sleep(Duration::from_millis(100));
                Ok(7)
            }
        };
        assert!(matches!(loader.get(load(), Duration::ZERO), Slot::Loading));
        assert!(matches!(loader.get(load(), Duration::ZERO), Slot::Loading));
        let Slot::Ready(seven) = loader.get(load(), Duration::from_secs(60)) else { panic!("not loaded") };
        assert_eq!((*seven, loads.load(Ordering::Relaxed)), (7, 1));
    }

    #[test]
    fn a_failure_and_a_panic_are_told() {
        let wait = Duration::from_secs(60);
        let failing = Arc::new(Loader::<u32>::default());
        for _ in 0..2 {
            let Slot::Failed(error) = failing.get(|| Err(Error::Cancelled), wait) else { panic!("no failure") };
            assert_eq!(error.to_string(), "cancelled");
        }
        let panicking = Arc::new(Loader::<u32>::default());
        let Slot::Failed(error) = panicking.get(|| panic!("on purpose"), wait) else { panic!("no failure") };
        assert_eq!(error.code(), "internal");
    }
}
