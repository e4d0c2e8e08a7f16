use std::net::SocketAddr;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use haul_base::{Rate, Time};
use haul_proto::connection::{SavedResumption, canonical};
use haul_stack::{
    PathState, ProtocolStats, Recipe, RecipeError, SendError, SendOptions, StackEvent, StackStats,
};
use haul_udp::Interest;
use haul_wire::control::Cipher;
use haul_wire::packet::{CloseReason, ControlFrameKind};

use super::Endpoint;
use super::connection::{Connection, LockedConnection};
use super::driver::InlineDriver;
use crate::clock::after;
use crate::wake::{block_with, lock, park};
use crate::{EngineError, Role};

/// A message that has come.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// Its number at the sender, if the recipe carries one.
    pub id: u64,
    /// Its bytes.
    pub data: Vec<u8>,
}

/// One end of a connection. Any thread may use it; dropping it closes the connection without waiting for the arrival of
/// what was sent.
#[derive(derive_more::Debug)]
#[debug("Channel({:?}, {})", self.role(), self.identity())]
pub struct Channel {
    connection: Arc<Connection>,
    endpoint: Endpoint,
    /// The client's.
    saved: Option<Box<SavedResumption>>,
    closing: ControlFrameKind,
}

/// The result of an attempt under the connection's lock; `None`: not yet.
type Attempt<T> = Result<Option<T>, EngineError>;

impl Channel {
    pub(super) fn new(
        connection: Arc<Connection>,
        endpoint: Endpoint,
        saved: Option<Box<SavedResumption>>,
    ) -> Self {
        let closing =
            if saved.is_some() { ControlFrameKind::CloseAndDropResumption } else { ControlFrameKind::Close };
        Self { connection, endpoint, saved, closing }
    }

    /// Which end this is.
    pub fn role(&self) -> Role {
        self.connection.role()
    }

    /// Names the client at its server; all its connections have it.
    pub fn identity(&self) -> u32 {
        self.connection.identity()
    }

    /// How packets are protected; `None` once the client is forgotten.
    pub fn cipher(&self) -> Option<Cipher> {
        lock(&self.endpoint.shared().table).get(self.identity()).map(|peer| peer.resumption.cipher)
    }

    /// Where the other end is, as far as it has shown that.
    pub fn peer(&self) -> SocketAddr {
        canonical(self.connection.lock().peer.at)
    }

    /// The recipe in force.
    pub fn recipe(&self) -> Recipe {
        self.connection.lock().stack.recipe().clone()
    }

    /// The longest message that the recipe in force carries.
    pub fn longest_message(&self) -> usize {
        self.connection.lock().stack.longest_message()
    }

    /// The counters of the stack.
    pub fn stats(&self) -> StackStats {
        self.connection.lock().stack.stats()
    }

    /// What is known of the path.
    pub fn path(&self) -> PathState {
        self.connection.lock().stack.path()
    }

    /// What the micro-protocols count, with the name of each.
    pub fn statistics(&self, each: impl FnMut(&str, &dyn ProtocolStats)) {
        // A micro-protocol that panics there ends the connection; the other end is told at once.
        self.with(|state, _| state.stack.statistics(each));
    }

    /// What lets this client come back later without a handshake, if
    /// [`ResumptionFile::keep`](super::ResumptionFile::keep) keeps it; `None` at a server.
    pub fn saved(&self) -> Option<&SavedResumption> {
        self.saved.as_deref()
    }

    /// From now on the resumption state outlives this connection.
    pub(super) fn keep(&mut self) {
        self.closing = ControlFrameKind::Close;
    }

    fn now(&self) -> Time {
        self.endpoint.shared().clock.now()
    }

    /// Runs `work` with the state, then sends what there is to send.
    fn with<R>(&self, work: impl FnOnce(&mut LockedConnection, Time) -> R) -> R {
        let now = self.now();
        let mut state = self.connection.lock();
        let result = work(&mut state, now);
        let shared = self.endpoint.shared();
        self.connection.settle(shared, &mut state, now);
        Connection::release(state);
        result
    }

    /// Waits in this thread for what `poll` gives; `None` if there is nothing by `until`. Drives the endpoint
    /// meanwhile, unless another thread does.
    pub fn block_until<T>(
        &self,
        until: Option<Instant>,
        poll: impl FnMut(&mut Context<'_>) -> Poll<T>,
    ) -> Option<T> {
        let shared = self.endpoint.shared();
        let mut inline: Option<InlineDriver<'_>> = None;
        block_with(until, poll, |thread| match &mut inline {
            Some(inline) => {
                inline.turn(until.map(|until| shared.clock.time(until)), self.connection.busy_poll);
            }
            None if shared.is_stopped() => park(until),
            None => match InlineDriver::start(shared, thread) {
                Some(driver) => inline = Some(driver),
                None => park(until),
            },
        })
    }

    /// As [`Channel::block_until`] the timeout has passed, which is then [`EngineError::TimedOut`] and says for `what`.
    ///
    /// # Errors
    /// Those of `poll`; [`EngineError::TimedOut`].
    pub fn wait_for<T, E: From<EngineError>>(
        &self,
        timeout: Option<Duration>,
        what: &'static str,
        poll: impl FnMut(&mut Context<'_>) -> Poll<Result<T, E>>,
    ) -> Result<T, E> {
        let found = self.block_until(timeout.map(after), poll);
        found.unwrap_or_else(|| Err(EngineError::timed_out(what, timeout).into()))
    }

    /// Tries; without a result, `context` is woken when the connection has changed, and not before. After a message,
    /// packets that wait for the application's answer go on waiting.
    fn poll<R>(
        &self,
        context: &Context<'_>,
        mut attempt: impl FnMut(&mut LockedConnection, Time) -> Attempt<R>,
    ) -> Poll<Result<R, EngineError>> {
        let shared = self.endpoint.shared();
        let mut state = self.connection.lock();
        loop {
            let now = self.now();
            let result = attempt(&mut state, now).transpose();
            let is_deferred = state.owes_reply && state.transmit_at.is_some();
            let changed =
                !(is_deferred && result.is_some()) && self.connection.settle(shared, &mut state, now);
            if result.is_none() && !changed {
                state.wakers.add(context.waker());
                return Poll::Pending;
            }
            Connection::release(state);
            if let Some(result) = result {
                return Poll::Ready(result);
            }
            state = self.connection.lock();
        }
    }

    /// Sends a message and gives its number, as soon as no more than
    /// [`ConnectionOptions::queue`](crate::ConnectionOptions) bytes are queued.
    ///
    /// # Errors
    /// [`EngineError::Message`] if the recipe does not carry such a message; how the connection has ended.
    pub fn poll_send(
        &self,
        context: &mut Context<'_>,
        data: &[u8],
        options: SendOptions,
    ) -> Poll<Result<u64, EngineError>> {
        self.poll(context, |state, now| state.send(now, data, options))
    }

    /// The next message.
    ///
    /// # Errors
    /// How the connection has ended, after its last message.
    pub fn poll_recv(&self, context: &mut Context<'_>) -> Poll<Result<Message, EngineError>> {
        self.poll(context, |state, _| state.recv())
    }

    /// Ready when everything has left and, where the recipe acknowledges, has arrived.
    ///
    /// # Errors
    /// How the connection has ended.
    pub fn poll_flush(&self, context: &mut Context<'_>) -> Poll<Result<(), EngineError>> {
        self.poll(context, |state, _| state.flushed())
    }

    /// Ready when the other side has shown that it knows the connection. The server's end always knows.
    ///
    /// # Errors
    /// How the connection has ended.
    pub fn poll_confirmed(&self, context: &mut Context<'_>) -> Poll<Result<(), EngineError>> {
        self.poll(context, |state, _| match state.ended() {
            Some(error) => Err(error),
            None => Ok((!state.lifecycle.is_unconfirmed()).then_some(())),
        })
    }

    /// Asks the sender at the other end for this rate (with `rate_feedback` in the recipe), now or at any time.
    pub fn set_rate(&self, rate: Rate) {
        self.with(|state, now| state.stack.want_rate(now, rate));
    }

    /// Changes the recipe of both ends while the connection goes on; an event tells how it ended.
    ///
    /// # Errors
    /// If it cannot follow on the present one.
    pub fn reconfigure(&self, recipe: &Recipe) -> Result<(), RecipeError> {
        self.with(|state, now| state.stack.reconfigure(now, recipe))
    }

    /// The oldest event of the stack that was not taken yet; the last 64 are kept.
    ///
    /// # Errors
    /// How the connection has ended.
    pub fn poll_event(&self, context: &mut Context<'_>) -> Poll<Result<StackEvent, EngineError>> {
        self.poll(context, |state, _| match state.next_event() {
            Some(event) => Ok(Some(event)),
            None => state.ended().map_or(Ok(None), Err),
        })
    }

    /// How the connection has ended, if it has.
    pub fn ended(&self) -> Option<EngineError> {
        self.connection.lock().ended()
    }

    /// This end has closed, or the connection has ended.
    pub fn is_closing(&self) -> bool {
        self.connection.lock().lifecycle.is_closing()
    }

    /// Ends the connection: ready when everything has arrived and the other side has answered the close.
    ///
    /// # Errors
    /// How the connection has ended, if not as it should: [`EngineError::Closed`] if the other side has closed before
    /// everything was known to have arrived.
    pub fn poll_close(&self, context: &mut Context<'_>) -> Poll<Result<(), EngineError>> {
        if !self.is_closing() {
            match ready!(self.poll_flush(context)) {
                Err(error) if !matches!(error, EngineError::Closed) => return Poll::Ready(Err(error)),
                _ => self.start_close(CloseReason::Graceful),
            }
        }
        self.poll_ended(context).map(|ended| match ended {
            // The other side may have closed before it had everything.
            EngineError::Closed if self.connection.lock().stack.outstanding() == 0 => Ok(()),
            error => Err(error),
        })
    }

    /// Closes without waiting any longer; the other side is told if something is missing. Returns whether everything is
    /// known to have arrived.
    pub fn close_now(&self) -> bool {
        let has_arrived = self.is_closing() && !self.connection.lock().lifecycle.is_unconfirmed();
        let is_whole = self.connection.lock().stack.outstanding() == 0;
        self.start_close(if is_whole { CloseReason::Graceful } else { CloseReason::Abort });
        has_arrived
    }

    /// How the connection has ended, once it has: after a close, when it was answered or repeated often enough.
    pub fn poll_ended(&self, context: &mut Context<'_>) -> Poll<EngineError> {
        self.poll(context, |state, _| Ok(state.ended())).map(|ended| ended.unwrap_or_else(|error| error))
    }

    /// Ends the connection at once; the other side is told that something is missing.
    pub fn abort(&self) {
        self.start_close(CloseReason::Abort);
    }

    fn start_close(&self, reason: CloseReason) {
        let now = self.now();
        let shared = self.endpoint.shared();
        let mut state = self.connection.lock();
        // An acknowledgement may have been deferred.
        self.connection.settle(shared, &mut state, now);
        state.start_close(now, self.closing, reason);
        self.connection.send_due_frames(shared, &mut state, now);
        self.connection.set_timer(shared, &mut state, false);
        Connection::release(state);
    }
}

impl Endpoint {
    /// The next connection that the other side has begun.
    ///
    /// # Errors
    /// [`EngineError::Closed`] if the endpoint has ended.
    pub fn poll_accept(&self, context: &Context<'_>) -> Poll<Result<Channel, EngineError>> {
        self.shared().poll_arrival(context).map_ok(|connection| Channel::new(connection, self.clone(), None))
    }
}

impl Channel {
    /// Waits up to 20 ms until the batch that a full socket did not take has left.
    fn wait_for_room(&self) {
        let shared = self.endpoint.shared();
        self.connection.flush(shared, self.now());
        for _ in 0..20 {
            if self.connection.lock().has_nothing_unsent() {
                return;
            }
            // Without room in time the batch is lost, as on the path.
            let _ = shared.socket.wait(Interest::Write, Duration::from_millis(1));
            self.connection.on_room(shared, self.now());
        }
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        // Nothing serves the connection after this, so a batch that waits for room must leave now.
        self.wait_for_room();
        // What has left may arrive; what is still queued never does.
        let has_left = self.connection.lock().stack.queued_bytes() == 0;
        self.start_close(if has_left { CloseReason::Graceful } else { CloseReason::Abort });
        let peer = self.connection.lock().peer.validated();
        let shared = self.endpoint.shared();
        let mut table = lock(&shared.table);
        if table.end(shared.clock.now(), self.identity(), &self.connection, peer)
            && self.role() == Role::Client
        {
            table.remove(self.identity());
        }
    }
}

impl LockedConnection {
    fn send(&mut self, now: Time, data: &[u8], options: SendOptions) -> Attempt<u64> {
        if self.lifecycle.is_closing() {
            return Err(self.ended().unwrap_or(EngineError::Closed));
        }
        match self.stack.send(now, data, options) {
            Ok(id) => {
                self.on_message_sent(now);
                Ok(Some(id))
            }
            // A stack that has just failed reports it with its next event.
            Err(SendError::Full(_) | SendError::Ended) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    fn recv(&mut self) -> Attempt<Message> {
        if let Some((id, buffer)) = self.stack.recv() {
            let data = buffer.to_vec();
            self.stack.recycle(buffer);
            self.owes_reply = true;
            return Ok(Some(Message { id, data }));
        }
        self.ended().map_or(Ok(None), Err)
    }

    fn has_nothing_unsent(&self) -> bool {
        self.unsent.is_none() || self.ended().is_some()
    }

    fn flushed(&mut self) -> Attempt<()> {
        // The unsent batch has left the stack, but not this host.
        if self.stack.outstanding() == 0 && self.has_nothing_unsent() {
            return Ok(Some(()));
        }
        self.ended().map_or(Ok(None), Err)
    }
}

#[cfg(test)]
mod tests {
    use haul_base::Span;
    use haul_proto::connection::{PeerAddress, ResumptionSecret, ResumptionState, compile};
    use haul_proto::micro::registry;
    use haul_stack::Ends;
    use haul_wire::control::Cipher;
    use haul_wire::packet::ConnectionId;

    use super::*;
    use crate::ConnectionOptions;

    fn connection() -> Connection {
        let recipe = Recipe::new("test").with("fixed_size").with("transport_driver").with("seal");
        let (cipher, round_trip) = (Cipher::Aes128Gcm, Span::from_millis(1));
        let compiled = compile(&Arc::new(registry()), &recipe, cipher).unwrap();
        let secret = ResumptionSecret([1; 32].into());
        let resumption =
            ResumptionState { role: Role::Server, identity: 7, secret, cipher, compiled, round_trip };
        let id = ConnectionId { identity: 7, epoch: 1, salt: 0 };
        let peer = PeerAddress { at: "127.0.0.1:9".parse().unwrap(), moves: Some(0) };
        let (options, ends) = (ConnectionOptions::default(), Ends::default());
        Connection::new(Time::ZERO, &resumption, id, peer, Duration::ZERO, &options, ends).unwrap()
    }

    #[test]
    fn an_answer_that_took_longer_than_acknowledgements_wait_has_none_wait_for_the_next() {
        let connection = connection();
        let mut state = connection.lock();
        for (seconds, micros, replies) in [(1, 5_000, false), (2, 100, true)] {
            let came = Time::ZERO + Span::from_secs(seconds);
            state.lifecycle.on_authentic(came);
            state.owes_reply = true;
            state.send(came + Span::from_micros(micros), b"answer", SendOptions::default()).unwrap();
            assert_eq!((state.replies, state.owes_reply), (replies, false), "after {micros} us");
        }
    }
}
