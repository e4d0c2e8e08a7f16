//! Random early detection (Floyd and Jacobson 1993), in byte mode.

use haul_base::{Bytes, Probability, Rate, Rng, Time};
use serde::{Deserialize, Serialize};

use super::limit::Limit;
use super::signal::Signal;
use crate::math;
use crate::parcel::Parcel;

/// Behaviour when the average exceeds the upper threshold.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AboveMaximum {
    /// The probability rises from `probability` to 1 at twice the threshold (Floyd's "gentle" mode).
    #[default]
    Gentle,
    /// Every packet is dropped, as first published.
    Drop,
}

/// Parameters of RED.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RedSpec {
    /// Average below which nothing is dropped.
    #[serde(with = "crate::text")]
    pub min: Bytes,
    /// Average at which the drop probability is `probability`.
    #[serde(with = "crate::text")]
    pub max: Bytes,
    /// Drop probability at `max`, before spreading.
    #[serde(with = "crate::text", default = "default_probability")]
    pub probability: Probability,
    /// Weight of a new sample in the average (0.002 in the paper).
    #[serde(default = "default_weight")]
    pub weight: f64,
    /// Hard limit of the queue.
    #[serde(with = "crate::text")]
    pub limit: Limit,
    /// Behaviour above `max`.
    #[serde(default)]
    pub above_max: AboveMaximum,
    /// Whether to drop or mark.
    #[serde(default)]
    pub signal: Signal,
}

fn default_probability() -> Probability {
    Probability::new(0.1).unwrap_or_default()
}

fn default_weight() -> f64 {
    0.002
}

#[derive(Debug)]
pub(super) struct Red {
    spec: RedSpec,
    /// Moving average of the queue, bytes.
    average: f64,
    /// Packets since the last drop or mark, while the average is between the thresholds.
    since_hit: u64,
    idle_since: Option<Time>,
    rng: Rng,
}

/// Packets of a parcel that RED drops or marks.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Decision {
    pub(super) dropped: u64,
    pub(super) marked: u64,
}

impl Red {
    pub(super) fn new(spec: RedSpec, rng: Rng) -> Self {
        Self { spec, average: 0.0, since_hit: 0, idle_since: Some(Time::ZERO), rng }
    }

    /// Registers that the queue is empty.
    pub(super) fn on_idle(&mut self, now: Time) {
        self.idle_since = Some(now);
    }

    /// Decides on every packet of a parcel that arrives at a queue of `queued` bytes.
    pub(super) fn decide(&mut self, now: Time, mut queued: u64, parcel: &Parcel, rate: Rate) -> Decision {
        let mut decision = Decision::default();
        for index in parcel.indices() {
            let bytes = u64::from(parcel.bytes_of(index));
            self.update(now, queued, rate.time_for(bytes).as_nanos());
            if !self.hits() {
                queued += bytes;
            } else if self.spec.signal == Signal::Mark && parcel.is_ecn_capable() && !self.is_over() {
                decision.marked |= 1 << index;
                queued += bytes;
            } else {
                decision.dropped |= 1 << index;
            }
        }
        decision
    }

    /// Updates the average; idle time counts as if packets had found the queue empty throughout.
    fn update(&mut self, now: Time, queued: u64, packet_nanos: u64) {
        let weight = self.spec.weight;
        if let Some(since) = self.idle_since.take() {
            let missed = now.since(since).as_nanos() as f64 / packet_nanos.max(1) as f64;
            self.average *= math::pow(1.0 - weight, missed);
        }
        self.average += weight * (queued as f64 - self.average);
    }

    /// Whether the average is too high for marks to suffice.
    fn is_over(&self) -> bool {
        let max = self.spec.max.0 as f64;
        self.average >= if self.spec.above_max == AboveMaximum::Gentle { 2.0 * max } else { max }
    }

    fn hits(&mut self) -> bool {
        let (min, max) = (self.spec.min.0 as f64, self.spec.max.0 as f64);
        let most = self.spec.probability.get();
        if self.average < min {
            self.since_hit = 0;
            return false;
        }
        if self.is_over() {
            self.since_hit = 0;
            return true;
        }
        let raw = if self.average < max {
            most * (self.average - min) / (max - min)
        } else {
            most + (1.0 - most) * (self.average - max) / max
        };
        // Spreads the drops: intervals uniform on 1..1/raw instead of geometric.
        let spread = raw / (1.0 - self.since_hit as f64 * raw).max(raw).max(f64::MIN_POSITIVE);
        if self.rng.chance(spread) {
            self.since_hit = 0;
            return true;
        }
        self.since_hit += 1;
        false
    }
}
