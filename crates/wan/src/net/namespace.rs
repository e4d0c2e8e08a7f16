//! Creating and entering network namespaces.

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::thread;

use rustix::mount::{UnmountFlags, mount_bind, unmount};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use super::sys;

/// Directory in which `ip netns` looks up names.
pub(super) const NAMES: &str = "/run/netns";

/// Device and inode that identify a namespace.
pub(crate) type NamespaceId = (u64, u64);

/// A network namespace. Dropping it removes its name; the namespace ends with its last process.
#[derive(Debug)]
pub struct Namespace {
    name: String,
    handle: OwnedFd,
    /// Its file under [`NAMES`], if it has a name.
    pinned: Option<PathBuf>,
}

impl Namespace {
    /// Creates a namespace. With `pin` it gets a name known to `ip netns`; otherwise it is accessible through
    /// this process's file descriptor (names need the privilege to mount).
    ///
    /// # Errors
    /// Without `CAP_SYS_ADMIN` in the user namespace, or if the name cannot be created.
    pub(crate) fn create(name: &str, pin: bool) -> io::Result<Self> {
        let path = pin.then(|| Path::new(NAMES).join(name));
        let made = thread::scope(|scope| scope.spawn(|| make(path.as_deref())).join());
        let handle = made.unwrap_or_else(|_| Err(io::Error::other("the thread that makes it ended")))?;
        Ok(Self { name: name.to_owned(), handle, pinned: path })
    }

    /// Returns its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns a path that other processes of this user can open to enter it.
    pub fn path(&self) -> PathBuf {
        self.pinned.clone().unwrap_or_else(|| {
            PathBuf::from(format!("/proc/{}/fd/{}", std::process::id(), self.handle.as_raw_fd()))
        })
    }

    /// Whether it has a name known to `ip netns`.
    pub fn is_pinned(&self) -> bool {
        self.pinned.is_some()
    }

    /// Returns its device and inode.
    pub(crate) fn id(&self) -> io::Result<NamespaceId> {
        let stat = rustix::fs::fstat(&self.handle)?;
        Ok((stat.st_dev, stat.st_ino))
    }

    /// Moves the calling thread into it.
    fn enter(&self) -> io::Result<()> {
        Ok(move_into_link_name_space(self.handle.as_fd(), Some(LinkNameSpaceType::Network))?)
    }

    /// Runs `work` inside, on a separate thread. Sockets created there stay in the namespace.
    ///
    /// # Errors
    /// Errors of `work`, and when the namespace cannot be entered.
    pub fn run<T: Send>(&self, work: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
        let inside = || self.enter().and_then(|()| work());
        let done = thread::scope(|scope| scope.spawn(inside).join());
        done.unwrap_or_else(|_| Err(io::Error::other("the work inside a namespace panicked")))
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        if let Some(path) = &self.pinned {
            // The sweep of the next run finds what cannot be removed now.
            let _ = release(path);
        }
    }
}

/// Removes a name.
pub(super) fn release(path: &Path) -> io::Result<()> {
    match unmount(path, UnmountFlags::DETACH) {
        Ok(()) | Err(rustix::io::Errno::INVAL | rustix::io::Errno::NOENT) => {}
        Err(error) => return Err(error.into()),
    }
    fs::remove_file(path)
}

/// Gives the calling thread a new network namespace, and the namespace a name.
fn make(path: Option<&Path>) -> io::Result<OwnedFd> {
    sys::unshare_network()?;
    let thread_namespace = "/proc/thread-self/ns/net";
    if let Some(path) = path {
        fs::create_dir_all(NAMES)?;
        File::create(path)?;
        if let Err(error) = mount_bind(thread_namespace, path) {
            fs::remove_file(path)?;
            return Err(error.into());
        }
    }
    Ok(File::open(thread_namespace)?.into())
}

/// Moves the calling thread into the namespace at `path`.
///
/// # Errors
/// If there is none, or this process may not enter it.
pub fn enter(path: &Path) -> io::Result<()> {
    let file = File::open(path)?;
    Ok(move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network))?)
}

/// Moves this process, which must be single-threaded, into a user namespace in which it is root.
///
/// # Errors
/// If the kernel does not permit it.
pub(crate) fn private_user_namespace() -> io::Result<()> {
    let (user, group) = (rustix::process::getuid(), rustix::process::getgid());
    sys::unshare_user()?;
    fs::write("/proc/self/setgroups", "deny")?;
    fs::write("/proc/self/uid_map", format!("0 {} 1", user.as_raw()))?;
    fs::write("/proc/self/gid_map", format!("0 {} 1", group.as_raw()))
}
