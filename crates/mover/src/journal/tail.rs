//! Appending to a journal, so that what is in front of the end stays readable whatever happens.

use std::os::fd::OwnedFd;

use rustix::io::Errno;

use crate::journal::record::{Codec, HEADER_LEN, Record};
use crate::storage::{ftruncate, write_all};

/// The end of a journal.
pub(crate) struct Tail {
    codec: Codec,
    /// Where the next record goes. The file is open for appending.
    end: u64,
    /// There may be something behind `end` which has to go first.
    torn: bool,
}

impl Tail {
    /// The tail of a journal whose good part ends at `end`; `torn` if more may follow.
    pub(crate) fn new(codec: Codec, end: u64, torn: bool) -> Self {
        Self { codec, end, torn }
    }

    /// Appends records, all or none.
    pub(crate) fn append(&mut self, file: &OwnedFd, records: &[Record<'_>]) -> Result<(), Errno> {
        self.cut(file)?;
        let mut bytes = Vec::new();
        for record in records {
            self.codec.encode(self.end, record, &mut bytes);
        }
        self.torn = true;
        let done = write_all(file, &bytes);
        if done.is_ok() {
            self.end += bytes.len() as u64;
            self.torn = false;
        } else {
            // Should this fail, it is tried again before the next record; readers stop in front of it anyway.
            let _ = self.cut(file);
        }
        done
    }

    /// Forgets every record.
    pub(crate) fn forget(&mut self, file: &OwnedFd) -> Result<(), Errno> {
        self.end = HEADER_LEN;
        self.torn = true;
        self.cut(file)
    }

    fn cut(&mut self, file: &OwnedFd) -> Result<(), Errno> {
        if self.torn {
            ftruncate(file, self.end)?;
            self.torn = false;
        }
        Ok(())
    }
}
