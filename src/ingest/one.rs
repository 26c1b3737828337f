//! One document by itself: a file that somebody names, or a text that lies in no file.
//!
//! A file below a root is the document that a walk makes of it, and is judged by the walk's rules. Anything else becomes
//! a document of the store alone (source `INGESTED`): no walk finds it, and none misses it. The user's folders are never
//! written to.

use std::path::{Path, PathBuf};
use std::sync::LazyLock;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use unicode_normalization::UnicodeNormalization;

use super::decode::{Unreadable, decode};
use super::prepare::{Loaded, Outcome, disk_path, load};
use super::walk::{self, Found, Skip, document_path, owner, resolve};
use super::{Task, perform, require_writable};
use crate::config::{Config, INGESTED, Source, settle};
use crate::error::{Error, Result};
use crate::kb::Kb;
use crate::model::Given;
use crate::store::Kept;
use crate::wire::{IngestReport, IngestResult};

/// The source of documents that lie in no root.
pub static IN_STORE: LazyLock<Source> = LazyLock::new(|| Source {
    id: INGESTED.into(),
    root: PathBuf::new(),
    exclude: Vec::new(),
    trust_level: None,
    source_type: None,
});

/// Ingests a file below a root, or a copy of one below `ingest.allowed_dirs`. A relative path is taken from the main
/// root. `invalid_input` if a walk would pass the file over. `stop` ends the wait for another writer.
pub fn file(kb: &Kb, path: &Path, given: &Given, wait: Duration, stop: &AtomicBool) -> Result<IngestReport> {
    require_writable(kb, "ingest_file")?;
    let place = locate(&kb.config, path)?;
    let on_disk = &place.file.on_disk;
    let loaded =
        load(on_disk, disk_path(place.source, &place.file), &kb.config, None).map_err(|outcome| match outcome {
            Outcome::Skipped(skip) => refused(&kb.config, &place.file.path, skip),
            Outcome::Failed(error) => error,
            Outcome::Vanished | Outcome::Document(_) | Outcome::Same { .. } => missing(on_disk),
        })?;
    let task = Task { include: vec![path.display().to_string()], force: false, wait, list: true, whole: false };
    let report = perform(kb, &task, &mut |_| {}, stop, |ingest, writer| {
        let mut file = place.file.clone();
        if !place.walked {
            file.path = path_of_copy(&writer.kept(INGESTED)?, &file.on_disk);
        }
        ingest.add(writer, place.source, file, place.walked, loaded.clone(), given.clone())
    })?;
    parsed(report)
}

/// Ingests a text as a markdown document; `given` holds its title. The same title and `source_uri` make the same
/// document.
pub fn text(kb: &Kb, text: &str, given: &Given, wait: Duration, stop: &AtomicBool) -> Result<IngestReport> {
    require_writable(kb, "ingest_stdin")?;
    let size = text.len() as u64;
    if size > kb.config.ingest.max_file_bytes {
        let reason = format!("{size} bytes are more than ingest.max_file_bytes, {}", kb.config.ingest.max_file_bytes);
        return Err(Error::input("text", reason));
    }
    let hash = *blake3::hash(text.as_bytes()).as_bytes();
    let decoded = decode(text.as_bytes().to_vec()).map_err(|why| match why {
        Unreadable::Binary => Error::input("text", "it is binary: it holds NUL or many control characters"),
        other => Error::input("text", format!("it is {}", other.reason())),
    })?;
    let (text, encoding, bom) = (decoded.text, decoded.encoding, decoded.had_bom);
    let loaded = Loaded { text, encoding, bom, hash, size, mtime_ns: 0, disk_path: None };
    let task = Task { include: Vec::new(), force: false, wait, list: true, whole: false };
    let report = perform(kb, &task, &mut |_| {}, stop, |ingest, writer| {
        let path = path_of_text(&writer.kept(INGESTED)?, given);
        let file = Found { path, on_disk: PathBuf::new(), size, mtime_ns: 0, repo: None };
        ingest.add(writer, &IN_STORE, file, false, loaded.clone(), given.clone())
    })?;
    parsed(report)
}

/// Where a named file lies, and as what it is read.
struct Place<'c> {
    source: &'c Source,
    file: Found,
    walked: bool,
}

fn locate<'c>(config: &'c Config, named: &Path) -> Result<Place<'c>> {
    let absolute = config.sources[0].root.join(named);
    // Where it really lies, and as the walk would come to it, the last part perhaps a link out of the root.
    let (reached, real) = (resolve(&absolute), settle(&absolute));
    let allowed = config.ingest.allowed_dirs.iter().find(|folder| real.starts_with(folder));
    let in_root = [&real, &reached].into_iter().find_map(|path| Some((owner(config, path)?, path)));
    // What lies elsewhere is not even said to exist or not.
    if in_root.is_none() && allowed.is_none() {
        let reason = format!("{} lies outside the workspace {}", named.display(), config.sources[0].root.display());
        let hint = "Name a file inside the workspace, or add its folder to ingest.allowed_dirs in the config file.";
        return Err(Error::input_hint("path", reason, hint));
    }
    match std::fs::metadata(&real) {
        Ok(metadata) if metadata.is_dir() => {
            let hint = "Name a file; `kebab-lite ingest` takes folders.";
            return Err(Error::input_hint("path", format!("{} is a folder", named.display()), hint));
        }
        Ok(_) => {}
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Err(missing(named)),
        Err(error) => return Err(Error::io("read metadata", &real)(error)),
    }
    match in_root {
        Some((source, path)) => Ok(Place { source, file: judge(config, source, path)?, walked: true }),
        None => {
            let root = allowed.cloned().unwrap_or_default();
            let allowed = Source { root, exclude: config.sources[0].exclude.clone(), ..IN_STORE.clone() };
            Ok(Place { source: &IN_STORE, file: judge(config, &allowed, &real)?, walked: false })
        }
    }
}

/// The file as a walk of the source finds it, or why the walk leaves it out.
fn judge(config: &Config, source: &Source, path: &Path) -> Result<Found> {
    let mut walk = walk::walk(config, source, &[path.to_owned()])?;
    walk.found.pop().ok_or_else(|| {
        let failed = walk.failed.pop().map(|(_, error)| error);
        let skipped = walk.skipped.pop().map(|(path, skip)| refused(config, &path, skip));
        failed.or(skipped).unwrap_or_else(|| missing(path))
    })
}

fn missing(path: &Path) -> Error {
    Error::input("path", format!("there is no file {}", path.display()))
}

/// `path` may be a folder on the way to the file.
fn refused(config: &Config, path: &str, skip: Skip) -> Error {
    let why = match skip {
        Skip::Hidden => "is hidden: its name starts with a dot".to_owned(),
        Skip::Ignored => "is ignored by a .gitignore, .ignore or .kebabignore file".to_owned(),
        Skip::Excluded => "is excluded by the configuration".to_owned(),
        Skip::TooLarge => format!("is larger than ingest.max_file_bytes, {}", config.ingest.max_file_bytes),
        Skip::Binary => "is binary".to_owned(),
        Skip::UnknownEncoding => "has an unknown encoding".to_owned(),
        Skip::SymlinkInside => "is a link to what lies in the workspace already".to_owned(),
        Skip::SymlinkOutside => "is a link that leads outside the workspace".to_owned(),
        Skip::SymlinkLoop | Skip::SymlinkBroken => "is a link that leads nowhere".to_owned(),
        Skip::NotAFile | Skip::DuplicateName => "is not a regular file".to_owned(),
    };
    Error::input("path", format!("{path} {why}"))
}

/// A parser that fails fails the call: there is no other file to go on with.
fn parsed(mut report: IngestReport) -> Result<IngestReport> {
    let items = report.items.as_mut().map(std::mem::take).unwrap_or_default();
    if let Some(error) =
        items.iter().find(|item| item.result == IngestResult::Error).and_then(|item| item.error.as_ref())
    {
        return Err(Error::Internal { cause: error.message.clone() });
    }
    Ok(IngestReport { items: Some(items), ..report })
}

/// The name the file was copied under before, else one that is free.
fn path_of_copy(kept: &[Kept], on_disk: &Path) -> String {
    let bytes = on_disk.as_os_str().as_encoded_bytes();
    if let Some(same) = kept.iter().find(|kept| kept.disk_path.as_deref() == Some(bytes)) {
        return same.path.clone();
    }
    let name = document_path(Path::new(on_disk.file_name().unwrap_or_default()));
    let (stem, extension) = match name.rsplit_once('.') {
        Some((stem, extension)) if !stem.is_empty() => (stem, format!(".{extension}")),
        _ => (&name[..], String::new()),
    };
    let hash = blake3::hash(bytes).to_hex();
    let marked = |length: usize| format!("{COPIES}/{stem}-{}{extension}", &hash[..length]);
    let mut paths = std::iter::once(format!("{COPIES}/{name}")).chain((8..hash.len()).map(marked));
    let free = paths.find(|path| !kept.iter().any(|kept| kept.path == *path));
    free.unwrap_or_else(|| marked(hash.len()))
}

fn path_of_text(kept: &[Kept], given: &Given) -> String {
    let folder = format!("{TEXTS}/");
    let mut texts = kept.iter().filter(|kept| kept.path.starts_with(&folder));
    let same = |kept: &&Kept| kept.given.title == given.title && kept.given.source_uri == given.source_uri;
    if let Some(same) = texts.find(same) {
        return same.path.clone();
    }
    let slug = slug(given.title.as_deref().unwrap_or_default());
    let mut path = format!("{folder}{slug}.md");
    let mut number = 1;
    while kept.iter().any(|kept| kept.path == path) {
        number += 1;
        path = format!("{folder}{slug}-{number}.md");
    }
    path
}

/// Folders that exist in document paths only.
const COPIES: &str = "ingested";
const TEXTS: &str = "stdin";

/// Letters and digits of a title, in lower case, joined by dashes.
fn slug(title: &str) -> String {
    let lower: String = title.to_lowercase().nfc().collect();
    let words = lower.split(|c: char| !c.is_alphanumeric()).filter(|word| !word.is_empty());
    let slug: String = words.collect::<Vec<_>>().join("-").chars().take(SLUG_CHARS).collect();
    match slug.trim_end_matches('-') {
        "" => "untitled".into(),
        slug => slug.into(),
    }
}

const SLUG_CHARS: usize = 60;

#[cfg(test)]
mod tests {
    use super::*;

    fn kept(path: &str, disk_path: Option<&str>, title: &str, uri: Option<&str>) -> Kept {
        let given = Given { title: Some(title.into()), source_uri: uri.map(Into::into), ..Given::default() };
        Kept { path: path.into(), disk_path: disk_path.map(|path| path.as_bytes().to_vec()), given }
    }

    #[test]
    fn a_copy_keeps_its_name_and_takes_nobody_elses() {
        let taken = [kept("ingested/a.md", Some("/x/a.md"), "", None), kept("ingested/b", Some("/x/b"), "", None)];
        let name = |path: &str| path_of_copy(&taken, Path::new(path));
        assert_eq!(name("/x/a.md"), "ingested/a.md");
        assert_eq!(name("/x/c.md"), "ingested/c.md");
        let hash = blake3::hash(b"/y/a.md").to_hex();
        assert_eq!(name("/y/a.md"), format!("ingested/a-{}.md", &hash[..8]));
        let hash = blake3::hash(b"/y/b").to_hex();
        assert_eq!(name("/y/b"), format!("ingested/b-{}", &hash[..8]));
    }

    #[test]
    fn a_text_is_known_by_title_and_origin() {
        let taken = [
            kept("stdin/my-note.md", None, "My note", None),
            kept("stdin/my-note-2.md", None, "My note", Some("https://a")),
        ];
        let name = |title: &str, uri: Option<&str>| path_of_text(&taken, &kept("", None, title, uri).given);
        assert_eq!(name("My note", None), "stdin/my-note.md");
        assert_eq!(name("My note", Some("https://a")), "stdin/my-note-2.md");
        assert_eq!(name("My note", Some("https://b")), "stdin/my-note-3.md");
        assert_eq!(name("My: note!", None), "stdin/my-note-3.md");
        assert_eq!(name("Other", None), "stdin/other.md");
    }

    #[test]
    fn slugs_are_short_plain_names() {
        assert_eq!(slug("2026년 회의록: 백업/복구"), "2026년-회의록-백업-복구");
        assert_eq!(slug("../../etc/passwd"), "etc-passwd");
        assert_eq!(slug(".. / …"), "untitled");
        assert_eq!(slug("Cafe\u{301} Ä"), "café-ä");
        assert_eq!(slug(&"word ".repeat(40)).chars().count(), 59);
    }
}
