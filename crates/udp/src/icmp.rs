//! The socket's error queue (`IP_RECVERR`): reports by routers and the peer's host about sent datagrams.
//!
//! The queue must be enabled for two reasons: without it the kernel hides "host unreachable" from UDP, and
//! ignores `ENOBUFS` when a queue of this machine is full. It must be drained, as its messages occupy the
//! receive buffer and make pollers report an error.

use crate::cmsg::Control;
use crate::errors::ErrorClass;
use crate::socket::UdpSocket;
use crate::sys;

/// Maximum number of messages drained at a time, so that a flood of ICMP cannot block the caller.
const MAX_DRAINED: usize = 64;
/// `SO_EE_ORIGIN_LOCAL` of linux/errqueue.h: reported by this machine, for a call that failed as well.
const ORIGIN_LOCAL: u8 = 1;

/// The relevant fields of `struct sock_extended_err` (linux/errqueue.h).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Extended {
    errno: i32,
    origin: u8,
    /// The MTU, if the error is `EMSGSIZE`.
    info: u32,
}

impl Extended {
    fn read(data: &[u8]) -> Option<Self> {
        let errno = i32::from_ne_bytes(*data.first_chunk()?);
        let origin = *data.get(4)?;
        let info = u32::from_ne_bytes(*data.get(8..)?.first_chunk()?);
        Some(Self { errno, origin, info })
    }

    fn find<const N: usize>(control: &Control<N>) -> Option<Self> {
        let is_error = |level, kind| {
            (level, kind) == (libc::SOL_IP, libc::IP_RECVERR)
                || (level, kind) == (libc::SOL_IPV6, libc::IPV6_RECVERR)
        };
        let (_, _, data) = control.messages().find(|&(level, kind, _)| is_error(level, kind))?;
        Self::read(data)
    }
}

impl UdpSocket {
    /// Drains the error queue, counts its errors in [`stats`](UdpSocket::stats), and returns how many came
    /// from the network. Failed sends and receives do this themselves; call it when a poller reports an error
    /// for the socket.
    pub fn drain_errors(&self) -> usize {
        let mut remote = 0;
        for _ in 0..MAX_DRAINED {
            let mut control = Control::EMPTY;
            if sys::recv_error(self.fd(), &mut control).is_err() {
                break;
            }
            let Some(error) = Extended::find(&control) else {
                continue;
            };
            if error.origin != ORIGIN_LOCAL {
                remote += 1;
                self.count_icmp(error);
            }
        }
        remote
    }

    fn count_icmp(&self, error: Extended) {
        let class = ErrorClass::of_errno(error.errno);
        self.count_remote(class);
        if class == ErrorClass::TooLarge && error.info > 0 {
            self.counters.set_reported_mtu(error.info);
        }
    }

    /// Counts an error that came from the network.
    fn count_remote(&self, class: ErrorClass) {
        match class {
            ErrorClass::Refused => self.counters.refused.add_one(),
            ErrorClass::TooLarge => self.counters.packet_too_big.add_one(),
            _ => self.counters.unreachable.add_one(),
        }
    }

    /// Handles a call that failed with `class`, which may come from the network: drains the queue and counts.
    /// Returns how many errors came from the network, including this one.
    pub(crate) fn count_error(&self, class: ErrorClass) -> usize {
        let drained = self.drain_errors();
        // "Too large" and "not permitted" without a queued message come from this machine.
        if drained == 0 && matches!(class, ErrorClass::Refused | ErrorClass::Unreachable) {
            self.count_remote(class);
            return 1;
        }
        drained
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn any_bytes_can_be_read(data in prop::collection::vec(any::<u8>(), 0..40)) {
            prop_assert_eq!(Extended::read(&data).is_some(), data.len() >= 12);
        }
    }
}
