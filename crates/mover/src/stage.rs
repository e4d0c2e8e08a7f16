//! What a job waits for.

use std::fmt;

/// What a job waits for when nothing happens. Its text completes "waiting for".
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// The receiver looks at its destination.
    Destination,
    /// The sources are listed.
    Listing,
    /// A pipe gives more, here or at the sender. It may be silent for as long as it likes.
    Pipe,
    /// The receiver compares what it has, and says what it wants.
    Wants,
    /// The contents of the sources are read.
    Reading,
    /// The contents travel to the receiver.
    Delivery,
    /// The receiver's disk takes what has arrived.
    Writing,
    /// Files are verified, synced and put in place.
    Completion,
    /// The sender confirms the end.
    Confirmation,
}

impl Stage {
    /// Whether it ends in time on a machine and a disk that work.
    pub fn is_limited(self) -> bool {
        self != Self::Pipe
    }
}

impl fmt::Display for Stage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Destination => "the receiver to look at its destination",
            Self::Listing => "the sources to be listed",
            Self::Pipe => "more to come out of the pipe",
            Self::Wants => "the receiver to compare what it has and to say what it wants",
            Self::Reading => "the sources to be read",
            Self::Delivery => "contents to arrive at the receiver",
            Self::Writing => "the receiver's disk to take what has arrived",
            Self::Completion => "files to be verified, synced and put in place",
            Self::Confirmation => "the sender to confirm the end",
        })
    }
}

/// Where the contents of a job come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    Files,
    /// One stream, whose length nobody knows before its end.
    Pipe,
}

impl Origin {
    /// What is waited for while the sender does not know of any more.
    pub(crate) fn listing(self) -> Stage {
        match self {
            Self::Files => Stage::Listing,
            Self::Pipe => Stage::Pipe,
        }
    }
}
