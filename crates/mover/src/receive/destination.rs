//! The destination itself: where it is, and what it gets if a source stands for what is in it.

use std::os::fd::{AsFd as _, BorrowedFd};
use std::sync::atomic::Ordering;

use haul_wire::control::{DestinationAttributes, DestinationLineage, Extent, Extras};
use rustix::fs::FileType;
use rustix::io::Errno;

use crate::entries::Attributes;
use crate::receive::Asked;
use crate::receive::place::Place;
use crate::receive::shared::Shared;

/// What the destination gets.
#[derive(Clone, Debug)]
pub(crate) struct Wanted {
    attributes: Attributes,
    extras: Option<Box<Extras>>,
}

impl From<DestinationAttributes> for Wanted {
    fn from(told: DestinationAttributes) -> Self {
        let DestinationAttributes { mode, mtime_secs, mtime_nanos, extras } = told;
        Self { attributes: Attributes { mtime_secs, mtime_nanos, mode }, extras }
    }
}

impl Shared {
    /// Where the set goes.
    pub(crate) fn lineage(&self) -> DestinationLineage {
        self.place.destination().lineage(self.clears())
    }

    /// A source stands for what is in it. Of several the first one counts, as with rsync; a server from which something
    /// else was asked has no say.
    pub(crate) fn take_attributes(&self, told: DestinationAttributes) {
        let is_asked = self.asked.as_ref().is_none_or(|asked: &Asked| asked.extent() == Extent::Destination);
        if !is_asked || self.place.renames() {
            return;
        }
        let mut book = self.book();
        if book.destination.is_none() {
            book.destination = Some(told.into());
            drop(book);
            if !self.only_looks() {
                self.place.include_destination();
            }
        }
    }

    /// Gives the destination what it should have, when what is done in it is done.
    pub(crate) fn finish_destination(&self) {
        let Some(wanted) = self.book().destination.clone() else { return };
        let dress = |fd: BorrowedFd<'_>| {
            self.dresser.dress(fd, wanted.attributes, wanted.extras.as_deref(), FileType::Directory)
        };
        match self.place.with_destination(dress) {
            Ok(undone) => self.note(b".", undone),
            // It may belong to somebody else, and keeps what it has then.
            Err(Errno::PERM | Errno::ACCESS) => {}
            Err(errno) => {
                let why = std::io::Error::from(errno);
                self.note(b".", vec![format!("the permissions cannot be set: {why}")]);
            }
        }
    }
}

impl Place {
    /// The destination is part of the set. If this job has made it, it stays private until it has its permissions, also
    /// if it never gets them.
    fn include_destination(&self) {
        self.is_included.store(true, Ordering::Release);
        if self.destination().mode_when_made().is_some() {
            self.loosened.settled(&[]);
        }
    }

    fn with_destination<T>(&self, act: impl FnOnce(BorrowedFd<'_>) -> Result<T, Errno>) -> Result<T, Errno> {
        let directory = self.directory(&[])?;
        act(directory.as_fd())
    }
}
