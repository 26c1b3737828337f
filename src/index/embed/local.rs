//! A model on this machine: one session answers queries, and for the time of a bulk there is one a core.

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;

use super::runtime::{Answer, Graph, Net, Runtime, runtime};
use super::spec::{self, Pooling, Spec};
use super::tokens::Tokens;
use super::unit;
use crate::config::RuntimeLibrary;

pub struct Local {
    pub spec: Spec,
    pub runtime: &'static Runtime,
    graph: Graph<'static>,
    output: String,
    tokens: Tokens,
    /// `run` wants the session for itself.
    queries: Mutex<Net>,
}

/// Sessions beside the one for queries, opened when they are worth it.
pub struct Sessions<'e> {
    local: &'e Local,
    nets: Vec<Option<Net>>,
}

/// A window of a text of a call.
struct Job {
    text: usize,
    window: usize,
    ids: Vec<i64>,
}

/// A text's windows as they become done, a vector each.
type Windows = Vec<Option<Vec<f32>>>;

/// Bytes of a query that are read: more than the model takes of any.
const QUERY_BYTES: usize = 1 << 16;

/// Tokens that are embedded sooner on the open session than others could be opened.
const FEW_TOKENS: usize = 1500;

/// A session takes up to a hundred megabytes.
const MOST_SESSIONS: usize = 8;

impl Local {
    pub fn builtin(places: &RuntimeLibrary) -> Result<Local, String> {
        let (spec, files) = spec::builtin();
        Local::open(spec, files, places)
    }

    /// The model of a folder, and its id.
    pub fn of_folder(folder: &Path, places: &RuntimeLibrary) -> Result<(Local, String), String> {
        let (files, spec) = (spec::files(folder)?, spec::of_folder(folder)?);
        thread::scope(|scope| {
            let id = scope.spawn(|| spec::id_of_folder(folder));
            let local = Local::open(spec, files, places)?;
            Ok((local, id.join().map_err(|_| "the files could not be hashed".to_owned())??))
        })
    }

    /// The vocabulary and the graph load side by side.
    fn open(spec: Spec, files: spec::Files, places: &RuntimeLibrary) -> Result<Local, String> {
        hold_on();
        let max = spec.max_tokens;
        let (tokens, opened) = thread::scope(|scope| {
            let tokens = scope.spawn(|| Tokens::open(&files.tokenizer, max));
            let opened = runtime(places).and_then(|runtime| Ok((runtime, runtime.open(&files.graph, 1)?)));
            (tokens.join().unwrap_or_else(|_| Err("the tokenizer panicked".into())), opened)
        });
        let (tokens, (runtime, net)) = (tokens?, opened?);
        tokens.require_room(&spec.query_prefix)?;
        tokens.require_room(&spec.passage_prefix)?;
        let first = net.outputs().first().cloned().unwrap_or_default();
        let output = spec.output.clone().unwrap_or(first);
        let local = Local { spec, runtime, graph: files.graph, output, tokens, queries: Mutex::new(net) };
        // What does not fit together shows at the first text.
        local.query("")?;
        give_back();
        if let (Graph::Bytes(graph), spec::Tokenizer::Bytes(vocabulary)) = (&local.graph, &files.tokenizer) {
            forget(graph);
            forget(vocabulary);
        }
        Ok(local)
    }

    /// Of a query longer than a window the first one counts.
    pub fn query(&self, text: &str) -> Result<Vec<f32>, String> {
        let mut end = text.len().min(QUERY_BYTES);
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        let mut windows = self.tokens.windows(&self.spec.query_prefix, &text[..end])?;
        windows.truncate(1);
        let ids = windows.pop().unwrap_or_default();
        self.vector(&mut self.shared(), &ids)
    }

    pub fn sessions(&self) -> Sessions<'_> {
        let count = cores().min(MOST_SESSIONS);
        Sessions { local: self, nets: (0..count).map(|_| None).collect() }
    }

    fn shared(&self) -> std::sync::MutexGuard<'_, Net> {
        self.queries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn vector(&self, net: &mut Net, ids: &[i64]) -> Result<Vec<f32>, String> {
        let answer = net.run(ids, &[], &self.output)?;
        let vector = pooled(answer, self.spec.pooling)?;
        if vector.len() != self.spec.dimensions {
            let (found, expected) = (vector.len(), self.spec.dimensions);
            return Err(format!("it gives {found} dimensions, and {} says {expected}", spec::DESCRIPTION));
        }
        let length = vector.iter().map(|x| x * x).sum::<f32>().sqrt();
        if !self.spec.normalize && length.is_finite() && (length - 1.0).abs() > 0.01 {
            let key = "normalize = false";
            return Err(format!("it gives vectors of length {length:.3}, and {} says {key}", spec::DESCRIPTION));
        }
        unit(vector)
    }
}

impl Sessions<'_> {
    /// Vectors of each text's windows; none for a text that was not reached before `stop`.
    pub fn passages(&mut self, texts: &[String], stop: &AtomicBool) -> Result<Vec<Vec<Vec<f32>>>, String> {
        let mut jobs = Vec::with_capacity(texts.len());
        let mut done: Vec<Windows> = Vec::with_capacity(texts.len());
        for (text, body) in texts.iter().enumerate() {
            if stop.load(Ordering::Relaxed) {
                break;
            }
            let windows = self.local.tokens.windows(&self.local.spec.passage_prefix, body)?;
            done.push(vec![None; windows.len()]);
            jobs.extend(windows.into_iter().enumerate().map(|(window, ids)| Job { text, window, ids }));
        }
        done.resize_with(texts.len(), Vec::new);
        // The longest first: no session is left with a long one at the end, and buffers grow once.
        jobs.sort_by_key(|job| std::cmp::Reverse(job.ids.len()));
        for (job, vector) in self.run(&jobs, stop)? {
            done[jobs[job].text][jobs[job].window] = Some(vector);
        }
        Ok(done.into_iter().map(|windows| windows.into_iter().collect::<Option<_>>().unwrap_or_default()).collect())
    }

    /// Jobs by their place and what came of them.
    fn run(&mut self, jobs: &[Job], stop: &AtomicBool) -> Result<Vec<(usize, Vec<f32>)>, String> {
        let local = self.local;
        let tokens: usize = jobs.iter().map(|job| job.ids.len()).sum();
        if tokens <= FEW_TOKENS && self.nets.iter().all(Option::is_none) {
            let reached = jobs.iter().enumerate().take_while(|_| !stop.load(Ordering::Relaxed));
            return reached.map(|(at, job)| Ok((at, local.vector(&mut local.shared(), &job.ids)?))).collect();
        }
        // More cores than sessions: the library of ONNX Runtime can share one session's work out.
        let threads = (cores() / self.nets.len()).max(1);
        let next = AtomicUsize::new(0);
        let failed = AtomicBool::new(false);
        let work = |net: &mut Option<Net>| {
            let mut vectors = Vec::new();
            while !stop.load(Ordering::Relaxed) && !failed.load(Ordering::Relaxed) {
                let at = next.fetch_add(1, Ordering::Relaxed);
                let Some(job) = jobs.get(at) else { break };
                if net.is_none() {
                    *net = Some(local.runtime.open(&local.graph, threads)?);
                    give_back();
                }
                let Some(net) = net.as_mut() else { break };
                vectors.push((at, local.vector(net, &job.ids)?));
            }
            Ok(vectors)
        };
        let work = |net: &mut Option<Net>| work(net).inspect_err(|_| failed.store(true, Ordering::Relaxed));
        let results: Vec<Result<Vec<_>, String>> = thread::scope(|scope| {
            let threads: Vec<_> = self.nets.iter_mut().map(|net| scope.spawn(|| work(net))).collect();
            let joined = threads.into_iter().map(|thread| thread.join());
            joined.map(|result| result.unwrap_or_else(|_| Err("the engine panicked".into()))).collect()
        });
        let mut vectors = Vec::with_capacity(jobs.len());
        for result in results {
            vectors.extend(result?);
        }
        Ok(vectors)
    }
}

impl Drop for Sessions<'_> {
    fn drop(&mut self) {
        if self.nets.iter().any(Option::is_some) {
            self.nets.clear();
            give_back();
            if let Graph::Bytes(graph) = &self.local.graph {
                forget(graph);
            }
        }
    }
}

/// The one vector of an answer of one sequence.
fn pooled(answer: Answer, pooling: Pooling) -> Result<Vec<f32>, String> {
    let Answer { shape, values } = answer;
    let (tokens, dimensions) = match (pooling, &shape[..]) {
        (Pooling::None, [1, dimensions]) => (1, *dimensions),
        (Pooling::Mean | Pooling::Cls, [1, tokens, dimensions]) => (*tokens, *dimensions),
        _ => {
            let expected = if pooling == Pooling::None { "one vector" } else { "a vector a token" };
            return Err(format!(
                "it gives {shape:?} values, and the pooling of {} is of {expected}",
                spec::DESCRIPTION
            ));
        }
    };
    if tokens == 0 || dimensions == 0 || values.len() != tokens * dimensions {
        return Err("it gives no values".into());
    }
    let mut vector = values[..dimensions].to_vec();
    if pooling == Pooling::Mean {
        for token in values[dimensions..].chunks_exact(dimensions) {
            vector.iter_mut().zip(token).for_each(|(sum, value)| *sum += value);
        }
        vector.iter_mut().for_each(|sum| *sum /= tokens as f32);
    }
    Ok(vector)
}

pub fn cores() -> usize {
    thread::available_parallelism().map_or(1, usize::from)
}

/// Loading a model copies its weights from one form to the next. What one form leaves free the next one takes, unless
/// glibc hands each large block back to the system at once: that is a tenth of the page faults of a start. The sizes are
/// those that glibc itself comes to when it has seen such blocks freed.
fn hold_on() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    {
        const TRIM_THRESHOLD: std::ffi::c_int = -1;
        const MMAP_THRESHOLD: std::ffi::c_int = -3;
        unsafe extern "C" {
            fn mallopt(parameter: std::ffi::c_int, value: std::ffi::c_int) -> std::ffi::c_int;
        }
        // SAFETY: both may be set at any time, from any thread.
        unsafe {
            mallopt(MMAP_THRESHOLD, 32 << 20);
            mallopt(TRIM_THRESHOLD, 64 << 20);
        }
    }
}

/// Loading a model frees as much as it keeps, and glibc holds on to what is freed.
pub fn give_back() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    {
        unsafe extern "C" {
            fn malloc_trim(pad: usize) -> std::ffi::c_int;
        }
        // SAFETY: it may be called at any time, from any thread.
        unsafe { malloc_trim(0) };
    }
}

/// Files within the program were read to load them; their pages are read again from it should they be wanted again.
fn forget(file: &'static [u8]) {
    #[cfg(target_os = "linux")]
    {
        const DONT_NEED: std::ffi::c_int = 4;
        unsafe extern "C" {
            fn madvise(start: *const u8, length: usize, advice: std::ffi::c_int) -> std::ffi::c_int;
        }
        // Whole pages within the file, whatever their size here.
        const PAGE: usize = 1 << 16;
        let begin = file.as_ptr().align_offset(PAGE);
        let length = file.len().saturating_sub(begin) / PAGE * PAGE;
        if length > 0 {
            // SAFETY: the range lies within a constant, which is a mapping of the program's file that nothing writes.
            unsafe { madvise(file.as_ptr().wrapping_add(begin), length, DONT_NEED) };
        }
    }
    #[cfg(not(target_os = "linux"))]
    let _ = file;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vectors_of_tokens_become_one() {
        let answer = || Answer { shape: vec![1, 2, 3], values: vec![1.0, 2.0, 3.0, 3.0, 4.0, 5.0] };
        assert_eq!(pooled(answer(), Pooling::Mean).unwrap(), [2.0, 3.0, 4.0]);
        assert_eq!(pooled(answer(), Pooling::Cls).unwrap(), [1.0, 2.0, 3.0]);
        let error = pooled(answer(), Pooling::None).unwrap_err();
        assert_eq!(error, "it gives [1, 2, 3] values, and the pooling of model.toml is of one vector");
        let one = Answer { shape: vec![1, 2], values: vec![0.6, 0.8] };
        assert_eq!(pooled(one, Pooling::None).unwrap(), [0.6, 0.8]);
        assert!(pooled(Answer { shape: vec![1, 0, 3], values: vec![] }, Pooling::Mean).is_err());
    }
}
