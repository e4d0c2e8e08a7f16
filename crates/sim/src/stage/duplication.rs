//! Packet duplication.

use haul_base::{Probability, Rng, Time};

use super::{Chance, Emitter, Stage, StageChange};
use crate::parcel::Parcel;

/// Sends a copy directly after a packet, with a fixed probability.
#[derive(Debug)]
pub(super) struct Duplication {
    chance: Chance,
    rng: Rng,
}

impl Duplication {
    pub(super) fn new(p: Probability, rng: Rng) -> Self {
        Self { chance: Chance::new(p), rng }
    }
}

impl Stage for Duplication {
    fn admit(&mut self, now: Time, parcel: Parcel, out: &mut Emitter<'_>) {
        let again = self.chance.hits(&mut self.rng);
        out.pass(parcel);
        if again {
            out.copy(now, parcel);
        }
    }

    fn takes_batches(&self) -> bool {
        false
    }

    fn change(&mut self, _: Time, change: &StageChange) -> bool {
        if let StageChange::Share(p) = change {
            self.chance = Chance::new(*p);
            return true;
        }
        false
    }
}
