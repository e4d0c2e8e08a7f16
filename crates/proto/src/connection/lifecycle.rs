//! Opening, keep-alive and end of a connection, by the control frames of both ends and by timers.

use haul_base::{Span, Time};
use haul_wire::packet::{CloseReason, ControlFrameKind};

/// Minimum time between two repetitions.
const SHORTEST: Span = Span::from_millis(50);
/// Close frames sent before the connection ends without an answer.
const MAX_CLOSES: u32 = 6;
/// Delay of the first bare initial header, so that it can accompany data.
const OPENING_DELAY: Span = Span::from_millis(10);
/// Minimum time between two initial headers.
const OPENING_REPEAT: Span = Span::from_millis(100);
/// Unanswered keep-alives after which the connection ends.
pub const MAX_UNANSWERED: u32 = 3;

/// Lifecycle of one end of a connection, which may end with the error `E`.
#[derive(Debug)]
pub struct Lifecycle<E> {
    phase: Phase<E>,
    last_received: Time,
    keep_alive: Option<Box<KeepAlive>>,
}

/// Rare states are boxed, as many connections are idle.
#[derive(Debug)]
enum Phase<E> {
    /// The client has not received a packet from the server yet: its own carry the initial header.
    Opening(Box<Opening>),
    /// Both ends know the connection.
    Running,
    /// This end is closing. The peer may not know the connection yet.
    Closing(Box<Closing<E>>),
    /// Closed or failed.
    Ended(Option<Box<E>>),
}

/// An action that is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Due {
    /// Send an initial header without a packet.
    Header,
    /// Send a control frame.
    Frame {
        /// Kind of frame.
        kind: ControlFrameKind,
        /// Number that matches an answer to its ping or challenge.
        number: u32,
        /// Whether to send an initial header first, as the peer may not know the connection yet.
        opens: bool,
    },
    /// End the connection.
    End(Ending),
}

/// How a connection ends by a timer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// The close frame was repeated often enough.
    Closed,
    /// The server never answered.
    Unanswered,
    /// Nothing arrived for this time, and no keep-alive was answered.
    Silent(Span),
}

impl<E> Lifecycle<E> {
    /// Creates the lifecycle of an end whose peer is known.
    pub fn running(now: Time) -> Self {
        Self { phase: Phase::Running, last_received: now, keep_alive: None }
    }

    /// Creates the lifecycle of a client that gives up if nothing arrives from the server within `timeout`.
    /// `round_trip` is an estimate. `datagram`: largest datagram without the initial header, UDP payload
    /// bytes.
    pub fn opening(now: Time, round_trip: Span, timeout: Span, datagram: u16) -> Self {
        let wait = (round_trip * 2).max(OPENING_REPEAT);
        let opening = Opening::new(now, OPENING_DELAY, wait, timeout, datagram);
        Self { phase: Phase::Opening(Box::new(opening)), ..Self::running(now) }
    }

    /// Enables a keep-alive after every silence of this length.
    #[must_use]
    pub fn keep_alive(mut self, now: Time, every: Span) -> Self {
        self.keep_alive = Some(Box::new(KeepAlive::new(now, every)));
        self
    }

    /// Disables keep-alives, and with them the end after silence.
    pub fn stop_keep_alive(&mut self) {
        self.keep_alive = None;
    }

    /// Returns when something authentic last arrived, or when the connection began.
    pub fn last_received(&self) -> Time {
        self.last_received
    }

    /// Whether a keep-alive was sent.
    pub fn has_pinged(&self) -> bool {
        self.keep_alive.as_ref().is_some_and(|alive| alive.number > 0)
    }

    /// Whether the peer has not confirmed yet that it knows the connection.
    pub fn is_unconfirmed(&self) -> bool {
        match &self.phase {
            Phase::Opening(_) => true,
            Phase::Closing(closing) => closing.opens(),
            Phase::Running | Phase::Ended(_) => false,
        }
    }

    /// Whether this end has closed, or the connection has ended.
    pub fn is_closing(&self) -> bool {
        matches!(self.phase, Phase::Closing(_) | Phase::Ended(_))
    }

    /// Whether the connection has ended for the application. After a failure the close is still repeated.
    pub fn is_ended(&self) -> bool {
        self.is_over() || self.failure().is_some()
    }

    /// Whether the connection has ended and sends nothing more.
    pub fn is_over(&self) -> bool {
        matches!(self.phase, Phase::Ended(_))
    }

    /// Returns the error with which the connection ended, if any.
    pub fn failure(&self) -> Option<&E> {
        match &self.phase {
            Phase::Ended(failure) => failure.as_deref(),
            Phase::Closing(closing) => closing.failure.as_deref(),
            Phase::Opening(_) | Phase::Running => None,
        }
    }

    /// Ends the connection, normally if `None`. Only the first end counts.
    pub fn end(&mut self, failure: Option<E>) {
        let earlier = match &mut self.phase {
            Phase::Ended(_) => return,
            Phase::Closing(closing) => closing.failure.take(),
            Phase::Opening(_) | Phase::Running => None,
        };
        self.phase = Phase::Ended(earlier.or_else(|| failure.map(Box::new)));
    }

    /// Ends the connection with this error, and repeats the close, which the caller has sent once.
    pub fn fail(&mut self, now: Time, rtt: Span, failure: E) {
        self.start_close(now, ControlFrameKind::Close, CloseReason::Abort);
        if let Phase::Closing(closing) = &mut self.phase {
            closing.reason = CloseReason::Abort;
            closing.failure.get_or_insert_with(|| Box::new(failure));
            closing.next_attempt(now, rtt);
        }
    }

    /// Starts closing with a frame of this kind, which is sent once the peer's address is validated.
    pub fn start_close(&mut self, now: Time, kind: ControlFrameKind, reason: CloseReason) {
        let opening = match &self.phase {
            Phase::Opening(opening) => Some(opening.until),
            Phase::Running => None,
            Phase::Closing(_) | Phase::Ended(_) => return,
        };
        self.phase = Phase::Closing(Box::new(Closing::new(now, kind, reason, opening)));
        // The repetitions of the close find out whether the peer is there.
        self.stop_keep_alive();
    }

    /// Records that the stack's packets are sent; returns whether to send the initial header with them.
    pub fn on_transmit(&mut self, now: Time) -> bool {
        let Phase::Opening(opening) = &mut self.phase else { return false };
        opening.on_accompanied(now);
        true
    }

    /// Returns the age of the first initial header, while the connection opens: at least the round-trip time
    /// when an answer arrives, whichever header it answers (Karn's algorithm, RFC 6298 section 3).
    pub fn header_age(&self, now: Time) -> Option<Span> {
        if let Phase::Opening(opening) = &self.phase { opening.age(now) } else { None }
    }

    /// Records that something authentic arrived. Returns the maximum datagram size if it changes, as packets
    /// are now sent without the initial header.
    pub fn on_authentic(&mut self, now: Time) -> Option<u16> {
        self.last_received = now;
        if let Some(alive) = &mut self.keep_alive {
            alive.on_received(now);
        }
        let datagram = match &mut self.phase {
            Phase::Opening(opening) => opening.datagram,
            Phase::Closing(closing) => {
                closing.on_confirmed();
                return None;
            }
            Phase::Running | Phase::Ended(_) => return None,
        };
        self.phase = Phase::Running;
        Some(datagram)
    }

    /// Whether the answer with this number is for a keep-alive that has none yet; the path may be longer than
    /// the time between two.
    pub fn is_answered_by(&self, number: u32) -> bool {
        let alive = self.keep_alive.as_ref();
        alive.is_some_and(|alive| alive.number.wrapping_sub(number) < alive.unanswered)
    }

    /// Returns a due action. To be called until it returns `None`; the driver carries out the end.
    pub fn poll_due(&mut self, now: Time, rtt: Span) -> Option<Due> {
        match &mut self.phase {
            Phase::Opening(opening) if opening.until <= now => return Some(Due::End(Ending::Unanswered)),
            Phase::Opening(opening) if opening.next <= now => {
                opening.on_bare_header(now);
                return Some(Due::Header);
            }
            // A server that does not know the connection answers no keep-alive.
            Phase::Opening(_) | Phase::Ended(_) => return None,
            Phase::Closing(closing) if closing.next <= now => return Some(closing.due(now, rtt)),
            _ => {}
        }
        let alive = self.keep_alive.as_mut().filter(|alive| alive.next <= now)?;
        if alive.unanswered == MAX_UNANSWERED {
            return Some(Due::End(Ending::Silent(now.since(self.last_received))));
        }
        alive.on_ping(now, rtt);
        Some(Due::Frame { kind: ControlFrameKind::Ping, number: alive.number, opens: false })
    }

    /// Returns when the next action is due; `None` once ended.
    pub fn deadline(&self) -> Option<Time> {
        match &self.phase {
            Phase::Ended(_) => None,
            Phase::Opening(opening) => Some(opening.next.min(opening.until)),
            Phase::Closing(closing) => Some(closing.next),
            Phase::Running => self.keep_alive.as_ref().map(|alive| alive.next),
        }
    }
}

/// Schedule of bare initial headers: the stack may have nothing to send, or packets too large for the path.
#[derive(Debug)]
struct Opening {
    /// When the client gives up.
    until: Time,
    /// When a bare header is due.
    next: Time,
    /// Interval between bare headers.
    wait: Span,
    /// Whether packets of the stack have deferred the next bare header, which happens once.
    was_deferred: bool,
    /// When the first header was sent.
    sent: Option<Time>,
    /// Largest datagram without the header, UDP payload bytes.
    datagram: u16,
}

impl Opening {
    /// Times from `now`: `first` to the first bare header, `wait` from there to the second, `timeout` to the
    /// end.
    fn new(now: Time, first: Span, wait: Span, timeout: Span, datagram: u16) -> Self {
        Self { until: now + timeout, next: now + first, wait, was_deferred: false, sent: None, datagram }
    }

    /// The stack's packets are sent with the header. A bare one follows within two intervals in any case.
    fn on_accompanied(&mut self, now: Time) {
        self.sent.get_or_insert(now);
        if !self.was_deferred {
            self.was_deferred = true;
            self.next = now + self.wait;
        }
    }

    fn on_bare_header(&mut self, now: Time) {
        self.sent.get_or_insert(now);
        self.was_deferred = false;
        self.next = now + self.wait;
        self.wait = self.wait * 3 / 2;
    }

    /// Returns the age of the first header.
    fn age(&self, now: Time) -> Option<Span> {
        self.sent.map(|sent| now.since(sent))
    }
}

/// A repeated close frame. Until the server has answered, an initial header precedes it: a server that has
/// not accepted the connection could not end it, and its application would go on waiting for it.
#[derive(Debug)]
struct Closing<E> {
    /// Why the connection has failed, if it has.
    failure: Option<Box<E>>,
    kind: ControlFrameKind,
    reason: CloseReason,
    next: Time,
    attempts: u32,
    /// When the client gives up opening the connection; `None`: the peer knows it.
    opening: Option<Time>,
}

impl<E> Closing<E> {
    fn new(now: Time, kind: ControlFrameKind, reason: CloseReason, opening: Option<Time>) -> Self {
        Self { failure: None, kind, reason, next: now, attempts: 0, opening }
    }

    /// Counts an attempt and schedules the next; returns false after enough attempts.
    fn next_attempt(&mut self, now: Time, rtt: Span) -> bool {
        self.attempts += 1;
        // A server that does not answer is asked less and less often.
        self.next = now + (rtt * 3 / 2).max(SHORTEST) * u64::from(1 + self.attempts / MAX_CLOSES);
        self.attempts <= MAX_CLOSES || self.opening.is_some_and(|until| now < until)
    }

    /// Returns the next close frame, or the end of the connection.
    fn due(&mut self, now: Time, rtt: Span) -> Due {
        let (kind, number, opens) = (self.kind, self.reason as u32, self.opens());
        match (self.next_attempt(now, rtt), opens) {
            (true, opens) => Due::Frame { kind, number, opens },
            (false, true) => Due::End(Ending::Unanswered),
            (false, false) => Due::End(Ending::Closed),
        }
    }

    /// Whether an initial header precedes the close frame.
    fn opens(&self) -> bool {
        self.opening.is_some()
    }

    /// The peer knows the connection: from now on the close is repeated as often as any other.
    fn on_confirmed(&mut self) {
        if self.opening.take().is_some() {
            self.attempts = 0;
        }
    }
}

#[derive(Debug)]
struct KeepAlive {
    every: Span,
    next: Time,
    number: u32,
    unanswered: u32,
}

impl KeepAlive {
    fn new(now: Time, every: Span) -> Self {
        let every = every.max(SHORTEST);
        Self { every, next: now + every, number: 0, unanswered: 0 }
    }

    /// Records a ping. The wait for the answer is longer than the interval if the round-trip time is.
    fn on_ping(&mut self, now: Time, rtt: Span) {
        self.unanswered += 1;
        self.number = self.number.wrapping_add(1);
        self.next = now + self.every.max(rtt * 3 / 2).max(SHORTEST);
    }

    /// Records that something authentic arrived.
    fn on_received(&mut self, now: Time) {
        self.unanswered = 0;
        self.next = now + self.every;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_close_is_repeated_until_the_connection_is_confirmed_and_a_few_times_more() {
        let (mut now, rtt) = (Time::ZERO, Span::from_millis(100));
        let until = now + Span::from_secs(5);
        let mut closing =
            Closing::<()>::new(now, ControlFrameKind::Close, CloseReason::Graceful, Some(until));
        let mut send_close = |closing: &mut Closing<()>| {
            now = closing.next;
            (now, closing.next_attempt(now, rtt))
        };
        while let (at, true) = send_close(&mut closing) {
            assert!(closing.opens() && at < until);
        }
        let mut closing =
            Closing::new(Time::ZERO, ControlFrameKind::Close, CloseReason::Graceful, Some(until));
        (0..9).for_each(|_| assert!(send_close(&mut closing).1));
        closing.on_confirmed();
        assert!(!closing.opens());
        assert_eq!((0..9).filter(|_| send_close(&mut closing).1).count(), 6);
    }

    #[test]
    fn the_answer_to_a_repeated_header_bounds_the_round_trip_from_the_first() {
        let (timeout, at) = (Span::from_secs(10), |ms| Time::ZERO + Span::from_millis(ms));
        let mut client = Lifecycle::<()>::opening(Time::ZERO, Span::from_millis(50), timeout, 1_200);
        assert_eq!(client.header_age(at(5)), None);
        for ms in [5, 200, 500] {
            assert!(client.on_transmit(at(ms)));
        }
        assert_eq!(client.header_age(at(510)), Some(Span::from_millis(505)));
    }

    #[test]
    fn a_path_longer_than_the_interval_has_time_to_answer() {
        for every in [Span::ZERO, Span::from_millis(10), Span::from_secs(1)] {
            let rtt = Span::from_millis(600);
            let mut alive = KeepAlive::new(Time::ZERO, every);
            let first = alive.next;
            while alive.unanswered < MAX_UNANSWERED {
                alive.on_ping(alive.next, rtt);
            }
            assert!(alive.next.since(first) > rtt * 4, "{every}: gone after {}", alive.next.since(first));
            assert!(alive.next.since(first) >= every * u64::from(MAX_UNANSWERED));
        }
    }

    /// Each answer to a keep-alive would be followed by another keep-alive.
    #[test]
    fn keep_alives_have_a_minimum_distance() {
        let mut alive = KeepAlive::new(Time::ZERO, Span::ZERO);
        for round_trips in 1..10 {
            let now = Time::ZERO + Span::from_millis(round_trips);
            alive.on_ping(now, Span::from_millis(1));
            alive.on_received(now);
            assert!(alive.next >= now + SHORTEST);
        }
    }

    #[test]
    fn data_delays_a_bare_header_only_once() {
        let ms = Span::from_millis;
        let mut opening = Opening::new(Time::ZERO, ms(10), ms(100), ms(5_000), 1_200);
        let mut bare = Vec::new();
        for at in 0..700 {
            let now = Time::ZERO + ms(at);
            opening.on_accompanied(now);
            if opening.next <= now {
                bare.push(at);
                opening.on_bare_header(now);
            }
        }
        // Each is deferred by one interval from the first packet after the one before: 100, 150 and 225 ms.
        assert_eq!(bare, [100, 251, 477]);
    }

    #[test]
    fn an_unanswered_client_times_out_and_an_answered_one_keeps_alive() {
        let (rtt, timeout) = (Span::from_millis(30), Span::from_secs(2));
        let every = timeout / 8;
        let mut lifecycle =
            Lifecycle::<()>::opening(Time::ZERO, rtt, timeout, 1_200).keep_alive(Time::ZERO, every);
        let mut headers = 0;
        let end = loop {
            let at = lifecycle.deadline().unwrap();
            match lifecycle.poll_due(at, rtt) {
                Some(Due::Header) => headers += 1,
                due => break (at, due),
            }
        };
        assert_eq!(end, (Time::ZERO + timeout, Some(Due::End(Ending::Unanswered))));
        assert!(headers > 4, "{headers}");
        let mut at = end.0;
        assert_eq!((lifecycle.on_authentic(at), lifecycle.on_authentic(at)), (Some(1_200), None));
        for number in 1..=MAX_UNANSWERED {
            at = lifecycle.deadline().unwrap();
            let ping = Due::Frame { kind: ControlFrameKind::Ping, number, opens: false };
            assert_eq!((lifecycle.poll_due(at, rtt), lifecycle.poll_due(at, rtt)), (Some(ping), None));
            assert!(lifecycle.is_answered_by(number) && !lifecycle.is_answered_by(number + 1));
        }
        at = lifecycle.deadline().unwrap();
        let Some(Due::End(Ending::Silent(silence))) = lifecycle.poll_due(at, rtt) else {
            panic!("it does not respond")
        };
        assert!(silence >= every * u64::from(MAX_UNANSWERED), "{silence}");
        lifecycle.end(Some(()));
        lifecycle.end(None);
        assert_eq!(
            (lifecycle.poll_due(at, rtt), lifecycle.deadline(), lifecycle.failure()),
            (None, None, Some(&()))
        );
    }
}
