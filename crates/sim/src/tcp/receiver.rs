//! TCP receiver: cumulative and selective acknowledgements, delayed as RFC 5681 permits.

use std::collections::VecDeque;

use haul_base::{Deadline, DeadlineReason, Ecn, Machine, PathId, RangeSet, Received, Span, Time, Transmit};

use super::sender::TcpEvent;
use super::wire::{ACK_BLOCKS, Ack, read_data};

/// Parameters of delayed acknowledgements.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TcpReceiverConfig {
    /// Maximum wait for a second segment: 40 ms on Linux (`TCP_DELACK_MIN`).
    pub delay: Span,
    /// Segments per acknowledgement: 2 (RFC 5681, 4.2).
    pub every: u32,
    /// Number of initial segments that are each acknowledged immediately, to keep slow start fast (16 on
    /// Linux, `TCP_MAX_QUICKACKS`).
    pub quick: u32,
}

impl Default for TcpReceiverConfig {
    fn default() -> Self {
        Self { delay: Span::from_millis(40), every: 2, quick: 16 }
    }
}

/// The receiver of one flow.
#[derive(Clone, Debug)]
pub struct TcpReceiver {
    config: TcpReceiverConfig,
    next: u64,
    out_of_order: RangeSet,
    /// One segment of each block, most recent first (RFC 2018, section 4).
    recent: VecDeque<u64>,
    unacknowledged: u32,
    due: bool,
    delayed_until: Option<Time>,
    segments: u64,
    duplicates: u64,
    rejected: u64,
    path: PathId,
}

impl TcpReceiver {
    /// Creates a receiver that expects segment 0.
    pub fn new(config: TcpReceiverConfig) -> Self {
        Self {
            config,
            next: 0,
            out_of_order: RangeSet::new(),
            recent: VecDeque::new(),
            unacknowledged: 0,
            due: false,
            delayed_until: None,
            segments: 0,
            duplicates: 0,
            rejected: 0,
            path: PathId::default(),
        }
    }

    /// Returns the number of segments received in order.
    pub fn in_order(&self) -> u64 {
        self.next
    }

    /// Returns the number of distinct segments received.
    pub fn segments(&self) -> u64 {
        self.segments
    }

    /// Returns the number of segments received again.
    pub fn duplicates(&self) -> u64 {
        self.duplicates
    }

    /// Returns the number of datagrams that were not segments.
    pub fn rejected(&self) -> u64 {
        self.rejected
    }

    fn take(&mut self, segment: u64) {
        if segment < self.next || self.out_of_order.containing(segment).is_some() {
            self.duplicates += 1;
            self.due = true;
            return;
        }
        self.segments += 1;
        self.unacknowledged += 1;
        let gaps = !self.out_of_order.is_empty();
        if segment == self.next {
            self.next += 1;
            if let Some(block) = self.out_of_order.containing(self.next) {
                self.next = block.end;
                self.out_of_order.remove(block);
            }
        } else {
            self.out_of_order.insert(segment..segment + 1);
            self.remember(segment);
        }
        // Immediately while segments are missing (RFC 5681, 4.2), and at the start.
        let quick = self.segments <= u64::from(self.config.quick);
        if gaps || !self.out_of_order.is_empty() || quick || self.unacknowledged >= self.config.every {
            self.due = true;
        }
    }

    fn remember(&mut self, segment: u64) {
        let Some(block) = self.out_of_order.containing(segment) else { return };
        self.recent.retain(|other| !block.contains(other));
        self.recent.push_front(segment);
        self.recent.truncate(4 * ACK_BLOCKS);
    }

    fn acknowledgement(&mut self) -> Ack {
        let (next, out_of_order) = (self.next, &self.out_of_order);
        self.recent.retain(|&segment| segment >= next);
        let mut ack = Ack::new(next);
        for block in
            self.recent.iter().filter_map(|&segment| out_of_order.containing(segment)).take(ACK_BLOCKS)
        {
            ack.push(block);
        }
        ack
    }
}

impl Machine for TcpReceiver {
    type Event = TcpEvent;

    fn on_receive(&mut self, now: Time, batch: &mut Received<'_>) {
        self.path = batch.path;
        for datagram in batch.data.chunks(batch.stride.max(1)) {
            match read_data(datagram) {
                Some(segment) => self.take(segment),
                None => self.rejected += 1,
            }
        }
        if self.unacknowledged > 0 && !self.due && self.delayed_until.is_none() {
            self.delayed_until = Some(now + self.config.delay);
        }
    }

    fn on_deadline(&mut self, now: Time) {
        if self.delayed_until.is_some_and(|until| until <= now) {
            self.due = true;
        }
    }

    fn poll_transmit(&mut self, now: Time, slot: &mut [u8]) -> Option<Transmit> {
        if !std::mem::take(&mut self.due) {
            return None;
        }
        self.unacknowledged = 0;
        self.delayed_until = None;
        let len = self.acknowledgement().write(slot)?;
        Some(Transmit { len, segment_size: len, ecn: Ecn::NotEct, path: self.path, release: now })
    }

    fn poll_event(&mut self) -> Option<TcpEvent> {
        None
    }

    fn deadline(&self) -> Option<Deadline> {
        self.delayed_until.map(|at| Deadline { at, reason: DeadlineReason::Feedback })
    }
}
