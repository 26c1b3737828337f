//! Lexical search over 100,000 chunks of 120 words: ours, SQLite FTS5 with OR, and the bm25 crate's own engine, on the
//! same corpus and queries in one run. Prints the median and the 99th percentile a query, and the ratios.
//!
//! `cargo bench --bench lexical [-- CHUNKS]`

#[path = "common/corpus.rs"]
mod corpus;

use std::hint::black_box;
use std::sync::Arc;
use std::time::Instant;

use bm25::{SearchEngineBuilder, Tokenizer};
use corpus::Language;
use kebab_lite::index::build::{Builder, DEFAULT_AVERAGES, Passage};
use kebab_lite::index::lexical::{Accept, Query, top};
use kebab_lite::index::tokenize::{Analyzer, Field};
use kebab_lite::index::{Index, Live};
use kebab_lite::model::{Bits, Rows};
use rusqlite::Connection;

const WORDS_A_CHUNK: usize = 120;
const QUERIES: usize = 1000;
const K: usize = 10;

fn main() {
    let chunks = std::env::args().skip(1).find_map(|arg| arg.parse().ok()).unwrap_or(100_000);
    let mut language = Language::new();
    let corpus: Vec<String> = (0..chunks).map(|_| language.passage(WORDS_A_CHUNK)).collect();
    let queries: Vec<String> = (0..QUERIES).map(|_| language.query(&corpus)).collect();
    println!("{chunks} chunks of {WORDS_A_CHUNK} words, {QUERIES} queries of 2 to 6 words, k {K}");

    let index = ours(&corpus);
    let (ours, found) = measure(&queries, |query| {
        top(&index, &Query::parse(query), &Accept::default(), K).expect("a sound index").len()
    });
    let fts = fts5(&corpus);
    let mut statement = fts.prepare("SELECT rowid FROM t WHERE t MATCH ? ORDER BY rank LIMIT 10").expect("a statement");
    let (fts5, fts_found) = measure(&queries, |query| {
        let any: Vec<String> = query.split(' ').map(|word| format!("\"{word}\"")).collect();
        let rows = statement.query_map([any.join(" OR ")], |row| row.get::<_, i64>(0)).expect("a query");
        rows.count()
    });
    let engine = SearchEngineBuilder::<u32, u32, Terms>::with_tokenizer_and_corpus(Terms, corpus.clone()).build();
    let some = &queries[..QUERIES / 10];
    let (crate_engine, crate_found) = measure(some, |query| engine.search(query, K).len());
    assert!(found == fts_found && crate_found > 0, "all three answer: {found} {fts_found} {crate_found}");

    println!("{:<24}{:>12}{:>12}{:>10}", "", "p50 ms", "p99 ms", "× ours");
    for (name, times) in [("kebab-lite", ours), ("SQLite FTS5", fts5), ("bm25 SearchEngine", crate_engine)] {
        println!("{name:<24}{:>12.4}{:>12.4}{:>10.1}", times.0, times.1, times.0 / ours.0);
    }
}

/// p50 and p99 in milliseconds, and the hits of all queries together.
fn measure(queries: &[String], mut run: impl FnMut(&str) -> usize) -> ((f64, f64), usize) {
    queries.iter().take(50).for_each(|query| {
        black_box(run(query));
    });
    let mut hits = 0;
    let mut times: Vec<f64> = queries
        .iter()
        .map(|query| {
            let started = Instant::now();
            hits += black_box(run(query));
            started.elapsed().as_secs_f64() * 1000.0
        })
        .collect();
    times.sort_by(f64::total_cmp);
    ((times[times.len() / 2], times[times.len() * 99 / 100]), hits)
}

fn ours(corpus: &[String]) -> Index {
    let mut builder = Builder::new(DEFAULT_AVERAGES);
    for body in corpus {
        builder.add(&Passage { title: "", title_is_name: false, headings: &[], symbol: None, body });
    }
    let rows: Vec<Rows> = (0..corpus.len() as u32).map(|row| Rows { chunk: row, document: row }).collect();
    let segment = builder.finish().into_segment(&rows).expect("a segment in memory");
    let segments = vec![Live { segment: Arc::new(segment), tombstones: Bits::default() }];
    Index { revision: 1, segments, ..Index::default() }
}

fn fts5(corpus: &[String]) -> Connection {
    let connection = Connection::open_in_memory().expect("SQLite");
    connection.execute_batch("CREATE VIRTUAL TABLE t USING fts5(body, tokenize = 'porter'); BEGIN").expect("a table");
    let mut insert = connection.prepare("INSERT INTO t(body) VALUES (?)").expect("a statement");
    for body in corpus {
        insert.execute([body]).expect("an insert");
    }
    drop(insert);
    connection.execute_batch("COMMIT; INSERT INTO t(t) VALUES ('optimize')").expect("a commit");
    connection
}

/// The crate's engine on our terms, so that only the engines differ.
#[derive(Default)]
struct Terms;

impl Tokenizer for Terms {
    fn tokenize(&self, text: &str) -> Vec<String> {
        let mut terms = Vec::new();
        Analyzer::new(Field::Grams).terms(text, |term| terms.push(term.to_owned()));
        terms
    }
}
