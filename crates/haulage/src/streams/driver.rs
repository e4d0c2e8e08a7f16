//! Runs the streams of a connection. Whatever changes the connection wakes them: they take the messages that have come,
//! and wake the tasks that wait for what is in them. So a reader that does not read holds up its own stream only.

use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::task::{Context, Poll, Wake, Waker, ready};

use haul_engine::{Channel, EngineError as Error, Message, lock};
use haul_proto::micro::StreamLimits;
use haul_stack::{SendError as MessageError, SendOptions};
use haul_wire::stream_frame::{DATA_HEADER, Frame, MESSAGE_HEADER, Number};

use super::multiplexer::Multiplexer;

/// Most bytes of a stream in one message: all of it waits for a packet that is lost.
const LONGEST: usize = 16 << 10;

/// The streams and messages of one end of a connection.
pub(crate) struct Streams {
    channel: Arc<Channel>,
    multiplexer: Mutex<Multiplexer>,
    /// Bytes of the longest frame that the connection began with.
    frame: usize,
    /// Woken by the channel.
    waker: Waker,
    /// Wake-ups that [`Streams::run`] has not seen the end of.
    wakes: AtomicUsize,
}

/// What the channel wakes. It does not keep the channel: that would never be dropped.
struct Woken(Weak<Streams>);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        if let Some(streams) = self.0.upgrade() {
            streams.run();
        }
    }
}

impl Streams {
    /// The streams of a connection whose recipe has any.
    pub(crate) fn of(channel: &Arc<Channel>) -> Option<Arc<Self>> {
        let limits = StreamLimits::of(&channel.recipe())?;
        let streams = Arc::new_cyclic(|this: &Weak<Self>| Self {
            channel: channel.clone(),
            multiplexer: Mutex::new(Multiplexer::new(channel.role(), limits)),
            frame: limits.frame,
            waker: Arc::new(Woken(this.clone())).into(),
            wakes: AtomicUsize::new(0),
        });
        streams.run();
        Some(streams)
    }

    /// Changes the multiplexer, then wakes whom that concerns.
    fn with<R>(&self, change: impl FnOnce(&mut Multiplexer) -> R) -> R {
        let mut multiplexer = lock(&self.multiplexer);
        let result = change(&mut multiplexer);
        let woken = multiplexer.take_woken();
        drop(multiplexer);
        woken.wake();
        result
    }

    /// Takes what has come and sends what is owed. One thread at a time does, and goes on for those that come
    /// meanwhile, as sending wakes these streams too. So what one thread still owes is never missed by another that has
    /// seen room.
    fn run(&self) {
        if self.wakes.fetch_add(1, Ordering::AcqRel) > 0 {
            return;
        }
        let mut seen = 1;
        loop {
            self.receive();
            self.send_owed();
            match self.wakes.compare_exchange(seen, 0, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return,
                Err(more) => seen = more,
            }
        }
    }

    fn receive(&self) {
        while let Poll::Ready(came) = self.channel.poll_recv(&mut Context::from_waker(&self.waker)) {
            let Message { id, data } = match came {
                Ok(message) => message,
                Err(error) => return self.with(|it| it.end(error)),
            };
            let taken = self.with(|it| match Frame::parse(&data) {
                Some(frame) => it.on_frame(id, frame),
                None => Err("it sent a message that is no frame of a stream"),
            });
            if let Err(reason) = taken {
                self.with(|it| it.end(Error::Protocol(reason.to_owned())));
                return self.channel.abort();
            }
        }
    }

    /// Sends the frames that this end owes. What finds no room leaves when the channel has changed.
    fn send_owed(&self) {
        let mut context = Context::from_waker(&self.waker);
        while let Some((owed, frame)) = self.with(Multiplexer::next_owed) {
            match self.channel.poll_send(&mut context, &frame.to_bytes(), SendOptions::default()) {
                Poll::Pending => return self.with(|it| it.owe(owed)),
                // The end of the connection comes with the messages.
                Poll::Ready(_) => self.with(|it| it.on_left(owed)),
            }
        }
    }

    /// Bytes of the longest frame. A new recipe may carry shorter messages, and the room for longer ones stays as it
    /// was.
    fn longest_frame(&self) -> usize {
        self.frame.min(self.channel.longest_message())
    }

    fn run_if_owing(&self) {
        if self.with(|it| it.owes()) {
            self.run();
        }
    }

    pub(crate) fn poll_open(&self, context: &Context<'_>) -> Poll<Result<Number, Error>> {
        self.with(|it| it.open(context.waker()))
    }

    pub(crate) fn poll_accept(&self, context: &Context<'_>) -> Poll<Result<Number, Error>> {
        self.with(|it| it.accept(context.waker()))
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
        ready!(self.with(|it| it.reserve(data, context.waker())))?;
        let sent = self.channel.poll_send(context, &Frame::Message(data).to_bytes(), options);
        if !matches!(sent, Poll::Ready(Ok(_))) {
            self.with(|it| it.give_back(data));
        }
        sent
    }

    pub(crate) fn poll_recv(&self, context: &Context<'_>) -> Poll<Result<Message, Error>> {
        let message = self.with(|it| it.message(context.waker()));
        self.run_if_owing();
        message
    }

    /// Waits until the ends of streams have left too.
    pub(crate) fn poll_flush(&self, context: &mut Context<'_>) -> Poll<Result<(), Error>> {
        self.run_if_owing();
        ready!(self.with(|it| it.flushed(context.waker())))?;
        self.channel.poll_flush(context)
    }

    /// How the other end has broken the rules, or the connection has ended.
    pub(crate) fn ended(&self) -> Option<Error> {
        self.with(|it| it.ended().cloned())
    }

    pub(super) fn poll_read(
        &self,
        number: Number,
        into: &mut [u8],
        context: &Context<'_>,
        failed: &mut Option<io::ErrorKind>,
    ) -> Poll<io::Result<usize>> {
        if let Some(failed) = *failed {
            return Poll::Ready(Err(failed.into()));
        }
        let read = self.with(|it| it.read(number, into, context.waker()));
        self.run_if_owing();
        if let Poll::Ready(Err(error)) = &read {
            *failed = Some(error.kind());
        }
        read
    }

    pub(super) fn poll_write(
        &self,
        number: Number,
        bytes: &[u8],
        context: &mut Context<'_>,
    ) -> Poll<io::Result<usize>> {
        let (offset, room) = ready!(self.with(|it| it.room(number, context.waker())))?;
        let longest = self.longest_frame().saturating_sub(DATA_HEADER).min(LONGEST);
        let len = bytes.len().min(longest).min(usize::try_from(room).unwrap_or(usize::MAX));
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
        self.run_if_owing();
        result
    }
}
