//! Why there is no emulated path, in words for people.

use std::io;

use haul_base::WithCauses;
use haul_sim::SpecError;

use crate::net::CLONE_DEVICE;

/// Why a path cannot be emulated.
#[derive(Debug, thiserror::Error)]
pub enum WanError {
    /// Neither privilege nor a user namespace.
    #[error(
        "no privilege to make network namespaces: CAP_SYS_ADMIN is missing, and the kernel allows no \
         unprivileged user namespace ({0})"
    )]
    NoUserNamespace(io::Error),
    /// No TUN driver, or no device file.
    #[error("{CLONE_DEVICE} is missing: the kernel has no TUN driver, or the container no device")]
    NoTun,
    /// The device file is closed to this user.
    #[error("no privilege to open {CLONE_DEVICE} (its permissions forbid it)")]
    TunForbidden,
    /// The device file cannot be opened for another reason.
    #[error("cannot open {CLONE_DEVICE}: {0}")]
    Tun(io::Error),
    /// The path that was asked for cannot be.
    #[error(transparent)]
    Path(#[from] SpecError),
    /// The system refused one of the many things that this takes.
    #[error("{0}: {causes}", causes = WithCauses(.1))]
    System(&'static str, io::Error),
}

impl WanError {
    /// What an administrator can do about it, if that is known.
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

    /// Whether a privilege is missing that root has.
    pub fn is_missing_privilege(&self) -> bool {
        matches!(self, Self::NoUserNamespace(_) | Self::TunForbidden)
    }
}

/// Says what the system was asked for when it refuses.
pub(crate) trait While<T> {
    /// `what`, with the system's reason behind it.
    fn while_doing(self, what: &'static str) -> Result<T, WanError>;
}

impl<T> While<T> for io::Result<T> {
    fn while_doing(self, what: &'static str) -> Result<T, WanError> {
        self.map_err(|error| WanError::System(what, error))
    }
}
