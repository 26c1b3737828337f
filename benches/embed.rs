//! Embedding on both engines, each in a process of its own: loading, queries of 8 and 12 tokens, texts of 200 tokens on
//! one thread and on all cores, and what is resident, beside the figures of models/MODEL.md.
//!
//! `cargo bench --bench embed [-- ROUNDS]`; ONNX Runtime takes part where ORT_DYLIB_PATH names its library.

use std::hint::black_box;
use std::process::Command;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

use kebab_lite::config::{EmbeddingModel, ModelSource, RuntimeLibrary};
use kebab_lite::index::embed::{Embedder, GOLDEN_TEXT, NO_REPORTS};
use tokenizers::Tokenizer;

const ENGINE: &str = "KEBAB_BENCH_ENGINE";

/// What MODEL.md measured: load, 8 tokens, texts a second on one thread and on two, megabytes after 200 texts.
const MODEL_MD: [(&str, [&str; 6]); 2] = [
    ("tract", ["275 ms", "6.9 ms", "–", "8.8-9.4 /s", "18.3 /s", "192 MB (126 given back)"]),
    ("onnxruntime", ["88 ms", "3.2 ms", "–", "18.6-19.7 /s", "34.7 /s", "143 MB"]),
];

fn main() {
    let rounds = std::env::args().skip(1).find_map(|arg| arg.parse().ok()).unwrap_or(3);
    match std::env::var(ENGINE) {
        Ok(engine) => measure(&engine, rounds),
        Err(_) => {
            for (engine, _) in MODEL_MD {
                if engine == "onnxruntime" && std::env::var_os("ORT_DYLIB_PATH").is_none() {
                    println!("\nONNX Runtime is left out: ORT_DYLIB_PATH is not set");
                    continue;
                }
                let own = std::env::current_exe().expect("this program");
                let status = Command::new(own)
                    .arg(rounds.to_string())
                    .env(ENGINE, engine)
                    .env(NO_REPORTS.0, NO_REPORTS.1)
                    .status();
                assert!(status.expect("a process for the engine").success(), "{engine}");
            }
        }
    }
}

fn measure(engine: &str, rounds: usize) {
    let tokenizer = Tokenizer::from_bytes(include_bytes!("../models/tokenizer.json")).expect("the tokenizer");
    let path = std::env::var_os("ORT_DYLIB_PATH").filter(|_| engine == "onnxruntime");
    let named = path.map(|path| ("ORT_DYLIB_PATH", path.into())).into_iter().collect();
    let onnxruntime = RuntimeLibrary { named, folders: None };
    let model = EmbeddingModel { source: ModelSource::Builtin, dimensions: None, onnxruntime };
    let started = Instant::now();
    let embedder = Embedder::open(&model).expect("the model");
    let load = started.elapsed().as_secs_f64() * 1e3;
    assert!(engine == "tract" || embedder.runtime().starts_with("ONNX Runtime"), "{}", embedder.runtime());

    let query = |tokens: usize| {
        let text = text(&tokenizer, "query: ", tokens, 0);
        let mut times: Vec<f64> =
            (0..50 * rounds).map(|_| timed(|| black_box(embedder.query(&text)).is_ok())).collect();
        times.sort_by(f64::total_cmp);
        (times[times.len() / 2], times[times.len() / 10])
    };
    let (eight, twelve) = (query(8), query(12));
    let loaded = resident();
    let texts: Vec<String> = (0..40).map(|n| text(&tokenizer, "passage: ", 200, n)).collect();
    let alone = rates(rounds, || {
        // A query has a shorter prefix by the same number of tokens.
        texts.iter().take(20).for_each(|text| assert!(embedder.query(text).is_ok()));
        20
    });
    let together = {
        let mut bulk = embedder.bulk().expect("a bulk");
        let never = AtomicBool::new(false);
        let mut run = || bulk.passages(&texts, &never).expect("vectors").len();
        run();
        rates(rounds, run)
    };
    let after = resident();
    for _ in 0..20 {
        assert!(embedder.query(GOLDEN_TEXT).is_ok());
    }

    let (_, published) = MODEL_MD.iter().find(|(name, _)| *name == engine).expect("a known engine");
    println!("\n{}", embedder.runtime());
    println!("{:<34}{:>24}{:>28}", "", "here", "MODEL.md");
    let lines = [
        ("load, tokenizer included", format!("{load:.0} ms")),
        ("query of 8 tokens, p50 (p10)", format!("{:.2} ({:.2}) ms", eight.0, eight.1)),
        ("query of 12 tokens, p50 (p10)", format!("{:.2} ({:.2}) ms", twelve.0, twelve.1)),
        ("texts of 200 tokens, one thread", format!("{:.1} /s, {:.1} ms CPU", alone.0, alone.1)),
        ("the same, a session a core", format!("{:.1} /s, {:.1} ms CPU", together.0, together.1)),
        ("resident: loaded / after the bulk", format!("{loaded} / {after} MB")),
    ];
    for ((name, here), published) in lines.iter().zip(published) {
        println!("{name:<34}{here:>24}{published:>28}");
    }
}

/// A text that is so many tokens long with its prefix and the two around it.
fn text(tokenizer: &Tokenizer, prefix: &str, tokens: usize, start: usize) -> String {
    const WORDS: &str = "the committee met on Tuesday and discussed the budget of the library while rain fell on the old \
                         roof and nobody asked who had left the window open during the long winter night before";
    let words: Vec<&str> = WORDS.split(' ').collect();
    let mut text = String::new();
    for at in start.. {
        text.push_str(words[at % words.len()]);
        let length = tokenizer.encode(format!("{prefix}{text}"), true).expect("tokens").len();
        if length >= tokens {
            break;
        }
        text.push(' ');
    }
    text
}

fn timed(run: impl FnOnce() -> bool) -> f64 {
    let started = Instant::now();
    assert!(run());
    started.elapsed().as_secs_f64() * 1e3
}

/// The best round's texts a second, and the least processor time a text.
fn rates(rounds: usize, mut run: impl FnMut() -> usize) -> (f64, f64) {
    let mut best = (0.0_f64, f64::MAX);
    for _ in 0..rounds {
        let (started, before) = (Instant::now(), processor_seconds());
        let count = run() as f64;
        best.0 = best.0.max(count / started.elapsed().as_secs_f64());
        best.1 = best.1.min((processor_seconds() - before) * 1e3 / count);
    }
    best
}

/// Of this process, all threads; 0 where the system does not tell it so.
fn processor_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let behind = stat.rsplit(')').next().unwrap_or("");
    behind.split_whitespace().skip(11).take(2).filter_map(|ticks| ticks.parse::<f64>().ok()).sum::<f64>() / 100.0
}

fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap_or("");
    line.split_whitespace().next().and_then(|kilobytes| kilobytes.parse::<u64>().ok()).unwrap_or(0) / 1000
}
