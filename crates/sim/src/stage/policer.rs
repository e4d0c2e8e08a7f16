//! A token bucket that drops what exceeds it.

use haul_base::{Bytes, Rate, Time};
use serde::{Deserialize, Serialize};

use super::{Emitter, Stage, StageChange};
use crate::parcel::{DropReason, Parcel};

/// Lets packets pass at `rate`, and `burst` at once; the others are lost. Nothing is delayed (RFC 2697 with one colour
/// less: no excess burst). Bytes are those of whole IP packets.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PolicerSpec {
    /// At which the bucket fills.
    #[serde(with = "crate::text")]
    pub rate: Rate,
    /// What the bucket holds; it is full at first.
    #[serde(with = "crate::text")]
    pub burst: Bytes,
}

#[derive(Debug)]
pub(super) struct Policer {
    spec: PolicerSpec,
    /// When the bucket is full if nothing takes from it: it lacks what flows in until then.
    full_at: Time,
}

impl Policer {
    pub(super) fn new(spec: PolicerSpec) -> Self {
        Self { spec, full_at: Time::ZERO }
    }

    /// Takes `bytes` out of the bucket, if they are in it.
    fn take(&mut self, now: Time, bytes: u32) -> bool {
        let PolicerSpec { rate, burst } = self.spec;
        let full_at = self.full_at.max(now) + rate.time_for(u64::from(bytes));
        let has_them = full_at.since(now) <= rate.time_for(burst.0);
        if has_them {
            self.full_at = full_at;
        }
        has_them
    }
}

impl Stage for Policer {
    fn admit(&mut self, now: Time, parcel: Parcel, out: &mut Emitter<'_>) {
        let mut dead = 0;
        for index in parcel.indices() {
            if !self.take(now, parcel.bytes_of(index)) {
                dead |= 1 << index;
            }
        }
        out.drop(parcel.only(dead), DropReason::Policed);
        out.pass(parcel.without(dead));
    }

    fn change(&mut self, now: Time, change: &StageChange) -> bool {
        if let StageChange::Policer(spec) = change {
            // What the bucket lacks is as many bytes as before, and no more than it holds.
            let lacks = self.spec.rate.bytes_in(self.full_at.since(now)).min(spec.burst.0);
            (self.spec, self.full_at) = (*spec, now + spec.rate.time_for(lacks));
            return true;
        }
        false
    }
}
