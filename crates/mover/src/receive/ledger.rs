//! The receiver's table of the file set and its state.

use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::sync::Arc;

use haul_base::RangeSet;
use haul_wire::control::{
    DestinationAttributes, Extent, Fault, Filtered, IgnoreFiles, Notes, RelPath, Removal, Selection, Summary,
};
use haul_wire::packet::MAX_OFFSET;

use crate::budget::{Budget, Reserved, make_room, slot_bytes, vec_bytes};
use crate::entries::{EntryState, EntryTable, MAX_ENTRIES};
use crate::fault::violation;
use crate::identity::FileId;
use crate::receive::metadata::ExtrasMap;
use crate::report::{Failures, MoveReport, set_digest};

#[derive(Default)]
pub(crate) struct Ledger {
    pub(crate) table: EntryTable,
    pub(crate) failures: Failures,
    pub(crate) notes: Notes,
    pub(crate) extras: ExtrasMap,
    pub(crate) layout: Layout,
    /// Number of leading entries for which the requests are decided.
    pub(crate) decided: u32,
    /// Written ranges of the streams of incomplete files.
    partial: HashMap<u32, (RangeSet, Reserved)>,
    /// Resumed bytes of verified files, by entry.
    pub(crate) resumes: HashMap<u32, u64>,
    /// Length of the object, once all requests are known.
    pub(crate) object_len: Option<u64>,
    /// What the set implies about names that it does not contain.
    pub(crate) extent: Extent,
    pub(crate) left_out: Selection,
    pub(crate) filtered: FilteredNames,
    pub(crate) removal: Removal,
    pub(crate) destination: Option<DestinationAttributes>,
    budget: Arc<Budget>,
}

/// Memory per range of a range set, in bytes.
const RANGE: u64 = 48;

/// Bytes of memory per incomplete file: the first node of its ranges, and the identity of its temporary file.
const STARTED: u64 = 200 + 2 * size_of::<(u32, FileId)>() as u64;

impl Ledger {
    pub(crate) fn new(budget: Arc<Budget>) -> Self {
        Self { budget, ..Self::default() }
    }

    fn change<R>(&mut self, entry: u32, change: impl FnOnce(&mut RangeSet) -> R) -> R {
        let new = || (RangeSet::new(), Reserved::empty(&self.budget));
        let (written, reserved) = self.partial.entry(entry).or_insert_with(new);
        let result = change(written);
        let place = slot_bytes::<(u32, (RangeSet, Reserved))>();
        reserved.resize(place + STARTED + written.len() as u64 * RANGE);
        result
    }

    pub(crate) fn resumed(&mut self, entry: u32, bytes: u64) -> Result<(), Fault> {
        self.resumes.insert(entry, bytes);
        self.budget.take(slot_bytes::<(u32, u64)>())
    }

    /// Records a file whose temporary file already contains these bytes of its stream.
    pub(crate) fn start_with(&mut self, entry: u32, written: RangeSet) {
        self.table.set_state(entry, EntryState::Started);
        self.change(entry, |ranges| *ranges = written);
    }

    /// Records written bytes of a stream of `len` bytes; returns the written range around them.
    pub(crate) fn record_written(&mut self, entry: u32, range: &Range<u64>, len: u64) -> Range<u64> {
        if *range == (0..len) {
            return range.clone();
        }
        let enclosing = self.change(entry, |written| {
            written.insert(range.clone());
            written.containing(range.start).unwrap_or_else(|| range.clone())
        });
        if enclosing == (0..len) {
            self.partial.remove(&entry);
        }
        enclosing
    }

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

    pub(crate) fn summary(&self) -> Summary {
        Summary {
            entries: self.table.len().into(),
            failed: self.failures.count(),
            bytes: self.layout.len,
            digest: set_digest(&self.table),
            notes: self.notes.clone(),
        }
    }

    pub(crate) fn report(&self) -> MoveReport {
        let done = |&(&entry, _): &(&u32, &u64)| self.table.state(entry) == EntryState::Done;
        MoveReport {
            resumed_bytes: self.resumes.iter().filter(done).map(|(_, bytes)| bytes).sum(),
            removal: self.removal.clone(),
            notes: self.notes.clone(),
            failures: self.failures.clone(),
            ..MoveReport::of(&self.table, set_digest(&self.table))
        }
    }

    pub(crate) fn append(&mut self, entry: u32, range: &Range<u64>) -> Result<(), Fault> {
        let bytes = self.layout.append(entry, range, MAX_OFFSET);
        self.budget.take(bytes.ok_or_else(|| violation("the set is larger than any object may be"))?)
    }
}

/// A range of a file's stream from `start` on, at offset `at` of the object, up to the next one.
#[derive(Clone, Copy, Debug)]
struct LayoutExtent {
    at: u64,
    start: u64,
    entry: u32,
}

/// A piece of a file's stream: part of a range of the object.
pub(crate) struct FilePiece {
    pub(crate) entry: u32,
    pub(crate) stream_range: Range<u64>,
    /// Where its bytes are in the buffer.
    pub(crate) bytes: Range<usize>,
}

#[derive(Debug, Default)]
pub(crate) struct Layout {
    extents: Vec<LayoutExtent>,
    pub(crate) len: u64,
}

impl Layout {
    /// Appends bytes of an entry's stream. Returns the memory for it; `None` if the object would be longer than
    /// `most`.
    pub(crate) fn append(&mut self, entry: u32, range: &Range<u64>, most: u64) -> Option<u64> {
        let len = range.end.saturating_sub(range.start);
        let end = self.len.checked_add(len).filter(|&end| end <= most)?;
        let continues =
            |last: &LayoutExtent| last.entry == entry && last.start + (self.len - last.at) == range.start;
        let is_new = len > 0 && !self.extents.last().is_some_and(continues);
        if is_new {
            make_room(&mut self.extents, 1);
            self.extents.push(LayoutExtent { at: self.len, start: range.start, entry });
        }
        self.len = end;
        Some(if is_new { vec_bytes(size_of::<LayoutExtent>()) } else { 0 })
    }

    /// Returns the pieces that make up the object from `offset` on, whose bytes are at `bytes` of a buffer. They
    /// must lie below the object's length.
    pub(crate) fn pieces(&self, offset: u64, mut bytes: Range<usize>) -> Vec<FilePiece> {
        let (mut at, end) = (offset, (offset + bytes.len() as u64).min(self.len));
        let mut pieces = Vec::with_capacity(1);
        let first = self.extents.partition_point(|extent| extent.at <= offset).saturating_sub(1);
        for (index, extent) in self.extents.iter().enumerate().skip(first) {
            if at >= end {
                break;
            }
            let extent_end = self.extents.get(index + 1).map_or(self.len, |next| next.at);
            let len = extent_end.min(end) - at;
            let start = extent.start + (at - extent.at);
            let range = bytes.start..bytes.start + len as usize;
            bytes.start = range.end;
            pieces.push(FilePiece { entry: extent.entry, stream_range: start..start + len, bytes: range });
            at += len;
        }
        pieces
    }
}

/// Hashes of names that the sender has but does not send, and whether ignore files exclude further ones.
#[derive(Debug, Default)]
pub(crate) struct FilteredNames {
    hashes: HashSet<[u8; 16]>,
    /// Whether ignore files of the set also apply to names that only the receiver has.
    pub(crate) obeys_ignore_files: bool,
}

impl FilteredNames {
    pub(crate) fn take_in(&mut self, filtered: &Filtered, budget: &Budget) -> Result<(), Fault> {
        budget.take(filtered.paths.len() as u64 * slot_bytes::<[u8; 16]>())?;
        self.obeys_ignore_files |= filtered.ignore_files == IgnoreFiles::Obey;
        self.hashes.extend(filtered.paths.iter().map(RelPath::as_bytes).map(hash));
        if self.hashes.len() > MAX_ENTRIES {
            return Err(violation("more names are left out than any set may have"));
        }
        Ok(())
    }

    /// Adds the name of a file that is never moved, such as a device, pipe or socket.
    pub(crate) fn insert_special(&mut self, path: &[u8]) {
        self.hashes.insert(hash(path));
    }

    /// Whether the sender has a file of this name that it does not send or a directory that it skips.
    pub(crate) fn has(&self, path: &[u8]) -> bool {
        !self.hashes.is_empty() && self.hashes.contains(&hash(path))
    }
}

/// Returns the first half of a name's BLAKE3 digest: 128 bits, for which collisions are negligible.
fn hash(path: &[u8]) -> [u8; 16] {
    let mut half = [0; 16];
    half.copy_from_slice(&blake3::hash(path).as_bytes()[..16]);
    half
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The entry, offset and length of each piece. Their bytes follow each other in the buffer.
    fn pieces(layout: &Layout, offset: u64, len: usize) -> Vec<(u32, u64, usize)> {
        let (pieces, mut at) = (layout.pieces(offset, 7..7 + len), 7);
        let mut described = Vec::new();
        for FilePiece { entry, stream_range, bytes } in pieces {
            assert_eq!((bytes.start, bytes.len() as u64), (at, stream_range.end - stream_range.start));
            at = bytes.end;
            described.push((entry, stream_range.start, bytes.len()));
        }
        described
    }

    #[test]
    fn the_layout_returns_the_appended_ranges() {
        let mut layout = Layout::default();
        for (entry, range) in [(0, 0..10), (1, 0..0), (2, 5..8), (2, 8..9), (2, 20..30), (0, 3..4)] {
            assert!(layout.append(entry, &range, 1000).is_some());
        }
        assert_eq!(layout.len, 25);
        let all = [(0, 0, 10), (2, 5, 4), (2, 20, 10), (0, 3, 1)];
        assert_eq!(pieces(&layout, 0, 25), all);
        assert_eq!(pieces(&layout, 9, 3), [(0, 9, 1), (2, 5, 2)]);
        assert_eq!(pieces(&layout, 14, 10), [(2, 20, 10)]);
        assert_eq!(pieces(&layout, 24, 1), [(0, 3, 1)]);
        assert_eq!(pieces(&layout, 0, 0), []);
    }

    #[test]
    fn an_append_beyond_the_maximum_length_is_refused() {
        let mut layout = Layout::default();
        assert!(layout.append(0, &(0..10), 10).is_some());
        assert!(layout.append(1, &(0..1), 10).is_none());
        assert!(layout.append(1, &(0..0), 10).is_some());
        assert_eq!(layout.len, 10);
    }
}
