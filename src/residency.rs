//! What of the program stays in memory. To start touches many more of its pages than to serve does: the dynamic loader
//! reads the relocations of the whole program, and the system maps the neighbours of every page that is touched.
//!
//! Refuses: anything that was written to, and anything but files that are mapped.

/// Gives back the pages of the program and its libraries that are as their files have them; those that are needed again
/// are mapped again, from the system's cache as a rule. For a process that has been set up, before it starts threads
/// that unload libraries.
pub fn trim() {
    #[cfg(target_os = "linux")]
    linux::trim();
}

#[cfg(target_os = "linux")]
mod linux {
    use std::ops::Range;
    use std::ptr::NonNull;

    use nix::sys::mman::{MmapAdvise, madvise};

    pub fn trim() {
        // A system that does not tell keeps its pages.
        let Ok(mappings) = std::fs::read_to_string("/proc/self/smaps") else { return };
        for range in unwritten(&mappings) {
            let Some(start) = NonNull::new(std::ptr::with_exposed_provenance_mut(range.start)) else { continue };
            // SAFETY: a mapping of a file that this process cannot write, and none of whose pages is a copy of its own:
            // whatever is dropped is read from the file again. Only the unloading of a library could put anything else
            // in its place, and none is loaded yet that is ever unloaded.
            unsafe { madvise(start, range.len(), MmapAdvise::MADV_DONTNEED) }.ok();
        }
    }

    /// Mappings of files, in the words of `smaps`, that cannot be written and hold no page that ever was.
    fn unwritten(mappings: &str) -> Vec<Range<usize>> {
        let mut found = Vec::new();
        let mut candidate: Option<Range<usize>> = None;
        let mut copies = None;
        for line in mappings.lines() {
            if let Some(range) = heading(line) {
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
    fn heading(line: &str) -> Option<Option<Range<usize>>> {
        let mut words = line.split_ascii_whitespace();
        let (start, end) = words.next()?.split_once('-')?;
        let address = |text| usize::from_str_radix(text, 16).ok();
        let range = address(start)?..address(end)?;
        let protection = words.next()?;
        let path = words.nth(3).unwrap_or_default();
        let fits = matches!(protection, "r--p" | "r-xp") && path.starts_with('/');
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
            assert_eq!(unwritten(&text), [0x1000..0x2000, 0x2000..0x4000, 0x7f00a000..0x7f00c000]);
            // An older system that does not tell of copies, and one that breaks off.
            assert!(unwritten(&text.replace("Anonymous", "Other")).is_empty());
            assert!(unwritten("1000-2000 r--p 0 fe:00 1 /x\nAnonymous: 0 kB\n").is_empty());
            assert!(unwritten("").is_empty());
        }

        #[test]
        fn the_program_goes_on_without_the_pages_it_gave_back() {
            let table: Vec<String> = (0..1000).map(|number| format!("{number}")).collect();
            for _ in 0..3 {
                trim();
                assert_eq!(table.iter().map(String::len).sum::<usize>(), 2890);
            }
        }
    }
}
