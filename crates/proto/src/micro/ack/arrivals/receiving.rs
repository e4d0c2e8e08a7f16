//! The receiver's side of acknowledgements: what has arrived, and when to acknowledge it.

use std::ops::Range;

use haul_base::{Span, Time};
use haul_stack::{Attribute, Batch, Context, Kind, SharedValue, U48};

use super::wire::{Abandoned, FIXED, Head, choose};
use crate::micro::ranges;
use crate::micro::received_set::ReceivedSet;

/// Maximum number of sequence numbers recorded until the next acknowledgement; the ranges of later ones may
/// have to wait.
const MAX_FRESH: usize = 256;

/// When an acknowledgement is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum When {
    /// As soon as anything has arrived, including ranges beyond gaps.
    AtOnce,
    /// After this many packets or this delay, or at once if something is missing; without ranges.
    Every { packets: u32, delay: Span },
}

/// The newest packet received.
#[derive(Clone, Copy, Debug)]
struct Newest {
    pn: u64,
    sent_at: u32,
    at: Time,
}

/// State of the receiver's side.
#[derive(Debug)]
pub(super) struct Receiving {
    pub(super) when: When,
    newest: Option<Newest>,
    /// The sequence number after the highest received.
    next: u64,
    /// Packets since the last acknowledgement.
    unacknowledged: u32,
    fresh: Vec<u64>,
    chosen: Vec<Range<u64>>,
}

/// Attributes that the receiver reads from a segment.
#[derive(Clone, Copy, Debug)]
pub(super) struct Attributes {
    pub(super) sequence: Attribute<U48>,
    pub(super) sent_at: Attribute<u32>,
    pub(super) ahead: Attribute<u16>,
}

/// What to do after packets have arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    Now,
    At(Time),
}

impl Receiving {
    pub(super) fn new(when: When) -> Self {
        Self { when, newest: None, next: 0, unacknowledged: 0, fresh: Vec::new(), chosen: Vec::new() }
    }

    pub(super) fn take(
        &mut self,
        batch: &Batch<'_>,
        attributes: Attributes,
        received: SharedValue<ReceivedSet>,
        context: &mut Context<'_>,
    ) -> Next {
        let now = context.now();
        let received = context.shared(received);
        let mut in_order = true;
        for i in batch.live() {
            let number = batch.get(i, attributes.sequence);
            received.settle_below(number.saturating_sub(u64::from(batch.get(i, attributes.ahead))));
            in_order &= number >= self.next;
            self.next = self.next.max(number + 1);
            self.note_newest(batch.pn(i), batch.get(i, attributes.sent_at), now);
            if number > received.below() && self.when == When::AtOnce && self.fresh.len() < MAX_FRESH {
                self.fresh.push(number);
            }
            self.unacknowledged += 1;
        }
        in_order &= received.is_whole();
        match self.when {
            When::Every { packets, delay } if in_order && self.unacknowledged < packets => {
                Next::At(now + delay)
            }
            _ => Next::Now,
        }
    }

    /// Segments are renumbered; packets are not.
    pub(super) fn renumber(&mut self) {
        self.fresh.clear();
        self.next = 0;
    }

    fn note_newest(&mut self, pn: u64, sent_at: u32, at: Time) {
        if self.newest.is_none_or(|newest| pn > newest.pn) {
            self.newest = Some(Newest { pn, sent_at, at });
        }
    }

    /// The sender has given up segments. An acknowledgement confirms it.
    pub(super) fn on_abandoned(
        &mut self,
        pn: u64,
        abandoned: Abandoned,
        received: SharedValue<ReceivedSet>,
        context: &mut Context<'_>,
    ) {
        self.note_newest(pn, abandoned.sent_at, context.now());
        context.shared(received).settle_below(abandoned.oldest);
        self.unacknowledged += 1;
    }

    /// Whether there is something to acknowledge.
    pub(super) fn is_due(&self) -> bool {
        self.unacknowledged > 0
    }

    /// Adds an acknowledgement to the batch, if there is something to acknowledge.
    pub(super) fn write(
        &mut self,
        kind: Kind,
        batch: &mut Batch<'_>,
        received: SharedValue<ReceivedSet>,
        context: &mut Context<'_>,
    ) {
        let (true, Some(newest)) = (self.is_due(), self.newest) else { return };
        let now = context.now();
        let received = context.shared(received);
        self.chosen.clear();
        if self.when == When::AtOnce {
            self.fresh.sort_unstable();
            choose(received, &self.fresh, ranges::MAX_RANGES, &mut self.chosen);
        }
        let below = received.below();
        let head = Head { echo: newest.sent_at, delay: now.since(newest.at), newest: newest.pn, below };
        let Some(i) = batch.push(kind, FIXED + self.chosen.len() * ranges::LEN) else { return };
        let (fixed, rest) = batch.payload_mut(i).split_at_mut(FIXED);
        head.write(fixed);
        let used = ranges::write(below, self.chosen.iter().cloned(), rest);
        debug_assert_eq!(used, rest.len(), "the recorded ranges span less than can be encoded");
        self.fresh.clear();
        self.unacknowledged = 0;
    }
}
