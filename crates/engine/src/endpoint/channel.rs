use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use haul_base::{Rate, Time};
use haul_proto::connection::{Application, SavedResumption, canonical};
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
use crate::wake::{block_with, park};
use crate::{EngineError, Role};

/// A received message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// Number assigned by the sender, if the recipe carries one.
    pub id: u64,
    /// Payload.
    pub data: Vec<u8>,
}

/// One end of a connection. All methods may be called from any thread. Dropping it closes the connection
/// without waiting until sent data has arrived; while the endpoint exists, an unanswered close is repeated a
/// few times.
#[derive(derive_more::Debug)]
#[debug("Channel({:?}, {})", self.role(), self.identity())]
pub struct Channel {
    connection: Arc<Connection>,
    endpoint: Endpoint,
    saved: Option<Box<SavedResumption>>,
    closing: ControlFrameKind,
    /// Whether the application has waited for all data to arrive.
    is_close_requested: AtomicBool,
}

/// Result of an attempt under the connection's lock; `None` if not ready.
type Attempt<T> = Result<Option<T>, EngineError>;

impl Channel {
    pub(super) fn new(
        connection: Arc<Connection>,
        endpoint: Endpoint,
        saved: Option<Box<SavedResumption>>,
    ) -> Self {
        let closing =
            if saved.is_some() { ControlFrameKind::CloseAndDropResumption } else { ControlFrameKind::Close };
        Self { connection, endpoint, saved, closing, is_close_requested: AtomicBool::new(false) }
    }

    /// Returns which end this is.
    pub fn role(&self) -> Role {
        self.connection.role()
    }

    /// Returns the ID by which the server knows the client, the same for all its connections.
    pub fn identity(&self) -> u32 {
        self.connection.identity()
    }

    /// Returns the cipher that protects the packets.
    pub fn cipher(&self) -> Cipher {
        self.connection.cipher
    }

    /// Returns the peer's validated address, or that of its first packet if none is validated yet.
    pub fn peer(&self) -> SocketAddr {
        canonical(self.connection.lock().peer.at)
    }

    /// Returns the current recipe.
    pub fn recipe(&self) -> Recipe {
        self.connection.lock().stack.recipe().clone()
    }

    /// Returns the length of the longest message that the current recipe carries.
    pub fn longest_message(&self) -> usize {
        self.connection.lock().stack.longest_message()
    }

    /// Returns the counters of the stack.
    pub fn stats(&self) -> StackStats {
        self.connection.lock().stack.stats()
    }

    /// Returns the state of the path.
    pub fn path(&self) -> PathState {
        self.connection.lock().stack.path()
    }

    /// Calls `each` with the name and the counters of each micro-protocol.
    pub fn statistics(&self, each: impl FnMut(&str, &dyn ProtocolStats)) {
        // If a micro-protocol panics, the connection ends and the peer is told at once.
        self.with(|state, _| state.stack.statistics(each));
    }

    /// Returns the state for resuming without a handshake, if
    /// [`ResumptionFile::store`](crate::ResumptionFile::store) stores it; `None` at a server.
    pub fn saved(&self) -> Option<&SavedResumption> {
        self.saved.as_deref()
    }

    /// Keeps the server's resumption state when this connection is closed.
    pub(crate) fn keep_resumption(&mut self) {
        self.closing = ControlFrameKind::Close;
    }

    fn now(&self) -> Time {
        self.endpoint.shared().clock.now()
    }

    /// Runs `work` with the locked state, then sends what is pending.
    fn with<R>(&self, work: impl FnOnce(&mut LockedConnection, Time) -> R) -> R {
        let now = self.now();
        let mut state = self.connection.lock();
        let result = work(&mut state, now);
        let shared = self.endpoint.shared();
        self.connection.process(shared, &mut state, now);
        Connection::release(state);
        result
    }

    /// Blocks this thread until `poll` is ready; returns `None` if `until` passes first. Meanwhile drives the
    /// endpoint, unless another thread does.
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

    /// Like [`Channel::block_until`], but with a timeout that becomes [`EngineError::TimedOut`], which names
    /// `what`.
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

    /// Attempts once; without a result, wakes `context` at the next change of the connection. After a message
    /// is received, deferred packets stay deferred for the application's reply.
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
            let is_deferred = state.reply_pending && state.transmit_at.is_some();
            let changed =
                !(is_deferred && result.is_some()) && self.connection.process(shared, &mut state, now);
            if result.is_none() && !changed {
                let oldest = state.wakers.add(context.waker());
                drop(state);
                oldest.wake();
                return Poll::Pending;
            }
            Connection::release(state);
            if let Some(result) = result {
                return Poll::Ready(result);
            }
            state = self.connection.lock();
        }
    }

    /// Sends a message and returns its number, once no more than
    /// [`ConnectionOptions::queue`](crate::ConnectionOptions) bytes are queued.
    ///
    /// # Errors
    /// [`EngineError::Message`] if the recipe cannot carry the message; why the connection ended.
    pub fn poll_send(
        &self,
        context: &mut Context<'_>,
        data: &[u8],
        options: SendOptions,
    ) -> Poll<Result<u64, EngineError>> {
        self.poll(context, |state, now| state.send(now, data, options))
    }

    /// Receives the next message.
    ///
    /// # Errors
    /// Why the connection ended, after its last message.
    pub fn poll_recv(&self, context: &mut Context<'_>) -> Poll<Result<Message, EngineError>> {
        self.poll(context, |state, _| state.recv())
    }

    /// Waits until all data has been sent and, if the recipe acknowledges, has arrived.
    ///
    /// # Errors
    /// Why the connection ended.
    pub fn poll_flush(&self, context: &mut Context<'_>) -> Poll<Result<(), EngineError>> {
        self.poll(context, |state, _| state.flushed())
    }

    /// Waits until the server has confirmed that it knows the connection. Ready at once at the server.
    ///
    /// # Errors
    /// Why the connection ended.
    pub fn poll_confirmed(&self, context: &mut Context<'_>) -> Poll<Result<(), EngineError>> {
        self.poll(context, |state, _| match state.ended() {
            Some(error) => Err(error),
            None => Ok((!state.lifecycle.is_unconfirmed()).then_some(())),
        })
    }

    /// Requests that the peer send at this rate, if the recipe has `rate_feedback`.
    pub fn set_rate(&self, rate: Rate) {
        self.with(|state, now| state.stack.request_rate(now, rate));
    }

    /// Changes the recipe of both ends while the connection runs; an event reports the outcome.
    ///
    /// # Errors
    /// If the current recipe cannot be changed to this one, or the connection is closing or has ended.
    pub fn reconfigure(&self, recipe: &Recipe) -> Result<(), RecipeError> {
        self.with(|state, now| state.reconfigure(now, recipe))
    }

    /// Takes the oldest event of the stack; the last 64 are kept.
    ///
    /// # Errors
    /// Why the connection ended.
    pub fn poll_event(&self, context: &mut Context<'_>) -> Poll<Result<StackEvent, EngineError>> {
        self.poll(context, |state, _| match state.next_event() {
            Some(event) => Ok(Some(event)),
            None => state.ended().map_or(Ok(None), Err),
        })
    }

    /// Returns why the connection ended, or `None` while it is open.
    pub fn ended(&self) -> Option<EngineError> {
        self.connection.lock().ended()
    }

    /// Whether this end has closed, or the connection has ended.
    pub fn is_closing(&self) -> bool {
        self.connection.lock().lifecycle.is_closing()
    }

    /// Ends the connection: ready when all data has arrived and the peer has answered the close. `flushed` is
    /// pending while the caller has data to pass on.
    ///
    /// # Errors
    /// Why the connection ended, if not gracefully: [`EngineError::Closed`] if the peer closed before all
    /// data was known to have arrived.
    pub fn poll_close(&self, context: &mut Context<'_>, flushed: Poll<()>) -> Poll<Result<(), EngineError>> {
        self.is_close_requested.store(true, Ordering::Relaxed);
        if !self.is_closing() {
            ready!(flushed);
            match ready!(self.poll_flush(context)) {
                Err(error) if !matches!(error, EngineError::Closed) => return Poll::Ready(Err(error)),
                _ => self.start_close(CloseReason::Graceful),
            }
        }
        self.poll_ended(context).map(|ended| match ended {
            // The peer may have closed before it had everything.
            EngineError::Closed if self.connection.lock().stack.outstanding() == 0 => Ok(()),
            error => Err(error),
        })
    }

    /// Waits for the end of the connection, and returns why it ended: after a close, when it was answered or
    /// the last repetition was sent.
    pub fn poll_ended(&self, context: &mut Context<'_>) -> Poll<EngineError> {
        self.poll(context, |state, _| Ok(state.ended())).map(|ended| ended.unwrap_or_else(|error| error))
    }

    /// Ends the connection at once. The peer is told that data is missing.
    pub fn abort(&self) {
        self.start_close(CloseReason::Abort);
    }

    fn start_close(&self, reason: CloseReason) {
        let now = self.now();
        let shared = self.endpoint.shared();
        let mut state = self.connection.lock();
        // Sends a deferred acknowledgement.
        self.connection.process(shared, &mut state, now);
        state.lifecycle.start_close(now, self.closing, reason);
        self.connection.send_due_frames(shared, &mut state, now);
        self.connection.set_timer(shared, &mut state, false);
        Connection::release(state);
    }
}

impl Endpoint {
    /// Rejects connections opened by peers from now on, and aborts those not accepted yet.
    pub(crate) fn stop_accepting(&self) {
        for connection in self.shared().stop_accepting() {
            Channel::new(connection, self.clone(), None).abort();
        }
    }

    /// Waits for the next connection opened by a peer.
    ///
    /// # Errors
    /// [`EngineError::Closed`] if the endpoint or its listener has ended.
    pub fn poll_accept(&self, context: &Context<'_>) -> Poll<Result<Channel, EngineError>> {
        self.shared().poll_backlog(context).map_ok(|connection| Channel::new(connection, self.clone(), None))
    }
}

impl Channel {
    /// Waits up to 20 ms until a batch that did not fit the socket buffer is sent.
    fn add_blocked(&self) {
        let shared = self.endpoint.shared();
        self.connection.flush(shared, self.now());
        for _ in 0..20 {
            if self.connection.lock().has_nothing_unsent() {
                return;
            }
            // After 20 ms it is left to the endpoint's thread.
            let _ = shared.socket.wait(Interest::Write, Duration::from_millis(1));
            self.connection.on_writable(shared, self.now());
        }
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        // The endpoint may end with this channel: an unsent batch must be sent now.
        self.add_blocked();
        let is_requested = self.is_close_requested.load(Ordering::Relaxed);
        let state = self.connection.lock();
        // Sent data may still arrive, unless the application gave up waiting; queued data probably will not.
        let is_graceful = state.stack.queued_bytes() == 0 && (!is_requested || state.lifecycle.is_closing());
        drop(state);
        self.start_close(if is_graceful { CloseReason::Graceful } else { CloseReason::Abort });
        self.connection.lock().application = Application::Dropped;
        self.endpoint.shared().remove_if_over(&self.connection);
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
            self.reply_pending = true;
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

    use super::*;
    use crate::endpoint::tests::Maker;

    #[test]
    fn slow_answers_make_acknowledgements_immediate() {
        let connection = Maker::new().connection(7);
        let mut state = connection.lock();
        for (seconds, micros, replies) in [(1, 5_000, false), (2, 100, true)] {
            let arrived = Time::ZERO + Span::from_secs(seconds);
            state.lifecycle.on_authentic(arrived);
            state.reply_pending = true;
            state.send(arrived + Span::from_micros(micros), b"answer", SendOptions::default()).unwrap();
            assert_eq!((state.replies, state.reply_pending), (replies, false), "after {micros} us");
        }
    }
}
