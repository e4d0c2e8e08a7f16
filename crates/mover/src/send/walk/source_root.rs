//! Where the entries of a source are opened from.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use haul_wire::control::LinkChoice;
use rustix::fs::OFlags;
use rustix::io::Errno;

use crate::confine::{Links, open_beneath};
use crate::root::{Root, without_dots};
use crate::storage::open_in;

/// Longest path that is given to the kernel in one call; it takes up to `PATH_MAX`, 4,096 with the NUL.
const AT_ONCE: usize = 2048;

/// What a path of an entry may lead through.
#[derive(Debug)]
enum Follow {
    Nothing,
    Anything,
    /// Links that stay below the root; the path of the source's directory below it.
    Within(Vec<u8>),
}

/// A directory that a source lies in, or is; entries are opened relative to it.
#[derive(Debug)]
pub(crate) struct SourceRoot {
    /// The directory; with [`Follow::Within`] the root.
    directory: Arc<OwnedFd>,
    /// How many leading bytes of an entry's path are not part of the path below the directory.
    strip: usize,
    follow: Follow,
}

impl SourceRoot {
    /// The directory `path`, as `root` reads it.
    pub(crate) fn new(root: &Root, path: &[u8], strip: usize, links: LinkChoice) -> Result<Self, Errno> {
        let directory = Arc::new(root.open(path, OFlags::PATH | OFlags::DIRECTORY)?);
        Ok(match (links, root) {
            (LinkChoice::Keep, _) => Self { directory, strip, follow: Follow::Nothing },
            (LinkChoice::Follow, Root::Anywhere) => Self { directory, strip, follow: Follow::Anything },
            (LinkChoice::Follow, Root::Beneath(root)) => {
                Self { directory: root.clone(), strip, follow: Follow::Within(without_dots(path)?) }
            }
        })
    }

    /// Opens the entry with this path. Links are followed, in it and at its end, only if the job follows links.
    pub(crate) fn open(&self, path: &[u8], flags: OFlags) -> Result<OwnedFd, Errno> {
        let below = path.get(self.strip..).unwrap_or_default();
        match &self.follow {
            Follow::Nothing => {
                let open = |at: &OwnedFd, part: &[u8], flags| {
                    open_beneath(at.as_fd(), part, flags | OFlags::NOFOLLOW, Links::Refuse)
                };
                in_parts(&self.directory, below, flags, open)
            }
            Follow::Anything => {
                let open = |at: &OwnedFd, part: &[u8], flags| {
                    let part = if part.is_empty() { b"." } else { part };
                    open_in(at, part, flags)
                };
                in_parts(&self.directory, below, flags, open)
            }
            Follow::Within(prefix) => {
                let parts = [&prefix[..], below];
                let path = parts.into_iter().filter(|p| !p.is_empty()).collect::<Vec<_>>().join(&b'/');
                open_beneath(self.directory.as_fd(), &path, flags, Links::Within)
            }
        }
    }
}

/// Opens a path of any length, a stretch of directories at a time.
fn in_parts(
    from: &Arc<OwnedFd>,
    path: &[u8],
    flags: OFlags,
    open: impl Fn(&OwnedFd, &[u8], OFlags) -> Result<OwnedFd, Errno>,
) -> Result<OwnedFd, Errno> {
    let mut at = from.clone();
    let mut rest = path;
    while rest.len() > AT_ONCE {
        let slash = rest[..AT_ONCE].iter().rposition(|&b| b == b'/').ok_or(Errno::NAMETOOLONG)?;
        at = Arc::new(open(&at, &rest[..slash], OFlags::PATH | OFlags::DIRECTORY)?);
        rest = &rest[slash + 1..];
    }
    open(&at, rest, flags)
}
