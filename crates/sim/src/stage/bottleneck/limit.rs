//! Queue limits.

use haul_base::{Bytes, Rate, Span};
use serde::Serialize;

use crate::text::Text;

/// Capacity of a queue, including the unsent part of the packet on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    /// Number of bytes.
    Bytes(Bytes),
    /// Number of packets.
    Packets(u64),
    /// Bytes that the link sends in this time.
    Time(Span),
}

/// Data that a bottleneck has accepted and not yet sent, exact to the byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct StandingQueue {
    /// Bytes not yet sent.
    pub bytes: u64,
    /// Packets not yet completely sent.
    pub packets: u64,
}

impl Limit {
    /// Whether a queue of this length is within the limit.
    pub(super) fn allows(self, queue: StandingQueue, rate: Rate) -> bool {
        match self {
            Self::Bytes(most) => queue.bytes <= most.0,
            Self::Packets(most) => queue.packets <= most,
            Self::Time(most) => queue.bytes <= rate.bytes_in(most),
        }
    }

    /// Whether the limit admits nothing.
    pub(crate) const fn is_zero(self) -> bool {
        match self {
            Self::Bytes(most) => most.0 == 0,
            Self::Packets(most) => most == 0,
            Self::Time(most) => most.as_nanos() == 0,
        }
    }
}

impl Text for Limit {
    const EXPECTED: &'static str =
        "a queue limit with its unit, for example \"1MB\", \"100packets\" or \"50ms\"";

    fn read(text: &str) -> Result<Self, String> {
        let text = text.trim();
        let packets = text.strip_suffix("packets").or_else(|| text.strip_suffix("packet"));
        if let Some(number) = packets {
            let refused = |_| format!("`{text}` is no number of packets; write for example 100packets");
            return number.trim().parse().map(Self::Packets).map_err(refused);
        }
        let bytes = text.parse::<Bytes>().map(Self::Bytes);
        let time = || text.parse::<Span>().map(Self::Time);
        bytes.or_else(|_| time()).map_err(|_| format!("`{text}` is no queue limit; write {}", Self::EXPECTED))
    }

    fn write(&self) -> String {
        match self {
            Self::Bytes(most) => most.write(),
            Self::Packets(most) => format!("{most}packets"),
            Self::Time(most) => most.write(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_bytes_packets_or_times() {
        assert_eq!(Limit::read("1MB"), Ok(Limit::Bytes(Bytes(1_000_000))));
        assert_eq!(Limit::read("100 packets"), Ok(Limit::Packets(100)));
        assert_eq!(Limit::read("50ms"), Ok(Limit::Time(Span::from_millis(50))));
        assert!(Limit::read("100").unwrap_err().contains("100packets"));
        for limit in [Limit::Bytes(Bytes(9)), Limit::Packets(7), Limit::Time(Span::from_nanos(1_001))] {
            assert_eq!(Limit::read(&limit.write()), Ok(limit));
        }
    }
}
