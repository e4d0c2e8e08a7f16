//! The truth in numbers: what came in, what came out, and why the rest did not.

use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};

use crate::parcel::{DropReason, Parcel};

/// Drops by reason, in packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Drops([u64; DropReason::ALL.len()]);

impl Drops {
    pub(crate) fn add(&mut self, reason: DropReason, parcel: &Parcel) {
        self.0[reason as usize] += u64::from(parcel.packets());
    }

    /// Packets dropped for this reason.
    pub const fn of(&self, reason: DropReason) -> u64 {
        self.0[reason as usize]
    }

    /// Counts `packets` more.
    pub const fn count(&mut self, reason: DropReason, packets: u64) {
        self.0[reason as usize] += packets;
    }

    /// Adds every count of `other`.
    pub fn merge(&mut self, other: &Self) {
        for (own, more) in self.0.iter_mut().zip(other.0) {
            *own += more;
        }
    }

    /// Packets dropped for whatever reason.
    pub fn total(&self) -> u64 {
        self.0.iter().sum()
    }

    /// The reasons that occurred, with their counts.
    pub fn iter(&self) -> impl Iterator<Item = (DropReason, u64)> {
        DropReason::ALL.into_iter().zip(self.0).filter(|(_, packets)| *packets > 0)
    }
}

impl Serialize for Drops {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let mut map = to.serialize_map(Some(self.iter().count()))?;
        for (reason, packets) in self.iter() {
            map.serialize_entry(reason.name(), &packets)?;
        }
        map.end()
    }
}

/// What one stage has done so far, in packets:
/// `offered + copies = forwarded + drops + inside`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct StageCounters {
    /// The stage's name, by which it can be changed.
    pub name: String,
    /// Packets that came in.
    pub offered: u64,
    /// Their bytes on the wire.
    pub offered_bytes: u64,
    /// Packets that went out, copies included.
    pub forwarded: u64,
    /// Their bytes on the wire.
    pub forwarded_bytes: u64,
    /// Copies that the stage made.
    pub copies: u64,
    /// Packets that it marked "congestion experienced".
    pub marked: u64,
    /// Packets that it damaged and let go on.
    pub damaged: u64,
    /// Packets that are in it now.
    pub inside: u64,
    /// Packets that died in it.
    pub drops: Drops,
}

impl StageCounters {
    /// Whether the counts add up to the packet.
    pub fn adds_up(&self) -> bool {
        self.offered + self.copies == self.forwarded + self.drops.total() + self.inside
    }
}

/// What a path has done so far, in packets:
/// `offered + copies = delivered + drops + inside`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct PathCounters {
    /// Packets that came in.
    pub offered: u64,
    /// Their bytes on the wire.
    pub offered_bytes: u64,
    /// Packets that came out, copies included.
    pub delivered: u64,
    /// Their bytes on the wire.
    pub delivered_bytes: u64,
    /// Copies that the path made.
    pub copies: u64,
    /// Packets marked "congestion experienced".
    pub marked: u64,
    /// Packets that were damaged and went on.
    pub damaged: u64,
    /// Packets that are on the path now.
    pub inside: u64,
    /// Packets that died, by reason.
    pub drops: Drops,
    /// The same for every stage, in the order of the path.
    pub stages: Vec<StageCounters>,
}

impl PathCounters {
    /// Whether the counts add up to the packet, of the path and of every stage.
    pub fn adds_up(&self) -> bool {
        self.offered + self.copies == self.delivered + self.drops.total() + self.inside
            && self.stages.iter().all(StageCounters::adds_up)
    }
}
