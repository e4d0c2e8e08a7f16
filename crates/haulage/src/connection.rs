use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::task::{Context, Poll};

use haul_base::{Rate, Span};
use haul_engine::{Channel, EngineError as Error, Message};
use haul_stack::{ProtocolStats, Recipe, RecipeError, SendOptions, StackEvent, StackStats};
use haul_wire::control::Cipher;

use crate::streams::{RecvStream, SendStream, Streams, both};
use crate::{ConnectionError, Operation, Polled, SendError, WaitError};

/// Counters of a connection.
#[derive(Clone, Debug)]
pub struct Statistics {
    /// Packets and messages in both directions.
    pub totals: StackStats,
    /// Smoothed round-trip time, or the initial estimate if the recipe does not measure it.
    pub rtt: Span,
    /// Counters of the micro-protocols, each with its name in the recipe.
    pub micro_protocols: Vec<(String, Arc<dyn ProtocolStats>)>,
}

impl Statistics {
    /// Returns the counters of type `T`, from [`stats`](crate::stats) or your own, if the recipe has them.
    pub fn of<T: ProtocolStats>(&self) -> Option<&T> {
        self.micro_protocols.iter().find_map(|(_, stats)| stats.of())
    }
}

/// One end of a connection that carries messages. Clones are handles to the same end, for other threads and
/// tasks. Dropping the last clone ends the connection without waiting for outstanding data
/// ([`Connection::close`] waits).
#[derive(Clone)]
pub struct Connection {
    channel: Arc<Channel>,
    /// If the recipe has `streams`: messages are then sent and received through them.
    streams: Option<Arc<Streams>>,
}

impl Connection {
    pub(crate) fn of(channel: Channel) -> Self {
        let channel = Arc::new(channel);
        Self { streams: Streams::of(&channel), channel }
    }

    /// Sends a message and returns its number. Waits while the send queue is full.
    ///
    /// # Errors
    /// If the recipe cannot carry the message, or the connection has ended.
    pub fn send(&self, data: &[u8]) -> Operation<'_, impl Polled<u64, SendError>> {
        self.send_with(data, SendOptions::default())
    }

    /// Like [`Connection::send`], with a priority or an expiry time.
    pub fn send_with(&self, data: &[u8], options: SendOptions) -> Operation<'_, impl Polled<u64, SendError>> {
        self.operation("buffer space for the message", move |context| self.poll_send(context, data, options))
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

    /// An operation on this connection. A thread that waits for it drives the endpoint.
    fn operation<T, E: From<Error>>(
        &self,
        what: &'static str,
        mut poll: impl Polled<T, Error>,
    ) -> Operation<'_, impl Polled<T, E>> {
        let poll = move |context: &mut Context<'_>| poll(context).map_err(E::from);
        Operation::new(what, Some(&self.channel), poll)
    }

    /// Receives the next message.
    ///
    /// # Errors
    /// [`ConnectionError::Closed`] after the last message; otherwise why the connection ended.
    pub fn recv(&self) -> Operation<'_, impl Polled<Message, WaitError>> {
        self.operation("a message", |context| self.poll_recv(context))
    }

    fn poll_recv(&self, context: &mut Context<'_>) -> Poll<Result<Message, Error>> {
        match &self.streams {
            Some(streams) => streams.poll_recv(context),
            None => self.channel.poll_recv(context),
        }
    }

    /// Opens a stream of bytes, if the recipe has `streams`. The peer can accept it once this end has written
    /// to, finished or dropped it. Waits while the recipe's limit of open streams is reached.
    ///
    /// # Errors
    /// If the recipe has no streams, or the connection has ended.
    pub fn open_stream(&self) -> Operation<'_, impl Polled<(SendStream, RecvStream), WaitError>> {
        self.operation("permission to open a stream", |context| {
            let streams = self.streams()?;
            streams.poll_open(context).map_ok(|number| both(streams, number))
        })
    }

    /// Waits for the next stream of bytes opened by the peer.
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

    /// Waits until all data has been sent and, if the recipe acknowledges, received by the peer.
    ///
    /// # Errors
    /// If the connection has ended.
    pub fn flush(&self) -> Operation<'_, impl Polled<(), WaitError>> {
        self.operation("delivery of all data", |context| self.poll_flush(context))
    }

    fn poll_flush(&self, context: &mut Context<'_>) -> Poll<Result<(), Error>> {
        match &self.streams {
            Some(streams) => streams.poll_flush(context),
            None => self.channel.poll_flush(context),
        }
    }

    /// Requests that the peer send at this rate. Requires `rate_feedback` in the recipe.
    pub fn set_rate(&self, rate: Rate) {
        self.channel.set_rate(rate);
    }

    /// Changes the recipe of both ends without losing data. [`Event::Reconfigured`](crate::Event) or
    /// [`Event::Refused`](crate::Event) reports the outcome.
    ///
    /// # Errors
    /// If the connection cannot change from its current recipe to this one.
    pub fn reconfigure(&self, recipe: &Recipe) -> Result<(), RecipeError> {
        self.channel.reconfigure(recipe)
    }

    /// Waits for the next event: a new rate or recipe, or an abandoned message.
    ///
    /// # Errors
    /// If the connection has ended.
    pub fn event(&self) -> Operation<'_, impl Polled<StackEvent, WaitError>> {
        self.operation("an event", |context| self.channel.poll_event(context))
    }

    /// Returns the counters of the connection.
    pub fn statistics(&self) -> Statistics {
        let mut micro_protocols = Vec::new();
        self.channel.statistics(|name, stats| micro_protocols.push((name.to_owned(), stats.to_arc())));
        Statistics { totals: self.channel.stats(), rtt: self.channel.path().rtt, micro_protocols }
    }

    /// Returns the current recipe.
    pub fn recipe(&self) -> Recipe {
        self.channel.recipe()
    }

    /// Returns the cipher that protects the packets.
    pub fn cipher(&self) -> Cipher {
        self.channel.cipher()
    }

    /// Returns the peer's address: the last validated one, or that of its first packet.
    pub fn peer(&self) -> SocketAddr {
        self.channel.peer()
    }

    /// Returns the ID by which the server knows the client; resuming keeps it.
    pub fn identity(&self) -> u32 {
        self.channel.identity()
    }

    /// Returns why the connection ended, or `None` while it is open.
    pub fn ended(&self) -> Option<ConnectionError> {
        let in_streams = self.streams.as_ref().and_then(|streams| streams.ended());
        in_streams.or_else(|| self.channel.ended()).map(Into::into)
    }

    /// Ends the connection at once. The peer is told that data is missing.
    pub fn abort(&self) {
        self.channel.abort();
    }

    /// Closes the connection for all clones: waits for outstanding data, closes, and waits for the peer's
    /// answer or the last repetition of the close. After a timeout, may be called again; `flush().now()` is
    /// `Ok(Some(()))` if only the answer is missing. [`Connection::abort`] tells the peer that data is missing.
    ///
    /// # Errors
    /// If not all data is known to have arrived, or after a timeout without an answer.
    pub fn close(&self) -> Operation<'_, impl Polled<(), WaitError>> {
        self.operation("delivery of all data and the peer's answer", |context| self.poll_close(context))
    }

    fn poll_close(&self, context: &mut Context<'_>) -> Poll<Result<(), Error>> {
        // The channel reports how the connection ended.
        let flushed = self.streams.as_ref().map_or(Poll::Ready(()), |own| own.poll_flush(context).map(drop));
        self.channel.poll_close(context, flushed)
    }

    /// Waits until the connection has ended, and returns how. After [`Connection::abort`], that is when the
    /// peer has answered or the last repeated close was sent.
    pub fn closed(&self) -> Operation<'_, impl Polled<ConnectionError, WaitError>> {
        self.operation("the peer to close", |context| {
            self.channel.poll_ended(context).map(|how| Ok(how.into()))
        })
    }
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.channel.fmt(f)
    }
}
