//! What is known of the set, and what became of it.

use std::collections::HashMap;
use std::ops::Range;

use haul_base::{Bytes, RangeSet};
use haul_wire::control::{DestinationAttributes, Extent, Fault, Notes, Removal, Rule, Summary};
use haul_wire::packet::MAX_OFFSET;

use crate::budget::{must_hold, of_table, of_vec};
use crate::entries::{EntryTable, State};
use crate::fault::protocol;
use crate::identity::FileId;
use crate::layout::Layout;
use crate::receive::commit::metadata::ExtrasMap;
use crate::receive::delete::exclude::FilteredNames;
use crate::report::{Failures, MoveReport, report, set_digest};

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
    pub(crate) filtered: FilteredNames,
    /// Entries in whose place something of another kind is, which may be removed.
    pub(crate) blocked: Vec<u32>,
    pub(crate) removal: Removal,
    /// What the destination itself gets.
    pub(crate) destination: Option<DestinationAttributes>,
    /// What all this may take.
    set_memory: Bytes,
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
    pub(crate) fn new(set_memory: Bytes) -> Self {
        Self { set_memory, ..Self::default() }
    }

    /// Whether what is held, and so much more, is within the budget.
    pub(crate) fn must_afford(&self, more: u64) -> Result<(), Fault> {
        must_hold(self.set_memory, self.held() + more, self.table.len())
    }

    fn held(&self) -> u64 {
        self.table.held()
            + self.extras.held()
            + self.layout.held()
            + self.filtered.held()
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

    /// The sender has announced so many entries, with so many bytes.
    pub(crate) fn must_be_all(&self, entries: u64, bytes: u64) -> Result<(), Fault> {
        let are_all = entries == u64::from(self.table.len()) && bytes == self.table.bytes();
        if are_all { Ok(()) } else { Err(protocol("the entries are not as many as announced")) }
    }

    /// What the sender is told at the end.
    pub(crate) fn summary(&self) -> Summary {
        Summary {
            entries: self.table.len().into(),
            failed: self.failures.count(),
            bytes: self.layout.len(),
            digest: set_digest(&self.table),
            notes: self.notes.clone(),
        }
    }

    /// What became of a set that is final.
    pub(crate) fn report(&self) -> MoveReport {
        let done = |&(&entry, _): &(&u32, &u64)| self.table.state(entry) == State::Done;
        let resumed = self.resumes.iter().filter(done).map(|(_, bytes)| bytes).sum();
        let (failures, removal) = (self.failures.clone(), self.removal.clone());
        report(&self.table, failures, set_digest(&self.table), resumed, removal, self.notes.clone())
    }

    /// Appends bytes of an entry's stream to the object.
    pub(crate) fn append(&mut self, entry: u32, range: &Range<u64>) -> Result<(), Fault> {
        let fits = self.layout.append(entry, range, MAX_OFFSET);
        if fits { Ok(()) } else { Err(protocol("the set is larger than any object may be")) }
    }
}
