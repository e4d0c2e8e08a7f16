//! Random delay per packet.

use haul_base::{Rng, Time};
use serde::{Deserialize, Serialize};

use super::{Distribution, Emitter, Stage, StageChange};
use crate::parcel::Parcel;

/// Whether packets with less delay overtake packets with more.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Order {
    /// No overtaking: a packet waits for the previous one, as in a queue.
    #[default]
    Keep,
    /// Overtaking, as over parallel paths.
    Free,
}

/// Parameters of the jitter stage.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct JitterSpec {
    /// Delay distribution per packet.
    pub delay: Distribution,
    /// Whether packets keep their order.
    #[serde(default)]
    pub order: Order,
}

#[derive(Debug)]
pub(super) struct Jitter {
    spec: JitterSpec,
    rng: Rng,
    last: Time,
}

impl Jitter {
    pub(super) fn new(spec: JitterSpec, rng: Rng) -> Self {
        Self { spec, rng, last: Time::ZERO }
    }
}

impl Stage for Jitter {
    fn admit(&mut self, now: Time, parcel: Parcel, out: &mut Emitter<'_>) {
        let mut at = now + self.spec.delay.draw(&mut self.rng);
        if self.spec.order == Order::Keep {
            at = at.max(self.last);
            self.last = at;
        }
        out.forward(at, parcel);
    }

    fn takes_batches(&self) -> bool {
        false
    }

    fn change(&mut self, _: Time, change: &StageChange) -> bool {
        if let StageChange::Jitter(spec) = change {
            self.spec = *spec;
            return true;
        }
        false
    }
}
