//! The rules of the configuration, one test a rule, over folders made by hand and an environment that is a list.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

use super::*;

/// A home folder, a workspace in it and an environment; removed when dropped.
struct Place {
    base: PathBuf,
    env: Vec<(String, String)>,
}

impl Place {
    fn new() -> Place {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let name = format!("kebab-config-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let base = std::env::temp_dir().join(name);
        for folder in ["home/notes/sub", "other", "config/kebab-lite"] {
            std::fs::create_dir_all(base.join(folder)).unwrap();
        }
        let base = settle(&base);
        let text = |path: &str| base.join(path).to_str().unwrap().to_owned();
        let home = if cfg!(windows) { "USERPROFILE" } else { "HOME" };
        let env = vec![
            (home.into(), text("home")),
            ("XDG_CONFIG_HOME".into(), text("config")),
            ("XDG_DATA_HOME".into(), text("data")),
        ];
        Place { base, env }
    }

    fn set(mut self, name: &str, value: &str) -> Place {
        self.env.retain(|(known, _)| known != name);
        self.env.push((name.into(), value.into()));
        self
    }

    /// The default config file; `'` stands for `"`.
    fn file(self, text: &str) -> Place {
        std::fs::write(self.config_file(), text.replace('\'', "\"")).unwrap();
        self
    }

    fn config_file(&self) -> PathBuf {
        self.path("config/kebab-lite/config.toml")
    }

    fn path(&self, below: &str) -> PathBuf {
        below.split('/').filter(|part| !part.is_empty()).fold(self.base.clone(), |path, part| path.join(part))
    }

    fn load_in(&self, flags: &Flags, cwd: &Path) -> Result<Config> {
        let env = |name: &str| self.env.iter().find(|(known, _)| known == name).map(|(_, value)| value.clone());
        load(flags, &env, cwd)
    }

    fn load(&self) -> Config {
        self.load_in(&Flags::default(), &self.path("home/notes")).unwrap()
    }

    /// The message and the hint, with the base folder as `@` and `/` between names.
    fn error(&self) -> (String, String) {
        self.said(self.load_in(&Flags::default(), &self.path("home/notes")).unwrap_err())
    }

    fn said(&self, error: Error) -> (String, String) {
        let base = self.base.to_str().unwrap();
        let plain = |text: String| text.replace(base, "@").replace('\\', "/");
        (plain(error.to_string()), plain(error.hint().unwrap_or_default()))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.base).expect("the test's own folder");
    }
}

const FILE: &str = "config @/config/kebab-lite/config.toml: ";

#[test]
fn without_a_file_everything_has_a_default() {
    let place = Place::new();
    let config = place.load();
    let root = place.path("home/notes");
    assert_eq!(config.sources, [main_source(root, vec![])]);
    assert!(!config.root_is_named && !config.readonly);
    assert_eq!(config.ingest.max_file_bytes, 16_777_216);
    assert_eq!(config.ingest.limits, ChunkLimits { target_tokens: 320, overlap_tokens: 0, max_tokens: 448 });
    let fusion = Weights { lambda: 0.7, c: 20.0 };
    assert_eq!(config.search, Search { fusion, default_k: 10, snippet_chars: 240, stale_threshold_days: 0 });
    assert_eq!(config.index.graph_above, 300_000);
    assert_eq!((config.warnings, config.file), (vec![], None));
}

#[test]
fn every_key_of_the_file_is_read() {
    let place = Place::new().file(
        "[workspace]\nroot = '~/notes'\nexclude = ['*.tmp']\n[[workspace.sources]]\nid = 'o'\nroot = '../../other'\n\
         exclude = ['x/']\ntrust_level = 'secondary'\nsource_type = 'reference'\n[storage]\ndata_dir = 'index'\n\
         [ingest]\nmax_file_bytes = 1024\nallowed_dirs = ['${HERE}/other']\n[ingest.chunking]\ntarget_tokens = 100\n\
         overlap_tokens = 10\nmax_chunk_tokens = 200\n[search]\ndefault_k = 5\nsnippet_chars = 100\nstale_threshold_days = 30\n\
         [search.fusion]\nlambda = 0.5\nc = 50\n[index]\ngraph_above = 1000\n",
    );
    let here = place.base.to_str().unwrap().to_owned();
    let place = place.set("HERE", &here);
    let config = place.load_in(&Flags::default(), &place.path("other")).unwrap();
    let further = Source {
        id: "o".into(),
        root: place.path("other"),
        exclude: vec!["*.tmp".into(), "x/".into()],
        trust_level: Some(Trust::Secondary),
        source_type: Some("reference".into()),
    };
    assert_eq!(config.sources, [main_source(place.path("home/notes"), vec!["*.tmp".into()]), further]);
    assert!(config.root_is_named);
    assert_eq!(config.data_dir, place.path("config/kebab-lite/index"));
    assert_eq!(config.ingest.max_file_bytes, 1024);
    assert_eq!(config.ingest.allowed_dirs, [place.path("other")]);
    assert_eq!(config.ingest.limits, ChunkLimits { target_tokens: 100, overlap_tokens: 10, max_tokens: 200 });
    let fusion = Weights { lambda: 0.5, c: 50.0 };
    assert_eq!(config.search, Search { fusion, default_k: 5, snippet_chars: 100, stale_threshold_days: 30 });
    assert_eq!(config.index.graph_above, 1000);
    assert_eq!((config.warnings, config.file), (vec![], Some(place.config_file())));
}

#[test]
fn flags_go_before_the_environment_and_that_before_the_file() {
    let file = "[workspace]\nroot = '~/notes'\n[storage]\ndata_dir = 'a'\n[search]\ndefault_k = 5\n";
    let place = Place::new().file(file).set("KEBAB_WORKSPACE_ROOT", "../../other").set("KEBAB_STORAGE_DATA_DIR", "~/b");
    let place = place.set("KEBAB_SEARCH_DEFAULT_K", "7");
    let config = place.load();
    assert_eq!(config.sources[0].root, place.path("other"));
    assert_eq!(config.data_dir, place.path("home/b"));
    assert_eq!(config.search.default_k, 7);

    let flags = Flags { root: Some("sub".into()), data_dir: Some("c".into()), readonly: true, ..Flags::default() };
    let config = place.load_in(&flags, &place.path("home/notes")).unwrap();
    assert_eq!(config.sources[0].root, place.path("home/notes/sub"));
    assert_eq!(config.data_dir, place.path("home/notes/c"));
    assert!(config.readonly);
}

#[test]
fn an_empty_variable_is_an_absent_one() {
    let place =
        Place::new().set("KEBAB_WORKSPACE_ROOT", "").set("KEBAB_SEARCH_DEFAULT_K", "").set("KEBAB_READONLY", "");
    let config = place.load();
    assert_eq!((config.root_is_named, config.search.default_k, config.readonly), (false, 10, false));
}

#[test]
fn the_named_file_must_exist() {
    let place = Place::new().file("[search]\ndefault_k = 5\n");
    let cwd = place.path("home/notes");
    std::fs::write(place.path("other/mine.toml"), "[search]\ndefault_k = 6\n").unwrap();
    let flags = |name: &str| Flags { config: Some(place.path(name)), ..Flags::default() };
    assert_eq!(place.load_in(&flags("other/mine.toml"), &cwd).unwrap().search.default_k, 6);
    let error = place.load_in(&flags("other/none.toml"), &cwd).unwrap_err();
    assert_eq!(error.code(), "config_not_found");
    assert_eq!(place.said(error).0, "config: no file at @/other/none.toml");
}

#[test]
fn home_alone_is_enough() {
    let mut place = Place::new();
    place.env.retain(|(name, _)| !name.starts_with("XDG"));
    let (config, data) = if cfg!(windows) { ("AppData/Roaming", "AppData/Local") } else { (".config", ".local/share") };
    let folder = place.path(&format!("home/{config}/kebab-lite"));
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::write(folder.join("config.toml"), "[search]\ndefault_k = 8\n").unwrap();
    let loaded = place.load();
    assert_eq!(loaded.search.default_k, 8);
    assert_eq!(loaded.data_dir.parent().unwrap(), place.path(&format!("home/{data}/kebab-lite")));
}

#[test]
fn keys_of_the_original_are_one_warning() {
    let place = Place::new().file(
        "schema_version = 3\n[models.nli]\nmodel = 'x'\n[rag]\nexplain_default = true\nscore_gate = 0.3\n[search]\nrrf_k = 60\ndefault_k = 5\n[logging]\n",
    );
    let config = place.load();
    assert_eq!(config.search.default_k, 5);
    let ignored = "this build does not use: logging, models.nli, rag.explain_default, schema_version, search.rrf_k";
    assert_eq!(config.warnings, [format!("{}: {ignored}", place.config_file().display())]);
}

#[test]
fn unknown_keys_name_the_nearest_known_one() {
    let cases = [
        ("[search]\ndefualt_k = 5", "search.defualt_k: no such key", "Did you mean `search.default_k`?"),
        ("[serch]\ndefault_k = 5", "serch: no such key", "Did you mean `search`?"),
        ("default_k = 5", "default_k: no such key", "Did you mean `search.default_k`?"),
        ("[workspace]\ndata_dir = 'x'", "workspace.data_dir: no such key", "Did you mean `storage.data_dir`?"),
        (
            "[[workspace.sources]]\nid = 'a'\nroot = '.'\nexlude = []",
            "workspace.sources.exlude: no such key",
            "Did you mean `exclude`?",
        ),
    ];
    for (text, message, hint) in cases {
        assert_eq!(Place::new().file(text).error(), (format!("{FILE}{message}"), hint.to_owned()), "{text}");
    }
    let (message, hint) = Place::new().file("zzzzzzzz = 1").error();
    assert_eq!(message, format!("{FILE}zzzzzzzz: no such key"));
    assert!(hint.starts_with("Known keys: workspace.root, workspace.exclude, "), "{hint}");
}

#[test]
fn wrong_values_say_what_was_found_and_what_is_allowed() {
    let cases = [
        ("[search]\ndefault_k = 0", "search.default_k: found 0, expected a whole number from 1 to 100"),
        ("[search]\ndefault_k = 101", "search.default_k: found 101, expected a whole number from 1 to 100"),
        ("[search]\ndefault_k = -1", "search.default_k: found -1, expected a whole number from 1 to 100"),
        ("[search]\ndefault_k = '5'", "search.default_k: found a string, expected a whole number from 1 to 100"),
        ("[search]\nsnippet_chars = 1.5", "search.snippet_chars: found 1.5, expected a whole number from 20 to 10000"),
        ("search = 1", "search: found 1, expected a table"),
        ("[workspace]\nroot = 3", "workspace.root: found 3, expected a string"),
        ("[workspace]\nroot = ''", "workspace.root: it is empty"),
        ("[workspace]\nroot = '${NOPE}/x'", "workspace.root: the variable NOPE is not set"),
        ("[workspace]\nroot = '${NOPE/x'", "workspace.root: `${` without `}` in \"${NOPE/x\""),
        ("[workspace]\nexclude = '*.md'", "workspace.exclude: found a string, expected a list of strings"),
        ("[workspace]\nexclude = [1]", "workspace.exclude: found 1, expected a list of strings"),
        ("[workspace]\nsources = 'x'", "workspace.sources: found a string, expected [[workspace.sources]] tables"),
        ("[[workspace.sources]]\nroot = '.'", "workspace.sources.id: missing; every source needs an id and a root"),
        ("[[workspace.sources]]\nid = 'a'", "workspace.sources.root: missing; every source needs an id and a root"),
        (
            "[[workspace.sources]]\nid = 'a/b'\nroot = '.'",
            "workspace.sources.id: found \"a/b\", expected letters, digits, `.`, `_` and `-`, at most 64 bytes",
        ),
        (
            "[[workspace.sources]]\nid = 'ingested'\nroot = '.'",
            "workspace.sources.id: \"ingested\" is reserved for documents that lie in no source; choose another",
        ),
        (
            "[[workspace.sources]]\nid = 'a'\nroot = '.'\ntrust_level = 'high'",
            "workspace.sources.trust_level: found \"high\", expected one of: generated, secondary, primary",
        ),
        (
            "[[workspace.sources]]\nid = 'a'\nroot = '~/notes'\n[[workspace.sources]]\nid = 'a'\nroot = '../../other'",
            "workspace.sources: the id \"a\" is taken; every source needs its own",
        ),
        (
            "[[workspace.sources]]\nid = 'a'\nroot = '~/notes'\n[[workspace.sources]]\nid = 'b'\nroot = '~/notes/sub/..'",
            "workspace.sources: @/home/notes is the root of two sources",
        ),
        (
            "[ingest.chunking]\ntarget_tokens = 300\nmax_chunk_tokens = 200",
            "ingest.chunking.max_chunk_tokens: 200 is less than target_tokens (300)",
        ),
        (
            "[ingest.chunking]\ntarget_tokens = 100\noverlap_tokens = 100",
            "ingest.chunking.overlap_tokens: 100 is not less than target_tokens (100)",
        ),
        (
            "[storage]\ndata_dir = '~'",
            "storage.data_dir: @/home is or holds the root @/home/notes, and the data folder is never indexed",
        ),
    ];
    for (text, message) in cases {
        assert_eq!(Place::new().file(text).error().0, format!("{FILE}{message}"), "{text}");
    }
}

#[test]
fn a_file_that_does_not_parse_gives_the_line_and_no_content() {
    let place = Place::new().file("[models.llm]\nmodel = 'x'\napi_key = 'secret-1\n");
    let (message, _) = place.error();
    assert!(message.starts_with(&format!("{FILE}line 3: ")), "{message}");
    assert!(!message.contains("secret-1"), "{message}");

    let place = Place::new();
    std::fs::write(place.config_file(), b"root = '\xff'").unwrap();
    assert_eq!(place.error().0, format!("{FILE}it is not UTF-8 text"));
}

#[test]
fn a_file_may_start_with_a_byte_order_mark() {
    assert_eq!(Place::new().file("\u{feff}[search]\ndefault_k = 5").load().search.default_k, 5);
}

#[test]
fn the_environment_is_validated_too() {
    let cases = [
        (
            "KEBAB_SEARCH_DEFAULT_K",
            "0",
            "config: KEBAB_SEARCH_DEFAULT_K: found \"0\", expected a whole number from 1 to 100",
        ),
        (
            "KEBAB_SEARCH_DEFAULT_K",
            "x",
            "config: KEBAB_SEARCH_DEFAULT_K: found \"x\", expected a whole number from 1 to 100",
        ),
        (
            "KEBAB_READONLY",
            "maybe",
            "config: KEBAB_READONLY: found \"maybe\", expected 1, true, yes, on or 0, false, no, off",
        ),
        ("KEBAB_WORKSPACE_ROOT", "${NOPE}", "config: KEBAB_WORKSPACE_ROOT: the variable NOPE is not set"),
        ("KEBAB_WORKSPACE_ROOT", "none", "root: @/home/notes/none does not exist (named by KEBAB_WORKSPACE_ROOT)"),
    ];
    for (name, value, message) in cases {
        assert_eq!(Place::new().set(name, value).error().0, message);
    }
    for (value, meaning) in
        [("1", true), ("TRUE", true), ("yes", true), ("on", true), ("0", false), ("off", false), ("no", false)]
    {
        assert_eq!(Place::new().set("KEBAB_READONLY", value).load().readonly, meaning, "{value}");
    }
}

#[test]
fn a_named_root_must_be_a_folder() {
    let place = Place::new();
    std::fs::write(place.path("other/file.md"), "x").unwrap();
    let at = |name: &str| {
        let flags = Flags { root: Some(place.path(name)), ..Flags::default() };
        let error = place.load_in(&flags, &place.path("home/notes")).unwrap_err();
        assert_eq!(error.code(), "invalid_input");
        assert_eq!(error.details()["field"], "root");
        place.said(error)
    };
    let hint = "Name an existing folder in --root.".to_owned();
    assert_eq!(at("none"), ("root: @/none does not exist (named by --root)".into(), hint.clone()));
    assert_eq!(at("other/file.md"), ("root: @/other/file.md is a file, not a folder (named by --root)".into(), hint));
}

#[test]
fn wide_folders_are_taken_only_when_named() {
    let place = Place::new();
    let refused = |cwd: &Path| place.said(place.load_in(&Flags::default(), cwd).unwrap_err());
    let hint = "Add `root = \"/path/to/notes\"` under [workspace] in the config file @/config/kebab-lite/config.toml, or run with `--root DIR`.";
    let (message, given) = refused(&place.path("home"));
    assert_eq!(
        message,
        "config: no root is named, and the working folder @/home is your home folder: it is searched only when named"
    );
    assert_eq!(given, hint);
    assert!(refused(&place.base).0.contains("is a folder that holds your home folder"));
    #[cfg(unix)]
    {
        assert!(refused(Path::new("/")).0.contains("is the root of the file system"));
        for folder in ["/etc", "/usr/share", "/var", "/bin"] {
            assert!(refused(Path::new(folder)).0.contains("is a system folder"), "{folder}");
        }
    }
    let flags = Flags { root: Some(place.path("home")), ..Flags::default() };
    let config = place.load_in(&flags, &place.path("home")).unwrap();
    assert_eq!(config.sources[0].root, place.path("home"));
    assert!(config.root_is_named);
}

#[test]
fn sources_alone_make_the_first_of_them_the_main_one() {
    let sources =
        "[[workspace.sources]]\nid = 'a'\nroot = '~/notes'\n[[workspace.sources]]\nid = 'b'\nroot = '~/gone'\n";
    let place = Place::new().file(sources);
    // The folder it is started in is not asked for, so it may be any.
    let config = place.load_in(&Flags::default(), &place.path("home")).unwrap();
    assert_eq!(config.sources.iter().map(|source| source.id.as_str()).collect::<Vec<_>>(), ["a", "b"]);
    assert!(config.root_is_named);
    assert_eq!(config.warnings, [format!("source \"b\": no folder at {}", place.path("home/gone").display())]);
}

#[test]
fn the_default_data_folder_tells_roots_apart() {
    let place = Place::new();
    let config = place.load();
    assert_eq!(config.data_dir.parent().unwrap(), place.path("data/kebab-lite"));
    let folder = config.data_dir.file_name().unwrap().to_str().unwrap();
    let root = place.path("home/notes");
    let hash = blake3::hash(root.to_str().unwrap().as_bytes()).to_hex().to_string();
    assert_eq!(folder, format!("notes-{}", &hash[..12]));
    assert_eq!(folder_name(Path::new("/x/My Notes (2024)")), "my-notes-2024-9498364764c6");
    assert!(folder_name(Path::new("/")).starts_with("root-"));
    assert!(folder_name(Path::new("/x/노트 모음")).starts_with("노트-모음-"));
}

#[test]
fn a_data_folder_may_lie_inside_the_root_and_be_missing() {
    let place = Place::new().set("KEBAB_STORAGE_DATA_DIR", "sub/../.kebab/index");
    assert_eq!(place.load().data_dir, place.path("home/notes/.kebab/index"));
}

#[test]
fn one_chunk_limit_is_enough() {
    let limits = |line: &str| Place::new().file(&format!("[ingest.chunking]\n{line}")).load().ingest.limits;
    let expected = |target_tokens, max_tokens| ChunkLimits { target_tokens, overlap_tokens: 0, max_tokens };
    assert_eq!(limits("target_tokens = 500"), expected(500, 500));
    assert_eq!(limits("target_tokens = 100"), expected(100, 448));
    assert_eq!(limits("max_chunk_tokens = 200"), expected(200, 200));
}

#[test]
fn nearest_is_silent_about_far_names() {
    assert_eq!(nearest("serach", ["search", "schema"]), Some("search"));
    assert_eq!(nearest("frobnicate", ["search", "schema"]), None);
}

#[test]
fn models_are_read_and_keys_are_not_shown() {
    let place = Place::new();
    let model = place.load().models.embedding;
    assert_eq!(model.map(|model| model.source), cfg!(feature = "onnx").then_some(ModelSource::Builtin));
    let place = Place::new().file(
        "[models.embedding]\nprovider = 'ollama'\nmodel = 'bge-m3'\nendpoint = 'http://host:1/'\ndimensions = 1024\nrequest_timeout_secs = 5\n[models.reranker]\nmodel = 'judge'\n",
    );
    let place = place.set("KEBAB_MODELS_EMBEDDING_API_KEY", "sk-secret");
    let config = place.load();
    let model = config.models.embedding.clone().unwrap();
    assert_eq!(model.dimensions, Some(1024));
    let ModelSource::Endpoint { api, address, model, key, timeout } = model.source else { panic!("{model:?}") };
    assert_eq!((api, &*address, &*model, timeout.as_secs()), (EmbeddingApi::Ollama, "http://host:1", "bge-m3", 5));
    assert_eq!(key.unwrap().reveal(), "sk-secret");
    assert_eq!(config.models.reranker.clone().unwrap().folder, place.path("config/kebab-lite/judge"));
    assert!(!format!("{config:?}").contains("sk-secret"));
    assert_eq!(config.warnings, [""; 0]);

    let place = place.set("KEBAB_MODELS_EMBEDDING_PROVIDER", "none");
    assert_eq!(place.load().models.embedding, None);
    let place = place.set("KEBAB_MODELS_EMBEDDING_PROVIDER", "onnx").set("KEBAB_MODELS_EMBEDDING_MODEL", "mine");
    let folder = place.path("home/notes/mine");
    assert_eq!(place.load().models.embedding.unwrap().source, ModelSource::Folder(folder));

    let original = "[models.embedding]\nprovider = 'fastembed'\nmodel = 'multilingual-e5-large'\ndimensions = 1024\n";
    let config = Place::new().file(original).load();
    let model = config.models.embedding.unwrap();
    assert_eq!((model.source, model.dimensions), (ModelSource::Builtin, None));
    assert_eq!(config.warnings.len(), 1);
    assert!(config.warnings[0].contains("the model within the program is used instead"), "{:?}", config.warnings);
}

#[test]
fn wrong_models_are_errors() {
    let key = "models.embedding.";
    let cases = [
        ("provider = 'openia'", "provider: found \"openia\", expected one of: builtin, onnx, ollama, openai, none"),
        ("provider = 'onnx'", "model: missing; the provider onnx needs the folder of the model"),
        ("provider = 'ollama'", "model: missing; an endpoint needs the name of a model"),
        ("provider = 'builtin'\ndimensions = -1", "dimensions: found -1, expected a whole number from 0 to 65536"),
        (
            "provider = 'builtin'\nmodel = 'x'",
            "model: found \"x\", and the model within the program is \"multilingual-e5-small\"",
        ),
        (
            "provider = 'ollama'\nmodel = 'x'\nendpoint = 'http://user:secret@host'",
            "endpoint: an address must not hold credentials; keys come from the environment",
        ),
    ];
    for (text, message) in cases {
        let error = Place::new().file(&format!("[models.embedding]\n{text}"));
        assert_eq!(error.error().0, format!("{FILE}{key}{message}"), "{text}");
    }
    let error = Place::new().set("KEBAB_MODELS_EMBEDDING_PROVIDER", "x").error().0;
    assert!(
        error.starts_with("config: KEBAB_MODELS_EMBEDDING_PROVIDER: found \"x\", expected one of: builtin"),
        "{error}"
    );
}

#[test]
fn the_library_of_the_engine_is_named_or_found_or_done_without() {
    let runtime = |place: &Place, flags: &Flags| {
        let config = place.load_in(flags, &place.path("home/notes")).unwrap();
        config.models.embedding.unwrap().onnxruntime
    };
    let place = Place::new().set("KEBAB_MODELS_EMBEDDING_PROVIDER", "builtin");
    let found = runtime(&place, &Flags::default());
    assert!(found.named.is_empty() && found.folders.is_some_and(|folders| folders.iter().all(|f| f.is_absolute())));

    let place = place.file("[models.embedding]\nonnxruntime = 'lib'\n").set("ORT_DYLIB_PATH", "env.so");
    let flags = Flags { onnxruntime: Some("flag.so".into()), ..Flags::default() };
    let named = [
        ("--onnxruntime", place.path("home/notes/flag.so")),
        ("ORT_DYLIB_PATH", place.path("home/notes/env.so")),
        ("models.embedding.onnxruntime", place.path("config/kebab-lite/lib")),
    ];
    assert_eq!(runtime(&place, &flags).named, named);
    let without = Flags { onnxruntime: Some("none".into()), ..Flags::default() };
    assert_eq!(runtime(&place, &without), RuntimeLibrary::default());
    let place = place.file("[models.embedding]\nonnxruntime = 'none'\n").set("ORT_DYLIB_PATH", "");
    assert_eq!(runtime(&place, &Flags::default()), RuntimeLibrary::default());
}

#[test]
fn a_model_that_answers_is_configured_by_little() {
    assert_eq!(Place::new().load().llm, None);
    let llm = |place: Place| place.load().llm.map(|llm| (llm.provider.as_str(), llm.model, llm.endpoint));
    let of = |provider, model: &str, endpoint: &str| Some((provider, model.to_owned(), endpoint.to_owned()));
    let ollama = "http://127.0.0.1:11434";
    assert_eq!(llm(Place::new().file("[models.llm]\nmodel = 'qwen3:4b'\n")), of("ollama", "qwen3:4b", ollama));
    assert_eq!(llm(Place::new().set("KEBAB_MODELS_LLM_MODEL", "qwen3:4b")), of("ollama", "qwen3:4b", ollama));
    let server = Place::new().file("[models.llm]\nmodel = 'a'\nendpoint = 'http://127.0.0.1:8080/'\n");
    assert_eq!(llm(server), of("openai", "a", "http://127.0.0.1:8080"));
    let over = Place::new().file("[models.llm]\nmodel = 'a'\n").set("KEBAB_MODELS_LLM_MODEL", "b");
    assert_eq!(llm(over), of("ollama", "b", ollama));
    let off = Place::new().file("[models.llm]\nmodel = 'a'\n").set("KEBAB_MODELS_LLM_PROVIDER", "none");
    assert_eq!(llm(off), None);

    let place = Place::new().file("[models.llm]\nmodel = 'a'\nendpoint = 'http://10.0.0.9:8080'\n");
    let config = place.set("KEBAB_MODELS_LLM_API_KEY", "sk-12345").load();
    assert!(!format!("{config:?}").contains("sk-12345"));
    assert!(config.warnings.iter().any(|warning| warning.contains("unencrypted")), "{:?}", config.warnings);
}

#[test]
fn what_is_wrong_with_a_model_is_told_without_its_key() {
    for (file, expected) in [
        ("provider = 'ollama'", "models.llm.model: missing"),
        ("provider = 'llama'", "models.llm.provider: found \"llama\", expected one of: ollama, openai, none"),
        ("provider = 'openai'\nmodel = 'a'", "models.llm.endpoint: missing"),
        ("model = 'a'\nendpoint = 'localhost:11434'", "models.llm.endpoint: no http:// or https:// address"),
        ("model = 'a'\nendpoint = 'http://me:sk-1@host'", "models.llm.endpoint: an address must not hold credentials"),
        ("model = 'a'\ntemperature = 3", "models.llm.temperature: found 3, expected a number from 0 to 2"),
        ("model = 'a'\nrequest_timeout_secs = 0", "models.llm.request_timeout_secs: found 0"),
        ("model = 'a'\napi_key = 'sk-1'", "models.llm.api_key: no such key"),
        ("model = 'a'\n[rag]\nscore_gate = 'high'", "rag.score_gate: found a string, expected a number from 0 to 1"),
        ("model = 'a'\n[rag]\nextractive = 1", "rag.extractive: found 1, expected true or false"),
    ] {
        let (message, hint) = Place::new().file(&format!("[models.llm]\n{file}\n")).error();
        assert!(message.contains(expected), "{file}: {message}");
        assert!(!message.contains("sk-1") && !hint.contains("sk-1"), "{file}: {message} {hint}");
    }
    let (message, _) = Place::new().set("KEBAB_MODELS_LLM_API_KEY", "sk-1 2").error();
    assert!(message.contains("KEBAB_MODELS_LLM_API_KEY") && !message.contains("sk-1"), "{message}");
}
