//! Finding the library of ONNX Runtime: which files are candidates, and whether one of them can be used.
//!
//! Each candidate is looked over before `ort` hears of it, because a start of `ort` that failed cannot be taken back.
//! Refuses: relative paths (they would be tried beside the program first) and the working folder.

use std::ffi::CStr;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;

use libloading::{Library, Symbol};
use ort::sys::{ORT_API_VERSION, OrtApiBase};

use crate::config::RuntimeLibrary;

/// A library that answers as this build needs it to.
pub struct Found {
    pub path: PathBuf,
    pub version: String,
    /// Keeps it mapped until `ort` holds it too.
    pub library: Library,
}

/// The first usable one, and why each named or found before it is not.
pub fn find(places: &RuntimeLibrary) -> (Option<Found>, Vec<String>) {
    let mut rejected = Vec::new();
    for (origin, path) in &places.named {
        let files = if path.is_dir() { within(path) } else { vec![path.clone()] };
        if files.is_empty() {
            rejected.push(format!("{origin}: no {PREFIX} in {}", path.display()));
        }
        for file in files {
            match examine(&file) {
                Ok(found) => return (Some(found), rejected),
                Err(cause) => rejected.push(format!("{origin}: {}: {cause}", file.display())),
            }
        }
    }
    let Some(folders) = &places.folders else { return (None, rejected) };
    let beside = std::env::current_exe().ok().and_then(|program| program.parent().map(Path::to_owned));
    let mut seen = Vec::new();
    for file in beside.iter().chain(folders).flat_map(|folder| within(folder)) {
        // One file under several names is looked over once.
        let real = std::fs::canonicalize(&file).unwrap_or_else(|_| file.clone());
        if seen.contains(&real) {
            continue;
        }
        seen.push(real);
        match examine(&file) {
            Ok(found) => return (Some(found), rejected),
            Err(cause) => rejected.push(format!("{}: {cause}", file.display())),
        }
    }
    (None, rejected)
}

/// The variable and the value that keep the library from reporting its use to its maker: released builds of 1.29 and
/// later do that, and keep an identifier and a queue in the home folder, unless it is set before they start. Set it
/// before the first thread is started; a library is passed over where it is not.
pub const NO_REPORTS: (&str, &str) = ("ORT_DISABLE_TELEMETRY", "1");

const PREFIX: &str = if cfg!(windows) { "onnxruntime" } else { "libonnxruntime" };

/// Files of a folder that carry the name of the library, the newest version first.
fn within(folder: &Path) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(folder) else { return Vec::new() };
    let mut names: Vec<String> = entries.flatten().filter_map(|entry| entry.file_name().into_string().ok()).collect();
    names.retain(|name| is_library(name));
    names.sort_by_key(|name| std::cmp::Reverse(numbers(name)));
    names.into_iter().map(|name| folder.join(name)).collect()
}

/// `libonnxruntime.so.1.31.1`, `libonnxruntime.1.31.1.dylib`, `onnxruntime.dll`; not `libonnxruntime_providers_x.so`.
fn is_library(name: &str) -> bool {
    let Some(rest) = name.strip_prefix(PREFIX) else { return false };
    let mut parts = rest.split('.').skip(1);
    rest.starts_with('.')
        && rest.split('.').any(|part| part == std::env::consts::DLL_EXTENSION)
        && parts.all(|part| part == std::env::consts::DLL_EXTENSION || part.parse::<u32>().is_ok())
}

fn numbers(name: &str) -> Vec<u32> {
    name.split('.').filter_map(|part| part.parse().ok()).collect()
}

/// Opens a library and asks it what `ort` will ask.
fn examine(path: &Path) -> Result<Found, String> {
    let (name, value) = NO_REPORTS;
    if std::env::var_os(name).is_none_or(|set| set != value) {
        return Err(format!("{name} is not {value}, and it would report to its maker"));
    }
    require_whole(path)?;
    super::runtime::LIBRARY_IS_LOADED.store(true, Ordering::Relaxed);
    // SAFETY: loading runs the library's initialisers; that they are sound is what naming or installing it asserts.
    let library = unsafe { Library::new(path) }.map_err(|error| error.to_string())?;
    match answers(&library) {
        Ok(version) => Ok(Found { path: path.to_owned(), version, library }),
        Err(cause) => {
            // Some versions crash when they are taken out again.
            std::mem::forget(library);
            Err(cause)
        }
    }
}

/// The version of a library that serves the API this build speaks.
fn answers(library: &Library) -> Result<String, String> {
    // SAFETY: the symbol has had this signature since the first release; null is looked for before each use.
    let (version, serves) = unsafe {
        let base: Symbol<unsafe extern "C" fn() -> *const OrtApiBase> =
            library.get(b"OrtGetApiBase").map_err(|_| "it is not ONNX Runtime: it has no OrtGetApiBase".to_owned())?;
        let base = base().as_ref().ok_or("OrtGetApiBase gives nothing")?;
        let version = (base.GetVersionString)();
        if version.is_null() {
            return Err("it does not tell its version".into());
        }
        let version = CStr::from_ptr(version).to_string_lossy().into_owned();
        // An older one complains on stderr when it is asked for an API it does not know.
        let serves = is_recent(&version) && !(base.GetApi)(ORT_API_VERSION).is_null();
        (version, serves)
    };
    match serves {
        true => Ok(version),
        false => Err(format!("version {version}, needed is 1.{ORT_API_VERSION} or later")),
    }
}

fn is_recent(version: &str) -> bool {
    let mut numbers = version.split('.').map(|part| part.parse::<u32>().unwrap_or(0));
    let (major, minor) = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    (major, minor) >= (1, ORT_API_VERSION)
}

/// Refuses an ELF file that is cut short or for another machine: the loader maps a short file all the same, and touching
/// what is missing ends the process. Loaders of other systems look for themselves.
fn require_whole(path: &Path) -> Result<(), String> {
    let mut file = File::open(path).map_err(|error| error.to_string())?;
    let length = file.metadata().map_err(|error| error.to_string())?.len();
    let mut head = [0; 64];
    if file.read_exact(&mut head).is_err() {
        return Err(format!("it is cut short: {length} bytes"));
    }
    if head[..4] != *b"\x7fELF" {
        return if cfg!(target_os = "linux") { Err("it is not a library".into()) } else { Ok(()) };
    }
    if head[4] != ELF_64_BITS || head[5] != ELF_LITTLE_ENDIAN {
        return Err("it is for another kind of processor".into());
    }
    let machine = u16::from_le_bytes([head[18], head[19]]);
    if let Some((_, own)) = ELF_MACHINES.iter().find(|(arch, _)| *arch == std::env::consts::ARCH)
        && machine != *own
    {
        let name = ELF_MACHINES.iter().find(|(_, number)| *number == machine).map_or("another", |(arch, _)| arch);
        return Err(format!("it is for {name} processors, this one is {}", std::env::consts::ARCH));
    }
    let long = |at: usize| u64::from_le_bytes(head[at..at + 8].try_into().expect("8 bytes"));
    let short = |at: usize| u64::from(u16::from_le_bytes([head[at], head[at + 1]]));
    let (segments, segment_bytes, count) = (long(32), short(54), short(56));
    let sections_end = long(40).saturating_add(short(58) * short(60));
    let mut table = vec![0; (segment_bytes * count) as usize];
    let read = file.seek(SeekFrom::Start(segments)).and_then(|_| file.read_exact(&mut table));
    let mut end = sections_end;
    if read.is_ok() && segment_bytes >= 56 {
        for segment in table.chunks_exact(segment_bytes as usize) {
            let long = |at: usize| u64::from_le_bytes(segment[at..at + 8].try_into().expect("8 bytes"));
            end = end.max(long(8).saturating_add(long(32)));
        }
    }
    match read {
        Ok(()) if end <= length => Ok(()),
        _ => Err(format!("it is cut short: {length} of {end} bytes")),
    }
}

const ELF_64_BITS: u8 = 2;
const ELF_LITTLE_ENDIAN: u8 = 1;

/// e_machine of the processors the runtime is released for.
const ELF_MACHINES: &[(&str, u16)] = &[("x86_64", 62), ("aarch64", 183), ("riscv64", 243)];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_library_is_known_by_its_name() {
        let own = [PREFIX, std::env::consts::DLL_EXTENSION].join(".");
        assert!(is_library(&own));
        assert!(!is_library(&format!("{PREFIX}_providers_cuda.{}", std::env::consts::DLL_EXTENSION)));
        assert!(!is_library(&format!("{own}.bak")));
        assert!(!is_library(PREFIX));
    }

    #[test]
    fn versions_are_compared_as_numbers() {
        assert!(is_recent("1.24.0") && is_recent("1.100") && is_recent("2.0.1"));
        assert!(!is_recent("1.23.2") && !is_recent("1.9.9") && !is_recent("") && !is_recent("x.y"));
        assert!(numbers("libonnxruntime.so.1.100.0") > numbers("libonnxruntime.so.1.31.1"));
    }

    #[test]
    fn a_file_that_is_cut_short_is_never_mapped() {
        let program = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        let path = std::env::temp_dir().join(format!("kebab-elf-{}", std::process::id()));
        let judged = |bytes: &[u8]| {
            std::fs::write(&path, bytes).unwrap();
            require_whole(&path)
        };
        assert_eq!(judged(b"\x7fELF").unwrap_err(), "it is cut short: 4 bytes");
        if cfg!(all(target_os = "linux", target_arch = "x86_64")) {
            assert_eq!(judged(&program), Ok(()));
            let half = judged(&program[..program.len() / 2]).unwrap_err();
            assert!(half.starts_with("it is cut short: "), "{half}");
            let mut other = program[..4096].to_vec();
            other[18] = 183;
            assert_eq!(judged(&other).unwrap_err(), "it is for aarch64 processors, this one is x86_64");
            other[4] = 1;
            assert_eq!(judged(&other).unwrap_err(), "it is for another kind of processor");
            assert_eq!(judged(&[b'x'; 100]).unwrap_err(), "it is not a library");
        }
        std::fs::remove_file(&path).unwrap();
    }
}
