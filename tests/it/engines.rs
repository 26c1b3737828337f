//! The engines and the models of a user's own: which library is taken, which is passed over and why, what a folder must
//! hold, and that both engines give the same vectors.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use kebab_lite::config::{EmbeddingModel, ModelSource, RerankingModel, RuntimeLibrary};
use kebab_lite::index::embed::{Embedder, Reranker};
use serde_json::{Value, json};

use crate::harness::{Cmd, Dir};
use crate::onnx::{self, Output, WORDS};

/// The library of ONNX Runtime: the one ORT_DYLIB_PATH names, else the one of the Python package, downloaded once. Where
/// neither is to be had, tests of it say so past the capturing of their output.
fn library() -> Option<&'static Path> {
    static LIBRARY: OnceLock<Option<PathBuf>> = OnceLock::new();
    let found = LIBRARY.get_or_init(|| match std::env::var_os("ORT_DYLIB_PATH") {
        Some(path) => Some(path.into()),
        None => downloaded(),
    });
    if found.is_none() {
        skipped("no library of ONNX Runtime: set ORT_DYLIB_PATH, or have pip and a network");
    }
    found.as_deref()
}

fn skipped(why: &str) {
    use std::io::Write;
    writeln!(std::io::stderr(), "\nSKIPPED, a test of the engines: {why}\n").expect("stderr");
}

fn downloaded() -> Option<PathBuf> {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("onnxruntime-1.31.1");
    let within = |folder: &Path| {
        let entries = std::fs::read_dir(folder.join("onnxruntime/capi")).ok()?;
        let mut paths = entries.flatten().map(|entry| entry.path());
        paths.find(|path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("libonnxruntime.")))
    };
    if let Some(path) = within(&folder) {
        return Some(path);
    }
    let python = |args: &[&str]| {
        let status = Command::new("python3").args(args).output();
        status.is_ok_and(|output| output.status.success()).then_some(())
    };
    let making = folder.with_extension(std::process::id().to_string());
    let place = making.to_str()?;
    let download = ["-m", "pip", "download", "--quiet", "--no-deps", "--retries", "0", "--timeout", "20", "-d", place];
    python(&[&download[..], &["onnxruntime==1.31.1"]].concat())?;
    let wheel = std::fs::read_dir(&making).ok()?.flatten().next()?.path();
    python(&["-m", "zipfile", "-e", wheel.to_str()?, place])?;
    // Another process may have been quicker; then its folder stays.
    if std::fs::rename(&making, &folder).is_err() {
        std::fs::remove_dir_all(&making).expect("the folder just made");
    }
    within(&folder)
}

/// The program with the model within it.
fn builtin(dir: &Dir, args: &[&str]) -> Cmd {
    dir.cmd(args.iter().copied()).env("KEBAB_MODELS_EMBEDDING_PROVIDER", "builtin")
}

/// One of doctor's checks.
fn check(doctor: &Value, name: &str) -> Value {
    let checks = doctor["checks"].as_array().expect("checks");
    checks.iter().find(|check| check["name"] == name).expect("a check").clone()
}

fn detail(check: &Value) -> &str {
    check["detail"].as_str().expect("a detail")
}

fn copied_library(dir: &Dir, name: &str, change: impl FnOnce(&mut Vec<u8>)) -> PathBuf {
    let mut bytes = std::fs::read(library().expect("asked for before")).expect("the library");
    change(&mut bytes);
    dir.write(name, bytes)
}

#[test]
fn the_library_is_used_where_one_is_named_and_the_engine_within_where_none_is() {
    let dir = Dir::indexed(&[("a.md", "Shut down the daemon.\n")]);
    let doctor = builtin(&dir, &["doctor", "--json", "--onnxruntime", "none"]).ok().json();
    let model = check(&doctor, "embedding_model");
    assert!(detail(&model).contains(" on tract 0.23.9; "), "{model}");
    let schema = builtin(&dir, &["schema", "--json"]).ok().json();
    assert_eq!(schema["models"]["embedding_version"], "multilingual-e5-small-q4-b03acd6d");
    let off = dir.cmd(["doctor", "--json"]).ok().json();
    assert!(detail(&check(&off, "embedding_model")).starts_with("off: "), "{off}");
    assert_eq!(dir.cmd(["schema", "--json"]).ok().json()["models"]["embedding_version"], Value::Null);

    let Some(library) = library() else { return };
    let expected = format!(" on ONNX Runtime 1.31.1 ({}); ", library.display());
    let folder = library.parent().expect("a folder");
    for place in [library, folder] {
        let doctor = builtin(&dir, &["doctor", "--json"]).env("ORT_DYLIB_PATH", place).ok().json();
        assert!(detail(&check(&doctor, "embedding_model")).contains(&expected), "{doctor}");
    }
    dir.config(&format!("[models.embedding]\nonnxruntime = {:?}\n", library.display().to_string()));
    let doctor = builtin(&dir, &["doctor", "--json"]).ok().json();
    assert!(detail(&check(&doctor, "embedding_model")).contains(&expected), "{doctor}");
    dir.config("");
    if cfg!(target_os = "linux") {
        let found = builtin(&dir, &["doctor", "--json"]).env("LD_LIBRARY_PATH", folder).ok().json();
        assert!(detail(&check(&found, "embedding_model")).contains(&expected), "{found}");
    }
}

#[test]
fn the_library_keeps_and_reports_nothing() {
    let Some(library) = library() else { return };
    let dir = Dir::indexed(&[("a.md", "Shut down the daemon.\n")]);
    let doctor = builtin(&dir, &["doctor", "--json"]).env("ORT_DYLIB_PATH", library).env("ORT_DISABLE_TELEMETRY", "0");
    let doctor = doctor.ok().json();
    assert!(detail(&check(&doctor, "embedding_model")).contains(" on ONNX Runtime "), "{doctor}");
    let left: Vec<_> = std::fs::read_dir(dir.home()).expect("a home").flatten().map(|entry| entry.path()).collect();
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn a_library_that_cannot_be_used_is_passed_over_with_a_reason() {
    let dir = Dir::indexed(&[("a.md", "Shut down the daemon.\n")]);
    let passed_over = |library: &Path, why: &str| {
        let doctor = builtin(&dir, &["doctor", "--json"]).env("ORT_DYLIB_PATH", library).ok().json();
        let model = check(&doctor, "embedding_model");
        assert!(detail(&model).contains(" on tract 0.23.9; "), "{model}");
        let expected = format!("passed over: ORT_DYLIB_PATH: {}: ", library.display());
        let reason = detail(&model).split_once(&expected).unwrap_or_else(|| panic!("{model}")).1;
        assert!(reason.contains(why), "{reason}");
    };
    passed_over(&dir.root().join("none.so"), "No such file");
    passed_over(&dir.write("text.so", "x".repeat(1000)), if cfg!(target_os = "linux") { "not a library" } else { "" });
    if cfg!(target_os = "linux") {
        for (name, version, why) in [
            ("old", Some("1.20.1"), "version 1.20.1, needed is 1.24 or later"),
            ("other", None, "it has no OrtGetApiBase"),
        ] {
            match made_library(&dir, name, version) {
                Some(path) => passed_over(&path, why),
                None => skipped("no C compiler `cc` to make a library with"),
            }
        }
    }
    if library().is_none() || !cfg!(all(target_os = "linux", target_arch = "x86_64")) {
        return;
    }
    passed_over(&copied_library(&dir, "half.so", |bytes| bytes.truncate(bytes.len() / 2)), "it is cut short: ");
    passed_over(&copied_library(&dir, "tail.so", |bytes| bytes.truncate(bytes.len() - 100)), "it is cut short: ");
    passed_over(&copied_library(&dir, "arm.so", |bytes| bytes[18] = 183), "it is for aarch64 processors");
}

/// A library that tells this version and serves no API, or is none of ONNX Runtime's.
fn made_library(dir: &Dir, name: &str, version: Option<&str>) -> Option<PathBuf> {
    let code = match version {
        Some(version) => format!(
            "static const void *api(unsigned v) {{ (void)v; return 0; }}\n\
             static const char *version(void) {{ return \"{version}\"; }}\n\
             static const struct {{ const void *(*a)(unsigned); const char *(*v)(void); }} base = {{ api, version }};\n\
             const void *OrtGetApiBase(void) {{ return &base; }}\n"
        ),
        None => "int nothing(void) { return 0; }\n".to_owned(),
    };
    let source = dir.write(&format!("{name}.c"), code);
    let library = dir.root().join(format!("{name}.so"));
    let made = Command::new("cc").args(["-shared", "-fPIC", "-o"]).arg(&library).arg(&source).output();
    made.is_ok_and(|output| output.status.success()).then_some(library)
}

/// One engine a process: the texts come from a file, the vectors go to one.
#[test]
#[ignore = "other tests start it in a process of its own"]
fn vectors_of_one_engine() {
    let [library, texts, vectors] =
        ["LIBRARY", "TEXTS", "VECTORS"].map(|name| std::env::var(format!("KEBAB_TEST_{name}")).expect("set"));
    let named = if library.is_empty() { vec![] } else { vec![("test", library.clone().into())] };
    let onnxruntime = RuntimeLibrary { named, folders: None };
    let model = EmbeddingModel { source: ModelSource::Builtin, dimensions: None, onnxruntime };
    let embedder = Embedder::open(&model).expect("the model");
    assert_eq!(embedder.runtime().starts_with("ONNX Runtime "), !library.is_empty(), "{}", embedder.runtime());
    let texts: Vec<String> = serde_json::from_slice(&std::fs::read(texts).expect("texts")).expect("JSON");
    let found: Vec<Vec<f32>> = texts.iter().map(|text| embedder.query(text).expect("a vector")).collect();
    std::fs::write(vectors, json!(found).to_string()).expect("vectors");
}

/// Ends with exit code 0 after so many milliseconds, whatever the loading of the model has come to.
#[test]
#[ignore = "another test starts it in a process of its own"]
fn ending_while_a_model_loads() {
    let [library, moment] = ["LIBRARY", "MOMENT"].map(|name| std::env::var(format!("KEBAB_TEST_{name}")).expect("set"));
    let onnxruntime = RuntimeLibrary { named: vec![("test", library.into())], folders: None };
    let model = EmbeddingModel { source: ModelSource::Builtin, dimensions: None, onnxruntime };
    std::thread::spawn(move || Embedder::open(&model).map(|embedder| embedder.query("stop")));
    std::thread::sleep(std::time::Duration::from_millis(moment.parse().expect("a number")));
    kebab_lite::exit::end(0);
}

#[test]
fn a_process_may_end_while_its_model_loads() {
    let Some(library) = library() else { return };
    for moment in [0, 5, 10, 20, 30, 40, 60, 80, 120, 200] {
        let mut command = Command::new(std::env::current_exe().expect("this program"));
        command.args(["--ignored", "--exact", "engines::ending_while_a_model_loads"]);
        command.env("KEBAB_TEST_LIBRARY", library).env("KEBAB_TEST_MOMENT", moment.to_string());
        let output = command.env("ORT_DISABLE_TELEMETRY", "1").output().expect("a process");
        assert!(output.status.success(), "{moment} ms: {} {output:?}", output.status);
    }
}

#[test]
fn both_engines_give_the_same_vectors() {
    let Some(library) = library() else { return };
    let dir = Dir::new();
    let texts = [
        "how do I stop the server",
        "서버를 어떻게 멈추나요",
        "getUserName returns null in v1.0.21",
        "",
        "ᚠᚢᚦ 🙂",
        &"The committee met on Tuesday and discussed the budget. 예산을 논의했다. ".repeat(30),
    ];
    let file = dir.write("texts.json", json!(texts).to_string());
    let vectors = |library: &str| -> Vec<Vec<f32>> {
        let out = dir.root().join("vectors.json");
        let mut command = Command::new(std::env::current_exe().expect("this program"));
        command.args(["--ignored", "--exact", "engines::vectors_of_one_engine"]);
        command.env("KEBAB_TEST_LIBRARY", library).env("KEBAB_TEST_TEXTS", &file).env("KEBAB_TEST_VECTORS", &out);
        command.env("ORT_DISABLE_TELEMETRY", "1");
        let output = command.output().expect("a process");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
        serde_json::from_slice(&std::fs::read(out).expect("vectors")).expect("JSON")
    };
    let (ours, theirs) = (vectors(""), vectors(library.to_str().expect("Unicode")));
    assert_eq!((ours.len(), theirs.len()), (texts.len(), texts.len()));
    assert_ne!(ours, theirs, "one of the engines was used twice");
    for ((ours, theirs), text) in ours.iter().zip(&theirs).zip(texts) {
        let cosine: f32 = ours.iter().zip(theirs).map(|(a, b)| a * b).sum();
        assert!(cosine >= 0.999, "{cosine} for {text:.30?}");
    }
}

/// The vectors of `WORDS`.
fn table(columns: usize) -> Vec<Vec<f32>> {
    let vector = |word: usize| (0..columns).map(|column| if column == word % columns { 2.0 } else { 0.5 }).collect();
    (0..WORDS.len()).map(vector).collect()
}

fn of_folder(folder: &Path) -> EmbeddingModel {
    EmbeddingModel {
        source: ModelSource::Folder(folder.to_owned()),
        dimensions: None,
        onnxruntime: RuntimeLibrary::default(),
    }
}

#[test]
fn a_folder_is_a_model() {
    let dir = Dir::indexed(&[("a.md", "Stop the server.\n")]);
    let folder = dir.root().join("mine");
    let description = "dimensions = 4\nquery_prefix = \"stop \"\npooling = \"mean\"\nmax_tokens = 16\n";
    onnx::folder(&folder, &table(4), Output::Tokens, description);
    let embedder = Embedder::open(&of_folder(&folder)).expect("a model");
    assert_eq!((embedder.provider(), embedder.dimensions()), ("onnx", 4));
    assert!(embedder.id().starts_with("mine-"), "{}", embedder.id());
    // The mean of the vectors of `stop` and `server`, made unit.
    let expected = [0.5_f32, 1.25, 1.25, 0.5].map(|x| x / 3.625_f32.sqrt());
    let found = embedder.query("server").expect("a vector");
    assert!(found.iter().zip(expected).all(|(found, expected)| (found - expected).abs() < 1e-6), "{found:?}");
    let long = "soup ".repeat(40);
    let never = std::sync::atomic::AtomicBool::new(false);
    let windows = embedder.bulk().expect("a bulk").passages(&[long], &never).expect("vectors");
    assert_eq!(windows[0].len(), 3);

    let doctor = dir.cmd(["doctor", "--json"]).env("KEBAB_MODELS_EMBEDDING_PROVIDER", "onnx");
    let doctor = doctor.env("KEBAB_MODELS_EMBEDDING_MODEL", &folder).ok().json();
    assert!(detail(&check(&doctor, "embedding_model")).starts_with("mine-"), "{doctor}");

    // Any change of a file makes another model of it.
    let id = embedder.id().to_owned();
    std::fs::write(folder.join("model.toml"), description.replace("stop ", "halt ")).expect("a description");
    assert_ne!(Embedder::open(&of_folder(&folder)).expect("a model").id(), id);

    onnx::folder(&folder, &table(4), Output::Mean, "dimensions = 4\npooling = \"none\"\n");
    let found = Embedder::open(&of_folder(&folder)).expect("a model").query("stop server").expect("a vector");
    assert!(found.iter().zip(expected).all(|(found, expected)| (found - expected).abs() < 1e-6), "{found:?}");
}

#[test]
fn a_folder_that_is_no_model_is_a_named_error() {
    let dir = Dir::new();
    let folder = dir.root().join("mine");
    let well = "dimensions = 4\n";
    let nan = vec![vec![f32::NAN; 4]; WORDS.len()];
    let remove = |name: &'static str| move |folder: &Path| std::fs::remove_file(folder.join(name)).expect("a file");
    let cut = |name: &'static str| {
        move |folder: &Path| {
            let bytes = std::fs::read(folder.join(name)).expect("a file");
            std::fs::write(folder.join(name), &bytes[..bytes.len() / 2]).expect("a file");
        }
    };
    type Change<'a> = Box<dyn Fn(&Path) + 'a>;
    type Case<'a> = (&'a [Vec<f32>], Output, &'a str, Change<'a>, &'a str);
    let nothing = || -> Change { Box::new(|_| {}) };
    let cases: Vec<Case> = vec![
        (&[], Output::Tokens, well, Box::new(remove("model.onnx")), "there is no model.onnx in "),
        (&[], Output::Tokens, well, Box::new(remove("tokenizer.json")), "there is no tokenizer.json in "),
        (&[], Output::Tokens, well, Box::new(remove("model.toml")), "there is no model.toml in "),
        (&[], Output::Tokens, well, Box::new(cut("model.onnx")), "model"),
        (&[], Output::Tokens, well, Box::new(cut("tokenizer.json")), "tokenizer.json: "),
        (&[], Output::Tokens, "dimensions = 8\n", nothing(), "it gives 4 dimensions, and model.toml says 8"),
        (&[], Output::Tokens, "dimensions = 0\n", nothing(), "dimensions is 0, expected 1 to 65536"),
        (&[], Output::Tokens, "dimension = 4\n", nothing(), "unknown field `dimension`"),
        (&[], Output::Tokens, "dimensions = 4\npooling = \"max\"\n", nothing(), "unknown variant `max`"),
        (&[], Output::Tokens, "dimensions = 4\npooling = \"none\"\n", nothing(), "the pooling of model.toml"),
        (&[], Output::Tokens, "dimensions = 4\noutput = \"x\"\n", nothing(), "the graph has no output \"x\""),
        (&[], Output::Tokens, "dimensions = 4\nnormalize = false\n", nothing(), "it gives vectors of length "),
        (&nan, Output::Tokens, well, nothing(), "it gives values that are not numbers"),
    ];
    for (values, output, description, change, said) in cases {
        let usual = table(4);
        onnx::folder(&folder, if values.is_empty() { &usual } else { values }, output, description);
        change(&folder);
        let Err(error) = Embedder::open(&of_folder(&folder)) else { panic!("{said}: it was opened") };
        assert_eq!(error.code(), "model_unreachable", "{error}");
        assert!(error.to_string().contains(said), "{said}: {error}");
        assert!(error.hint().is_some_and(|hint| hint.contains("models.embedding.model")), "{error}");
    }
}

#[test]
fn a_cross_encoder_scores_pairs() {
    let dir = Dir::indexed(&[("a.md", "Stop the server.\n")]);
    let folder = dir.root().join("judge");
    // One logit a word; a pair's is the mean.
    let table: Vec<Vec<f32>> = [0.0, 3.0, 3.0, 0.0, 0.0, -6.0].iter().map(|logit| vec![*logit]).collect();
    onnx::folder(&folder, &table, Output::Mean, "");
    let model = RerankingModel { folder: folder.clone(), onnxruntime: RuntimeLibrary::default() };
    let reranker = Reranker::open(&model).expect("a model");
    let scores = reranker.score("stop", &["server", "soup", "halt", &"soup ".repeat(5000)]).expect("scores");
    assert!(scores[0] > 0.9 && scores[0] > scores[2] && scores[2] > scores[1] && scores[1] > scores[3], "{scores:?}");
    assert_eq!(reranker.score("stop", &[]).expect("no scores"), Vec::<f32>::new());

    dir.config(&format!("[models.reranker]\nmodel = {:?}\n", folder.display().to_string()));
    let doctor = dir.cmd(["doctor", "--json"]).ok().json();
    assert_eq!(detail(&check(&doctor, "reranker")), "judge on tract 0.23.9");
    std::fs::remove_file(folder.join("model.onnx")).expect("a file");
    let doctor = dir.cmd(["doctor", "--json"]).run().code(3).json();
    let judged = check(&doctor, "reranker");
    assert_eq!(judged["ok"], false);
    assert!(detail(&judged).contains("there is no model.onnx in "), "{judged}");
}

#[test]
fn an_endpoint_that_is_down_is_a_failed_check_and_no_more() {
    let dir = Dir::indexed(&[("a.md", "Stop the server.\n")]);
    // A port that was free a moment ago.
    let port =
        std::net::TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr()).expect("a port").port();
    let doctor = dir.cmd(["doctor", "--json"]).env("KEBAB_MODELS_EMBEDDING_PROVIDER", "openai");
    let doctor = doctor.env("KEBAB_MODELS_EMBEDDING_MODEL", "m").env("KEBAB_MODELS_EMBEDDING_API_KEY", "sk-secret");
    let doctor = doctor.env("KEBAB_MODELS_EMBEDDING_ENDPOINT", format!("http://127.0.0.1:{port}")).run().code(3);
    let model = check(&doctor.json(), "embedding_model");
    assert_eq!(model["ok"], false);
    assert!(detail(&model).contains("nothing listens there"), "{model}");
    assert!(!doctor.stdout.contains("sk-secret") && !doctor.stderr.contains("sk-secret"));
}
