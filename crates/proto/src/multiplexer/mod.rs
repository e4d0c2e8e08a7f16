//! Streams and messages of one end of a connection (`streams` in its recipe): handles the peer's frames,
//! queues frames to be sent, and collects changes for waiting tasks. The layer below delivers messages
//! exactly once, in any order.

mod reassembly;
mod send_buffer;

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::mem::replace;

use haul_wire::stream_frame::{Frame, StreamId};

pub use self::reassembly::Reassembly;
pub use self::send_buffer::SendBuffer;
use crate::micro::StreamLimits;

/// Flow-control cost of a message in addition to its bytes.
const MESSAGE_COST: u64 = 64;
/// Number of streams that one end can open: numbers are not reused.
const NUMBERS: u32 = 1 << 31;
/// Maximum number of gaps in all streams together. Each gap has a packet in flight, and `retransmit` with
/// copies has no more in flight.
const MAX_GAPS: usize = 32_768;

/// Protocol violation by the peer.
pub type Violation = &'static str;

/// A frame to be sent as soon as possible.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum PendingFrame {
    /// Flow-control limit of messages.
    MessageLimit,
    /// Number of streams that the peer may open.
    Streams,
    /// Flow-control limit of a stream.
    StreamLimit(StreamId),
    /// The application stopped reading a stream.
    Stop(StreamId),
    /// A stream was reset.
    Reset(StreamId),
    /// End of a stream, at this offset.
    Last(StreamId, u64),
}

/// The peer has reset or stopped the stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Aborted;

#[derive(Debug)]
enum Incoming {
    Open(Reassembly),
    /// Reset by the peer, which the reader does not know yet.
    Reset,
    /// The application stopped reading; further data is dropped.
    Stopped,
    Finished,
}

#[derive(Debug)]
struct Stream {
    incoming: Incoming,
    /// Bytes sent, and flow-control limit.
    sent: u64,
    limit: u64,
    /// Neither finished nor reset.
    sends: bool,
}

/// Messages of the application. Each costs its bytes plus [`MESSAGE_COST`].
#[derive(Debug, Default)]
struct Messages {
    /// Received messages with their numbers in the layer below.
    received: VecDeque<(u64, Vec<u8>)>,
    /// Costs of messages received and taken, and the limit announced to the peer.
    received_cost: u64,
    taken_cost: u64,
    advertised: u64,
    /// Costs of messages sent, and the peer's limit.
    sent: u64,
    limit: u64,
}

/// Conditions that a task can wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Wait {
    /// A message to read.
    Message,
    /// Permission to send a message.
    MessageRoom,
    /// A stream opened by the peer.
    Stream,
    /// Permission to open a stream.
    Permit,
    /// No frame is pending.
    Flushed,
    /// Data or the end of a stream.
    Bytes(StreamId),
    /// Permission to send data of a stream.
    SendSpace(StreamId),
}

/// Multiplexer: see the module documentation. A method that returns `None` would have to wait.
#[derive(Debug)]
pub struct Multiplexer {
    /// Whether this end has opened the connection.
    initiator: bool,
    limits: StreamLimits,
    streams: HashMap<StreamId, Stream>,
    /// Streams opened by this end, and their limit.
    opened: u32,
    may_open: u32,
    /// Streams opened by the peer, and their limit.
    peer_opened: u32,
    permitted: u32,
    to_accept: VecDeque<StreamId>,
    messages: Messages,
    /// Sum of [`Reassembly::gaps`].
    gaps: usize,
    pending: BTreeSet<PendingFrame>,
    /// Frames taken from `pending` that are not sent yet.
    unsent: usize,
    /// Changes since the last [`take_changed`](Self::take_changed).
    changed: Vec<Wait>,
}

impl Multiplexer {
    /// Creates a multiplexer with the recipe's limits.
    pub fn new(initiator: bool, limits: StreamLimits) -> Self {
        let messages = Messages { advertised: limits.window, limit: limits.window, ..Messages::default() };
        Self {
            initiator,
            limits,
            streams: HashMap::new(),
            opened: 0,
            may_open: limits.most,
            peer_opened: 0,
            permitted: limits.most,
            to_accept: VecDeque::new(),
            messages,
            gaps: 0,
            pending: BTreeSet::new(),
            unsent: 0,
            changed: Vec::new(),
        }
    }

    /// Returns the number of streams that this end has opened and that are not finished yet.
    fn open_count(&self) -> usize {
        let finished = self.permitted - self.limits.most;
        self.streams.len() - (self.peer_opened - finished) as usize
    }

    fn add(&mut self, number: StreamId) {
        let window = self.limits.window;
        let incoming = Incoming::Open(Reassembly::new(window));
        let stream = Stream { incoming, sent: 0, limit: window, sends: true };
        self.streams.insert(number, stream);
    }

    /// Returns the changes: tasks that wait for them may try again.
    pub fn take_changed(&mut self) -> impl Iterator<Item = Wait> {
        self.changed.drain(..)
    }

    /// Opens a stream, once both ends have finished enough earlier ones.
    pub fn open(&mut self) -> Option<StreamId> {
        let has_space = self.open_count() < self.limits.most as usize && self.opened < self.may_open;
        has_space.then(|| {
            let number = stream_id(self.opened, self.initiator);
            self.opened += 1;
            self.add(number);
            number
        })
    }

    /// Returns the next stream opened by the peer.
    pub fn accept(&mut self) -> Option<StreamId> {
        self.to_accept.pop_front()
    }

    /// Returns the next message, with its number in the layer below.
    pub fn message(&mut self) -> Option<(u64, Vec<u8>)> {
        let (window, messages) = (self.limits.window, &mut self.messages);
        let (id, data) = messages.received.pop_front()?;
        messages.taken_cost += cost(&data);
        if messages.taken_cost + window - messages.advertised >= window / 4 {
            self.pending.insert(PendingFrame::MessageLimit);
        }
        Some((id, data))
    }

    /// Reserves flow-control credit for a message, which is then sent, or returned with
    /// [`unreserve`](Self::unreserve).
    pub fn reserve(&mut self, data: &[u8]) -> Option<()> {
        let sent = self.messages.sent + cost(data);
        (sent <= self.messages.limit).then(|| self.messages.sent = sent)
    }

    /// Returns the credit of a message that was not sent.
    pub fn unreserve(&mut self, data: &[u8]) {
        self.messages.sent -= cost(data);
        self.changed.push(Wait::MessageRoom);
    }

    /// Returns `Some` if no frame is pending.
    pub fn flushed(&self) -> Option<()> {
        (self.pending.is_empty() && self.unsent == 0).then_some(())
    }

    /// Reads bytes of a stream; 0 at its end.
    pub fn read(&mut self, number: StreamId, into: &mut [u8]) -> Option<Result<usize, Aborted>> {
        let Some(stream) = self.streams.get_mut(&number) else { return Some(Ok(0)) };
        match &mut stream.incoming {
            Incoming::Open(bytes) => {
                let before = bytes.ranges();
                let read = bytes.pull(into);
                self.gaps -= before - bytes.ranges();
                if bytes.is_at_end() {
                    self.finish_incoming(number);
                    return Some(Ok(read));
                }
                if !bytes.has_end() && bytes.new_limit().is_some() {
                    self.pending.insert(PendingFrame::StreamLimit(number));
                }
                (read > 0 || into.is_empty()).then_some(Ok(read))
            }
            Incoming::Reset => {
                self.finish_incoming(number);
                Some(Err(Aborted))
            }
            Incoming::Stopped | Incoming::Finished => Some(Ok(0)),
        }
    }

    /// Returns the offset of the next bytes of a stream, and how many may be sent.
    pub fn space(&mut self, number: StreamId) -> Option<Result<(u64, u64), Aborted>> {
        match self.streams.get(&number).filter(|stream| stream.sends) {
            None => Some(Err(Aborted)),
            Some(stream) => {
                let room = stream.limit - stream.sent;
                (room > 0).then_some(Ok((stream.sent, room)))
            }
        }
    }

    /// Records that bytes of a stream were sent.
    pub fn on_sent(&mut self, number: StreamId, len: usize) {
        if let Some(stream) = self.streams.get_mut(&number) {
            stream.sent += len as u64;
        }
    }

    /// Ends the outgoing direction of a stream. Returns false if the stream was reset or stopped before.
    pub fn finish(&mut self, number: StreamId) -> bool {
        self.end_outgoing(number, |stream| PendingFrame::Last(number, stream.sent))
    }

    /// Resets the outgoing direction of a stream.
    pub fn reset(&mut self, number: StreamId) {
        self.end_outgoing(number, |_| PendingFrame::Reset(number));
    }

    fn end_outgoing(&mut self, number: StreamId, pending: impl FnOnce(&Stream) -> PendingFrame) -> bool {
        let Some(stream) = self.streams.get_mut(&number).filter(|stream| stream.sends) else { return false };
        stream.sends = false;
        self.changed.push(Wait::SendSpace(number));
        self.pending.insert(pending(stream));
        self.remove_finished(number);
        true
    }

    /// Stops reading a stream.
    pub fn stop(&mut self, number: StreamId) {
        let Some(stream) = self.streams.get_mut(&number) else { return };
        self.changed.push(Wait::Bytes(number));
        match &stream.incoming {
            Incoming::Open(bytes) if !bytes.has_end() => {
                self.gaps -= bytes.ranges();
                stream.incoming = Incoming::Stopped;
                self.pending.insert(PendingFrame::Stop(number));
            }
            Incoming::Open(_) | Incoming::Reset => self.finish_incoming(number),
            Incoming::Stopped | Incoming::Finished => {}
        }
    }

    fn finish_incoming(&mut self, number: StreamId) {
        if let Some(stream) = self.streams.get_mut(&number)
            && let Incoming::Open(bytes) = replace(&mut stream.incoming, Incoming::Finished)
        {
            self.gaps -= bytes.ranges();
        }
        self.remove_finished(number);
    }

    /// Removes a stream that both ends have finished, once the frame of its end was sent: until then it uses
    /// memory. The peer may open another one for it.
    fn remove_finished(&mut self, number: StreamId) {
        let is_finished = |stream: &Stream| {
            let ends = [
                PendingFrame::Stop(number),
                PendingFrame::Reset(number),
                PendingFrame::Last(number, stream.sent),
            ];
            let is_pending = ends.iter().any(|end| self.pending.contains(end));
            !stream.sends && !is_pending && matches!(stream.incoming, Incoming::Finished)
        };
        if !self.streams.get(&number).is_some_and(is_finished) {
            return;
        }
        self.streams.remove(&number);
        if number != stream_id(number >> 1, self.initiator) {
            self.permitted += 1;
            self.pending.insert(PendingFrame::Streams);
        }
        self.changed.push(Wait::Permit);
    }

    /// Whether a frame is pending.
    pub fn has_pending(&self) -> bool {
        !self.pending.is_empty()
    }

    /// Returns the next frame to send. The caller puts it back with [`Multiplexer::requeue`] or confirms it
    /// with [`Multiplexer::on_frame_sent`].
    pub fn next_pending(&mut self) -> Option<(PendingFrame, Frame<'static>)> {
        while let Some(pending) = self.pending.pop_first() {
            let frame = match pending {
                PendingFrame::Streams => Some(Frame::Streams(self.permitted.min(NUMBERS))),
                PendingFrame::Stop(number) => Some(Frame::Stop(number)),
                PendingFrame::Reset(number) => Some(Frame::Reset(number)),
                PendingFrame::Last(stream, offset) => {
                    Some(Frame::Data { stream, offset, last: true, bytes: &[] })
                }
                PendingFrame::MessageLimit => {
                    self.messages.advertised = self.messages.taken_cost + self.limits.window;
                    Some(Frame::MessageLimit(self.messages.advertised))
                }
                PendingFrame::StreamLimit(stream) => match self.streams.get(&stream).map(|it| &it.incoming) {
                    Some(Incoming::Open(bytes)) => Some(Frame::StreamLimit { stream, limit: bytes.limit() }),
                    _ => None,
                },
            };
            if let Some(frame) = frame {
                self.unsent += 1;
                return Some((pending, frame));
            }
        }
        self.note_if_flushed();
        None
    }

    /// Puts back a frame that could not be sent.
    pub fn requeue(&mut self, pending: PendingFrame) {
        self.pending.insert(pending);
        self.unsent -= 1;
    }

    /// Confirms that the frame was sent.
    pub fn on_frame_sent(&mut self, pending: PendingFrame) {
        self.unsent -= 1;
        if let PendingFrame::Stop(number) | PendingFrame::Reset(number) | PendingFrame::Last(number, _) =
            pending
        {
            self.remove_finished(number);
        }
        self.note_if_flushed();
    }

    /// Tasks must not wake themselves: a task that waits for a message checks for pending frames here.
    fn note_if_flushed(&mut self) {
        if self.pending.is_empty() && self.unsent == 0 {
            self.changed.push(Wait::Flushed);
        }
    }

    /// Handles a frame, received in the message with this number.
    ///
    /// # Errors
    /// The peer's protocol violation.
    pub fn on_frame(&mut self, id: u64, frame: Frame<'_>) -> Result<(), Violation> {
        match frame {
            Frame::Message(data) => return self.on_message(id, data),
            Frame::Data { stream, offset, last, bytes } => return self.on_data(stream, offset, bytes, last),
            Frame::Reset(number) => self.on_reset(number)?,
            Frame::Stop(number) => {
                self.find(number)?;
                self.reset(number);
            }
            Frame::StreamLimit { stream: number, limit } => {
                if let Some(stream) = self.find(number)? {
                    stream.limit = stream.limit.max(limit);
                    self.changed.push(Wait::SendSpace(number));
                }
            }
            Frame::MessageLimit(limit) => {
                self.messages.limit = self.messages.limit.max(limit);
                self.changed.push(Wait::MessageRoom);
            }
            Frame::Streams(count) => {
                self.may_open = self.may_open.max(count.min(NUMBERS));
                self.changed.push(Wait::Permit);
            }
        }
        Ok(())
    }

    /// Returns the stream of a frame, unless it has ended here. Its first frame also opens all earlier ones.
    fn find(&mut self, number: StreamId) -> Result<Option<&mut Stream>, Violation> {
        let index = number >> 1;
        let is_local = number == stream_id(index, self.initiator);
        if is_local {
            if index >= self.opened {
                return Err("it answered a stream that was not opened");
            }
        } else if index >= self.permitted {
            return Err("it opened more streams than permitted");
        }
        while !is_local && self.peer_opened <= index {
            let opened = stream_id(self.peer_opened, !self.initiator);
            self.add(opened);
            self.to_accept.push_back(opened);
            self.peer_opened += 1;
            self.changed.push(Wait::Stream);
        }
        Ok(self.streams.get_mut(&number))
    }

    fn on_message(&mut self, id: u64, data: &[u8]) -> Result<(), Violation> {
        let messages = &mut self.messages;
        messages.received_cost += cost(data);
        if messages.received_cost > messages.taken_cost + self.limits.window {
            return Err("it sent more messages than permitted");
        }
        messages.received.push_back((id, data.to_vec()));
        self.changed.push(Wait::Message);
        Ok(())
    }

    fn on_data(&mut self, number: StreamId, offset: u64, data: &[u8], last: bool) -> Result<(), Violation> {
        let Some(stream) = self.find(number)? else { return Ok(()) };
        match &mut stream.incoming {
            Incoming::Open(bytes) => {
                let before = bytes.ranges();
                let is_permitted = bytes.put(offset, data)
                    && (!last || bytes.set_end(offset.saturating_add(data.len() as u64)));
                let (after, is_readable) = (bytes.ranges(), bytes.ready() > 0 || bytes.is_at_end());
                self.gaps = self.gaps - before + after;
                self.changed.extend(is_readable.then_some(Wait::Bytes(number)));
                if !is_permitted {
                    return Err("it sent stream bytes that were not permitted");
                }
                if self.gaps > MAX_GAPS + self.streams.len() {
                    return Err("its streams have more gaps than packets can be in flight");
                }
            }
            Incoming::Stopped if last => self.finish_incoming(number),
            Incoming::Stopped | Incoming::Reset | Incoming::Finished => {}
        }
        Ok(())
    }

    fn on_reset(&mut self, number: StreamId) -> Result<(), Violation> {
        let Some(stream) = self.find(number)? else { return Ok(()) };
        match &stream.incoming {
            Incoming::Open(bytes) => {
                let gaps = bytes.ranges();
                stream.incoming = Incoming::Reset;
                self.gaps -= gaps;
            }
            Incoming::Stopped => self.finish_incoming(number),
            Incoming::Reset | Incoming::Finished => {}
        }
        self.changed.push(Wait::Bytes(number));
        Ok(())
    }
}

fn stream_id(index: u32, by_initiator: bool) -> StreamId {
    index << 1 | StreamId::from(!by_initiator)
}

fn cost(data: &[u8]) -> u64 {
    data.len() as u64 + MESSAGE_COST
}

#[cfg(test)]
mod tests;
