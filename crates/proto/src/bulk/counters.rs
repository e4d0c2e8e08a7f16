//! Counters of one end of a transfer.

use haul_base::{HostSample, Rate};
use haul_stack::Stack;

use super::{ReceiverStats, SenderStats};
use crate::micro::shared::{RateNow, SendWindow};

/// End of an object's transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ObjectEnd {
    /// The sender.
    Source,
    /// The receiver.
    Sink,
}

/// Counters of the sending end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sending {
    /// The machine's counters.
    pub stats: SenderStats,
    /// Current rate of the controller.
    pub rate: Rate,
    /// Current phase of the controller.
    pub phase: &'static str,
    /// UDP payload bytes in flight.
    pub in_flight: u64,
}

/// Counters of either end of a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(
    clippy::large_enum_variant,
    reason = "there is one for each transfer, and it is copied without allocation"
)]
pub enum Counters {
    /// Counters of the sending end.
    Sending(Sending),
    /// Counters of the receiving end.
    Receiving(ReceiverStats),
}

impl Counters {
    /// Reads the counters of a stack at this end; a receiver's include the load of its host.
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
