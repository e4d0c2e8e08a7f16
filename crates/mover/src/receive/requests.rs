//! What is asked of the sender. Whatever is asked is appended to the object in the same order on both sides.

use std::ops::Range;
use std::sync::{Mutex, MutexGuard, PoisonError};

use haul_wire::control::{ControlMessage, Destination, Fault, More, Stretch, Want, WantRun};

use crate::receive::shared::Shared;

/// How far the asking is. Its lock is held while a message goes out, so that the object's order is the order
/// of the messages.
#[derive(Default)]
struct Asking {
    /// Files that are being compared: more may be wanted of them.
    open: u64,
    /// What is wanted of every entry has been said.
    all: bool,
    ended: bool,
}

/// What is asked of the sender. Whatever is asked is appended to the object in the same order on both sides.
pub(crate) struct Requests {
    destination: Destination,
    asking: Mutex<Asking>,
}

impl Requests {
    pub(crate) fn new(destination: Destination) -> Self {
        Self { destination, asking: Mutex::default() }
    }

    pub(crate) fn destination(&self) -> Destination {
        self.destination
    }

    fn asking(&self) -> MutexGuard<'_, Asking> {
        self.asking.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A file is about to be compared: more may be wanted of it until it is [closed](Self::close_one).
    pub(crate) fn open_one(&self) {
        self.asking().open += 1;
    }

    /// Says what is wanted of the next entries, the first of which is `first`; to a fresh destination
    /// everything comes unasked.
    pub(crate) fn ask(&self, shared: &Shared, first: u32, wants: Vec<Want>) -> Result<(), Fault> {
        let _order = self.asking();
        let mut book = shared.book();
        for (entry, want) in (first..).zip(&wants) {
            let whole = 0..book.table.stream_len(entry);
            let ranges = match want {
                Want::Whole => vec![whole],
                Want::Rest(stretches) => stretches.iter().map(range).collect(),
                Want::Nothing | Want::Kept | Want::Compare => Vec::new(),
            };
            for range in ranges {
                book.append(entry, &range)?;
                shared.progress.found(0, range.end - range.start);
            }
        }
        book.decided = book.table.len();
        drop(book);
        if self.destination() == Destination::Occupied && !wants.is_empty() {
            shared.link.send(ControlMessage::Wants(runs(wants)))?;
        }
        Ok(())
    }

    /// Asks for stretches of a file again, or at last.
    pub(crate) fn ask_more(&self, shared: &Shared, entry: u32, ranges: &[Range<u64>]) -> Result<(), Fault> {
        let asked = self.asking();
        debug_assert!(asked.open > 0 && !asked.ended, "only of files that are being compared");
        let mut book = shared.book();
        for range in ranges {
            book.append(entry, range)?;
            shared.progress.found(0, range.end - range.start);
        }
        drop(book);
        let stretches = ranges.iter().map(|r| Stretch { start: r.start, len: r.end - r.start }).collect();
        shared.link.send(ControlMessage::More(More { entry: entry.into(), stretches }))
    }

    /// All entries have been asked for.
    pub(crate) fn all_asked(&self, shared: &Shared) -> Result<(), Fault> {
        let mut asked = self.asking();
        asked.all = true;
        self.end(shared, &mut asked)
    }

    /// Nothing more will be wanted of a file that was compared.
    pub(crate) fn close_one(&self, shared: &Shared) -> Result<(), Fault> {
        let mut asked = self.asking();
        debug_assert!(asked.open > 0, "each file is closed once");
        asked.open = asked.open.saturating_sub(1);
        self.end(shared, &mut asked)
    }

    fn end(&self, shared: &Shared, asked: &mut Asking) -> Result<(), Fault> {
        if asked.ended || !asked.all || asked.open > 0 {
            return Ok(());
        }
        asked.ended = true;
        let mut book = shared.book();
        let bytes = book.layout.len();
        book.object_len = Some(bytes);
        drop(book);
        shared.queue.nudge();
        match self.destination() {
            Destination::Fresh => Ok(()),
            Destination::Occupied => shared.link.send(ControlMessage::WantsEnd { bytes }),
        }
    }
}

fn range(stretch: &Stretch) -> Range<u64> {
    stretch.start..stretch.start + stretch.len
}

/// Equal wants in a row become one run.
fn runs(wants: Vec<Want>) -> Vec<WantRun> {
    let mut runs: Vec<WantRun> = Vec::new();
    for want in wants {
        match runs.last_mut() {
            Some(last) if last.want == want => last.count += 1,
            _ => runs.push(WantRun { count: 1, want }),
        }
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_wants_are_counted() {
        let wants = vec![Want::Kept, Want::Kept, Want::Whole, Want::Kept];
        let counts: Vec<_> = runs(wants).into_iter().map(|run| (run.count, run.want)).collect();
        assert_eq!(counts, [(2, Want::Kept), (1, Want::Whole), (1, Want::Kept)]);
    }
}
