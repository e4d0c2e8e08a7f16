//! Runs the streams of a connection. Each change of the connection wakes the driver, which receives messages
//! and wakes the tasks waiting for them. So a reader that stops reading blocks only its own stream.

use std::collections::HashMap;
use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::task::{Context, Poll, Wake, Waker, ready};

use haul_engine::{Channel, EngineError as Error, Message, Role, WakerList, lock};
use haul_proto::micro::StreamLimits;
use haul_proto::multiplexer::{Aborted, Multiplexer, Wait};
use haul_stack::{SendError as MessageError, SendOptions};
use haul_wire::stream_frame::{DATA_HEADER, Frame, MESSAGE_HEADER, StreamId};

/// Maximum stream bytes per message: a message is delivered only when all of its packets have arrived.
const MAX_STREAM_BYTES: usize = 16 << 10;

/// Streams and messages of one end of a connection.
pub(crate) struct Streams {
    channel: Arc<Channel>,
    state: Mutex<StreamsState>,
    /// Length of the longest frame at the start of the connection.
    frame: usize,
    /// Woken by the channel.
    waker: Waker,
    /// Wake-ups that [`Streams::run`] has not handled yet.
    wakes: AtomicUsize,
}

struct StreamsState {
    multiplexer: Multiplexer,
    /// Waiting tasks, by what they wait for.
    waiting: HashMap<Wait, WakerList>,
    /// Why the connection ended; the first error wins.
    ended: Option<Error>,
}

impl StreamsState {
    /// Unlocks, and wakes the tasks that wait for what has changed.
    fn release(mut state: MutexGuard<'_, Self>) {
        let (Self { multiplexer, waiting, .. }, mut woken) = (&mut *state, WakerList::default());
        woken.append(multiplexer.take_changed().filter_map(|wait| waiting.remove(&wait)).flatten());
        drop(state);
        woken.wake();
    }
}

/// Waker registered with the channel. Holds no strong reference, which would keep the channel alive forever.
struct StreamsWaker(Weak<Streams>);

impl Wake for StreamsWaker {
    fn wake(self: Arc<Self>) {
        if let Some(streams) = self.0.upgrade() {
            streams.run();
        }
    }
}

impl Streams {
    /// Returns the streams of a connection whose recipe has `streams`.
    pub(crate) fn of(channel: &Arc<Channel>) -> Option<Arc<Self>> {
        let limits = StreamLimits::of(&channel.recipe())?;
        let streams = Arc::new_cyclic(|this: &Weak<Self>| Self {
            channel: channel.clone(),
            state: Mutex::new(StreamsState {
                multiplexer: Multiplexer::new(channel.role() == Role::Client, limits),
                waiting: HashMap::new(),
                ended: None,
            }),
            frame: limits.frame,
            waker: Arc::new(StreamsWaker(this.clone())).into(),
            wakes: AtomicUsize::new(0),
        });
        streams.run();
        Some(streams)
    }

    /// Changes the multiplexer, then wakes the affected tasks.
    fn with<R>(&self, change: impl FnOnce(&mut Multiplexer) -> R) -> R {
        let mut state = lock(&self.state);
        let result = change(&mut state.multiplexer);
        StreamsState::release(state);
        result
    }

    /// Returns the result of `next`, or else why the connection ended; otherwise registers the task's waker.
    fn poll<T>(
        &self,
        context: &Context<'_>,
        wait: Wait,
        next: impl FnOnce(&mut Multiplexer) -> Option<T>,
    ) -> Poll<Result<T, Error>> {
        let (mut state, mut oldest) = (lock(&self.state), WakerList::default());
        let polled = match (next(&mut state.multiplexer), &state.ended) {
            (Some(found), _) => Poll::Ready(Ok(found)),
            (None, Some(error)) => Poll::Ready(Err(error.clone())),
            (None, None) => {
                oldest = state.waiting.entry(wait).or_default().add(context.waker());
                Poll::Pending
            }
        };
        StreamsState::release(state);
        oldest.wake();
        polled
    }

    /// Records the end of the connection and wakes all tasks.
    fn on_end(&self, error: Error) {
        let mut state = lock(&self.state);
        state.ended.get_or_insert(error);
        let mut woken = WakerList::default();
        woken.append(state.waiting.drain().flat_map(|(_, wakers)| wakers));
        drop(state);
        woken.wake();
    }

    fn check_running(&self) -> Result<(), Error> {
        self.ended().map_or(Ok(()), Err)
    }

    /// Handles received messages and sends pending frames. One thread at a time does so, and repeats it for
    /// wake-ups meanwhile, which sending causes too: no frame is missed when the channel has capacity again.
    fn run(&self) {
        if self.wakes.fetch_add(1, Ordering::AcqRel) > 0 {
            return;
        }
        let mut seen = 1;
        loop {
            self.receive();
            self.send_pending();
            match self.wakes.compare_exchange(seen, 0, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return,
                Err(more) => seen = more,
            }
        }
    }

    fn receive(&self) {
        while let Poll::Ready(received) = self.channel.poll_recv(&mut Context::from_waker(&self.waker)) {
            let Message { id, data } = match received {
                Ok(message) => message,
                Err(error) => return self.on_end(error),
            };
            let handled = self.with(|it| match Frame::parse(&data) {
                Some(frame) => it.on_frame(id, frame),
                None => Err("it sent a message that is not a stream frame"),
            });
            if let Err(reason) = handled {
                self.on_end(Error::Protocol(reason.to_owned()));
                return self.channel.abort();
            }
        }
    }

    /// Sends the pending frames. A frame that does not fit is sent when the channel has changed.
    fn send_pending(&self) {
        let mut context = Context::from_waker(&self.waker);
        while let Some((pending, frame)) = self.with(Multiplexer::next_pending) {
            match self.channel.poll_send(&mut context, &frame.to_bytes(), SendOptions::default()) {
                Poll::Pending => return self.with(|it| it.requeue(pending)),
                // The end of the connection is reported by `receive`.
                Poll::Ready(_) => self.with(|it| it.on_frame_sent(pending)),
            }
        }
    }

    /// Length of the longest frame. A new recipe may shorten messages; flow control keeps the initial length.
    fn longest_frame(&self) -> usize {
        self.frame.min(self.channel.longest_message())
    }

    fn run_if_pending(&self) {
        if self.with(|it| it.has_pending()) {
            self.run();
        }
    }

    pub(crate) fn poll_open(&self, context: &Context<'_>) -> Poll<Result<StreamId, Error>> {
        self.check_running()?;
        self.poll(context, Wait::Permit, Multiplexer::open)
    }

    pub(crate) fn poll_accept(&self, context: &Context<'_>) -> Poll<Result<StreamId, Error>> {
        self.poll(context, Wait::Stream, Multiplexer::accept)
    }

    pub(crate) fn poll_send(
        &self,
        context: &mut Context<'_>,
        data: &[u8],
        options: SendOptions,
    ) -> Poll<Result<u64, Error>> {
        let (len, max) = (data.len(), self.longest_frame().saturating_sub(MESSAGE_HEADER));
        if len > max {
            return Poll::Ready(Err(MessageError::TooLarge { len, max }.into()));
        }
        ready!(self.poll(context, Wait::MessageRoom, |it| it.reserve(data)))?;
        let sent = self.channel.poll_send(context, &Frame::Message(data).to_bytes(), options);
        if !matches!(sent, Poll::Ready(Ok(_))) {
            self.with(|it| it.unreserve(data));
        }
        sent
    }

    pub(crate) fn poll_recv(&self, context: &Context<'_>) -> Poll<Result<Message, Error>> {
        let message = self.poll(context, Wait::Message, Multiplexer::message);
        self.run_if_pending();
        message.map_ok(|(id, data)| Message { id, data })
    }

    /// Waits until the ends of streams have been sent too.
    pub(crate) fn poll_flush(&self, context: &mut Context<'_>) -> Poll<Result<(), Error>> {
        self.run_if_pending();
        ready!(self.poll(context, Wait::Flushed, |it| it.flushed()))?;
        self.channel.poll_flush(context)
    }

    /// Why the streams ended: the peer violated the protocol, or the connection ended.
    pub(crate) fn ended(&self) -> Option<Error> {
        lock(&self.state).ended.clone()
    }

    pub(super) fn poll_read(
        &self,
        number: StreamId,
        into: &mut [u8],
        context: &Context<'_>,
        failed: &mut Option<io::ErrorKind>,
    ) -> Poll<io::Result<usize>> {
        if let Some(failed) = *failed {
            return Poll::Ready(Err(failed.into()));
        }
        let read = self.poll(context, Wait::Bytes(number), |it| it.read(number, into));
        self.run_if_pending();
        let read = read.map(|read| {
            let reason = "the peer reset the stream before its end";
            read?.map_err(|Aborted| io::Error::new(io::ErrorKind::ConnectionReset, reason))
        });
        if let Poll::Ready(Err(error)) = &read {
            *failed = Some(error.kind());
        }
        read
    }

    pub(super) fn poll_write(
        &self,
        number: StreamId,
        bytes: &[u8],
        context: &mut Context<'_>,
    ) -> Poll<io::Result<usize>> {
        self.check_running()?;
        if bytes.is_empty() {
            return Poll::Ready(Ok(0));
        }
        let room = ready!(self.poll(context, Wait::SendSpace(number), |it| it.space(number)))?;
        let reason = "the peer stopped reading the stream";
        let (offset, room) = room.map_err(|Aborted| io::Error::new(io::ErrorKind::BrokenPipe, reason))?;
        let max_bytes = self.longest_frame().saturating_sub(DATA_HEADER).min(MAX_STREAM_BYTES);
        let len = bytes.len().min(max_bytes).min(usize::try_from(room).unwrap_or(usize::MAX));
        if len == 0 {
            return Poll::Ready(Ok(0));
        }
        let frame = Frame::Data { stream: number, offset, last: false, bytes: &bytes[..len] };
        ready!(self.channel.poll_send(context, &frame.to_bytes(), SendOptions::default()))?;
        self.with(|it| it.on_sent(number, len));
        Poll::Ready(Ok(len))
    }

    pub(super) fn channel(&self) -> &Channel {
        &self.channel
    }

    pub(super) fn end<R>(&self, change: impl FnOnce(&mut Multiplexer) -> R) -> R {
        let result = self.with(change);
        self.run_if_pending();
        result
    }
}
