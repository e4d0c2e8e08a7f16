//! Open-loop traffic, which does not react to the network.

mod aggregate;
mod sink;
mod udp;

use haul_base::{Rate, Span};

pub use aggregate::{Aggregate, AggregateSpec};
pub use sink::Sink;
pub use udp::{Pattern, UdpSource, UdpSourceSpec};

/// Spaces equal packets at a rate, exactly over any number of them.
#[derive(Clone, Copy, Debug)]
struct Spacing {
    work: u64,
    rate: u64,
    remainder: u64,
}

impl Spacing {
    fn new(bytes: u32, rate: Rate) -> Self {
        Self { work: u64::from(bytes) * 8_000_000_000, rate: rate.as_bps().max(1), remainder: 0 }
    }

    fn next(&mut self) -> Span {
        let work = self.work + self.remainder;
        self.remainder = work % self.rate;
        Span::from_nanos(work / self.rate)
    }

    /// Returns the mean time between packets.
    fn mean(&self) -> Span {
        Span::from_nanos(self.work / self.rate)
    }
}
