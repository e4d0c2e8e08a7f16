//! Turns the walk into messages for the peer, while it goes on.

pub(super) mod jobs;
mod requests;
pub(super) mod sections;

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;

use haul_wire::control::{ControlMessage, Destination, EntryKind, Fault, HardLinks};

use crate::identity::Identity;
use crate::job::spawn_for;
use crate::send::announce::Announcer;
use crate::send::blocks::SourceFile;
use crate::send::plan::jobs::Job;
use crate::send::read::opened::Planned;
use crate::send::shared::Shared;
use crate::send::walk::completeness::Completeness;
use crate::send::walk::{Found, Walker};
use crate::threads;

pub(crate) struct Planner {
    shared: Arc<Shared>,
    announcer: Arc<Announcer>,
    names: Names,
}

impl Planner {
    /// Waits for the receiver to be ready. `None`: the job is over.
    pub(crate) fn when_ready(shared: Arc<Shared>) -> Option<Self> {
        let destination = shared.wait_until_ready()?;
        let announcer = Arc::new(Announcer::new(shared.clone(), destination));
        Some(Self { shared, announcer, names: Names::default() })
    }

    /// Goes through a walk that finds what `completeness` says, if nothing fails.
    pub(super) fn run(mut self, walker: Walker, completeness: &Completeness) -> Result<(), Fault> {
        let announcer = self.announcer.clone();
        let clock = spawn_for(&self.shared, "haul-announce", move || announcer.keep_time())?;
        let planned = self.plan_all(walker, completeness);
        self.announcer.close();
        threads::join(clock).and(planned)
    }

    fn plan_all(&mut self, mut walker: Walker, completeness: &Completeness) -> Result<(), Fault> {
        if let Some(lineage) = self.shared.lineage() {
            walker.check_destination(lineage)?;
        }
        while let Some(found) = walker.next() {
            if self.shared.stopped() {
                return Ok(());
            }
            self.tell_attributes(&mut walker)?;
            self.add(found)?;
        }
        self.tell_attributes(&mut walker)?;
        self.announcer.flush()?;
        walker.finish()?;
        let mut ledger = self.shared.ledger();
        ledger.complete = true;
        let is_whole = ledger.failures.is_all_special();
        let (entries, bytes) = (ledger.table.len().into(), ledger.table.bytes());
        drop(ledger);
        self.shared.progress.found_all();
        if self.announcer.destination() == Destination::Fresh {
            self.shared.wanted().send(Job::End);
        }
        completeness.tell(&*self.shared.link, is_whole)?;
        self.shared.link.send(ControlMessage::EntriesEnd { entries, bytes })
    }

    fn tell_attributes(&self, walker: &mut Walker) -> Result<(), Fault> {
        let attributes = walker.take_attributes();
        attributes.map_or(Ok(()), |known| self.shared.link.send(ControlMessage::DestinationAttributes(known)))
    }

    fn add(&mut self, found: Found) -> Result<(), Fault> {
        let Found { mut entry, mut file, names } = found;
        let mut ledger = self.shared.ledger();
        if let Err(fault) = ledger.table.place(&entry) {
            entry.kind = EntryKind::Failed(fault);
            file = None;
        }
        self.shared.must_afford(&ledger, ledger.table.growth(&entry))?;
        let index = ledger.table.len();
        let keeps_links = self.shared.limits.preserve.hard_links == HardLinks::Keep && names > 1;
        if let Some((_, identity)) = file.as_ref().filter(|_| keeps_links)
            && let Some(first) = self.names.first(*identity, names, index)
        {
            entry.kind = EntryKind::HardLink { entry: first.into() };
            entry.extras = None;
            file = None;
        }
        if let Some(fault) = ledger.table.push(&entry)? {
            ledger.failures.add(entry.path.as_bytes(), fault);
            ledger.settled += 1;
            self.shared.progress.one_failed();
        }
        let shape = ledger.table.shape(index);
        drop(ledger);
        self.shared.progress.found(1, 0);
        let planned = match (file, &entry.kind) {
            (Some((source_root, identity)), EntryKind::File { .. }) => {
                let path = entry.path.as_bytes().to_vec();
                let file = Arc::new(SourceFile { source_root, path, shape, identity });
                Some(Planned { entry: index, file, growth: self.shared.limits.growth })
            }
            _ => None,
        };
        self.announcer.add(entry, planned)
    }
}

/// The files that have names left which were not met yet.
#[derive(Default)]
pub(crate) struct Names {
    /// The entry that is the file, and how many of its names are still to come.
    open: HashMap<Identity, (u32, u64)>,
}

impl Names {
    /// The entry that is this file already. If there is none, `entry` is the file; of its `names` at most the
    /// others are still to come.
    pub(crate) fn first(&mut self, identity: Identity, names: u64, entry: u32) -> Option<u32> {
        match self.open.entry(identity) {
            Entry::Vacant(vacant) => {
                vacant.insert((entry, names.saturating_sub(1)));
                None
            }
            Entry::Occupied(mut known) => {
                let (first, left) = known.get_mut();
                let first = *first;
                *left -= 1;
                if *left == 0 {
                    known.remove();
                }
                Some(first)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use rustix::fs::CWD;

    use super::*;
    use crate::storage::lstatat;

    #[test]
    fn a_file_is_forgotten_with_its_last_name() {
        let identity = Identity::of(&lstatat(CWD, ".").unwrap());
        let mut names = Names::default();
        assert_eq!(names.first(identity, 3, 7), None);
        assert_eq!(names.first(identity, 3, 8), Some(7));
        assert_eq!(names.first(identity, 3, 9), Some(7));
        assert!(names.open.is_empty());
    }
}
