//! LRU cache of temporary files that stay open between writing, verification and installation.

use std::collections::{HashMap, VecDeque};
use std::fs::File;
use std::sync::Arc;

use rustix::process::{Resource, getrlimit};

use crate::identity::FileId;

/// Minimum capacity, unless it exceeds a quarter of the limit on open files.
const MIN_CAPACITY: u64 = 128;

/// Maximum capacity: a group of files that is committed, and as many that are being written.
const MAX_CAPACITY: u64 = 2048;

/// Divisor of the limit on open files: the share of one job.
const LIMIT_DIVISOR: u64 = 8;

pub(crate) struct OpenFiles {
    /// Identities of the temporary files by entry, open or not.
    ids: HashMap<u32, FileId>,
    /// Open files by entry, most recently used last.
    files: VecDeque<(u32, Arc<File>)>,
    most: usize,
}

impl Default for OpenFiles {
    /// Uses a small share of the limit on open files, because many jobs may run in the process.
    fn default() -> Self {
        Self::of(getrlimit(Resource::Nofile).current.map_or(MAX_CAPACITY, most) as usize)
    }
}

fn most(limit: u64) -> u64 {
    (limit / LIMIT_DIVISOR).clamp(MIN_CAPACITY, MAX_CAPACITY).min(limit / 4).max(1)
}

impl OpenFiles {
    fn of(most: usize) -> Self {
        Self { ids: HashMap::new(), files: VecDeque::new(), most }
    }

    pub(crate) fn expect(&mut self, entry: u32, id: FileId) {
        self.ids.insert(entry, id);
    }

    pub(crate) fn is_expected(&self, entry: u32, id: FileId) -> bool {
        self.ids.get(&entry) == Some(&id)
    }

    pub(crate) fn forget(&mut self, entry: u32) -> Option<Arc<File>> {
        self.ids.remove(&entry);
        self.remove(entry)
    }

    pub(crate) fn get(&mut self, entry: u32) -> Option<Arc<File>> {
        let file = self.remove(entry)?;
        self.files.push_back((entry, file.clone()));
        Some(file)
    }

    pub(crate) fn keep(&mut self, entry: u32, file: &Arc<File>) {
        self.remove(entry);
        if self.files.len() >= self.most {
            self.files.pop_front();
        }
        self.files.push_back((entry, file.clone()));
    }

    fn remove(&mut self, entry: u32) -> Option<Arc<File>> {
        let at = self.files.iter().position(|&(open, _)| open == entry)?;
        self.files.remove(at).map(|(_, file)| file)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cache_takes_only_a_share_of_the_descriptor_limit() {
        assert_eq!([8, 64, 256, 512, 1024, 4096, 1 << 20].map(most), [2, 16, 64, 128, 128, 512, 2048]);
    }

    #[test]
    fn the_least_recently_used_file_is_evicted() {
        let file = Arc::new(File::open(".").unwrap());
        let mut open = OpenFiles::of(2);
        open.keep(1, &file);
        open.keep(2, &file);
        assert!(open.get(1).is_some());
        open.keep(3, &file);
        assert!(open.get(2).is_none());
        assert!(open.get(1).is_some() && open.get(3).is_some());
        assert!(open.forget(1).is_some() && open.forget(1).is_none());
        open.keep(3, &file);
        assert_eq!(open.files.len(), 1);
    }
}
