use std::num::NonZeroU32;
use std::time::Instant;

use haul_base::{Rate, Span};
use haul_proto::group::{self, Member};

use crate::Connection;

/// A sender of the group.
#[derive(Debug)]
struct Sender(Connection);

impl Member for Sender {
    fn received(&self) -> u64 {
        self.0.statistics().totals.bytes_received
    }

    fn tell(&mut self, rate: Rate) -> bool {
        self.0.set_rate(rate);
        true
    }
}

/// Many senders and one receiver, which divides among them what it can take (group transport, GTP): max-min fair, by
/// weight; what one does not use the others get. For connections whose recipe has `rate_feedback`, for example `viz`.
///
/// Nobody announces what he wants: it follows from what has come since the last round. So [`Group::round`] is to be
/// called again and again, at least two round-trip times apart; half a second does for any path.
#[derive(Debug)]
pub struct Group {
    senders: group::Group<Sender>,
    since: Instant,
}

impl Group {
    /// A group that receives at `capacity` altogether: bits of UDP payload per second, as all rates.
    pub fn new(capacity: Rate) -> Self {
        Self { senders: group::Group::new(capacity), since: Instant::now() }
    }

    /// Another capacity, in force with the next round.
    pub fn set_capacity(&mut self, capacity: Rate) {
        self.senders.set_capacity(capacity);
    }

    /// Another sender, which counts `weight` times. It gets its part at once, and all have less until it is known who
    /// wants what.
    pub fn add(&mut self, connection: Connection, weight: NonZeroU32) {
        self.senders.add(Sender(connection), weight);
        self.since = Instant::now();
    }

    /// Ends a round: senders that have ended leave the group, and the others are asked for what they are assigned now.
    pub fn round(&mut self) {
        if !self.senders.retain(|_, sender| sender.0.ended().is_none()) {
            self.senders.round(Span::from(self.since.elapsed()));
        }
        self.since = Instant::now();
    }

    /// The senders and what each is assigned.
    pub fn shares(&self) -> impl Iterator<Item = (&Connection, Rate)> {
        self.senders.shares().map(|(sender, rate)| (&sender.0, rate))
    }
}
