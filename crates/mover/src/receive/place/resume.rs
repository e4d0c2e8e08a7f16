//! Journal updates, and reuse of temporary files left by an earlier job.

use std::fs::File;
use std::ops::Range;
use std::os::fd::AsFd as _;
use std::sync::atomic::Ordering;

use rustix::fs::{AtFlags, FallocateFlags, RenameFlags};
use rustix::io::Errno;

use crate::identity::FileId;
use crate::journal::{Claim, FileIdentity, Journal, is_ours};
use crate::receive::place::{DirEntry, Place};
use crate::root::split;
use crate::storage::{self, fallocate, fstat, ftruncate, lstatat, rename_in, unlinkat};
use crate::stream::Shape;

impl Place {
    pub(crate) fn journal(&self) -> Option<&Journal> {
        let create = || Journal::create(self.base.directory.as_fd());
        let created = || match create() {
            Err(Errno::ACCESS) if self.is_included.load(Ordering::Acquire) => {
                self.open_up(&[], &self.base.directory).and_then(|()| create())
            }
            created => created,
        };
        self.journal.get_or_init(|| created().ok()).as_ref()
    }

    pub(crate) fn opened_journal(&self) -> Option<&Journal> {
        self.journal.get().and_then(Option::as_ref)
    }

    pub(crate) fn temporary(&self, entry: u32) -> String {
        match self.journal() {
            Some(journal) => journal.part_name(entry),
            None => format!(".haul-{:08x}-{entry}.part", self.session),
        }
    }

    pub(crate) fn note_written(&self, entry: u32, range: Range<u64>) {
        if let Some(journal) = self.opened_journal() {
            journal.wrote(entry, range);
        }
    }

    /// Leaves an entry's temporary file to a later job and frees its unused reserved space.
    pub(crate) fn leave(&self, entry: u32, path: &[u8]) {
        if let Ok(file) = self.file(entry, || path.to_vec()) {
            self.space.give_back(entry, &file);
        }
    }

    /// Finishes the journal, which stays if a later job can use it, and restores directory permissions. Only
    /// the first call has an effect: on success before the sender is told, who may then end the process;
    /// otherwise after the job has failed.
    pub(crate) fn finish(&self, complete: bool) {
        if self.finished.swap(true, Ordering::AcqRel) {
            return;
        }
        if let Some(journal) = self.opened_journal() {
            if complete {
                journal.complete();
            }
            journal.finish();
        }
        self.tighten();
    }

    /// Takes over an entry's temporary file from an earlier job. Returns false if it is unusable.
    pub(crate) fn adopt(
        &self,
        (entry, path): (u32, &[u8]),
        claim: &Claim,
        identity: &FileIdentity,
        shape: &Shape,
    ) -> bool {
        let (Some(journal), Ok(dirent)) = (self.journal(), self.dir_entry(path)) else {
            return false;
        };
        let old = claim.part.as_slice();
        let Ok(part) = lstatat(&dirent.directory, old) else { return false };
        if !is_ours(&part) {
            return false;
        }
        // Recorded before the rename: if the process is killed, one of the two journals has its current name.
        journal.note_directory(split(&identity.path).0);
        journal.begin(entry, identity);
        claim.noted.written.iter().for_each(|range| journal.wrote(entry, range));
        journal.flush();
        if rename_in(&dirent.directory, old, self.temporary(entry), RenameFlags::empty()).is_err() {
            journal.gone(entry);
            return false;
        }
        self.open_files.lock().expect(entry, FileId::of(&part));
        // Holes and bytes beyond the end are not part of the stream, so they are not verified. Checks
        // `is_ours` again: the file may have got a further hard link meanwhile.
        let is_shaped = self.file(entry, || path.to_vec()).is_ok_and(|file| {
            fstat(&file).is_ok_and(|stat| is_ours(&stat))
                && ftruncate(&file, identity.size).is_ok()
                && empty_holes(&file, shape)
        });
        if !is_shaped {
            self.discard(entry, path);
        }
        is_shaped
    }

    /// Creates a file under an entry's temporary name and renames it to the final one. Removes it on failure.
    pub(crate) fn put_in_place<T>(
        &self,
        entry: u32,
        dirent: &DirEntry<'_>,
        make: impl FnOnce(&str) -> Result<T, Errno>,
    ) -> Result<T, Errno> {
        let name = self.temporary(entry);
        if let Some(journal) = self.journal() {
            journal.note_directory(dirent.parent());
        } else {
            // Left behind by an earlier session with the same number.
            let _ = unlinkat(&dirent.directory, &name, AtFlags::empty());
        }
        let made = make(&name).and_then(|made| {
            rename_in(&dirent.directory, &name, dirent.name(), RenameFlags::empty())?;
            Ok(made)
        });
        made.inspect_err(|_| self.remove(dirent, &name))
    }

    pub(crate) fn gone(&self, entry: u32) {
        self.space.forget(entry);
        if let Some(journal) = self.opened_journal() {
            journal.gone(entry);
        }
    }

    /// Creates an entry's temporary file from the first `have` bytes of the existing file. Returns false if
    /// that fails and the file has to be received completely.
    pub(crate) fn begin_with(&self, entry: u32, path: &[u8], have: u64, identity: &FileIdentity) -> bool {
        let Some(there) = self.open_final(path) else { return false };
        let Ok(part) = self.create(entry, path, &Shape::new(identity.size, &[]), identity) else {
            return false;
        };
        if storage::copy(&there, &part, have).is_ok_and(|copied| copied == have) {
            self.note_written(entry, 0..have);
            return true;
        }
        self.discard(entry, path);
        false
    }
}

/// Deallocates the holes of a file. Returns false if the file system cannot.
fn empty_holes(file: &File, shape: &Shape) -> bool {
    let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    shape.holes().into_iter().all(|(start, len)| fallocate(file, flags, start, len).is_ok())
}
