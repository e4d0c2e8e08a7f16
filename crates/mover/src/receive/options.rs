//! How a receiving job works.

use haul_base::{Bytes, Rate, Span};
use haul_wire::control::{Durability, Preserve, ReceivePolicy};

use crate::budget::SET_MEMORY;
use crate::receive::decide::expectations::Expectations;
use crate::receive::place::space::MinFree;

/// Bytes of contents in memory, at least and at most.
const MEMORY: std::ops::RangeInclusive<u64> = 64 << 20..=160 << 20;

/// What a long path can carry: the most memory is a tenth of a second of it.
const CARRIES: Rate = Rate::from_bps(13_400_000_000);

/// How a receiving job works.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReceiveOptions {
    /// Names the temporary files; different for jobs that run at the same time.
    pub session: u32,
    /// Bytes of contents in memory at most; flow control holds the sender to it.
    pub memory: u64,
    /// Bytes that names, links, holes and attributes of the set may take; above, the job ends with
    /// [`FaultCode::SetTooLarge`](haul_wire::control::FaultCode::SetTooLarge).
    pub set_memory: Bytes,
    /// When a file counts as received, whatever the policy says.
    pub durability: Durability,
    /// What happens to what is there.
    pub receive_policy: ReceivePolicy,
    /// What of owners, attributes and access control lists a sender may set; hard links are always kept.
    pub permit: Preserve,
    /// What has to stay free on the disk.
    pub min_free: MinFree,
    /// What was asked for, if this side did; a sender that says something else is not believed.
    pub expectations: Option<Expectations>,
    /// Files are written so much of the object at a time, at most 100 MB, and two of these may be in memory whatever
    /// `memory` says. `None`: as the bytes come.
    pub chunk: Option<Bytes>,
}

impl ReceiveOptions {
    /// 64 MiB of memory, files synced, what is equal is kept and leftovers are used.
    pub fn new(session: u32) -> Self {
        Self::with_policy(session, ReceivePolicy::default())
    }

    /// 64 MiB of memory, and what the policy says.
    pub fn with_policy(session: u32, receive_policy: ReceivePolicy) -> Self {
        Self {
            session,
            memory: *MEMORY.start(),
            set_memory: SET_MEMORY,
            durability: receive_policy.durability,
            receive_policy,
            permit: Preserve::default(),
            min_free: MinFree::Nothing,
            expectations: None,
            chunk: None,
        }
    }

    /// As much memory as lets a path with this round trip carry 13.4 Gbit/s, 64 to 160 MiB. What is in memory and not written yet is
    /// lost when the process is killed, so it is not more than that.
    #[must_use]
    pub fn for_round_trip(self, round_trip: Span) -> Self {
        let memory = CARRIES.bytes_in(round_trip);
        Self { memory: memory.clamp(*MEMORY.start(), *MEMORY.end()), ..self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_paths_get_more_memory() {
        let memory = |ms| ReceiveOptions::new(1).for_round_trip(Span::from_millis(ms)).memory >> 20;
        assert_eq!([0, 10, 40, 60, 100, 600].map(memory), [64, 64, 64, 95, 159, 160]);
    }
}
