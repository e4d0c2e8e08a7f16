use std::num::NonZeroU32;
use std::time::Instant;

use haul_base::{Rate, Span};
use haul_proto::group::{Allotter, SenderId};

use crate::Connection;

/// A sender of the group.
#[derive(Debug)]
struct Member {
    id: SenderId,
    connection: Connection,
    /// Bytes that had come from it when the last round ended.
    bytes: u64,
    /// What it was asked for last.
    told: Option<Rate>,
}

impl Member {
    fn received(&self) -> u64 {
        self.connection.statistics().totals.bytes_received
    }

    fn tell(&mut self, rate: Option<Rate>) {
        let Some(rate) = rate.filter(|_| self.told != rate) else { return };
        self.connection.set_rate(rate);
        self.told = Some(rate);
    }
}

/// Many senders and one receiver, which divides among them what it can take (group transport, GTP): max-min fair, by
/// weight; what one does not use the others get. For connections whose recipe has `rate_feedback`, for example `viz`.
///
/// Nobody announces what he wants: it follows from what has come since the last round. So [`Group::round`] is to be
/// called again and again, at least two round-trip times apart; half a second does for any path.
#[derive(Debug)]
pub struct Group {
    allotter: Allotter,
    members: Vec<Member>,
    since: Instant,
}

impl Group {
    /// A group that receives at `capacity` altogether: bits of UDP payload per second, as all rates.
    pub fn new(capacity: Rate) -> Self {
        Self { allotter: Allotter::new(capacity), members: Vec::new(), since: Instant::now() }
    }

    /// Another capacity, in force with the next round.
    pub fn set_capacity(&mut self, capacity: Rate) {
        self.allotter.set_capacity(capacity);
    }

    /// Another sender, which counts `weight` times. It gets its part at once, and all have less until it is known who
    /// wants what.
    pub fn add(&mut self, connection: Connection, weight: NonZeroU32) {
        let id = self.allotter.add(weight);
        self.members.push(Member { id, connection, bytes: 0, told: None });
        self.share();
    }

    /// Ends a round: senders that have ended leave the group, and the others are asked for what they are allotted now.
    pub fn round(&mut self) {
        let before = self.members.len();
        let allotter = &mut self.allotter;
        self.members.retain(|member| {
            let stays = member.connection.ended().is_none();
            if !stays {
                allotter.remove(member.id);
            }
            stays
        });
        if self.members.len() < before { self.share() } else { self.end_round() }
    }

    /// The senders and what each is allotted.
    pub fn shares(&self) -> impl Iterator<Item = (&Connection, Rate)> {
        self.members
            .iter()
            .map(|member| (&member.connection, self.allotter.allotted(member.id).unwrap_or(Rate::ZERO)))
    }

    /// Somebody has come or gone: until it is known who wants what, all want all.
    fn share(&mut self) {
        self.since = Instant::now();
        for member in &mut self.members {
            member.bytes = member.received();
        }
        self.allotter.round(|_| Rate::MAX);
        self.tell();
    }

    fn end_round(&mut self) {
        let elapsed = Span::from(self.since.elapsed());
        self.since = Instant::now();
        let mut used = Vec::with_capacity(self.members.len());
        for member in &mut self.members {
            let bytes = member.received();
            used.push((member.id, Rate::from_transfer(bytes.saturating_sub(member.bytes), elapsed)));
            member.bytes = bytes;
        }
        let measured = |id| used.iter().find(|(known, _)| *known == id).map_or(Rate::ZERO, |(_, rate)| *rate);
        self.allotter.round(measured);
        self.tell();
    }

    fn tell(&mut self) {
        for member in &mut self.members {
            member.tell(self.allotter.allotted(member.id));
        }
    }
}
