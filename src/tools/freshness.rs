//! Whether a document is still what its file says, as far as sizes and times tell, and whether anybody has looked lately.

use std::path::PathBuf;

use jiff::Timestamp;

use crate::config::Config;
use crate::error::Result;
use crate::ingest::{mtime_ns, nanoseconds};
use crate::kb::ALL_CHECKED;
use crate::store::{DocumentRow, Reader};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Freshness {
    Fresh,
    /// Last compared with its file longer ago than the configured threshold.
    Unchecked,
    /// The file is not what was indexed, or is gone.
    Changed,
}

impl Freshness {
    pub fn is_stale(self) -> bool {
        self != Freshness::Fresh
    }
}

/// Judges documents at one moment.
pub struct Judge<'c> {
    config: &'c Config,
    /// Documents checked before are too old, in nanoseconds since 1970; None where age does not matter.
    oldest: Option<i64>,
    /// When an ingest last compared every document that lies in a source with its file.
    all_checked: i64,
}

impl<'c> Judge<'c> {
    pub fn new(config: &'c Config, store: &Reader, now: Timestamp) -> Result<Judge<'c>> {
        let days = i64::from(config.search.stale_threshold_days);
        let oldest = (days > 0).then(|| nanoseconds(now) - days * NANOSECONDS_A_DAY);
        let all_checked = match oldest {
            Some(_) => store.meta_number(ALL_CHECKED)?.unwrap_or(0),
            None => 0,
        };
        Ok(Judge { config, oldest, all_checked })
    }

    pub fn judge(&self, document: &DocumentRow) -> Freshness {
        let changed = match self.file_of(document).map(std::fs::metadata) {
            Some(Ok(metadata)) => metadata.len() != document.size || mtime_ns(&metadata) != document.mtime_ns,
            Some(Err(_)) => true,
            None => false,
        };
        let all_checked = if document.walked { self.all_checked } else { 0 };
        let checked = document.checked_ns.max(all_checked);
        match self.oldest {
            _ if changed => Freshness::Changed,
            Some(oldest) if checked < oldest => Freshness::Unchecked,
            _ => Freshness::Fresh,
        }
    }

    /// The file a document was read from; None if its source is not configured.
    fn file_of(&self, document: &DocumentRow) -> Option<PathBuf> {
        let source = self.config.sources.iter().find(|source| source.id == document.source)?;
        match &document.disk_path {
            #[cfg(unix)]
            Some(bytes) => {
                use std::os::unix::ffi::OsStrExt;
                Some(source.root.join(std::ffi::OsStr::from_bytes(bytes)))
            }
            #[cfg(not(unix))]
            Some(bytes) => Some(source.root.join(String::from_utf8_lossy(bytes).as_ref())),
            None => Some(source.root.join(&document.path)),
        }
    }
}

const NANOSECONDS_A_DAY: i64 = 86_400_000_000_000;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tools::tests::Folder;

    #[test]
    fn age_counts_from_the_last_look_at_the_file() {
        let folder = Folder::new();
        let kb = folder.indexed();
        let document = kb.read_store(|store| Ok(store.documents()?.remove(0))).unwrap();
        let seen = |all_checked: i64, oldest: Option<i64>, document: &DocumentRow| {
            Judge { config: &kb.config, oldest, all_checked }.judge(document)
        };
        let old = DocumentRow { checked_ns: 100, ..document };
        assert_eq!(seen(0, None, &old), Freshness::Fresh);
        assert_eq!(seen(0, Some(100), &old), Freshness::Fresh);
        assert_eq!(seen(0, Some(101), &old), Freshness::Unchecked);
        // An ingest has looked at all files since.
        assert_eq!(seen(200, Some(101), &old), Freshness::Fresh);
        assert_eq!(seen(200, Some(201), &old), Freshness::Unchecked);
        // A text that lies in no file is as old as it is.
        assert_eq!(seen(200, Some(101), &DocumentRow { walked: false, ..old.clone() }), Freshness::Unchecked);
        let other = DocumentRow { size: old.size + 1, ..old };
        assert_eq!(seen(200, Some(101), &other), Freshness::Changed);
        let noted = kb.read_store(|store| store.meta_number(ALL_CHECKED)).unwrap();
        assert!(noted.is_some_and(|noted| noted > 0), "{noted:?}");
    }
}
