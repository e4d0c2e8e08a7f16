//! What the threads of a receiving job share.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use crossbeam_channel::Sender;
use haul_base::RangeSet;
use haul_wire::control::{
    ControlMessage, Durability, Extent, Fault, FileDigest, Manners, Notes, Proof, Removal, Rule, RunMode,
};

use crate::budget::{Budget, of_table, of_vec};
use crate::entries::{EntryTable, State};
use crate::journal::FileIdentity;
use crate::layout::Layout;
use crate::link::ControlLink;
use crate::progress::{Progress, WakeSlot};
use crate::receive::behind::Behind;
use crate::receive::compare::{Held, Interest};
use crate::receive::destination::Wanted;
use crate::receive::dress::{Dresser, ExtrasMap, Undone};
use crate::receive::own::FileId;
use crate::receive::place::Place;
use crate::receive::queue::{Loan, Queue};
use crate::receive::spared::WithheldNames;
use crate::receive::tell::Untold;
use crate::receive::wants::Wants;
use crate::receive::writer::over;
use crate::receive::{Asked, ReceiveOptions};
use crate::report::Failures;
use crate::send::is_small_talk;
use crate::stage::{Origin, Stage};
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
    /// What the destination itself gets.
    pub(crate) destination: Option<Wanted>,
    pub(crate) budget: Budget,
    /// Ranges of all files that are not whole.
    ranges: usize,
    /// Bytes that the verifier holds, and that wait for it.
    pub(crate) verifying: u64,
}

/// Bytes of memory for each range of a set of them.
const RANGE: u64 = 48;

/// Bytes of memory for a file that is not whole: the first node of its ranges, and what is known of its temporary file.
const STARTED: u64 = 200 + 2 * size_of::<(u32, FileId)>() as u64;

impl Book {
    /// Whether what is held, and so much more, is within the budget.
    pub(crate) fn must_afford(&self, more: u64) -> Result<(), Fault> {
        self.budget.holds(self.held() + more, self.table.len())
    }

    fn held(&self) -> u64 {
        self.table.held()
            + self.extras.held()
            + self.layout.held()
            + self.withheld.held()
            + of_table::<(u32, RangeSet)>(self.partial.capacity())
            + self.partial.len() as u64 * STARTED
            + of_table::<(u32, u64)>(self.resumes.capacity())
            + of_vec(&self.blocked)
            + self.ranges as u64 * RANGE
            + self.verifying
    }

    /// Changes what is written of a file.
    fn change<R>(&mut self, entry: u32, change: impl FnOnce(&mut RangeSet) -> R) -> R {
        let written = self.partial.entry(entry).or_default();
        let before = written.len();
        let result = change(written);
        self.ranges = (self.ranges + written.len()).saturating_sub(before);
        result
    }

    /// A file whose temporary file is there, with these bytes of its stream.
    pub(crate) fn start_with(&mut self, entry: u32, written: RangeSet) {
        self.table.set_state(entry, State::Started);
        self.change(entry, |there| *there = written);
    }

    /// Notes written bytes of a stream of `len` bytes; gives the written stretch around them.
    pub(crate) fn note_written(&mut self, entry: u32, range: &Range<u64>, len: u64) -> Range<u64> {
        if *range == (0..len) {
            return range.clone();
        }
        let around = self.change(entry, |written| {
            written.insert(range.clone());
            written.containing(range.start).unwrap_or_else(|| range.clone())
        });
        if around == (0..len) {
            self.partial.remove(&entry);
            self.ranges = self.ranges.saturating_sub(1);
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
        let is_whole = !self.partial.contains_key(&entry);
        self.change(entry, |written| {
            if is_whole {
                written.insert(0..len);
            }
            written.remove(range);
        });
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
    origin: Origin,
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

impl Check {
    /// Bytes of memory that the peer's words in it take.
    pub(crate) fn bytes(&self) -> u64 {
        let bytes = match self {
            Self::Expected(digests) => {
                digests.iter().map(|digest| size_of::<FileDigest>() + text(digest)).sum()
            }
            Self::Proofs(proofs) => {
                proofs.iter().map(|proof| size_of::<Proof>() + proof.values.len() * size_of::<Value>()).sum()
            }
            Self::Written(_) | Self::Compare(_) | Self::Held { .. } | Self::GivenUp(_) => 0,
        };
        bytes as u64
    }
}

/// Bytes of what is said of a file that could not be read.
pub(crate) fn text(digest: &FileDigest) -> usize {
    digest.result.as_ref().err().map_or(0, |fault| fault.message.len() + fault.hint.len())
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

impl Settle {
    /// Bytes of memory that what is said in it takes.
    pub(crate) fn bytes(&self) -> u64 {
        match self {
            Self::Failed(_, fault) | Self::Unread(_, fault) => {
                (fault.message.len() + fault.hint.len()) as u64
            }
            Self::Held | Self::Verified(_) | Self::Same(_) | Self::End(_) => 0,
        }
    }
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
        origin: Origin,
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
            book: Mutex::new(Book { budget: Budget::new(options.set_memory), ..Book::default() }),
            ending: OnceLock::new(),
            finished: AtomicBool::new(false),
            origin,
        }
    }

    /// What the job waits for, if nothing happens.
    pub(crate) fn stage(&self) -> Stage {
        let (written, known) = (self.progress.bytes_done(), self.progress.bytes_known());
        if self.finished() {
            Stage::Confirmation
        } else if self.queue.holds_anything() {
            Stage::Writing
        } else if !self.progress.all_known() {
            self.origin.listing()
        } else if written < known {
            Stage::Delivery
        } else if self.book().object_len.is_none() {
            Stage::Wants
        } else {
            Stage::Completion
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

    /// The verifier, or what waits for it, takes so many bytes more.
    pub(crate) fn hold(&self, bytes: u64) -> Result<(), Fault> {
        let mut book = self.book();
        book.must_afford(bytes)?;
        book.verifying += bytes;
        Ok(())
    }

    /// Tells the committer; what is said is held until it comes to it.
    pub(crate) fn settle(&self, settles: &Sender<Settle>, settle: Settle) -> Result<(), Fault> {
        self.hold(settle.bytes())?;
        settles.send(settle).map_err(over)
    }

    /// So many bytes less.
    pub(crate) fn give_back(&self, bytes: u64) {
        let mut book = self.book();
        book.verifying = book.verifying.saturating_sub(bytes);
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
                if !is_small_talk(&message) {
                    self.progress.worked();
                }
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
