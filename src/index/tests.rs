//! The lexical index against the `bm25` crate: its linear scorer is slow and right.

use std::collections::{BTreeMap, BTreeSet};

use bm25::{Embedder, EmbedderBuilder, Embedding, Scorer, TokenEmbedder, TokenEmbedding, Tokenizer};

use super::build::{Averages, Builder, MAX_WEIGHT, Passage};
use super::lexical::{Accept, Query, Scored, idf, mass, scores_of, top};
use super::tokenize::{Analyzer, Field, has_hangul};
use super::{Index, Live};
use crate::model::{Bits, Rows};

/// xorshift64*: the same numbers on every machine.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 33) as usize % limit
    }

    /// Small numbers are drawn more often, about as words are.
    fn zipf(&mut self, limit: usize) -> usize {
        let bits = usize::BITS - limit.leading_zeros();
        let width = self.below(bits as usize) + 1;
        self.below((1 << width).min(limit))
    }

    fn one_of<'w>(&mut self, words: &[&'w str]) -> &'w str {
        words[self.zipf(words.len())]
    }
}

/// A term stands for itself: no two share a number.
struct Exact;

impl TokenEmbedder for Exact {
    type EmbeddingSpace = String;

    fn embed(token: &str) -> String {
        token.to_owned()
    }
}

struct Terms(Field);

impl Tokenizer for Terms {
    fn tokenize(&self, text: &str) -> Vec<String> {
        let mut terms = Vec::new();
        Analyzer::new(self.0).terms(text, |term| terms.push(term.to_owned()));
        terms
    }
}

/// The crate's view of a corpus: one scorer a field, over all chunks, deleted ones included.
struct Oracle<'t> {
    texts: &'t [String],
    grams: Scorer<u32, String>,
    words: Scorer<u32, String>,
}

impl<'t> Oracle<'t> {
    fn new(texts: &'t [String], averages: Averages) -> Oracle<'t> {
        let fit = |field, avgdl| {
            let builder = EmbedderBuilder::<Exact, _>::with_tokenizer_and_fit_to_corpus(Terms(field), &[]);
            let embedder: Embedder<Exact, Terms> = builder.avgdl(avgdl).build();
            let mut scorer = Scorer::new();
            for (row, text) in (0u32..).zip(texts) {
                scorer.upsert(&row, embedder.embed(text));
            }
            scorer
        };
        Oracle { texts, grams: fit(Field::Grams, averages.grams), words: fit(Field::Words, averages.words) }
    }

    /// Scores of all chunks that hold a term of the query.
    fn scores(&self, query: &Query) -> BTreeMap<u32, f32> {
        let repeated = query.terms.iter().flat_map(|(term, count)| std::iter::repeat_n(term, *count as usize));
        let embedding = Embedding(repeated.map(|term| TokenEmbedding { index: term.clone(), value: 1.0 }).collect());
        let matching = self.grams.matches(&embedding).into_iter().chain(self.words.matches(&embedding));
        let rows: BTreeSet<u32> = matching.map(|found| found.id).collect();
        let score = |row: u32| {
            let grams = self.grams.score(&row, &embedding).unwrap();
            match has_hangul(&self.texts[row as usize]) {
                true => 0.5 * grams + 0.5 * self.words.score(&row, &embedding).unwrap(),
                false => grams,
            }
        };
        rows.into_iter().map(|row| (row, score(row))).collect()
    }
}

/// Consecutive texts in `segments` pieces, each third chunk its own document.
fn index(texts: &[String], averages: Averages, segments: usize, dead: &BTreeSet<u32>) -> Index {
    let mut index = Index { revision: 1, ..Index::default() };
    let mut row = 0;
    for piece in texts.chunks(texts.len().div_ceil(segments)) {
        let mut builder = Builder::new(averages);
        let mut rows = Vec::new();
        let mut tombstones = Bits::default();
        for (ordinal, body) in piece.iter().enumerate() {
            builder.add(&Passage { title: "", title_is_name: true, headings: &[], symbol: None, body });
            rows.push(Rows { chunk: row, document: row / 3 });
            if dead.contains(&row) {
                tombstones.insert(ordinal);
            }
            row += 1;
        }
        let segment = builder.finish().into_segment(&rows).unwrap();
        index.segments.push(Live { segment: segment.into(), tombstones });
    }
    index
}

/// What the impacts of one byte may cost a score, and the rounding of idf to an integer.
fn tolerance(index: &Index, query: &Query) -> f32 {
    let terms = query.terms.iter().map(|(term, count)| {
        let df = frequency(index, term);
        idf(index, df) * *count as f32 * MAX_WEIGHT / 255.0 / 2.0 + 1e-4
    });
    terms.sum()
}

/// Chunks that hold the term, deleted ones included.
fn frequency(index: &Index, term: &str) -> usize {
    index.segments.iter().map(|live| live.segment.postings(term).unwrap().map_or(0, |list| list.len)).sum()
}

const LATIN: &[&str] = &[
    "kernel",
    "kernels",
    "daemon",
    "listens",
    "listening",
    "getUserName",
    "user",
    "name",
    "port",
    "v1.0.21",
    "the",
    "parseHTTPRequest",
    "snake_case_word",
    "ünïcode",
    "straße",
    "4711",
    "x",
];
const HANGUL: &[&str] = &[
    "검색",
    "검색을",
    "검색하는",
    "저장소",
    "저장소에서는",
    "색인",
    "전략은",
    "꽃을",
    "파일입니다",
    "재시작",
    "시작",
    "한국어",
];
const HAN: &[&str] = &["検索する", "重跑", "東京都", "京都", "数据库", "数据", "日本語の文書", "カタカナ"];
const MIXED: &[&str] = &["재시작server", "重跑gen后", "MCP를", "user설정", "東京tower", "검색engine"];

fn text(random: &mut Random, kinds: &[&[&str]], most: usize) -> String {
    let words: Vec<&str> = (0..=random.below(most))
        .map(|_| {
            let kind = kinds[random.below(kinds.len())];
            random.one_of(kind)
        })
        .collect();
    words.join(" ")
}

#[test]
fn scores_are_those_of_the_crate() {
    let kinds: [&[&[&str]]; 4] = [&[LATIN], &[HANGUL], &[HAN], &[LATIN, HANGUL, HAN, MIXED]];
    let mut random = Random(0x9E37_79B9_7F4A_7C15);
    let mut compared = 0;
    for round in 0..120 {
        let kinds = kinds[round % kinds.len()];
        let texts: Vec<String> = (0..1 + random.below(60)).map(|_| text(&mut random, kinds, 40)).collect();
        let averages = Averages { grams: 8.0 + random.below(40) as f32, words: 6.0 + random.below(30) as f32 };
        let every_fifth = random.below(5) == 0;
        let dead: BTreeSet<u32> = (0..texts.len() as u32).filter(|_| every_fifth && random.below(5) == 0).collect();
        let index = index(&texts, averages, 1 + random.below(4), &dead);
        let oracle = Oracle::new(&texts, averages);
        let mut taken = [Bits::default(), Bits::default()];
        (0..texts.len()).filter(|_| random.below(3) > 0).for_each(|row| taken[0].insert(row));
        (0..texts.len()).filter(|_| random.below(3) > 0).for_each(|row| taken[1].insert(row));
        let accepts = [
            Accept::default(),
            Accept { documents: Some(&taken[0]), chunks: None },
            Accept { documents: None, chunks: Some(&taken[1]) },
            Accept { documents: Some(&taken[0]), chunks: Some(&taken[1]) },
        ];
        for _ in 0..4 {
            let query = Query::parse(&text(&mut random, kinds, 8));
            let scores = oracle.scores(&query);
            let tolerance = tolerance(&index, &query);
            assert_lookups(&index, &query, &mut random);
            for accept in &accepts {
                let expected: BTreeMap<u32, f32> = scores
                    .iter()
                    .filter(|(row, _)| !dead.contains(row))
                    .filter(|(row, _)| accept.takes(Rows { chunk: **row, document: **row / 3 }))
                    .map(|(row, score)| (*row, *score))
                    .collect();
                let all = top(&index, &query, accept, usize::MAX).unwrap();
                let found: BTreeSet<u32> = all.iter().map(|scored| scored.rows.chunk).collect();
                assert_eq!(found, expected.keys().copied().collect(), "round {round}, {query:?} over {texts:?}");
                assert_eq!(found.len(), all.len(), "a chunk twice");
                for scored in &all {
                    let right = expected[&scored.rows.chunk];
                    assert!(
                        (scored.score - right).abs() <= tolerance,
                        "round {round}, {query:?}: {} instead of {right} ± {tolerance} for {:?}",
                        scored.score,
                        texts[scored.rows.chunk as usize]
                    );
                    compared += 1;
                }
                assert_in_order(&all);
                for limit in [1, 10, 100] {
                    let best = top(&index, &query, accept, limit).unwrap();
                    assert_eq!(best, all[..limit.min(all.len())], "round {round}, {query:?}, limit {limit}");
                }
            }
        }
    }
    assert!(compared > 10_000, "only {compared} scores were compared");
}

/// Chunks that are asked for by row have the scores they are found with, in whatever order they are named.
fn assert_lookups(index: &Index, query: &Query, random: &mut Random) {
    let found = top(index, query, &Accept::default(), usize::MAX).unwrap();
    let mut asked: Vec<Rows> =
        (0..index.chunks() as u32 + 2).map(|row| Rows { chunk: row, document: row / 3 }).collect();
    (1..asked.len()).for_each(|i| asked.swap(i, random.below(i + 1)));
    let expected: Vec<f32> = asked
        .iter()
        .map(|rows| found.iter().find(|scored| scored.rows.chunk == rows.chunk).map_or(0.0, |scored| scored.score))
        .collect();
    assert_eq!(scores_of(index, query, &asked).unwrap(), expected, "{query:?}");
}

/// Best first, equal scores in the order of the store.
fn assert_in_order(scored: &[Scored]) {
    let key = |one: &Scored| (std::cmp::Reverse((one.score * 1e6) as i64), one.rows.chunk);
    for pair in scored.windows(2) {
        assert!(pair[0].score >= pair[1].score, "{pair:?}");
        assert!(pair[0].score > pair[1].score || key(&pair[0]) < key(&pair[1]), "{pair:?}");
    }
}

#[test]
fn one_character_finds_every_chunk_it_stands_in() {
    let mut random = Random(77);
    for round in 0..40 {
        let texts: Vec<String> = (0..30).map(|_| text(&mut random, &[LATIN, HAN, MIXED], 6)).collect();
        let averages = Averages { grams: 12.0, words: 10.0 };
        let index = index(&texts, averages, 1 + round % 3, &BTreeSet::new());
        for character in ["京", "索", "据", "跑", "后", "ナ", "する"] {
            let found = top(&index, &Query::parse(character), &Accept::default(), 100).unwrap();
            let mut found: Vec<u32> = found.iter().map(|scored| scored.rows.chunk).collect();
            found.sort_unstable();
            let holding = (0u32..).zip(&texts).filter(|(_, text)| text.contains(character)).map(|(row, _)| row);
            assert_eq!(found, holding.collect::<Vec<_>>(), "{character} in {texts:?}");
        }
    }
}

#[test]
fn skipping_loses_nothing_in_a_large_corpus() {
    const CHUNKS: usize = 20_000;
    let mut random = Random(4);
    let names: Vec<String> = (0..5000).map(|n| format!("w{n}")).collect();
    let texts: Vec<String> = (0..CHUNKS)
        .map(|_| {
            let words: Vec<&str> = (0..4 + random.below(20)).map(|_| names[random.zipf(5000)].as_str()).collect();
            words.join(" ")
        })
        .collect();
    let averages = Averages { grams: 13.5, words: 13.5 };
    let dead: BTreeSet<u32> = (0..CHUNKS as u32).filter(|_| random.below(20) == 0).collect();
    for segments in [1, 3] {
        let index = index(&texts, averages, segments, &dead);
        let mut few = Bits::default();
        (0..CHUNKS / 3).filter(|_| random.below(50) == 0).for_each(|document| few.insert(document));
        for round in 0..40 {
            let words: Vec<&str> = (0..1 + round % 8).map(|_| names[random.zipf(5000)].as_str()).collect();
            let query = Query::parse(&words.join(" "));
            for accept in [Accept::default(), Accept { documents: Some(&few), chunks: None }] {
                let expected = every_posting(&index, &query, &accept);
                for limit in [1, 10, 100] {
                    let best = top(&index, &query, &accept, limit).unwrap();
                    assert_eq!(best.len(), limit.min(expected.len()), "{query:?}");
                    assert_in_order(&best);
                    for (scored, (right, _)) in best.iter().zip(&expected) {
                        // Places may be swapped only within the rounding of idf.
                        let slack = 1e-3 + right * 1e-4;
                        assert!((scored.score - right).abs() <= slack, "{query:?}: {} for {right}", scored.score);
                    }
                }
                let all = top(&index, &query, &accept, usize::MAX).unwrap();
                assert_eq!(top(&index, &query, &accept, 10).unwrap(), all[..10.min(all.len())], "{query:?}");
            }
        }
    }
}

/// Σ idf · count · impact over every posting, best first.
fn every_posting(index: &Index, query: &Query, accept: &Accept) -> Vec<(f32, u32)> {
    let mut sums: BTreeMap<u32, f32> = BTreeMap::new();
    for (term, count) in &query.terms {
        let weight = idf(index, frequency(index, term)) * *count as f32 * MAX_WEIGHT / 255.0;
        for live in &index.segments {
            let Some(list) = live.segment.postings(term).unwrap() else { continue };
            list.for_each(|posting| {
                let rows = live.segment.rows(posting.ordinal).unwrap();
                if !live.tombstones.has(posting.ordinal as usize) && accept.takes(rows) {
                    *sums.entry(rows.chunk).or_default() += weight * f32::from(posting.impact);
                }
            });
        }
    }
    let mut sorted: Vec<(f32, u32)> = sums.into_iter().map(|(row, sum)| (sum, row)).collect();
    sorted.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
    sorted
}

#[test]
fn a_query_is_weighed_by_script_and_unknown_words_weigh_most() {
    let texts = ["백업 서버", "backup server", "server", "server"].map(str::to_owned);
    let index = index(&texts, Averages { grams: 2.0, words: 2.0 }, 2, &BTreeSet::new());
    let mass = |query: &str| mass(&index, &Query::parse(query)).unwrap();
    // ln(1 + 2.5/2.5): `server` stands in three of four.
    let of_one = |df: f32| (1.0 + (4.0 - df + 0.5) / (df + 0.5)).ln();
    assert_eq!(mass("server"), [0.0, of_one(3.0)]);
    // A bigram and a word, at half weight each.
    assert_eq!(mass("백업"), [of_one(1.0), 0.0]);
    assert_eq!(mass("서버 nowhere"), [of_one(1.0), of_one(0.0)]);
    assert_eq!(mass("!?"), [0.0, 0.0]);
}
