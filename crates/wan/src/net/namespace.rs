//! A network namespace with a name, and how to be inside of it.

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::thread;

use rustix::mount::{UnmountFlags, mount_bind, unmount};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use super::sys;

/// Where `ip netns` looks for names.
pub(super) const NAMES: &str = "/run/netns";

/// The device and inode by which the kernel knows a namespace.
pub(crate) type NamespaceId = (u64, u64);

/// A network namespace; its name is gone when this is dropped, and the namespace itself when nothing is left
/// inside.
#[derive(Debug)]
pub struct Namespace {
    name: String,
    handle: OwnedFd,
    /// The file under [`NAMES`], where we may make one.
    pinned: Option<PathBuf>,
}

impl Namespace {
    /// Makes a namespace. With `pin` it gets a name that `ip netns` knows; without, it is reached through
    /// this process's file descriptor (names need the right to mount).
    ///
    /// # Errors
    /// Without `CAP_SYS_ADMIN` in the user namespace, or when its name cannot be made.
    pub(crate) fn create(name: &str, pin: bool) -> io::Result<Self> {
        let path = pin.then(|| Path::new(NAMES).join(name));
        let made = thread::scope(|scope| scope.spawn(|| make(path.as_deref())).join());
        let handle = made.unwrap_or_else(|_| Err(io::Error::other("the thread that makes it ended")))?;
        Ok(Self { name: name.to_owned(), handle, pinned: path })
    }

    /// What it is called.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// A path that other processes of this user can open to enter it.
    pub fn path(&self) -> PathBuf {
        self.pinned.clone().unwrap_or_else(|| {
            PathBuf::from(format!("/proc/{}/fd/{}", std::process::id(), self.handle.as_raw_fd()))
        })
    }

    /// Whether `ip netns` knows it.
    pub fn is_pinned(&self) -> bool {
        self.pinned.is_some()
    }

    /// By what the kernel knows it.
    pub(crate) fn id(&self) -> io::Result<NamespaceId> {
        let stat = rustix::fs::fstat(&self.handle)?;
        Ok((stat.st_dev, stat.st_ino))
    }

    /// Moves the calling thread into it.
    fn enter(&self) -> io::Result<()> {
        Ok(move_into_link_name_space(self.handle.as_fd(), Some(LinkNameSpaceType::Network))?)
    }

    /// Does `work` inside, on a thread of its own; sockets made there stay there.
    ///
    /// # Errors
    /// Those of `work`, and when the namespace cannot be entered.
    pub fn run<T: Send>(&self, work: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
        let inside = || self.enter().and_then(|()| work());
        let done = thread::scope(|scope| scope.spawn(inside).join());
        done.unwrap_or_else(|_| Err(io::Error::other("the work inside a namespace panicked")))
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        if let Some(path) = &self.pinned {
            // What cannot be removed now is found by the sweep of the next run.
            let _ = release(path);
        }
    }
}

/// Takes a name away.
pub(super) fn release(path: &Path) -> io::Result<()> {
    match unmount(path, UnmountFlags::DETACH) {
        Ok(()) | Err(rustix::io::Errno::INVAL | rustix::io::Errno::NOENT) => {}
        Err(error) => return Err(error.into()),
    }
    fs::remove_file(path)
}

/// Unshares the calling thread's network and gives what it got a name.
fn make(path: Option<&Path>) -> io::Result<OwnedFd> {
    sys::unshare_network()?;
    let own = "/proc/thread-self/ns/net";
    if let Some(path) = path {
        fs::create_dir_all(NAMES)?;
        File::create(path)?;
        if let Err(error) = mount_bind(own, path) {
            fs::remove_file(path)?;
            return Err(error.into());
        }
    }
    Ok(File::open(own)?.into())
}

/// Moves the calling thread into the namespace at `path`.
///
/// # Errors
/// When there is none, or this process may not enter it.
pub fn enter(path: &Path) -> io::Result<()> {
    let file = File::open(path)?;
    Ok(move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network))?)
}

/// Puts this process, which must have one thread only, into a user namespace in which it is root.
///
/// # Errors
/// Where the kernel does not let this user make one.
pub(crate) fn private_user_namespace() -> io::Result<()> {
    let (user, group) = (rustix::process::getuid(), rustix::process::getgid());
    sys::unshare_user()?;
    fs::write("/proc/self/setgroups", "deny")?;
    fs::write("/proc/self/uid_map", format!("0 {} 1", user.as_raw()))?;
    fs::write("/proc/self/gid_map", format!("0 {} 1", group.as_raw()))
}
