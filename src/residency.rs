//! What of the program stays in memory. To start touches many more of its pages than to serve does: the dynamic loader
//! reads the relocations of the whole program, and the system maps the neighbours of every page that is touched.
//!
//! Refuses: anything that was written to, and anything but files that are mapped.

/// Whose pages are given back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    /// The program's own, which are mapped for as long as it runs.
    Program,
    /// Those of libraries as well: for a process that unloads none.
    Libraries,
}

/// Gives back the pages that are as their files have them; those that are needed again are mapped again, from the
/// system's cache as a rule. For a process that has been set up.
pub fn trim(scope: Scope) {
    #[cfg(target_os = "linux")]
    linux::trim(scope);
    #[cfg(not(target_os = "linux"))]
    let _ = scope;
}

#[cfg(target_os = "linux")]
mod linux {
    use std::ops::Range;
    use std::path::Path;
    use std::ptr::NonNull;

    use nix::sys::mman::{MmapAdvise, madvise};

    use super::Scope;

    pub fn trim(scope: Scope) {
        // A system that does not tell keeps its pages.
        let Ok(mappings) = std::fs::read_to_string("/proc/self/smaps") else { return };
        let file = match (scope, std::env::current_exe()) {
            (Scope::Libraries, _) => None,
            (Scope::Program, Ok(program)) => Some(program),
            (Scope::Program, Err(_)) => return,
        };
        for range in unwritten(&mappings, file.as_deref()) {
            let Some(start) = NonNull::new(std::ptr::with_exposed_provenance_mut(range.start)) else { continue };
            // SAFETY: a mapping of a file that this process cannot write, and none of whose pages is a copy of its own:
            // whatever is dropped is read from the file again. Only the unloading of a library could put anything else
            // in its place meanwhile; the program is not unloaded, and who names libraries unloads none.
            unsafe { madvise(start, range.len(), MmapAdvise::MADV_DONTNEED) }.ok();
        }
    }

    /// Mappings of files, or of this one, in the words of `smaps`, that cannot be written and hold no page that ever was.
    fn unwritten(mappings: &str, file: Option<&Path>) -> Vec<Range<usize>> {
        let mut found = Vec::new();
        let mut candidate: Option<Range<usize>> = None;
        let mut copies = None;
        for line in mappings.lines() {
            if let Some(range) = heading(line, file) {
                candidate = range;
                copies = None;
                continue;
            }
            match line.split_once(':').map(|(name, value)| (name, value.trim())) {
                // Relocated pages are copies; they can be in memory or swapped out.
                Some(("Anonymous", amount)) => copies = Some(amount != "0 kB"),
                Some(("Swap", amount)) => copies = copies.map(|copies| copies || amount != "0 kB"),
                // Always the last.
                Some(("VmFlags", _)) if copies == Some(false) => found.extend(candidate.take()),
                _ => {}
            }
        }
        found
    }

    /// None for a line that begins no mapping, and no range for a mapping that is to be left alone.
    fn heading(line: &str, file: Option<&Path>) -> Option<Option<Range<usize>>> {
        let mut words = line.split_ascii_whitespace();
        let (start, end) = words.next()?.split_once('-')?;
        let address = |text| usize::from_str_radix(text, 16).ok();
        let range = address(start)?..address(end)?;
        let protection = words.next()?;
        // Behind access, offset, device and number comes the path, which may hold spaces.
        let number = words.nth(2)?;
        let path = line[number.as_ptr() as usize - line.as_ptr() as usize + number.len()..].trim_start();
        let fits = matches!(protection, "r--p" | "r-xp") && path.starts_with('/');
        let fits = fits && file.is_none_or(|file| Path::new(path) == file);
        Some(fits.then_some(range))
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        fn mapping(heading: &str, anonymous: usize, swap: usize) -> String {
            format!(
                "{heading}\nSize: 8 kB\nRss: 8 kB\nAnonymous: {anonymous} kB\nSwap: {swap} kB\nTHPeligible: 0\nVmFlags: rd mr mw me\n"
            )
        }

        #[test]
        fn only_files_that_were_never_written_are_given_back() {
            let text = [
                mapping("1000-2000 r--p 00000000 fe:00 12   /bin/program", 0, 0),
                mapping("2000-4000 r-xp 00001000 fe:00 12   /bin/program", 0, 0),
                mapping("4000-5000 r--p 00003000 fe:00 12   /bin/program", 4, 0),
                mapping("5000-6000 r--p 00003000 fe:00 12   /bin/program", 0, 4),
                mapping("6000-7000 rw-p 00004000 fe:00 12   /bin/program", 0, 0),
                mapping("7000-8000 r--s 00000000 fe:00 13   /data/segment", 0, 0),
                mapping("8000-9000 rw-p 00000000 00:00 0    [heap]", 4, 0),
                mapping("9000-a000 r-xp 00000000 00:00 0    [vdso]", 0, 0),
                mapping("a000-b000 r--p 00000000 00:00 0", 0, 0),
                mapping("7f00a000-7f00c000 r-xp 00000000 fe:00 14   /lib/lib of spaces.so", 0, 0),
            ]
            .concat();
            assert_eq!(unwritten(&text, None), [0x1000..0x2000, 0x2000..0x4000, 0x7f00a000..0x7f00c000]);
            assert_eq!(unwritten(&text, Some(Path::new("/bin/program"))), [0x1000..0x2000, 0x2000..0x4000]);
            assert_eq!(unwritten(&text, Some(Path::new("/lib/lib of spaces.so"))).len(), 1);
            // An older system that does not tell of copies, and one that breaks off.
            assert!(unwritten(&text.replace("Anonymous", "Other"), None).is_empty());
            assert!(unwritten("1000-2000 r--p 0 fe:00 1 /x\nAnonymous: 0 kB\n", None).is_empty());
            assert!(unwritten("", None).is_empty());
        }

        #[test]
        fn the_program_goes_on_without_the_pages_it_gave_back() {
            let table: Vec<String> = (0..1000).map(|number| format!("{number}")).collect();
            for scope in [Scope::Program, Scope::Libraries, Scope::Program] {
                trim(scope);
                assert_eq!(table.iter().map(String::len).sum::<usize>(), 2890);
            }
        }
    }
}
