//! What making a namespace takes, and what to say without it.

use std::fs::OpenOptions;
use std::io;

use crate::net;
use crate::problem::Problem;

/// How namespaces may be made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Privilege {
    /// As root: they get names.
    Root,
    /// In a user namespace of our own: they are reached through this process.
    UserNamespace,
}

const INSTEAD: &str = "run it as root (sudo), or use `haul demo`, which emulates a path on the loopback and needs \
                       no privilege";

/// Gets the right to make network namespaces. The process must have one thread only.
///
/// # Errors
/// Says which privilege is missing.
pub(crate) fn acquire() -> Result<Privilege, Problem> {
    let privilege = if rustix::process::geteuid().is_root() && may_make() {
        Privilege::Root
    } else {
        net::private_user_namespace().map_err(|error| no_user_namespace(&error))?;
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

fn no_user_namespace(error: &io::Error) -> Problem {
    Problem::failed(
        format!(
            "no privilege to make network namespaces: CAP_SYS_ADMIN is missing, and the kernel allows no \
             unprivileged user namespace ({error})"
        ),
        format!(
            "{INSTEAD}; or allow user namespaces: sysctl user.max_user_namespaces=1000 kernel.unprivileged_userns_clone=1"
        ),
    )
}

/// `/dev/net/tun` is looked at before anything is made.
fn can_open_tun() -> Result<(), Problem> {
    let device = net::CLONE_DEVICE;
    let Err(error) = OpenOptions::new().read(true).write(true).open(device) else { return Ok(()) };
    let why = match error.kind() {
        io::ErrorKind::NotFound => {
            format!("{device} is missing: the kernel has no TUN driver, or the container no device")
        }
        io::ErrorKind::PermissionDenied => {
            format!("no privilege to open {device} (its permissions forbid it)")
        }
        _ => format!("cannot open {device}: {error}"),
    };
    Err(Problem::failed(why, format!("{INSTEAD}; or as root: modprobe tun; chmod 666 {device}")))
}
