//! One end of a connection: its stack, its keys, and where the other end is.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use haul_base::{Bytes, Ecn, Machine, PathId, Received, Span, Time};
use haul_proto::LossModel;
use haul_proto::connection::{ConnectionKeys, FrameKeys, Keys, Lifecycle, MOST_UNANSWERED, PeerAddress, ResumptionSecret, ResumptionState};
use haul_proto::micro::FEC_KIND;
use haul_stack::{CompiledStack, Ends, GENERATION_BIT, Kind, Recipe, RecipeError, Setup, Stack, StackEvent, caught};
use haul_wire::control::{Cipher, Fault, FaultCode};
use haul_wire::packet::{CloseReason, ConnectionId, ControlFrameKind, INITIAL_HEADER_LEN};

use super::socket::EndpointSocket;
use crate::guard::lock;
use crate::wake::WakerList;
use crate::{EngineError, Role};

/// Events that wait to be taken; above, the oldest is dropped.
const MOST_EVENTS: usize = 64;
/// Messages that may always wait to be taken, whatever their size.
const FEW_MESSAGES: usize = 16;
/// Messages that may wait at most: small ones cost more than their bytes.
const MOST_MESSAGES: usize = 16_384;
/// A connection that was silent for so long releases what can be made again.
const IDLE: Span = Span::from_secs(2);
/// How long an acknowledgement waits for the application's answer to a message, to leave with it.
pub(super) const COALESCING_DELAY: Span = Span::from_micros(500);
/// It may wait until a timer that expires within a quarter of the round trip instead: see [`deferred_until`].
const COALESCING_SHARE: u64 = 4;
/// Wait when a queue below the socket is full: about what it takes to send a batch at 1 Gbit/s.
pub(super) const LOCAL_QUEUE_WAIT: Span = Span::from_micros(500);

/// The initial round trip of RFC 9002, section 6.2.2, as an upper bound of the first estimate. That is measured over
/// TCP, and takes seconds where TCP had to retransmit.
const UNKNOWN_ROUND_TRIP: Span = Span::from_millis(333);

/// How one end of a connection is to run.
#[derive(Clone, Debug)]
pub struct ConnectionOptions {
    /// Bytes of messages that may wait to be sent; above, sending waits.
    pub queue: Bytes,
    /// Bytes of messages that may wait to be taken; above, arriving data is dropped as if the path had lost it.
    pub inbox: Bytes,
    /// Largest datagram, UDP payload bytes. What the path does not carry is lost: 1,200 pass everywhere.
    pub datagram: u16,
    /// Sends a keep-alive when nothing has come for so long; after three without an answer the connection ends.
    pub keep_alive: Option<Duration>,
    /// How long a waiting thread polls the socket before it sleeps, as with `SO_BUSY_POLL` (socket(7)); zero: not at
    /// all. It saves a wake-up and costs a processor.
    pub busy_poll: Duration,
    /// The model by which the pattern of losses is judged, if the recipe has `rate_control`; `None`: the shipped one.
    pub loss_model: Option<Arc<LossModel>>,
}

impl Default for ConnectionOptions {
    fn default() -> Self {
        Self {
            queue: Bytes(1 << 20),
            inbox: Bytes(4 << 20),
            datagram: 1_200,
            keep_alive: None,
            busy_poll: Duration::ZERO,
            loss_model: None,
        }
    }
}

pub(crate) struct Connection {
    pub(super) keys: Keys,
    state: Mutex<State>,
    /// How long a thread that waits polls the socket before it sleeps.
    pub(super) busy_poll: Span,
}

/// The part of a connection that changes.
#[expect(clippy::box_collection, reason = "there are many thousand, and these are empty nearly always")]
pub(crate) struct State {
    pub(crate) stack: Stack,
    pub(super) peer: PeerAddress,
    pub(super) lifecycle: Lifecycle<EngineError>,
    /// What the driver's timer for this connection is set to.
    timer: Option<Time>,
    /// Packets wait until then for the application's answer.
    pub(super) transmit_at: Option<Time>,
    /// The application has taken a message since it last sent one.
    pub(super) owes_reply: bool,
    /// The application answers within [`COALESCING_DELAY`]: packets wait for its answers.
    pub(super) replies: bool,
    /// A batch that the socket had no room for; nothing leaves before it.
    pub(super) unsent: Option<Box<Unsent>>,
    /// Whether there is memory to release, and when that is looked into: as two fields 8 bytes less than as an `Option`.
    holds_memory: bool,
    look_at: Time,
    /// Bytes of messages that may wait to be taken.
    inbox: u32,
    /// Allocated for the first one.
    events: Option<Box<VecDeque<StackEvent>>>,
    /// Tasks and threads that wait for a change.
    pub(super) wakers: WakerList,
}

/// What is left of a batch.
pub(super) struct Unsent {
    pub(super) data: Vec<u8>,
    pub(super) segment_size: usize,
    pub(super) ecn: Ecn,
    /// When to try again; without a time, when the socket has room.
    pub(super) retry: Option<Time>,
}

/// Whether packets came behind an initial header: their sender has had no answer yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Header {
    Present,
    Absent,
}

impl Connection {
    /// A client's gives up when nothing of the server has come for `opening`.
    pub(super) fn new(
        now: Time,
        resumption: &ResumptionState,
        id: ConnectionId,
        peer: PeerAddress,
        opening: Duration,
        options: &ConnectionOptions,
        ends: Ends,
    ) -> Result<Self, RecipeError> {
        let role = resumption.role;
        let round_trip = resumption.round_trip.min(UNKNOWN_ROUND_TRIP);
        let keys = ConnectionKeys::new(&resumption.secret, &id, role);
        let lifecycle = match role {
            Role::Client => Lifecycle::opening(now, round_trip, opening.into(), options.datagram),
            Role::Server => Lifecycle::running(now),
        };
        let lifecycle = match options.keep_alive {
            Some(every) => lifecycle.keep_alive(now, every.into()),
            None => lifecycle,
        };
        // The first packets carry the initial header too.
        let header = if role == Role::Client { INITIAL_HEADER_LEN as u16 } else { 0 };
        let datagram = options.datagram.saturating_sub(header);
        let setup = Setup {
            initiator: role == Role::Client,
            identity: resumption.identity,
            keys: Some(keys.pair(resumption.cipher)),
            datagram,
            likely_datagram: datagram,
            max_datagram: options.datagram,
            initial_rtt: round_trip,
            queue_bytes: options.queue.0 as usize,
            ends,
            ..Setup::new(now)
        };
        let setup = match options.loss_model.clone() {
            Some(model) => setup.provide(model),
            None => setup,
        };
        let state = State::new(now, Stack::new(resumption.compiled.clone(), setup)?, peer, lifecycle, options);
        let busy_poll = options.busy_poll.into();
        Ok(Self { keys: Keys::Resumable(keys), state: Mutex::new(state), busy_poll })
    }

    /// The connection of a session: its challenges have been answered, and the stack protects its packets.
    pub(crate) fn of_session(
        now: Time,
        keys: FrameKeys,
        role: Role,
        peer: SocketAddr,
        stack: Stack,
        silence: Span,
    ) -> Self {
        let lifecycle = Lifecycle::running(now).keep_alive(now, silence / u64::from(MOST_UNANSWERED + 1));
        let peer = PeerAddress { at: peer, moves: Some(0) };
        let state = State::new(now, stack, peer, lifecycle, &ConnectionOptions::default());
        let keys = Keys::Session(role, Box::new(keys));
        Self { keys, state: Mutex::new(state), busy_poll: Span::ZERO }
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

    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// Sends what there is to send, takes the stack's events, and sets the timer. Returns whether anything has changed
    /// for which somebody may wait.
    pub(super) fn settle(&self, shared: &EndpointSocket, state: &mut State, now: Time) -> bool {
        let was_deferred = state.transmit_at.take().is_some();
        let sent = self.transmit(shared, state, now);
        if sent == shared.rounds {
            state.transmit_at = Some(now);
        }
        let changed = self.take_events(shared, state, now);
        // Where the answer takes less than the delay, the timer is not set with each message: it expires once a delay.
        let is_far = state.stack.path().rtt >= COALESCING_DELAY;
        self.set_timer(shared, state, was_deferred && is_far);
        changed || sent > 0
    }

    /// As [`settle`](Self::settle), but packets wait for the application's answer.
    fn settle_unsent(&self, shared: &EndpointSocket, state: &mut State, now: Time) {
        let until = deferred_until(now, state.timer, state.stack.path().rtt);
        state.transmit_at.get_or_insert(until);
        self.take_events(shared, state, now);
        self.set_timer(shared, state, false);
    }

    /// Takes the stack's events; returns whether there were any.
    fn take_events(&self, shared: &EndpointSocket, state: &mut State, now: Time) -> bool {
        let mut changed = false;
        while let Some(event) = state.stack.poll_event() {
            changed = true;
            self.take_event(shared, state, event);
        }
        // A data thread keeps what it has.
        if shared.timers.is_some() && !state.holds_memory {
            (state.holds_memory, state.look_at) = (true, now + IDLE);
        }
        changed
    }

    pub(super) fn flush(&self, shared: &EndpointSocket, now: Time) {
        let mut state = self.lock();
        self.settle(shared, &mut state, now);
        Connection::release(state);
    }

    /// The socket has room for the unsent batch.
    pub(super) fn on_room(&self, shared: &EndpointSocket, now: Time) {
        let mut state = self.lock();
        if let Some(unsent) = &mut state.unsent {
            unsent.retry = Some(now);
            self.settle(shared, &mut state, now);
        }
        Connection::release(state);
    }

    /// Sets the timer that calls [`on_timer`](Self::on_timer). A deadline that moves to a later time, as it does with
    /// nearly every packet, is only set when the timer expires, unless `exactly`.
    pub(super) fn set_timer(&self, shared: &EndpointSocket, state: &mut State, exactly: bool) {
        // A data thread looks at the deadline itself.
        let Some(timers) = &shared.timers else { return };
        let (old, new) = (state.timer, state.deadline());
        let is_earlier = new.is_some_and(|new| old.is_none_or(|old| new < old));
        if is_earlier || (new != old && (exactly || new.is_none())) {
            state.timer = new;
            timers.set_timer(self.identity(), old, new, exactly);
        }
    }

    /// Unlocks, and wakes whoever waits for a change.
    pub(super) fn release(mut state: MutexGuard<'_, State>) {
        let wakers = state.wakers.take();
        drop(state);
        wakers.wake();
    }

    fn take_event(&self, shared: &EndpointSocket, state: &mut State, event: StackEvent) {
        match event {
            StackEvent::Message | StackEvent::Settled { arrived: true, .. } => return,
            StackEvent::Failed { protocol, message } => {
                self.send_frame(shared, state.peer.at, ControlFrameKind::Close, CloseReason::Abort as u32);
                state.end(EngineError::MicroProtocol { protocol, message });
                return;
            }
            _ => {}
        }
        let events = state.events.get_or_insert_default();
        if events.len() == MOST_EVENTS {
            events.pop_front();
        }
        events.push_back(event);
    }

    /// Packets of the stack have come, side by side.
    pub(super) fn on_packets(
        &self,
        shared: &EndpointSocket,
        now: Time,
        mut received: Received<'_>,
        from: SocketAddr,
        header: Header,
    ) {
        let mut state = self.lock();
        if state.lifecycle.is_ended() {
            return;
        }
        if state.is_inbox_full() && brings_data(received.data, received.stride) {
            return shared.counters.inbox_full.add_one();
        }
        let end = self.keys.opened_end();
        let before = state.authentic();
        let is_answer = before == 0 && self.role() == Role::Server && header == Header::Absent;
        let began = is_answer.then(|| state.unheard_since()).flatten();
        state.stack.on_receive(now, &mut received);
        let opened = state.authentic() - before;
        if opened == 0 {
            shared.counters.unauthentic.add_one();
        } else {
            if let Some(began) = began {
                state.on_answered(now, now.since(began));
            }
            state.on_authentic(now);
            if self.keys.opened_end() > end {
                self.on_newest_from(shared, &state, from, header);
            }
        }
        // If the application answers messages at once, the acknowledgement waits to leave with the answer.
        if state.replies && state.stack.waiting_messages() > 0 {
            self.settle_unsent(shared, &mut state, now);
        } else {
            self.settle(shared, &mut state, now);
        }
        Connection::release(state);
    }

    /// Packets have come to the connection's own socket. What they call for leaves with the next turn.
    pub(super) fn on_own_packets(&self, now: Time, received: &mut Received<'_>) {
        let mut state = self.lock();
        let before = state.authentic();
        state.stack.on_receive(now, received);
        if state.authentic() > before {
            state.on_authentic(now);
        }
    }

    pub(super) fn on_timer(&self, shared: &EndpointSocket, now: Time, at: Time) {
        let mut state = self.lock();
        if state.timer != Some(at) {
            return;
        }
        state.timer = None;
        if !state.lifecycle.is_ended() {
            self.turn(shared, &mut state, now);
        }
        state.release_if_idle(now);
        self.set_timer(shared, &mut state, false);
        Connection::release(state);
    }

    /// Runs what is due, and sends what there is to send.
    pub(super) fn turn(&self, shared: &EndpointSocket, state: &mut State, now: Time) {
        let can_retry = state.unsent.as_ref().is_some_and(|unsent| unsent.retry.is_some_and(|at| at <= now));
        let is_overdue = can_retry || state.transmit_at.is_none_or(|at| at <= now);
        state.replies &= !(is_overdue && state.transmit_at.is_some());
        if state.stack.deadline().is_some_and(|deadline| deadline.at <= now) {
            state.stack.on_deadline(now);
        }
        if is_overdue {
            self.settle(shared, state, now);
        } else {
            self.take_events(shared, state, now);
        }
        self.send_due_frames(shared, state, now);
    }

    /// A newer connection of the same client has begun.
    pub(super) fn supersede(&self) {
        let mut state = self.lock();
        // What the client still had to send, only the client knows.
        let is_whole = self.role() == Role::Client && state.stack.outstanding() == 0;
        let how = if is_whole || state.lifecycle.is_closing() { EngineError::Closed } else { superseded() };
        state.end(how);
        Connection::release(state);
    }

    /// Runs `work` with this connection. A panic ends the connection and nothing else; the stack itself catches those
    /// of its micro-protocols.
    pub(super) fn guarded(&self, work: impl FnOnce(&Self)) {
        let Err(message) = caught(|| work(self)) else { return };
        let mut state = self.lock();
        state.end(EngineError::MicroProtocol { protocol: "of the application".to_owned(), message });
        Self::release(state);
    }
}

impl State {
    fn new(
        now: Time,
        stack: Stack,
        peer: PeerAddress,
        lifecycle: Lifecycle<EngineError>,
        options: &ConnectionOptions,
    ) -> Self {
        Self {
            stack,
            peer,
            lifecycle,
            timer: None,
            transmit_at: None,
            owes_reply: false,
            replies: false,
            unsent: None,
            holds_memory: false,
            look_at: now,
            inbox: u32::try_from(options.inbox.0).unwrap_or(u32::MAX),
            events: None,
            wakers: WakerList::default(),
        }
    }

    /// Authentic packets so far.
    pub(super) fn authentic(&self) -> u64 {
        let stats = self.stack.stats();
        stats.data_received + stats.control_received
    }

    /// When the connection began, if nothing authentic and no answer to a keep-alive has come since.
    fn unheard_since(&self) -> Option<Time> {
        (self.authentic() == 0 && !self.lifecycle.has_pinged()).then_some(self.lifecycle.heard())
    }

    /// The oldest event that nobody has taken.
    pub(super) fn next_event(&mut self) -> Option<StackEvent> {
        self.events.as_mut()?.pop_front()
    }

    /// The other end has answered the latest opening packet after `took`: the server with a control frame, the client
    /// with a packet without initial header. The answer may have waited for a thread or the application, so it only
    /// lowers the estimate of the round trip: too low costs retransmissions, too high a wait. (The answer to an earlier
    /// packet comes before the next one leaves, unless the round trip is more than twice the estimate.)
    pub(super) fn on_answered(&mut self, now: Time, took: Span) {
        if took < self.stack.path().rtt {
            self.stack.path_answered(now, took);
        }
    }

    pub(super) fn on_authentic(&mut self, now: Time) {
        if let Some(datagram) = self.lifecycle.on_authentic(now) {
            self.stack.set_datagram(datagram);
        }
    }

    /// When memory is released if nothing has come for [`IDLE`].
    fn release_at(&self) -> Option<Time> {
        self.holds_memory.then_some(self.look_at)
    }

    /// Releases what can be made again, if it is time to and nothing has come.
    fn release_if_idle(&mut self, now: Time) {
        if self.release_at().is_none_or(|at| at > now) {
            return;
        }
        self.look_at = self.lifecycle.heard() + IDLE;
        self.holds_memory = self.look_at > now;
        if !self.holds_memory {
            self.stack.release_idle(now);
            self.events.take_if(|events| events.is_empty());
        }
    }

    fn is_inbox_full(&self) -> bool {
        let waiting = self.stack.waiting_messages();
        waiting > MOST_MESSAGES
            || (waiting > FEW_MESSAGES && self.stack.waiting_bytes() > self.inbox as usize)
    }

    pub(super) fn deadline(&self) -> Option<Time> {
        if self.lifecycle.is_ended() {
            return self.release_at();
        }
        // Nothing is sent to an address that is not validated, or ahead of the unsent batch.
        let stack = match (&self.unsent, self.transmit_at) {
            (Some(unsent), _) => unsent.retry,
            (None, Some(at)) => Some(at),
            (None, None) => {
                self.peer.validated().and_then(|_| self.stack.deadline()).map(|deadline| deadline.at)
            }
        };
        [self.lifecycle.deadline(), stack, self.release_at()].into_iter().flatten().min()
    }
}

/// Until when packets wait for the application's answer, where a timer is set to `set`. A timer that expires soon is as
/// good as one of its own: to set one to half a millisecond makes the kernel program its clock anew, 2 us or more twice
/// a turn. It is usually the time-out of the message that has just been answered, and the other end's passes as long
/// after a message as ours.
fn deferred_until(now: Time, set: Option<Time>, rtt: Span) -> Time {
    let earliest = now + COALESCING_DELAY;
    let latest = now + (rtt / COALESCING_SHARE).max(COALESCING_DELAY * 2);
    set.filter(|at| (earliest..=latest).contains(at)).unwrap_or(earliest)
}

/// The end of a connection whose client begins another: what was on its way is lost.
fn superseded() -> EngineError {
    let message = "the client has begun a newer connection";
    EngineError::Peer(Fault::new(FaultCode::PeerStopped, message, "go on with that one"))
}

/// Whether any of the packets may carry messages, which may be dropped; the other side waits for all others.
fn brings_data(packets: &[u8], stride: usize) -> bool {
    packets.chunks(stride.max(1)).any(|packet| {
        let kind = Kind(packet[0] & !GENERATION_BIT);
        kind.is_data() || kind == FEC_KIND
    })
}

pub(super) fn received(data: &mut [u8], stride: usize, ecn: Ecn, arrival: Option<Time>) -> Received<'_> {
    Received { data, stride, arrival, path: PathId::default(), ecn, socket_drops: None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_wait_for_an_answer_until_a_timer_expires_that_is_set_already() {
        let (now, ms) = (Time::ZERO + Span::from_secs(1), Span::from_millis(1));
        let (own, near, far) = (now + ms / 2, ms, ms * 60);
        for (set, rtt, until) in [
            (None, far, own),
            (Some(now + ms * 4), far, now + ms * 4),
            (Some(now + ms * 16), far, own),
            (Some(now + ms / 4), far, own),
            (Some(now + ms * 4 / 5), near, now + ms * 4 / 5),
            (Some(now + ms * 2), near, own),
        ] {
            assert_eq!(deferred_until(now, set, rtt), until, "{set:?} {rtt:?}");
        }
    }

    #[test]
    fn data_is_found_wherever_it_stands_in_a_run() {
        let run = |kinds: &[Kind]| kinds.iter().flat_map(|kind| [kind.0, 0, 0, 0]).collect::<Vec<u8>>();
        let answer = Kind::RECONFIGURE;
        for (kinds, expected) in [
            (vec![answer; 3], false),
            (vec![Kind::DATA, answer], true),
            (vec![answer, answer, Kind::DATA_FIN], true),
            (vec![answer, FEC_KIND], true),
            (vec![answer, Kind(Kind::DATA.0 | GENERATION_BIT)], true),
        ] {
            assert_eq!(brings_data(&run(&kinds), 4), expected, "{kinds:?}");
        }
        // The last packet of a run may be shorter.
        assert!(brings_data(&[answer.0, 0, 0, 0, Kind::DATA.0], 4) && !brings_data(&[], 4));
    }
}
