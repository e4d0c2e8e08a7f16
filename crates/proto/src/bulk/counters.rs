//! What one side of a transfer has counted.

use haul_base::{HostSample, Rate};
use haul_stack::Stack;

use super::{ReceiverStats, SenderStats};
use crate::micro::shared::{RateNow, SendWindow};

/// Which end of an object's way this is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ObjectEnd {
    /// The sender's.
    Source,
    /// The receiver's.
    Sink,
}

/// The counters of the sending side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sending {
    /// The machine's counters.
    pub stats: SenderStats,
    /// The controller's present rate.
    pub rate: Rate,
    /// The controller's phase.
    pub phase: &'static str,
    /// UDP payload bytes in flight.
    pub in_flight: u64,
}

/// The counters of one side of a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(
    clippy::large_enum_variant,
    reason = "there is one for each transfer, and it is copied without allocation"
)]
pub enum Counters {
    /// This side sends.
    Sending(Sending),
    /// This side receives.
    Receiving(ReceiverStats),
}

impl Counters {
    /// Those of a stack at this end; a receiver's with what is known of its host.
    pub fn of(stack: &Stack, end: ObjectEnd, host: Option<HostSample>) -> Self {
        match end {
            ObjectEnd::Sink => Self::Receiving(ReceiverStats::of(stack, host)),
            ObjectEnd::Source => {
                let RateNow(law) = stack.shared::<RateNow>().copied().unwrap_or_default();
                let in_flight = stack.shared::<SendWindow>().map_or(0, |window| window.bytes);
                Self::Sending(Sending {
                    stats: SenderStats::of(stack),
                    rate: law.rate,
                    phase: law.phase,
                    in_flight,
                })
            }
        }
    }
}
