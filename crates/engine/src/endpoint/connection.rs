//! One end of a connection at its socket: locking, sending, timers and wake-ups.

use std::net::SocketAddr;
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use derive_more::{Deref, DerefMut};
use haul_base::{Ecn, PathId, Received, Span, Time};
use haul_proto::connection::{
    COALESCING_DELAY, ConnectionKeys, ConnectionOptions, ConnectionState, Failure, FrameKeys, Header, Keys,
    Outgoing, PacketVerdict, PeerAddress, ResumptionState,
};
use haul_stack::{Ends, RecipeError, Stack, caught};
use haul_wire::control::Cipher;
use haul_wire::packet::{ConnectionId, ControlFrame};

use super::socket::EndpointSocket;
use crate::wake::{WakerList, lock};
use crate::{EngineError, Role};

/// Pause when a queue below the socket is full: about the time to send a batch at 1 Gbit/s.
pub(super) const LOCAL_QUEUE_WAIT: Span = Span::from_micros(500);

pub(crate) struct Connection {
    pub(super) keys: Keys,
    pub(super) cipher: Cipher,
    state: Mutex<LockedConnection>,
    /// Time for which a waiting thread polls the socket before it sleeps.
    pub(super) busy_poll: Span,
    /// How often the state was locked.
    #[cfg(test)]
    pub(super) locks: haul_base::AtomicCounter,
}

/// The mutable part of a connection, behind its lock.
#[derive(Deref, DerefMut)]
pub(crate) struct LockedConnection {
    #[deref]
    #[deref_mut]
    machine: ConnectionState<EngineError>,
    /// Current setting of the driver's timer for this connection.
    timer: Option<Time>,
    /// Tasks and threads waiting for a change.
    pub(super) wakers: WakerList,
}

impl Connection {
    /// Creates a connection. A client's fails if no packet from the server arrives within `opening`.
    pub(super) fn new(
        now: Time,
        resumption: &ResumptionState,
        id: ConnectionId,
        peer: PeerAddress,
        opening: Duration,
        options: &ConnectionOptions,
        ends: Ends,
    ) -> Result<Self, RecipeError> {
        let keys = ConnectionKeys::new(&resumption.secret, &id, resumption.role);
        let machine = ConnectionState::begin(now, resumption, &keys, peer, opening.into(), options, ends)?;
        let connection = Self::of(Keys::Resumable(keys), resumption.cipher, machine);
        Ok(Self { busy_poll: options.busy_poll.into(), ..connection })
    }

    /// Creates the connection of a session: its path is validated, and the stack protects its packets.
    pub(crate) fn of_session(
        now: Time,
        (role, keys, cipher): (Role, FrameKeys, Cipher),
        peer: SocketAddr,
        stack: Stack,
        silence: Span,
    ) -> Self {
        let machine = ConnectionState::of_session(now, peer, stack, silence);
        Self::of(Keys::Session(role, Box::new(keys)), cipher, machine)
    }

    fn of(keys: Keys, cipher: Cipher, machine: ConnectionState<EngineError>) -> Self {
        let state = LockedConnection { machine, timer: None, wakers: WakerList::default() };
        Self {
            keys,
            cipher,
            state: Mutex::new(state),
            busy_poll: Span::ZERO,
            #[cfg(test)]
            locks: haul_base::AtomicCounter::default(),
        }
    }

    pub(super) fn identity(&self) -> u32 {
        self.id().identity
    }

    pub(super) fn id(&self) -> ConnectionId {
        self.keys.id()
    }

    pub(super) fn role(&self) -> Role {
        self.keys.role()
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, LockedConnection> {
        #[cfg(test)]
        self.locks.add_one();
        lock(&self.state)
    }

    /// Sends what is pending, takes events and sets the timer. Returns whether a waiting task must be woken.
    pub(super) fn process(&self, shared: &EndpointSocket, state: &mut LockedConnection, now: Time) -> bool {
        let was_deferred = state.transmit_at.take().is_some();
        let sent = self.transmit(shared, state, now);
        if sent == shared.rounds {
            state.transmit_at = Some(now);
        }
        let changed = self.take_events(shared, state, now);
        // If the round trip is shorter than the delay, the timer is not set per message but expires once per
        // delay.
        let is_long_path = state.stack.path().rtt >= COALESCING_DELAY;
        self.set_timer(shared, state, was_deferred && is_long_path);
        changed || sent > 0
    }

    /// Like [`process`](Self::process), but defers packets for the application's reply.
    fn process_deferred(&self, shared: &EndpointSocket, state: &mut LockedConnection, now: Time) {
        let timer = state.timer;
        state.defer(now, timer);
        self.take_events(shared, state, now);
        self.set_timer(shared, state, false);
    }

    /// Takes the stack's events; returns whether there were any.
    fn take_events(&self, shared: &EndpointSocket, state: &mut LockedConnection, now: Time) -> bool {
        let (changed, close) = state.take_events(now, &self.keys);
        send(shared, close);
        // A data thread never releases idle memory.
        if shared.timers.is_some() {
            state.note_memory(now);
        }
        changed
    }

    pub(super) fn flush(&self, shared: &EndpointSocket, now: Time) {
        let mut state = self.lock();
        self.process(shared, &mut state, now);
        Connection::release(state);
    }

    /// Retries the unsent batch: the socket is writable.
    pub(super) fn on_writable(&self, shared: &EndpointSocket, now: Time) {
        let mut state = self.lock();
        if let Some(unsent) = &mut state.unsent {
            unsent.retry = Some(now);
            self.process(shared, &mut state, now);
        }
        Connection::release(state);
    }

    /// Sets the timer that calls [`on_timer`](Self::on_timer). A deadline that moves to a later time, as with
    /// nearly every packet, is only set when the timer expires, unless `exactly`.
    pub(super) fn set_timer(&self, shared: &EndpointSocket, state: &mut LockedConnection, exactly: bool) {
        // A data thread checks the deadline itself.
        let Some(timers) = &shared.timers else { return };
        let (old, new) = (state.timer, state.deadline());
        let is_earlier = new.is_some_and(|new| old.is_none_or(|old| new < old));
        if is_earlier || (new != old && (exactly || new.is_none())) {
            state.timer = new;
            timers.set_timer(self.identity(), old, new, exactly);
        }
    }

    /// Unlocks, and wakes the waiting tasks and threads.
    pub(super) fn release(mut state: MutexGuard<'_, LockedConnection>) {
        let wakers = state.wakers.take();
        drop(state);
        wakers.wake();
    }

    /// Handles received packets of the stack, adjacent in one buffer.
    pub(super) fn on_packets(
        &self,
        shared: &EndpointSocket,
        now: Time,
        mut received: Received<'_>,
        from: SocketAddr,
        header: Header,
    ) {
        let mut state = self.lock();
        let key = &shared.challenge_key;
        match state.on_packets(now, &self.keys, key, &mut received, (from, header)) {
            PacketVerdict::Ended => return,
            PacketVerdict::InboxFull => return shared.counters.inbox_full.add_one(),
            PacketVerdict::Unauthentic => shared.counters.unauthentic.add_one(),
            PacketVerdict::Consumed(challenge) => send(shared, challenge),
        }
        // If the application replies to messages at once, the acknowledgement is sent with the reply.
        if state.replies && state.stack.waiting_messages() > 0 {
            self.process_deferred(shared, &mut state, now);
        } else {
            self.process(shared, &mut state, now);
        }
        Connection::release(state);
    }

    /// Handles an authentic control frame of this connection.
    pub(super) fn on_frame(
        &self,
        shared: &EndpointSocket,
        now: Time,
        frame: &ControlFrame,
        from: SocketAddr,
    ) {
        let mut state = self.lock();
        let before = state.peer.at;
        let answer = state.on_frame(now, &self.keys, &shared.challenge_key, frame, from);
        if state.peer.at != before {
            tracing::debug!(%before, now = %state.peer.at, "the peer's address has changed");
        }
        send(shared, answer);
        self.process(shared, &mut state, now);
        Connection::release(state);
    }

    pub(super) fn on_header(&self, shared: &EndpointSocket, from: SocketAddr) {
        let answer = self.lock().on_header(&self.keys, &shared.challenge_key, from);
        send(shared, Some(answer));
    }

    /// Sends the control frames and bare initial headers that are due.
    pub(super) fn send_due_frames(&self, shared: &EndpointSocket, state: &mut LockedConnection, now: Time) {
        send(shared, state.due_frames(now, &self.keys));
    }

    pub(super) fn on_timer(&self, shared: &EndpointSocket, now: Time, at: Time) {
        let mut state = self.lock();
        if state.timer != Some(at) {
            return;
        }
        state.timer = None;
        if !state.lifecycle.is_over() {
            self.turn(shared, &mut state, now);
        }
        state.release_if_idle(now);
        self.set_timer(shared, &mut state, false);
        Connection::release(state);
    }

    /// Runs the due timers, and sends what is pending.
    pub(super) fn turn(&self, shared: &EndpointSocket, state: &mut LockedConnection, now: Time) {
        if state.on_deadline(now) {
            self.process(shared, state, now);
        } else {
            self.take_events(shared, state, now);
        }
        self.send_due_frames(shared, state, now);
    }

    /// Ends this connection: the client has opened a newer one.
    pub(super) fn supersede(&self) {
        let mut state = self.lock();
        state.supersede(self.role());
        Connection::release(state);
    }

    /// Runs `work`. A panic ends only this connection; the stack itself catches those of its micro-protocols.
    pub(super) fn guarded(&self, work: impl FnOnce(&Self)) {
        let Err(message) = caught(|| work(self)) else { return };
        let mut state = self.lock();
        state.fail(Failure::MicroProtocol { protocol: "of the application".to_owned(), message });
        Self::release(state);
    }
}

impl LockedConnection {
    /// Returns why the connection ended, or `None` while it is open.
    pub(super) fn ended(&self) -> Option<EngineError> {
        self.lifecycle.is_ended().then(|| self.lifecycle.failure().cloned().unwrap_or(EngineError::Closed))
    }

    /// Ends the connection; the first reason wins.
    pub(super) fn end(&mut self, error: EngineError) {
        self.lifecycle.end(if let EngineError::Closed = error { None } else { Some(error) });
    }
}

fn send(shared: &EndpointSocket, datagrams: impl IntoIterator<Item = Outgoing>) {
    for (datagram, to) in datagrams {
        shared.send(&datagram, to);
    }
}

pub(super) fn received(data: &mut [u8], stride: usize, ecn: Ecn, arrival: Option<Time>) -> Received<'_> {
    Received { data, stride, arrival, path: PathId::default(), ecn, socket_drops: None }
}
