//! State of one end of a connection: its stack, its lifecycle, and the peer's address.

use std::collections::VecDeque;
use std::mem::take;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use haul_base::{Bytes, Ecn, Machine, Received, Span, Time};
use haul_stack::{Ends, GENERATION_BIT, Kind, Recipe, RecipeError, Setup, Stack, StackEvent};
use haul_wire::packet::{CloseReason, ControlFrame, ControlFrameKind, INITIAL_HEADER_LEN};

use super::lifecycle::{Due, Ending, Lifecycle, MAX_UNANSWERED};
use super::path_probe::MIN_DATAGRAM;
use super::peer_address::{BARE_FRAME_LEN, PeerAddress, canonical};
use super::protection::{ConnectionKeys, Keys};
use super::resumption::ResumptionState;
use super::role::Role;
use crate::LossModel;
use crate::micro::FEC_KIND;
use crate::micro::events::CLOSED;

/// Maximum number of queued events; the oldest is dropped when it is exceeded.
const MAX_EVENTS: usize = 64;
/// Number of received messages that may always be queued, whatever their size.
const FEW_MESSAGES: usize = 16;
/// Maximum number of queued received messages: small ones cost more than their bytes.
const MAX_MESSAGES: usize = 16_384;
/// Idle time after which a connection releases memory that can be recreated.
const IDLE: Span = Span::from_secs(2);
/// How long an acknowledgement is delayed to be sent with the application's reply to a message.
pub const COALESCING_DELAY: Span = Span::from_micros(500);
/// It may also be delayed until a timer that expires within this fraction of the round trip: see
/// [`deferred_until`].
const COALESCING_SHARE: u64 = 4;

/// Initial round-trip time of RFC 9002, section 6.2.2, as an upper bound of the first estimate, which is
/// measured over TCP and can be seconds if TCP had to retransmit.
const UNKNOWN_ROUND_TRIP: Span = Span::from_millis(333);

/// Options of one end of a connection.
#[derive(Clone, Debug)]
pub struct ConnectionOptions {
    /// Bytes of messages that may be queued for sending; above that, sending blocks.
    pub queue: Bytes,
    /// Bytes of received messages that may be queued; above that, arriving data is dropped like lost data.
    pub inbox: Bytes,
    /// Largest datagram, UDP payload bytes. Datagrams that the path does not carry are lost: 1,200 pass
    /// everywhere, and smaller values count as that.
    pub datagram: u16,
    /// Sends a keep-alive after this time without a packet from the peer, at least 50 ms; the connection ends
    /// after three unanswered ones.
    pub keep_alive: Option<Duration>,
    /// How long a waiting thread polls the socket before it sleeps, as with `SO_BUSY_POLL` (socket(7)); zero:
    /// not at all. Saves a wake-up at the cost of processor time.
    pub busy_poll: Duration,
    /// Model for the diagnosis of losses, if the recipe has `rate_control`; `None`: the built-in one.
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

/// Failures of a connection. Its driver adds its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    /// The peer has aborted.
    Aborted,
    /// The client has begun a newer connection: data in flight is lost.
    Superseded,
    /// Nothing arrived from the peer for this time.
    Silent(Span),
    /// The server at this port never answered.
    Unanswered(u16),
    /// A micro-protocol has failed.
    MicroProtocol {
        /// Name of the micro-protocol in the recipe.
        protocol: String,
        /// The micro-protocol's error message.
        message: String,
    },
}

/// A datagram and its destination. If it is lost, it is repeated or not needed.
pub type Outgoing = (Vec<u8>, SocketAddr);

/// Unsent remainder of a batch.
#[derive(Debug)]
pub struct Unsent {
    /// Sealed packets without gaps.
    pub data: Vec<u8>,
    /// Bytes of each packet but the last.
    pub segment_size: usize,
    /// ECN mark of the packets.
    pub ecn: Ecn,
    /// When to try again; `None`: when the socket is writable.
    pub retry: Option<Time>,
}

/// Whether packets came with an initial header: their sender has not received an answer yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Header {
    /// With an initial header.
    Present,
    /// Without one.
    Absent,
}

/// Whether the application still has its end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Application {
    /// The application has its end.
    Present,
    /// The application has dropped its end: the close is repeated, received packets are ignored.
    Dropped,
}

/// Result of handling received packets.
#[derive(Debug)]
pub enum PacketVerdict {
    /// The connection has ended, or the application has dropped it.
    Ended,
    /// The application does not read: the inbox is full.
    InboxFull,
    /// The packets were not sealed with the connection's keys.
    Unauthentic,
    /// Accepted. May contain a challenge to validate the sender's address.
    Consumed(Option<Outgoing>),
}

/// State of one end of a connection, without its keys: these do not change, and drivers read them without the
/// lock that guards this state. The driver adds errors `E`.
#[expect(clippy::box_collection, reason = "there are many thousand, nearly all with empty queues")]
#[derive(Debug)]
pub struct ConnectionState<E> {
    /// The stack that runs the connection's recipe.
    pub stack: Stack,
    /// Address of the peer.
    pub peer: PeerAddress,
    /// Opening, keep-alive and end.
    pub lifecycle: Lifecycle<E>,
    /// Packets are delayed until then to be sent with the application's reply.
    pub transmit_at: Option<Time>,
    /// The application has received a message since it last sent one.
    pub reply_pending: bool,
    /// The application replies within [`COALESCING_DELAY`]: packets are delayed to be sent with its replies.
    pub replies: bool,
    /// Whether the application still has its end.
    pub application: Application,
    /// A batch that the socket did not accept; nothing is sent before it.
    pub unsent: Option<Box<Unsent>>,
    /// Whether there is memory to release, and when to check. As two fields 8 bytes smaller than as an
    /// `Option`.
    has_memory: bool,
    check_memory_at: Time,
    /// Bytes of received messages that may be queued.
    inbox: u32,
    /// Allocated for the first event.
    events: Option<Box<VecDeque<StackEvent>>>,
}

impl<E: From<Failure>> ConnectionState<E> {
    /// Creates a new connection's state. A client gives up if nothing arrives from the server within
    /// `opening`.
    ///
    /// # Errors
    /// If a micro-protocol cannot start.
    pub fn begin(
        now: Time,
        resumption: &ResumptionState,
        keys: &Arc<ConnectionKeys>,
        peer: PeerAddress,
        opening: Span,
        options: &ConnectionOptions,
        ends: Ends,
    ) -> Result<Self, RecipeError> {
        let (role, largest) = (resumption.role, options.datagram.max(MIN_DATAGRAM));
        let round_trip = resumption.round_trip.min(UNKNOWN_ROUND_TRIP);
        let lifecycle = match role {
            Role::Client => Lifecycle::opening(now, round_trip, opening, largest),
            Role::Server => Lifecycle::running(now),
        };
        let lifecycle = match options.keep_alive {
            Some(every) => lifecycle.keep_alive(now, every.into()),
            None => lifecycle,
        };
        // The first packets also carry the initial header.
        let header = if role == Role::Client { INITIAL_HEADER_LEN as u16 } else { 0 };
        let datagram = largest - header;
        let setup = Setup {
            initiator: role == Role::Client,
            identity: resumption.identity,
            keys: Some(keys.pair(resumption.cipher)),
            datagram,
            likely_datagram: datagram,
            max_datagram: largest,
            initial_rtt: round_trip,
            queue_bytes: options.queue.0 as usize,
            ends,
            ..Setup::new(now)
        };
        let setup = match options.loss_model.clone() {
            Some(model) => setup.provide(model),
            None => setup,
        };
        Ok(Self::new(now, Stack::new(resumption.compiled.clone(), setup)?, peer, lifecycle, options))
    }

    /// Creates the state of a session's connection, whose challenges are answered and whose stack has keys.
    pub fn of_session(now: Time, peer: SocketAddr, stack: Stack, silence: Span) -> Self {
        let lifecycle = Lifecycle::running(now).keep_alive(now, silence / u64::from(MAX_UNANSWERED + 1));
        let peer = PeerAddress { at: peer, moves: Some(0) };
        Self::new(now, stack, peer, lifecycle, &ConnectionOptions::default())
    }

    fn new(
        now: Time,
        stack: Stack,
        peer: PeerAddress,
        lifecycle: Lifecycle<E>,
        options: &ConnectionOptions,
    ) -> Self {
        Self {
            stack,
            peer,
            lifecycle,
            transmit_at: None,
            reply_pending: false,
            replies: false,
            application: Application::Present,
            unsent: None,
            has_memory: false,
            check_memory_at: now,
            inbox: u32::try_from(options.inbox.0).unwrap_or(u32::MAX),
            events: None,
        }
    }

    /// Handles packets for the stack, stored side by side. `challenge_key` is for this end's challenges.
    pub fn on_packets(
        &mut self,
        now: Time,
        keys: &Keys,
        challenge_key: &[u8; 32],
        received: &mut Received<'_>,
        (from, header): (SocketAddr, Header),
    ) -> PacketVerdict {
        if self.lifecycle.is_ended() || self.application == Application::Dropped {
            return PacketVerdict::Ended;
        }
        if self.is_inbox_full() && carries_data(received.data, received.stride) {
            return PacketVerdict::InboxFull;
        }
        let end = keys.opened_end();
        let before = self.authentic();
        let is_answer = before == 0 && keys.role() == Role::Server && header == Header::Absent;
        let silence_start = is_answer.then(|| self.silent_since()).flatten();
        self.stack.on_receive(now, received);
        if self.authentic() == before {
            return PacketVerdict::Unauthentic;
        }
        if let Some(silence_start) = silence_start {
            self.on_answered(now, now.since(silence_start));
        }
        self.on_authentic(now);
        // The initial header was already answered by a challenge.
        let is_challenged = self.peer.validated().is_none() && header == Header::Present;
        let needs_challenge = keys.opened_end() > end && self.peer.at != from && !is_challenged;
        PacketVerdict::Consumed(needs_challenge.then(|| self.challenge(keys, challenge_key, from)))
    }

    /// Returns a challenge that validates the peer at `address`.
    pub fn challenge(&self, keys: &Keys, challenge_key: &[u8; 32], address: SocketAddr) -> Outgoing {
        (self.peer.challenge(challenge_key, &keys.frames(), address), address)
    }

    /// Answers a client's initial header, of which this may be a copy: confirms the connection to the
    /// validated address. Challenges the source if there is none, or if the client may have moved and has no
    /// packets that would show it.
    pub fn on_header(&self, keys: &Keys, challenge_key: &[u8; 32], from: SocketAddr) -> Outgoing {
        match self.peer.validated() {
            Some(peer) if peer == from || self.authentic() > 0 => {
                (keys.frames().frame(ControlFrameKind::Opened, 0, BARE_FRAME_LEN), peer)
            }
            _ => self.challenge(keys, challenge_key, from),
        }
    }

    /// Handles packets that arrived on the connection's own socket.
    pub fn on_own_packets(&mut self, now: Time, received: &mut Received<'_>) {
        let before = self.authentic();
        self.stack.on_receive(now, received);
        if self.authentic() > before {
            self.on_authentic(now);
        }
    }

    /// Handles an authentic control frame of this connection and returns the answer.
    pub fn on_frame(
        &mut self,
        now: Time,
        keys: &Keys,
        challenge_key: &[u8; 32],
        frame: &ControlFrame,
        from: SocketAddr,
    ) -> Option<Outgoing> {
        let peer = self.peer.at;
        let answer = |kind, number, size, to| Some((keys.frames().frame(kind, number, size), to));
        match frame.kind {
            // It has no number, so only the first counts: later ones may be copies.
            ControlFrameKind::Opened if self.lifecycle.is_unconfirmed() => {
                // The stack's own measurement is better.
                if let Some(header_age) = self.lifecycle.header_age(now).filter(|_| self.authentic() == 0) {
                    self.on_answered(now, header_age);
                }
                self.on_authentic(now);
            }
            ControlFrameKind::Close | ControlFrameKind::CloseAndDropResumption => {
                self.stack.raise(now, CLOSED, &mut ());
                // The last message of a control channel contains the reason.
                let is_explained =
                    frame.number == CloseReason::Graceful as u32 || frame.id.has_control_channel();
                self.lifecycle.end((!is_explained).then(|| Failure::Aborted.into()));
                // To its source, as the peer may have moved. For a copy's source it is as small as a
                // challenge.
                return answer(ControlFrameKind::Closed, 0, BARE_FRAME_LEN, from);
            }
            ControlFrameKind::Closed => self.lifecycle.end(None),
            // An answer would keep the peer's end alive.
            ControlFrameKind::Ping if self.lifecycle.is_ended() => {}
            // A copy, or the peer at another address: an idle peer sends nothing else that shows it.
            ControlFrameKind::Ping if self.peer.validated().map(canonical) != Some(canonical(from)) => {
                return Some(self.challenge(keys, challenge_key, from));
            }
            ControlFrameKind::Ping => {
                return answer(ControlFrameKind::Pong, frame.number, BARE_FRAME_LEN, peer);
            }
            ControlFrameKind::Challenge => {
                return answer(ControlFrameKind::Response, frame.number, frame.size, peer);
            }
            ControlFrameKind::Response => {
                if self.moves_by(now, keys, challenge_key, frame.number, from) {
                    return answer(ControlFrameKind::Opened, 0, BARE_FRAME_LEN, from);
                }
            }
            ControlFrameKind::Pong if self.lifecycle.is_answered_by(frame.number) => self.on_authentic(now),
            ControlFrameKind::Opened | ControlFrameKind::Pong => {}
        }
        None
    }

    /// Handles a response. If it is correct, moves the connection to its source and returns true.
    fn moves_by(
        &mut self,
        now: Time,
        keys: &Keys,
        challenge_key: &[u8; 32],
        number: u32,
        from: SocketAddr,
    ) -> bool {
        let expected = || self.peer.expected_response(challenge_key, &keys.id(), from);
        let moves = self.peer.validated() != Some(from) && number == expected();
        if moves {
            self.on_authentic(now);
            self.peer.move_to(from);
        }
        moves
    }

    /// Returns the control frames and bare initial headers that are due. The connection may end in this call.
    pub fn due_frames(&mut self, now: Time, keys: &Keys) -> Vec<Outgoing> {
        let (peer, rtt) = (self.peer, self.stack.path().rtt);
        let mut frames = Vec::new();
        while let Some(due) = self.lifecycle.poll_due(now, rtt) {
            if let Due::Header | Due::Frame { opens: true, .. } = due {
                frames.push((keys.frames().initial_header().to_vec(), peer.at));
            }
            match (due, peer.validated()) {
                (Due::Frame { kind, number, .. }, Some(peer)) => {
                    frames.push((keys.frames().frame(kind, number, BARE_FRAME_LEN), peer));
                }
                (Due::End(Ending::Closed), _) => self.lifecycle.end(None),
                (Due::End(Ending::Silent(span)), _) => self.fail(Failure::Silent(span)),
                (Due::End(Ending::Unanswered), _) => self.fail(Failure::Unanswered(peer.at.port())),
                _ => {}
            }
        }
        frames
    }

    /// Ends the connection; only the first reason counts.
    pub fn fail(&mut self, failure: Failure) {
        self.lifecycle.end(Some(failure.into()));
    }

    /// Handles a newer connection of the same client. Only the client knows what it still had to send.
    pub fn supersede(&mut self, role: Role) {
        let is_complete = role == Role::Client && self.stack.outstanding() == 0;
        let is_over = is_complete || self.lifecycle.is_closing();
        self.lifecycle.end((!is_over).then(|| Failure::Superseded.into()));
    }

    /// Processes the stack's events. Returns whether there were any, and a close frame if the stack has
    /// failed.
    pub fn take_events(&mut self, now: Time, keys: &Keys) -> (bool, Option<Outgoing>) {
        let (mut changed, mut close) = (false, None);
        while let Some(event) = self.stack.poll_event() {
            changed = true;
            match event {
                StackEvent::Message | StackEvent::Settled { arrived: true, .. } => {}
                StackEvent::Failed { protocol, message } => {
                    let reason = CloseReason::Abort as u32;
                    let frame = keys.frames().frame(ControlFrameKind::Close, reason, BARE_FRAME_LEN);
                    close = Some((frame, self.peer.at));
                    let failure = Failure::MicroProtocol { protocol, message };
                    self.lifecycle.fail(now, self.stack.path().rtt, failure.into());
                }
                event => {
                    let events = self.events.get_or_insert_default();
                    if events.len() == MAX_EVENTS {
                        events.pop_front();
                    }
                    events.push_back(event);
                }
            }
        }
        (changed, close)
    }

    /// Returns the oldest queued event.
    pub fn next_event(&mut self) -> Option<StackEvent> {
        self.events.as_mut()?.pop_front()
    }

    /// Changes the recipe of both ends: see [`Stack::reconfigure`].
    ///
    /// # Errors
    /// If the recipe cannot be changed to this one, or the connection is closing or has ended: no event would
    /// report the outcome.
    pub fn reconfigure(&mut self, now: Time, recipe: &Recipe) -> Result<(), RecipeError> {
        if self.lifecycle.is_closing() {
            return Err(RecipeError::Ended);
        }
        self.stack.reconfigure(now, recipe)
    }

    /// Delays packets to be sent with the application's reply; `set` is the time of an armed timer.
    pub fn defer(&mut self, now: Time, set: Option<Time>) {
        let until = deferred_until(now, set, self.stack.path().rtt);
        self.transmit_at.get_or_insert(until);
    }

    /// Records that the application has sent a message, possibly a reply.
    pub fn on_message_sent(&mut self, now: Time) {
        let is_prompt = now.since(self.lifecycle.last_received()) <= COALESCING_DELAY;
        self.replies |= take(&mut self.reply_pending) && is_prompt;
    }

    /// Runs the stack's deadline if due. Returns whether it is time to send.
    pub fn on_deadline(&mut self, now: Time) -> bool {
        let can_retry = self.unsent.as_ref().is_some_and(|unsent| unsent.retry.is_some_and(|at| at <= now));
        let is_overdue = can_retry || self.transmit_at.is_none_or(|at| at <= now);
        self.replies &= !(is_overdue && self.transmit_at.is_some());
        if self.stack.deadline().is_some_and(|deadline| deadline.at <= now) {
            self.stack.on_deadline(now);
        }
        is_overdue
    }

    /// Returns the number of authentic packets received.
    pub fn authentic(&self) -> u64 {
        let stats = self.stack.stats();
        stats.data_received + stats.control_received
    }

    /// Returns when the connection began, unless something authentic or a keep-alive's answer has arrived.
    fn silent_since(&self) -> Option<Time> {
        (self.authentic() == 0 && !self.lifecycle.has_pinged()).then_some(self.lifecycle.last_received())
    }

    /// Handles the peer's answer to the latest opening packet after `round_trip`: the server's control frame, or
    /// the client's packet without initial header. The answer may have been delayed by a thread or the
    /// application, so it only lowers the estimate of the round-trip time: a low estimate costs
    /// retransmissions, a high one a delay. (The answer to an earlier packet arrives before the next one is
    /// sent, unless the round trip is more than twice the estimate.)
    fn on_answered(&mut self, now: Time, round_trip: Span) {
        if round_trip < self.stack.path().rtt {
            self.stack.path_answered(now, round_trip);
        }
    }

    /// Records that something authentic arrived.
    pub fn on_authentic(&mut self, now: Time) {
        if let Some(datagram) = self.lifecycle.on_authentic(now) {
            self.stack.set_datagram(datagram);
        }
    }

    /// Records that there is memory to release.
    pub fn note_memory(&mut self, now: Time) {
        if !self.has_memory {
            (self.has_memory, self.check_memory_at) = (true, now + IDLE);
        }
    }

    /// Returns when memory is released if nothing arrives for [`IDLE`].
    fn release_at(&self) -> Option<Time> {
        self.has_memory.then_some(self.check_memory_at)
    }

    /// Releases memory that can be recreated, if the connection has been idle long enough.
    pub fn release_if_idle(&mut self, now: Time) {
        if self.release_at().is_none_or(|at| at > now) {
            return;
        }
        self.check_memory_at = self.lifecycle.last_received() + IDLE;
        self.has_memory = self.check_memory_at > now;
        if !self.has_memory {
            self.stack.release_idle(now);
            self.events.take_if(|events| events.is_empty());
        }
    }

    fn is_inbox_full(&self) -> bool {
        let waiting = self.stack.waiting_messages();
        waiting > MAX_MESSAGES || (waiting > FEW_MESSAGES && self.stack.waiting_bytes() > self.inbox as usize)
    }

    /// Returns when the next action is due.
    pub fn deadline(&self) -> Option<Time> {
        if self.lifecycle.is_ended() {
            return self.lifecycle.deadline().into_iter().chain(self.release_at()).min();
        }
        // Nothing is sent to an address that is not validated, or before the unsent batch.
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

/// Returns until when packets wait for the application's reply, given a timer armed for `set`. A timer that
/// expires soon serves as well as a new one: setting one to 0.5 ms makes the kernel reprogram its clock, 2 us
/// or more twice per turn. It is usually the retransmission timeout of the message that was just answered,
/// and the peer's expires as long after a message as ours.
fn deferred_until(now: Time, set: Option<Time>, rtt: Span) -> Time {
    let earliest = now + COALESCING_DELAY;
    let latest = now + (rtt / COALESCING_SHARE).max(COALESCING_DELAY * 2);
    set.filter(|at| (earliest..=latest).contains(at)).unwrap_or(earliest)
}

/// Whether any of the packets may carry messages, which may be dropped; the peer waits for all others.
fn carries_data(packets: &[u8], stride: usize) -> bool {
    packets.chunks(stride.max(1)).any(|packet| {
        let kind = Kind(packet[0] & !GENERATION_BIT);
        kind.is_data() || kind == FEC_KIND
    })
}

#[cfg(test)]
#[path = "state_tests.rs"]
mod tests;
