//! Errors of setting up an emulated path.

use std::io;

use haul_base::WithCauses;
use haul_sim::SpecError;

use crate::net::CLONE_DEVICE;

/// Error of setting up an emulated path.
#[derive(Debug, thiserror::Error)]
pub enum WanError {
    /// Neither privileges nor an unprivileged user namespace.
    #[error(
        "no privilege to make network namespaces: CAP_SYS_ADMIN is missing, and the kernel allows no \
         unprivileged user namespace ({0})"
    )]
    NoUserNamespace(io::Error),
    /// No TUN driver or device file.
    #[error("{CLONE_DEVICE} is missing: the kernel has no TUN driver, or the container no device")]
    NoTun,
    /// Permission to open the device file denied.
    #[error("no privilege to open {CLONE_DEVICE} (its permissions forbid it)")]
    TunForbidden,
    /// The device file cannot be opened for another reason.
    #[error("cannot open {CLONE_DEVICE}: {0}")]
    Tun(io::Error),
    /// The requested path is invalid.
    #[error(transparent)]
    Path(#[from] SpecError),
    /// A system call failed; the text names the operation.
    #[error("{0}: {causes}", causes = WithCauses(.1))]
    System(&'static str, io::Error),
}

impl WanError {
    /// Returns what an administrator can do about the error, if known.
    pub fn remedy(&self) -> Option<String> {
        match self {
            Self::NoUserNamespace(_) => Some(
                "allow user namespaces: sysctl user.max_user_namespaces=1000 kernel.unprivileged_userns_clone=1"
                    .to_owned(),
            ),
            Self::NoTun | Self::TunForbidden | Self::Tun(_) => {
                Some(format!("as root: modprobe tun; chmod 666 {CLONE_DEVICE}"))
            }
            Self::Path(_) | Self::System(..) => None,
        }
    }

    /// Whether the error is a missing privilege that root has.
    pub fn is_missing_privilege(&self) -> bool {
        matches!(self, Self::NoUserNamespace(_) | Self::TunForbidden)
    }
}

/// Adds the attempted operation to a system error.
pub(crate) trait While<T> {
    /// Converts the error to [`WanError::System`] with this operation.
    fn while_doing(self, what: &'static str) -> Result<T, WanError>;
}

impl<T> While<T> for io::Result<T> {
    fn while_doing(self, what: &'static str) -> Result<T, WanError> {
        self.map_err(|error| WanError::System(what, error))
    }
}
