//! What is wanted of each entry, in view of what is at the destination.

use std::sync::Arc;

use crossbeam_channel::Sender;
use haul_base::RangeSet;
use haul_wire::control::{Destination, Equal, Fault, Leftovers as UseLeftovers, Newer, Stretch, Want};

use crate::entries::{Attributes, Kind, State};
use crate::journal::{Claim, FileIdentity, Leftovers};
use crate::receive::compare::{HashJob, Held};
use crate::receive::own::collision;
use crate::receive::place::Existing;
use crate::receive::shared::{Check, Comparison, Settle, Shared};
use crate::receive::writer::over;
use crate::tree::Groups;

/// Decides about entries in their order.
pub(crate) struct Decider {
    shared: Arc<Shared>,
    leftovers: Option<Leftovers>,
    checks: Sender<Check>,
    settles: Sender<Settle>,
    hashing: Sender<HashJob>,
}

impl Decider {
    pub(crate) fn new(
        shared: Arc<Shared>,
        leftovers: Option<Leftovers>,
        checks: Sender<Check>,
        settles: Sender<Settle>,
        hashing: Sender<HashJob>,
    ) -> Self {
        Self { shared, leftovers, checks, settles, hashing }
    }

    /// What is wanted of an entry. What is there of it is taken over or compared.
    pub(crate) fn want(&mut self, entry: u32) -> Result<Want, Fault> {
        let book = self.shared.book();
        let (state, kind) = (book.table.state(entry), book.table.kind(entry));
        let path = book.table.path(entry);
        drop(book);
        let occupied = self.shared.wants.destination() == Destination::Occupied;
        match kind {
            // Unasked, files come whole, also those that were refused here.
            _ if !occupied => Ok(Want::Whole),
            _ if state == State::Failed => Ok(Want::Nothing),
            Kind::File(_) => self.want_file(entry, &path),
            Kind::Unread | Kind::Directory | Kind::Symlink | Kind::HardLink(_) => Ok(Want::Whole),
        }
    }

    fn want_file(&mut self, entry: u32, path: &[u8]) -> Result<Want, Fault> {
        let manners = self.shared.manners;
        let (attributes, size) = self.known(entry);
        let existing = self.shared.place.existing(path);
        if let Some(there) = &existing {
            let later = there.is_later(attributes);
            let same_size = there.size == size;
            if manners.newer == Newer::Keep && later {
                return self.keep(entry, path, there, None);
            }
            if manners.equal == Equal::SizeAndTime
                && same_size
                && self.shared.place.same_time(path, there, attributes)
            {
                return self.keep(entry, path, there, Some(attributes));
            }
            // Holes are not read, so what is in their place could not be compared.
            let comparable = same_size && !self.shared.book().table.shape(entry).is_sparse();
            match manners.equal {
                Equal::Contents if comparable && size == 0 => {
                    return self.keep(entry, path, there, Some(attributes));
                }
                Equal::Contents if comparable => return self.compare_final(entry),
                Equal::Contents | Equal::SizeAndTime | Equal::Nothing => {}
            }
        }
        self.claimed(entry, path)
    }

    fn known(&self, entry: u32) -> (Attributes, u64) {
        let book = self.shared.book();
        (book.table.attributes(entry), book.table.size(entry))
    }

    /// The file stays; only what it has beside its contents may be corrected.
    fn keep(
        &self,
        entry: u32,
        path: &[u8],
        there: &Existing,
        correct: Option<Attributes>,
    ) -> Result<Want, Fault> {
        if !self.shared.place.keeps(path, there) {
            self.shared.book().table.set_state(entry, State::Failed);
            self.settles.send(Settle::Failed(entry, collision(path).fault)).map_err(over)?;
            return Ok(Want::Nothing);
        }
        if let Some(attributes) = correct {
            self.shared.correct(entry, path, there, attributes);
        }
        self.shared.book().table.set_state(entry, State::Kept);
        self.settles.send(Settle::Held).map_err(over)?;
        Ok(Want::Kept)
    }

    /// Compares what is there under the final name.
    fn compare_final(&self, entry: u32) -> Result<Want, Fault> {
        let groups = Groups::of(self.shared.book().table.stream_len(entry));
        self.compare(entry, Held::Final, (0..groups.count()).collect(), &RangeSet::new())?;
        Ok(Want::Compare)
    }

    /// Takes over what an earlier attempt has left, if it was the same file.
    fn claimed(&mut self, entry: u32, path: &[u8]) -> Result<Want, Fault> {
        let Some(leftovers) = &mut self.leftovers else { return Ok(Want::Whole) };
        let local = self.shared.place.local(path);
        let identity = self.shared.identity(entry, local.clone());
        while let Some(claim) = leftovers.take(&local) {
            let of_use = self.shared.manners.leftovers == UseLeftovers::Resume && claim.identity == identity;
            if of_use && self.shared.place.adopt(entry, path, &claim, &identity) {
                leftovers.consumed(claim.token);
                return self.resume(entry, &claim, &identity);
            }
            leftovers.discard(claim.token);
        }
        Ok(Want::Whole)
    }

    fn resume(&self, entry: u32, claim: &Claim, identity: &FileIdentity) -> Result<Want, Fault> {
        debug_assert_eq!(claim.identity, *identity, "only the same file is resumed");
        let len = self.shared.book().table.stream_len(entry);
        let groups = Groups::of(len);
        let mut missing = RangeSet::new();
        missing.insert(0..len);
        claim.written.iter().for_each(|range| missing.remove(range));
        let whole: Vec<u32> =
            (0..groups.count()).filter(|&group| claim.written.covers(groups.range(group))).collect();
        self.shared.book().start_with(entry, claim.written.clone());
        self.compare(entry, Held::Part, whole, &claim.written)?;
        let stretch =
            |range: std::ops::Range<u64>| Stretch { start: range.start, len: range.end - range.start };
        Ok(Want::Rest(missing.iter().map(stretch).collect()))
    }

    fn compare(&self, entry: u32, held: Held, groups: Vec<u32>, claimed: &RangeSet) -> Result<(), Fault> {
        let claimed = claimed.clone();
        let begin = Check::Compare(Comparison { entry, held, claimed });
        self.checks.send(begin).map_err(over)?;
        self.hashing.send(HashJob { entry, held, groups }).map_err(over)
    }

    /// The leftovers that nobody asked for stay for another job.
    pub(crate) fn finish(self) {
        if let Some(leftovers) = self.leftovers {
            leftovers.finish();
        }
    }
}
