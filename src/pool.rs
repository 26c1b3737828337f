//! Worker threads with a bounded queue. Slow work has a queue of its own, and one worker never takes from it, so that
//! quick work always has somebody. Work that waits for a server elsewhere has workers of its own: a model takes minutes,
//! and an ingest is not to stand behind it.
//!
//! Dropping the pool lets the workers end after the jobs that are queued.

use std::any::Any;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use crossbeam_channel::{Receiver, Sender, TrySendError, bounded, select};

pub type Job = Box<dyn FnOnce() + Send>;

pub struct Pool {
    quick: Sender<Job>,
    slow: Sender<Job>,
    waiting: Sender<Job>,
    /// Workers that are doing a job.
    at_work: Arc<AtomicUsize>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lane {
    Quick,
    Slow,
    /// Spends its time waiting, not working.
    Waiting,
}

/// A model that is asked more at once answers all of them later.
const WAITERS: usize = 4;

/// There is no room in the queue.
#[derive(Debug, PartialEq, Eq)]
pub struct Full;

impl Pool {
    /// Starts `workers` threads, at least two, and those that wait.
    pub fn start(workers: usize, capacity: usize) -> io::Result<Pool> {
        let (quick, quick_jobs) = bounded(capacity);
        let (slow, slow_jobs) = bounded(capacity);
        let (waiting, waiting_jobs) = bounded::<Job>(capacity);
        let at_work = Arc::new(AtomicUsize::new(0));
        for number in 0..workers.max(2) {
            let (quick_jobs, slow_jobs, at_work) = (quick_jobs.clone(), slow_jobs.clone(), at_work.clone());
            let work = move || match number {
                0 => quick_jobs.into_iter().for_each(|job| run(job, &at_work)),
                _ => work_on_both(&quick_jobs, &slow_jobs, &at_work),
            };
            thread::Builder::new().name(format!("worker {number}")).spawn(work)?;
        }
        for number in 0..WAITERS {
            let (jobs, at_work) = (waiting_jobs.clone(), at_work.clone());
            let work = move || jobs.into_iter().for_each(|job| run(job, &at_work));
            thread::Builder::new().name(format!("waiter {number}")).spawn(work)?;
        }
        Ok(Pool { quick, slow, waiting, at_work })
    }

    /// True while a job waits or is being done.
    pub fn is_busy(&self) -> bool {
        let queues = [&self.quick, &self.slow, &self.waiting];
        queues.iter().any(|queue| !queue.is_empty()) || self.at_work.load(Ordering::Relaxed) > 0
    }

    /// As many workers as this machine has cores, within reason.
    pub fn size() -> usize {
        thread::available_parallelism().map_or(2, |cores| cores.get().clamp(2, 16))
    }

    pub fn submit(&self, lane: Lane, job: Job) -> Result<(), Full> {
        let queue = match lane {
            Lane::Quick => &self.quick,
            Lane::Slow => &self.slow,
            Lane::Waiting => &self.waiting,
        };
        match queue.try_send(job) {
            Ok(()) => Ok(()),
            // Disconnected would mean that no worker is left, and workers outlive the pool.
            Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) => Err(Full),
        }
    }
}

/// Runs `work`; a panic becomes its message.
pub fn guarded<T>(work: impl FnOnce() -> T) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(work)).map_err(|panic| message(&*panic))
}

fn message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "a panic without a message".into())
}

fn work_on_both(quick: &Receiver<Job>, slow: &Receiver<Job>, at_work: &AtomicUsize) {
    loop {
        let next = quick.try_recv().or_else(|_| {
            select! {
                recv(quick) -> job => job,
                recv(slow) -> job => job,
            }
        });
        match next {
            Ok(job) => run(job, at_work),
            // One queue is closed: the pool was dropped. What is left in the other is still done.
            Err(_) => return quick.iter().chain(slow.iter()).for_each(|job| run(job, at_work)),
        }
    }
}

/// A worker outlives whatever its jobs do.
fn run(job: Job, at_work: &AtomicUsize) {
    at_work.fetch_add(1, Ordering::Relaxed);
    // A job that can fail catches its own panics and answers; nothing is left to be told here.
    guarded(job).ok();
    at_work.fetch_sub(1, Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(10);

    #[test]
    fn a_panic_is_a_value_and_leaves_the_worker_alive() {
        assert_eq!(guarded(|| 4), Ok(4));
        assert_eq!(guarded(|| panic!("slipped")), Err::<(), _>("slipped".into()));
        assert_eq!(guarded(|| panic!("{} slipped", 2)), Err::<(), _>("2 slipped".into()));

        let pool = Pool::start(2, 100).unwrap();
        let (done, answers) = bounded(100);
        for _ in 0..50 {
            pool.submit(Lane::Quick, Box::new(|| panic!("slipped"))).unwrap();
        }
        pool.submit(Lane::Quick, Box::new(move || done.send("still here").unwrap())).unwrap();
        assert_eq!(answers.recv_timeout(PATIENCE), Ok("still here"));
    }

    #[test]
    fn slow_work_leaves_a_worker_to_the_quick() {
        let pool = Pool::start(2, 100).unwrap();
        let (release, gate) = bounded::<()>(0);
        for _ in 0..10 {
            let gate = gate.clone();
            pool.submit(Lane::Slow, Box::new(move || gate.recv().unwrap_or(()))).unwrap();
        }
        let (done, answers) = bounded(1);
        pool.submit(Lane::Quick, Box::new(move || done.send("quick").unwrap())).unwrap();
        assert_eq!(answers.recv_timeout(PATIENCE), Ok("quick"));
        drop(release);
    }

    #[test]
    fn work_that_waits_holds_up_nothing() {
        let pool = Pool::start(2, 100).unwrap();
        let (release, gate) = bounded::<()>(0);
        for _ in 0..10 {
            let gate = gate.clone();
            pool.submit(Lane::Waiting, Box::new(move || gate.recv().unwrap_or(()))).unwrap();
        }
        let (done, answers) = bounded(2);
        for lane in [Lane::Slow, Lane::Quick] {
            let done = done.clone();
            pool.submit(lane, Box::new(move || done.send(lane).unwrap())).unwrap();
            assert_eq!(answers.recv_timeout(PATIENCE), Ok(lane));
        }
        drop(release);
    }

    #[test]
    fn a_full_queue_refuses_and_what_is_queued_is_done_after_the_end() {
        let pool = Pool::start(2, 2).unwrap();
        let (release, gate) = bounded::<()>(0);
        let (done, answers) = bounded(100);
        let mut taken = 0;
        for _ in 0..10 {
            let (gate, done) = (gate.clone(), done.clone());
            let job = Box::new(move || {
                gate.recv().unwrap_or(());
                done.send(()).unwrap();
            });
            match pool.submit(Lane::Slow, job) {
                Ok(()) => taken += 1,
                Err(Full) => break,
            }
        }
        assert!((2..=3).contains(&taken), "{taken}");
        drop(pool);
        drop(release);
        for _ in 0..taken {
            assert_eq!(answers.recv_timeout(PATIENCE), Ok(()));
        }
    }
}
