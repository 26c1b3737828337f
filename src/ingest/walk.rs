//! Which files of a source are to be indexed, by names and metadata alone; nothing is opened.
//!
//! Every file that is passed over has a reason. Ignore files are honoured as git and ripgrep do, and
//! `.kebabignore` on top of them.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::fs::Metadata;
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use ignore::gitignore::{Gitignore, GitignoreBuilder};
use ignore::{IncrementalIgnore, WalkBuilder};
use unicode_normalization::UnicodeNormalization;

use crate::config::{Config, Source, real_path, settle};
use crate::error::{Error, Result};

/// A file to be indexed.
#[derive(Debug, Clone)]
pub struct Found {
    /// Relative to the source's root, `/`-separated, NFC; bytes that are not UTF-8 as `%XX`.
    pub path: String,
    pub on_disk: PathBuf,
    pub size: u64,
    pub mtime_ns: i64,
    /// The name of the repository it lies in: the nearest folder above it that holds `.git`.
    pub repo: Option<String>,
}

/// Why a file or a folder was passed over.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Skip {
    Hidden,
    Ignored,
    Excluded,
    TooLarge,
    Binary,
    UnknownEncoding,
    SymlinkLoop,
    SymlinkInside,
    SymlinkOutside,
    SymlinkBroken,
    NotAFile,
    DuplicateName,
}

impl Skip {
    pub fn as_str(self) -> &'static str {
        match self {
            Skip::Hidden => "hidden",
            Skip::Ignored => "ignored",
            Skip::Excluded => "excluded",
            Skip::TooLarge => "too_large",
            Skip::Binary => "binary",
            Skip::UnknownEncoding => "unknown_encoding",
            Skip::SymlinkLoop => "symlink_loop",
            Skip::SymlinkInside => "symlink_inside_root",
            Skip::SymlinkOutside => "symlink_outside_root",
            Skip::SymlinkBroken => "symlink_broken",
            Skip::NotAFile => "not_a_file",
            Skip::DuplicateName => "duplicate_name",
        }
    }
}

/// What a walk saw.
#[derive(Default)]
pub struct Walk {
    pub found: Vec<Found>,
    pub skipped: Vec<(String, Skip)>,
    /// Paths that could not be read. Documents at or below them are left as they are.
    pub failed: Vec<(String, Error)>,
}

/// Lists the files of a source that lie at or below one of `starts` (absolute; the whole root if empty).
pub fn walk(config: &Config, source: &Source, starts: &[PathBuf]) -> Result<Walk> {
    let root = &source.root;
    let readable = std::fs::read_dir(root).map(drop);
    readable.map_err(Error::io("read folder", root))?;
    let mut walker = Walker {
        config,
        root,
        ignore: matcher(root)?,
        exclude: exclusions(source)?,
        data_dir: settle(&config.data_dir),
        linked: HashSet::new(),
        repos: BTreeMap::new(),
        seen: HashSet::new(),
        walk: Walk::default(),
    };
    if starts.is_empty() {
        walker.folder(root, &mut vec![root.clone()]);
    }
    for start in starts {
        walker.start(start);
    }
    Ok(walker.walk)
}

/// For each source the paths to look at: None for a source that none of the named paths lies in.
pub fn starts(config: &Config, paths: &[PathBuf]) -> Result<Vec<Option<Vec<PathBuf>>>> {
    if paths.is_empty() {
        return Ok(config.sources.iter().map(|_| Some(Vec::new())).collect());
    }
    let mut starts: Vec<Option<Vec<PathBuf>>> = config.sources.iter().map(|_| None).collect();
    for path in paths {
        let resolved = resolve(&std::path::absolute(path).map_err(Error::io("find", path))?);
        let Some(owner) = owner(config, &resolved) else {
            let reason = format!("{} lies outside the workspace {}", path.display(), config.sources[0].root.display());
            return Err(Error::input_hint("path", reason, "Name a path inside the workspace, or another --root."));
        };
        let of_owner = config.sources.iter().zip(&mut starts).find(|(source, _)| source.id == owner.id);
        if let Some((_, starts)) = of_owner {
            starts.get_or_insert_default().push(resolved);
        }
    }
    for starts in starts.iter_mut().flatten() {
        // What lies below another start is seen from there; what is not there is not seen, and is to be told.
        let all: BTreeSet<PathBuf> = starts.drain(..).collect();
        let below = |start: &PathBuf| start.ancestors().skip(1).any(|above| all.contains(above));
        starts.extend(all.iter().filter(|start| !below(start) || start.symlink_metadata().is_err()).cloned());
    }
    Ok(starts)
}

/// The source that a path lies in: of nested ones the innermost.
pub fn owner<'c>(config: &'c Config, path: &Path) -> Option<&'c Source> {
    let around = config.sources.iter().filter(|source| path.starts_with(&source.root));
    around.max_by_key(|source| source.root.components().count())
}

/// The folder is resolved, the last part is not: a link is looked at as the link it is.
pub fn resolve(absolute: &Path) -> PathBuf {
    match (absolute.parent(), absolute.file_name()) {
        (Some(folder), Some(name)) => settle(folder).join(name),
        _ => settle(absolute),
    }
}

/// A path as documents name it: relative, `/`-separated, NFC, `%XX` for bytes that are not UTF-8.
pub fn document_path(relative: &Path) -> String {
    let parts: Vec<String> = relative.components().map(|part| part_text(part.as_os_str())).collect();
    parts.join("/")
}

/// Nanoseconds since 1970; 0 where the file system has no times.
pub fn mtime_ns(metadata: &Metadata) -> i64 {
    let Ok(time) = metadata.modified() else { return 0 };
    match time.duration_since(UNIX_EPOCH) {
        Ok(after) => i64::try_from(after.as_nanos()).unwrap_or(i64::MAX),
        Err(before) => i64::try_from(before.duration().as_nanos()).map_or(i64::MIN, |ns| -ns),
    }
}

struct Walker<'w> {
    config: &'w Config,
    root: &'w Path,
    ignore: IncrementalIgnore,
    exclude: Gitignore,
    data_dir: PathBuf,
    /// Folders reached through a symlink, each followed once: two links to it would index it twice, and folders
    /// that link to each other have endlessly many names.
    linked: HashSet<PathBuf>,
    repos: BTreeMap<PathBuf, Option<String>>,
    seen: HashSet<String>,
    walk: Walk,
}

impl Walker<'_> {
    /// A path the user named: all of its folders must pass the rules that a walk from the root would apply.
    fn start(&mut self, start: &Path) {
        let Ok(relative) = start.strip_prefix(self.root) else { return };
        let mut above = vec![self.root.to_path_buf()];
        let mut parts: Vec<_> = relative.components().collect();
        let Some(last) = parts.pop() else { return self.folder(self.root, &mut above) };
        let mut folder = self.root.to_path_buf();
        for part in parts {
            folder.push(part);
            if let Some(skip) = self.judge(&folder, true) {
                self.skip(&folder, skip);
                return;
            }
            above.push(folder.clone());
        }
        folder.push(last);
        self.entry(&folder, &mut above);
    }

    fn folder(&mut self, folder: &Path, above: &mut Vec<PathBuf>) {
        let entries = match std::fs::read_dir(folder).and_then(|entries| entries.collect::<Result<Vec<_>, _>>()) {
            Ok(entries) => entries,
            Err(error) => return self.fail(folder, Error::io("read folder", folder)(error)),
        };
        let mut paths: Vec<PathBuf> = entries.into_iter().map(|entry| entry.path()).collect();
        paths.sort_unstable();
        for path in paths {
            self.entry(&path, above);
        }
    }

    fn entry(&mut self, path: &Path, above: &mut Vec<PathBuf>) {
        let metadata = match std::fs::symlink_metadata(path) {
            Ok(metadata) => metadata,
            // It vanished between the listing and now, as if it had never been.
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return,
            Err(error) => return self.fail(path, Error::io("read metadata", path)(error)),
        };
        if metadata.is_symlink() {
            return self.symlink(path, above);
        }
        if let Some(skip) = self.judge(path, metadata.is_dir()) {
            return self.skip(path, skip);
        }
        if metadata.is_dir() {
            above.push(path.to_owned());
            self.folder(path, above);
            above.pop();
        } else {
            self.file(path, &metadata);
        }
    }

    fn symlink(&mut self, path: &Path, above: &mut Vec<PathBuf>) {
        let target = match (real_path(path), std::fs::metadata(path)) {
            (Ok(target), Ok(metadata)) => (target, metadata),
            _ => {
                let skip = self.judge(path, false).unwrap_or(Skip::SymlinkBroken);
                return self.skip(path, skip);
            }
        };
        let (target, metadata) = target;
        if let Some(skip) = self.judge(path, metadata.is_dir()) {
            return self.skip(path, skip);
        }
        let loops = || above.iter().any(|folder| real_path(folder).is_ok_and(|folder| folder == target));
        if metadata.is_dir() && loops() {
            return self.skip(path, Skip::SymlinkLoop);
        }
        // The walk comes to the target itself; by two names it would be two documents.
        if target.starts_with(self.root) {
            return self.skip(path, Skip::SymlinkInside);
        }
        if !self.config.ingest.allowed_dirs.iter().any(|folder| target.starts_with(folder)) {
            return self.skip(path, Skip::SymlinkOutside);
        }
        if !metadata.is_dir() {
            return self.file(path, &metadata);
        }
        if !self.linked.insert(target) {
            return self.skip(path, Skip::SymlinkLoop);
        }
        above.push(path.to_owned());
        self.folder(path, above);
        above.pop();
    }

    fn file(&mut self, path: &Path, metadata: &Metadata) {
        if !metadata.is_file() {
            return self.skip(path, Skip::NotAFile);
        }
        if metadata.len() > self.config.ingest.max_file_bytes {
            return self.skip(path, Skip::TooLarge);
        }
        let name = self.name(path);
        if !self.seen.insert(name.clone()) {
            return self.skip(path, Skip::DuplicateName);
        }
        let repo = path.parent().and_then(|folder| self.repo(folder));
        self.walk.found.push(Found {
            path: name,
            on_disk: path.to_owned(),
            size: metadata.len(),
            mtime_ns: mtime_ns(metadata),
            repo,
        });
    }

    /// The reason to leave this path out by its name, if there is one.
    fn judge(&mut self, path: &Path, is_dir: bool) -> Option<Skip> {
        let relative = path.strip_prefix(self.root).unwrap_or(path);
        let of_another = || self.config.sources.iter().any(|source| source.root == path && path != self.root);
        if is_dir && (path == self.data_dir || of_another()) {
            return Some(Skip::Excluded);
        }
        if self.exclude.matched(relative, is_dir).is_ignore() {
            return Some(Skip::Excluded);
        }
        let matched = self.ignore.matched(relative, is_dir);
        if matched.is_ignore() {
            return Some(Skip::Ignored);
        }
        // A rule that names it (`!.github`) brings a hidden path back.
        let hidden = path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"."));
        (hidden && !matched.is_whitelist()).then_some(Skip::Hidden)
    }

    fn repo(&mut self, folder: &Path) -> Option<String> {
        if let Some(known) = self.repos.get(folder) {
            return known.clone();
        }
        let repo = match folder.join(".git").exists() {
            true => folder.file_name().map(part_text),
            false => folder.parent().map(Path::to_owned).and_then(|above| self.repo(&above)),
        };
        self.repos.insert(folder.to_owned(), repo.clone());
        repo
    }

    fn name(&self, path: &Path) -> String {
        document_path(path.strip_prefix(self.root).unwrap_or(path))
    }

    fn skip(&mut self, path: &Path, reason: Skip) {
        let name = self.name(path);
        self.walk.skipped.push((name, reason));
    }

    fn fail(&mut self, path: &Path, error: Error) {
        let name = self.name(path);
        self.walk.failed.push((name, error));
    }
}

fn matcher(root: &Path) -> Result<IncrementalIgnore> {
    let mut builder = WalkBuilder::new(root);
    builder.hidden(false).require_git(false).follow_links(false).add_custom_ignore_filename(".kebabignore");
    let matcher = builder.build_matchers().into_iter().next();
    matcher.ok_or_else(|| Error::Internal { cause: format!("no ignore matcher for {}", root.display()) })
}

/// The configured exclusions of a source, in gitignore syntax.
fn exclusions(source: &Source) -> Result<Gitignore> {
    let invalid = |cause: ignore::Error| Error::ConfigInvalid {
        path: None,
        cause: format!("exclude of source {}: {cause}", source.id),
        hint: Some("Use .gitignore syntax, for example \"drafts/\" or \"*.log\".".into()),
    };
    let mut builder = GitignoreBuilder::new(&source.root);
    for pattern in &source.exclude {
        builder.add_line(None, pattern).map_err(invalid)?;
    }
    builder.build().map_err(invalid)
}

fn part_text(part: &std::ffi::OsStr) -> String {
    let mut text = String::new();
    for piece in part.as_encoded_bytes().utf8_chunks() {
        text.extend(piece.valid().nfc());
        text.extend(piece.invalid().iter().map(|byte| format!("%{byte:02X}")));
    }
    text
}
