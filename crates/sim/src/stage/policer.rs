//! Token bucket that drops excess packets.

use haul_base::{Bytes, Rate, Time};
use serde::{Deserialize, Serialize};

use super::{Emitter, Stage, StageChange};
use crate::parcel::{DropReason, Parcel};

/// Passes packets at `rate`, with bursts of up to `burst`, and drops the others. Delays nothing (RFC 2697
/// with one colour less: no excess burst). Bytes count whole IP packets.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PolicerSpec {
    /// Rate at which the bucket fills.
    #[serde(with = "crate::text")]
    pub rate: Rate,
    /// Capacity of the bucket, which is full at the start.
    #[serde(with = "crate::text")]
    pub burst: Bytes,
}

#[derive(Debug)]
pub(super) struct Policer {
    spec: PolicerSpec,
    /// When the bucket is full without further traffic; the missing tokens are those that arrive until then.
    full_at: Time,
}

impl Policer {
    pub(super) fn new(spec: PolicerSpec) -> Self {
        Self { spec, full_at: Time::ZERO }
    }

    /// Takes `bytes` from the bucket. Returns false if it holds fewer.
    fn take(&mut self, now: Time, bytes: u32) -> bool {
        let PolicerSpec { rate, burst } = self.spec;
        let full_at = self.full_at.max(now) + rate.time_for(u64::from(bytes));
        let has_tokens = full_at.since(now) <= rate.time_for(burst.0);
        if has_tokens {
            self.full_at = full_at;
        }
        has_tokens
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
            // The bucket lacks as many bytes as before, but at most its capacity.
            let missing = self.spec.rate.bytes_in(self.full_at.since(now)).min(spec.burst.0);
            (self.spec, self.full_at) = (*spec, now + spec.rate.time_for(missing));
            return true;
        }
        false
    }
}
