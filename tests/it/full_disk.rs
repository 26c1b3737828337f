//! A data folder on a disk that runs full: what failed is told by name, and what was stored before is whole.
//!
//! Where no file system may be mounted, the tests say that they were skipped.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::json;

use crate::harness::{Cmd, Dir};
use crate::ingest::fill;

/// A small disk beside a test's folders, and commands whose index lies on it.
struct Disk<'d> {
    dir: &'d Dir,
    path: PathBuf,
}

impl Disk<'_> {
    fn mounted(dir: &Dir, kib: usize) -> Option<Disk<'_>> {
        let path = dir.data().with_file_name("disk");
        std::fs::create_dir(&path).unwrap();
        let size = format!("size={kib}k");
        let mounted = Command::new("mount").args(["-t", "tmpfs", "-o", &size, "tmpfs"]).arg(&path).output().unwrap();
        if !mounted.status.success() {
            eprintln!("SKIPPED: no tmpfs can be mounted here: {}", String::from_utf8_lossy(&mounted.stderr));
            return None;
        }
        Some(Disk { dir, path })
    }

    fn resize(&self, kib: usize) {
        let size = format!("remount,size={kib}k");
        assert!(Command::new("mount").args(["-o", &size]).arg(&self.path).status().unwrap().success());
    }

    fn data(&self) -> PathBuf {
        self.path.join("data")
    }

    fn cmd(&self, args: &[&str]) -> Cmd {
        self.dir.cmd(args).env("KEBAB_STORAGE_DATA_DIR", self.data())
    }
}

impl Drop for Disk<'_> {
    fn drop(&mut self) {
        assert!(Command::new("umount").arg(&self.path).status().unwrap().success());
    }
}

const HINT: &str = "Free some disk space and run the command again; what the index holds is whole.";

#[test]
fn a_full_disk_is_named_and_the_old_index_answers() {
    let dir = Dir::indexed(&[("first.md", "One apple.\n")]);
    let Some(disk) = Disk::mounted(&dir, 600) else { return };
    disk.cmd(&["ingest"]).ok();
    fill(&dir, 1000);
    let error = disk.cmd(&["ingest", "--json", "-q"]).run().code(2).error();
    assert_eq!((&error["code"], &error["hint"]), (&json!("io_error"), &json!(HINT)), "{error}");
    assert_eq!(disk.cmd(&["search", "apple", "--json"]).ok().paths(), ["first.md"]);
    disk.cmd(&["doctor"]).ok();
    let folders = std::fs::read_dir(dir.root()).unwrap().map(|entry| entry.unwrap().path());
    folders.filter(|path| path.is_dir()).for_each(|folder| std::fs::remove_dir_all(folder).unwrap());
    dir.write("second.md", "One apple.\n");
    disk.cmd(&["ingest"]).ok();
    assert_eq!(disk.cmd(&["search", "apple", "--json"]).ok().paths(), ["first.md", "second.md"]);
}

/// Wherever the disk runs full, while rows are written or when the log is moved into the database: an ingest that fails
/// has stored nothing, and one that has stored something does not fail.
#[test]
fn an_ingest_is_stored_whole_or_fails() {
    let dir = Dir::new();
    let Some(disk) = Disk::mounted(&dir, 200) else { return };
    fill(&dir, 300);
    let (mut failed, mut with_log) = (0, 0);
    for kib in (200..4000).step_by(200) {
        disk.resize(kib);
        let output = disk.cmd(&["ingest", "--no-embed", "--json", "-q"]).run();
        if output.status == Some(0) {
            assert_eq!(output.json()["new"], 300);
            let schema = disk.cmd(&["schema", "--json"]).ok().json();
            assert_eq!(schema["stats"]["doc_count"], 300, "of {kib} KiB");
            with_log += usize::from(log_bytes(&disk.data()) > 0);
        } else {
            let error = output.code(2).error();
            assert_eq!((&error["code"], &error["hint"]), (&json!("io_error"), &json!(HINT)), "{error}");
            let error = disk.cmd(&["search", "apple", "--json"]).run().code(2).error();
            assert!(["not_indexed", "io_error"].iter().any(|code| error["code"] == *code), "of {kib} KiB: {error}");
            failed += 1;
        }
        if disk.data().exists() {
            std::fs::remove_dir_all(disk.data()).unwrap();
        }
    }
    assert!(failed > 0 && with_log > 0, "{failed} failed, {with_log} kept their log");
}

fn log_bytes(data: &Path) -> u64 {
    std::fs::metadata(data.join("kebab.sqlite-wal")).map_or(0, |log| log.len())
}
