//! Where a connection stands, and what it says by itself.

use crate::error::CloseReason;
use haul_base::{Span, Time};
use haul_wire::packet::ControlFrameKind;

use super::connection::State;
use crate::EngineError;

/// Shortest time between two repetitions.
const SHORTEST: Span = Span::from_millis(50);
/// A close is said so often before it is left at that.
const MOST_CLOSES: u32 = 6;

/// Where a connection stands.
#[derive(Debug)]
pub(super) enum Phase {
    /// The client has not heard of the server yet: its packets carry the initial header.
    Opening(Box<Opening>),
    /// Both ends know.
    Running,
    /// This end closes. The other end may not know of the connection yet.
    Closing(Box<Closing>),
    /// Over.
    Ended(Ending),
}

/// How a connection has ended. Many may lie about that have ended as they should: those cost nothing more.
#[derive(Debug)]
pub(super) enum Ending {
    Closed,
    Failed(Box<EngineError>),
}

impl Ending {
    pub(super) fn new(error: EngineError) -> Self {
        match error {
            EngineError::Closed => Self::Closed,
            error => Self::Failed(Box::new(error)),
        }
    }

    pub(super) fn error(&self) -> EngineError {
        match self {
            Self::Closed => EngineError::Closed,
            Self::Failed(error) => (**error).clone(),
        }
    }
}

/// A bare initial header is sent now and then: the stack may have nothing to say, and what it says may be lost for a
/// reason that spares the header, such as its size.
#[derive(Debug)]
pub(super) struct Opening {
    /// The client gives up then.
    pub(super) until: Time,
    /// When a bare header is due.
    pub(super) next: Time,
    /// From one bare header to the next.
    wait: Span,
    /// Packets of the stack have stood in for the next bare header: they do so once.
    was_deferred: bool,
    /// When a header left last.
    sent: Option<Time>,
}

impl Opening {
    /// With these times from `now`: until the first bare header, from it to the second, until the end.
    pub(super) fn new(now: Time, first: Span, wait: Span, timeout: Span) -> Self {
        Self { until: now + timeout, next: now + first, wait, was_deferred: false, sent: None }
    }

    /// Packets of the stack leave with the header. However many there are, a bare one follows within two waits.
    pub(super) fn on_accompanied(&mut self, now: Time) {
        self.sent = Some(now);
        if !self.was_deferred {
            self.was_deferred = true;
            self.next = now + self.wait;
        }
    }

    /// A bare header leaves.
    pub(super) fn on_bare(&mut self, now: Time) {
        self.sent = Some(now);
        self.was_deferred = false;
        self.next = now + self.wait;
        self.wait = self.wait * 3 / 2;
    }

    /// So long ago the last header left.
    pub(super) fn waited(&self, now: Time) -> Option<Span> {
        self.sent.map(|sent| now.since(sent))
    }
}

/// A close frame that is repeated. As long as the server is not known to know the connection, an initial header goes before it: a
/// connection of which nobody has heard could not end, and whoever waits for it would wait on.
#[derive(Debug)]
pub(super) struct Closing {
    pub(super) kind: ControlFrameKind,
    pub(super) reason: CloseReason,
    pub(super) next: Time,
    said: u32,
    /// When the client gives up opening the connection; `None`: the other end knows it.
    opening: Option<Time>,
}

impl Closing {
    pub(super) fn new(now: Time, kind: ControlFrameKind, reason: CloseReason, opening: Option<Time>) -> Self {
        Self { kind, reason, next: now, said: 0, opening }
    }

    /// Notes that it was said; false when that was often enough.
    pub(super) fn next_attempt(&mut self, now: Time, rtt: Span) -> bool {
        self.said += 1;
        self.next = now + (rtt * 3 / 2).max(SHORTEST);
        self.said <= MOST_CLOSES || self.opening.is_some_and(|until| now < until)
    }

    /// Whether the connection has to be opened, so that it can end.
    pub(super) fn opens(&self) -> bool {
        self.opening.is_some()
    }

    /// The other end knows the connection: from now on the close is said as often as any other.
    pub(super) fn on_known(&mut self) {
        if self.opening.take().is_some() {
            self.said = 0;
        }
    }
}

/// Questions for a sign of life.
#[derive(Debug)]
pub(super) struct KeepAlive {
    pub(super) every: Span,
    pub(super) next: Time,
    pub(super) number: u32,
    pub(super) unanswered: u32,
}

impl KeepAlive {
    /// Questions without an answer after which the other side counts as gone.
    pub(super) const MOST: u32 = 3;

    pub(super) fn new(now: Time, every: Span) -> Self {
        Self { every, next: now + every, number: 0, unanswered: 0 }
    }

    /// Something authentic has come.
    pub(super) fn heard(&mut self, now: Time) {
        self.unanswered = 0;
        self.next = now + self.every;
    }
}

impl State {
    /// How the connection has ended, if it has.
    pub(super) fn ended(&self) -> Option<EngineError> {
        match &self.phase {
            Phase::Ended(ending) => Some(ending.error()),
            _ => None,
        }
    }

    /// This end has closed, or need not any more.
    pub(super) fn is_closing(&self) -> bool {
        matches!(self.phase, Phase::Closing(_) | Phase::Ended(_))
    }

    /// This end has not heard that the other knows the connection.
    pub(super) fn is_unconfirmed(&self) -> bool {
        match &self.phase {
            Phase::Opening(_) => true,
            Phase::Closing(closing) => closing.opens(),
            Phase::Running | Phase::Ended(_) => false,
        }
    }

    /// The first reason counts.
    pub(super) fn end(&mut self, error: EngineError) {
        if !matches!(self.phase, Phase::Ended(_)) {
            self.phase = Phase::Ended(Ending::new(error));
        }
    }

    /// This end closes.
    pub(super) fn start_close(&mut self, now: Time, kind: ControlFrameKind, reason: CloseReason) {
        if self.validated_peer().is_none() {
            return self.end(EngineError::Closed);
        }
        let opening = match &self.phase {
            Phase::Opening(opening) => Some(opening.until),
            Phase::Running => None,
            Phase::Closing(_) | Phase::Ended(_) => return,
        };
        self.phase = Phase::Closing(Box::new(Closing::new(now, kind, reason, opening)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_goodbye_is_said_until_the_connection_is_known_and_then_a_few_times_more() {
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
    fn data_puts_a_bare_header_off_once_however_much_there_is() {
        let ms = Span::from_millis;
        let mut opening = Opening::new(Time::ZERO, ms(10), ms(100), ms(5_000));
        let mut bare = Vec::new();
        for at in 0..700 {
            let now = Time::ZERO + ms(at);
            opening.on_accompanied(now);
            if opening.next <= now {
                bare.push(at);
                opening.on_bare(now);
            }
        }
        // Each time: put off by one wait from the first packet behind the one before; waits of 100, 150 and 225 ms.
        assert_eq!(bare, [100, 251, 477]);
    }
}
