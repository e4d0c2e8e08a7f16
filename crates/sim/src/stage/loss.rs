//! Independent random loss.

use haul_base::{Probability, Rng, Time};

use super::{Chance, Emitter, Stage, StageChange};
use crate::parcel::{DropReason, Parcel};

/// Drops each packet with the same probability, independently of the others (Bernoulli).
#[derive(Debug)]
pub(super) struct Loss {
    chance: Chance,
    rng: Rng,
}

impl Loss {
    pub(super) fn new(p: Probability, rng: Rng) -> Self {
        Self { chance: Chance::new(p), rng }
    }
}

impl Stage for Loss {
    fn admit(&mut self, _: Time, parcel: Parcel, out: &mut Emitter<'_>) {
        let lost = self.chance.draw(&mut self.rng, &parcel);
        out.drop(parcel.only(lost), DropReason::Random);
        out.pass(parcel.without(lost));
    }

    fn change(&mut self, _: Time, change: &StageChange) -> bool {
        if let StageChange::Share(p) = change {
            self.chance = Chance::new(*p);
            return true;
        }
        false
    }
}
