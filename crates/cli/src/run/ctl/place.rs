//! The directory of the control sockets, which belongs to the user alone.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::PathBuf;

use rustix::process::geteuid;

/// Its path. It need not exist.
pub(super) fn directory() -> PathBuf {
    match std::env::var_os("XDG_RUNTIME_DIR").filter(|path| !path.is_empty()) {
        Some(path) => PathBuf::from(path).join("haul"),
        None => std::env::temp_dir().join(format!("haul-{}", geteuid().as_raw())),
    }
}

/// Creates it if it is missing.
///
/// # Errors
/// If it cannot be created, or another user can enter it.
pub(super) fn made() -> io::Result<PathBuf> {
    let path = directory();
    match DirBuilder::new().mode(0o700).create(&path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    let found = fs::symlink_metadata(&path)?;
    if !found.is_dir() || found.uid() != geteuid().as_raw() || found.mode() & 0o077 != 0 {
        let words = format!("{} is not a directory that only you can enter", path.display());
        return Err(io::Error::other(words));
    }
    Ok(path)
}
