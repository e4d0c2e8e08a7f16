//! The streams and the messages of one end of a connection: what the other end's frames mean, which frames this end
//! owes, and who waits for what. Sans-IO. Below are messages that come exactly once and in any order.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::io;
use std::mem::replace;
use std::task::{Poll, Waker};

use haul_engine::{EngineError as Error, Message, Role, WakerList};
use haul_proto::micro::StreamLimits;
use haul_wire::stream_frame::{Frame, Number};

use crate::reassembly::Reassembly;

/// What a message counts for besides its bytes.
const MESSAGE_COST: u64 = 64;
/// Streams that one end can open: no number is used again.
const NUMBERS: u32 = 1 << 31;
/// Gaps in all streams together. Each has a packet on its way, of which `retransmit` with copies has no more.
const MOST_GAPS: usize = 32_768;

/// How the other end has broken the rules.
pub(super) type Violation = &'static str;

/// A frame that is to leave as soon as there is room for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Owed {
    MessageLimit,
    Streams,
    StreamLimit(Number),
    Stop(Number),
    Reset(Number),
    Last(Number, u64),
}

#[derive(Debug)]
enum Incoming {
    Open(Reassembly),
    /// The other end has given it up, and the reader does not know yet.
    Reset,
    /// The reader has gone; what still comes is dropped.
    Stopped,
    Finished,
}

#[derive(Debug)]
struct Stream {
    incoming: Incoming,
    reader: Option<Waker>,
    /// Bytes that were sent, and that may be.
    sent: u64,
    limit: u64,
    /// Neither finished nor given up.
    sends: bool,
    writer: Option<Waker>,
}

/// Messages of the application. Each counts for its bytes and [`MESSAGE_COST`].
#[derive(Debug, Default)]
struct Messages {
    received: VecDeque<Message>,
    /// Costs of what has come, of what was taken, and the limit that the other end knows.
    came: u64,
    taken: u64,
    told: u64,
    /// Costs of what was sent, and what they may be.
    sent: u64,
    limit: u64,
}

/// What a task waits for, besides a stream's bytes.
#[derive(Clone, Copy, Debug)]
enum Wait {
    Message,
    MessageRoom,
    /// A stream of the other end.
    Stream,
    /// The permission to open one.
    Permit,
    NothingOwed,
}

#[derive(Debug)]
pub(super) struct Multiplexer {
    role: Role,
    limits: StreamLimits,
    streams: HashMap<Number, Stream>,
    /// Streams that this end has opened, and may open.
    opened: u32,
    may_open: u32,
    /// Streams that the other end has opened, and may open.
    seen: u32,
    permitted: u32,
    to_accept: VecDeque<Number>,
    messages: Messages,
    /// The sum of [`Reassembly::gaps`].
    gaps: usize,
    owed: BTreeSet<Owed>,
    /// Frames that were taken from `owed` and are not sent yet.
    leaving: usize,
    ended: Option<Error>,
    /// Tasks by what they wait for.
    waiting: [WakerList; 5],
    /// Who has to be woken as soon as no lock is held.
    woken: WakerList,
}

impl Multiplexer {
    pub(super) fn new(role: Role, limits: StreamLimits) -> Self {
        let messages = Messages { told: limits.window, limit: limits.window, ..Messages::default() };
        Self {
            role,
            limits,
            streams: HashMap::new(),
            opened: 0,
            may_open: limits.most,
            seen: 0,
            permitted: limits.most,
            to_accept: VecDeque::new(),
            messages,
            gaps: 0,
            owed: BTreeSet::new(),
            leaving: 0,
            ended: None,
            waiting: Default::default(),
            woken: WakerList::default(),
        }
    }

    /// Streams that this end has opened and that it has not finished with.
    fn own(&self) -> usize {
        let finished = self.permitted - self.limits.most;
        self.streams.len() - (self.seen - finished) as usize
    }

    fn add(&mut self, number: Number) {
        let window = self.limits.window;
        let incoming = Incoming::Open(Reassembly::new(window));
        let stream = Stream { incoming, reader: None, sent: 0, limit: window, sends: true, writer: None };
        self.streams.insert(number, stream);
    }

    fn wake(&mut self, whom: Wait) {
        self.woken.append(self.waiting[whom as usize].take());
    }

    /// Who has to be woken, once no lock is held.
    pub(super) fn take_woken(&mut self) -> WakerList {
        self.woken.take()
    }

    /// What `next` finds; if nothing, how the connection has ended, or the task is woken later.
    fn poll<T>(
        &mut self,
        waker: &Waker,
        wait: Wait,
        next: impl FnOnce(&mut Self) -> Option<T>,
    ) -> Poll<Result<T, Error>> {
        match (next(self), &self.ended) {
            (Some(found), _) => Poll::Ready(Ok(found)),
            (None, Some(error)) => Poll::Ready(Err(error.clone())),
            (None, None) => {
                self.waiting[wait as usize].add(waker);
                Poll::Pending
            }
        }
    }

    /// Opens a stream, as soon as both ends have finished with enough of those before it.
    pub(super) fn open(&mut self, waker: &Waker) -> Poll<Result<Number, Error>> {
        if let Some(error) = &self.ended {
            return Poll::Ready(Err(error.clone()));
        }
        self.poll(waker, Wait::Permit, |this| {
            let has_room = this.own() < this.limits.most as usize;
            (has_room && this.opened < this.may_open).then(|| {
                let number = number_of(this.opened, this.role);
                this.opened += 1;
                this.add(number);
                number
            })
        })
    }

    pub(super) fn accept(&mut self, waker: &Waker) -> Poll<Result<Number, Error>> {
        self.poll(waker, Wait::Stream, |this| this.to_accept.pop_front())
    }

    pub(super) fn message(&mut self, waker: &Waker) -> Poll<Result<Message, Error>> {
        let window = self.limits.window;
        self.poll(waker, Wait::Message, |this| {
            let messages = &mut this.messages;
            let message = messages.received.pop_front()?;
            messages.taken += cost(&message.data);
            if messages.taken + window - messages.told >= window / 4 {
                this.owed.insert(Owed::MessageLimit);
            }
            Some(message)
        })
    }

    /// Room for a message, which is sent next or given back.
    pub(super) fn reserve(&mut self, data: &[u8], waker: &Waker) -> Poll<Result<(), Error>> {
        self.poll(waker, Wait::MessageRoom, |this| {
            let sent = this.messages.sent + cost(data);
            (sent <= this.messages.limit).then(|| this.messages.sent = sent)
        })
    }

    /// A message for which there was room was not sent.
    pub(super) fn give_back(&mut self, data: &[u8]) {
        self.messages.sent -= cost(data);
        self.wake(Wait::MessageRoom);
    }

    /// Ready when no frame is owed.
    pub(super) fn flushed(&mut self, waker: &Waker) -> Poll<Result<(), Error>> {
        self.poll(waker, Wait::NothingOwed, |this| (this.owed.is_empty() && this.leaving == 0).then_some(()))
    }

    /// Bytes of a stream; 0 at its end.
    pub(super) fn read(&mut self, number: Number, into: &mut [u8], waker: &Waker) -> Poll<io::Result<usize>> {
        let Some(stream) = self.streams.get_mut(&number) else { return Poll::Ready(Ok(0)) };
        match &mut stream.incoming {
            Incoming::Open(bytes) => {
                let before = bytes.gaps();
                let read = bytes.pull(into);
                self.gaps -= before - bytes.gaps();
                if bytes.is_at_end() {
                    self.finish_incoming(number);
                    return Poll::Ready(Ok(read));
                }
                if !bytes.has_end() && bytes.new_limit().is_some() {
                    self.owed.insert(Owed::StreamLimit(number));
                }
                if read > 0 || into.is_empty() {
                    return Poll::Ready(Ok(read));
                }
            }
            Incoming::Reset => {
                self.finish_incoming(number);
                return Poll::Ready(Err(io::Error::new(
                    io::ErrorKind::ConnectionReset,
                    "the other side has given the stream up before its end",
                )));
            }
            Incoming::Stopped | Incoming::Finished => return Poll::Ready(Ok(0)),
        }
        if let Some(error) = &self.ended {
            return Poll::Ready(Err(error.clone().into()));
        }
        stream.reader = Some(waker.clone());
        Poll::Pending
    }

    /// Where the next bytes of a stream lie, and how many may be sent.
    pub(super) fn room(&mut self, number: Number, waker: &Waker) -> Poll<io::Result<(u64, u64)>> {
        if let Some(error) = &self.ended {
            return Poll::Ready(Err(error.clone().into()));
        }
        match self.streams.get_mut(&number).filter(|stream| stream.sends) {
            None => Poll::Ready(Err(io::Error::new(
                io::ErrorKind::BrokenPipe,
                "the other side does not read the stream any more",
            ))),
            Some(stream) if stream.sent < stream.limit => {
                Poll::Ready(Ok((stream.sent, stream.limit - stream.sent)))
            }
            Some(stream) => {
                stream.writer = Some(waker.clone());
                Poll::Pending
            }
        }
    }

    pub(super) fn on_sent(&mut self, number: Number, len: usize) {
        if let Some(stream) = self.streams.get_mut(&number) {
            stream.sent += len as u64;
        }
    }

    /// Nothing more is written. False if the other end has given the stream up before.
    pub(super) fn finish(&mut self, number: Number) -> bool {
        self.end_outgoing(number, |stream| Owed::Last(number, stream.sent))
    }

    /// Gives up what was written.
    pub(super) fn reset(&mut self, number: Number) {
        self.end_outgoing(number, |_| Owed::Reset(number));
    }

    fn end_outgoing(&mut self, number: Number, owed: impl FnOnce(&Stream) -> Owed) -> bool {
        let Some(stream) = self.streams.get_mut(&number).filter(|stream| stream.sends) else { return false };
        stream.sends = false;
        self.woken.append(stream.writer.take());
        self.owed.insert(owed(stream));
        self.remove_finished(number);
        true
    }

    /// Nobody reads the stream any more.
    pub(super) fn stop(&mut self, number: Number) {
        let Some(stream) = self.streams.get_mut(&number) else { return };
        match &stream.incoming {
            Incoming::Open(bytes) if !bytes.has_end() => {
                self.gaps -= bytes.gaps();
                stream.incoming = Incoming::Stopped;
                self.owed.insert(Owed::Stop(number));
            }
            Incoming::Open(_) | Incoming::Reset => self.finish_incoming(number),
            Incoming::Stopped | Incoming::Finished => {}
        }
    }

    fn finish_incoming(&mut self, number: Number) {
        if let Some(stream) = self.streams.get_mut(&number)
            && let Incoming::Open(bytes) = replace(&mut stream.incoming, Incoming::Finished)
        {
            self.gaps -= bytes.gaps();
        }
        self.remove_finished(number);
    }

    /// Forgets a stream that both ends have finished with, once its end has left: until then it costs memory. The other
    /// end may open another one for it.
    fn remove_finished(&mut self, number: Number) {
        let is_finished = |stream: &Stream| {
            let ends = [Owed::Stop(number), Owed::Reset(number), Owed::Last(number, stream.sent)];
            let is_owed = ends.iter().any(|end| self.owed.contains(end));
            !stream.sends && !is_owed && matches!(stream.incoming, Incoming::Finished)
        };
        if !self.streams.get(&number).is_some_and(is_finished) {
            return;
        }
        self.streams.remove(&number);
        if number != number_of(number >> 1, self.role) {
            self.permitted += 1;
            self.owed.insert(Owed::Streams);
        }
        self.wake(Wait::Permit);
    }

    pub(super) fn owes(&self) -> bool {
        !self.owed.is_empty()
    }

    /// The next frame to send; it is given back with [`Multiplexer::owe`] or counts as sent with
    /// [`Multiplexer::on_left`].
    pub(super) fn next_owed(&mut self) -> Option<(Owed, Frame<'static>)> {
        while let Some(owed) = self.owed.pop_first() {
            let frame = match owed {
                Owed::Streams => Some(Frame::Streams(self.permitted.min(NUMBERS))),
                Owed::Stop(number) => Some(Frame::Stop(number)),
                Owed::Reset(number) => Some(Frame::Reset(number)),
                Owed::Last(stream, offset) => Some(Frame::Data { stream, offset, last: true, bytes: &[] }),
                Owed::MessageLimit => {
                    self.messages.told = self.messages.taken + self.limits.window;
                    Some(Frame::MessageLimit(self.messages.told))
                }
                Owed::StreamLimit(stream) => match self.streams.get(&stream).map(|it| &it.incoming) {
                    Some(Incoming::Open(bytes)) => Some(Frame::StreamLimit { stream, limit: bytes.limit() }),
                    _ => None,
                },
            };
            if let Some(frame) = frame {
                self.leaving += 1;
                return Some((owed, frame));
            }
        }
        self.wake_flushing();
        None
    }

    pub(super) fn owe(&mut self, owed: Owed) {
        self.owed.insert(owed);
        self.leaving -= 1;
    }

    pub(super) fn on_left(&mut self, owed: Owed) {
        self.leaving -= 1;
        if let Owed::Stop(number) | Owed::Reset(number) | Owed::Last(number, _) = owed {
            self.remove_finished(number);
        }
        self.wake_flushing();
    }

    /// Tasks must not wake themselves: one that waits for a message looks here for what is owed.
    fn wake_flushing(&mut self) {
        if self.owed.is_empty() && self.leaving == 0 {
            self.wake(Wait::NothingOwed);
        }
    }

    /// The connection has ended; the first error counts.
    pub(super) fn end(&mut self, error: Error) {
        self.ended.get_or_insert(error);
        let wakers =
            self.streams.values_mut().flat_map(|stream| [stream.reader.take(), stream.writer.take()]);
        self.woken.append(wakers.flatten());
        self.woken.append(self.waiting.iter_mut().flat_map(WakerList::take));
    }

    /// How the connection has ended, as far as it shows here.
    pub(super) fn ended(&self) -> Option<&Error> {
        self.ended.as_ref()
    }

    /// A frame has come, in the message with this number.
    pub(super) fn on_frame(&mut self, id: u64, frame: Frame<'_>) -> Result<(), Violation> {
        match frame {
            Frame::Message(data) => return self.on_message(Message { id, data: data.to_vec() }),
            Frame::Data { stream, offset, last, bytes } => return self.on_data(stream, offset, bytes, last),
            Frame::Reset(number) => self.on_reset(number)?,
            Frame::Stop(number) => {
                self.find(number)?;
                self.reset(number);
            }
            Frame::StreamLimit { stream, limit } => {
                if let Some(stream) = self.find(stream)? {
                    stream.limit = stream.limit.max(limit);
                    let writer = stream.writer.take();
                    self.woken.append(writer);
                }
            }
            Frame::MessageLimit(limit) => {
                self.messages.limit = self.messages.limit.max(limit);
                self.wake(Wait::MessageRoom);
            }
            Frame::Streams(count) => {
                self.may_open = self.may_open.max(count.min(NUMBERS));
                self.wake(Wait::Permit);
            }
        }
        Ok(())
    }

    /// The stream of a frame, unless it has ended here. The first frame of a stream opens those before it too.
    fn find(&mut self, number: Number) -> Result<Option<&mut Stream>, Violation> {
        let index = number >> 1;
        let is_own = number == number_of(index, self.role);
        if is_own {
            if index >= self.opened {
                return Err("it answered a stream that was not opened");
            }
        } else if index >= self.permitted {
            return Err("it opened more streams than it was permitted");
        }
        while !is_own && self.seen <= index {
            let opened = number_of(self.seen, self.role.peer());
            self.add(opened);
            self.to_accept.push_back(opened);
            self.seen += 1;
            self.wake(Wait::Stream);
        }
        Ok(self.streams.get_mut(&number))
    }

    fn on_message(&mut self, message: Message) -> Result<(), Violation> {
        let messages = &mut self.messages;
        messages.came += cost(&message.data);
        if messages.came > messages.taken + self.limits.window {
            return Err("it sent more messages than it was permitted");
        }
        messages.received.push_back(message);
        self.wake(Wait::Message);
        Ok(())
    }

    fn on_data(&mut self, number: Number, offset: u64, data: &[u8], last: bool) -> Result<(), Violation> {
        let Some(stream) = self.find(number)? else { return Ok(()) };
        match &mut stream.incoming {
            Incoming::Open(bytes) => {
                let before = bytes.gaps();
                let is_permitted = bytes.put(offset, data)
                    && (!last || bytes.set_end(offset.saturating_add(data.len() as u64)));
                let (after, is_readable) = (bytes.gaps(), bytes.ready() > 0 || bytes.is_at_end());
                let reader = if is_readable { stream.reader.take() } else { None };
                self.gaps = self.gaps - before + after;
                self.woken.append(reader);
                if !is_permitted {
                    return Err("it sent bytes of a stream that it was not permitted");
                }
                if self.gaps > MOST_GAPS + self.streams.len() {
                    return Err("its streams have more gaps than packets can be on their way");
                }
            }
            Incoming::Stopped if last => self.finish_incoming(number),
            Incoming::Stopped | Incoming::Reset | Incoming::Finished => {}
        }
        Ok(())
    }

    fn on_reset(&mut self, number: Number) -> Result<(), Violation> {
        let Some(stream) = self.find(number)? else { return Ok(()) };
        let reader = stream.reader.take();
        match &stream.incoming {
            Incoming::Open(bytes) => {
                let gaps = bytes.gaps();
                stream.incoming = Incoming::Reset;
                self.gaps -= gaps;
            }
            Incoming::Stopped => self.finish_incoming(number),
            Incoming::Reset | Incoming::Finished => {}
        }
        self.woken.append(reader);
        Ok(())
    }
}

fn number_of(index: u32, opener: Role) -> Number {
    index << 1 | Number::from(opener == Role::Server)
}

fn cost(data: &[u8]) -> u64 {
    data.len() as u64 + MESSAGE_COST
}

#[cfg(test)]
#[path = "multiplexer_tests.rs"]
mod tests;
