//! Extended attributes of files, directories and links.

use std::os::fd::{AsRawFd as _, BorrowedFd};

use rustix::buffer::spare_capacity;
use rustix::fs::{XattrFlags, getxattr, lgetxattr, listxattr, llistxattr, removexattr, setxattr};
use rustix::io::Errno;

use crate::root::join;
use crate::storage::{Call, repeat};

/// Maximum total length of the names of all attributes (`XATTR_LIST_MAX` of Linux).
const LIST: usize = 64 << 10;

/// Attribute with the capabilities of an executable (capabilities(7)).
pub(crate) const CAPABILITY: &[u8] = b"security.capability";

/// A file, directory or link that may have extended attributes, as a path through `/proc/self/fd`: the calls
/// on file descriptors do not work for symbolic links or for unreadable files, which can only be opened with
/// `O_PATH`.
pub(crate) struct XattrTarget {
    path: Vec<u8>,
    /// Whether the path ends in a name; a symbolic link of that name is not followed.
    is_name: bool,
}

impl XattrTarget {
    pub(crate) fn new(fd: BorrowedFd<'_>) -> Self {
        Self { path: format!("/proc/self/fd/{}", fd.as_raw_fd()).into_bytes(), is_name: false }
    }

    /// Names an entry of an open directory without opening it.
    pub(crate) fn named(directory: BorrowedFd<'_>, name: &[u8]) -> Self {
        Self { path: join(&Self::new(directory).path, name), is_name: true }
    }

    /// Returns the names of all attributes; none where the file system does not support them.
    pub(crate) fn list(&self) -> Result<Vec<Vec<u8>>, Errno> {
        let mut buffer = Vec::with_capacity(LIST);
        let listed = repeat(Call::Stat, || match &self.path[..] {
            path if self.is_name => llistxattr(path, spare_capacity(&mut buffer)),
            path => listxattr(path, spare_capacity(&mut buffer)),
        });
        match listed {
            Ok(_) => Ok(buffer.split(|&b| b == 0).filter(|n| !n.is_empty()).map(<[u8]>::to_vec).collect()),
            Err(Errno::OPNOTSUPP | Errno::NOSYS) => Ok(Vec::new()),
            Err(errno) => Err(errno),
        }
    }

    pub(crate) fn get(&self, name: &[u8]) -> Result<Vec<u8>, Errno> {
        // The maximum length of a value equals that of all names; most are short, and are kept.
        let mut value = Vec::with_capacity(LIST);
        repeat(Call::Stat, || match &self.path[..] {
            path if self.is_name => lgetxattr(path, name, spare_capacity(&mut value)),
            path => getxattr(path, name, spare_capacity(&mut value)),
        })?;
        value.shrink_to_fit();
        Ok(value)
    }

    pub(crate) fn set(&self, name: &[u8], value: &[u8]) -> Result<(), Errno> {
        repeat(Call::Attributes, || setxattr(&self.path[..], name, value, XattrFlags::empty()))
    }

    pub(crate) fn remove(&self, name: &[u8]) -> Result<(), Errno> {
        repeat(Call::Attributes, || removexattr(&self.path[..], name))
    }
}

/// Kind of an attribute, by its name space (`xattr(7)`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Space {
    /// Writable by every user who may write the file.
    User,
    /// Reserved to the administrator, without effect on access rights.
    Trusted,
    /// Security labels and capabilities, which may grant rights.
    Security,
    Acl,
    /// Other system attributes.
    Other,
}

impl Space {
    pub(crate) fn of(name: &[u8]) -> Self {
        match name {
            b"system.posix_acl_access" | b"system.posix_acl_default" => Self::Acl,
            _ if name.starts_with(b"user.") => Self::User,
            _ if name.starts_with(b"trusted.") => Self::Trusted,
            _ if name.starts_with(b"security.") => Self::Security,
            _ => Self::Other,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::fd::AsFd as _;

    use rustix::fs::{CWD, OFlags};

    use super::*;
    use crate::storage::open_in;

    #[test]
    fn attributes_are_set_read_listed_and_removed_by_descriptor_and_by_path() {
        let dir = tempfile::tempdir().unwrap();
        let file = File::create(dir.path().join("f")).unwrap();
        let path = open_in(CWD, dir.path().join("f"), OFlags::PATH).unwrap();
        let by_path = XattrTarget::new(path.as_fd());
        let by_fd = XattrTarget::new(file.as_fd());
        if by_fd.set(b"user.long", &[7; 1000]) == Err(Errno::OPNOTSUPP) {
            eprintln!("SKIPPED: the directory for temporary files has no extended attributes");
            return;
        }
        by_path.set(b"user.short", b"").unwrap();
        let mut names = by_path.list().unwrap();
        names.retain(|name| Space::of(name) == Space::User);
        names.sort();
        assert_eq!(names, [b"user.long".to_vec(), b"user.short".to_vec()]);
        assert_eq!(by_path.get(b"user.long").unwrap(), [7; 1000]);
        assert_eq!(by_fd.get(b"user.short").unwrap(), b"");
        let directory = File::open(dir.path()).unwrap();
        let named = XattrTarget::named(directory.as_fd(), b"f");
        assert_eq!((named.list(), named.get(b"user.long")), (by_path.list(), Ok(vec![7; 1000])));
        let itself = XattrTarget::named(directory.as_fd(), b".");
        assert_eq!(itself.list(), XattrTarget::new(directory.as_fd()).list());
        std::os::unix::fs::symlink("f", dir.path().join("link")).unwrap();
        assert_eq!(XattrTarget::named(directory.as_fd(), b"link").get(b"user.short"), Err(Errno::NODATA));
        by_path.remove(b"user.long").unwrap();
        assert_eq!(by_fd.get(b"user.long"), Err(Errno::NODATA));
    }

    #[test]
    fn attribute_namespaces_are_recognised() {
        assert_eq!(Space::of(b"user.x"), Space::User);
        assert_eq!(Space::of(b"security.capability"), Space::Security);
        assert_eq!(Space::of(b"system.posix_acl_access"), Space::Acl);
        assert_eq!(Space::of(b"system.nfs4_acl"), Space::Other);
    }
}
