//! Packets whose bytes change on the path.

use haul_base::{Probability, Rng, Time};
use serde::{Deserialize, Serialize};

use super::{Chance, Emitter, Stage, StageChange};
use crate::parcel::{Damage, DropReason, Parcel};

/// Effect of corruption on a packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Effect {
    /// One bit is flipped, undetected by any checksum on the path.
    #[default]
    Flip,
    /// The packet is truncated.
    Truncate,
    /// The link's checksum detects the damage and the packet is dropped, as on real links.
    Drop,
}

/// Parameters of the corruption stage.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CorruptionSpec {
    /// Probability that a packet is damaged.
    #[serde(with = "crate::text")]
    pub share: Probability,
    /// Effect on damaged packets.
    #[serde(default)]
    pub effect: Effect,
}

#[derive(Debug)]
pub(super) struct Corruption {
    chance: Chance,
    effect: Effect,
    rng: Rng,
}

impl Corruption {
    pub(super) fn new(spec: CorruptionSpec, rng: Rng) -> Self {
        Self { chance: Chance::new(spec.share), effect: spec.effect, rng }
    }
}

impl Stage for Corruption {
    fn admit(&mut self, _: Time, parcel: Parcel, out: &mut Emitter<'_>) {
        let hit = self.chance.draw(&mut self.rng, &parcel);
        let damage = match self.effect {
            Effect::Flip => Damage::Flip,
            Effect::Truncate => Damage::Truncate,
            Effect::Drop => {
                out.drop(parcel.only(hit), DropReason::Corrupted);
                out.pass(parcel.without(hit));
                return;
            }
        };
        for (part, is_hit) in parcel.cut(hit) {
            if is_hit {
                out.count_damaged(part.packets());
                out.pass(part.damaged(damage));
            } else {
                out.pass(part);
            }
        }
    }

    fn change(&mut self, _: Time, change: &StageChange) -> bool {
        match change {
            StageChange::Share(p) => self.chance = Chance::new(*p),
            StageChange::Corruption(spec) => {
                self.chance = Chance::new(spec.share);
                self.effect = spec.effect;
            }
            _ => return false,
        }
        true
    }
}
