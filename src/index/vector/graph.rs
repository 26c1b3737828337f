//! A graph of nearest neighbours over the vectors of a large store: it answers without looking at all of them.
//!
//! It lives in memory, built by one thread beside the requests of a process that stays (`Keeper`); a process that
//! answers once scans. Vectors newer than the graph are scanned beside it. The crate can neither delete nor filter, so
//! deleted vectors are dropped from what it finds, and filtered searches scan. It walks on the upper halves of the
//! vectors where they lie mapped; what it finds is read in full. Nearly always that is the nearest, as with any graph.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

use instant_distance::{Builder, Hnsw, Search};

use super::LiveVectors;
use super::kernel::Kernel;
use super::scan::{GROUPS, Near, Neighbours, Question, index, nearest};
use super::segment::VectorSegment;
use crate::error::Result;
use crate::index::lexical::Accept;

/// Vectors a search walks with, and how many it finds of a group: the fit of a query wants a list of some length.
pub const BREADTH: usize = 200;

/// A graph that holds less of the live vectors than this share is built anew.
const LEAST_SHARE: f32 = 0.8;

/// The same vectors make the same graph.
const SEED: u64 = 0x6B65_6261_6269;

/// The graph of a process, if it has one.
#[derive(Default)]
pub struct Keeper {
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    may_build: bool,
    building: bool,
    graph: Option<Arc<Graph>>,
}

pub struct Graph {
    segments: Vec<Arc<VectorSegment>>,
    /// By group.
    groups: [Hnsw<Point>; GROUPS],
    /// Chunks in each.
    chunks: [usize; GROUPS],
    vectors: usize,
    /// Room for searches that are not under way.
    searches: Mutex<Vec<Search>>,
}

#[derive(Clone)]
enum Point {
    Vector { segment: Arc<VectorSegment>, place: u32, scale: f32 },
    Question(Arc<Question>),
}

impl Keeper {
    /// This process stays, so a graph is worth its building.
    pub fn allow(&self) {
        locked(&self.state).may_build = true;
    }

    /// The graph to ask about these vectors: one if there are more than `above` and it has been built. What is missing is
    /// begun in the background.
    pub fn graph(&self, vectors: &[&LiveVectors], above: usize) -> Option<Arc<Graph>> {
        let total: usize = vectors.iter().map(|live| live.chunks).sum();
        if total <= above {
            return None;
        }
        let mut state = locked(&self.state);
        let graph = state.graph.clone();
        let share = graph.as_ref().map_or(0.0, |graph| graph.share_of(vectors));
        if share < LEAST_SHARE && state.may_build && !state.building {
            let parts: Vec<Part> = vectors
                .iter()
                .map(|live| Part {
                    segment: live.segment.clone(),
                    live: (0..live.segment.len() as u32)
                        .filter(|place| !live.tombstones.has(*place as usize))
                        .collect(),
                })
                .collect();
            let slot = self.state.clone();
            let build = move || {
                let built = catch_unwind(AssertUnwindSafe(|| Graph::build(&parts)));
                let mut state = locked(&slot);
                state.building = false;
                match built {
                    Ok(Ok(graph)) => state.graph = Some(Arc::new(graph)),
                    // Damaged vectors or too little memory: it would end so again.
                    Ok(Err(_)) | Err(_) => state.may_build = false,
                }
            };
            state.building = thread::Builder::new().name("graph".into()).spawn(build).is_ok();
        }
        graph.filter(|_| share > 0.0)
    }
}

/// What of a segment goes into a graph.
pub struct Part {
    pub segment: Arc<VectorSegment>,
    /// Places, ascending.
    pub live: Vec<u32>,
}

impl Graph {
    /// Takes about a second of one core a thousand vectors.
    pub fn build(parts: &[Part]) -> Result<Graph> {
        let mut points: [Vec<Point>; GROUPS] = Default::default();
        let mut chunks = [0; GROUPS];
        for Part { segment, live } in parts {
            // Reading below cannot fail after this.
            segment.verify()?;
            let columns = segment.columns()?;
            let mut previous = None;
            for &place in live {
                let (at, chunk) = (index(columns.group(place as usize)), columns.chunk(place as usize));
                chunks[at] += usize::from(previous.replace(chunk) != Some(chunk));
                points[at].push(Point::Vector {
                    segment: segment.clone(),
                    place,
                    scale: columns.scale(place as usize),
                });
            }
        }
        let vectors = points.iter().map(Vec::len).sum();
        let build = || {
            points.map(|points| {
                let builder = Builder::default().seed(SEED).ef_construction(100).ef_search(BREADTH);
                builder.build_hnsw(points).0
            })
        };
        // One thread: requests go first, and the same vectors make the same graph.
        let groups = match rayon::ThreadPoolBuilder::new().num_threads(1).build() {
            Ok(pool) => pool.install(build),
            Err(_) => build(),
        };
        let segments = parts.iter().map(|part| part.segment.clone()).collect();
        Ok(Graph { segments, groups, chunks, vectors, searches: Mutex::default() })
    }

    /// By group: the chunks nearest to the query, `BREADTH` of each at most.
    pub fn nearest(&self, vectors: &[&LiveVectors], question: &Question, depth: usize) -> Result<[Neighbours; GROUPS]> {
        let newer: Vec<&LiveVectors> = vectors.iter().copied().filter(|live| !self.holds(live)).collect();
        let mut found = nearest(&newer, question, &Accept::default(), depth)?;
        let asked = Point::Question(Arc::new(question.clone()));
        let mut search = locked(&self.searches).pop().unwrap_or_default();
        for (group, neighbours) in self.groups.iter().zip(&mut found) {
            for item in group.search(&asked, &mut search) {
                let Point::Vector { segment, place, .. } = item.point else { continue };
                let Some(live) = vectors.iter().find(|live| Arc::ptr_eq(&live.segment, segment)) else { continue };
                if !live.tombstones.has(*place as usize) {
                    let columns = live.segment.columns()?;
                    neighbours.best.push(question.nearest_window(live, &columns, *place as usize)?);
                }
            }
        }
        locked(&self.searches).push(search);
        for (neighbours, chunks) in found.iter_mut().zip(self.chunks) {
            neighbours.scored += chunks;
            neighbours.best.sort_unstable_by(Near::order);
            neighbours.best.dedup_by_key(|near| near.rows.chunk);
            neighbours.best.truncate(depth);
        }
        Ok(found)
    }

    fn holds(&self, live: &LiveVectors) -> bool {
        self.segments.iter().any(|segment| Arc::ptr_eq(segment, &live.segment))
    }

    /// How much of these vectors the graph holds, and how much of the graph these still are.
    fn share_of(&self, vectors: &[&LiveVectors]) -> f32 {
        let all: usize = vectors.iter().map(|live| live.chunks).sum();
        let held: usize = vectors.iter().filter(|live| self.holds(live)).map(|live| live.chunks).sum();
        held as f32 / all.max(self.vectors).max(1) as f32
    }
}

impl instant_distance::Point for Point {
    fn distance(&self, other: &Point) -> f32 {
        use Point::{Question, Vector};
        let kernel = Kernel::fastest();
        match (self, other) {
            (Vector { segment: a, place: i, scale: s }, Vector { segment: b, place: j, scale: t }) => {
                -(kernel.dot(high_at(a, *i), high_at(b, *j)) as f32) * s * t
            }
            (Question(question), Vector { segment, place, scale })
            | (Vector { segment, place, scale }, Question(question)) => {
                -question.rough(high_at(segment, *place)) * scale
            }
            (Question(_), Question(_)) => f32::NEG_INFINITY,
        }
    }
}

fn high_at(segment: &VectorSegment, place: u32) -> &[i8] {
    segment.high_at(place as usize).unwrap_or_default()
}

/// A panic leaves nothing half-written here: values are replaced whole.
fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
