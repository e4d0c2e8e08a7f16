use std::num::NonZeroU32;
use std::time::Instant;

use haul_base::{Rate, Span};
use haul_proto::group::{self, Member};

use crate::Connection;

/// A member of the group.
#[derive(Debug)]
struct Sender(Connection);

impl Member for Sender {
    fn received(&self) -> u64 {
        self.0.statistics().totals.bytes_received
    }

    fn set_rate(&mut self, rate: Rate) -> bool {
        self.0.set_rate(rate);
        true
    }
}

/// Many senders that share one receiver's capacity (Group Transport Protocol, GTP). The shares are weighted
/// max-min fair; what one sender does not use, the others get. For connections whose recipe has
/// `rate_feedback`, such as `viz`.
///
/// Senders announce no demand: it is derived from what arrived since the last round. So call [`Group::round`]
/// periodically, at least two round-trip times apart; 500 ms suits any path.
#[derive(Debug)]
pub struct Group {
    senders: group::Group<Sender>,
    since: Instant,
}

impl Group {
    /// Creates a group that receives at most `capacity` in all; rates are in bits of UDP payload per second.
    pub fn new(capacity: Rate) -> Self {
        Self { senders: group::Group::new(capacity), since: Instant::now() }
    }

    /// Changes the capacity, from the next round on.
    pub fn set_capacity(&mut self, capacity: Rate) {
        self.senders.set_capacity(capacity);
    }

    /// Adds a sender with a weight. It has a share at once; all shares are smaller until demands are known.
    pub fn add(&mut self, connection: Connection, weight: NonZeroU32) {
        self.senders.add(Sender(connection), weight);
        self.since = Instant::now();
    }

    /// Ends a round: removes senders whose connection has ended, and assigns the others their new rates.
    pub fn round(&mut self) {
        if !self.senders.retain(|_, sender| sender.0.ended().is_none()) {
            self.senders.round(Span::from(self.since.elapsed()));
        }
        self.since = Instant::now();
    }

    /// Returns the senders and their assigned rates.
    pub fn shares(&self) -> impl Iterator<Item = (&Connection, Rate)> {
        self.senders.shares().map(|(sender, rate)| (&sender.0, rate))
    }
}
