//! RAPID+'s scheduler model in plans: how long the receiving process has no core.

use haul_base::{Probability, Span};
use haul_proto::suspension::{Case, Reentry, TasksAhead};
use serde::{Deserialize, Deserializer};

/// A case of the model, with its parameters.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Model {
    case: CaseName,
    /// Time slices at each level of the active array, best first.
    #[serde(default, deserialize_with = "spans")]
    active: Vec<Span>,
    /// Time slices at each level of the expired array.
    #[serde(default, deserialize_with = "spans")]
    expired: Vec<Span>,
    /// Number of levels at least as good as the receiver's new priority.
    #[serde(default)]
    levels_ahead: usize,
    /// Share of tasks that re-enter the active array ahead of the receiver: one for all levels, or one each.
    #[serde(default)]
    reentry: Vec<f64>,
}

/// Cases as written in plans: I to VI.
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
    /// Returns the mean suspension that the model predicts.
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
        let tasks_ahead =
            TasksAhead { active, expired, levels_ahead: self.levels_ahead, waiting: Span::ZERO };
        tasks_ahead.suspension(case).ok_or_else(|| "the others return endlessly".to_owned())
    }
}
