//! The network card's receive ring, and the softirq that empties it.

use std::collections::VecDeque;

use haul_base::{Span, Time};

use super::Incoming;

/// Merging of packets that lie one behind the other in the ring (GRO).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Gro {
    /// Most packets of one buffer (`UDP_GRO_CNT_MAX`: 64).
    pub packets: u32,
    /// Most bytes of one buffer (65,536 with headers).
    pub bytes: u32,
}

impl Default for Gro {
    fn default() -> Self {
        Self { packets: 64, bytes: 65_507 }
    }
}

/// Size and costs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NicConfig {
    /// Slots of the ring.
    pub slots: u32,
    /// Whether an arrival of many packets takes one slot (a virtual device that carries a super-packet whole), not
    /// one each.
    pub carries_batches: bool,
    /// Merging, if switched on.
    pub gro: Option<Gro>,
    /// Core time for each packet.
    pub per_packet: Span,
    /// Core time for each skb that goes up the stack.
    pub per_skb: Span,
}

impl Default for NicConfig {
    /// 1,024 slots; 1 us for a packet that goes up the stack alone.
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

/// The ring and the group of packets that the softirq has in hand.
#[derive(Clone, Debug)]
pub struct Nic {
    config: NicConfig,
    ring: VecDeque<Incoming>,
    used: u32,
    in_hand: Vec<Incoming>,
    done_at: Option<Time>,
}

impl Nic {
    /// An empty ring.
    pub fn new(config: NicConfig) -> Self {
        Self { config, ring: VecDeque::new(), used: 0, in_hand: Vec::new(), done_at: None }
    }

    /// What it was made with.
    pub fn config(&self) -> &NicConfig {
        &self.config
    }

    fn slots_for(&self, arrival: &Incoming) -> u32 {
        if self.config.carries_batches { 1 } else { arrival.packets }
    }

    /// Puts an arrival into the ring; false if there are not enough slots.
    pub fn offer(&mut self, arrival: Incoming) -> bool {
        let slots = self.slots_for(&arrival);
        if self.used + slots > self.config.slots {
            return false;
        }
        self.used += slots;
        self.ring.push_back(arrival);
        true
    }

    /// Packets in the ring and in hand.
    pub fn packets(&self) -> u64 {
        self.ring.iter().chain(&self.in_hand).map(|arrival| u64::from(arrival.packets)).sum()
    }

    /// When the group in hand has gone through, if there is one.
    pub fn done_at(&self) -> Option<Time> {
        self.done_at
    }

    /// Takes the next group out of the ring, if the softirq has nothing in hand. Its slots are free at once.
    ///
    /// # Returns
    /// The core time that the group costs; answer with [`Nic::started`].
    pub fn take(&mut self) -> Option<Span> {
        if self.done_at.is_some() {
            return None;
        }
        let first = self.ring.pop_front()?;
        self.used -= self.slots_for(&first);
        let (mut packets, mut bytes) = (first.packets, first.bytes);
        self.in_hand.push(first);
        while let Some(next) =
            self.ring.front().copied().filter(|next| self.merges(&first, next, packets, bytes))
        {
            self.ring.pop_front();
            self.used -= self.slots_for(&next);
            packets += next.packets;
            bytes += next.bytes;
            self.in_hand.push(next);
        }
        Some(self.config.per_packet * u64::from(packets) + self.config.per_skb)
    }

    /// Whether `next` goes into the buffer that `first` began: same flow, packets of the same size.
    fn merges(&self, first: &Incoming, next: &Incoming, packets: u32, bytes: u32) -> bool {
        self.config.gro.is_some_and(|gro| {
            next.flow == first.flow
                && u64::from(next.bytes) * u64::from(first.packets)
                    == u64::from(first.bytes) * u64::from(next.packets)
                && packets + next.packets <= gro.packets
                && bytes + next.bytes <= gro.bytes
        })
    }

    /// The group in hand will have gone through at `done`.
    pub fn started(&mut self, done: Time) {
        self.done_at = Some(done);
    }

    /// The group has gone through: what was in it.
    pub fn finish(&mut self, into: &mut Vec<Incoming>) {
        self.done_at = None;
        into.append(&mut self.in_hand);
    }
}
