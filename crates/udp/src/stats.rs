//! Counters of a socket.

use std::num::NonZeroU32;
use std::sync::atomic::{AtomicU32, Ordering};

use haul_base::{AtomicCounter, Bytes};

/// Counters of a socket since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Sends that failed because the socket's send buffer was full.
    pub socket_full: u64,
    /// Sends that failed because a queue below the socket was full (queueing discipline or device of this
    /// machine). Nothing was lost: the caller got an error.
    pub queue_full: u64,
    /// "Port unreachable" errors from the peer's host.
    pub refused: u64,
    /// "Fragmentation needed" or "packet too big" errors from routers. Not authenticated: a hint.
    pub packet_too_big: u64,
    /// MTU in the last of these, headers included. Not authenticated: a hint.
    pub reported_mtu: Option<NonZeroU32>,
    /// Other ICMP errors: no route, prohibited, time exceeded.
    pub unreachable: u64,
    /// Calls for which the kernel rejected GSO, so that `sendmmsg` was used.
    pub gso_refused: u64,
}

/// The counters behind [`Stats`]; relaxed, as no other memory depends on them.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) socket_full: AtomicCounter,
    pub(crate) queue_full: AtomicCounter,
    pub(crate) refused: AtomicCounter,
    pub(crate) packet_too_big: AtomicCounter,
    pub(crate) unreachable: AtomicCounter,
    pub(crate) gso_refused: AtomicCounter,
    reported_mtu: AtomicU32,
}

impl Counters {
    pub(crate) fn set_reported_mtu(&self, mtu: u32) {
        self.reported_mtu.store(mtu, Ordering::Relaxed);
    }

    pub(crate) fn read(&self) -> Stats {
        Stats {
            socket_full: self.socket_full.get(),
            queue_full: self.queue_full.get(),
            refused: self.refused.get(),
            packet_too_big: self.packet_too_big.get(),
            reported_mtu: NonZeroU32::new(self.reported_mtu.load(Ordering::Relaxed)),
            unreachable: self.unreachable.get(),
            gso_refused: self.gso_refused.get(),
        }
    }
}

/// The kernel's memory accounting of a socket (`SO_MEMINFO` of `linux/sock_diag.h`). All memory is counted in
/// whole socket buffers, including headers and slack, which is more than the bytes of the datagrams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SocketMemory {
    /// Memory of datagrams queued for receiving.
    pub receive_used: Bytes,
    /// Limit above which arriving datagrams are dropped.
    pub receive_limit: Bytes,
    /// Memory of datagrams not sent yet.
    pub send_used: Bytes,
    /// Limit above which sending would block.
    pub send_limit: Bytes,
    /// Socket buffers dropped on arrival, wrapping. With GRO one of them can be dozens of datagrams.
    pub drops: u32,
}

impl SocketMemory {
    /// Number of integers of `SO_MEMINFO` that are read.
    pub(crate) const WORDS: usize = 9;

    /// Returns the fill level of the receive buffer in thousandths, at most 1,000 even if the kernel let it
    /// exceed its limit. `None` if the limit is zero.
    pub fn receive_fill(&self) -> Option<u16> {
        let thousandths = self.receive_used.0.saturating_mul(1_000).checked_div(self.receive_limit.0)?;
        Some(thousandths.min(1_000) as u16)
    }

    /// Parses the words of `SO_MEMINFO`; `None` if the kernel wrote too few.
    pub(crate) fn from_words(words: &[u32]) -> Option<Self> {
        let [receive_used, receive_limit, send_used, send_limit, _, _, _, _, drops] = *words else {
            return None;
        };
        Some(Self {
            receive_used: Bytes(receive_used.into()),
            receive_limit: Bytes(receive_limit.into()),
            send_used: Bytes(send_used.into()),
            send_limit: Bytes(send_limit.into()),
            drops,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fill_is_the_share_of_the_receive_buffer() {
        let fill = |used, limit| {
            SocketMemory::from_words(&[used, limit, 7, 9, 0, 0, 0, 0, 3]).unwrap().receive_fill()
        };
        assert_eq!(fill(0, 212_992), Some(0));
        assert_eq!(fill(53_248, 212_992), Some(250));
        assert_eq!(fill(u32::MAX, 1), Some(1_000), "Linux before 6.15 takes one buffer too many");
        assert_eq!(fill(5, 0), None);
    }
}
