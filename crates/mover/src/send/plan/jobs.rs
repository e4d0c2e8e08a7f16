//! The receiver's requests as jobs for the reader and for the prover.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crossbeam_channel::Sender;
use haul_wire::control::{Fault, FileDigest};
use parking_lot::Mutex;

use crate::budget::Reserved;
use crate::entries::EntryState;
use crate::send::blocks::{Sections, SourceFile};
use crate::tree::{Groups, Tree, Value};

/// Ranges of the stream of a file, to be read.
pub(crate) struct Job {
    pub(crate) file: Arc<SourceFile>,
    /// `None`: the whole stream, of which the receiver has nothing.
    pub(crate) sections: Option<Arc<Sections>>,
    /// Collects the hashes of the groups that the ranges overlap; `None` if the receiver has nothing of the
    /// file, or was already sent the hashes.
    pub(crate) hashes: Option<Arc<BlockHashes>>,
}

/// A file whose group hashes are sent to the receiver: computed by the reader where it sends bytes of a
/// group, else by the prover.
pub(crate) struct BlockHashes {
    pub(crate) file: Arc<SourceFile>,
    tree: Mutex<Tree>,
    is_reported: AtomicBool,
}

impl BlockHashes {
    pub(crate) fn new(file: Arc<SourceFile>) -> Self {
        let tree = Mutex::new(Tree::new(Groups::of(file.shape.len)));
        Self { file, tree, is_reported: AtomicBool::new(false) }
    }

    pub(crate) fn groups(&self) -> Groups {
        Groups::of(self.file.shape.len)
    }

    /// Records the values of groups. Returns the file's digest once all are known; an empty stream has no
    /// groups.
    pub(crate) fn set(&self, values: &[(u32, Value)]) -> Option<Value> {
        let mut tree = self.tree.lock();
        for &(group, value) in values {
            tree.set(group, value);
        }
        tree.root()
    }

    /// Returns the digest message of the file for the first caller, `None` afterwards.
    pub(crate) fn tell(&self, result: Result<Value, Fault>) -> Option<FileDigest> {
        let first = !self.is_reported.swap(true, Ordering::AcqRel);
        first.then(|| FileDigest { entry: self.file.entry.into(), result })
    }
}

pub(crate) struct HashJob {
    pub(crate) hashes: Arc<BlockHashes>,
    pub(crate) groups: Vec<u32>,
}

/// A file that the receiver had in part.
pub(crate) struct Partial {
    pub(crate) hashes: Arc<BlockHashes>,
    /// Final state of the entry if no bytes need to be sent.
    pub(crate) without_sending: EntryState,
    pub(crate) asked: u64,
    /// Whether the receiver's data turned out to differ, also in a dry run.
    pub(crate) differs: bool,
    /// Memory reserved until the entry is settled.
    pub(crate) _reserved: Reserved,
}

#[derive(Default)]
pub(crate) struct Requests {
    /// Queue of the reader; `None` once the object is complete.
    pub(crate) jobs: Option<Sender<Job>>,
    pub(crate) proofs: Option<Sender<HashJob>>,
    /// Files that were announced and not requested yet, in entry order.
    pub(crate) announced: VecDeque<Arc<SourceFile>>,
    /// Entries below this number have been answered by the receiver.
    pub(crate) answered: u32,
    pub(crate) partial: HashMap<u32, Partial>,
    /// Bytes of the object so far.
    pub(crate) object: u64,
}

impl Requests {
    /// Returns the number of files found by the walk whose end is still to come.
    pub(crate) fn pending_files(&self) -> usize {
        self.announced.len() + self.jobs.as_ref().map_or(0, Sender::len) + self.partial.len()
    }
}
