//! Loss in bursts: the two-state Markov channel of Gilbert (1960) and Elliott (1963).

use haul_base::{Probability, Rng, Time};
use serde::{Deserialize, Serialize};

use super::{Chance, Emitter, Stage, StageChange};
use crate::parcel::{DropReason, Parcel};

/// The channel's four probabilities. Before each packet the channel may change its state; the packet is then
/// lost with the probability of that state.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GilbertElliottSpec {
    /// Probability per packet of changing from the good to the bad state.
    #[serde(with = "crate::text")]
    pub to_bad: Probability,
    /// Probability per packet of changing from the bad to the good state.
    #[serde(with = "crate::text")]
    pub to_good: Probability,
    /// Loss probability in the good state (0 in Gilbert's channel).
    #[serde(with = "crate::text", default)]
    pub loss_good: Probability,
    /// Loss probability in the bad state (default: 1).
    #[serde(with = "crate::text", default = "certain")]
    pub loss_bad: Probability,
}

fn certain() -> Probability {
    Probability::new(1.0).unwrap_or_default()
}

/// The channel by its observable properties: geometrically distributed runs of lost packets.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BurstLossSpec {
    /// Share of lost packets.
    #[serde(with = "crate::text")]
    pub share: Probability,
    /// Mean number of consecutive packets lost, at least 1.
    pub mean_run: f64,
}

impl BurstLossSpec {
    /// Returns the channel with that share and run length: `to_good = 1 / run`,
    /// `to_bad = to_good * share / (1 - share)`.
    pub fn channel(&self) -> Option<GilbertElliottSpec> {
        let to_good = Probability::new(1.0 / self.mean_run)?;
        let to_bad = Probability::new(to_good.get() * self.share.get() / (1.0 - self.share.get()))?;
        Some(GilbertElliottSpec { to_bad, to_good, loss_good: Probability::ZERO, loss_bad: certain() })
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ChannelState {
    Good,
    Bad,
}

#[derive(Debug)]
pub(super) struct GilbertElliott {
    spec: Chances,
    state: ChannelState,
    rng: Rng,
}

#[derive(Clone, Copy, Debug)]
struct Chances {
    to_bad: Chance,
    to_good: Chance,
    loss_good: Chance,
    loss_bad: Chance,
}

impl Chances {
    fn new(spec: &GilbertElliottSpec) -> Self {
        Self {
            to_bad: Chance::new(spec.to_bad),
            to_good: Chance::new(spec.to_good),
            loss_good: Chance::new(spec.loss_good),
            loss_bad: Chance::new(spec.loss_bad),
        }
    }
}

impl GilbertElliott {
    pub(super) fn new(spec: &GilbertElliottSpec, rng: Rng) -> Self {
        Self { spec: Chances::new(spec), state: ChannelState::Good, rng }
    }

    fn is_lost(&mut self) -> bool {
        let Chances { to_bad, to_good, loss_good, loss_bad } = self.spec;
        let (leave, other) = if self.state == ChannelState::Good {
            (to_bad, ChannelState::Bad)
        } else {
            (to_good, ChannelState::Good)
        };
        if leave.hits(&mut self.rng) {
            self.state = other;
        }
        let loss = if self.state == ChannelState::Good { loss_good } else { loss_bad };
        loss.hits(&mut self.rng)
    }
}

impl Stage for GilbertElliott {
    fn admit(&mut self, _: Time, parcel: Parcel, out: &mut Emitter<'_>) {
        let lost = parcel.indices().fold(0, |lost, index| lost | u64::from(self.is_lost()) << index);
        out.drop(parcel.only(lost), DropReason::GilbertElliott);
        out.pass(parcel.without(lost));
    }

    fn change(&mut self, _: Time, change: &StageChange) -> bool {
        match change {
            StageChange::GilbertElliott(spec) => self.spec = Chances::new(spec),
            StageChange::BurstLoss(spec) => match spec.channel() {
                Some(channel) => self.spec = Chances::new(&channel),
                None => return false,
            },
            _ => return false,
        }
        true
    }
}
