use std::collections::VecDeque;
use std::net::SocketAddr;

use haul_base::{Span, Time};
use haul_proto::Seal;
use haul_wire::packet::{HELLO_HEADER_LEN, HelloBody, HelloHeader, PacketKind};

use super::{DatagramSizes, MIN_DATAGRAM, open_body, sizes_for};
use crate::crypto::{DataKeys, Opener, Sealer};
use crate::{Direction, EngineError, Role};

/// Time between two rounds of HELLOs.
const INTERVAL: Span = Span::from_millis(100);
/// An answer must have come so long after the session was accepted.
const TIMEOUT: Span = Span::from_secs(4);
/// Rounds in which sizes above the smallest are tried.
const LARGE_ROUNDS: u32 = 3;
/// HELLOs whose times are remembered, for the round trip.
const REMEMBERED: usize = 32;

/// The client's part in the HELLO exchange: sends HELLOs every 100 ms until they are answered, the sizes
/// above the smallest three times at most.
#[derive(Debug)]
pub struct HelloDriver {
    session: u32,
    peer: SocketAddr,
    seal: Sealer,
    open: Opener,
    next_pn: u64,
    next_nonce: u64,
    attempts: [Attempt; 3],
    sent: VecDeque<(u64, Time)>,
    next_round: Option<Time>,
    waiting_since: Time,
    largest_answered: Option<u16>,
    /// What the server wants back; 0: nothing.
    challenge: u64,
    round_trip: Option<Span>,
}

#[derive(Debug)]
struct Attempt {
    size: u16,
    rounds: u32,
    progress: Progress,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Progress {
    /// To be sent now.
    Due,
    /// Sent, or not due.
    Waiting,
    /// Answered or given up.
    Settled,
}

impl HelloDriver {
    /// Starts at `now`, with a first round due at once. `nonce` is random.
    pub(crate) fn new(now: Time, session: u32, peer: SocketAddr, keys: &DataKeys, nonce: u64) -> Self {
        let attempt = |size| Attempt { size, rounds: 0, progress: Progress::Waiting };
        let mut driver = Self {
            session,
            peer,
            seal: keys.sealer(Role::Client),
            open: keys.opener(Role::Client),
            next_pn: 0,
            next_nonce: nonce,
            attempts: sizes_for(peer).map(attempt),
            sent: VecDeque::with_capacity(REMEMBERED),
            next_round: Some(now),
            waiting_since: now,
            largest_answered: None,
            challenge: 0,
            round_trip: None,
        };
        driver.on_deadline(now);
        driver
    }

    /// The server has accepted the session: from now on answers can be expected.
    pub(crate) fn on_accepted(&mut self, now: Time) {
        self.waiting_since = now;
    }

    /// When the next round is due; `None` when everything is settled.
    pub fn deadline(&self) -> Option<Time> {
        self.next_round
    }

    /// Starts the next round if it is time.
    pub fn on_deadline(&mut self, now: Time) {
        if self.next_round.is_none_or(|at| now < at) {
            return;
        }
        let answered = self.largest_answered.is_some();
        for (index, attempt) in self.attempts.iter_mut().enumerate() {
            attempt.start_round(index == 0 && !answered);
        }
        let settled = self.attempts.iter().all(|a| a.progress == Progress::Settled);
        self.next_round = (!settled).then_some(now + INTERVAL);
    }

    /// Writes the next HELLO into `slot` and gives its length. Sizes that do not fit the slot are left out.
    pub fn poll_transmit(&mut self, now: Time, slot: &mut [u8]) -> Option<usize> {
        let fits = |a: &&mut Attempt| a.progress == Progress::Due && usize::from(a.size) <= slot.len();
        let attempt = self.attempts.iter_mut().find(fits)?;
        attempt.progress = Progress::Waiting;
        let size = attempt.size;
        self.write(&mut slot[..usize::from(size)], size);
        if self.sent.len() == REMEMBERED {
            self.sent.pop_front();
        }
        self.sent.push_back((self.next_nonce, now));
        self.next_pn += 1;
        self.next_nonce = self.next_nonce.wrapping_add(1);
        Some(usize::from(size))
    }

    /// Whether a HELLO is due.
    pub fn wants_transmit(&self) -> bool {
        self.attempts.iter().any(|a| a.progress == Progress::Due)
    }

    fn write(&mut self, packet: &mut [u8], size: u16) {
        HelloHeader { pn: self.next_pn, session: self.session }.write(packet);
        let end = packet.len() - self.seal.tag_len();
        HelloBody { nonce: self.next_nonce, size, challenge: self.challenge }
            .write(&mut packet[HELLO_HEADER_LEN..end]);
        self.seal.seal_batch(packet, usize::from(size), HELLO_HEADER_LEN, self.next_pn);
    }

    /// The system refused a HELLO of this length: it is not tried again.
    pub fn on_too_large(&mut self, len: usize) {
        let refused = |a: &&mut Attempt| usize::from(a.size) == len && a.size > MIN_DATAGRAM;
        if let Some(attempt) = self.attempts.iter_mut().find(refused) {
            attempt.progress = Progress::Settled;
        }
    }

    /// Takes a `HELLO_ACK`; whether it was authentic.
    pub fn on_packet(&mut self, now: Time, packet: &mut [u8]) -> bool {
        let Some(body) = open_body(&mut self.open, PacketKind::HelloAck, packet) else {
            return false;
        };
        if body.challenge != 0 {
            // Not an answer yet: the rounds go on until the server has this back.
            self.challenge = body.challenge;
            self.attempts[0].progress = Progress::Due;
            return true;
        }
        self.largest_answered = self.largest_answered.max(Some(body.size));
        for attempt in self.attempts.iter_mut().filter(|a| a.size <= body.size) {
            attempt.progress = Progress::Settled;
        }
        if let Some(&(_, at)) = self.sent.iter().find(|(nonce, _)| *nonce == body.nonce) {
            let sample = now.since(at);
            self.round_trip = Some(self.round_trip.map_or(sample, |best| best.min(sample)));
        }
        true
    }

    /// Whether the server has answered: UDP passes both ways.
    pub fn is_answered(&self) -> bool {
        self.largest_answered.is_some()
    }

    /// An answer of a size says that it passes in both directions.
    pub fn sizes(&self) -> DatagramSizes {
        let size = self.largest_answered.unwrap_or(MIN_DATAGRAM);
        DatagramSizes { outgoing: size, incoming: size }
    }

    /// The shortest time from a HELLO to its answer.
    pub fn round_trip(&self) -> Option<Span> {
        self.round_trip
    }

    /// Says that UDP is blocked, and in which direction, once the answer is 4 seconds late.
    pub fn failure(&self, now: Time, udp_seen: bool) -> Option<EngineError> {
        if self.is_answered() || now.since(self.waiting_since) < TIMEOUT {
            return None;
        }
        let direction = if udp_seen { Direction::ServerToClient } else { Direction::ClientToServer };
        Some(EngineError::UdpBlocked { port: self.peer.port(), direction })
    }
}

impl Attempt {
    fn start_round(&mut self, without_end: bool) {
        if self.progress == Progress::Settled {
            return;
        }
        let go_on = without_end || self.rounds < LARGE_ROUNDS;
        self.rounds += 1;
        self.progress = if go_on { Progress::Due } else { Progress::Settled };
    }
}
