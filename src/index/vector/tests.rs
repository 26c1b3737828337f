//! The scan and the graph against every cosine computed in f32.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::LiveVectors;
use super::graph::{Graph, Part};
use super::scan::{Near, Neighbours, Question, cosines, index, nearest};
use super::segment::{Group, Quantised, Record, VectorSegment, write};
use crate::index::lexical::Accept;
use crate::model::{Bits, Id, Rows};

/// xorshift64*: the same numbers on every machine.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 33
    }

    fn below(&mut self, limit: usize) -> usize {
        self.next() as usize % limit
    }

    /// About normal: a sum of twelve uniform numbers.
    fn normal(&mut self) -> f32 {
        (0..12).map(|_| self.next() as f32 / (1u64 << 31) as f32).sum::<f32>() - 6.0
    }

    fn near(&mut self, centre: &[f32], spread: f32) -> Vec<f32> {
        unit(centre.iter().map(|x| x + spread * self.normal() / (centre.len() as f32).sqrt()).collect())
    }
}

fn unit(mut vector: Vec<f32>) -> Vec<f32> {
    let length = vector.iter().map(|x| x * x).sum::<f32>().sqrt();
    vector.iter_mut().for_each(|x| *x /= length);
    vector
}

/// Chunks in documents of five, their windows, a tenth of them deleted, in segments.
struct World {
    live: Vec<LiveVectors>,
    /// Windows of each live chunk.
    chunks: BTreeMap<u32, (Group, Vec<Vec<f32>>)>,
    centres: Vec<Vec<f32>>,
}

const WIDTH: usize = 50;

/// As an encoder's vectors lie: all in one cone, around topics in it.
fn world(random: &mut Random, chunks: u32, segments: u32) -> World {
    let cone = unit((0..WIDTH).map(|_| random.normal()).collect());
    let centres: Vec<Vec<f32>> = (0..20).map(|_| random.near(&cone, 0.6)).collect();
    let mut world = World { live: Vec::new(), chunks: BTreeMap::new(), centres };
    for segment in 0..segments {
        let mut vectors = Vec::new();
        let mut tombstones = Bits::default();
        for chunk in chunks * segment / segments..chunks * (segment + 1) / segments {
            let group = [Group::Hangul, Group::Other, Group::Mixed][chunk as usize % 3];
            let windows = if random.below(4) == 0 { 1 + random.below(3) } else { 1 };
            let centre = world.centres[random.below(20)].clone();
            let own: Vec<Vec<f32>> = (0..windows).map(|_| random.near(&centre, 0.4)).collect();
            let dead = random.below(10) == 0;
            for (window, vector) in own.iter().enumerate() {
                if dead {
                    tombstones.insert(vectors.len());
                }
                vectors.push((chunk, window as u16, group, Quantised::of(vector)));
            }
            if !dead {
                world.chunks.insert(chunk, (group, own));
            }
        }
        let records: Vec<Record> = vectors
            .iter()
            .map(|(chunk, window, group, vector)| Record {
                rows: Rows { chunk: *chunk, document: chunk / 5 },
                window: *window,
                group: *group,
                key: Id::of(&[&chunk.to_le_bytes()]),
                scale: vector.scale,
                high: &vector.high,
                low: &vector.low,
            })
            .collect();
        let bytes = write(Vec::new(), "model", WIDTH, &records).unwrap();
        let own = world.chunks.range(chunks * segment / segments..chunks * (segment + 1) / segments).count();
        let segment = Arc::new(VectorSegment::from_bytes(bytes).unwrap());
        world.live.push(LiveVectors { segment, tombstones, chunks: own });
    }
    world
}

impl World {
    fn live(&self) -> Vec<&LiveVectors> {
        self.live.iter().collect()
    }

    /// Every accepted chunk of a group, nearest first, in f64.
    fn expected(&self, query: &[f32], accept: &Accept, group: Group) -> Vec<(f64, u32)> {
        let mut all: Vec<(f64, u32)> = self
            .chunks
            .iter()
            .filter(|(chunk, (own, _))| *own == group && accept.takes(rows(**chunk)))
            .map(|(chunk, (_, windows))| {
                let best = windows.iter().map(|window| dot(query, window)).fold(f64::MIN, f64::max);
                (best, *chunk)
            })
            .collect();
        all.sort_by(|a, b| b.0.total_cmp(&a.0));
        all
    }
}

fn rows(chunk: u32) -> Rows {
    Rows { chunk, document: chunk / 5 }
}

fn dot(a: &[f32], b: &[f32]) -> f64 {
    a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum()
}

/// The same chunks in the same order, save those that sixteen bits cannot tell apart.
fn assert_nearest(found: &[Near], expected: &[(f64, u32)]) {
    assert_eq!(found.len(), expected.len());
    for (near, (cosine, _)) in found.iter().zip(expected) {
        assert!((f64::from(near.cosine) - cosine).abs() < 2e-5, "{near:?} for {cosine}");
    }
    assert!(found.is_sorted_by(|a, b| a.order(b).is_lt()), "a chunk twice, or out of order");
}

#[test]
fn the_scan_finds_the_nearest_whatever_the_filter() {
    let mut random = Random(11);
    for (chunks, segments) in [(1, 1), (30, 2), (700, 1), (600, 4)] {
        let world = world(&mut random, chunks, segments);
        let (mut documents, mut some) = (Bits::default(), Bits::default());
        (0..chunks as usize / 5).filter(|_| random.below(3) == 0).for_each(|row| documents.insert(row));
        (0..chunks as usize).filter(|_| random.below(20) == 0).for_each(|row| some.insert(row));
        for accept in [
            Accept::default(),
            Accept { documents: Some(&documents), chunks: None },
            Accept { documents: None, chunks: Some(&some) },
        ] {
            for _ in 0..2 {
                let centre = world.centres[random.below(20)].clone();
                let query = random.near(&centre, 0.5);
                let question = Question::new(query.clone());
                for depth in [1, 10, 100] {
                    let found = nearest(&world.live(), &question, &accept, depth).unwrap();
                    for group in [Group::Hangul, Group::Other, Group::Mixed] {
                        let expected = world.expected(&query, &accept, group);
                        let Neighbours { scored, best } = &found[index(group)];
                        assert_eq!(*scored, expected.len());
                        assert_nearest(best, &expected[..depth.min(expected.len())]);
                        assert!(best.iter().all(|near| near.group == group && accept.takes(near.rows)));
                    }
                }
            }
        }
    }
}

#[test]
fn chunks_are_looked_up_with_the_cosines_they_are_found_with() {
    let mut random = Random(12);
    let world = world(&mut random, 200, 3);
    let question = Question::new(random.near(&world.centres[3].clone(), 0.5));
    let groups = nearest(&world.live(), &question, &Accept::default(), 200).unwrap();
    let asked: Vec<Rows> = (0..220).rev().map(rows).collect();
    let found = cosines(&world.live(), &question, &asked).unwrap();
    let mut known = 0;
    for (rows, near) in asked.iter().zip(found) {
        let expected = groups.iter().flat_map(|group| &group.best).find(|near| near.rows.chunk == rows.chunk);
        assert_eq!(near.as_ref(), expected, "{rows:?}");
        known += usize::from(near.is_some());
    }
    assert_eq!(known, world.chunks.len());
}

#[test]
fn a_graph_finds_nearly_all_and_what_is_newer_is_scanned_beside_it() {
    let mut random = Random(13);
    let world = world(&mut random, 240, 3);
    // The last segment came later; a tenth of the first was deleted later.
    let parts: Vec<Part> = world.live[..2]
        .iter()
        .map(|live| Part { segment: live.segment.clone(), live: (0..live.segment.len() as u32).collect() })
        .collect();
    let graph = Graph::build(&parts).unwrap();
    let (mut right, mut asked) = (0, 0);
    for _ in 0..10 {
        let centre = world.centres[random.below(20)].clone();
        let question = Question::new(random.near(&centre, 0.5));
        let found = graph.nearest(&world.live(), &question, 10).unwrap();
        let exact = nearest(&world.live(), &question, &Accept::default(), 10).unwrap();
        for (found, exact) in found.iter().zip(&exact) {
            assert!(found.best.iter().all(|near| world.chunks.contains_key(&near.rows.chunk)), "a deleted chunk");
            right += exact.best.iter().filter(|near| found.best.contains(near)).count();
            asked += exact.best.len();
        }
    }
    assert!(right * 100 >= asked * 98, "{right} of {asked}");
    // The same vectors, the same graph.
    let again = Graph::build(&parts).unwrap();
    let question = Question::new(random.near(&world.centres[0].clone(), 0.5));
    assert_eq!(
        graph.nearest(&world.live(), &question, 50).unwrap(),
        again.nearest(&world.live(), &question, 50).unwrap()
    );
}
