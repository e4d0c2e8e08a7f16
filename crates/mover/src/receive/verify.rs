//! Hashes what was written and compares it with what the sender hashed.
//!
//! A file is hashed from memory while its bytes come in order. Behind a gap, the bytes are read back from
//! the temporary file (from the page cache, as a rule) once the gap has closed.

use std::collections::HashMap;
use std::os::unix::fs::FileExt as _;
use std::sync::Arc;

use crossbeam_channel::{Receiver, Sender};
use haul_wire::control::{Fault, FaultCode, FileDigest};
use rustix::io::Errno;

use crate::entries::State;
use crate::fault::{Side, Trouble, show};
use crate::receive::shared::{Check, Settle, Shared, Written};
use crate::receive::writer::over;

/// Bytes read back at a time.
const READ_BACK: usize = 1 << 20;

/// A file that is being hashed.
#[derive(Default)]
struct Hashing {
    hasher: blake3::Hasher,
    /// Everything below is hashed.
    frontier: u64,
}

pub(crate) struct Verifier {
    shared: Arc<Shared>,
    checks: Receiver<Check>,
    settles: Sender<Settle>,
    hashing: HashMap<u32, Hashing>,
    /// Whole files whose digest the sender has not sent yet.
    found: HashMap<u32, [u8; 32]>,
    /// Digests of files that are not whole yet.
    expected: HashMap<u32, Result<[u8; 32], Fault>>,
    buffer: Vec<u8>,
}

impl Verifier {
    pub(crate) fn new(shared: Arc<Shared>, checks: Receiver<Check>, settles: Sender<Settle>) -> Self {
        let (hashing, found, expected) = (HashMap::new(), HashMap::new(), HashMap::new());
        Self { shared, checks, settles, hashing, found, expected, buffer: Vec::new() }
    }

    /// Works until nobody sends any more, or until the job has failed.
    pub(crate) fn run(mut self) {
        while let Ok(check) = self.checks.recv() {
            let done = match check {
                _ if self.shared.ending().is_some() => return,
                Check::Written(written) => self.written(&written),
                Check::Expected(digests) => digests.into_iter().try_for_each(|d| self.expect(d)),
            };
            if let Err(fault) = done {
                return self.shared.fail(fault);
            }
        }
    }

    fn written(&mut self, written: &Written) -> Result<(), Fault> {
        let entry = written.entry;
        let hashing = self.hashing.entry(entry).or_default();
        if let (Some((loan, range)), true) = (&written.bytes, written.offset == hashing.frontier) {
            hashing.hasher.update(loan.bytes(range.clone()));
            hashing.frontier += range.len() as u64;
        }
        if hashing.frontier < written.contiguous {
            self.read_back(entry, written.contiguous)?;
        }
        if written.contiguous < written.size {
            return Ok(());
        }
        let Some(hashing) = self.hashing.remove(&entry) else {
            return Ok(());
        };
        let found = *hashing.hasher.finalize().as_bytes();
        if let Some(expected) = self.expected.remove(&entry) {
            return self.settle(entry, found, expected);
        }
        self.found.insert(entry, found);
        Ok(())
    }

    fn read_back(&mut self, entry: u32, upto: u64) -> Result<(), Fault> {
        let done = self.hash_from_disk(entry, upto);
        // The writer may have given the file up, and removed it, in the meantime.
        let given_up = || self.shared.book().table.state(entry) == State::Failed;
        done.or_else(|trouble| if given_up() { Ok(()) } else { Err(trouble.fault) })
    }

    fn hash_from_disk(&mut self, entry: u32, upto: u64) -> Result<(), Trouble> {
        self.buffer.resize(READ_BACK, 0);
        let path = || self.shared.path(entry);
        let file = self.shared.place.file(entry, path)?;
        let hashing = self.hashing.entry(entry).or_default();
        while hashing.frontier < upto {
            let len = (upto - hashing.frontier).min(READ_BACK as u64) as usize;
            let into = &mut self.buffer[..len];
            file.read_exact_at(into, hashing.frontier).map_err(|error| {
                let errno = error.raw_os_error().map_or(Errno::IO, Errno::from_raw_os_error);
                Trouble::new(Side::Destination, "read back", &path(), errno)
            })?;
            hashing.hasher.update(into);
            hashing.frontier += len as u64;
        }
        Ok(())
    }

    fn expect(&mut self, digest: FileDigest) -> Result<(), Fault> {
        // The control thread has checked that the entry is a file.
        let entry = digest.entry as u32;
        if let Some(found) = self.found.remove(&entry) {
            return self.settle(entry, found, digest.result);
        }
        if matches!(self.shared.book().table.state(entry), State::Waiting | State::Started) {
            self.expected.insert(entry, digest.result);
        }
        Ok(())
    }

    fn settle(
        &mut self,
        entry: u32,
        found: [u8; 32],
        expected: Result<[u8; 32], Fault>,
    ) -> Result<(), Fault> {
        let fault = match expected {
            Ok(expected) if expected == found => {
                self.shared.book().table.set_digest(entry, found);
                return self.settles.send(Settle::Verified(entry)).map_err(over);
            }
            Ok(_) => mismatch(&self.shared.path(entry)),
            Err(fault) => fault,
        };
        self.shared.place.discard(entry, &self.shared.path(entry));
        self.shared.book().table.set_state(entry, State::Failed);
        self.settles.send(Settle::Failed(entry, fault)).map_err(over)
    }
}

fn mismatch(path: &[u8]) -> Fault {
    let message = format!("`{}` did not arrive as it was read: its BLAKE3 differs", show(path));
    Fault::new(
        FaultCode::VerifyFailed,
        message,
        "run the same command again; if it fails again, test memory and disks",
    )
}
