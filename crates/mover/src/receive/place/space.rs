//! Disk space of a job. A sender can announce more than it ever sends, so space is not reserved when files
//! are announced, but as bytes arrive: at most as much again as has arrived. Unused reservations are freed.

use std::collections::HashMap;
use std::fs::File;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use derive_more::From;
use haul_base::Bytes;
use haul_wire::control::{Fault, FaultCode};
use parking_lot::Mutex;
use rustix::fs::{FallocateFlags, StatFs};
use rustix::io::Errno;

use crate::fault::{IoFault, Scope, show};
use crate::storage::{fallocate, fstat, fstatfs, ftruncate};
use crate::stream::Shape;

/// Size in bytes above which space is reserved for a file.
const RESERVE_ABOVE: u64 = 1 << 20;
/// Maximum bytes reserved ahead of the data received.
const AHEAD: u64 = 1 << 30;
/// Bytes written between two checks of the free space.
const CHECK_INTERVAL: u64 = 16 << 20;
/// Minimum size of a file on disk: the block size of most file systems.
const BLOCK: u64 = 4 << 10;
/// `f_type` of tmpfs (statfs(2)).
const TMPFS_MAGIC: u64 = 0x0102_1994;

/// Space that has to stay free on the destination's file system.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum MinFree {
    /// None: the disk may be filled.
    #[default]
    Nothing,
    /// 1 % of the file system, at most 1 GiB.
    Share,
    /// This many bytes.
    Bytes(u64),
}

impl MinFree {
    fn of(self, stat: &StatFs) -> u64 {
        match self {
            Self::Nothing => 0,
            Self::Share => (stat.f_blocks.saturating_mul(stat.f_bsize as u64) / 100).min(1 << 30),
            Self::Bytes(bytes) => bytes,
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, From)]
pub(crate) enum NoSpace {
    #[from]
    Errno(Errno),
    /// Less than `min_free` would stay free; `free` is the space available now.
    MinFree { min_free: Bytes, free: Bytes },
}

impl NoSpace {
    /// Converts the error for a job that was `doing` something to `path`.
    pub(crate) fn io_fault(self, doing: &str, path: &[u8]) -> IoFault {
        match self {
            Self::Errno(errno) => IoFault::destination(doing, path, errno),
            Self::MinFree { min_free, free } => {
                let message = format!(
                    "cannot {doing} `{}`: {min_free} of the receiving disk must stay free, but {free} is left",
                    show(path)
                );
                let hint = "free space there, or start `haul serve` there with a smaller --min-free";
                IoFault { fault: Fault::new(FaultCode::DiskFull, message, hint), scope: Scope::Job }
            }
        }
    }
}

#[derive(Default)]
pub(crate) struct Space {
    min_free: MinFree,
    /// Files for which space is reserved as they arrive, by entry.
    files: Mutex<HashMap<u32, Growing>>,
    /// Bytes written since the last check of the free space.
    unchecked: AtomicU64,
}

struct Growing {
    size: u64,
    arrived: u64,
    /// Bytes reserved, counted from the file's beginning.
    reserved: u64,
}

impl Space {
    pub(crate) fn new(min_free: MinFree) -> Self {
        Self { min_free, ..Self::default() }
    }

    pub(crate) fn begin(&self, entry: u32, file: &File, shape: &Shape) -> Result<(), NoSpace> {
        if shape.is_sparse() {
            ftruncate(file, shape.size)?;
        }
        if shape.len <= RESERVE_ABOVE {
            return self.check_when_due(file, BLOCK);
        }
        let stat = fstatfs(file)?;
        self.check(&stat, shape.len)?;
        // On tmpfs there is no fragmentation, and reserving costs half as much time as writing.
        if !shape.is_sparse() && stat.f_type as u64 != TMPFS_MAGIC {
            self.files.lock().insert(entry, Growing { size: shape.size, arrived: 0, reserved: 0 });
        }
        Ok(())
    }

    pub(crate) fn arrived(&self, entry: u32, file: &File, bytes: u64) -> Result<(), NoSpace> {
        let ahead = self.files.lock().get_mut(&entry).and_then(|file| file.grow(bytes));
        if let Some((offset, len)) = ahead {
            match fallocate(file, FallocateFlags::KEEP_SIZE, offset, len) {
                // Without support for reservations, a full disk is detected when writing.
                Err(Errno::OPNOTSUPP | Errno::NOSYS) => drop(self.files.lock().remove(&entry)),
                done => done?,
            }
        }
        self.check_when_due(file, bytes)
    }

    fn check_when_due(&self, file: &File, bytes: u64) -> Result<(), NoSpace> {
        if self.min_free == MinFree::Nothing {
            return Ok(());
        }
        if self.unchecked.fetch_add(bytes, Relaxed) + bytes < CHECK_INTERVAL {
            return Ok(());
        }
        self.unchecked.store(0, Relaxed);
        self.check(&fstatfs(file)?, 0)
    }

    /// Fails unless enough space stays free after `bytes` more are written.
    fn check(&self, stat: &StatFs, bytes: u64) -> Result<(), NoSpace> {
        // Some file systems do not report their size.
        if stat.f_blocks == 0 {
            return Ok(());
        }
        let free = stat.f_bavail.saturating_mul(stat.f_bsize as u64);
        if bytes > free {
            return Err(Errno::NOSPC.into());
        }
        let min_free = self.min_free.of(stat);
        if free - bytes < min_free {
            return Err(NoSpace::MinFree { min_free: Bytes(min_free), free: Bytes(free) });
        }
        Ok(())
    }

    pub(crate) fn forget(&self, entry: u32) {
        self.files.lock().remove(&entry);
    }

    /// Frees the space that was reserved for a file and not written.
    pub(crate) fn release(&self, entry: u32, file: &File) {
        let Some(growing) = self.files.lock().remove(&entry) else { return };
        if growing.reserved > 0 {
            // Truncating to the current length frees the blocks beyond it (ext4, XFS). If that fails, the
            // excess is at most what has arrived.
            let _ = fstat(file).and_then(|stat| ftruncate(file, stat.st_size as u64));
        }
    }
}

impl Growing {
    /// Counts received bytes. Returns the range (offset, length) to reserve now, if any.
    fn grow(&mut self, bytes: u64) -> Option<(u64, u64)> {
        self.arrived = self.arrived.saturating_add(bytes);
        let from = self.reserved;
        if from >= self.size || self.arrived <= from.max(RESERVE_ABOVE) {
            return None;
        }
        self.reserved = self.arrived.saturating_add(self.arrived.min(AHEAD)).min(self.size);
        Some((from, self.reserved - from))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_share_is_one_percent_of_the_file_system_up_to_one_gibibyte() {
        let mut stat = rustix::fs::statfs("/").unwrap();
        (stat.f_blocks, stat.f_bsize) = (100_000, 4_096);
        assert_eq!(MinFree::Share.of(&stat), 4_096_000);
        stat.f_blocks = 1 << 40;
        assert_eq!(MinFree::Share.of(&stat), 1 << 30, "docs/security.md");
    }

    #[test]
    fn the_reservation_grows_with_received_bytes_up_to_the_file_size() {
        const MIB: u64 = 1 << 20;
        let mut file = Growing { size: 100 * MIB, arrived: 0, reserved: 0 };
        assert_eq!(file.grow(MIB), None, "so little is not worth a call");
        assert_eq!(file.grow(1), Some((0, 2 * MIB + 2)));
        assert_eq!(file.grow(MIB), None);
        assert_eq!(file.grow(2 * MIB), Some((2 * MIB + 2, 6 * MIB)));
        assert_eq!(file.grow(60 * MIB), Some((8 * MIB + 2, 92 * MIB - 2)));
        assert_eq!(file.grow(60 * MIB), None, "the whole file is reserved");
        let mut huge = Growing { size: 1 << 40, arrived: 0, reserved: 0 };
        assert_eq!(huge.grow(8 << 30), Some((0, 9 << 30)));
        assert!((1..=64).contains(&(0..1 << 12).filter(|_| huge.grow(8 << 20).is_some()).count()));
    }
}
