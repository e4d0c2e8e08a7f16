//! What the threads of a receiving job share.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use haul_base::RangeSet;
use haul_wire::control::{
    ControlMessage, Durability, Extent, Fault, FileDigest, Manners, Notes, Proof, Removal, Rule, RunMode,
};

use crate::entries::{EntryTable, State};
use crate::journal::FileIdentity;
use crate::layout::Layout;
use crate::link::ControlLink;
use crate::progress::{Progress, WakeSlot};
use crate::receive::behind::Behind;
use crate::receive::compare::{Held, Interest};
use crate::receive::dress::{Dresser, ExtrasMap, Undone};
use crate::receive::place::Place;
use crate::receive::queue::{Loan, Queue};
use crate::receive::spared::WithheldNames;
use crate::receive::tell::Untold;
use crate::receive::wants::Wants;
use crate::receive::writer::over;
use crate::receive::{Asked, ReceiveOptions};
use crate::report::Failures;
use crate::threads::Job;
use crate::tree::Value;

/// The set and what became of it.
#[derive(Default)]
pub(crate) struct Book {
    pub(crate) table: EntryTable,
    pub(crate) failures: Failures,
    pub(crate) notes: Notes,
    pub(crate) extras: ExtrasMap,
    pub(crate) layout: Layout,
    /// Of the entries below this number it is decided what is wanted.
    pub(crate) decided: u32,
    /// What is written of the streams of files that are not whole.
    pub(crate) partial: HashMap<u32, RangeSet>,
    /// Bytes of verified files that an earlier attempt had left.
    pub(crate) resumes: HashMap<u32, u64>,
    /// Length of the object, once everything that is wanted is known.
    pub(crate) object_len: Option<u64>,
    /// How much the set says about names that it does not have.
    pub(crate) extent: Extent,
    /// By which the sender has left names out of it.
    pub(crate) left_out: Vec<Rule>,
    /// What the sender has left out otherwise.
    pub(crate) withheld: WithheldNames,
    /// Entries in whose place something of another kind is, which may be removed.
    pub(crate) blocked: Vec<u32>,
    pub(crate) removal: Removal,
}

impl Book {
    /// A file whose temporary file is there, with these bytes of its stream.
    pub(crate) fn start_with(&mut self, entry: u32, written: RangeSet) {
        self.table.set_state(entry, State::Started);
        self.partial.insert(entry, written);
    }

    /// Notes written bytes of a stream of `len` bytes; gives the written stretch around them.
    pub(crate) fn note_written(&mut self, entry: u32, range: &Range<u64>, len: u64) -> Range<u64> {
        if *range == (0..len) {
            return range.clone();
        }
        let written = self.partial.entry(entry).or_default();
        written.insert(range.clone());
        let around = written.containing(range.start).unwrap_or_else(|| range.clone());
        if around == (0..len) {
            self.partial.remove(&entry);
        }
        around
    }

    /// An entry has failed. False: somebody else has said so, and settles it.
    pub(crate) fn fail(&mut self, entry: u32) -> bool {
        let was = self.table.state(entry);
        self.table.set_state(entry, State::Failed);
        was != State::Failed
    }

    /// Bytes that were counted as written are void.
    pub(crate) fn forget(&mut self, entry: u32, range: Range<u64>) {
        let len = self.table.stream_len(entry);
        let written = self.partial.entry(entry).or_insert_with(|| {
            let mut all = RangeSet::new();
            all.insert(0..len);
            all
        });
        written.remove(range);
    }
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
    pub(crate) manners: Manners,
    /// Anything else is not believed.
    pub(crate) asked: Option<Asked>,
    pub(crate) wants: Wants,
    pub(crate) untold: Untold,
    pub(crate) dresser: Dresser,
    pub(crate) behind: Behind,
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
    /// Something of a file was there.
    Compare(Comparison),
    /// What a group that was there hashes to; `None` if it cannot be read.
    Held { entry: u32, group: u32, value: Option<Value> },
    /// What groups should hash to.
    Proofs(Vec<Proof>),
    /// The writer has given a file up.
    GivenUp(u32),
}

/// A file of which something was there.
pub(crate) struct Comparison {
    pub(crate) entry: u32,
    pub(crate) held: Held,
    /// What the temporary file has of the stream; the final file has all of it.
    pub(crate) claimed: RangeSet,
    pub(crate) interest: Interest,
}

/// Bytes of a file that were written.
pub(crate) struct Written {
    pub(crate) entry: u32,
    /// Where in the stream they begin.
    pub(crate) offset: u64,
    /// The bytes, if they are still in memory.
    pub(crate) bytes: Option<(Arc<Loan>, Range<usize>)>,
    /// Groups that are whole now.
    pub(crate) groups: Range<u32>,
    /// Length of the stream.
    pub(crate) len: u64,
}

/// What the committer learns: exactly one message for each entry, and the number of entries.
pub(crate) enum Settle {
    /// A directory or a link, which is finished at the end; or a file that stays as it is.
    Held,
    /// The file is complete and its contents are right.
    Verified(u32),
    /// What was there has turned out to be equal.
    Same(u32),
    /// It failed here.
    Failed(u32, Fault),
    /// It failed at the sender, who knows.
    Unread(u32, Fault),
    /// There are so many entries.
    End(u64),
}

impl Job for Shared {
    fn fail(&self, fault: Fault) {
        Self::fail(self, fault);
    }
}

impl Shared {
    pub(crate) fn new(
        link: Arc<dyn ControlLink>,
        place: Place,
        options: ReceiveOptions,
        wants: Wants,
    ) -> Self {
        let wake = WakeSlot::default();
        Self {
            link,
            queue: Arc::new(Queue::new(options.memory, wake.clone())),
            place,
            progress: Arc::default(),
            wake,
            durability: options.durability,
            manners: options.manners,
            asked: options.asked,
            wants,
            untold: Untold::default(),
            dresser: Dresser::new(options.permit),
            behind: Behind::default(),
            book: Mutex::default(),
            ending: OnceLock::new(),
            finished: AtomicBool::new(false),
        }
    }

    /// Whether it is only said what would be done.
    pub(crate) fn only_looks(&self) -> bool {
        self.manners.run == RunMode::Itemise
    }

    /// Whether it is said what is done to each name.
    pub(crate) fn narrates(&self) -> bool {
        self.manners.run == RunMode::Narrate
    }

    pub(crate) fn book(&self) -> MutexGuard<'_, Book> {
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What could not be preserved of an entry.
    pub(crate) fn note(&self, path: &[u8], undone: Undone) {
        for what in undone {
            self.book().notes.add(|| format!("`{}`: {what}", crate::fault::show(path)));
        }
    }

    /// The path of an entry, as it travels.
    pub(crate) fn path(&self, entry: u32) -> Vec<u8> {
        self.book().table.path(entry)
    }

    /// What tells a file of this set from another one of the same name; `local` is where it goes.
    pub(crate) fn identity(&self, entry: u32, local: Vec<u8>) -> FileIdentity {
        let book = self.book();
        let (attributes, shape) = (book.table.attributes(entry), book.table.shape(entry));
        drop(book);
        FileIdentity {
            path: local,
            size: shape.size(),
            mtime_secs: attributes.mtime_secs,
            mtime_nanos: attributes.mtime_nanos,
            shape: shape.fingerprint(),
        }
    }

    /// Ends the job. The first fault stays.
    pub(crate) fn end(&self, fault: Fault, tell_peer: bool) {
        let _ = self.ending.set(Ending { fault, tell_peer });
        self.queue.close();
    }

    /// Ends the job; the peer will be told.
    pub(crate) fn fail(&self, fault: Fault) {
        // A thread that does not listen any more has said why, or says it as soon as its panic has unwound.
        if fault == over(()) {
            return;
        }
        self.end(fault, true);
    }

    /// What ended the job; the peer has been told, if it had to be.
    pub(crate) fn told_ending(&self) -> Option<Fault> {
        let ending = self.ending()?;
        if ending.tell_peer {
            // The channel may be what failed.
            let _ = self.link.send(ControlMessage::Abort(ending.fault.clone()));
        }
        Some(ending.fault.clone())
    }

    /// Handles what came from the peer; what goes wrong ends the job.
    pub(crate) fn take_in(
        &self,
        received: Result<Option<ControlMessage>, Fault>,
        handle: impl FnOnce(ControlMessage) -> Result<(), Fault>,
    ) {
        match received {
            Ok(Some(ControlMessage::Abort(fault))) | Err(fault) => self.end(fault, false),
            Ok(Some(message)) => {
                if let Err(fault) = handle(message) {
                    self.fail(fault);
                }
            }
            Ok(None) => {}
        }
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
