//! Path probing: the client sends challenges of several sizes, and each is answered by a response of the same
//! size. The exchange shows that UDP passes, which datagram sizes do and, if the server sends challenges too,
//! that the client is at its address (RFC 9000, section 8).

use std::net::IpAddr;

use haul_base::{Span, Time};
use haul_wire::packet::ControlFrameKind;

/// Datagram size (UDP payload bytes) that every supported path carries, as for QUIC (RFC 9000, section 14).
pub const MIN_DATAGRAM: u16 = 1200;
/// Sizes to probe on IPv4: beside [`MIN_DATAGRAM`] Ethernet's 1,500 bytes and jumbo frames' 9,000, minus 8
/// bytes of UDP header and 20 of IPv4 header.
const IPV4_SIZES: [u16; 3] = [MIN_DATAGRAM, 1472, 8972];
/// Sizes to probe on IPv6, with 40 bytes of IPv6 header.
const IPV6_SIZES: [u16; 3] = [MIN_DATAGRAM, 1452, 8952];
/// Interval between two rounds of challenges.
const INTERVAL: Span = Span::from_millis(100);
/// Time after the session was accepted within which an answer must arrive.
const TIMEOUT: Span = Span::from_secs(4);
/// Rounds in which sizes above the smallest are probed.
const LARGE_ROUNDS: u32 = 3;
/// Maximum number of unanswered challenges; more than there are sizes.
const MAX_WAITING: usize = 4;

/// A challenge, or the response to one, which has its number and size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Challenge {
    /// Number that the response repeats.
    pub number: u32,
    /// UDP payload bytes of the datagram.
    pub size: u16,
}

/// Returns the challenge sizes for `peer`, smallest first.
pub fn sizes_for(peer: IpAddr) -> [u16; 3] {
    match peer {
        IpAddr::V6(ip) if ip.to_ipv4_mapped().is_none() => IPV6_SIZES,
        _ => IPV4_SIZES,
    }
}

/// Challenges of the peer still to be answered: the latest of each size.
#[derive(Debug, Default)]
pub struct Challenges {
    waiting: Vec<Challenge>,
    /// Size of the largest challenge received; 0 before the first.
    pub largest: u16,
}

impl Challenges {
    /// Records an authentic challenge.
    pub fn add_challenge(&mut self, challenge: Challenge) {
        self.largest = self.largest.max(challenge.size);
        if let Some(same) = self.waiting.iter_mut().find(|it| it.size == challenge.size) {
            *same = challenge;
        } else if self.waiting.len() < MAX_WAITING {
            self.waiting.push(challenge);
        }
    }

    /// Returns the next response to send.
    pub fn poll_transmit(&mut self) -> Option<Challenge> {
        self.waiting.pop()
    }
}

/// Client side of path probing. The owner of the socket passes in control frames and sends the challenges,
/// before and during the data transfer.
#[derive(Debug)]
pub struct PathProbe {
    /// Challenges, smallest first.
    attempts: [Attempt; 3],
    next_number: u32,
    /// When the next round is due; `None` if there is none.
    pub next_round: Option<Time>,
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
    /// Creates a probe that sends challenges every 100 ms until they are answered, sizes above the smallest
    /// at most three times. The first round is due at `now`. `first_number` must be random.
    pub fn new(now: Time, peer: IpAddr, first_number: u32) -> Self {
        let attempt = |size| Attempt { size, rounds: 0, progress: Progress::Waiting };
        let mut probe = Self {
            attempts: sizes_for(peer).map(attempt),
            next_number: first_number,
            next_round: Some(now),
            waiting_since: now,
            largest_answered: None,
        };
        probe.on_deadline(now);
        probe
    }

    /// The server has accepted the session: from now on answers are expected.
    pub fn on_accepted(&mut self, now: Time) {
        self.waiting_since = now;
    }

    /// Starts a round of challenges if one is due.
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

    /// Returns the next challenge. To be called after every input until it returns `None`.
    pub fn poll_transmit(&mut self) -> Option<Challenge> {
        let attempt = self.attempts.iter_mut().find(|a| a.progress == Progress::Due)?;
        attempt.progress = Progress::Waiting;
        let number = self.next_number;
        self.next_number = number.wrapping_add(1);
        Some(Challenge { number, size: attempt.size })
    }

    /// The system refused a datagram of this length: the size is not tried again.
    pub fn on_too_large(&mut self, len: usize) {
        let refused = |a: &&mut Attempt| usize::from(a.size) == len && a.size > MIN_DATAGRAM;
        if let Some(attempt) = self.attempts.iter_mut().find(refused) {
            attempt.progress = Progress::Settled;
        }
    }

    /// Handles an authentic control frame of this kind and size; returns whether it answers a challenge.
    pub fn on_frame(&mut self, kind: ControlFrameKind, size: u16) -> bool {
        let is_answer = kind == ControlFrameKind::Response;
        if is_answer && self.attempts.iter().any(|attempt| attempt.size == size) {
            self.on_response(size);
            return true;
        }
        // The server does not answer until it has the response to its own challenge.
        if kind == ControlFrameKind::Challenge && self.largest_answered.is_none() {
            self.attempts[0].progress = Progress::Due;
        }
        false
    }

    fn on_response(&mut self, size: u16) {
        self.largest_answered = self.largest_answered.max(Some(size));
        for attempt in self.attempts.iter_mut().filter(|a| a.size <= size) {
            attempt.progress = Progress::Settled;
        }
    }

    /// Returns the largest datagram known to reach the peer, UDP payload bytes. Received sizes do not count.
    pub fn datagram(&self) -> u16 {
        self.largest_answered.unwrap_or(MIN_DATAGRAM)
    }

    /// Whether UDP seems blocked: there is no answer within 4 seconds.
    pub fn is_unanswered(&self, now: Time) -> bool {
        self.largest_answered.is_none() && now.since(self.waiting_since) >= TIMEOUT
    }
}

impl Attempt {
    fn start_round(&mut self, without_end: bool) {
        if self.progress == Progress::Settled {
            return;
        }
        let may_continue = without_end || self.rounds < LARGE_ROUNDS;
        self.rounds += 1;
        self.progress = if may_continue { Progress::Due } else { Progress::Settled };
    }
}

#[cfg(test)]
#[path = "path_probe_tests.rs"]
mod tests;
