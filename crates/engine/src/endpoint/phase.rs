//! Where a flight stands, and what it says by itself.

use haul_base::{Span, Time};
use haul_wire::packet::FlightWord;

use crate::EngineError;

/// Shortest time between two repetitions.
const SHORTEST: Span = Span::from_millis(50);
/// A goodbye is said so often before it is left at that.
const GOODBYES: u32 = 6;

/// Where a flight stands.
#[derive(Debug)]
pub(super) enum Phase {
    /// The client has not heard of the server yet: its packets carry the opening header.
    Opening(Opening),
    /// Both ends know.
    Running,
    /// This end has said goodbye.
    Closing(Goodbye),
    /// Over.
    Ended(Box<EngineError>),
}

/// A bare opening header is sent now and then, in case the stack itself has nothing to say.
#[derive(Debug)]
pub(super) struct Opening {
    pub(super) until: Time,
    pub(super) next: Time,
    pub(super) wait: Span,
}

/// Whether a flight ends where it should. Travels as the number of the word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(super) enum Manner {
    /// All was said.
    Regular = 0,
    /// It was broken off.
    Cut = 1,
}

/// A goodbye that is repeated.
#[derive(Debug)]
pub(super) struct Goodbye {
    pub(super) word: FlightWord,
    pub(super) manner: Manner,
    pub(super) next: Time,
    pub(super) said: u32,
}

impl Goodbye {
    pub(super) fn new(now: Time, word: FlightWord, manner: Manner) -> Self {
        Self { word, manner, next: now, said: 0 }
    }

    /// Notes that it was said; false when that was often enough.
    pub(super) fn say_again(&mut self, now: Time, rtt: Span) -> bool {
        self.said += 1;
        self.next = now + (rtt * 3 / 2).max(SHORTEST);
        self.said <= GOODBYES
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
