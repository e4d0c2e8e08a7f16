//! The buffer of copies.

use std::any::Any;
use std::collections::VecDeque;

use haul_base::Time;
use haul_stack::{
    Attribute, Batch, Buffer, Context, Event, EventId, Kind, MESSAGE_SETTLED, PACKET_HEADER_LEN,
    RETRANSMIT_TIMEOUT, SEND_PERMIT, SendPermit, Settled, SharedValue, StackEvent, U48,
};

use super::super::keep::RetransmitConfig;
use super::super::messages::Ledger;
use crate::micro::deadline::deadline_of;
use crate::micro::events::{Acknowledgement, Discarded, Statement};
use crate::micro::fixed_size::LAST;
use crate::micro::received_set::SPAN;
use crate::micro::scoreboard::{KEPT_PLACES, Scoreboard, SegmentState, Slot};

#[derive(Clone, Copy, Debug)]
pub(super) struct Declared {
    pub(super) scoreboard: SharedValue<Scoreboard>,
    pub(super) acknowledged: Event<Acknowledgement>,
    pub(super) discarded: Event<Discarded>,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Attributes {
    pub(super) sequence: Attribute<U48>,
    /// Message ID and position, if the recipe carries messages.
    pub(super) message: Option<(Attribute<u32>, Attribute<u32>)>,
    /// Remaining lifetime of the message, if the receiver can do without a message.
    pub(super) lifetime: Option<Attribute<u32>>,
}

/// Everything of a packet after its number except the tag, and the size of the whole packet.
#[derive(Debug)]
struct Copy {
    kind: Kind,
    size: u16,
    bytes: Buffer,
    /// Deadline of its message, after which it is not retransmitted.
    end: Option<Time>,
}

/// Maximum window: half of the range that receivers of acknowledgements record.
const LARGEST_WINDOW: u64 = SPAN / 2;

/// The recipe's parameters for copies.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    window: u64,
    memory: usize,
    attempts: u16,
}

impl Limits {
    pub(super) fn read(parameters: &RetransmitConfig) -> Result<Self, String> {
        let (window, attempts) = (parameters.window, parameters.attempts);
        if window > LARGEST_WINDOW {
            return Err(format!("with copies, the window is at most {LARGEST_WINDOW} packets"));
        }
        Ok(Self { window, memory: parameters.memory.0 as usize, attempts })
    }

    /// Number of new packets that may be sent while copies of `bytes` are stored. At least one if there are
    /// none.
    pub(super) fn space(&self, span: u64, bytes: usize, datagram: usize) -> usize {
        let memory = self.memory.saturating_sub(bytes) / datagram.max(1);
        (self.window.saturating_sub(span) as usize).min(memory.max(usize::from(bytes == 0)))
    }
}

/// State of outstanding segments.
#[derive(Debug)]
pub(super) struct RetransmitBuffer {
    pub(super) limits: Limits,
    pub(super) declared: Declared,
    pub(super) attributes: Attributes,
    /// Sequence number of the first copy.
    base: u64,
    kept: VecDeque<Option<Copy>>,
    /// Number of copies.
    pub(super) held: usize,
    /// Bytes of all copies.
    bytes: usize,
    /// Sequence numbers declared lost, in the order of retransmission.
    lost: VecDeque<u64>,
    messages: Ledger,
    /// Outcomes to be reported.
    settled: Vec<Settled>,
    pub(super) given_up: u64,
    /// Bytes of packets in flight; `overhead`: bytes of each packet besides its payload.
    pub(super) in_flight: u64,
    overhead: u64,
}

impl RetransmitBuffer {
    pub(super) fn new(limits: Limits, declared: Declared, attributes: Attributes) -> Self {
        Self {
            limits,
            declared,
            attributes,
            base: 0,
            kept: VecDeque::new(),
            held: 0,
            bytes: 0,
            lost: VecDeque::new(),
            messages: Ledger::default(),
            settled: Vec::new(),
            given_up: 0,
            in_flight: 0,
            overhead: 0,
        }
    }

    fn copy_of(&mut self, sequence: u64) -> Option<&mut Option<Copy>> {
        self.kept.get_mut(usize::try_from(sequence.checked_sub(self.base)?).ok()?)
    }

    /// Drops a copy; returns the packet's size.
    fn drop_copy(&mut self, sequence: u64, context: &mut Context<'_>) -> u64 {
        let Some(copy) = self.copy_of(sequence).and_then(Option::take) else { return 0 };
        self.bytes -= copy.bytes.len();
        context.pool().put(copy.bytes);
        self.held -= 1;
        while self.kept.front().is_some_and(Option::is_none) {
            self.kept.pop_front();
            self.base += 1;
        }
        if self.kept.is_empty() && self.kept.capacity() > KEPT_PLACES {
            self.kept.shrink_to(KEPT_PLACES);
            self.lost.shrink_to(KEPT_PLACES);
        }
        u64::from(copy.size)
    }

    /// Runs `work` with the scoreboard, which is a shared value.
    pub(super) fn with_scoreboard<R>(
        &mut self,
        context: &mut Context<'_>,
        work: impl FnOnce(&mut Self, &mut Scoreboard, &mut Context<'_>) -> R,
    ) -> R {
        let shared = self.declared.scoreboard;
        let mut scoreboard = std::mem::take(context.shared(shared));
        let result = work(self, &mut scoreboard, context);
        scoreboard.set_crowded(self.is_crowded(scoreboard.span()));
        *context.shared(shared) = scoreboard;
        result
    }

    pub(super) fn release_idle(&mut self) {
        self.kept.shrink_to_fit();
        self.lost.shrink_to_fit();
        self.settled.shrink_to_fit();
        self.messages.release_idle();
    }

    /// Whether half of the window or of the memory is in use.
    fn is_crowded(&self, span: u64) -> bool {
        span >= self.limits.window.div_ceil(2) || self.bytes >= self.limits.memory.div_ceil(2)
    }

    /// Reports outcomes of messages, once the scoreboard is in its place again.
    pub(super) fn publish(&mut self, context: &mut Context<'_>) {
        for i in 0..self.settled.len() {
            let mut settled = self.settled[i];
            context.raise(MESSAGE_SETTLED, &mut settled);
            context.emit(StackEvent::Settled { message: settled.message, arrived: settled.arrived });
        }
        self.settled.clear();
    }

    pub(super) fn record(
        &mut self,
        batch: &Batch<'_>,
        scoreboard: &mut Scoreboard,
        context: &mut Context<'_>,
    ) {
        for i in batch.live() {
            let sequence = batch.get(i, self.attributes.sequence);
            if batch.is_resent(i) {
                scoreboard.repeat(sequence, batch.pn(i), context.now());
                self.in_flight += batch.size(i) as u64;
            } else {
                self.keep(sequence, batch, i, scoreboard, context);
            }
        }
    }

    fn keep(
        &mut self,
        sequence: u64,
        batch: &Batch<'_>,
        i: usize,
        scoreboard: &mut Scoreboard,
        context: &mut Context<'_>,
    ) {
        if let Some((message, place)) = self.attributes.message {
            let last = batch.get(i, place) & LAST != 0;
            if !self.messages.add(batch.get(i, message), sequence, last) {
                scoreboard.begin(sequence, batch.pn(i), context.now());
                scoreboard.finish(sequence);
                return;
            }
        }
        if !scoreboard.begin(sequence, batch.pn(i), context.now()) {
            return;
        }
        if self.kept.is_empty() {
            self.base = sequence;
        }
        let payload = batch.payload_range(i);
        let header = batch.layout().data_header_len() - PACKET_HEADER_LEN;
        let bytes = context.pool().copy(&batch.buffer()[payload.start - header..payload.end]);
        self.overhead = batch.layout().data_overhead() as u64;
        let place = (sequence - self.base) as usize;
        self.kept.resize_with(place + 1, || None);
        self.bytes += bytes.len();
        let end =
            self.attributes.lifetime.and_then(|lifetime| deadline_of(batch.get(i, lifetime), context.now()));
        self.kept[place] = Some(Copy { kind: batch.kind(i), size: batch.size(i) as u16, bytes, end });
        self.held += 1;
        self.in_flight += batch.size(i) as u64;
    }

    /// Adds lost segments to the batch, oldest loss first, while they fit.
    pub(super) fn repeat(&mut self, batch: &mut Batch<'_>, context: &mut Context<'_>) {
        let shared = self.declared.scoreboard;
        while let Some(&sequence) = self.lost.front() {
            let is_lost =
                context.shared(shared).get(sequence).is_some_and(|slot| slot.state == SegmentState::Lost);
            if let Some(Some(copy)) = self.copy_of(sequence).filter(|_| is_lost)
                && !push_copy(batch, copy)
            {
                let impossible = batch.is_empty() && copy.size > context.path().datagram;
                if !impossible {
                    return;
                }
                // The path now carries only smaller packets.
                self.with_scoreboard(context, |copies, scoreboard, context| {
                    copies.give_up(sequence, scoreboard, context);
                });
            }
            self.lost.pop_front();
        }
    }

    fn permit(&self, permit: &mut SendPermit, context: &mut Context<'_>) {
        let span = context.shared(self.declared.scoreboard).span();
        let room = self.limits.space(span, self.bytes, permit.datagram);
        permit.at_most(room.saturating_add(self.lost.len()));
    }

    fn acknowledge(
        &mut self,
        ack: &mut Acknowledgement,
        scoreboard: &mut Scoreboard,
        context: &mut Context<'_>,
    ) {
        for sequence in scoreboard.base()..ack.below.min(scoreboard.next()) {
            self.arrived(sequence, ack, scoreboard, context);
        }
        for word in 0..ack.words.len() {
            let statement = ack.words[word];
            self.state(statement, ack, scoreboard, context);
        }
        ack.outcome.in_flight = self.in_flight;
        ack.outcome.nothing_outstanding = scoreboard.open() == 0;
    }

    fn state(
        &mut self,
        statement: Statement,
        ack: &mut Acknowledgement,
        scoreboard: &mut Scoreboard,
        context: &mut Context<'_>,
    ) {
        let Statement { first, received, known } = statement;
        for bit in bits(known & received) {
            self.arrived(first + bit, ack, scoreboard, context);
        }
        let Some(boundary) = ack.loss else { return };
        for bit in bits(known & !received) {
            let is_passed = |slot: &Slot| boundary.is_passed(slot.pn, slot.sent.as_wrapped_micros());
            let lost = scoreboard.get(first + bit).is_some_and(is_passed);
            if lost && let Some(bytes) = self.mark_lost(first + bit, scoreboard, context) {
                ack.outcome.lost_packets += 1;
                ack.outcome.lost_bytes += bytes.saturating_sub(self.overhead);
            }
        }
    }

    fn arrived(
        &mut self,
        sequence: u64,
        ack: &mut Acknowledgement,
        scoreboard: &mut Scoreboard,
        context: &mut Context<'_>,
    ) {
        let Some(before) = scoreboard.finish(sequence) else { return };
        let bytes = self.drop_copy(sequence, context);
        self.remove_in_flight(before, bytes);
        ack.outcome.acked_packets += 1;
        ack.outcome.acked_bytes += bytes.saturating_sub(self.overhead);
        if let Some(message) = self.messages.arrived(sequence) {
            self.settled.push(Settled { message, arrived: true });
        }
    }

    fn remove_in_flight(&mut self, before: Slot, bytes: u64) {
        if before.state == SegmentState::Waiting {
            self.in_flight = self.in_flight.saturating_sub(bytes);
        }
    }

    /// Declares a segment lost; returns its bytes if it was not. Gives it up after the last attempt, or if
    /// its message is too late.
    fn mark_lost(
        &mut self,
        sequence: u64,
        scoreboard: &mut Scoreboard,
        context: &mut Context<'_>,
    ) -> Option<u64> {
        if !scoreboard.mark_lost(sequence) {
            return None;
        }
        // A retransmission waits in the path's queue like other packets.
        let path = context.path();
        let expected_departure = context.now() + path.rtt.saturating_sub(path.min_rtt);
        let copy = self.copy_of(sequence).and_then(|copy| copy.as_ref());
        let (bytes, end) = copy.map_or((0, None), |copy| (u64::from(copy.size), copy.end));
        self.in_flight = self.in_flight.saturating_sub(bytes);
        let tries = scoreboard.get(sequence).map_or(0, |slot| slot.tries);
        let is_exhausted = self.limits.attempts > 0 && tries >= self.limits.attempts;
        if is_exhausted || end.is_some_and(|end| end <= expected_departure) {
            self.give_up(sequence, scoreboard, context);
        } else {
            self.lost.push_back(sequence);
        }
        Some(bytes)
    }

    /// Gives up a segment and the rest of its message.
    fn give_up(&mut self, sequence: u64, scoreboard: &mut Scoreboard, context: &mut Context<'_>) {
        let range = match self.messages.fail(sequence) {
            Some((message, range)) => {
                self.settled.push(Settled { message, arrived: false });
                range
            }
            None => sequence..sequence + 1,
        };
        self.given_up += 1;
        self.finish_all(range, scoreboard, context);
    }

    fn finish_all(
        &mut self,
        range: std::ops::Range<u64>,
        scoreboard: &mut Scoreboard,
        context: &mut Context<'_>,
    ) {
        for sequence in range {
            if let Some(before) = scoreboard.finish(sequence) {
                let bytes = self.drop_copy(sequence, context);
                self.remove_in_flight(before, bytes);
            }
        }
    }

    fn lose_all(&mut self, which: &[u64], scoreboard: &mut Scoreboard, context: &mut Context<'_>) {
        for &sequence in which {
            self.mark_lost(sequence, scoreboard, context);
        }
        if which.is_empty() {
            for sequence in scoreboard.base()..scoreboard.next() {
                self.mark_lost(sequence, scoreboard, context);
            }
        }
    }

    /// Drops a message that another micro-protocol has given up.
    fn abandon(&mut self, message: u64, scoreboard: &mut Scoreboard, context: &mut Context<'_>) {
        let first = self.messages.first_of(message);
        if let Some((_, range)) = first.and_then(|first| self.messages.fail(first)) {
            self.finish_all(range, scoreboard, context);
        }
    }

    fn discard(&mut self, below: u64, scoreboard: &mut Scoreboard, context: &mut Context<'_>) {
        let range = scoreboard.base()..below.min(scoreboard.next());
        for sequence in range.clone() {
            let _ = self.messages.arrived(sequence);
        }
        self.finish_all(range, scoreboard, context);
    }

    pub(super) fn on_event(&mut self, event: EventId, argument: &mut dyn Any, context: &mut Context<'_>) {
        let declared = self.declared;
        if let Some(permit) = SEND_PERMIT.of(event, argument) {
            return self.permit(permit, context);
        }
        self.with_scoreboard(context, |copies, scoreboard, context| {
            if let Some(ack) = declared.acknowledged.of(event, argument) {
                copies.acknowledge(ack, scoreboard, context);
            } else if let Some(missing) = RETRANSMIT_TIMEOUT.of(event, argument) {
                copies.lose_all(&missing.sequence_numbers, scoreboard, context);
            } else if let Some(discarded) = declared.discarded.of(event, argument) {
                copies.discard(discarded.below, scoreboard, context);
            } else if let Some(settled) = MESSAGE_SETTLED.of(event, argument)
                && !settled.arrived
            {
                copies.abandon(settled.message, scoreboard, context);
            }
        });
        self.publish(context);
    }
}

/// Adds a copy to the batch with its original attributes; returns whether it fits.
fn push_copy(batch: &mut Batch<'_>, copy: &Copy) -> bool {
    let header = batch.layout().data_header_len() - PACKET_HEADER_LEN;
    let Some(i) = batch.push_again(copy.kind, copy.bytes.len() - header) else { return false };
    let end = PACKET_HEADER_LEN + copy.bytes.len();
    batch.packet_mut(i)[PACKET_HEADER_LEN..end].copy_from_slice(&copy.bytes);
    true
}

/// The set bits of a word, lowest first.
fn bits(mut word: u64) -> impl Iterator<Item = u64> {
    std::iter::from_fn(move || {
        let bit = (word != 0).then(|| u64::from(word.trailing_zeros()))?;
        word &= word - 1;
        Some(bit)
    })
}
