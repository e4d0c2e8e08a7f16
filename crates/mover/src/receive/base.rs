//! Finds, or makes, the directory that everything goes below.

use std::os::fd::{AsFd as _, OwnedFd};

use haul_wire::control::{Fault, FaultCode, Layout, RunMode};
use rustix::fs::{Access, AtFlags, Mode, OFlags};
use rustix::io::Errno;

use crate::fault::{Side, Trouble, show};
use crate::journal::Leftovers;
use crate::root::Root;
use crate::storage::{accessat, mkdirat};

/// Permissions of a destination that is made here, before the umask, as `mkdir` has them.
const NEW_DIRECTORY: u32 = 0o777;

/// Where a set goes.
pub(crate) struct Base {
    /// The directory.
    pub(crate) directory: OwnedFd,
    /// The name that the single top-level entry takes; `None` if each keeps its own.
    pub(crate) rename: Option<Vec<u8>>,
    /// The only source that may take that name: an earlier job made it for this one, and was cut off.
    pub(crate) made_for: Option<Vec<u8>>,
    /// Whether the directory is there.
    pub(crate) presence: Presence,
}

/// Whether the destination's directory is there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Presence {
    /// It is, or has been made.
    There,
    /// It would have to be made, which a dry run does not do, or there is none; the open directory is another one.
    Missing,
}

impl Base {
    fn plain(directory: OwnedFd, presence: Presence) -> Self {
        Self { directory, rename: None, made_for: None, presence }
    }

    /// No directory at all: nothing can be reached below it.
    pub(crate) fn nowhere() -> Result<Self, Fault> {
        let directory = open_directory(&Root::Anywhere, b"/").map_err(|errno| fail("open", b"/", errno))?;
        Ok(Self::plain(directory, Presence::Missing))
    }
}

/// Resolves a destination as `cp` does: an existing directory takes everything in; otherwise it is made
/// ([`Layout::Into`]) or is the name of the single source ([`Layout::As`]).
pub(crate) fn open_base(
    root: &Root,
    destination: &[u8],
    layout: Layout,
    run: RunMode,
) -> Result<Base, Fault> {
    let base = match (open_directory(root, destination), layout) {
        (Ok(directory), Layout::As) => match made_for(root, destination) {
            Some(source) => Base { made_for: Some(source), ..beside(root, destination)? },
            None => Base::plain(directory, Presence::There),
        },
        (Ok(directory), Layout::Into) => Base::plain(directory, Presence::There),
        (Err(Errno::NOENT), Layout::Into) if run == RunMode::Itemise => {
            let directory = open_parent(root, &root.split(destination).directory, destination)?;
            Base::plain(directory, Presence::Missing)
        }
        (Err(Errno::NOENT), Layout::Into) => Base::plain(make(root, destination)?, Presence::There),
        (Err(Errno::NOENT | Errno::NOTDIR), Layout::As) => beside(root, destination)?,
        (Err(errno), _) => return Err(fail("open the destination", destination, errno)),
    };
    writable(&base, destination)?;
    Ok(base)
}

/// The source, if an earlier job made this directory to take the place of its one source and was cut off: the same
/// command means the same again.
fn made_for(root: &Root, destination: &[u8]) -> Option<Vec<u8>> {
    let named = root.split(destination);
    let leftovers = open_directory(root, &named.directory).and_then(|d| Leftovers::adopt(d.as_fd())).ok()?;
    leftovers.made_for(&named.name).map(<[u8]>::to_vec)
}

fn open_directory(root: &Root, path: &[u8]) -> Result<OwnedFd, Errno> {
    let flags = OFlags::DIRECTORY | OFlags::NONBLOCK;
    match root.open(path, OFlags::RDONLY | flags) {
        // It may be entered and written although it may not be listed.
        Err(Errno::ACCESS) => root.open(path, OFlags::PATH | flags),
        opened => opened,
    }
}

fn make(root: &Root, destination: &[u8]) -> Result<OwnedFd, Fault> {
    let named = root.split(destination);
    let parent = open_parent(root, &named.directory, destination)?;
    match mkdirat(&parent, &named.name, Mode::from_raw_mode(NEW_DIRECTORY)) {
        Ok(()) | Err(Errno::EXIST) => {}
        Err(errno) => return Err(fail("create the destination", destination, errno)),
    }
    open_directory(root, destination).map_err(|errno| fail("open the destination", destination, errno))
}

fn beside(root: &Root, destination: &[u8]) -> Result<Base, Fault> {
    let named = root.split(destination);
    if named.name.is_empty() {
        return Err(fail("open the destination", destination, Errno::NOENT));
    }
    let directory = open_parent(root, &named.directory, destination)?;
    Ok(Base { directory, rename: Some(named.name), made_for: None, presence: Presence::There })
}

fn open_parent(root: &Root, parent: &[u8], destination: &[u8]) -> Result<OwnedFd, Fault> {
    open_directory(root, parent).map_err(|errno| match errno {
        Errno::NOENT => Fault::new(
            FaultCode::NoSuchPath,
            format!("the directory of the destination `{}` does not exist", show(destination)),
            "create it first; only the last component is made",
        ),
        errno => fail("open the directory of the destination", destination, errno),
    })
}

/// A read-only file system is known before anything is sent. Missing permissions may matter for some entries
/// only.
fn writable(base: &Base, destination: &[u8]) -> Result<(), Fault> {
    match accessat(base.directory.as_fd(), ".", Access::WRITE_OK, AtFlags::empty()) {
        Err(Errno::ROFS) => Err(fail("write to", destination, Errno::ROFS)),
        _ => Ok(()),
    }
}

fn fail(doing: &str, path: &[u8], errno: Errno) -> Fault {
    Trouble::new(Side::Destination, doing, path, errno).fault
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
    fn an_existing_directory_takes_everything_in() {
        let dir = tempfile::tempdir().unwrap();
        for layout in [Layout::As, Layout::Into] {
            assert_eq!(open(dir.path(), layout).unwrap().rename, None);
        }
    }

    #[test]
    fn a_new_name_is_a_directory_or_the_name_of_the_source() {
        let dir = tempfile::tempdir().unwrap();
        let new = dir.path().join("new");
        assert_eq!(open(&new, Layout::As).unwrap().rename, Some(b"new".to_vec()));
        assert!(!new.exists());
        assert_eq!(open(&new, Layout::Into).unwrap().rename, None);
        assert!(new.is_dir());
    }

    #[test]
    fn what_is_in_the_way_is_named() {
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
