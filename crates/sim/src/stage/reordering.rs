//! Packets delayed so that later ones overtake them.

use haul_base::{Probability, Rng, Time};
use serde::{Deserialize, Serialize};

use super::{Chance, Distribution, Emitter, Stage, StageChange};
use crate::parcel::Parcel;

/// Parameters of the reordering stage.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReorderingSpec {
    /// Share of packets that are delayed.
    #[serde(with = "crate::text")]
    pub share: Probability,
    /// Additional delay.
    pub extra: Distribution,
}

#[derive(Debug)]
pub(super) struct Reordering {
    chance: Chance,
    extra: Distribution,
    rng: Rng,
}

impl Reordering {
    pub(super) fn new(spec: &ReorderingSpec, rng: Rng) -> Self {
        Self { chance: Chance::new(spec.share), extra: spec.extra, rng }
    }
}

impl Stage for Reordering {
    fn admit(&mut self, now: Time, parcel: Parcel, out: &mut Emitter<'_>) {
        if self.chance.hits(&mut self.rng) {
            out.forward(now + self.extra.draw(&mut self.rng), parcel);
        } else {
            out.pass(parcel);
        }
    }

    fn takes_batches(&self) -> bool {
        false
    }

    fn change(&mut self, _: Time, change: &StageChange) -> bool {
        match change {
            StageChange::Share(p) => self.chance = Chance::new(*p),
            StageChange::Reordering(spec) => {
                self.chance = Chance::new(spec.share);
                self.extra = spec.extra;
            }
            _ => return false,
        }
        true
    }
}
