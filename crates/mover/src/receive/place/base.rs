//! Opens or creates the destination directory.

use std::os::fd::{AsFd as _, OwnedFd};

use haul_wire::control::{DestinationLineage, Fault, FaultCode, Layout, RelPath, RunMode};
use rustix::fs::{Access, AtFlags, Mode, OFlags};
use rustix::io::Errno;

use crate::fault::{IoFault, show};
use crate::identity::lineage;
use crate::journal::{Leftovers, LockMode, is_reserved, reserved};
use crate::root::{Named, OpenError, Root, open_trusted};
use crate::storage::{accessat, fchmod, fstat, mkdirat, unlinkat};

/// Permissions of new directories until their final ones are set, which may be as strict.
pub(crate) const PRIVATE_DIRECTORY: u32 = 0o700;

pub(crate) struct Base {
    pub(crate) directory: OwnedFd,
    /// New name of the single top-level entry; `None` if entries keep their names.
    pub(crate) rename: Option<Vec<u8>>,
    /// The only source that may take that name: an earlier, interrupted job created the directory for it.
    pub(crate) made_for: Option<Vec<u8>>,
    pub(crate) presence: Presence,
    /// Whether paths are confined to a root: a file in it may have hard links outside.
    pub(crate) is_confined: bool,
    made: Option<Made>,
}

struct Made {
    parent: OwnedFd,
    name: Vec<u8>,
}

#[derive(PartialEq, Eq)]
pub(crate) enum Presence {
    There,
    /// Dry run: a directory of this name would have to be created; the open directory is its parent.
    Missing(Vec<u8>),
    /// There is none: the data is written to a pipe.
    Nowhere,
}

impl Base {
    fn plain(directory: OwnedFd, presence: Presence) -> Self {
        Self { directory, rename: None, made_for: None, presence, is_confined: false, made: None }
    }

    /// Denies others access to the destination if this job created it: the set has permissions for it, which
    /// may be as strict.
    pub(crate) fn make_private(&self) {
        // On failure it keeps the usual permissions until the end. New entries inherit a set-group-ID bit.
        if self.made.is_some()
            && let Ok(stat) = fstat(&self.directory)
        {
            let _ = fchmod(&self.directory, Mode::from_raw_mode(stat.st_mode) - (Mode::RWXG | Mode::RWXO));
        }
    }

    /// Removes the destination if this job created it and it is empty.
    pub(crate) fn remove_created(&self) {
        if let Some(Made { parent, name }) = &self.made {
            // On failure an empty directory remains at worst.
            let _ = unlinkat(parent, &name[..], AtFlags::REMOVEDIR);
        }
    }

    pub(crate) fn lineage(&self, removes: bool) -> DestinationLineage {
        let missing = if let Presence::Missing(name) = &self.presence { Some(name) } else { None };
        let name = self.rename.as_ref().or(missing).and_then(|name| RelPath::new(name.clone()).ok());
        let is_anywhere = self.presence != Presence::Nowhere;
        let directories = if is_anywhere { lineage(self.directory.as_fd()) } else { Vec::new() };
        DestinationLineage { directories, name, removes }
    }

    pub(crate) fn nowhere() -> Result<Self, Fault> {
        let directory = open_directory(&Root::Anywhere, b"/");
        Ok(Self::plain(directory.map_err(|why| fail("open", b"/", why))?, Presence::Nowhere))
    }
}

/// Resolves a destination as `cp` does: entries go into an existing directory; otherwise the directory is
/// created ([`Layout::Into`]) or the path is the new name of the single source ([`Layout::As`]).
pub(crate) fn open_base(
    root: &Root,
    destination: &[u8],
    layout: Layout,
    run: RunMode,
) -> Result<Base, Fault> {
    // Names of journals and temporary files are reserved.
    if destination.split(|&b| b == b'/').any(is_reserved) {
        return Err(reserved(&show(destination)));
    }
    let named = root.split(destination);
    let parent = || open_parent(root, &named.directory, destination);
    let base = match (open_directory(root, destination), layout) {
        (Ok(directory), Layout::As) => match made_for(root, &named) {
            None => Base::plain(directory, Presence::There),
            made_for => {
                Base { made_for, rename: Some(named.name), ..Base::plain(parent()?, Presence::There) }
            }
        },
        (Ok(directory), Layout::Into) => Base::plain(directory, Presence::There),
        (Err(OpenError::Error(Errno::NOENT | Errno::NOTDIR)), Layout::As) if !named.name.is_empty() => {
            Base { rename: Some(named.name), ..Base::plain(parent()?, Presence::There) }
        }
        (Err(OpenError::Error(Errno::NOENT)), Layout::Into) if run == RunMode::ListChanges => {
            Base::plain(parent()?, Presence::Missing(named.name))
        }
        (Err(OpenError::Error(Errno::NOENT)), Layout::Into) => {
            make(root, destination, parent()?, named.name)?
        }
        (Err(why), _) => return Err(fail("open the destination", destination, why)),
    };
    // Detects a read-only file system before data is sent. Missing permissions may affect only some entries.
    let access = || accessat(&base.directory, ".", Access::WRITE_OK, AtFlags::empty());
    if run != RunMode::ListChanges && access() == Err(Errno::ROFS) {
        return Err(fail("write to", destination, Errno::ROFS));
    }
    Ok(Base { is_confined: matches!(root, Root::Beneath(_)), ..base })
}

/// Creates the destination directory unless it exists; not through another user's link.
///
/// # Errors
/// As for a destination of files.
pub fn create_directory(path: &[u8]) -> Result<(), Fault> {
    open_base(&Root::Anywhere, path, Layout::Into, RunMode::Move).map(drop)
}

/// Returns the source for which an earlier, incomplete job created this directory.
fn made_for(root: &Root, named: &Named) -> Option<Vec<u8>> {
    let directory = open_directory(root, &named.directory).ok()?;
    Leftovers::find(directory.as_fd(), LockMode::Keep)?.made_for(&named.name)
}

fn open_directory(root: &Root, path: &[u8]) -> Result<OwnedFd, OpenError> {
    let open = |access| {
        let flags = access | OFlags::DIRECTORY | OFlags::NONBLOCK;
        match root {
            Root::Anywhere => open_trusted(path, flags),
            Root::Beneath(_) => Ok(root.open(path, flags)?),
        }
    };
    match open(OFlags::RDONLY) {
        // A directory without read permission may still be searchable and writable.
        Err(OpenError::Error(Errno::ACCESS)) => open(OFlags::PATH),
        opened => opened,
    }
}

fn make(root: &Root, destination: &[u8], parent: OwnedFd, name: Vec<u8>) -> Result<Base, Fault> {
    let made = match mkdirat(&parent, &name, Mode::RWXU | Mode::RWXG | Mode::RWXO) {
        Ok(()) => Some(Made { parent, name }),
        Err(Errno::EXIST) => None,
        Err(errno) => return Err(fail("create the destination", destination, errno)),
    };
    let opened = open_directory(root, destination);
    let directory = opened.map_err(|why| fail("open the destination", destination, why))?;
    Ok(Base { made, ..Base::plain(directory, Presence::There) })
}

/// Returns the process's umask from `proc_pid_status(5)`, or 0o077 if the kernel does not report it.
/// umask(2) can only read it by changing it, for all threads.
pub(crate) fn umask() -> u32 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let text = status.lines().find_map(|line| line.strip_prefix("Umask:"));
    text.and_then(|text| u32::from_str_radix(text.trim(), 8).ok()).unwrap_or(0o077)
}

fn open_parent(root: &Root, parent: &[u8], destination: &[u8]) -> Result<OwnedFd, Fault> {
    open_directory(root, parent).map_err(|why| match why {
        OpenError::Error(Errno::NOENT) => Fault::new(
            FaultCode::NoSuchPath,
            format!("the directory of the destination `{}` does not exist", show(destination)),
            "create it first; only the last component is created",
        ),
        why => fail("open the directory of the destination", destination, why),
    })
}

fn fail(doing: &str, path: &[u8], why: impl Into<OpenError>) -> Fault {
    match why.into() {
        OpenError::Error(errno) => IoFault::destination(doing, path, errno).fault,
        OpenError::Foreign(fault) => fault,
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::*;

    fn open(path: &Path, layout: Layout) -> Result<Base, Fault> {
        use std::os::unix::ffi::OsStrExt as _;
        open_base(&Root::Anywhere, path.as_os_str().as_bytes(), layout, RunMode::Move)
    }

    #[test]
    fn sources_keep_their_names_in_an_existing_directory() {
        let dir = tempfile::tempdir().unwrap();
        for layout in [Layout::As, Layout::Into] {
            assert_eq!(open(dir.path(), layout).unwrap().rename, None);
        }
    }

    #[test]
    fn a_new_path_renames_the_source_or_becomes_a_directory() {
        let dir = tempfile::tempdir().unwrap();
        let new = dir.path().join("new");
        assert_eq!(open(&new, Layout::As).unwrap().rename, Some(b"new".to_vec()));
        assert!(!new.exists());
        assert_eq!(open(&new, Layout::Into).unwrap().rename, None);
        assert!(new.is_dir());
    }

    #[test]
    fn unusable_destinations_have_matching_fault_codes() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("file"), "x").unwrap();
        let code = |path: &str, layout| open(&dir.path().join(path), layout).err().map(|f| f.code);
        assert_eq!(code("file", Layout::Into), Some(FaultCode::NotADirectory));
        assert_eq!(code("file", Layout::As), None);
        assert_eq!(code("file/x", Layout::As), Some(FaultCode::NotADirectory));
        assert_eq!(code("none/x", Layout::As), Some(FaultCode::NoSuchPath));
        assert_eq!(code("none/x", Layout::Into), Some(FaultCode::NoSuchPath));
    }
}
