//! Where the entries of a source are opened from.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use haul_wire::control::LinkChoice;
use rustix::fs::OFlags;
use rustix::io::Errno;

use crate::confine::{Links, open_beneath, open_long};
use crate::root::{Root, without_dots};

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
                open_beneath(self.directory.as_fd(), below, flags | OFlags::NOFOLLOW, Links::Refuse)
            }
            Follow::Anything => open_long(self.directory.as_fd(), below, flags),
            Follow::Within(prefix) => {
                let parts = [&prefix[..], below];
                let path = parts.into_iter().filter(|p| !p.is_empty()).collect::<Vec<_>>().join(&b'/');
                open_beneath(self.directory.as_fd(), &path, flags, Links::Within)
            }
        }
    }
}
