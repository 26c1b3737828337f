//! Search by meaning over made-up vectors: the exact scan by each kernel of this processor, and the graph, at sizes
//! around the one where the graph becomes faster. Prints medians and 99th percentiles of a query, by each kernel on one
//! thread and as a search does it on all cores, the scan's recall@10 against f32 and the graph's against the scan, and
//! what building the graph costs.
//!
//! The vectors lie as an encoder's do: in a narrow cone (the mean of a corpus is 0.9 long), half of the rest of their
//! variance in 40 directions and nine tenths in 190, sixty per cent of it by topic, thirty-odd chunks a topic. A query
//! is half of what sets one chunk apart, and noise. Uniform noise would be kinder to the scan's error bound and unkinder
//! to the graph.
//!
//! `cargo bench --bench vector [-- [--no-graph] SIZE…]`

use std::hint::black_box;
use std::sync::Arc;
use std::time::Instant;

use kebab_lite::index::lexical::Accept;
use kebab_lite::index::vector::LiveVectors;
use kebab_lite::index::vector::graph::{Graph, Part};
use kebab_lite::index::vector::kernel::Kernel;
use kebab_lite::index::vector::scan::{GROUPS, Near, Neighbours, Question, nearest, nearest_on};
use kebab_lite::index::vector::segment::{Group, MOST_VECTORS, Quantised, Record, VectorSegment, write};
use kebab_lite::model::{Bits, Id, Rows};

const WIDTH: usize = 384;
const QUERIES: usize = 400;
/// What a hybrid search asks for.
const DEPTH: usize = 300;

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let with_graph = !args.iter().any(|arg| arg == "--no-graph");
    let mut sizes: Vec<usize> = args.iter().filter_map(|arg| arg.parse().ok()).collect();
    if sizes.is_empty() {
        sizes = vec![25_000, 50_000, 100_000, 200_000];
    }
    println!("{WIDTH} dimensions, {QUERIES} queries, best {DEPTH}");
    for size in sizes {
        let mut space = Space::new(size);
        let vectors: Vec<Vec<f32>> = (0..size).map(|_| space.chunk()).collect();
        let live = segments(&vectors);
        let live: Vec<&LiveVectors> = live.iter().collect();
        let queries: Vec<Vec<f32>> = (0..QUERIES).map(|_| space.query(&vectors)).collect();
        println!("\n{size} vectors");
        let mut exact = Vec::new();
        for kernel in Kernel::available() {
            let questions: Vec<Question> =
                queries.iter().map(|query| Question::with_kernel(query.clone(), kernel)).collect();
            let (times, found) = measure(&questions, |question| {
                both(nearest_on(1, &live, question, &Accept::default(), DEPTH).expect("sound segments"))
            });
            print(&format!("scan, {kernel:?}"), &times);
            exact = found;
        }
        let questions: Vec<Question> = queries.iter().map(|query| Question::new(query.clone())).collect();
        let (times, found) = measure(&questions, |question| {
            both(nearest(&live, question, &Accept::default(), DEPTH).expect("sound segments"))
        });
        print("scan, as searched", &times);
        assert!(found == exact, "the number of threads changes what is found");
        let recall = recall(&queries[..QUERIES / 4], &vectors, &exact);
        println!("  recall@10 of the scan against f32: {recall:.4}");
        if with_graph {
            graph(&live, &queries, &exact);
        }
    }
}

fn graph(live: &[&LiveVectors], queries: &[Vec<f32>], exact: &[Vec<Near>]) {
    let parts: Vec<Part> = live
        .iter()
        .map(|live| Part { segment: live.segment.clone(), live: (0..live.segment.len() as u32).collect() })
        .collect();
    let started = Instant::now();
    let graph = Graph::build(&parts).expect("sound segments");
    println!("  graph built in {:.0} s", started.elapsed().as_secs_f64());
    let questions: Vec<Question> = queries.iter().map(|query| Question::new(query.clone())).collect();
    let (times, found) =
        measure(&questions, |question| both(graph.nearest(live, question, DEPTH).expect("sound segments")));
    print("graph", &times);
    // Once more, since whatever else this machine did while the graph was built may have changed.
    let (times, _) = measure(&questions, |question| {
        both(nearest(live, question, &Accept::default(), DEPTH).expect("sound segments"))
    });
    print("scan, after it", &times);
    let hits = |(found, exact): (&Vec<Near>, &Vec<Near>)| {
        exact.iter().take(10).filter(|near| found.iter().take(10).any(|own| own.rows == near.rows)).count()
    };
    let right: usize = found.iter().zip(exact).map(hits).sum();
    println!("  recall@10 of the graph: {:.4}", right as f64 / (10 * QUERIES) as f64);
}

fn measure(questions: &[Question], mut run: impl FnMut(&Question) -> Vec<Near>) -> (Vec<f64>, Vec<Vec<Near>>) {
    questions.iter().take(20).for_each(|question| {
        black_box(run(question));
    });
    let (mut times, mut found) = (Vec::new(), Vec::new());
    for question in questions {
        let started = Instant::now();
        found.push(black_box(run(question)));
        times.push(started.elapsed().as_secs_f64() * 1000.0);
    }
    times.sort_by(f64::total_cmp);
    (times, found)
}

fn print(name: &str, times: &[f64]) {
    let (p50, p99) = (times[times.len() / 2], times[times.len() * 99 / 100]);
    println!("  {name:<20}{p50:>8.2} ms p50{p99:>8.2} ms p99{:>8.2} ms least", times[0]);
}

fn both(groups: [Neighbours; GROUPS]) -> Vec<Near> {
    let mut all: Vec<Near> = groups.into_iter().flat_map(|group| group.best).collect();
    all.sort_unstable_by(Near::order);
    all
}

fn recall(queries: &[Vec<f32>], vectors: &[Vec<f32>], found: &[Vec<Near>]) -> f64 {
    let mut right = 0;
    for (query, found) in queries.iter().zip(found) {
        let mut all: Vec<(f32, u32)> = (0..).zip(vectors).map(|(row, vector)| (dot(query, vector), row)).collect();
        all.select_nth_unstable_by(9, |a, b| b.0.total_cmp(&a.0));
        right += all[..10].iter().filter(|(_, row)| found.iter().take(10).any(|near| near.rows.chunk == *row)).count();
    }
    right as f64 / (10 * queries.len()) as f64
}

/// A fifth of the chunks is in Hangul.
fn segments(vectors: &[Vec<f32>]) -> Vec<LiveVectors> {
    let mut row = 0;
    let piece = |piece: &[Vec<f32>]| {
        let quantised: Vec<Quantised> = piece.iter().map(|vector| Quantised::of(vector)).collect();
        let records: Vec<Record> = quantised
            .iter()
            .map(|vector| {
                let chunk = row;
                row += 1;
                Record {
                    rows: Rows { chunk, document: chunk / 10 },
                    window: 0,
                    group: if chunk % 5 == 0 { Group::Hangul } else { Group::Other },
                    key: Id::of(&[&chunk.to_le_bytes()]),
                    scale: vector.scale,
                    high: &vector.high,
                    low: &vector.low,
                }
            })
            .collect();
        let bytes = write(Vec::new(), "made up", WIDTH, &records).expect("memory");
        let segment = VectorSegment::from_bytes(bytes).expect("a segment just written");
        LiveVectors { chunks: records.len(), segment: Arc::new(segment), tombstones: Bits::default() }
    };
    vectors.chunks(MOST_VECTORS).map(piece).collect()
}

struct Space {
    random: Random,
    cone: Vec<f32>,
    /// Standard deviation of each coordinate; coordinates are as good as any other directions.
    spread: Vec<f32>,
    topics: Vec<Vec<f32>>,
}

impl Space {
    fn new(chunks: usize) -> Space {
        let mut random = Random(0x5EED);
        // An exponential decay has half of its sum in the first 40 and nine tenths in the first 133, the square root of
        // a sum of two such comes near to what encoders show.
        let variance: Vec<f32> =
            (0..WIDTH).map(|i| (-(i as f32) / 40.0).exp() + 0.3 * (-(i as f32) / 150.0).exp()).collect();
        let sum: f32 = variance.iter().sum();
        let spread: Vec<f32> = variance.iter().map(|variance| (0.18 * variance / sum).sqrt()).collect();
        let cone: Vec<f32> = unit((0..WIDTH).map(|_| random.normal()).collect()).iter().map(|x| 0.9 * x).collect();
        let mut space = Space { random, cone, spread, topics: Vec::new() };
        space.topics = (0..chunks / 32 + 1).map(|_| space.deviation(0.6)).collect();
        space
    }

    fn deviation(&mut self, share: f32) -> Vec<f32> {
        let random = &mut self.random;
        self.spread.iter().map(|spread| share.sqrt() * spread * random.normal()).collect()
    }

    fn chunk(&mut self) -> Vec<f32> {
        let own = self.deviation(0.4);
        let topic = &self.topics[self.random.below(self.topics.len())];
        unit(self.cone.iter().zip(topic).zip(&own).map(|((cone, topic), own)| cone + topic + own).collect())
    }

    fn query(&mut self, chunks: &[Vec<f32>]) -> Vec<f32> {
        let noise = self.deviation(0.5);
        let about = &chunks[self.random.below(chunks.len())];
        let parts = self.cone.iter().zip(about).zip(&noise);
        unit(parts.map(|((cone, about), noise)| cone + 0.5 * (about - cone) + noise).collect())
    }
}

fn unit(mut vector: Vec<f32>) -> Vec<f32> {
    let length = dot(&vector, &vector).sqrt();
    vector.iter_mut().for_each(|x| *x /= length);
    vector
}

fn dot(a: &[f32], b: &[f32]) -> f32 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

/// xorshift64*
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }

    fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }

    /// About normal: a sum of twelve uniform numbers.
    fn normal(&mut self) -> f32 {
        (0..12).map(|_| (self.next() >> 40) as f32 / (1u64 << 24) as f32).sum::<f32>() - 6.0
    }
}
