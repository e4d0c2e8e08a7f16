//! The phases of a connection, and when its control frames are due.

use crate::error::CloseReason;
use haul_base::{Span, Time};
use haul_wire::control::{Fault, FaultCode};
use haul_wire::packet::ControlFrameKind;

use crate::EngineError;

/// Shortest time between two repetitions.
const SHORTEST: Span = Span::from_millis(50);
/// How often a close frame is sent before the connection ends without an answer.
const MOST_CLOSES: u32 = 6;

#[derive(Debug)]
pub(super) enum Phase {
    /// The client has had no packet of the server yet: its own carry the initial header.
    Opening(Box<Opening>),
    /// Both ends know.
    Running,
    /// This end closes. The other end may not know of the connection yet.
    Closing(Box<Closing>),
    /// Over: closed, or failed. The error is boxed, so that the many that close gracefully stay small.
    Ended(Option<Box<EngineError>>),
}

/// The end of a connection whose client begins another: what was on its way is lost.
pub(super) fn superseded() -> EngineError {
    let message = "the client has begun a newer connection";
    EngineError::Peer(Fault::new(FaultCode::PeerStopped, message, "go on with that one"))
}

/// Bare initial headers are sent at intervals: the stack may have nothing to send, or packets too large for the path.
#[derive(Debug)]
pub(super) struct Opening {
    /// When the client gives up.
    pub(super) until: Time,
    /// When a bare header is due.
    pub(super) next: Time,
    /// Time from one bare header to the next.
    wait: Span,
    /// Packets of the stack have deferred the next bare header, which they do once.
    was_deferred: bool,
    /// When a header left last.
    sent: Option<Time>,
    /// Largest datagram without the header, UDP payload bytes.
    pub(super) datagram: u16,
}

impl Opening {
    /// Times from `now`: to the first bare header, from that to the second, to the end.
    pub(super) fn new(now: Time, first: Span, wait: Span, timeout: Span, datagram: u16) -> Self {
        Self { until: now + timeout, next: now + first, wait, was_deferred: false, sent: None, datagram }
    }

    /// Packets of the stack leave with the header. A bare one follows within two intervals, however many there are.
    pub(super) fn on_accompanied(&mut self, now: Time) {
        self.sent = Some(now);
        if !self.was_deferred {
            self.was_deferred = true;
            self.next = now + self.wait;
        }
    }

    pub(super) fn on_bare(&mut self, now: Time) {
        self.sent = Some(now);
        self.was_deferred = false;
        self.next = now + self.wait;
        self.wait = self.wait * 3 / 2;
    }

    /// How long ago the last header left.
    pub(super) fn waited(&self, now: Time) -> Option<Span> {
        self.sent.map(|sent| now.since(sent))
    }
}

/// A close frame that is repeated. Until the server has answered, an initial header goes before it: a server that has
/// not accepted the connection could not end it, and an application there would go on waiting for it.
#[derive(Debug)]
pub(super) struct Closing {
    pub(super) kind: ControlFrameKind,
    pub(super) reason: CloseReason,
    pub(super) next: Time,
    attempts: u32,
    /// When the client gives up opening the connection; `None`: the other end knows it.
    opening: Option<Time>,
}

impl Closing {
    pub(super) fn new(now: Time, kind: ControlFrameKind, reason: CloseReason, opening: Option<Time>) -> Self {
        Self { kind, reason, next: now, attempts: 0, opening }
    }

    /// Counts an attempt and sets the time of the next; false when there were enough.
    pub(super) fn next_attempt(&mut self, now: Time, rtt: Span) -> bool {
        self.attempts += 1;
        self.next = now + (rtt * 3 / 2).max(SHORTEST);
        self.attempts <= MOST_CLOSES || self.opening.is_some_and(|until| now < until)
    }

    /// Whether an initial header goes before the close.
    pub(super) fn opens(&self) -> bool {
        self.opening.is_some()
    }

    /// The other end knows the connection: from now on the close is repeated as often as any other.
    pub(super) fn on_known(&mut self) {
        if self.opening.take().is_some() {
            self.attempts = 0;
        }
    }
}

#[derive(Debug)]
pub(super) struct KeepAlive {
    pub(super) every: Span,
    pub(super) next: Time,
    pub(super) number: u32,
    pub(super) unanswered: u32,
}

impl KeepAlive {
    /// Unanswered pings after which the connection ends.
    pub(super) const MOST: u32 = 3;

    pub(super) fn new(now: Time, every: Span) -> Self {
        Self { every, next: now + every, number: 0, unanswered: 0 }
    }

    /// A ping leaves. A path that is longer than the interval has the time to answer it.
    pub(super) fn on_ping(&mut self, now: Time, rtt: Span) {
        self.unanswered += 1;
        self.number = self.number.wrapping_add(1);
        self.next = now + self.every.max(rtt * 3 / 2).max(SHORTEST);
    }

    /// Something authentic has come.
    pub(super) fn heard(&mut self, now: Time) {
        self.unanswered = 0;
        self.next = now + self.every;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_close_is_repeated_until_the_connection_is_known_and_then_a_few_times_more() {
        let (mut now, rtt) = (Time::ZERO, Span::from_millis(100));
        let until = now + Span::from_secs(5);
        let mut closing = Closing::new(now, ControlFrameKind::Close, CloseReason::Graceful, Some(until));
        let mut say = |closing: &mut Closing| {
            now = closing.next;
            (now, closing.next_attempt(now, rtt))
        };
        while let (at, true) = say(&mut closing) {
            assert!(closing.opens() && at < until);
        }
        let mut closing =
            Closing::new(Time::ZERO, ControlFrameKind::Close, CloseReason::Graceful, Some(until));
        (0..9).for_each(|_| assert!(say(&mut closing).1));
        closing.on_known();
        assert!(!closing.opens());
        assert_eq!((0..9).filter(|_| say(&mut closing).1).count(), 6);
    }

    #[test]
    fn a_path_longer_than_the_interval_has_the_time_to_answer() {
        for every in [Span::ZERO, Span::from_millis(10), Span::from_secs(1)] {
            let rtt = Span::from_millis(600);
            let mut alive = KeepAlive::new(Time::ZERO, every);
            let first = alive.next;
            while alive.unanswered < KeepAlive::MOST {
                alive.on_ping(alive.next, rtt);
            }
            assert!(alive.next.since(first) > rtt * 4, "{every}: gone after {}", alive.next.since(first));
            assert!(alive.next.since(first) >= every * u64::from(KeepAlive::MOST));
        }
    }

    #[test]
    fn data_puts_a_bare_header_off_once_however_much_there_is() {
        let ms = Span::from_millis;
        let mut opening = Opening::new(Time::ZERO, ms(10), ms(100), ms(5_000), 1_200);
        let mut bare = Vec::new();
        for at in 0..700 {
            let now = Time::ZERO + ms(at);
            opening.on_accompanied(now);
            if opening.next <= now {
                bare.push(at);
                opening.on_bare(now);
            }
        }
        // Each is deferred by one interval from the first packet after the one before: 100, 150 and 225 ms.
        assert_eq!(bare, [100, 251, 477]);
    }
}
