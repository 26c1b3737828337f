//! The map of the code, held: which room may import which, who alone names a dependency, and what no file does.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// A room, and the rooms it may import; a room may always import itself. Longer names come before the rooms they are
/// part of: `ingest/chunk` is a room of its own within `ingest`.
const ROOMS: &[(&str, &[&str])] = &[
    ("model", &[]),
    ("error", &["model"]),
    ("wire", &["error", "model"]),
    ("config", &["error", "model"]),
    ("endpoint", &["config", "error"]),
    ("llm", &["config", "endpoint", "error", "model"]),
    ("store", &["error", "model"]),
    ("index/embed", &["config", "endpoint", "error"]),
    ("index", &["error", "model"]),
    ("ingest/decode", &["model"]),
    ("ingest/parse", &["model"]),
    ("ingest/chunk", &["model", "ingest/parse"]),
    ("kb", &["config", "error", "index", "index/embed", "store"]),
    (
        "ingest",
        &[
            "config",
            "error",
            "index",
            "index/embed",
            "ingest/chunk",
            "ingest/decode",
            "ingest/parse",
            "kb",
            "model",
            "store",
            "wire",
        ],
    ),
    (
        "tools",
        &[
            "config",
            "error",
            "index",
            "index/embed",
            "ingest",
            "ingest/chunk",
            "ingest/decode",
            "ingest/parse",
            "kb",
            "llm",
            "model",
            "store",
            "wire",
        ],
    ),
    ("rpc", &["error", "kb", "tools", "wire"]),
    ("exit", &["index/embed"]),
    ("log", &[]),
    ("pool", &[]),
    ("catch_up", &["error", "ingest", "kb", "log", "wire"]),
    ("lines", &["log", "pool", "rpc"]),
    ("stdio", &["error", "lines", "pool", "rpc"]),
    ("rendezvous", &["config", "error", "wire"]),
    ("residency", &[]),
    ("http", &["rendezvous", "error", "kb", "lines", "log", "pool", "rpc"]),
    (
        "serve",
        &[
            "catch_up",
            "error",
            "exit",
            "http",
            "kb",
            "lines",
            "log",
            "pool",
            "rendezvous",
            "residency",
            "rpc",
            "stdio",
            "wire",
        ],
    ),
    (
        "connect",
        &[
            "catch_up",
            "error",
            "exit",
            "http",
            "lines",
            "log",
            "pool",
            "rendezvous",
            "residency",
            "rpc",
            "stdio",
            "wire",
        ],
    ),
    ("lib", &[]),
    // The program sees the library as anybody does.
    (
        "cli",
        &[
            "config",
            "connect",
            "error",
            "exit",
            "http",
            "index",
            "ingest",
            "kb",
            "log",
            "model",
            "rendezvous",
            "rpc",
            "serve",
            "tools",
            "wire",
        ],
    ),
    ("main", &["exit", "index/embed"]),
];

/// Who alone names a crate, tests included: paths that start so.
const ONLY: &[(&str, &[&str])] = &[
    ("rusqlite", &["store/"]),
    ("bm25", &["index/build.rs", "index/tests.rs"]),
    ("bitpacking", &["index/postings.rs"]),
    ("memmap2", &["index/pages.rs"]),
    ("rust_stemmers", &["index/tokenize.rs"]),
    ("rayon", &["index/vector/graph.rs", "ingest/prepare.rs", "ingest/publish.rs"]),
    ("ignore", &["ingest/walk.rs"]),
    ("encoding_rs", &["ingest/decode.rs", "ingest/chunk/tests.rs"]),
    ("pulldown_cmark", &["ingest/parse/"]),
    ("html5gum", &["ingest/parse/"]),
    ("saphyr", &["ingest/parse/"]),
    ("argh", &["cli/args"]),
    ("indicatif", &["cli/"]),
    ("ctrlc", &["cli/", "connect/", "serve.rs"]),
    ("nix", &["stdio.rs", "lines/", "residency.rs"]),
    ("getrandom", &["rendezvous.rs"]),
    ("ort", &["index/embed"]),
    ("ort_tract", &["index/embed"]),
    ("tokenizers", &["index/embed"]),
    ("libloading", &["index/embed"]),
    ("instant_distance", &["index/vector/graph.rs"]),
    ("minreq", &["endpoint.rs"]),
    ("rustls", &["endpoint.rs"]),
    ("httparse", &["http.rs", "http/"]),
];

struct File {
    /// Relative to `src`, `/`-separated.
    path: String,
    text: String,
}

fn sources() -> Vec<File> {
    fn visit(folder: &Path, root: &Path, files: &mut Vec<File>) {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path: PathBuf = entry.unwrap().path();
            if path.is_dir() {
                visit(&path, root, files);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let text = std::fs::read_to_string(&path).unwrap().replace("\r\n", "\n");
                let relative = path.strip_prefix(root).unwrap().to_str().unwrap().replace('\\', "/");
                files.push(File { path: relative, text });
            }
        }
    }
    let root = manifest_folder().join("src");
    let mut files = Vec::new();
    visit(&root, &root, &mut files);
    assert!(files.len() > 30, "{} files", files.len());
    files
}

fn manifest_folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// Without comments.
fn code(text: &str) -> String {
    text.lines()
        .filter(|line| !line.trim_start().starts_with("//"))
        .fold(String::new(), |code, line| code + line + "\n")
}

/// The room a file or a module path (`ingest/chunk/split`) lies in: the longest one that leads it.
fn room(path: &str) -> &'static str {
    let path = path.strip_suffix(".rs").unwrap_or(path);
    let leads = |room: &str| path == room || path.strip_prefix(room).is_some_and(|rest| rest.starts_with('/'));
    let rooms = ROOMS.iter().map(|(room, _)| *room).filter(|room| leads(room));
    rooms.max_by_key(|room| room.len()).unwrap_or_else(|| panic!("{path} lies in no room of the table"))
}

/// Modules of this crate that the code names, `/`-separated, by `crate::`, `kebab_lite::` or `super::`.
fn imports(file: &File) -> BTreeSet<String> {
    let code = code(&file.text);
    let mut found = BTreeSet::new();
    for root in ["crate::", "kebab_lite::"] {
        if root == "crate::" && room(&file.path) == "cli" {
            continue;
        }
        for (at, _) in code.match_indices(root) {
            let before = code[..at].chars().next_back();
            if before.is_none_or(|c| !c.is_alphanumeric() && c != '_') {
                found.extend(paths(&code[at + root.len()..]));
            }
        }
    }
    let module = module(&file.path);
    for (at, _) in code.match_indices("super::") {
        let inside = code[..at].ends_with("::");
        let indented = code[..at].rsplit('\n').next().is_some_and(|line| line.starts_with(' ') && line.contains("use"));
        // Deeper `super`s and those of a nested `mod tests` stay within the file.
        if !inside && !indented {
            let parent = module.rsplit_once('/').map_or("", |(parent, _)| parent);
            found.extend(
                paths(&code[at + 7..])
                    .iter()
                    .map(|path| format!("{parent}/{path}"))
                    .map(|path| path.trim_start_matches('/').to_owned()),
            );
        }
    }
    found
}

/// `index/mod.rs` is the module `index`, `index/build.rs` is `index/build`.
fn module(path: &str) -> String {
    let path = path.strip_suffix(".rs").unwrap_or(path);
    path.strip_suffix("/mod").unwrap_or(path).to_owned()
}

/// What stands behind `crate::`: `kb::Kb` gives `kb`, `ingest::parse::x` gives `ingest/parse`, a braced list each item.
fn paths(text: &str) -> Vec<String> {
    if text.starts_with('{') {
        return braced(text).into_iter().flat_map(paths).collect();
    }
    let (name, rest) = identifier(text);
    if !is_module(name) {
        return Vec::new();
    }
    let Some(rest) = rest.strip_prefix("::") else { return vec![name.to_owned()] };
    let items = if rest.starts_with('{') { braced(rest) } else { vec![rest] };
    let below = items.into_iter().map(|item| match identifier(item).0 {
        "self" => name.to_owned(),
        part if is_module(part) => format!("{name}/{part}"),
        _ => name.to_owned(),
    });
    below.collect()
}

fn is_module(name: &str) -> bool {
    name.starts_with(|c: char| c.is_ascii_lowercase())
}

fn identifier(text: &str) -> (&str, &str) {
    text.split_at(text.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(text.len()))
}

/// The items of the list that the text starts with.
fn braced(text: &str) -> Vec<&str> {
    let mut depth = 0;
    let end = text.char_indices().find(|(_, c)| {
        depth += i32::from(*c == '{') - i32::from(*c == '}');
        depth == 0
    });
    let inside = &text[1..end.map_or(text.len(), |(at, _)| at)];
    split_top_level(inside).into_iter().map(str::trim).collect()
}

fn split_top_level(list: &str) -> Vec<&str> {
    let (mut depth, mut start, mut items) = (0, 0, Vec::new());
    for (at, c) in list.char_indices() {
        match c {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 0 => {
                items.push(&list[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    items.push(&list[start..]);
    items.retain(|item| !item.trim().is_empty());
    items
}

#[test]
fn imports_go_down_the_list() {
    let allowed: BTreeMap<&str, &[&str]> = ROOMS.iter().copied().collect();
    let mut edges: BTreeSet<(&str, &str)> = BTreeSet::new();
    let mut wrong = Vec::new();
    // Tests may look up: they drive a room through its callers.
    for file in sources().into_iter().filter(|file| !file.path.ends_with("tests.rs")) {
        let from = room(&file.path);
        for import in imports(&file) {
            let Some(to) = ROOMS
                .iter()
                .map(|(room, _)| *room)
                .filter(|room| import == *room || import.strip_prefix(room).is_some_and(|rest| rest.starts_with('/')))
                .max_by_key(|room| room.len())
            else {
                continue;
            };
            if to != from {
                edges.insert((from, to));
                if !allowed[from].contains(&to) {
                    wrong.push(format!("{}: {from} must not import {to} ({import})", file.path));
                }
            }
        }
    }
    // Edges that are known to be there: the search for them works.
    for edge in [
        ("store", "error"),
        ("kb", "store"),
        ("tools", "wire"),
        ("ingest", "ingest/parse"),
        ("cli", "tools"),
        ("ingest/chunk", "ingest/parse"),
    ] {
        assert!(edges.contains(&edge), "{edge:?} is not among {edges:?}");
    }
    // The table goes down, too: nothing imports what stands below it.
    for (place, (room, imports)) in ROOMS.iter().enumerate() {
        for import in *imports {
            let above = ROOMS.iter().position(|(room, _)| room == import).unwrap();
            assert!(above < place, "{room} imports {import}");
            if !edges.contains(&(room, import)) {
                wrong.push(format!("{room} may import {import} and does not: take it out of the table"));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn a_dependency_has_one_room() {
    let files = sources();
    for (name, places) in ONLY {
        let names = |file: &File| {
            let code = code(&file.text);
            code.contains(&format!("{name}::"))
                && code.match_indices(&format!("{name}::")).any(|(at, _)| {
                    code[..at].chars().next_back().is_none_or(|c| !c.is_alphanumeric() && c != '_' && c != ':')
                })
        };
        let users: Vec<&str> = files.iter().filter(|file| names(file)).map(|file| file.path.as_str()).collect();
        assert!(!users.is_empty(), "nothing names {name}");
        for user in users {
            assert!(places.iter().any(|place| user.starts_with(place)), "{user} names {name}");
        }
    }
}

#[test]
fn nothing_in_the_library_prints_or_ends_the_process() {
    for file in sources() {
        // A server's log is stderr; its protocol is stdout, and a signal or a lost client ends it.
        let its_own = match room(&file.path) {
            "cli" | "main" => continue,
            "log" => &["io::stderr"][..],
            "stdio" => &["io::stdout", "io::stderr"],
            "exit" => &["process::exit"],
            _ => &[],
        };
        let code = code(&file.text);
        let words = ["println!(", "print!(", "dbg!(", "io::stdout", "io::stderr", "process::exit"];
        for word in words.into_iter().filter(|word| !its_own.contains(word)) {
            let found = code.match_indices(word).find(|(at, _)| {
                // Inside a string it is text to be parsed.
                let line = code[..*at].rsplit('\n').next().unwrap_or("");
                line.matches('"').count().is_multiple_of(2)
            });
            assert_eq!(found, None, "{}", file.path);
        }
    }
}

#[test]
fn files_open_with_what_they_own_and_stay_short() {
    for file in sources() {
        let lines = file.text.lines().count();
        assert!(lines <= 600, "{} has {lines} lines", file.path);
        let is_tests = file.path.ends_with("tests.rs");
        assert!(file.text.starts_with("//! ") || is_tests, "{} does not say what it owns", file.path);
        assert!(!file.text.contains("// TODO") && !file.text.contains("// FIXME"), "{}", file.path);
    }
}

#[test]
fn no_async_runtime_comes_in() {
    let lock = std::fs::read_to_string(manifest_folder().join("Cargo.lock")).unwrap();
    assert!(lock.contains("name = \"rusqlite\""));
    for runtime in ["tokio", "async-std", "smol", "async-executor", "reqwest", "hyper"] {
        assert!(!lock.contains(&format!("name = \"{runtime}\"")), "{runtime} is in Cargo.lock");
    }
}

#[test]
fn the_changelog_tells_of_this_version() {
    let changelog = std::fs::read_to_string(manifest_folder().join("CHANGELOG.md")).unwrap();
    let newest = changelog.lines().find_map(|line| line.strip_prefix("## ")).unwrap();
    assert_eq!(newest.split(' ').next().unwrap().trim_matches(['[', ']']), env!("CARGO_PKG_VERSION"));
}
