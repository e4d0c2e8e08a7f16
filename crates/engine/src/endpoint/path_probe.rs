//! Probes the path of a connection: the client sends challenges of several sizes, and each is answered by a response of
//! its size. The exchange shows that UDP passes, which datagrams do and, where the server asks too, that the client is at
//! its address (RFC 9000, section 8).

use std::net::{IpAddr, SocketAddr};

use haul_base::{Ecn, Span, Time};
use haul_udp::{SendError, UdpSocket};
use haul_wire::packet::{CONTROL_FRAME_LEN, ControlFrame, ControlFrameKind};

use crate::crypto::FrameKeys;
use crate::{Direction, EngineError};

/// Datagrams of this size (UDP payload bytes) pass on every path that is supported: what QUIC asks for
/// (RFC 9000, section 14).
pub(crate) const MIN_DATAGRAM: u16 = 1200;
/// Sizes besides [`MIN_DATAGRAM`] that are tried: Ethernet's 1,500 bytes and jumbo frames' 9,000, less 8 of
/// UDP header and 20 of IPv4 header.
const IPV4_SIZES: [u16; 3] = [MIN_DATAGRAM, 1472, 8972];
/// The same less the 40 bytes of IPv6 header.
const IPV6_SIZES: [u16; 3] = [MIN_DATAGRAM, 1452, 8952];
/// Time between two rounds of challenges.
const INTERVAL: Span = Span::from_millis(100);
/// An answer must have come so long after the session was accepted.
const TIMEOUT: Span = Span::from_secs(4);
/// Rounds in which sizes above the smallest are tried.
const LARGE_ROUNDS: u32 = 3;
/// Challenges that may wait for their responses; more than there are sizes.
const MOST_WAITING: usize = 4;

/// The sizes of challenge to send to `peer`, smallest first.
pub(crate) fn sizes_for(peer: SocketAddr) -> [u16; 3] {
    match peer.ip() {
        IpAddr::V6(ip) if ip.to_ipv4_mapped().is_none() => IPV6_SIZES,
        _ => IPV4_SIZES,
    }
}

/// Challenges of the peer that wait for their responses: the latest of each size.
#[derive(Debug, Default)]
pub(crate) struct Challenges {
    waiting: Vec<ControlFrame>,
    /// Size of the largest that has come.
    pub(super) largest: u16,
}

impl Challenges {
    pub(crate) fn note(&mut self, challenge: &ControlFrame) {
        self.largest = self.largest.max(challenge.size);
        if let Some(same) = self.waiting.iter_mut().find(|it| it.size == challenge.size) {
            *same = *challenge;
        } else if self.waiting.len() < MOST_WAITING {
            self.waiting.push(*challenge);
        }
    }

    pub(crate) fn respond(&mut self, keys: &FrameKeys) -> Option<Vec<u8>> {
        let challenge = self.waiting.pop()?;
        Some(keys.frame(ControlFrameKind::Response, challenge.number, challenge.size))
    }
}

/// The client's part. Whoever owns the socket gives it the control frames that come, and sends what it wants to send,
/// before and during the transfer of data.
#[derive(Debug)]
pub(crate) struct PathProbe {
    pub(crate) keys: FrameKeys,
    peer: SocketAddr,
    /// Challenges, smallest first.
    attempts: [Attempt; 3],
    next_number: u32,
    /// When the next round is due; `None` when there is none.
    pub(crate) next_round: Option<Time>,
    waiting_since: Time,
    largest_answered: Option<u16>,
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

impl PathProbe {
    /// Sends challenges every 100 ms until they are answered, the sizes above the smallest three times at most. Starts
    /// at `now`, with a first round due at once. `first_number` is random.
    pub(crate) fn new(now: Time, keys: FrameKeys, peer: SocketAddr, first_number: u32) -> Self {
        let attempt = |size| Attempt { size, rounds: 0, progress: Progress::Waiting };
        let mut probe = Self {
            keys,
            peer,
            attempts: sizes_for(peer).map(attempt),
            next_number: first_number,
            next_round: Some(now),
            waiting_since: now,
            largest_answered: None,
        };
        probe.on_deadline(now);
        probe
    }

    /// The server has accepted the session: from now on answers can be expected.
    pub(crate) fn on_accepted(&mut self, now: Time) {
        self.waiting_since = now;
    }

    pub(crate) fn on_deadline(&mut self, now: Time) {
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

    /// The next datagram. To be called after every input until it gives `None`.
    pub(crate) fn poll_transmit(&mut self) -> Option<Vec<u8>> {
        let attempt = self.attempts.iter_mut().find(|a| a.progress == Progress::Due)?;
        attempt.progress = Progress::Waiting;
        let number = self.next_number;
        self.next_number = number.wrapping_add(1);
        Some(self.keys.frame(ControlFrameKind::Challenge, number, attempt.size))
    }

    /// The system refused a datagram of this length: it is not tried again.
    pub(crate) fn on_too_large(&mut self, len: usize) {
        let refused = |a: &&mut Attempt| usize::from(a.size) == len && a.size > MIN_DATAGRAM;
        if let Some(attempt) = self.attempts.iter_mut().find(refused) {
            attempt.progress = Progress::Settled;
        }
    }

    /// Takes an authentic control frame; whether it answers a challenge.
    pub(super) fn on_frame(&mut self, frame: &ControlFrame) -> bool {
        let is_answer = frame.kind == ControlFrameKind::Response;
        if is_answer && self.attempts.iter().any(|attempt| attempt.size == frame.size) {
            self.on_response(frame);
            return true;
        }
        // The server does not answer before it has the response to its own.
        if frame.kind == ControlFrameKind::Challenge && self.largest_answered.is_none() {
            self.attempts[0].progress = Progress::Due;
        }
        false
    }

    fn on_response(&mut self, response: &ControlFrame) {
        self.largest_answered = self.largest_answered.max(Some(response.size));
        for attempt in self.attempts.iter_mut().filter(|a| a.size <= response.size) {
            attempt.progress = Progress::Settled;
        }
    }

    /// The largest datagram that is known to pass to the peer, UDP payload bytes. What has come tells nothing of it.
    pub(crate) fn datagram(&self) -> u16 {
        self.largest_answered.unwrap_or(MIN_DATAGRAM)
    }

    /// Says that UDP is blocked, and in which direction, once the answer is 4 seconds late. `udp_seen`: the server has
    /// said that it hears the client ([`Control::udp_seen`](crate::Control::udp_seen)).
    pub(crate) fn failure(&self, now: Time, udp_seen: bool) -> Option<EngineError> {
        if self.largest_answered.is_some() || now.since(self.waiting_since) < TIMEOUT {
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

/// Sends what the probe has to send. What the system does not take is tried again in the next round.
pub(crate) fn send_probes(socket: &UdpSocket, probe: &mut PathProbe) {
    while let Some(packet) = probe.poll_transmit() {
        if let Err(SendError::TooLarge) = socket.send(&packet, packet.len(), Ecn::NotEct) {
            probe.on_too_large(packet.len());
        }
    }
}

/// The size of a challenge that asks for an address only.
pub(crate) const BARE: u16 = CONTROL_FRAME_LEN as u16;

#[cfg(test)]
#[path = "path_probe_tests.rs"]
mod tests;
