//! The receiving side: checks the offsets of segments, passes their bytes to the sink, and sets the
//! flow-control limit.

use std::any::Any;
use std::ops::Range;

use haul_base::Piece;
use haul_stack::{
    Attribute, Batch, Context, Declaration, Event, EventId, Kind, Order, Resolution, SEND_PERMIT,
    SharedValue, StackEvent, U48, choice,
};
use haul_wire::packet::{MAX_OFFSET, MAX_SEQ, PART_BODY_LEN, PartBody};

use super::boundaries::{Boundaries, Mismatch, Row};
use super::parts::{PacketExtent, Parts};
use crate::micro::attributes::SEQUENCE;
use crate::micro::bitmap_ack::received::{Arrival, ReceivedBitmap};
use crate::micro::events::{OutgoingReport, PART_ARRIVED, PartArrived, REPORT, REPORT_SOON};
use crate::micro::stats::ObjectStats;

/// Increase of the limit in bytes that triggers a report.
const LIMIT_STEP: u64 = 4 << 20;
/// Capacity for the pieces of a batch, some of them split because parts of their segment have already
/// arrived.
const PIECES: usize = 128;

/// Handles of shared values and events.
#[derive(Clone, Copy, Debug)]
struct Bindings {
    offset: Attribute<U48>,
    received: SharedValue<ReceivedBitmap>,
    report: Event<OutgoingReport>,
    report_soon: Event<()>,
    part: Event<PartArrived>,
}

choice! {
    /// Whether the receiver reserves buffer space for gaps.
    #[derive(Default)]
    pub enum Gaps {
        /// Reserves space: everything below the limit can always be accepted.
        #[default]
        Held = "held",
        /// The limit exceeds the bytes received by the free space. Data that fills gaps may find no space.
        Free = "free",
    }
}

/// State of the receiving side.
#[derive(Debug, Default)]
pub(super) struct ObjectReceiver {
    gaps: Gaps,
    /// Packets that arrived without space for their bytes or another gap.
    without_room: u64,
    bindings: Option<Bindings>,
    sequence: Option<Attribute<U48>>,
    parts: Parts,
    pub(super) boundaries: Boundaries,
    /// Segments of the current batch and their offsets, if they are contiguous.
    row: Option<Row>,
    pieces: Vec<Piece>,
    /// Sequence number of the last segment, and the object's length.
    end: Option<(u64, u64)>,
    /// Highest sequence number accepted, plus one.
    highest: u64,
    /// Flow-control limit: the sender may send bytes below this offset.
    limit: u64,
    /// Highest end offset of any segment: the object does not end before it.
    furthest: u64,
    bytes: u64,
    complete: bool,
}

/// Converts a range of a segment's payload to a range of the buffer in which the payload starts at `at`.
fn shift(range: &Range<u64>, at: usize) -> Range<usize> {
    at + range.start as usize..at + range.end as usize
}

impl ObjectReceiver {
    pub(super) fn new(gaps: Gaps) -> Self {
        Self { gaps, ..Self::default() }
    }

    /// Returns the flow-control limit.
    fn flow_limit(&self, context: &mut Context<'_>) -> u64 {
        let limit = sink_limit(context);
        match self.gaps {
            Gaps::Held => limit.min(MAX_OFFSET),
            // The sum falls as gaps are filled, but the limit must not.
            Gaps::Free => {
                let missing = self.furthest.saturating_sub(self.bytes);
                limit.saturating_add(missing).min(MAX_OFFSET).max(self.limit)
            }
        }
    }

    /// Whether the sink accepts that many bytes now.
    fn has_space(&self, bytes: usize, context: &mut Context<'_>) -> bool {
        self.gaps == Gaps::Held || sink_limit(context).saturating_sub(self.bytes) >= bytes as u64
    }

    pub(super) fn declare(&mut self, declaration: &mut Declaration<'_>, offset: Attribute<U48>) {
        self.bindings = Some(Bindings {
            offset,
            received: declaration.shared(ReceivedBitmap::new),
            report: declaration.event(REPORT),
            report_soon: declaration.event(REPORT_SOON),
            part: declaration.event(PART_ARRIVED),
        });
    }

    pub(super) fn bind(&mut self, resolution: &mut Resolution<'_>) {
        self.sequence = Some(resolution.attribute(SEQUENCE));
        resolution.on_event(self.bindings().report, Order::NORMAL);
    }

    fn bindings(&self) -> Bindings {
        self.bindings.expect("declared before it is used")
    }

    pub(super) fn start(&mut self, context: &mut Context<'_>) {
        // A sink that frees space in order needs the gaps filled before it has space for anything else.
        if !context.ends().object_sink.as_ref().is_some_and(|sink| sink.takes_any_order()) {
            self.gaps = Gaps::Held;
        }
        self.limit = self.flow_limit(context);
    }

    /// Rejects invalid segments.
    pub(super) fn admit(&mut self, batch: &mut Batch<'_>, context: &mut Context<'_>) {
        let fields = (self.sequence.expect("bound before it is used"), self.bindings().offset);
        let has_sink = context.ends().object_sink.is_some();
        self.pieces.clear();
        self.row = None;
        self.pieces.reserve(PIECES);
        if !self.has_space(batch.live_bytes(), context) {
            self.refuse(batch.live().remaining() as u64, context);
            return batch.live().for_each(|i| batch.take(i));
        }
        if !(has_sink && self.admit_row(batch, fields)) {
            self.pieces.clear();
            self.admit_singly(batch, fields, has_sink, context);
        }
    }

    /// Admits a whole batch at once, if it is like most: a run of valid segments before the object's end.
    fn admit_row(&mut self, batch: &Batch<'_>, fields: (Attribute<U48>, Attribute<U48>)) -> bool {
        if !batch.is_row() || self.end.is_some() || self.boundaries.is_full() {
            return false;
        }
        let (full, last) = (batch.payload_range(0), batch.payload_range(batch.len() - 1));
        let (mut start, len) = (full.start, full.len());
        // Offsets: maximum over all but the last one, and of the last one, which alone may be shorter.
        let (mut highest, mut before, mut newest) = (self.highest, None, None);
        let (mut next, mut follows) = (None, true);
        let pieces = &mut self.pieces;
        batch.values(fields).for_each(|(seq, offset)| {
            highest = highest.max(seq + 1);
            before = before.max(newest.replace(offset));
            follows &= next.replace((seq + 1, offset + len as u64)).is_none_or(|next| next == (seq, offset));
            pieces.push(Piece { offset, range: start..start + len });
            start += batch.stride();
        });
        let ends = [before.map(|at| at + len as u64), newest.map(|at| at + last.len() as u64)];
        let furthest = ends.into_iter().flatten().fold(0, u64::max);
        let is_possible = highest <= MAX_SEQ + 1 && furthest <= self.limit && len > 0 && !last.is_empty();
        let from = pieces.first().map_or(0, |piece| piece.offset);
        if let Some(piece) = pieces.last_mut().filter(|_| is_possible) {
            let end = piece.offset + last.len() as u64;
            let segments = next.filter(|_| follows).map(|(seq, _)| seq - batch.len() as u64..seq);
            self.row = segments.map(|segments| Row { segments, offsets: from..end });
            piece.range = last;
            self.highest = highest;
            self.furthest = self.furthest.max(furthest);
        }
        is_possible
    }

    fn admit_singly(
        &mut self,
        batch: &mut Batch<'_>,
        (sequence, offset): (Attribute<U48>, Attribute<U48>),
        has_sink: bool,
        context: &mut Context<'_>,
    ) {
        for i in batch.live() {
            let (seq, from) = (batch.get(i, sequence), batch.get(i, offset));
            let range = batch.payload_range(i);
            let len = range.len() as u64;
            let fin = batch.kind(i) == Kind::DATA_FIN;
            if !self.has_place(seq) {
                self.refuse(1, context);
                batch.take(i);
                continue;
            }
            let is_valid = has_sink && seq <= MAX_SEQ && (fin || len > 0);
            if !is_valid || !self.is_acceptable(seq, from + len, fin) {
                batch.reject(i);
                continue;
            }
            self.highest = self.highest.max(seq + 1);
            self.furthest = self.furthest.max(from + len);
            if fin {
                self.end = Some((seq, from + len));
            }
            self.pieces.push(Piece { offset: from, range });
        }
    }

    /// Counts packets that are treated as lost, for the sender to know of their arrival.
    fn refuse(&mut self, packets: u64, context: &mut Context<'_>) {
        self.without_room += packets;
        context.shared(self.bindings().received).without_room += packets;
    }

    /// Whether a segment can be recorded: with too many gaps, those that would add another count as lost.
    fn has_place(&self, seq: u64) -> bool {
        !self.boundaries.is_full() || self.boundaries.touches(seq)
    }

    /// Whether a segment is below the flow-control limit and consistent with what is known of the object's
    /// end.
    fn is_acceptable(&self, seq: u64, end: u64, fin: bool) -> bool {
        end <= self.limit
            && match self.end {
                Some((last, len)) => seq <= last && end <= len && (!fin || (seq, end) == (last, len)),
                None => !fin || (seq + 1 >= self.highest && end >= self.furthest),
            }
    }

    /// Delivers the bytes of the segments that are still live, which are new.
    pub(super) fn deliver(&mut self, batch: &Batch<'_>, context: &mut Context<'_>) {
        let all_are_new = batch.live().remaining() == self.pieces.len();
        let joined = match self.row.take().filter(|_| all_are_new) {
            Some(row) => self.boundaries.join(row),
            None => self.join_singly(batch),
        };
        if let Err(mismatch) = joined {
            self.pieces.clear();
            context.fail(mismatch.reason());
            return;
        }
        if all_are_new && self.parts.is_empty() {
            self.bytes += self.pieces.iter().map(|piece| piece.range.len() as u64).sum::<u64>();
            // Only the last segment of an object may be empty.
            if self.pieces.last().is_some_and(|piece| piece.range.is_empty()) {
                self.pieces.pop();
            }
        } else {
            self.gather(batch);
        }
        self.deliver_part(batch, context);
    }

    /// Records where each new segment starts and ends.
    fn join_singly(&mut self, batch: &Batch<'_>) -> Result<(), Mismatch> {
        let fields = (self.sequence.expect("bound before it is used"), self.bindings().offset);
        batch.live().zip(batch.values(fields)).try_for_each(|(i, (seq, from))| {
            let end = from + batch.payload_range(i).len() as u64;
            self.boundaries.join(Row { segments: seq..seq + 1, offsets: from..end })
        })
    }

    /// Collects the new pieces of the segments.
    fn gather(&mut self, batch: &Batch<'_>) {
        let sequence = self.sequence.expect("bound before it is used");
        let offset = self.bindings().offset;
        self.pieces.clear();
        for i in batch.live() {
            let (from, range) = (batch.get(i, offset), batch.payload_range(i));
            let extent = PacketExtent { offset: from, len: range.len() as u64 };
            match self.parts.take_missing(batch.get(i, sequence), extent) {
                None => self.push_piece(from, range),
                Some(missing) => {
                    for gap in missing {
                        self.push_piece(from + gap.start, shift(&gap, range.start));
                    }
                }
            }
        }
    }

    fn push_piece(&mut self, offset: u64, range: Range<usize>) {
        if !range.is_empty() {
            self.bytes += range.len() as u64;
            self.pieces.push(Piece { offset, range });
        }
    }

    fn deliver_part(&mut self, batch: &Batch<'_>, context: &mut Context<'_>) {
        if !self.pieces.is_empty() {
            if let Some(sink) = &mut context.ends().object_sink {
                sink.deliver(batch.buffer(), &self.pieces);
            }
            self.pieces.clear();
        }
        let Some((last, len)) = self.end.filter(|_| !self.complete) else { return };
        if context.shared(self.bindings().received).complete_below() > last {
            if let Err(mismatch) = self.boundaries.ends_at(last, len) {
                context.fail(mismatch.reason());
                return;
            }
            self.complete = true;
            if let Some(sink) = &mut context.ends().object_sink {
                sink.complete(len);
            }
            context.emit(StackEvent::Complete(len));
            context.raise(self.bindings().report_soon, &mut ());
        }
    }

    /// Handles a part of a segment: delivers its bytes at once, and counts the segment when all parts have
    /// arrived. Returns `None` if the part is invalid.
    pub(super) fn on_part(&mut self, batch: &Batch<'_>, i: usize, context: &mut Context<'_>) -> Option<()> {
        let bindings = self.bindings();
        let part = PartBody::parse(batch.payload(i)).ok()?;
        let end = part.offset + u64::from(part.total_len);
        if context.ends().object_sink.is_none() || !self.is_acceptable(part.seq, end, part.fin) {
            return None;
        }
        let received = context.shared(bindings.received);
        let duplicate = received.contains(part.seq);
        if !received.reaches(part.seq) {
            return None;
        }
        let skip = u64::from(part.skip);
        let bytes = skip..skip + (batch.payload(i).len() - PART_BODY_LEN) as u64;
        let has_place = duplicate || self.has_place(part.seq) && self.parts.has_room(part.seq, &bytes);
        if !has_place || !self.has_space(batch.size(i), context) {
            self.refuse(1, context);
            return Some(());
        }
        let (pn, size) = (batch.pn(i), batch.size(i));
        let mut arrived = PartArrived { pn, sent_at: part.timestamp, size, duplicate, gap: false };
        if !duplicate {
            self.furthest = self.furthest.max(end);
            arrived.gap =
                self.take_part(&part, bytes, batch.payload_range(i).start + PART_BODY_LEN, context)?;
        }
        context.raise(bindings.part, &mut arrived);
        self.deliver_part(batch, context);
        Some(())
    }

    /// Takes the new ones of a part's `bytes`, which start at `at` in the buffer. Returns whether this
    /// completes its segment and shows that an earlier one is missing; `None` if the part contradicts others.
    fn take_part(
        &mut self,
        part: &PartBody,
        bytes: Range<u64>,
        at: usize,
        context: &mut Context<'_>,
    ) -> Option<bool> {
        let &PartBody { seq, offset, skip, fin, .. } = part;
        let whole = PacketExtent { offset, len: u64::from(part.total_len) };
        for gap in self.parts.insert(seq, whole, bytes)? {
            let here = gap.start - u64::from(skip)..gap.end - u64::from(skip);
            self.push_piece(offset + gap.start, shift(&here, at));
        }
        if !self.parts.take_complete(seq) {
            return Some(false);
        }
        let end = offset + whole.len;
        if let Err(mismatch) = self.boundaries.join(Row { segments: seq..seq + 1, offsets: offset..end }) {
            self.pieces.clear();
            context.fail(mismatch.reason());
            return Some(false);
        }
        self.highest = self.highest.max(seq + 1);
        if fin {
            self.end = Some((seq, end));
        }
        Some(context.shared(self.bindings().received).insert(seq) == Arrival::New { gap: true })
    }

    pub(super) fn on_event(&mut self, event: EventId, argument: &mut dyn Any, context: &mut Context<'_>) {
        if SEND_PERMIT.is(event) {
            self.watch_limit(context);
        } else if let Some(report) = self.bindings().report.of(event, argument) {
            self.limit = self.flow_limit(context);
            report.limit = self.limit;
        }
    }

    /// Requests a report when the limit has risen by a step, so that a slow sink does not cause a packet per
    /// write.
    fn watch_limit(&self, context: &mut Context<'_>) {
        if !self.complete && self.flow_limit(context).saturating_sub(self.limit) >= LIMIT_STEP {
            context.raise(self.bindings().report_soon, &mut ());
        }
    }

    pub(super) fn count(&self, stats: &mut ObjectStats) {
        stats.bytes_delivered = self.bytes;
        stats.without_room = self.without_room;
        stats.length = self.end.map(|(_, len)| len);
    }
}

/// Returns how many bytes the sink can accept in total, from the start of the object.
fn sink_limit(context: &mut Context<'_>) -> u64 {
    context.ends().object_sink.as_mut().map_or(0, |sink| sink.limit())
}
