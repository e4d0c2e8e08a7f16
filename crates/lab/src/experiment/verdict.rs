//! Verdicts of checks.

use serde::Serialize;

use super::stats::Interval;

/// A verdict with its values, and the 95 % interval of the decisive difference.
pub(super) type Finding = (Verdict, String, Option<Interval>);

/// Verdict of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Verdict {
    /// Agrees with the paper, within the plan's tolerance.
    Reproduced,
    /// Same order as in the paper, with other values.
    SameOrdering,
    /// Holds on average, but the interval reaches beyond the bound: more runs are needed.
    Undecided,
    /// Neither the paper's values nor its order.
    Differs,
}

impl Verdict {
    /// Returns the name for users.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Reproduced => "reproduced",
            Self::SameOrdering => "same ordering",
            Self::Undecided => "undecided",
            Self::Differs => "differs",
        }
    }

    /// Returns the finding of a check that either holds or does not.
    pub(super) fn simple((is_met, ours): (bool, String)) -> Finding {
        (if is_met { Self::Reproduced } else { Self::Differs }, ours, None)
    }

    /// Returns the verdict on a bound: whether it holds on average, and for the whole interval.
    pub(super) const fn of_bound(is_met: bool, is_within: bool) -> Self {
        match (is_met, is_within) {
            (true, true) => Self::Reproduced,
            (true, false) => Self::Undecided,
            (false, _) => Self::Differs,
        }
    }

    /// Returns the verdict on an order and possibly a value.
    pub(super) const fn of(is_ordered: bool, is_expected: bool) -> Self {
        match (is_ordered, is_expected) {
            (true, true) => Self::Reproduced,
            (true, false) => Self::SameOrdering,
            (false, _) => Self::Differs,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_order_counts_without_the_number_but_not_vice_versa() {
        assert_eq!(Verdict::of(true, true), Verdict::Reproduced);
        assert_eq!(Verdict::of(true, false), Verdict::SameOrdering);
        assert_eq!(Verdict::of(false, true), Verdict::Differs);
    }

    #[test]
    fn a_bound_that_holds_only_for_the_mean_is_undecided() {
        assert_eq!(Verdict::of_bound(true, true), Verdict::Reproduced);
        assert_eq!(Verdict::of_bound(true, false), Verdict::Undecided);
        assert_eq!(Verdict::of_bound(false, false), Verdict::Differs);
    }
}
