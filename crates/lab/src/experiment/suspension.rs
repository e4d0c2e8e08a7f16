//! The scheduler model of RAPID+ in the words of plans: for how long the receiving process has no core.

use haul_base::{Probability, Span};
use haul_proto::suspension::{Ahead, Case, Reentry};
use serde::{Deserialize, Deserializer};

/// A case of the model, with what it is given.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Model {
    case: CaseName,
    /// Time slices at each level of the active array, best first.
    #[serde(default, deserialize_with = "spans")]
    active: Vec<Span>,
    /// The same of the expired array.
    #[serde(default, deserialize_with = "spans")]
    expired: Vec<Span>,
    /// How many levels are at least as good as the receiver's new priority.
    #[serde(default)]
    levels_ahead: usize,
    /// Which share re-enters the active array ahead of the receiver: one for all levels, or one for each.
    #[serde(default)]
    reentry: Vec<f64>,
}

/// As plans write them: I to VI.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
enum CaseName {
    I,
    Ii,
    Iii,
    Iv,
    V,
    Vi,
}

fn spans<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<Span>, D::Error> {
    let texts = Vec::<String>::deserialize(from)?;
    texts.iter().map(|text| text.parse().map_err(serde::de::Error::custom)).collect()
}

impl Model {
    /// The mean suspension that the model predicts.
    pub(super) fn predicted(&self) -> Result<Span, String> {
        let shares = self.reentry.iter().map(|share| Probability::new(*share)).collect::<Option<Vec<_>>>();
        let shares = shares.ok_or("`reentry` has shares between 0 and 1")?;
        let reentry = match shares.as_slice() {
            [share] => Reentry::Constant(*share),
            shares => Reentry::Varying(shares),
        };
        let case = match self.case {
            CaseName::I => Case::I,
            CaseName::Ii => Case::II,
            CaseName::Iii => Case::III(reentry),
            CaseName::Iv => Case::IV,
            CaseName::V => Case::V,
            CaseName::Vi => Case::VI(reentry),
        };
        let (active, expired) = (&self.active, &self.expired);
        let ahead = Ahead { active, expired, levels_ahead: self.levels_ahead, waiting: Span::ZERO };
        ahead.suspension(case).ok_or_else(|| "the others come back for ever".to_owned())
    }
}
