//! What making a namespace takes.

use std::fs::OpenOptions;
use std::io;

use crate::error::WanError;
use crate::net;

/// How namespaces may be made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Privilege {
    /// As root: they can get names.
    Root,
    /// In a user namespace of our own: they are reached through this process.
    UserNamespace,
}

/// Gets the right to make network namespaces. The process must have one thread only.
///
/// # Errors
/// Says which privilege is missing.
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

/// Whether root has not been deprived of its rights, as in a container.
fn may_make() -> bool {
    use rustix::thread::CapabilitySet;
    let needed = CapabilitySet::SYS_ADMIN | CapabilitySet::NET_ADMIN;
    rustix::thread::capabilities(None).is_ok_and(|sets| sets.effective.contains(needed))
}

/// `/dev/net/tun` is looked at before anything is made.
fn can_open_tun() -> Result<(), WanError> {
    let opened = OpenOptions::new().read(true).write(true).open(net::CLONE_DEVICE);
    opened.map(drop).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => WanError::NoTun,
        io::ErrorKind::PermissionDenied => WanError::TunForbidden,
        _ => WanError::Tun(error),
    })
}
