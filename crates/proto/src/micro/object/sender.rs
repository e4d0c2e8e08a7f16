//! The sending side: chooses the next segments, and detects when the whole object has arrived.

use std::any::Any;

use haul_base::Time;
use haul_stack::{
    Attribute, Available, Batch, Context, Declaration, Event, EventId, Kind, Order, Resolution, SEND_PERMIT,
    SendPermit, SharedValue, SourceWait, StackEvent, U48,
};

use crate::micro::events::{DELIVERED, PEER_REPORT, PeerReport};
use crate::micro::shared::{ChunkNow, Clock, SendWindow, WaitingFor};
use crate::micro::stats::ObjectStats;

/// Handles of shared values and events.
#[derive(Clone, Copy, Debug)]
struct Bindings {
    offset: Attribute<U48>,
    send_window: SharedValue<SendWindow>,
    clock: SharedValue<Clock>,
    chunk: SharedValue<ChunkNow>,
    peer_report: Event<PeerReport>,
    delivered: Event<()>,
}

/// The next segment.
struct Next {
    offset: u64,
    len: usize,
    fin: bool,
}

/// State of the sending side.
#[derive(Debug)]
pub(super) struct ObjectSender {
    bindings: Option<Bindings>,
    chunk: u64,
    /// End of the current chunk.
    chunk_end: u64,
    /// Flow-control limit: the receiver accepts bytes below this offset.
    limit: u64,
    /// The source's last answer; the source is asked again once it is used up.
    available: Available,
    next_offset: u64,
    fin_sent: bool,
    delivered: bool,
}

impl ObjectSender {
    pub(super) fn new(chunk: u64, first_limit: u64) -> Self {
        Self {
            bindings: None,
            chunk: chunk.max(1),
            chunk_end: 0,
            limit: first_limit,
            available: Available { upto: 0, end: false },
            next_offset: 0,
            fin_sent: false,
            delivered: false,
        }
    }

    pub(super) fn declare(&mut self, declaration: &mut Declaration<'_>, offset: Attribute<U48>) {
        self.bindings = Some(Bindings {
            offset,
            send_window: declaration.shared(SendWindow::default),
            clock: declaration.shared(Clock::default),
            chunk: declaration.shared(ChunkNow::default),
            peer_report: declaration.event(PEER_REPORT),
            delivered: declaration.event(DELIVERED),
        });
    }

    pub(super) fn bind(&self, resolution: &mut Resolution<'_>) {
        resolution.on_event(SEND_PERMIT, Order::EARLY);
        resolution.on_event(self.bindings().peer_report, Order::LATE);
    }

    fn bindings(&self) -> Bindings {
        self.bindings.expect("declared before it is used")
    }

    pub(super) fn start(&self, now: Time, context: &mut Context<'_>) {
        context.shared(self.bindings().clock).start(now);
    }

    pub(super) fn set_chunk(&mut self, chunk: u64) {
        self.chunk = chunk.max(1);
    }

    /// Chooses the next segment, of at most `largest` bytes.
    fn next(&mut self, largest: usize, room: u64, context: &mut Context<'_>) -> Result<Next, WaitingFor> {
        if self.fin_sent {
            return Err(WaitingFor::Acknowledgement);
        }
        if room == 0 {
            return Err(WaitingFor::Window);
        }
        let offset = self.next_offset;
        if offset >= self.chunk_end {
            let number = offset / self.chunk;
            self.chunk_end = (number + 1) * self.chunk;
            *context.shared(self.bindings().chunk) = ChunkNow(number);
        }
        let target = (offset + largest as u64).min(self.chunk_end);
        if target >= self.available.upto && !self.available.end {
            let source = context.ends().object_source.as_mut().ok_or(WaitingFor::Source)?;
            self.available = source.available();
        }
        let available = self.available;
        let end = target.min(available.upto);
        let fin = available.end && end == available.upto;
        if end > self.limit {
            return Err(WaitingFor::Receiver);
        }
        // A short segment only where the object or a chunk ends, or where the source cannot wait.
        let short = !fin && end < target;
        if short && (end == offset || !context.ends().object_source.as_mut().is_some_and(|s| s.is_urgent())) {
            return Err(WaitingFor::Source);
        }
        Ok(Next { offset, len: (end - offset) as usize, fin })
    }

    /// Returns the number of full segments that can be sent without further checks: not the last one of a
    /// chunk, of the object or of what the source has available.
    fn full_segments(&self, largest: usize, room: u64) -> u64 {
        let (offset, largest) = (self.next_offset, (largest as u64).max(1));
        let end = self.chunk_end.min(self.limit).min(self.available.upto.saturating_sub(1));
        let fit = end.saturating_sub(offset) / largest;
        if self.fin_sent { 0 } else { fit.min(room) }
    }

    /// Adds full segments without further checks; returns how many.
    fn fill_row(
        &mut self,
        batch: &mut Batch<'_>,
        (largest, room): (usize, u64),
        context: &mut Context<'_>,
    ) -> u64 {
        let most = self.full_segments(largest, room);
        let Some(source) = context.ends().object_source.as_mut().filter(|_| most > 0) else { return 0 };
        let (first, mut next) = (self.next_offset, self.next_offset);
        let end = first + most * largest as u64;
        let added = batch.push_each(Kind::DATA, largest, |into| {
            if next == end {
                return None;
            }
            source.read(next, into);
            next += largest as u64;
            Some(largest)
        });
        let (start, count) = (added.start, added.len() as u64);
        let place = |i: usize| first + ((i - start) * largest) as u64;
        batch.set_each(added, self.bindings().offset, place);
        self.next_offset = next;
        count
    }

    /// Adds new segments after the repeated ones.
    pub(super) fn fill(&mut self, batch: &mut Batch<'_>, context: &mut Context<'_>) {
        let bindings = self.bindings();
        // Parts of segments are sent in batches of their own.
        if context.is_draining() || (!batch.is_empty() && !batch.is_data()) {
            return;
        }
        let mut room = context.shared(bindings.send_window).room;
        let largest = batch.max_space();
        while batch.space().is_some() || batch.is_empty() {
            room -= self.fill_row(batch, (largest, room), context);
            if !batch.is_empty() && batch.space().is_none() {
                return;
            }
            let next = match self.next(largest, room, context) {
                Ok(next) => next,
                Err(reason) => {
                    if batch.is_empty() {
                        note_wait(reason, bindings.clock, context);
                    }
                    return;
                }
            };
            let kind = if next.fin { Kind::DATA_FIN } else { Kind::DATA };
            let Some(i) = batch.push(kind, next.len) else { return };
            batch.set(i, bindings.offset, next.offset);
            if let Some(source) = &mut context.ends().object_source {
                source.read(next.offset, batch.payload_mut(i));
            }
            self.next_offset = next.offset + next.len as u64;
            self.fin_sent = next.fin;
            room -= 1;
        }
    }

    /// Handles an event of the sending side; returns whether the receiving side need not see it.
    pub(super) fn on_event(
        &mut self,
        event: EventId,
        argument: &mut dyn Any,
        context: &mut Context<'_>,
    ) -> bool {
        if let Some(permit) = SEND_PERMIT.of(event, argument) {
            self.on_permit(permit, context);
            return false;
        }
        let Some(report) = self.bindings().peer_report.of(event, argument) else { return false };
        let (now, arrived, rtt) = (context.now(), context.arrival().at, context.path().rtt);
        context.shared(self.bindings().clock).on_received(now, arrived, rtt);
        if let Some(newest) = report.newest {
            self.limit = self.limit.max(newest.limit);
        }
        if self.fin_sent && !self.delivered && report.outcome.nothing_outstanding {
            self.on_delivered(context);
        }
        true
    }

    fn on_permit(&self, permit: &mut SendPermit, context: &mut Context<'_>) {
        if self.delivered {
            let now = context.now();
            context.shared(self.bindings().clock).wait(now, WaitingFor::Acknowledgement);
        }
        if self.delivered || context.ends().object_source.is_none() {
            permit.at_most(0);
        }
    }

    fn on_delivered(&mut self, context: &mut Context<'_>) {
        self.delivered = true;
        if let Some(source) = &mut context.ends().object_source {
            source.release(self.next_offset);
        }
        context.emit(StackEvent::Delivered);
        context.raise(self.bindings().delivered, &mut ());
    }

    pub(super) fn count(&self, stats: &mut ObjectStats) {
        stats.bytes_sent = self.next_offset;
    }
}

/// Records a wait. A source that is working counts as work of the sender; it may also wait for the receiver.
fn note_wait(mut reason: WaitingFor, clock: SharedValue<Clock>, context: &mut Context<'_>) {
    let now = context.now();
    if let (WaitingFor::Source, Some(source)) = (reason, &mut context.ends().object_source) {
        reason = match source.waits_for() {
            SourceWait::Storage => WaitingFor::Source,
            SourceWait::Work => WaitingFor::Work,
            SourceWait::Receiver => WaitingFor::Requests,
        };
    }
    context.shared(clock).wait(now, reason);
}
