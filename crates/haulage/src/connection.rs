use std::fmt;
use std::future::poll_fn;
use std::net::SocketAddr;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use haul_base::{Rate, Span};
use haul_engine::{Channel, EngineError as Error, Message};
use haul_stack::{ProtocolStats, Recipe, RecipeError, SendOptions, StackEvent, StackStats};
use haul_wire::control::Cipher;

use crate::streams::{RecvStream, SendStream, Streams, both};
use crate::{ConnectionError, Operation, Polled, SendError, WaitError};

/// What a connection has done so far.
#[derive(Clone, Debug)]
pub struct Statistics {
    /// Packets and messages in both directions.
    pub totals: StackStats,
    /// Smoothed round-trip time, or the first guess where the recipe does not measure it.
    pub rtt: Span,
    /// What the micro-protocols count, with the name of each in the recipe.
    pub micro_protocols: Vec<(String, Arc<dyn ProtocolStats>)>,
}

impl Statistics {
    /// The counters of this type ([`stats`](crate::stats), or your own), if a micro-protocol of the recipe has them.
    pub fn of<T: ProtocolStats>(&self) -> Option<&T> {
        self.micro_protocols.iter().find_map(|(_, stats)| stats.of())
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
    pub fn send(&self, data: &[u8]) -> Operation<'_, impl Polled<u64, SendError>> {
        self.send_with(data, SendOptions::default())
    }

    /// As [`Connection::send`], with a priority or a time after which the message is worth nothing.
    pub fn send_with(&self, data: &[u8], options: SendOptions) -> Operation<'_, impl Polled<u64, SendError>> {
        self.operation("room for the message", move |context| self.poll_send(context, data, options))
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

    /// What `poll` waits for. A thread that waits drives the endpoint meanwhile.
    fn operation<T, E: From<Error>>(
        &self,
        what: &'static str,
        mut poll: impl Polled<T, Error>,
    ) -> Operation<'_, impl Polled<T, E>> {
        let poll = move |context: &mut Context<'_>| poll(context).map_err(E::from);
        Operation::new(what, Some(&self.channel), poll)
    }

    /// The next message.
    ///
    /// # Errors
    /// [`ConnectionError::Closed`] after the last message; how the connection has ended otherwise.
    pub fn recv(&self) -> Operation<'_, impl Polled<Message, WaitError>> {
        self.operation("a message", |context| self.poll_recv(context))
    }

    fn poll_recv(&self, context: &mut Context<'_>) -> Poll<Result<Message, Error>> {
        match &self.streams {
            Some(streams) => streams.poll_recv(context),
            None => self.channel.poll_recv(context),
        }
    }

    /// Opens a stream of bytes, if the recipe carries any (`streams`). The other side can accept it once something was
    /// written, finished or dropped. Waits while as many are open as the recipe permits.
    ///
    /// # Errors
    /// If the recipe carries no streams; how the connection has ended.
    pub fn open_stream(&self) -> Operation<'_, impl Polled<(SendStream, RecvStream), WaitError>> {
        self.operation("room for a stream", |context| {
            let streams = self.streams()?;
            streams.poll_open(context).map_ok(|number| both(streams, number))
        })
    }

    /// The next stream of bytes that the other side has opened.
    ///
    /// # Errors
    /// As [`Connection::open_stream`].
    pub fn accept_stream(&self) -> Operation<'_, impl Polled<(SendStream, RecvStream), WaitError>> {
        self.operation("a stream", |context| {
            let streams = self.streams()?;
            streams.poll_accept(context).map_ok(|number| both(streams, number))
        })
    }

    fn streams(&self) -> Result<&Arc<Streams>, Error> {
        let (protocol, alternatives) = ("a stream on a connection".to_owned(), "`streams`".to_owned());
        self.streams.as_ref().ok_or(RecipeError::Missing { protocol, alternatives }.into())
    }

    /// Waits until everything has left and, where the recipe acknowledges, has arrived.
    ///
    /// # Errors
    /// How the connection has ended.
    pub fn flush(&self) -> Operation<'_, impl Polled<(), WaitError>> {
        self.operation("the arrival of everything", |context| self.poll_flush(context))
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

    /// The next event: a new rate or recipe, a message that was given up.
    ///
    /// # Errors
    /// How the connection has ended.
    pub fn event(&self) -> Operation<'_, impl Polled<StackEvent, WaitError>> {
        self.operation("an event", |context| self.channel.poll_event(context))
    }

    /// What has been sent and received.
    pub fn statistics(&self) -> Statistics {
        let mut micro_protocols = Vec::new();
        self.channel.statistics(|name, stats| micro_protocols.push((name.to_owned(), stats.to_arc())));
        Statistics { totals: self.channel.stats(), rtt: self.channel.path().rtt, micro_protocols }
    }

    /// The recipe in force.
    pub fn recipe(&self) -> Recipe {
        self.channel.recipe()
    }

    /// How packets are protected; `None` once the connection is over and its client forgotten.
    pub fn cipher(&self) -> Option<Cipher> {
        self.channel.cipher()
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
        let closing = self.operation("the arrival of everything", |context| self.poll_close(context));
        match closing.wait_for(timeout) {
            // All has arrived, and only the answer to the close has not come.
            Err(WaitError::TimedOut(_)) if self.channel.close_now() => Ok(()),
            closed => closed,
        }
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

    /// How the connection has ended, once it has: after [`Connection::abort`], when the other side has answered or the
    /// close was repeated often enough.
    pub fn closed(&self) -> Operation<'_, impl Polled<ConnectionError, WaitError>> {
        self.operation("the answer to the closing", |context| {
            self.channel.poll_ended(context).map(|how| Ok(how.into()))
        })
    }
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.channel.fmt(f)
    }
}
