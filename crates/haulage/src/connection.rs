use std::fmt;
use std::future::poll_fn;
use std::net::SocketAddr;
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use haul_base::{Rate, Span};
use haul_engine::{Channel, EngineError as Error, Message};
use haul_stack::{Recipe, RecipeError, SendOptions, StackEvent, StackStats};

use crate::streams::{RecvStream, SendStream, Streams, both};
use crate::{ConnectionError, SendError, WaitError};

/// What a connection has done so far.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Statistics {
    /// Packets and messages in both directions.
    pub totals: StackStats,
    /// Smoothed round-trip time, or the first guess where the recipe does not measure it.
    pub rtt: Span,
    /// What the micro-protocols count.
    pub counters: Vec<Counter>,
}

/// One of the numbers that a micro-protocol counts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Counter {
    /// Name of the micro-protocol in the recipe.
    pub micro_protocol: String,
    /// What it counts.
    pub name: &'static str,
    /// How often.
    pub value: u64,
}

impl Statistics {
    /// The counter of this name, if the recipe has the micro-protocol and that counts such a thing.
    pub fn counter(&self, micro_protocol: &str, name: &str) -> Option<u64> {
        let mut counters = self.counters.iter();
        let found = counters.find(|it| it.micro_protocol == micro_protocol && it.name == name);
        found.map(|counter| counter.value)
    }
}

/// One end of a connection in messages. Clones are the same end, for other threads and tasks; it ends when the last
/// clone is dropped, without waiting for what is on its way ([`Connection::close`] waits).
#[derive(Clone)]
pub struct Connection {
    channel: Arc<Channel>,
    /// With `streams` in the recipe; what is sent and received then goes through them.
    streams: Option<Arc<Streams>>,
}

impl Connection {
    pub(crate) fn of(channel: Channel) -> Self {
        let channel = Arc::new(channel);
        Self { streams: Streams::of(&channel), channel }
    }

    /// Sends a message and gives its number. Waits while too much is queued.
    ///
    /// # Errors
    /// If the recipe does not carry such a message, or the connection has ended.
    pub fn send(&self, data: &[u8]) -> Result<u64, SendError> {
        self.send_with(data, SendOptions::default(), None)
    }

    /// As [`Connection::send`], with a priority or a time after which the message is worth nothing, and with a limit
    /// for the wait.
    ///
    /// # Errors
    /// As [`Connection::send`]; [`SendError::TimedOut`].
    pub fn send_with(
        &self,
        data: &[u8],
        options: SendOptions,
        timeout: Option<Duration>,
    ) -> Result<u64, SendError> {
        self.wait_for(timeout, "room for the message", |context| self.poll_send(context, data, options))
    }

    /// As [`Connection::send`]; `None` if there is no room now.
    pub fn try_send(&self, data: &[u8]) -> Result<Option<u64>, SendError> {
        Ok(tried(|context| self.poll_send(context, data, SendOptions::default()))?)
    }

    /// As [`Connection::send`], for tasks.
    pub async fn send_async(&self, data: &[u8]) -> Result<u64, SendError> {
        Ok(poll_fn(|context| self.poll_send(context, data, SendOptions::default())).await?)
    }

    fn poll_send(
        &self,
        context: &mut Context<'_>,
        data: &[u8],
        options: SendOptions,
    ) -> Poll<Result<u64, Error>> {
        match &self.streams {
            Some(streams) => streams.poll_send(context, data, options),
            None => self.channel.poll_send(context, data, options),
        }
    }

    /// Waits in this thread, which drives the endpoint meanwhile, until `poll` has a result or the timeout has passed.
    fn wait_for<T, E: From<Error>>(
        &self,
        timeout: Option<Duration>,
        what: &'static str,
        mut poll: impl FnMut(&mut Context<'_>) -> Poll<Result<T, Error>>,
    ) -> Result<T, E> {
        self.channel.wait_for(timeout, what, |context| poll(context).map_err(Into::into))
    }

    /// The next message. Waits for it up to `timeout` (`None`: no limit).
    ///
    /// # Errors
    /// [`WaitError::TimedOut`]; [`ConnectionError::Closed`] after the last message; how the connection has ended
    /// otherwise.
    pub fn recv(&self, timeout: Option<Duration>) -> Result<Message, WaitError> {
        self.wait_for(timeout, "a message", |context| self.poll_recv(context))
    }

    /// The next message, if one waits.
    ///
    /// # Errors
    /// As [`Connection::recv`].
    pub fn try_recv(&self) -> Result<Option<Message>, WaitError> {
        Ok(tried(|context| self.poll_recv(context))?)
    }

    /// As [`Connection::recv`], for tasks.
    pub async fn recv_async(&self) -> Result<Message, WaitError> {
        Ok(poll_fn(|context| self.poll_recv(context)).await?)
    }

    fn poll_recv(&self, context: &mut Context<'_>) -> Poll<Result<Message, Error>> {
        match &self.streams {
            Some(streams) => streams.poll_recv(context),
            None => self.channel.poll_recv(context),
        }
    }

    /// Opens a stream of bytes, if the recipe carries any (`streams`). The other side can accept it once something was
    /// written, finished or dropped. Waits while as many are open as the recipe permits, up to `timeout` (`None`: no
    /// limit).
    ///
    /// # Errors
    /// [`WaitError::TimedOut`]; if the recipe carries no streams; how the connection has ended.
    pub fn open_stream(&self, timeout: Option<Duration>) -> Result<(SendStream, RecvStream), WaitError> {
        let streams = self.streams()?;
        let number = self.wait_for(timeout, "room for a stream", |context| streams.poll_open(context));
        number.map(|number| both(streams, number))
    }

    /// As [`Connection::open_stream`], for tasks.
    ///
    /// # Errors
    /// If the recipe carries no streams; how the connection has ended.
    pub async fn open_stream_async(&self) -> Result<(SendStream, RecvStream), WaitError> {
        let streams = self.streams()?;
        Ok(both(streams, poll_fn(|context| streams.poll_open(context)).await?))
    }

    /// The next stream of bytes that the other side has opened. Waits for it up to `timeout` (`None`: no limit).
    ///
    /// # Errors
    /// As [`Connection::open_stream`].
    pub fn accept_stream(&self, timeout: Option<Duration>) -> Result<(SendStream, RecvStream), WaitError> {
        let streams = self.streams()?;
        let number = self.wait_for(timeout, "a stream", |context| streams.poll_accept(context));
        number.map(|number| both(streams, number))
    }

    /// As [`Connection::accept_stream`], for tasks.
    ///
    /// # Errors
    /// As [`Connection::open_stream_async`].
    pub async fn accept_stream_async(&self) -> Result<(SendStream, RecvStream), WaitError> {
        let streams = self.streams()?;
        Ok(both(streams, poll_fn(|context| streams.poll_accept(context)).await?))
    }

    fn streams(&self) -> Result<&Arc<Streams>, Error> {
        let (protocol, alternatives) = ("a stream on a connection".to_owned(), "`streams`".to_owned());
        self.streams.as_ref().ok_or(RecipeError::Missing { protocol, alternatives }.into())
    }

    /// Waits until everything has left and, where the recipe acknowledges, has arrived.
    ///
    /// # Errors
    /// [`WaitError::TimedOut`]; how the connection has ended.
    pub fn flush(&self, timeout: Option<Duration>) -> Result<(), WaitError> {
        self.wait_for(timeout, "the arrival of everything", |context| self.poll_flush(context))
    }

    /// As [`Connection::flush`], for tasks.
    ///
    /// # Errors
    /// How the connection has ended.
    pub async fn flush_async(&self) -> Result<(), WaitError> {
        Ok(poll_fn(|context| self.poll_flush(context)).await?)
    }

    fn poll_flush(&self, context: &mut Context<'_>) -> Poll<Result<(), Error>> {
        match &self.streams {
            Some(streams) => streams.poll_flush(context),
            None => self.channel.poll_flush(context),
        }
    }

    /// Asks the other side to send at this rate, now or at any time (with `rate_feedback` in the recipe).
    pub fn set_rate(&self, rate: Rate) {
        self.channel.set_rate(rate);
    }

    /// Changes the recipe of both ends without losing anything; [`Event::Reconfigured`](crate::Event) or
    /// [`Event::Refused`](crate::Event) tells how that ended.
    ///
    /// # Errors
    /// If the recipe cannot follow on the present one.
    pub fn reconfigure(&self, recipe: &Recipe) -> Result<(), RecipeError> {
        self.channel.reconfigure(recipe)
    }

    /// The next event: a new rate or recipe, a message that was given up. Waits for it up to `timeout`.
    ///
    /// # Errors
    /// [`WaitError::TimedOut`]; how the connection has ended.
    pub fn event(&self, timeout: Duration) -> Result<StackEvent, WaitError> {
        self.wait_for(Some(timeout), "an event", |context| self.channel.poll_event(context))
    }

    /// As [`Connection::event`], for tasks.
    ///
    /// # Errors
    /// How the connection has ended.
    pub async fn event_async(&self) -> Result<StackEvent, WaitError> {
        Ok(poll_fn(|context| self.channel.poll_event(context)).await?)
    }

    /// The next event, if one waits.
    pub fn try_event(&self) -> Option<StackEvent> {
        tried(|context| self.channel.poll_event(context)).ok().flatten()
    }

    /// What has been sent and received.
    pub fn statistics(&self) -> Statistics {
        let mut counters = Vec::new();
        self.channel.statistics(|micro_protocol, name, value| {
            counters.push(Counter { micro_protocol: micro_protocol.to_owned(), name, value });
        });
        Statistics { totals: self.channel.stats(), rtt: self.channel.path().rtt, counters }
    }

    /// The recipe in force.
    pub fn recipe(&self) -> Recipe {
        self.channel.recipe()
    }

    /// Where the other side was last heard of.
    pub fn peer(&self) -> SocketAddr {
        self.channel.peer()
    }

    /// Identifies the client at its server, also after it has resumed.
    pub fn identity(&self) -> u32 {
        self.channel.identity()
    }

    /// How the connection has ended, if it has.
    pub fn ended(&self) -> Option<ConnectionError> {
        let in_streams = self.streams.as_ref().and_then(|streams| streams.ended());
        in_streams.or_else(|| self.channel.ended()).map(Into::into)
    }

    /// Ends the connection at once; the other side is told that something is missing.
    pub fn abort(&self) {
        self.channel.abort();
    }

    /// Ends the connection for all clones: waits for what is on its way, closes and waits for the answer,
    /// `timeout` in all.
    ///
    /// # Errors
    /// If not everything is known to have arrived by then.
    pub fn close(&self, timeout: Duration) -> Result<(), WaitError> {
        self.wait_for(Some(timeout), "the arrival of everything", |context| self.poll_close(context)).or_else(
            |error| match error {
                // All has arrived, and only the answer to the close has not come.
                WaitError::TimedOut(_) if self.channel.close_now() => Ok(()),
                error => Err(error),
            },
        )
    }

    fn poll_close(&self, context: &mut Context<'_>) -> Poll<Result<(), Error>> {
        if let Some(streams) = self.streams.as_ref().filter(|_| !self.channel.is_closing()) {
            // How the connection has ended, the channel says.
            let _ = ready!(streams.poll_flush(context));
        }
        self.channel.poll_close(context)
    }

    /// As [`Connection::close`], for tasks: without a limit for what is on its way, which an executor's own timeout
    /// sets.
    ///
    /// # Errors
    /// How the connection has ended, if not as it should.
    pub async fn close_async(&self) -> Result<(), WaitError> {
        Ok(poll_fn(|context| self.poll_close(context)).await?)
    }

    /// Waits until the connection has ended, and gives how: after [`Connection::abort`], until the other side has
    /// answered or the close was repeated often enough.
    ///
    /// # Errors
    /// [`WaitError::TimedOut`].
    pub fn wait_ended(&self, timeout: Duration) -> Result<ConnectionError, WaitError> {
        self.wait_for(Some(timeout), "the answer to the closing", |context| {
            self.channel.poll_ended(context).map(|how| Ok(how.into()))
        })
    }
}

/// What there is now.
fn tried<T>(poll: impl FnOnce(&mut Context<'_>) -> Poll<Result<T, Error>>) -> Result<Option<T>, Error> {
    match poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(found) => found.map(Some),
        Poll::Pending => Ok(None),
    }
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.channel.fmt(f)
    }
}
