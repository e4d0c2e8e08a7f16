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
    pub(crate) fn take_attributes(&self, told: DestinationAttributes) {
        let asked = self.expectations.as_ref();
        let is_asked = asked.is_none_or(|asked| asked.extent == Extent::Destination);
        if !is_asked || self.place.base.rename.is_some() || self.book.lock().destination.is_some() {
            return;
        }
        self.book.lock().destination = Some(told);
        if self.is_dry_run() {
            return;
        }
        self.place.is_included.store(true, Ordering::Release);
        self.place.base.make_private();
    }

    pub(crate) fn finish_destination(&self) {
        let Some(wanted) = self.book.lock().destination.clone() else { return };
        let DestinationAttributes { mode, mtime_secs, mtime_nanos, extras } = wanted;
        let attributes = Attributes { mtime: Mtime { secs: mtime_secs, nanos: mtime_nanos }, mode };
        let wanted = Metadata { attributes, extras: extras.map(Arc::from), bits: DIRECTORY_BITS };
        let directory = self.place.directory(&[]);
        match directory.and_then(|directory| self.metadata.apply(directory.as_fd(), &wanted)) {
            Ok(metadata_failures) => self.note(b".", metadata_failures),
            // The destination may belong to another user, and keeps its metadata then.
            Err(Errno::PERM | Errno::ACCESS) => {}
            Err(errno) => self.note_permissions(b".", errno),
        }
    }

    fn note_permissions(&self, path: &[u8], errno: Errno) {
        let why = std::io::Error::from(errno);
        self.note(path, vec![format!("the permissions cannot be set: {why}")]);
    }

    pub(crate) fn metadata_of(&self, entry: u32) -> Metadata {
        let book = self.book.lock();
        let bits = if book.table.kind(entry) == Kind::Directory { DIRECTORY_BITS } else { FILE_BITS };
        Metadata { attributes: book.table.attributes(entry), extras: book.extras.get(entry), bits }
    }

    /// Corrects the metadata of a kept file if it differs and that is permitted.
    pub(crate) fn correct(&self, entry: u32, path: &[u8], there: &Stat) {
        let wanted = self.metadata_of(entry);
        let is_same_time = self.has_time(there, &wanted);
        if wanted.extras.is_none() && has_mode(there, wanted.attributes.mode) && is_same_time {
            return;
        }
        let Some((file, stat)) = self.place.open_found(path, there) else { return };
        let fd = file.as_fd();
        let differs = || !is_same_time || self.metadata.would_change(fd, &wanted);
        let is_elsewhere = self.place.may_be_elsewhere(&stat);
        let is_said = (self.is_verbose() || is_elsewhere) && differs();
        let applied = if is_elsewhere {
            if !is_said {
                return;
            }
            Ok(self.correct_apart(entry, path, &file, &wanted))
        } else if is_same_time {
            self.metadata.apply_but_time(fd, &wanted)
        } else {
            self.metadata.apply(fd, &wanted)
        };
        match applied {
            Ok(metadata_failures) => self.note(path, metadata_failures),
            // Another user owns the file, whose contents are right nevertheless.
            Err(Errno::PERM) => return,
            Err(errno) => return self.note_permissions(path, errno),
        }
        if is_said {
            // A broken connection ends the job elsewhere.
            let _ = self.tell(path, Action::Adjust);
        }
    }

    /// Corrects a file that may have hard links outside the peer's root: replaces it by a corrected copy.
    fn correct_apart(&self, entry: u32, path: &[u8], there: &File, wanted: &Metadata) -> MetadataFailures {
        let mut metadata_failures = MetadataFailures::new();
        let apply = |fd: BorrowedFd<'_>| {
            metadata_failures = self.metadata.apply(fd, wanted)?;
            Ok(())
        };
        if self.place.detach(entry, path, there, apply).is_err() {
            metadata_failures.push(
                "it has several hard links and could not be replaced by a separate file: it is unchanged"
                    .to_owned(),
            );
        }
        metadata_failures
    }

    pub(crate) fn would_correct(&self, entry: u32, path: &[u8], there: &Stat) -> Action {
        let wanted = self.metadata_of(entry);
        let would_change = |(file, _): (File, Stat)| self.metadata.would_change(file.as_fd(), &wanted);
        let stays = self.has_time(there, &wanted)
            && match wanted.extras {
                None => has_mode(there, wanted.attributes.mode),
                Some(_) => !self.place.open_found(path, there).is_some_and(would_change),
            };
        if stays { Action::Keep } else { Action::Adjust }
    }

    /// Whether the existing file's time equals the wanted one as stored by the file system. True with
    /// [`Equal::SizeAndTime`], where the time was compared before the file was kept.
    fn has_time(&self, there: &Stat, wanted: &Metadata) -> bool {
        same_time(there, wanted.attributes.mtime) || self.receive_policy.equal == Equal::SizeAndTime
    }
}
