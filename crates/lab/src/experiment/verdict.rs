//! How a check of an experiment came out.

use serde::Serialize;

use super::stats::Interval;

/// A verdict with its numbers, and the 95 % interval of what decides over the order.
pub(super) type Finding = (Verdict, String, Option<Interval>);

/// How a check came out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Verdict {
    /// As the paper has it, within the tolerance of the plan.
    Reproduced,
    /// The paper's order, with other numbers.
    SameOrdering,
    /// It holds on average, but the interval reaches beyond: more has to be seen.
    Undecided,
    /// Neither the paper's numbers nor its order.
    Differs,
}

impl Verdict {
    /// For people.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Reproduced => "reproduced",
            Self::SameOrdering => "same ordering",
            Self::Undecided => "undecided",
            Self::Differs => "differs",
        }
    }

    /// Of a check that holds or does not.
    pub(super) fn simple((holds, ours): (bool, String)) -> Finding {
        (if holds { Self::Reproduced } else { Self::Differs }, ours, None)
    }

    /// Of a bound that holds on average, or does not, and whose interval lies within it, or does not.
    pub(super) const fn of_bound(holds: bool, is_within: bool) -> Self {
        match (holds, is_within) {
            (true, true) => Self::Reproduced,
            (true, false) => Self::Undecided,
            (false, _) => Self::Differs,
        }
    }

    /// Of a check with an order and perhaps a number.
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
    fn an_order_without_the_number_is_an_order_and_a_number_without_the_order_is_nothing() {
        assert_eq!(Verdict::of(true, true), Verdict::Reproduced);
        assert_eq!(Verdict::of(true, false), Verdict::SameOrdering);
        assert_eq!(Verdict::of(false, true), Verdict::Differs);
    }

    #[test]
    fn a_bound_that_holds_on_average_alone_is_not_decided() {
        assert_eq!(Verdict::of_bound(true, true), Verdict::Reproduced);
        assert_eq!(Verdict::of_bound(true, false), Verdict::Undecided);
        assert_eq!(Verdict::of_bound(false, false), Verdict::Differs);
    }
}
