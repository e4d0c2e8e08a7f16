//! `fixed_size`: messages are cut into segments that fit a packet, and put together again.
//!
//! The segments of a message are of equal size, the last one padded if need be, so that they fill batches; a message
//! that fits is one packet, and is delivered where it lies.

#[cfg(test)]
mod tests;

use haul_base::Bytes;
use haul_stack::{
    Attribute, Batch, BatchEvent, Context, Declaration, Kind, MicroProtocol, Order, Outgoing, Parameters,
    ProtocolStats, Registration, Resolution, SharedValue, Submission, U48, configuration,
};

use super::arrived::{Arrived, is_abandoned};
use super::attributes::{MESSAGE, PLACE, SEQUENCE};
use super::deadline::CutEnds;
use super::reassembly::{Added, Limits, Reassembly, Segment};
use super::sequenced_segment::{FirstMissing, is_reliable};
use super::stall::StallDetector;
use super::stats::FixedSizeStats;
use super::truncated::expand;
use super::turns::Turns;

/// The bit of `place` that marks the last segment of a message.
pub(crate) const LAST: u32 = 1 << 31;
/// Seven bits of `place`: zeros behind the last segment, so that it is as long as the others and does not end a batch.
const PADDING: std::ops::Range<u32> = 24..31;
/// The other bits: the segment's offset in its message.
const OFFSET: u32 = (1 << PADDING.start) - 1;
/// The longest message that can be asked for, bytes.
const LONGEST: u64 = 16 << 20;

/// What every segment says of itself.
#[derive(Clone, Copy, Debug)]
struct Attributes {
    message: Attribute<u32>,
    place: Attribute<u32>,
}

#[derive(Debug)]
struct FixedSize {
    attributes: Option<Attributes>,
    /// The longest message that this end cuts.
    longest: u32,
    /// What it takes. The ends change parameters one after the other: what is cut by the old ones still comes.
    limits: Limits,
    /// Made by the first message that is longer than a packet.
    reassembly: Option<Box<Reassembly>>,
    /// The highest message number that has come.
    newest: u64,
    /// What is lost comes again: what finds no room must then stay unacknowledged, instead of pushing out the oldest.
    reliable: bool,
    /// Whether the recipe lets urgent messages overtake others.
    priority: bool,
    /// Whether the recipe drops what is too late, and where it learns what is being cut.
    deadlines: bool,
    cut_ends: Option<SharedValue<CutEnds>>,
    /// The sequence number that is waited for most.
    first_missing: Option<SharedValue<FirstMissing>>,
    arrived: Option<SharedValue<Arrived>>,
    /// Where the sequence number stands; only in reliable stacks.
    sequence: Option<Attribute<U48>>,
    turns: Turns,
    stall: StallDetector,
    given_up: u64,
    refused: u64,
}

fn limits(parameters: &FixedSizeConfig) -> Result<Limits, String> {
    let (longest, total) = (parameters.max_message.0, parameters.reassembly.0);
    if longest == 0 || longest > LONGEST {
        return Err(format!("max_message is from 1B to {}MiB", LONGEST >> 20));
    }
    if total > u64::from(u32::MAX) {
        return Err("reassembly is at most 4GiB".to_owned());
    }
    Ok(Limits::of(longest as usize, total as usize))
}

configuration! {
    /// Parameters of `fixed_size`.
    pub struct FixedSizeConfig: "fixed_size" {
        max_message: Bytes = "64KiB", "the longest message, up to 16MiB";
        reassembly: Bytes = "4MiB", "memory for incomplete messages at the receiver, two at least";
    }
}

pub(super) fn registration() -> Registration {
    Registration {
        conflicts: &[("object", "one carries messages, the other an object")],
        ..Registration::of::<FixedSizeConfig>(
            1,
            "cuts messages into segments and puts them together",
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
                    first_missing: None,
                    arrived: None,
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

/// The size of a message's segments if the largest is `full`: as many as must be, all equal but the last.
fn segment_size(len: usize, full: usize) -> usize {
    len.div_ceil(len.div_ceil(full.max(1)).max(1))
}

/// Zeros behind the last segment of a message that takes several, if so few can be told.
fn padding(missing: usize, sent: usize) -> usize {
    if sent > 0 && missing < 1 << PADDING.len() { missing } else { 0 }
}

/// A message of the source that has to be cut.
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

    /// Cuts segments of the first message in the queue; `false` if the batch or the queue has no more.
    fn cut(&self, batch: &mut Batch<'_>, context: &mut Context<'_>) -> bool {
        let full = batch.full_room();
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
        // Longer than the others of this batch: it begins the next one.
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

    /// Takes messages from the source, straight into packets if they fit one; `true` if one waits to be cut.
    fn pull(&self, batch: &mut Batch<'_>, context: &mut Context<'_>) -> bool {
        let (full, now) = (batch.full_room(), context.now());
        let Some(source) = context.ends().message_source.as_mut() else { return false };
        let expected = source.message_len().min(self.longest as usize);
        if expected > full {
            return full > 0 && pull_long(expected, context);
        }
        // Messages of any length begin a batch each unless they fill it: the next one may be longer.
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
            if !idle || batch.packets_left() == 0 || !self.pull(batch, context) {
                return;
            }
        }
    }

    fn reassembly(&mut self) -> &mut Reassembly {
        let limits = self.limits;
        self.reassembly.get_or_insert_with(|| Box::new(Reassembly::new(limits)))
    }

    /// Messages of which segments are missing.
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
        // More padding than payload leaves nothing, and nothing fits nowhere.
        let data = &payload[..payload.len().saturating_sub(padding as usize)];
        let sequence = self.sequence.map_or(0, |sequence| batch.get(i, sequence));
        Segment { message, offset, last, sequence, data }
    }

    /// What finds no room must not be acknowledged: it comes again when there is some. The segment that is missing
    /// first always finds room: some senders repeat nothing else before it has come.
    fn admit(&mut self, batch: &mut Batch<'_>, context: &mut Context<'_>) {
        let Some(first_missing) = self.first_missing.filter(|_| self.sequence.is_some()) else { return };
        // All below have come or never will.
        let settled = self.arrived.map_or(0, |arrived| context.shared(arrived).below());
        self.drop_abandoned(settled, context);
        let mut wanted = context.shared(first_missing).0.max(settled);
        let mut pending = 0;
        for i in batch.live() {
            let segment = self.segment(batch, i);
            let end = segment.offset + segment.data.len();
            let first = segment.sequence == wanted;
            wanted += u64::from(first);
            // What has come before is acknowledged once more, and takes no room.
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

    /// Gives up messages of which the sender has given up segments.
    fn drop_abandoned(&mut self, settled: u64, context: &mut Context<'_>) {
        let Some(reassembly) = &mut self.reassembly else { return };
        while reassembly.oldest_lacks().is_some_and(|lacks| lacks < settled) {
            reassembly.give_up_oldest(context.pool());
            self.given_up += 1;
        }
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
    }

    fn collect(&mut self, i: usize, batch: &mut Batch<'_>, context: &mut Context<'_>) {
        let segment = self.segment(batch, i);
        if segment.last && segment.offset == 0 && segment.data.len() <= self.limits.message {
            return context.deliver(segment.message, segment.data);
        }
        // No offence: the other end may know of a longer limit that has not reached this one.
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
        self.first_missing = Some(declaration.shared(FirstMissing::default));
        self.arrived = Some(declaration.shared(Arrived::default));
    }

    fn bind(&mut self, resolution: &mut Resolution<'_>) {
        self.reliable = is_reliable(resolution);
        self.sequence = resolution.find_attribute(SEQUENCE).filter(|_| self.reliable);
        self.stall.forgetful = resolution.has("negative_ack");
        self.priority = resolution.has("priority");
        self.deadlines = resolution.has("deadline");
        resolution.on_submit(Order::LAST);
        resolution.on_batch(BatchEvent::FILL, Order::NORMAL);
        if self.reliable {
            resolution.on_batch(BatchEvent::SEGMENT_FROM_NET, Order::FIRST);
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

    fn on_submit(&mut self, submission: &mut Submission<'_>, _: &mut Context<'_>) {
        if !self.priority {
            submission.priority = 0;
        }
    }

    fn on_parameters(&mut self, parameters: &Parameters, context: &mut Context<'_>) -> Result<(), String> {
        let new = limits(&parameters.read())?;
        self.longest = new.message as u32;
        // What has been acknowledged keeps its room.
        let kept = if self.reliable { self.limits.total } else { 0 };
        self.limits = Limits::of(self.limits.message.max(new.message), new.total.max(kept));
        if let Some(reassembly) = &mut self.reassembly {
            reassembly.set_limits(self.limits);
        }
        context.set_max_message(self.longest as usize);
        Ok(())
    }

    /// Without repetition, what is incomplete may stay so for ever, and is not waited for.
    fn unfinished(&self) -> usize {
        if self.reliable { self.incomplete() } else { 0 }
    }

    fn unfinished_incoming(&self) -> usize {
        self.unfinished()
    }

    fn statistics(&self, tell: &mut dyn FnMut(&dyn ProtocolStats)) {
        tell(&FixedSizeStats {
            incomplete: self.incomplete() as u64,
            given_up: self.given_up,
            refused: self.refused,
        });
    }
}
