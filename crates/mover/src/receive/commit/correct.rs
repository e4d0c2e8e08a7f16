//! Corrects the metadata of kept files and of the destination itself.

use std::fs::File;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use haul_wire::control::{Action, DestinationAttributes, Equal, Extent};
use rustix::fs::Stat;
use rustix::io::Errno;

use super::metadata::{Metadata, MetadataFailures};
use crate::entries::{Attributes, Kind};
use crate::receive::place::attributes::{DIRECTORY_BITS, FILE_BITS, has_mode, same_time};
use crate::receive::shared::Shared;
use crate::storage::Mtime;

impl Shared {
    /// Stores metadata of a source directory whose contents go directly into the destination. The first of
    /// several sources counts, as with rsync. Ignored if the client requested less than
    /// [`Extent::Destination`].
    pub(crate) fn set_attributes(&self, attributes: DestinationAttributes) {
        let expectations = self.expectations.as_ref();
        let is_expected = expectations.is_none_or(|expected| expected.extent == Extent::Destination);
        if !is_expected || self.place.base.rename.is_some() || self.ledger.lock().destination.is_some() {
            return;
        }
        self.ledger.lock().destination = Some(attributes);
        if self.is_dry_run() {
            return;
        }
        self.place.is_included.store(true, Ordering::Release);
        // A destination created by this job stays private until its permissions are set, if ever.
        if self.place.base.mode_when_created().is_some() {
            self.place.relaxed_permissions.lock().remove(&[][..]);
        }
    }

    pub(crate) fn finish_destination(&self) {
        let Some(expected) = self.ledger.lock().destination.clone() else { return };
        let DestinationAttributes { mode, mtime_secs, mtime_nanos, extras } = expected;
        let attributes = Attributes { mtime: Mtime { secs: mtime_secs, nanos: mtime_nanos }, mode };
        let expected = Metadata { attributes, extras: extras.map(Arc::from), bits: DIRECTORY_BITS };
        let directory = self.place.directory(&[]);
        match directory.and_then(|directory| self.metadata.apply(directory.as_fd(), &expected)) {
            Ok(metadata_failures) => self.note(b".", metadata_failures),
            // The destination may belong to another user, and keeps its metadata then.
            Err(Errno::PERM | Errno::ACCESS) => {}
            Err(errno) => {
                let why = std::io::Error::from(errno);
                self.note(b".", vec![format!("the permissions cannot be set: {why}")]);
            }
        }
    }

    pub(crate) fn metadata_of(&self, entry: u32) -> Metadata {
        let ledger = self.ledger.lock();
        let bits = if ledger.table.kind(entry) == Kind::Directory { DIRECTORY_BITS } else { FILE_BITS };
        Metadata { attributes: ledger.table.attributes(entry), extras: ledger.extras.get(entry), bits }
    }

    /// Corrects the metadata of a kept file if it differs and that is permitted.
    pub(crate) fn correct(&self, entry: u32, path: &[u8], existing: &Stat) {
        let expected = self.metadata_of(entry);
        let is_same_time = self.has_time(existing, &expected);
        if expected.extras.is_none() && has_mode(existing, expected.attributes.mode) && is_same_time {
            return;
        }
        let Some((file, stat)) = self.place.open_found(path, existing) else { return };
        let fd = file.as_fd();
        let differs = || !is_same_time || self.metadata.would_change(fd, &expected);
        let is_shared = self.place.may_be_shared(&stat);
        let is_reported = (self.is_verbose() || is_shared) && differs();
        let applied = if is_shared {
            if !is_reported {
                return;
            }
            Ok(self.correct_copy(entry, path, &file, &expected))
        } else if is_same_time {
            self.metadata.apply_but_time(fd, &expected)
        } else {
            self.metadata.apply(fd, &expected)
        };
        // Fails if another user owns the file, whose contents are right nevertheless.
        let Ok(metadata_failures) = applied else { return };
        self.note(path, metadata_failures);
        if is_reported {
            // A broken connection ends the job elsewhere.
            let _ = self.report_item(path, Action::Adjust);
        }
    }

    /// Corrects a file that may have hard links outside the peer's root: replaces it by a corrected copy.
    fn correct_copy(&self, entry: u32, path: &[u8], file: &File, expected: &Metadata) -> MetadataFailures {
        let mut metadata_failures = MetadataFailures::new();
        let apply = |fd: BorrowedFd<'_>| {
            metadata_failures = self.metadata.apply(fd, expected)?;
            Ok(())
        };
        if self.place.detach(entry, path, file, apply).is_err() {
            metadata_failures.push(
                "it has several hard links and could not be replaced by a separate file: it is unchanged"
                    .to_owned(),
            );
        }
        metadata_failures
    }

    pub(crate) fn metadata_action(&self, entry: u32, path: &[u8], existing: &Stat) -> Action {
        let expected = self.metadata_of(entry);
        let would_change = |file: File| self.metadata.would_change(file.as_fd(), &expected);
        let is_equal = self.has_time(existing, &expected)
            && match expected.extras {
                None => has_mode(existing, expected.attributes.mode),
                Some(_) => !self.place.open_final(path).is_some_and(would_change),
            };
        if is_equal { Action::Keep } else { Action::Adjust }
    }

    /// Whether the existing file's time equals the expected one as stored by the file system. True with
    /// [`Equal::SizeAndTime`], where the time was compared before the file was kept.
    fn has_time(&self, existing: &Stat, expected: &Metadata) -> bool {
        same_time(existing, expected.attributes.mtime) || self.receive_policy.equal == Equal::SizeAndTime
    }
}
