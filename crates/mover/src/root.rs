//! Resolving the paths of sources and destinations, optionally confined to a directory.

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;

use haul_wire::control::{Fault, Layout, LinkChoice};
use rustix::fs::{CWD, OFlags};
use rustix::io::Errno;

use crate::confine::{Links, open_beneath, open_long};
use crate::fault::of_source;
use crate::storage::open_in;

/// Directory that the paths of a job are confined to.
#[derive(Clone, Debug)]
pub enum Root {
    /// No confinement: paths are resolved as for any process of this user.
    Anywhere,
    /// Paths stay below this directory: a leading `/` is this directory, `..` is refused, and symbolic links
    /// are followed only if they stay below it.
    Beneath(Arc<OwnedFd>),
}

impl Root {
    /// Confines a job to the directory `path`.
    ///
    /// # Errors
    /// The directory does not exist, is not a directory, or may not be entered.
    pub fn beneath(path: &Path) -> Result<Self, Fault> {
        use std::os::unix::ffi::OsStrExt as _;
        let opened = open_in(CWD, path, OFlags::PATH | OFlags::DIRECTORY);
        let fail = |errno| of_source("open the root", path.as_os_str().as_bytes(), errno);
        Ok(Self::Beneath(Arc::new(opened.map_err(fail)?)))
    }

    pub(crate) fn open(&self, path: &[u8], flags: OFlags) -> Result<OwnedFd, Errno> {
        match self {
            Self::Anywhere if path.is_empty() => Err(Errno::NOENT),
            Self::Anywhere => open_in(CWD, path, flags),
            Self::Beneath(root) => open_beneath(root.as_fd(), &without_dots(path)?, flags, Links::Within),
        }
    }

    pub(crate) fn split(&self, path: &[u8]) -> Named {
        let kept = &path[..path.iter().rposition(|&b| b != b'/').map_or(0, |last| last + 1)];
        let name_start = kept.iter().rposition(|&b| b == b'/').map_or(0, |slash| slash + 1);
        let name = &kept[name_start..];
        if matches!(name, b"" | b"." | b"..") {
            return Named { directory: path.to_vec(), name: Vec::new(), slash: true };
        }
        let directory = match (&kept[..name_start], self) {
            (b"", Self::Anywhere) => b".".to_vec(),
            (directory, _) => directory.to_vec(),
        };
        Named { directory, name: name.to_vec(), slash: kept.len() < path.len() }
    }
}

/// A path split into the directory to open and the name in it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Named {
    /// Directory of the name; the whole path if there is no name.
    pub(crate) directory: Vec<u8>,
    /// Last component; empty for `.`, `..`, `/` and paths that end in them.
    pub(crate) name: Vec<u8>,
    /// Whether the path ends in a slash: it must be a directory, and a link to one is followed.
    pub(crate) slash: bool,
}

/// Removes empty and `.` components from a path; refuses `..`.
fn without_dots(path: &[u8]) -> Result<Vec<u8>, Errno> {
    let kept: Vec<&[u8]> = path.split(|&b| b == b'/').filter(|c| !matches!(*c, b"" | b".")).collect();
    if kept.contains(&&b".."[..]) { Err(Errno::XDEV) } else { Ok(kept.join(&b'/')) }
}

/// Whether a source stands for its contents and not for itself: `.`, `..`, `/`, and paths that end in them.
/// Every other source keeps its last component as its name at the destination.
pub fn copies_content(source: &[u8]) -> bool {
    Root::Anywhere.split(source).name.is_empty()
}

/// Returns the layout that `cp` would use: [`Layout::As`] for one source that has a name, unless the
/// destination is written as a directory (`/` at its end, `.`, `..`, empty); otherwise [`Layout::Into`].
pub fn layout_for<S: AsRef<[u8]>>(sources: &[S], destination: &[u8]) -> Layout {
    let directory = destination.ends_with(b"/") || copies_content(destination);
    match sources {
        [one] if !directory && !copies_content(one.as_ref()) => Layout::As,
        _ => Layout::Into,
    }
}

/// The parent directory of a source, or the source itself; entries are opened relative to it.
#[derive(Debug)]
pub(crate) struct SourceRoot {
    directory: Arc<OwnedFd>,
    /// Path of the source's directory relative to `directory`.
    prefix: Vec<u8>,
    /// Number of leading bytes of an entry's path to skip: they are not part of the path below the source's
    /// directory.
    strip: usize,
    /// Symbolic links that a path may contain; `None`: any.
    links: Option<Links>,
}

impl SourceRoot {
    /// Opens the directory `path`, resolved by `root`.
    pub(crate) fn new(root: &Root, path: &[u8], strip: usize, links: LinkChoice) -> Result<Self, Errno> {
        let opened = Arc::new(root.open(path, OFlags::PATH | OFlags::DIRECTORY)?);
        let (directory, prefix, links) = match (links, root) {
            (LinkChoice::Keep, _) => (opened, Vec::new(), Some(Links::Refuse)),
            (LinkChoice::Follow, Root::Anywhere) => (opened, Vec::new(), None),
            (LinkChoice::Follow, Root::Beneath(root)) => {
                (root.clone(), without_dots(path)?, Some(Links::Within))
            }
        };
        Ok(Self { directory, prefix, strip, links })
    }

    /// Opens the entry with this path. Symbolic links, also in the last component, are followed only if the
    /// job follows links.
    pub(crate) fn open(&self, path: &[u8], flags: OFlags) -> Result<OwnedFd, Errno> {
        let (directory, below) = (self.directory.as_fd(), path.get(self.strip..).unwrap_or_default());
        match self.links {
            None => open_long(directory, below, flags),
            Some(links) => open_beneath(directory, &join(&self.prefix, below), flags, links),
        }
    }
}

/// Splits a path into its directory (empty: the base) and its last component.
pub(crate) fn split(path: &[u8]) -> (&[u8], &[u8]) {
    let slash = path.iter().rposition(|&b| b == b'/');
    slash.map_or((&[], path), |at| (&path[..at], &path[at + 1..]))
}

/// Joins a directory and a name; the base directory is empty and adds no prefix.
pub(crate) fn join(directory: &[u8], name: &[u8]) -> Vec<u8> {
    if directory.is_empty() { name.to_vec() } else { [directory, name].join(&b'/') }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_split_as_cp_reads_them() {
        let split = |path: &str| {
            let named = Root::Anywhere.split(path.as_bytes());
            let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
            (text(named.directory), text(named.name), named.slash)
        };
        let want = |d: &str, n: &str, s| (d.to_owned(), n.to_owned(), s);
        assert_eq!(split("a"), want(".", "a", false));
        assert_eq!(split("x/a//"), want("x/", "a", true));
        assert_eq!(split("/a"), want("/", "a", false));
        assert_eq!(split("x/.."), want("x/..", "", true));
        assert_eq!(split("/"), want("/", "", true));
    }

    #[test]
    fn the_layout_follows_sources_and_destination() {
        assert_eq!(layout_for(&["a"], b"b"), Layout::As);
        assert_eq!(layout_for(&["a"], b"b/"), Layout::Into);
        assert_eq!(layout_for(&["a"], b""), Layout::Into);
        assert_eq!(layout_for(&["a", "c"], b"b"), Layout::Into);
        assert_eq!(layout_for(&["a/."], b"b"), Layout::Into);
    }

    #[test]
    fn a_root_confines_absolute_and_dotted_paths() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("in")).unwrap();
        std::fs::write(dir.path().join("in/f"), "x").unwrap();
        let root = Root::beneath(&dir.path().join("in")).unwrap();
        assert!(root.open(b"/f", OFlags::RDONLY).is_ok());
        assert!(root.open(b"", OFlags::PATH).is_ok());
        assert_eq!(root.open(b"../in/f", OFlags::RDONLY).unwrap_err(), Errno::XDEV);
        assert_eq!(root.open(b"/etc/passwd", OFlags::RDONLY).unwrap_err(), Errno::NOENT);
    }
}
