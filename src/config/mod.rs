//! What the program runs with: defaults, then the TOML file, then the environment, then flags; each layer may
//! name only some of the values. Also which folder is searched when nobody named one, and where its index lives.
//!
//! Refuses: reading the process's own environment or working folder (both are arguments), secrets (they come from the
//! environment alone), and guessing: an unknown key, a wrong type and a value out of range are errors.

mod address;
mod keys;
mod llm;
mod models;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::path::{Component, Path, PathBuf};

use crate::error::{Error, Result};
use crate::model::{ChunkLimits, Trust, Weights};
pub use address::{Secret, address, is_local};
pub use keys::nearest;
use keys::{File, expand};
pub use llm::{Llm, Rag};
pub use models::{BUILTIN, EmbeddingApi, EmbeddingModel, ModelSource, Models, RerankingModel, RuntimeLibrary};

/// Everything a session needs to know, validated.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    /// Never empty; the first is the main workspace.
    pub sources: Vec<Source>,
    /// False if the main root is only the folder the program was started in.
    pub root_is_named: bool,
    /// Absolute. It may lie inside a root, never around one.
    pub data_dir: PathBuf,
    pub ingest: Ingest,
    pub index: Index,
    pub search: Search,
    pub models: Models,
    /// What answers questions; None where nothing of it is configured.
    pub llm: Option<Llm>,
    pub rag: Rag,
    pub readonly: bool,
    /// What the user should hear, though it stops nothing.
    pub warnings: Vec<String>,
    /// The config file in force.
    pub file: Option<PathBuf>,
}

/// A folder of documents.
#[derive(Debug, Clone, PartialEq)]
pub struct Source {
    pub id: String,
    /// Absolute, and canonical if it exists; only a source other than the first may be missing.
    pub root: PathBuf,
    /// Patterns in the language of .gitignore.
    pub exclude: Vec<String>,
    /// For documents that say nothing about it themselves.
    pub trust_level: Option<Trust>,
    pub source_type: Option<String>,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Ingest {
    pub max_file_bytes: u64,
    /// Folders outside the roots that symbolic links may lead into and files may be taken from.
    pub allowed_dirs: Vec<PathBuf>,
    pub limits: ChunkLimits,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Index {
    /// A server asks a graph about more vectors than this; the rest is scanned.
    pub graph_above: usize,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Search {
    /// Of words and of meaning.
    pub fusion: Weights,
    pub default_k: usize,
    pub snippet_chars: usize,
    /// 0: no document is ever stale.
    pub stale_threshold_days: u32,
}

/// What the command line says; absent values leave the layers below in force.
#[derive(Debug, Clone, Default)]
pub struct Flags {
    pub config: Option<PathBuf>,
    pub root: Option<PathBuf>,
    pub data_dir: Option<PathBuf>,
    pub readonly: bool,
    /// The library of ONNX Runtime, or `none`.
    pub onnxruntime: Option<PathBuf>,
}

/// The id of the main workspace.
pub const MAIN: &str = "workspace";

/// The source of documents that lie in no root: texts and copies of files. No configured source has this id, so no
/// walk ever finds or misses them.
pub const INGESTED: &str = "ingested";

/// Looks a variable up; absent and empty are told apart only by KEBAB_READONLY.
pub type Env<'a> = &'a dyn Fn(&str) -> Option<String>;

/// Reads no index and creates nothing.
pub fn load(flags: &Flags, env: Env, cwd: &Path) -> Result<Config> {
    let layers = Layers { env, cwd, user: UserFolders::of(env), file: File::default() };
    let file = match config_file(flags, &layers)? {
        Some(path) => File::read(path)?,
        None => File::default(),
    };
    let layers = Layers { file, ..layers };
    let mut warnings = Vec::new();
    warnings.extend(layers.file.check()?);

    let (sources, root_is_named) = sources(flags, &layers, &mut warnings)?;
    let data_dir = data_dir(flags, &layers, &sources)?;
    let ingest = Ingest {
        max_file_bytes: layers.file.whole("ingest.max_file_bytes", 1..=1 << 30)?.unwrap_or(16 << 20),
        allowed_dirs: allowed_dirs(&layers, &mut warnings)?,
        limits: chunk_limits(&layers.file)?,
    };
    let index = Index {
        graph_above: layers.file.whole("index.graph_above", 0..=u64::from(u32::MAX))?.unwrap_or(300_000) as usize,
    };
    let usual = Weights::default();
    let fusion = Weights {
        lambda: layers.file.number("search.fusion.lambda", 0.0..=100.0)?.map_or(usual.lambda, |lambda| lambda as f32),
        c: layers.file.number("search.fusion.c", 0.001..=1e9)?.map_or(usual.c, |c| c as f32),
    };
    let search = Search {
        fusion,
        default_k: layers.whole("KEBAB_SEARCH_DEFAULT_K", "search.default_k", 1..=100)?.unwrap_or(10) as usize,
        snippet_chars: layers.file.whole("search.snippet_chars", 20..=10_000)?.unwrap_or(240) as usize,
        stale_threshold_days: layers.file.whole("search.stale_threshold_days", 0..=36_500)?.unwrap_or(0) as u32,
    };
    let models = models::models(flags, &layers, &mut warnings)?;
    let llm = llm::llm(&layers, &mut warnings)?;
    let rag = llm::rag(&layers)?;
    let readonly = readonly(env)? || flags.readonly;
    let file = layers.file.path;
    Ok(Config { sources, root_is_named, data_dir, ingest, index, search, models, llm, rag, readonly, warnings, file })
}

/// Where values come from, lowest layer last.
struct Layers<'a> {
    env: Env<'a>,
    cwd: &'a Path,
    user: UserFolders,
    file: File,
}

/// A path somebody named, resolved, and the name they used.
struct Named {
    path: PathBuf,
    origin: &'static str,
}

impl Layers<'_> {
    /// The topmost layer that names a path. Each is relative to where it was written.
    fn path(&self, flag: Option<&Path>, names: [&'static str; 3]) -> Result<Option<Named>> {
        let [flag_name, env_name, key] = names;
        if let Some(path) = flag {
            let reason = |reason| Error::input(flag_name.trim_start_matches("--").replace('-', "_"), reason);
            if path.as_os_str().is_empty() {
                return Err(reason("it is empty".into()));
            }
            let path = self.resolve_path(path, self.cwd).map_err(reason)?;
            return Ok(Some(Named { path, origin: flag_name }));
        }
        if let Some(text) = (self.env)(env_name).filter(|text| !text.is_empty()) {
            let path = self.resolve(&text, self.cwd).map_err(|cause| invalid_env(env_name, cause))?;
            return Ok(Some(Named { path, origin: env_name }));
        }
        let Some(text) = self.file.text(key)? else { return Ok(None) };
        Ok(Some(Named { path: self.file_path(key, text)?, origin: key }))
    }

    /// A path of the config file.
    fn file_path(&self, key: &str, text: &str) -> Result<PathBuf> {
        self.resolve(text, self.file.folder(self.cwd)).map_err(|cause| self.file.invalid(key, cause))
    }

    fn resolve(&self, text: &str, base: &Path) -> Result<PathBuf, String> {
        let expanded = expand(text, self.env, self.user.home.as_deref())?;
        if expanded.is_empty() {
            return Err("it is empty".into());
        }
        Ok(settle(&base.join(expanded)))
    }

    /// As `resolve`; a path that is not Unicode has nothing to expand.
    fn resolve_path(&self, path: &Path, base: &Path) -> Result<PathBuf, String> {
        match path.to_str() {
            Some(text) => self.resolve(text, base),
            None => Ok(settle(&base.join(path))),
        }
    }

    fn text(&self, env_name: &str, key: &str) -> Result<Option<String>> {
        let below = self.file.text(key)?;
        Ok((self.env)(env_name).or(below.map(Into::into)).filter(|text| !text.is_empty()))
    }

    fn whole(&self, env_name: &str, key: &str, allowed: std::ops::RangeInclusive<u64>) -> Result<Option<u64>> {
        let below = self.file.whole(key, allowed.clone())?;
        let Some(text) = (self.env)(env_name).filter(|text| !text.is_empty()) else { return Ok(below) };
        match text.trim().parse() {
            Ok(value) if allowed.contains(&value) => Ok(Some(value)),
            _ => Err(invalid_env(
                env_name,
                format!("found {text:?}, expected a whole number from {} to {}", allowed.start(), allowed.end()),
            )),
        }
    }
}

/// The file named by --config, else the user's own if there is one.
fn config_file(flags: &Flags, layers: &Layers) -> Result<Option<PathBuf>> {
    if let Some(path) = &flags.config {
        let path = layers.resolve_path(path, layers.cwd).map_err(|reason| Error::input("config", reason))?;
        return if path.exists() { Ok(Some(path)) } else { Err(Error::ConfigNotFound { path }) };
    }
    Ok(default_file(&layers.user).filter(|path| path.exists()))
}

fn default_file(user: &UserFolders) -> Option<PathBuf> {
    user.config.as_ref().map(|folder| folder.join("kebab-lite").join("config.toml"))
}

/// The main workspace and the further sources. A file that names only `[[workspace.sources]]` makes the first of
/// them the main one: the folder the program happens to run in is then nobody's wish.
fn sources(flags: &Flags, layers: &Layers, warnings: &mut Vec<String>) -> Result<(Vec<Source>, bool)> {
    let common = layers.file.list("workspace.exclude")?.unwrap_or_default();
    let further = further_sources(layers, &common)?;
    let named = layers.path(flags.root.as_deref(), ["--root", "KEBAB_WORKSPACE_ROOT", "workspace.root"])?;
    let mut sources = Vec::with_capacity(further.len() + 1);
    let is_named = match named {
        Some(Named { path, origin }) => {
            require_folder(&path, origin)?;
            sources.push(main_source(path, common));
            true
        }
        None if !further.is_empty() => {
            require_folder(&further[0].root, "workspace.sources")?;
            true
        }
        None => {
            let path = settle(layers.cwd);
            if let Some(what) = too_wide(&path, &layers.user, layers.env) {
                return Err(unnamed_root(layers, &path, what));
            }
            sources.push(main_source(path, common));
            false
        }
    };
    sources.extend(further);
    let mut ids = BTreeSet::new();
    let mut roots = BTreeSet::new();
    for (place, source) in sources.iter().enumerate() {
        if !ids.insert(&source.id) {
            let cause = format!("the id {:?} is taken; every source needs its own", source.id);
            return Err(layers.file.invalid("workspace.sources", cause));
        }
        if !roots.insert(&source.root) {
            let cause = format!("{} is the root of two sources", source.root.display());
            return Err(layers.file.invalid("workspace.sources", cause));
        }
        if place > 0 && !source.root.is_dir() {
            warnings.push(format!("source {:?}: no folder at {}", source.id, source.root.display()));
        }
    }
    Ok((sources, is_named))
}

fn main_source(root: PathBuf, exclude: Vec<String>) -> Source {
    Source { id: MAIN.into(), root, exclude, trust_level: None, source_type: None }
}

fn further_sources(layers: &Layers, common: &[String]) -> Result<Vec<Source>> {
    let mut sources = Vec::new();
    for table in layers.file.sources()? {
        let key = |name: &str| format!("workspace.sources.{name}");
        let required = |name: &str| match table.text(name)? {
            Some(text) => Ok(text.to_owned()),
            None => Err(layers.file.invalid(&key(name), "missing; every source needs an id and a root")),
        };
        let id = required("id")?;
        let allowed = |c: char| c.is_alphanumeric() || "._-".contains(c);
        if id.is_empty() || id.len() > 64 || !id.chars().all(allowed) {
            let cause = format!("found {id:?}, expected letters, digits, `.`, `_` and `-`, at most 64 bytes");
            return Err(layers.file.invalid(&key("id"), cause));
        }
        if id == INGESTED {
            let cause = format!("{id:?} is reserved for documents that lie in no source; choose another");
            return Err(layers.file.invalid(&key("id"), cause));
        }
        let trust_level = match table.text("trust_level")? {
            None => None,
            Some(text) => Some(Trust::parse(text).ok_or_else(|| {
                let cause = format!("found {text:?}, expected one of: {}", Trust::choices());
                layers.file.invalid(&key("trust_level"), cause)
            })?),
        };
        let mut exclude = common.to_vec();
        exclude.extend(table.list("exclude")?.unwrap_or_default());
        let root = layers.file_path(&key("root"), &required("root")?)?;
        if root.is_file() {
            return Err(layers.file.invalid(&key("root"), format!("{} is a file, not a folder", root.display())));
        }
        sources.push(Source {
            id,
            root,
            exclude,
            trust_level,
            source_type: table.text("source_type")?.map(Into::into),
        });
    }
    Ok(sources)
}

fn require_folder(path: &Path, origin: &str) -> Result<()> {
    if path.is_dir() {
        return Ok(());
    }
    let what = if path.exists() { "is a file, not a folder" } else { "does not exist" };
    let hint = format!("Name an existing folder in {origin}.");
    Err(Error::input_hint("root", format!("{} {what} (named by {origin})", path.display()), hint))
}

fn unnamed_root(layers: &Layers, path: &Path, what: &str) -> Error {
    let file = match layers.file.path.clone().or_else(|| default_file(&layers.user)) {
        Some(file) => format!("the config file {}", file.display()),
        None => "a config file that --config names".to_owned(),
    };
    Error::ConfigInvalid {
        path: None,
        cause: format!(
            "no root is named, and the working folder {} is {what}: it is searched only when named",
            path.display()
        ),
        hint: Some(format!("Add `root = \"/path/to/notes\"` under [workspace] in {file}, or run with `--root DIR`.")),
    }
}

/// What makes a folder too wide to be taken without being named.
fn too_wide(path: &Path, user: &UserFolders, env: Env) -> Option<&'static str> {
    if path.parent().is_none() {
        return Some("the root of the file system");
    }
    let home = user.home.as_deref().map(settle).filter(|home| home.parent().is_some());
    if let Some(home) = &home {
        if same(path, home) {
            return Some("your home folder");
        }
        if within(home, path) {
            return Some("a folder that holds your home folder");
        }
        if within(path, home) {
            return None;
        }
    }
    let system = SYSTEM_TREES.iter().any(|tree| within(path, Path::new(tree)))
        || SYSTEM_FOLDERS.iter().any(|folder| same(path, Path::new(folder)))
        || SYSTEM_VARIABLES
            .iter()
            .filter_map(|name| env(name))
            .any(|tree| !tree.is_empty() && within(path, Path::new(&tree)));
    system.then_some("a system folder")
}

/// Nothing in them is a user's notes.
const SYSTEM_TREES: &[&str] = &[
    "/bin",
    "/boot",
    "/dev",
    "/etc",
    "/lib",
    "/lib32",
    "/lib64",
    "/libx32",
    "/proc",
    "/sbin",
    "/sys",
    "/usr",
    "/Applications",
    "/Library",
    "/System",
    "/private/etc",
    r"C:\Windows",
    r"C:\Program Files",
    r"C:\Program Files (x86)",
    r"C:\ProgramData",
];

/// Their sub-folders may well be somebody's: web roots, mounted disks, homes on some systems.
const SYSTEM_FOLDERS: &[&str] = &[
    "/home",
    "/media",
    "/mnt",
    "/opt",
    "/private",
    "/private/var",
    "/root",
    "/run",
    "/srv",
    "/tmp",
    "/var",
    "/Users",
    "/Volumes",
    r"C:\Users",
];

/// Where Windows says its own folders are.
const SYSTEM_VARIABLES: &[&str] = &["SystemRoot", "ProgramFiles", "ProgramFiles(x86)", "ProgramData"];

fn within(path: &Path, folder: &Path) -> bool {
    fold_case(path).starts_with(fold_case(folder))
}

fn same(one: &Path, other: &Path) -> bool {
    fold_case(one) == fold_case(other)
}

/// File names of Windows differ in more than case.
fn fold_case(path: &Path) -> PathBuf {
    match path.to_str() {
        Some(text) if cfg!(windows) => PathBuf::from(text.to_lowercase()),
        _ => path.to_owned(),
    }
}

/// The index of a root lives under the user's data folder, unless a folder for it is named.
fn data_dir(flags: &Flags, layers: &Layers, sources: &[Source]) -> Result<PathBuf> {
    let names = ["--data-dir", "KEBAB_STORAGE_DATA_DIR", "storage.data_dir"];
    let Some(Named { path, origin }) = layers.path(flags.data_dir.as_deref(), names)? else {
        let Some(data) = &layers.user.data else {
            return Err(Error::ConfigInvalid {
                path: None,
                cause: "no home folder is known, so there is no default data folder".into(),
                hint: Some("Name one: `--data-dir DIR`.".into()),
            });
        };
        return Ok(settle(data).join("kebab-lite").join(folder_name(&sources[0].root)));
    };
    let wrong = |reason: String| match origin {
        "--data-dir" => Error::input("data_dir", reason),
        "KEBAB_STORAGE_DATA_DIR" => invalid_env(origin, reason),
        _ => layers.file.invalid(origin, reason),
    };
    if path.exists() && !path.is_dir() {
        return Err(wrong(format!("{} is a file, not a folder", path.display())));
    }
    if let Some(source) = sources.iter().find(|source| within(&source.root, &path)) {
        return Err(wrong(format!(
            "{} is or holds the root {}, and the data folder is never indexed",
            path.display(),
            source.root.display()
        )));
    }
    Ok(path)
}

/// Readable, and different for roots of the same name: the root's own name and a hash of its whole path.
fn folder_name(root: &Path) -> String {
    let name = root.file_name().map(|name| name.to_string_lossy().to_lowercase()).unwrap_or_default();
    let words = name.split(|c: char| !c.is_alphanumeric()).filter(|word| !word.is_empty());
    let slug: String = words.collect::<Vec<_>>().join("-").chars().take(40).collect();
    let slug = if slug.is_empty() { "root" } else { &slug };
    let hash = blake3::hash(root.as_os_str().as_encoded_bytes()).to_hex();
    format!("{slug}-{}", &hash[..12])
}

fn allowed_dirs(layers: &Layers, warnings: &mut Vec<String>) -> Result<Vec<PathBuf>> {
    let key = "ingest.allowed_dirs";
    let mut folders = Vec::new();
    for text in layers.file.list(key)?.unwrap_or_default() {
        let path = layers.file_path(key, &text)?;
        if !path.is_dir() {
            warnings.push(format!("{key}: no folder at {}", path.display()));
        }
        folders.push(path);
    }
    Ok(folders)
}

/// A limit that is not given follows the ones that are, so that one line in the file is enough.
fn chunk_limits(file: &File) -> Result<ChunkLimits> {
    let default = ChunkLimits::default();
    let whole = |name: &str, least| Ok(file.whole(&format!("ingest.chunking.{name}"), least..=8192)?.map(|n| n as u32));
    let (target, max): (Option<u32>, Option<u32>) = (whole("target_tokens", 16)?, whole("max_chunk_tokens", 16)?);
    let target_tokens = target.unwrap_or(max.map_or(default.target_tokens, |max| max.min(default.target_tokens)));
    let max_tokens = max.unwrap_or(default.max_tokens.max(target_tokens));
    let overlap_tokens = whole("overlap_tokens", 0)?.unwrap_or(default.overlap_tokens);
    if max_tokens < target_tokens {
        let cause = format!("{max_tokens} is less than target_tokens ({target_tokens})");
        return Err(file.invalid("ingest.chunking.max_chunk_tokens", cause));
    }
    if overlap_tokens >= target_tokens {
        let cause = format!("{overlap_tokens} is not less than target_tokens ({target_tokens})");
        return Err(file.invalid("ingest.chunking.overlap_tokens", cause));
    }
    Ok(ChunkLimits { target_tokens, max_tokens, overlap_tokens })
}

fn readonly(env: Env) -> Result<bool> {
    let Some(text) = env("KEBAB_READONLY") else { return Ok(false) };
    match text.trim().to_ascii_lowercase().as_str() {
        "1" | "true" | "yes" | "on" => Ok(true),
        "" | "0" | "false" | "no" | "off" => Ok(false),
        _ => Err(invalid_env(
            "KEBAB_READONLY",
            format!("found {text:?}, expected 1, true, yes, on or 0, false, no, off"),
        )),
    }
}

fn invalid_env(name: &str, cause: String) -> Error {
    Error::ConfigInvalid { path: None, cause: format!("{name}: {cause}"), hint: None }
}

/// Folders of the user's own. What `env` says counts; the operating system is asked only where it says nothing.
struct UserFolders {
    home: Option<PathBuf>,
    config: Option<PathBuf>,
    data: Option<PathBuf>,
}

impl UserFolders {
    fn of(env: Env) -> UserFolders {
        // The XDG specification: relative values are to be ignored.
        let absolute = |name: &str| env(name).map(PathBuf::from).filter(|path| path.is_absolute());
        let home_name = if cfg!(windows) { "USERPROFILE" } else { "HOME" };
        let home = absolute(home_name).or_else(|| etcetera::home_dir().ok());
        let below_home =
            |parts: &[&str]| home.as_ref().map(|home| parts.iter().fold(home.clone(), |path, part| path.join(part)));
        let (config, data) = if cfg!(windows) {
            (
                absolute("APPDATA").or_else(|| below_home(&["AppData", "Roaming"])),
                absolute("LOCALAPPDATA").or_else(|| below_home(&["AppData", "Local"])),
            )
        } else {
            (below_home(&[".config"]), below_home(&[".local", "share"]))
        };
        UserFolders { config: absolute("XDG_CONFIG_HOME").or(config), data: absolute("XDG_DATA_HOME").or(data), home }
    }
}

/// The canonical form of a path that exists, comparable to the roots.
pub(crate) fn real_path(path: &Path) -> std::io::Result<PathBuf> {
    std::fs::canonicalize(path).map(without_verbatim_prefix)
}

/// The canonical form of as much of an absolute path as exists, and the rest without `.` and `..`.
pub(crate) fn settle(path: &Path) -> PathBuf {
    for known in path.ancestors() {
        if let Ok(canonical) = real_path(known) {
            let rest = path.strip_prefix(known).unwrap_or(Path::new(""));
            return flatten(&canonical.join(rest));
        }
    }
    flatten(path)
}

fn flatten(path: &Path) -> PathBuf {
    let mut flat = PathBuf::new();
    for component in path.components() {
        match component {
            Component::CurDir => {}
            Component::ParentDir => {
                flat.pop();
            }
            other => flat.push(other),
        }
    }
    flat
}

/// Windows canonicalises `C:\x` to `\\?\C:\x`, which few other programs understand and no user would write.
fn without_verbatim_prefix(path: PathBuf) -> PathBuf {
    match path.to_str().and_then(|text| text.strip_prefix(r"\\?\")) {
        Some(rest) if cfg!(windows) && rest.as_bytes().get(1) == Some(&b':') && rest.len() < 240 => PathBuf::from(rest),
        _ => path,
    }
}
