//! What the threads of a receiving job share.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use haul_wire::control::{Fault, FileDigest};

use crate::entries::EntryTable;
use crate::link::ControlLink;
use crate::progress::{Progress, WakeSlot};
use crate::receive::place::Place;
use crate::receive::queue::{Loan, Queue};
use crate::report::Failures;

/// When a file counts as received.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Durability {
    /// When it and its name are on the disk: they survive a power failure.
    #[default]
    Synced,
    /// When the kernel has it: it survives the end of this program.
    Cached,
}

/// The set and what became of it.
#[derive(Default)]
pub(crate) struct Book {
    pub(crate) table: EntryTable,
    pub(crate) failures: Failures,
    /// Length of the object, once all entries are known.
    pub(crate) object_len: Option<u64>,
}

/// What ended the job, and whether the peer still has to be told.
#[derive(Clone, Debug)]
pub(crate) struct Ending {
    pub(crate) fault: Fault,
    pub(crate) tell_peer: bool,
}

pub(crate) struct Shared {
    pub(crate) link: Arc<dyn ControlLink>,
    pub(crate) queue: Arc<Queue>,
    pub(crate) place: Place,
    pub(crate) progress: Arc<Progress>,
    pub(crate) wake: WakeSlot,
    pub(crate) durability: Durability,
    book: Mutex<Book>,
    ending: OnceLock<Ending>,
    finished: AtomicBool,
}

/// Work for the verifier.
pub(crate) enum Check {
    /// Bytes of a file were written.
    Written(Written),
    /// What files should hash to.
    Expected(Vec<FileDigest>),
}

/// Bytes of a file that were written.
pub(crate) struct Written {
    pub(crate) entry: u32,
    /// Where in the file they begin.
    pub(crate) offset: u64,
    /// The bytes, if they are still in memory.
    pub(crate) bytes: Option<(Loan, std::ops::Range<usize>)>,
    /// Everything below this place of the file is written now.
    pub(crate) contiguous: u64,
    /// Size of the file.
    pub(crate) size: u64,
}

/// What the committer learns: exactly one message for each entry, and the number of entries.
pub(crate) enum Settle {
    /// A directory or a link, which is finished at the end.
    Held,
    /// The file is complete and its contents are right.
    Verified(u32),
    /// It failed here.
    Failed(u32, Fault),
    /// It failed at the sender, who knows.
    Unread(u32, Fault),
    /// There are so many entries.
    End(u64),
}

impl Shared {
    pub(crate) fn new(link: Arc<dyn ControlLink>, place: Place, memory: u64, durability: Durability) -> Self {
        let wake = WakeSlot::default();
        Self {
            link,
            queue: Arc::new(Queue::new(memory, wake.clone())),
            place,
            progress: Arc::default(),
            wake,
            durability,
            book: Mutex::default(),
            ending: OnceLock::new(),
            finished: AtomicBool::new(false),
        }
    }

    pub(crate) fn book(&self) -> MutexGuard<'_, Book> {
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The path of an entry, as it travels.
    pub(crate) fn path(&self, entry: u32) -> Vec<u8> {
        self.book().table.path(entry)
    }

    /// Ends the job. The first fault stays.
    pub(crate) fn end(&self, fault: Fault, tell_peer: bool) {
        let _ = self.ending.set(Ending { fault, tell_peer });
        self.queue.close();
    }

    /// Ends the job; the peer will be told.
    pub(crate) fn fail(&self, fault: Fault) {
        self.end(fault, true);
    }

    pub(crate) fn ending(&self) -> Option<&Ending> {
        self.ending.get()
    }

    /// Every entry is final.
    pub(crate) fn set_finished(&self) {
        self.finished.store(true, Ordering::Release);
    }

    pub(crate) fn finished(&self) -> bool {
        self.finished.load(Ordering::Acquire)
    }
}
