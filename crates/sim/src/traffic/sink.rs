//! Destination of open-loop traffic.

use haul_base::Time;

use crate::world::{Arrival, Node, Outbox};

/// Receives and counts packets.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sink {
    packets: u64,
    wire_bytes: u64,
}

impl Sink {
    /// Creates an empty sink.
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns the number of packets received.
    pub fn packets(&self) -> u64 {
        self.packets
    }
}

impl Node for Sink {
    fn on_arrival(&mut self, _: Time, arrival: &mut Arrival<'_>, _: &mut Outbox<'_>) {
        self.packets += u64::from(arrival.packets);
        self.wire_bytes += arrival.wire_bytes;
    }

    fn on_deadline(&mut self, _: Time, _: &mut Outbox<'_>) {}

    fn deadline(&self) -> Option<Time> {
        None
    }

    fn goodput_bytes(&self) -> Option<u64> {
        Some(self.wire_bytes)
    }
}
