//! Privileges for creating namespaces.

use std::fs::OpenOptions;
use std::io;

use crate::error::WanError;
use crate::net;

/// How namespaces can be created.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Privilege {
    /// As root: namespaces can have names.
    Root,
    /// In a private user namespace: they are accessible through this process only.
    UserNamespace,
}

/// Obtains the privilege to create network namespaces. The process must be single-threaded.
///
/// # Errors
/// The missing privilege.
pub fn acquire() -> Result<Privilege, WanError> {
    let privilege = if rustix::process::geteuid().is_root() && may_make() {
        Privilege::Root
    } else {
        net::private_user_namespace().map_err(WanError::NoUserNamespace)?;
        Privilege::UserNamespace
    };
    can_open_tun()?;
    Ok(privilege)
}

/// Whether root still has the needed capabilities, unlike in some containers.
fn may_make() -> bool {
    use rustix::thread::CapabilitySet;
    let needed = CapabilitySet::SYS_ADMIN | CapabilitySet::NET_ADMIN;
    rustix::thread::capabilities(None).is_ok_and(|sets| sets.effective.contains(needed))
}

/// Checks `/dev/net/tun` before anything is created.
fn can_open_tun() -> Result<(), WanError> {
    let opened = OpenOptions::new().read(true).write(true).open(net::CLONE_DEVICE);
    opened.map(drop).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => WanError::NoTun,
        io::ErrorKind::PermissionDenied => WanError::TunForbidden,
        _ => WanError::Tun(error),
    })
}
