use std::fmt;
use std::net::SocketAddr;
use std::sync::{Arc, MutexGuard, PoisonError};
use std::task::{self, Poll};
use std::thread;
use std::time::{Duration, Instant};

use haul_base::{Rate, Time};
use haul_stack::{PathState, Recipe, RecipeError, SendError, SendOptions, StackEvent, StackStats};
use haul_udp::Interest;
use haul_wire::packet::ControlFrameKind;

use super::Endpoint;
use super::connection::{Connection, State};
use super::driver::InlineDriver;
use super::phase::Phase;
use super::shared::lock;
use super::ticket::Ticket;
use crate::error::CloseReason;
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
pub struct Channel {
    connection: Arc<Connection>,
    endpoint: Endpoint,
    /// The client's.
    ticket: Option<Box<Ticket>>,
    closing: ControlFrameKind,
}

/// Whether packets may wait for the application's answer to the result of a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Coalescing {
    Allowed,
    Forbidden,
}

/// The result of an attempt under the connection's lock; `None`: not yet.
type Attempt<T> = Result<Option<T>, EngineError>;

impl Channel {
    pub(super) fn new(connection: Arc<Connection>, endpoint: Endpoint, ticket: Option<Box<Ticket>>) -> Self {
        let closing = if ticket.is_some() { ControlFrameKind::Forget } else { ControlFrameKind::Close };
        Self { connection, endpoint, ticket, closing }
    }

    /// Which end this is.
    pub fn role(&self) -> Role {
        self.connection.role()
    }

    /// Names the association.
    pub fn identity(&self) -> u32 {
        self.connection.identity()
    }

    /// Where the other end is, as far as it has shown that.
    pub fn peer(&self) -> SocketAddr {
        let peer = self.connection.lock().peer;
        match peer {
            SocketAddr::V6(v6) => v6.ip().to_ipv4_mapped().map_or(peer, |ip| (ip, v6.port()).into()),
            SocketAddr::V4(_) => peer,
        }
    }

    /// The recipe in force.
    pub fn recipe(&self) -> Recipe {
        self.connection.lock().stack.recipe().clone()
    }

    /// The counters of the stack.
    pub fn stats(&self) -> StackStats {
        self.connection.lock().stack.stats()
    }

    /// What is known of the path.
    pub fn path(&self) -> PathState {
        self.connection.lock().stack.path()
    }

    /// Counters of the micro-protocols: which, name, value.
    pub fn statistics(&self, each: impl FnMut(&str, &'static str, u64)) {
        // A micro-protocol that panics there ends the connection; the other end is told at once.
        self.with(|state, _| state.stack.statistics(each));
    }

    /// What lets this client come back later without a handshake, if [`TicketFile::keep`](super::TicketFile::keep)
    /// keeps it; `None` at a server.
    pub fn ticket(&self) -> Option<&Ticket> {
        self.ticket.as_deref()
    }

    /// From now on the association outlives this connection.
    pub(super) fn keep(&mut self) {
        self.closing = ControlFrameKind::Close;
    }

    fn now(&self) -> Time {
        self.endpoint.shared().clock.now()
    }

    /// Runs `work` with the state, then sends what there is to send.
    fn with<R>(&self, work: impl FnOnce(&mut State, Time) -> R) -> R {
        let now = self.now();
        let mut state = self.connection.lock();
        let result = work(&mut state, now);
        let shared = self.endpoint.shared();
        self.connection.settle(shared, &mut state, now);
        self.connection.release(shared, state);
        result
    }

    /// Tries until there is a result, or `until` has passed.
    fn wait<R>(
        &self,
        until: Option<Instant>,
        what: &'static str,
        coalescing: Coalescing,
        mut attempt: impl FnMut(&mut State, Time) -> Attempt<R>,
    ) -> Result<R, EngineError> {
        let began = Instant::now();
        let shared = self.endpoint.shared();
        let mut inline: Option<InlineDriver<'_>> = None;
        let mut state = self.connection.lock();
        loop {
            let now = self.now();
            let result = attempt(&mut state, now);
            let is_deferred = coalescing == Coalescing::Allowed && state.transmit_at.is_some();
            // The application gets its message first: the acknowledgement may leave with its answer.
            let changed = !(is_deferred && matches!(result, Ok(Some(_))))
                && self.connection.settle(shared, &mut state, now);
            let is_late = until.is_some_and(|until| until <= Instant::now());
            let result = match result {
                Ok(None) if is_late => {
                    Err(EngineError::TimedOut { what, seconds: began.elapsed().as_secs_f64() })
                }
                Ok(None) if changed => {
                    self.connection.release(shared, state);
                    state = self.connection.lock();
                    continue;
                }
                Ok(None) => {
                    state = self.block(&mut inline, state, until);
                    continue;
                }
                Ok(Some(result)) => Ok(result),
                Err(error) => Err(error),
            };
            self.connection.release(shared, state);
            return result;
        }
    }

    /// Waits until the connection may have changed, or `until`. Drives the endpoint unless another thread does so
    /// inline.
    fn block<'s>(
        &'s self,
        inline: &mut Option<InlineDriver<'s>>,
        mut state: MutexGuard<'s, State>,
        until: Option<Instant>,
    ) -> MutexGuard<'s, State> {
        let shared = self.endpoint.shared();
        if inline.is_none() && !shared.is_stopped() {
            *inline = InlineDriver::start(shared);
        }
        if let Some(inline) = inline {
            state.inline = Some(thread::current().id());
            let busy_poll = state.busy_poll;
            drop(state);
            inline.turn(until.map(|until| shared.clock.time(until)), busy_poll);
            let mut state = self.connection.lock();
            state.inline = None;
            return state;
        }
        let left = until.map(|until| until.saturating_duration_since(Instant::now()));
        state.waiting += 1;
        let changed = self.connection.changed();
        state = match left {
            None => changed.wait(state).unwrap_or_else(PoisonError::into_inner),
            Some(left) => changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0,
        };
        state.waiting -= 1;
        state
    }

    /// Tries; without a result, `context` is woken when the connection has changed, and not before.
    fn poll<R>(
        &self,
        context: &task::Context<'_>,
        mut attempt: impl FnMut(&mut State, Time) -> Attempt<R>,
    ) -> Poll<Result<R, EngineError>> {
        let shared = self.endpoint.shared();
        loop {
            let now = self.now();
            let mut state = self.connection.lock();
            let result = attempt(&mut state, now).transpose();
            let changed = self.connection.settle(shared, &mut state, now);
            if result.is_none() && !changed {
                state.wake_later(context.waker());
                return Poll::Pending;
            }
            self.connection.release(shared, state);
            if let Some(result) = result {
                return Poll::Ready(result);
            }
        }
    }

    /// Sends a message and gives its number; `None` if there is no room for it now.
    ///
    /// # Errors
    /// [`EngineError::Message`] if the recipe does not carry such a message; how the connection has ended.
    pub fn try_send(&self, data: &[u8], options: SendOptions) -> Attempt<u64> {
        self.with(|state, now| state.send(now, data, options))
    }

    /// Sends a message and gives its number. Waits while too much is queued, up to `timeout` (`None`: no limit).
    ///
    /// # Errors
    /// As [`Channel::try_send`]; [`EngineError::TimedOut`].
    pub fn send(
        &self,
        data: &[u8],
        options: SendOptions,
        timeout: Option<Duration>,
    ) -> Result<u64, EngineError> {
        let until = timeout.map(|timeout| Instant::now() + timeout);
        self.wait(until, "room for the message", Coalescing::Forbidden, |state, now| {
            state.send(now, data, options)
        })
    }

    /// As [`Channel::send`], for tasks.
    ///
    /// # Errors
    /// As [`Channel::try_send`].
    pub fn poll_send(
        &self,
        context: &mut task::Context<'_>,
        data: &[u8],
        options: SendOptions,
    ) -> Poll<Result<u64, EngineError>> {
        self.poll(context, |state, now| state.send(now, data, options))
    }

    /// The next message, if one waits.
    ///
    /// # Errors
    /// How the connection has ended, after its last message.
    pub fn try_recv(&self) -> Attempt<Message> {
        self.with(|state, _| state.recv())
    }

    /// The next message. Waits for it up to `timeout` (`None`: no limit).
    ///
    /// # Errors
    /// As [`Channel::try_recv`]; [`EngineError::TimedOut`].
    pub fn recv(&self, timeout: Option<Duration>) -> Result<Message, EngineError> {
        let until = timeout.map(|timeout| Instant::now() + timeout);
        self.wait(until, "a message", Coalescing::Allowed, |state, _| state.recv())
    }

    /// As [`Channel::recv`], for tasks.
    ///
    /// # Errors
    /// As [`Channel::try_recv`].
    pub fn poll_recv(&self, context: &mut task::Context<'_>) -> Poll<Result<Message, EngineError>> {
        self.poll(context, |state, _| state.recv())
    }

    /// Waits until everything has left and, where the recipe acknowledges, has arrived.
    ///
    /// # Errors
    /// [`EngineError::TimedOut`]; how the connection has ended.
    pub fn flush(&self, timeout: Option<Duration>) -> Result<(), EngineError> {
        let until = timeout.map(|timeout| Instant::now() + timeout);
        self.wait(until, "the arrival of all messages", Coalescing::Forbidden, |state, _| state.flushed())
    }

    /// As [`Channel::flush`], for tasks.
    ///
    /// # Errors
    /// How the connection has ended.
    pub fn poll_flush(&self, context: &mut task::Context<'_>) -> Poll<Result<(), EngineError>> {
        self.poll(context, |state, _| state.flushed())
    }

    /// Waits until the other side has shown that it knows the connection. The server's end always knows.
    ///
    /// # Errors
    /// [`EngineError::TimedOut`]; how the connection has ended.
    pub fn wait_confirmed(&self, timeout: Duration) -> Result<(), EngineError> {
        self.wait(
            Some(Instant::now() + timeout),
            "an answer of the other side",
            Coalescing::Forbidden,
            |state, _| match state.ended() {
                Some(error) => Err(error),
                None => Ok((!state.is_unconfirmed()).then_some(())),
            },
        )
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
    pub fn next_event(&self) -> Option<StackEvent> {
        self.connection.lock().next_event()
    }

    /// Waits for the next event.
    ///
    /// # Errors
    /// [`EngineError::TimedOut`]; how the connection has ended.
    pub fn wait_event(&self, timeout: Duration) -> Result<StackEvent, EngineError> {
        let until = Some(Instant::now() + timeout);
        self.wait(until, "an event", Coalescing::Forbidden, |state, _| match state.next_event() {
            Some(event) => Ok(Some(event)),
            None => state.ended().map_or(Ok(None), Err),
        })
    }

    /// As [`Channel::wait_event`], for tasks.
    ///
    /// # Errors
    /// How the connection has ended.
    pub fn poll_event(&self, context: &mut task::Context<'_>) -> Poll<Result<StackEvent, EngineError>> {
        self.poll(context, |state, _| match state.next_event() {
            Some(event) => Ok(Some(event)),
            None => state.ended().map_or(Ok(None), Err),
        })
    }

    /// How the connection has ended, if it has.
    pub fn ended(&self) -> Option<EngineError> {
        self.connection.lock().ended()
    }

    /// Ends the connection: waits for what is on its way, closes and waits for the answer, `timeout` in all.
    ///
    /// # Errors
    /// [`EngineError::TimedOut`] if not everything is known to have arrived by then; otherwise how the connection has
    /// ended.
    pub fn close(&self, timeout: Duration) -> Result<(), EngineError> {
        let began = Instant::now();
        let flushed = match self.flush(Some(timeout)) {
            Err(EngineError::Closed) => Ok(()),
            other => other,
        };
        self.start_close(CloseReason::Graceful);
        match self.wait_ended(timeout.saturating_sub(began.elapsed())) {
            Ok(EngineError::Closed) => flushed,
            // Without any answer nothing is known to have arrived.
            Err(EngineError::TimedOut { .. }) if !self.connection.lock().is_unconfirmed() => flushed,
            Ok(error) | Err(error) => flushed.and(Err(error)),
        }
    }

    /// As [`Channel::close`], for tasks: without a limit as long as not everything has arrived.
    ///
    /// # Errors
    /// How the connection has ended, if not as it should.
    pub fn poll_close(&self, context: &mut task::Context<'_>) -> Poll<Result<(), EngineError>> {
        if !self.connection.lock().is_closing() {
            match self.poll_flush(context) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Err(error)) if !matches!(error, EngineError::Closed) => {
                    return Poll::Ready(Err(error));
                }
                Poll::Ready(_) => self.start_close(CloseReason::Graceful),
            }
        }
        self.poll(context, |state, _| Ok(state.ended())).map(|ended| match ended? {
            EngineError::Closed => Ok(()),
            error => Err(error),
        })
    }

    /// Waits until the connection has ended, and gives how: after a close, until it was answered or repeated often
    /// enough.
    ///
    /// # Errors
    /// [`EngineError::TimedOut`].
    pub fn wait_ended(&self, timeout: Duration) -> Result<EngineError, EngineError> {
        let until = Some(Instant::now() + timeout);
        self.wait(until, "the answer to the closing", Coalescing::Forbidden, |state, _| Ok(state.ended()))
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
        self.connection.release(shared, state);
    }
}

impl Endpoint {
    /// The next connection that the other side has begun; `None` if none comes within `timeout`.
    ///
    /// # Errors
    /// [`EngineError::Closed`] if the endpoint has ended.
    pub fn accept(&self, timeout: Duration) -> Result<Option<Channel>, EngineError> {
        if let Some(connection) = self.shared().next_arrival(timeout) {
            return Ok(Some(Channel::new(connection, self.clone(), None)));
        }
        if self.shared().is_stopped() { Err(EngineError::Closed) } else { Ok(None) }
    }

    /// As [`Endpoint::accept`], for tasks.
    ///
    /// # Errors
    /// As [`Endpoint::accept`].
    pub fn poll_accept(&self, context: &task::Context<'_>) -> Poll<Result<Channel, EngineError>> {
        match self.shared().poll_arrival(context.waker()) {
            Some(connection) => Poll::Ready(Ok(Channel::new(connection, self.clone(), None))),
            None if self.shared().is_stopped() => Poll::Ready(Err(EngineError::Closed)),
            None => Poll::Pending,
        }
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
        self.start_close(CloseReason::Graceful);
        let peer = self.connection.lock().validated_peer();
        let shared = self.endpoint.shared();
        let mut table = lock(&shared.table);
        if table.end(shared.clock.now(), &self.connection, peer) && self.role() == Role::Client {
            table.remove(self.identity());
        }
    }
}

impl State {
    fn send(&mut self, now: Time, data: &[u8], options: SendOptions) -> Attempt<u64> {
        match self.phase {
            Phase::Opening(_) | Phase::Running => {}
            Phase::Closing(_) => return Err(EngineError::Closed),
            Phase::Ended(_) => return Err(self.ended().unwrap_or(EngineError::Closed)),
        }
        match self.stack.send(now, data, options) {
            Ok(id) => {
                self.replies |= std::mem::take(&mut self.owes_reply);
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
        if self.stack.unfinished() == 0 && self.has_nothing_unsent() {
            return Ok(Some(()));
        }
        self.ended().map_or(Ok(None), Err)
    }
}

impl fmt::Debug for Channel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut out = f.debug_struct("Channel");
        out.field("role", &self.connection.role()).field("identity", &self.identity()).finish_non_exhaustive()
    }
}
