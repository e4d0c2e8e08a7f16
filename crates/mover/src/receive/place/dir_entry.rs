//! A name in a directory of the destination, what is there, and why it may not give way.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use haul_wire::control::{Fault, FaultCode};
use rustix::fs::{FileType, Stat};
use rustix::io::Errno;

use crate::fault::{IoFault, Scope, of_path, show};
use crate::identity::FileId;
use crate::receive::place::installed::Names;
use crate::storage::lstatat_if_any;

#[derive(Clone)]
pub(crate) struct DirEntry {
    pub(crate) directory: Arc<OwnedFd>,
    pub(crate) name: Vec<u8>,
    pub(crate) at_top: bool,
}

impl DirEntry {
    fn stat(&self, path: &[u8]) -> Result<Option<Stat>, IoFault> {
        lstatat_if_any(&self.directory, &self.name)
            .map_err(|errno| IoFault::destination("look at", path, errno))
    }

    pub(crate) fn kind(&self, path: &[u8]) -> Result<Option<FileType>, IoFault> {
        Ok(self.stat(path)?.map(|stat| FileType::from_raw_mode(stat.st_mode)))
    }

    /// What is there now; only regular files and links give way to what is received.
    pub(crate) fn look(&self, path: &[u8]) -> Result<Option<(FileId, Names)>, IoFault> {
        let Some(stat) = self.stat(path)? else { return Ok(None) };
        replaceable(Some(FileType::from_raw_mode(stat.st_mode)), path)?;
        Ok(Some((FileId::of(&stat), Names::of(&stat))))
    }

    /// Nothing can be made at this name. If that is because of the destination itself, the job is over.
    pub(crate) fn cannot_create(&self, doing: &str, path: &[u8], errno: Errno) -> IoFault {
        let mut io_fault = IoFault::destination(doing, path, errno);
        if self.at_top && matches!(errno, Errno::ACCESS | Errno::PERM) {
            io_fault.scope = Scope::Job;
        }
        io_fault
    }
}

/// Only regular files and links give way to what is received.
pub(crate) fn replaceable(there: Option<FileType>, path: &[u8]) -> Result<(), IoFault> {
    match there {
        None | Some(FileType::RegularFile | FileType::Symlink) => Ok(()),
        Some(FileType::Directory) => Err(IoFault::entry(
            FaultCode::IsADirectory,
            path,
            "is a directory at the destination",
            "move the directory out of the way, let --delete remove it, or choose another destination",
        )),
        Some(_) => Err(IoFault::entry(
            FaultCode::Io,
            path,
            "is a device, pipe or socket at the destination",
            "only regular files and links are replaced; --delete removes it, or choose another destination",
        )),
    }
}

pub(crate) fn in_the_way(path: &[u8], errno: Errno) -> IoFault {
    match errno {
        Errno::LOOP | Errno::XDEV => IoFault::entry(
            FaultCode::PathEscape,
            path,
            "leads through a symbolic link at the destination",
            "nothing is written through links below the destination; name the real directory as destination",
        ),
        Errno::NOTDIR => not_a_directory(path),
        errno => IoFault::destination("reach", path, errno),
    }
}

pub(crate) fn not_a_directory(path: &[u8]) -> IoFault {
    let what = "needs a directory where the destination has something else";
    let hint = "move what is in the way, let --delete remove it, or choose another destination";
    IoFault::entry(FaultCode::NotADirectory, path, what, hint)
}

/// Something else is under the temporary name of an entry than what was made there.
pub(crate) fn taken_away(path: &[u8]) -> IoFault {
    let message = format!("the temporary file of `{}` was replaced by somebody else", show(path));
    let hint = "find out who writes to the destination, then run the same command again";
    IoFault { fault: Fault::new(FaultCode::Io, message, hint), scope: Scope::Entry }
}

pub(crate) fn mismatch(path: &[u8]) -> Fault {
    let what = "did not arrive as it was read: its BLAKE3 or its size differs";
    let hint = "run the same command again; if it fails again, test memory and disks";
    of_path(FaultCode::VerifyFailed, path, what, hint)
}
