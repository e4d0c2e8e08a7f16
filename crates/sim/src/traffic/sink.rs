//! Where traffic without an answer ends.

use haul_base::Time;

use crate::world::{Arrival, Node, Outbox};

/// Takes whatever comes and counts it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sink {
    packets: u64,
    wire_bytes: u64,
}

impl Sink {
    /// A sink that has seen nothing.
    pub fn new() -> Self {
        Self::default()
    }

    /// Packets that arrived.
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
