//! Ground-truth packet counters of stages and paths.

use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};

use crate::parcel::{DropReason, Parcel};

/// Numbers of dropped packets by reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Drops([u64; DropReason::ALL.len()]);

impl Drops {
    pub(crate) fn add(&mut self, reason: DropReason, parcel: &Parcel) {
        self.0[reason as usize] += u64::from(parcel.packets());
    }

    /// Returns the number of packets dropped for `reason`.
    pub const fn of(&self, reason: DropReason) -> u64 {
        self.0[reason as usize]
    }

    /// Adds `packets` to the count of `reason`.
    pub const fn count(&mut self, reason: DropReason, packets: u64) {
        self.0[reason as usize] += packets;
    }

    /// Adds every count of `other`.
    pub fn merge(&mut self, other: &Self) {
        for (mine, more) in self.0.iter_mut().zip(other.0) {
            *mine += more;
        }
    }

    /// Returns the total number of dropped packets.
    pub fn total(&self) -> u64 {
        self.0.iter().sum()
    }

    /// Returns the reasons with a count above 0, with their counts.
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

/// Counters of one stage, in packets: `offered + copies = forwarded + drops + inside`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct StageCounters {
    /// Name of the stage, by which changes refer to it.
    pub name: String,
    /// Packets that entered the stage.
    pub offered: u64,
    /// Bytes on the wire of `offered`.
    pub offered_bytes: u64,
    /// Packets that left the stage, including copies.
    pub forwarded: u64,
    /// Bytes on the wire of `forwarded`.
    pub forwarded_bytes: u64,
    /// Copies made by the stage.
    pub copies: u64,
    /// Packets marked "congestion experienced" by the stage.
    pub marked: u64,
    /// Packets that the stage damaged and forwarded.
    pub damaged: u64,
    /// Packets currently in the stage.
    pub inside: u64,
    /// Packets dropped by the stage.
    pub drops: Drops,
}

impl StageCounters {
    /// Whether the counters balance exactly.
    pub fn adds_up(&self) -> bool {
        self.offered + self.copies == self.forwarded + self.drops.total() + self.inside
    }
}

/// Counters of a path, in packets: `offered + copies = delivered + drops + inside`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct PathCounters {
    /// Packets offered to the path.
    pub offered: u64,
    /// Bytes on the wire of `offered`.
    pub offered_bytes: u64,
    /// Packets delivered by the path, including copies.
    pub delivered: u64,
    /// Bytes on the wire of `delivered`.
    pub delivered_bytes: u64,
    /// Copies made on the path.
    pub copies: u64,
    /// Packets marked "congestion experienced".
    pub marked: u64,
    /// Packets damaged and forwarded.
    pub damaged: u64,
    /// Packets currently on the path.
    pub inside: u64,
    /// Packets dropped, by reason.
    pub drops: Drops,
    /// Counters of each stage, in path order.
    pub stages: Vec<StageCounters>,
}

impl PathCounters {
    /// Whether the counters of the path and of every stage balance exactly.
    pub fn adds_up(&self) -> bool {
        self.offered + self.copies == self.delivered + self.drops.total() + self.inside
            && self.stages.iter().all(StageCounters::adds_up)
    }
}
