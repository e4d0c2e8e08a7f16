//! The network card's receive ring, and the softirq that empties it.

use std::collections::VecDeque;

use haul_base::{Span, Time};

use super::Incoming;

/// Limits for merging adjacent packets in the ring (GRO).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Gro {
    /// Maximum packets per buffer (`UDP_GRO_CNT_MAX`: 64).
    pub packets: u32,
    /// Maximum bytes per buffer (65,536 with headers).
    pub bytes: u32,
}

impl Default for Gro {
    fn default() -> Self {
        Self { packets: 64, bytes: 65_507 }
    }
}

/// Ring size and processing costs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NicConfig {
    /// Number of slots in the ring.
    pub slots: u32,
    /// Whether a batch occupies one slot, as on a virtual device that carries GSO packets whole, rather than
    /// one slot per packet.
    pub carries_batches: bool,
    /// Merging limits; `None` disables GRO.
    pub gro: Option<Gro>,
    /// Core time per packet.
    pub per_packet: Span,
    /// Core time per skb passed up the stack.
    pub per_skb: Span,
}

impl Default for NicConfig {
    /// 1,024 slots; 1 us for a packet passed up the stack singly.
    fn default() -> Self {
        Self {
            slots: 1_024,
            carries_batches: false,
            gro: None,
            per_packet: Span::from_nanos(200),
            per_skb: Span::from_nanos(800),
        }
    }
}

/// The ring, and the group of packets that the softirq is processing.
#[derive(Clone, Debug)]
pub struct Nic {
    config: NicConfig,
    ring: VecDeque<Incoming>,
    used: u32,
    current: Vec<Incoming>,
    done_at: Option<Time>,
}

impl Nic {
    /// Creates an empty ring.
    pub fn new(config: NicConfig) -> Self {
        Self { config, ring: VecDeque::new(), used: 0, current: Vec::new(), done_at: None }
    }

    /// Returns the configuration.
    pub fn config(&self) -> &NicConfig {
        &self.config
    }

    fn slots_for(&self, arrival: &Incoming) -> u32 {
        if self.config.carries_batches { 1 } else { arrival.packets }
    }

    /// Puts an arrival into the ring. Returns false if there are not enough free slots.
    pub fn offer(&mut self, arrival: Incoming) -> bool {
        let slots = self.slots_for(&arrival);
        if self.used + slots > self.config.slots {
            return false;
        }
        self.used += slots;
        self.ring.push_back(arrival);
        true
    }

    /// Returns the number of packets in the ring and in processing.
    pub fn packets(&self) -> u64 {
        self.ring.iter().chain(&self.current).map(|arrival| u64::from(arrival.packets)).sum()
    }

    /// Returns when the softirq finishes the current group, if there is one.
    pub fn done_at(&self) -> Option<Time> {
        self.done_at
    }

    /// Takes the next group out of the ring if the softirq is idle. Its slots are free immediately.
    ///
    /// # Returns
    /// The core time that the group costs. The caller must then call [`Nic::started`].
    pub fn take(&mut self) -> Option<Span> {
        if self.done_at.is_some() {
            return None;
        }
        let first = self.ring.pop_front()?;
        self.used -= self.slots_for(&first);
        let (mut packets, mut bytes) = (first.packets, first.bytes);
        self.current.push(first);
        while let Some(next) =
            self.ring.front().copied().filter(|next| self.merges(&first, next, packets, bytes))
        {
            self.ring.pop_front();
            self.used -= self.slots_for(&next);
            packets += next.packets;
            bytes += next.bytes;
            self.current.push(next);
        }
        Some(self.config.per_packet * u64::from(packets) + self.config.per_skb)
    }

    /// Whether `next` can be merged into the buffer started by `first`: same flow and size, within limits.
    fn merges(&self, first: &Incoming, next: &Incoming, packets: u32, bytes: u32) -> bool {
        self.config.gro.is_some_and(|gro| {
            next.flow == first.flow
                && u64::from(next.bytes) * u64::from(first.packets)
                    == u64::from(first.bytes) * u64::from(next.packets)
                && packets + next.packets <= gro.packets
                && bytes + next.bytes <= gro.bytes
        })
    }

    /// Sets when the softirq finishes the current group.
    pub fn started(&mut self, done: Time) {
        self.done_at = Some(done);
    }

    /// Finishes the current group and appends its packets to `into`.
    pub fn finish(&mut self, into: &mut Vec<Incoming>) {
        self.done_at = None;
        into.append(&mut self.current);
    }
}
