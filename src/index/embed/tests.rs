//! The model within the program on the engine within the program, the one a process without a library has.

use std::collections::BTreeSet;
use std::sync::LazyLock;
use std::time::{Duration, Instant};

use super::*;
use crate::config::RuntimeLibrary;

static EMBEDDER: LazyLock<Embedder> = LazyLock::new(|| {
    let onnxruntime = RuntimeLibrary::default();
    Embedder::open(&EmbeddingModel { source: ModelSource::Builtin, dimensions: None, onnxruntime }).unwrap()
});

static NEVER: AtomicBool = AtomicBool::new(false);

fn passages(texts: &[&str]) -> Vec<Vec<Vec<f32>>> {
    let texts: Vec<String> = texts.iter().map(|text| text.to_string()).collect();
    EMBEDDER.bulk().unwrap().passages(&texts, &NEVER).unwrap()
}

fn cosine(a: &[f32], b: &[f32]) -> f32 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

fn sha256(bytes: &[u8]) -> String {
    ring::digest::digest(&ring::digest::SHA256, bytes).as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
#[ignore = "writes the kept vector anew"]
fn write_golden() {
    let vector = EMBEDDER.query(GOLDEN_TEXT).unwrap();
    let bytes: Vec<u8> = vector.iter().flat_map(|x| x.to_le_bytes()).collect();
    std::fs::write(concat!(env!("CARGO_MANIFEST_DIR"), "/models/golden.f32"), bytes).unwrap();
}

#[test]
fn the_files_are_those_the_id_names() {
    let model = sha256(include_bytes!("../../../models/model.onnx"));
    assert_eq!(model, "b03acd6db91aee057627dc302bb98ec6eb36d6201f0760302a9cff233d5956a5");
    let tokenizer = sha256(include_bytes!("../../../models/tokenizer.json"));
    assert_eq!(tokenizer, "57a4f8b0eb860a6e09ba4d621748290bc57c1fd124130fad2abd4293fc01dd46");
    assert_eq!(EMBEDDER.id(), "multilingual-e5-small-q4-b03acd6d");
    assert_eq!((EMBEDDER.provider(), EMBEDDER.dimensions(), EMBEDDER.runtime()), ("builtin", 384, "tract 0.23.9"));
}

#[test]
fn the_named_tract_is_the_one_built_in() {
    let lock = include_str!("../../../Cargo.lock").replace("\r\n", "\n");
    assert!(lock.contains("name = \"tract-onnx\"\nversion = \"0.23.9\"\n"));
}

#[test]
fn a_known_question_has_its_known_vector() {
    let agreement = EMBEDDER.agreement().unwrap().unwrap();
    assert!((agreement - 1.0).abs() < 1e-5, "{agreement}");
    assert_eq!(golden().count(), 384);
    // A file that was exchanged together with the model would agree with itself.
    let first = EMBEDDER.query(GOLDEN_TEXT).unwrap();
    for (found, expected) in first.iter().zip([0.04973, -0.00813, -0.02535, -0.03597]) {
        assert!((found - expected).abs() < 1e-4, "{:?}", &first[..4]);
    }
}

#[test]
fn meaning_counts_not_words_nor_language() {
    let found = passages(&[
        "To shut down the daemon, send it a termination signal and wait for it to exit.",
        "데몬을 종료하려면 종료 신호를 보내고 끝날 때까지 기다린다.",
        "The waiter served us soup and bread in the garden.",
    ]);
    for question in ["how do I stop the server", "서버를 어떻게 멈추나요"] {
        let question = EMBEDDER.query(question).unwrap();
        let scores: Vec<f32> = found.iter().map(|windows| cosine(&windows[0], &question)).collect();
        assert!(scores[0] > scores[2] + 0.03 && scores[1] > scores[2] + 0.03, "{scores:?}");
    }
}

#[test]
fn vectors_are_of_unit_length_whatever_the_text() {
    let megabyte = "한글 and english 日本語 words, ".repeat(25_000);
    let cut = megabyte.char_indices().nth(6_000).unwrap().0;
    let texts =
        ["", " \n\t ", "\u{0}\u{1}\u{7f}", "ᚠᚢᚦᚨᚱᚲ ꯃꯤꯇꯩ 𐎠𐎡𐎢", "🙂👩‍👩‍👧‍👦", "a\u{301}\u{301}\u{301}", &megabyte[..cut]];
    let found = passages(&texts);
    for (text, windows) in texts.iter().zip(&found) {
        assert!(!windows.is_empty(), "{text:.20?}");
        assert!(text.len() < 1000 || windows.len() > 2, "{} windows", windows.len());
        for vector in windows.iter().chain([&EMBEDDER.query(text).unwrap()]) {
            assert_eq!(vector.len(), 384);
            assert!((cosine(vector, vector) - 1.0).abs() < 1e-5, "{text:.20?}");
        }
    }
    // A query is bounded, so one of any length is answered in the time of a window.
    let started = Instant::now();
    EMBEDDER.query(&megabyte).unwrap();
    assert!(started.elapsed() < Duration::from_secs(5), "{:?}", started.elapsed());
}

#[test]
fn no_part_of_a_long_text_is_lost() {
    let filler = "The committee met on Tuesday and discussed the budget of the library. ".repeat(60);
    let tail = "Shut down the daemon with a termination signal.";
    let found = passages(&[&filler, &format!("{filler}{tail}")]);
    let question = EMBEDDER.query("how do I stop the server").unwrap();
    let best = |windows: &[Vec<f32>]| windows.iter().map(|window| cosine(window, &question)).fold(f32::MIN, f32::max);
    assert!(found[0].len() >= 2 && found[1].len() >= 2);
    assert!(best(&found[1]) > best(&found[0]) + 0.01, "{} {}", best(&found[0]), best(&found[1]));
}

#[test]
fn a_bulk_gives_what_one_by_one_gives_and_in_the_order_of_the_texts() {
    let texts: Vec<String> = (0..24).map(|n| "word ".repeat(120 - n * 3) + &format!("number {n}")).collect();
    let mut bulk = EMBEDDER.bulk().unwrap();
    // Enough tokens for sessions of its own.
    let together = bulk.passages(&texts, &NEVER).unwrap();
    for at in [0, 11, 23] {
        let alone = EMBEDDER.bulk().unwrap().passages(&texts[at..=at], &NEVER).unwrap();
        assert_eq!(alone[0], together[at]);
    }
    let distinct: BTreeSet<Vec<u8>> =
        together.iter().map(|windows| windows[0].iter().flat_map(|x| x.to_le_bytes()).collect()).collect();
    assert_eq!(distinct.len(), texts.len());

    let stopped = AtomicBool::new(true);
    assert_eq!(bulk.passages(&texts, &stopped).unwrap(), vec![Vec::<Vec<f32>>::new(); texts.len()]);
}

/// tract unpacks 4-bit weights of other block sizes on every call; then 8 tokens take as long as many.
#[test]
fn weights_are_unpacked_once() {
    let short = "stop the server";
    let long = "stop the server and the daemon ".repeat(40);
    let time = |text: &str| {
        let timed = |_| {
            let started = Instant::now();
            EMBEDDER.query(text).unwrap();
            started.elapsed()
        };
        (0..3).map(timed).min().unwrap()
    };
    let (few, many) = (time(short), time(&long));
    assert!(few * 4 < many, "a short query takes {few:?}, a long one {many:?}");
}

#[test]
fn dimensions_that_are_not_the_models_are_refused() {
    let model =
        EmbeddingModel { source: ModelSource::Builtin, dimensions: Some(768), onnxruntime: RuntimeLibrary::default() };
    let Err(error) = Embedder::open(&model) else { panic!("it was opened") };
    assert_eq!(error.code(), "model_unreachable");
    assert_eq!(
        error.to_string(),
        "model multilingual-e5-small: it has 384 dimensions, and models.embedding.dimensions is 768"
    );
}

#[test]
fn what_is_no_direction_is_no_vector() {
    assert_eq!(unit(vec![3.0, 4.0]).unwrap(), [0.6, 0.8]);
    assert_eq!(unit(vec![1.0, f32::NAN]).unwrap_err(), "it gives values that are not numbers");
    assert_eq!(unit(vec![1.0, f32::INFINITY]).unwrap_err(), "it gives values that are not numbers");
    assert_eq!(unit(vec![0.0, 0.0]).unwrap_err(), "it gives vectors of zeros");
}
