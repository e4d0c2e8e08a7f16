//! `fixed_size`: splits messages into segments that fit a packet, and reassembles them.
//!
//! The segments of a message have equal size, the last one padded if needed, so that they fill batches. A
//! message that fits into one packet is delivered from the receive buffer.

#[cfg(test)]
mod tests;

use std::any::Any;

use haul_base::Bytes;
use haul_stack::{
    Attribute, Batch, BatchEvent, Context, Declaration, Event, EventId, Kind, MicroProtocol, Order, Outgoing,
    Part, ProtocolStats, Registration, Resolution, SharedValue, Submission, U48, configuration,
};

use super::attributes::{MESSAGE, PLACE, SEQUENCE};
use super::deadline::CutEnds;
use super::events::ABANDONED;
use super::reassembly::{Added, Limits, Reassembly, Segment};
use super::received_set::{ReceivedSet, is_abandoned};
use super::sequenced_segment::is_reliable;
use super::stall::StallDetector;
use super::stats::FixedSizeStats;
use super::truncated::expand;
use super::turns::Turns;

/// Bit of `place` that marks the last segment of a message.
pub(crate) const LAST: u32 = 1 << 31;
/// Bits of `place` with the length of the padding that makes the last segment as long as the others, so that
/// it does not end a batch.
const PADDING: std::ops::Range<u32> = 24..31;
/// Bits of `place` with the segment's offset in its message.
const OFFSET: u32 = (1 << PADDING.start) - 1;
/// Upper bound of the parameter `max_message`, in bytes.
const LONGEST: u64 = 16 << 20;
/// Maximum memory of one end for what its peer sends, whatever the recipe: enough to fill a path of 10 Gbit/s
/// and 200 ms.
pub(crate) const MEMORY: Bytes = Bytes(256 << 20);

/// Attributes of every segment.
#[derive(Clone, Copy, Debug)]
struct Attributes {
    message: Attribute<u32>,
    place: Attribute<u32>,
}

#[derive(Debug)]
struct FixedSize {
    attributes: Option<Attributes>,
    /// Longest message that this end segments.
    longest: u32,
    /// Limits of received messages. The ends change parameters one after the other, so messages within the
    /// old limits still arrive.
    limits: Limits,
    /// Allocated by the first message that is longer than a packet.
    reassembly: Option<Box<Reassembly>>,
    /// Highest message ID received.
    newest: u64,
    /// Whether lost segments are retransmitted: those without buffer space then stay unacknowledged, instead
    /// of evicting the oldest message.
    reliable: bool,
    /// Whether the recipe lets urgent messages overtake others.
    priority: bool,
    /// Whether the recipe drops late messages; `cut_ends` tells it the deadlines of segments.
    deadlines: bool,
    cut_ends: Option<SharedValue<CutEnds>>,
    received: Option<SharedValue<ReceivedSet>>,
    abandoned: Option<Event<()>>,
    /// Attribute with the sequence number; only in reliable stacks.
    sequence: Option<Attribute<U48>>,
    turns: Turns,
    stall: StallDetector,
    given_up: u64,
    refused: u64,
}

fn limits(parameters: &FixedSizeConfig) -> Result<Limits, String> {
    let (longest, total) = (parameters.max_message.0, parameters.reassembly);
    if longest == 0 || longest > LONGEST {
        return Err(format!("max_message is from 1B to {}MiB", LONGEST >> 20));
    }
    if total > MEMORY {
        return Err(format!("reassembly is at most {MEMORY}"));
    }
    Ok(Limits::of(longest as usize, total.0 as usize))
}

configuration! {
    /// Parameters of `fixed_size`.
    pub struct FixedSizeConfig: "fixed_size" {
        max_message: Bytes = "64KiB", "maximum message size, up to 16MiB";
        reassembly: Bytes = "4MiB",
            "memory for incomplete messages at the receiver, at least two messages, up to 256MiB";
    }
}

pub(super) fn registration() -> Registration {
    Registration {
        conflicts: &[("object", "one carries messages, the other an object")],
        ..Registration::of::<FixedSizeConfig>(
            1,
            "splits messages into segments and reassembles them",
            |parameters, _| {
                let limits = limits(&parameters.read())?;
                Ok(Box::new(FixedSize {
                    attributes: None,
                    longest: limits.message as u32,
                    limits,
                    reassembly: None,
                    newest: 0,
                    reliable: false,
                    priority: false,
                    deadlines: false,
                    cut_ends: None,
                    received: None,
                    abandoned: None,
                    sequence: None,
                    turns: Turns::default(),
                    stall: StallDetector::default(),
                    given_up: 0,
                    refused: 0,
                }))
            },
        )
    }
}

/// Returns the size of a message's segments if the largest is `full`: as few as possible, all equal but the
/// last.
fn segment_size(len: usize, full: usize) -> usize {
    len.div_ceil(len.div_ceil(full.max(1)).max(1))
}

/// Length of the padding of the last segment of a message with several segments, if it can be encoded.
fn padding(missing: usize, sent: usize) -> usize {
    if sent > 0 && missing < 1 << PADDING.len() { missing } else { 0 }
}

/// Takes a message from the source that must be segmented.
fn pull_long(len: usize, context: &mut Context<'_>) -> bool {
    let mut data = context.pool().get_used(len);
    let now = context.now();
    let written = context.ends().message_source.as_mut().and_then(|source| source.next(now, &mut data));
    let Some(written) = written else {
        context.pool().put(data);
        return false;
    };
    data.resize(written.min(len));
    let id = context.number_messages(1);
    context.queue().push(Outgoing { id, priority: 0, deadline: None, data, sent: 0 });
    true
}

impl FixedSize {
    fn attributes(&self) -> Attributes {
        self.attributes.expect("declared before it is used")
    }

    /// Adds segments of the first message in the queue; `false` if the batch or the queue is exhausted.
    fn cut(&self, batch: &mut Batch<'_>, context: &mut Context<'_>) -> bool {
        let full = batch.max_space();
        let draining = context.is_draining();
        let Some(front) = context.queue().front() else { return false };
        if full == 0 || draining && front.sent == 0 {
            return false;
        }
        let rest = front.data.len() - front.sent;
        let size = segment_size(front.data.len(), full);
        let len = size.min(rest);
        let padding = padding(size - len, front.sent);
        let last = if len == rest { LAST } else { 0 };
        let place = front.sent as u32 | (padding as u32) << PADDING.start | last;
        // Longer than the others of this batch: it starts the next one.
        let Some(i) = batch.push(Kind::DATA, len + padding) else { return false };
        let (from, message, end) = (front.sent, front.id, front.deadline);
        let (body, behind) = batch.payload_mut(i).split_at_mut(len);
        body.copy_from_slice(&front.data[from..from + len]);
        behind.fill(0);
        let attributes = self.attributes();
        batch.set(i, attributes.message, message as u32);
        batch.set(i, attributes.place, place);
        if self.deadlines {
            context.shared(self.cut_ends.expect("declared")).0.push((i, end));
        }
        if let Some(done) = context.queue().sent(len) {
            context.pool().put(done.data);
        }
        true
    }

    /// Takes messages from the source, directly into packets if they fit into one; `true` if one must be
    /// segmented.
    fn pull(&self, batch: &mut Batch<'_>, context: &mut Context<'_>) -> bool {
        let (full, now) = (batch.max_space(), context.now());
        let Some(source) = context.ends().message_source.as_mut() else { return false };
        let expected = source.message_len().min(self.longest as usize);
        if expected > full {
            return full > 0 && pull_long(expected, context);
        }
        // Messages of varying length start a batch each unless they fill a packet: the next one may be
        // longer.
        let wanted = if expected == 0 { full.min(self.longest as usize) } else { expected };
        let packets = batch.push_each(Kind::DATA, wanted, |into| source.next(now, into));
        let (first, attributes) = (context.number_messages(packets.len() as u64), self.attributes());
        let start = packets.start;
        let number = |i| (first + (i - start) as u64) as u32;
        batch.set_each(packets, (attributes.message, attributes.place), |i| (number(i), LAST));
        false
    }

    fn fill(&self, batch: &mut Batch<'_>, context: &mut Context<'_>) {
        loop {
            while self.cut(batch, context) {}
            let idle = context.queue().is_empty() && !context.is_draining();
            if !idle || batch.remaining_packets() == 0 || !self.pull(batch, context) {
                return;
            }
        }
    }

    fn reassembly(&mut self) -> &mut Reassembly {
        let limits = self.limits;
        self.reassembly.get_or_insert_with(|| Box::new(Reassembly::new(limits)))
    }

    /// Number of messages with missing segments.
    fn incomplete(&self) -> usize {
        self.reassembly.as_ref().map_or(0, |reassembly| reassembly.len())
    }

    #[inline]
    fn segment<'b>(&self, batch: &'b Batch<'_>, i: usize) -> Segment<'b> {
        let attributes = self.attributes();
        let message = expand(batch.get(i, attributes.message), self.newest);
        let place = batch.get(i, attributes.place);
        let (offset, last) = ((place & OFFSET) as usize, place & LAST != 0);
        let padding = (place & !LAST) >> PADDING.start;
        let payload = batch.payload(i);
        // More padding than payload leaves nothing, which is then rejected.
        let data = &payload[..payload.len().saturating_sub(padding as usize)];
        let sequence = self.sequence.map_or(0, |sequence| batch.get(i, sequence));
        Segment { message, offset, last, sequence, data }
    }

    /// Takes segments without buffer space out of the batch before they are acknowledged, so that they are
    /// retransmitted. The first missing segment always finds space: some senders retransmit nothing else
    /// before it.
    fn admit(&mut self, batch: &mut Batch<'_>, context: &mut Context<'_>) {
        if self.sequence.is_none() {
            return;
        }
        let mut wanted = self.drop_abandoned(context);
        let mut pending = 0;
        for i in batch.live() {
            let segment = self.segment(batch, i);
            let end = segment.offset + segment.data.len();
            let first = segment.sequence == wanted;
            wanted += u64::from(first);
            // Duplicates are acknowledged once more, and need no space.
            let known = segment.sequence < wanted && !first;
            let is_too_long = end > self.limits.message;
            if known || segment.last && segment.offset == 0 && !is_too_long {
                continue;
            }
            if is_too_long {
                self.refuse(batch, i);
                continue;
            }
            let growth = self.reassembly().growth(segment.message, end);
            if first || self.reassembly().fits(pending + growth) {
                pending += if first { 0 } else { growth };
                self.stall.on_progress();
                continue;
            }
            let abandoned = |known| is_abandoned(known, segment.sequence);
            let abandoned = self.reassembly().newest_of_oldest().is_some_and(abandoned);
            self.refuse(batch, i);
            if abandoned || self.stall.is_stalled(context.now()) {
                self.given_up += u64::from(self.reassembly().give_up_oldest(context.pool()).is_some());
            }
        }
    }

    /// Drops messages of which the sender has given up segments. Returns the sequence number below which
    /// everything has arrived or was given up.
    fn drop_abandoned(&mut self, context: &mut Context<'_>) -> u64 {
        let settled = self.received.map_or(0, |received| context.shared(received).below());
        let Some(reassembly) = &mut self.reassembly else { return settled };
        while reassembly.oldest_lacks().is_some_and(|lacks| lacks < settled) {
            reassembly.give_up_oldest(context.pool());
            self.given_up += 1;
        }
        settled
    }

    fn refuse(&mut self, batch: &mut Batch<'_>, i: usize) {
        self.refused += 1;
        batch.take(i);
    }

    fn receive(&mut self, batch: &mut Batch<'_>, context: &mut Context<'_>) {
        let attributes = self.attributes();
        for i in batch.live() {
            let message = expand(batch.get(i, attributes.message), self.newest);
            let data = batch.payload(i);
            if batch.get(i, attributes.place) == LAST && data.len() <= self.limits.message {
                context.deliver(message, data);
            } else {
                self.collect(i, batch, context);
            }
            self.newest = self.newest.max(message);
        }
        if self.sequence.is_some() {
            // Segments also tell what was given up before them.
            self.drop_abandoned(context);
        }
    }

    fn collect(&mut self, i: usize, batch: &mut Batch<'_>, context: &mut Context<'_>) {
        let segment = self.segment(batch, i);
        if segment.last && segment.offset == 0 && segment.data.len() <= self.limits.message {
            return context.deliver(segment.message, segment.data);
        }
        // Not a violation: the peer may already use a higher limit that has not reached this end.
        if segment.offset + segment.data.len() > self.limits.message {
            return self.refuse(batch, i);
        }
        loop {
            match self.reassembly().add(&segment, context.pool()) {
                Added::Incomplete | Added::Duplicate => return,
                Added::Impossible => return batch.reject(i),
                Added::Complete(data) => {
                    context.deliver(segment.message, &data);
                    return context.pool().put(data);
                }
                Added::NoRoom if self.reassembly().give_up_oldest(context.pool()).is_none() => return,
                Added::NoRoom => self.given_up += 1,
            }
        }
    }
}

impl MicroProtocol for FixedSize {
    fn declare(&mut self, declaration: &mut Declaration<'_>) {
        let (message, place) = (declaration.attribute(MESSAGE), declaration.attribute(PLACE));
        self.attributes = Some(Attributes { message, place });
        self.cut_ends = Some(declaration.shared(CutEnds::default));
        self.received = Some(declaration.shared(ReceivedSet::default));
        self.abandoned = Some(declaration.event(ABANDONED));
    }

    fn bind(&mut self, resolution: &mut Resolution<'_>) {
        if is_reliable(resolution) && !self.reliable {
            // The other segments of these messages are not retransmitted.
            self.given_up += self.incomplete() as u64;
            self.reassembly = None;
        }
        self.reliable = is_reliable(resolution);
        self.sequence = resolution.find_attribute(SEQUENCE).filter(|_| self.reliable);
        self.stall.forgetful = resolution.has("negative_ack");
        self.priority = resolution.has("priority");
        self.deadlines = resolution.has("deadline");
        resolution.on_submit(Order::LAST);
        resolution.on_batch(BatchEvent::FILL, Order::NORMAL);
        if self.reliable {
            resolution.on_batch(BatchEvent::SEGMENT_FROM_NET, Order::FIRST);
            resolution.on_event(self.abandoned.expect("declared before it is used"), Order::NORMAL);
        }
        resolution.on_batch(BatchEvent::SEGMENT_FROM_NET, Order::LATE);
    }

    fn on_start(&mut self, context: &mut Context<'_>) {
        context.set_max_message(self.longest as usize);
    }

    fn on_batch(&mut self, event: BatchEvent, batch: &mut Batch<'_>, context: &mut Context<'_>) {
        if event == BatchEvent::FILL {
            self.fill(batch, context);
        } else if !self.reliable || self.turns.is_second() {
            self.receive(batch, context);
        } else {
            self.admit(batch, context);
        }
    }

    fn on_event(&mut self, _: EventId, _: &mut dyn Any, context: &mut Context<'_>) {
        self.drop_abandoned(context);
    }

    fn on_submit(&mut self, submission: &mut Submission<'_>, _: &mut Context<'_>) {
        if !self.priority {
            submission.priority = 0;
        }
    }

    fn on_parameters(&mut self, parameters: &Part, context: &mut Context<'_>) -> Result<(), String> {
        let new = limits(&parameters.read())?;
        self.longest = new.message as u32;
        // Acknowledged segments keep their space.
        let kept = if self.reliable { self.limits.total } else { 0 };
        self.limits = Limits::of(self.limits.message.max(new.message), new.total.max(kept));
        if let Some(reassembly) = &mut self.reassembly {
            reassembly.set_limits(self.limits);
        }
        context.set_max_message(self.longest as usize);
        Ok(())
    }

    /// Without retransmission a message may stay incomplete for ever, so nothing waits for it.
    fn unfinished(&self) -> usize {
        if self.reliable { self.incomplete() } else { 0 }
    }

    fn unfinished_incoming(&self) -> usize {
        self.unfinished()
    }

    fn statistics(&self, report: &mut dyn FnMut(&dyn ProtocolStats)) {
        report(&FixedSizeStats {
            incomplete: self.incomplete() as u64,
            given_up: self.given_up,
            refused: self.refused,
        });
    }
}
