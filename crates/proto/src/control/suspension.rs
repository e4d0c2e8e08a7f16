//! How long the receiving process is suspended: the scheduler models of RAPID+ (section 5.2, cases I to VI).
//!
//! Linux 2.6's O(1) scheduler keeps runnable tasks in two arrays of priority levels, *active* and *expired*.
//! A task that has used up its time slice gets a new priority and re-enters one of them. The paper derives
//! how long the receiving task is suspended, depending on where it and the other tasks go, and concludes that
//! this cannot be known: the share of tasks that re-enter the active array is decided only when their slices
//! end. The stop-and-go laws guess it.
//!
//! Three choices where the paper is silent or its sums are inconsistent:
//! - Its sums run over the first `r a` tasks of a level. The order within a level is unknown, so this uses
//!   the expected time: the share `r` of the level's summed time slices.
//! - The sums over the passes `r, r^2, r^3, ...` are given in closed form, `r / (1 - r)`.
//! - The bounds of the varying model's inner sums are garbled; they are read as "of level i the share `r_i`
//!   re-enters, then `r_i^2`, ...", which for equal shares is the constant model.

use haul_base::{Probability, Span};

/// Summed time slices of the tasks at each priority level of an array, best level first.
pub type Levels<'a> = &'a [Span];

/// Share of tasks that re-enter the active array after their time slices.
#[derive(Clone, Copy, Debug)]
pub enum Reentry<'a> {
    /// The same share for every level (the paper's constant model).
    Constant(Probability),
    /// One share per level, best first; further levels have none (the varying model).
    Varying(&'a [Probability]),
}

impl Reentry<'_> {
    fn of_level(self, level: usize) -> f64 {
        match self {
            Self::Constant(share) => share.get(),
            Self::Varying(shares) => shares.get(level).map_or(0.0, |share| share.get()),
        }
    }
}

/// Where the tasks go after their time slices. "The task" is the receiving one; levels at least as good as
/// its new priority ([`TasksAhead::levels_ahead`]) are ahead of it.
#[derive(Clone, Copy, Debug)]
pub enum Case<'a> {
    /// The task re-enters the active array, all others the expired one.
    I,
    /// The task re-enters the active array, some others re-enter it behind the task.
    II,
    /// The task re-enters the active array, a share of the others re-enters it ahead of the task, repeatedly.
    III(Reentry<'a>),
    /// All tasks go to the expired array, the others behind the task.
    IV,
    /// All tasks go to the expired array, and the levels ahead of the task run first.
    V,
    /// The task goes to the expired array, and a share of the others re-enters the active one, repeatedly.
    VI(Reentry<'a>),
}

/// Tasks that run before the receiving task.
#[derive(Clone, Copy, Debug)]
pub struct TasksAhead<'a> {
    /// Time slices in the active array (the paper's `T` over `a_i`).
    pub active: Levels<'a>,
    /// Time slices in the expired array (over `b_i`) when the arrays are swapped.
    pub expired: Levels<'a>,
    /// Number of levels at least as good as the task's new priority (the paper's `D'`).
    pub levels_ahead: usize,
    /// Time during which all tasks are in wait queues (the paper's `D`).
    pub waiting: Span,
}

impl TasksAhead<'_> {
    /// Returns how long the task is suspended (the paper's `T`); `None` if others re-enter for ever.
    pub fn suspension(&self, case: Case<'_>) -> Option<Span> {
        let once = total(self.active) + self.waiting;
        match case {
            Case::I | Case::II | Case::IV => Some(once),
            Case::III(reentry) | Case::VI(reentry) => Some(once + self.returning(reentry)?),
            Case::V => Some(once + total(&self.expired[..self.levels_ahead.min(self.expired.len())])),
        }
    }

    /// Sums the time slices of the tasks that re-enter ahead of the task, over all passes.
    fn returning(&self, reentry: Reentry<'_>) -> Option<Span> {
        self.active.iter().take(self.levels_ahead).enumerate().try_fold(
            Span::ZERO,
            |sum, (level, &slices)| {
                let share = reentry.of_level(level);
                if slices == Span::ZERO || share == 0.0 {
                    return Some(sum);
                }
                (share < 1.0).then(|| sum + slices.mul_f64(share / (1.0 - share)))
            },
        )
    }
}

fn total(levels: Levels<'_>) -> Span {
    levels.iter().fold(Span::ZERO, |sum, &slices| sum + slices)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const fn ms(millis: u64) -> Span {
        Span::from_millis(millis)
    }

    fn share(value: f64) -> Probability {
        Probability::new(value).unwrap()
    }

    const ACTIVE: [Span; 4] = [ms(100), ms(0), ms(60), ms(40)];
    const EXPIRED: [Span; 4] = [ms(10), ms(20), ms(30), ms(40)];
    const TASKS_AHEAD: TasksAhead<'_> =
        TasksAhead { active: &ACTIVE, expired: &EXPIRED, levels_ahead: 3, waiting: ms(5) };

    #[test]
    fn the_six_cases_match_the_paper() {
        let half = Reentry::Constant(share(0.5));
        assert_eq!(TASKS_AHEAD.suspension(Case::I), Some(ms(205)));
        assert_eq!(TASKS_AHEAD.suspension(Case::II), Some(ms(205)));
        // 0.5 + 0.25 + ... = 1 of the 160 ms at the three levels ahead.
        assert_eq!(TASKS_AHEAD.suspension(Case::III(half)), Some(ms(365)));
        assert_eq!(TASKS_AHEAD.suspension(Case::IV), Some(ms(205)));
        assert_eq!(TASKS_AHEAD.suspension(Case::V), Some(ms(265)));
        assert_eq!(TASKS_AHEAD.suspension(Case::VI(half)), Some(ms(365)));
    }

    #[test]
    fn the_varying_model_weighs_each_level_by_its_own_share() {
        let shares = [share(0.5), share(0.9), share(0.75)];
        // 100 ms * 1 + nothing at the second level + 60 ms * 3.
        assert_eq!(TASKS_AHEAD.suspension(Case::III(Reentry::Varying(&shares))), Some(ms(205 + 100 + 180)));
    }

    #[test]
    fn tasks_that_always_return_suspend_forever() {
        assert_eq!(TASKS_AHEAD.suspension(Case::VI(Reentry::Constant(share(1.0)))), None);
    }

    proptest! {
        #[test]
        fn the_closed_form_is_the_sum_over_the_passes(
            slices in prop::collection::vec(0u64..300, 1..12), ratio in 0.0f64..0.9, levels_ahead in 0usize..14
        ) {
            let active: Vec<_> = slices.iter().map(|&millis| ms(millis)).collect();
            let tasks_ahead = TasksAhead { active: &active, expired: &[], levels_ahead, waiting: Span::ZERO };
            let first: f64 = active.iter().take(levels_ahead).map(|s| s.as_secs_f64()).sum();
            let passes: f64 = (1..400).map(|n| ratio.powi(n) * first).sum();
            let expected = total(&active).as_secs_f64() + passes;
            let got = tasks_ahead.suspension(Case::III(Reentry::Constant(share(ratio)))).unwrap().as_secs_f64();
            prop_assert!((got - expected).abs() < 1e-6, "{got} {expected}");
            let shares = vec![share(ratio); 12];
            let varying = tasks_ahead.suspension(Case::III(Reentry::Varying(&shares))).unwrap().as_secs_f64();
            prop_assert!((varying - got).abs() < 1e-9, "equal shares are the constant model");
        }
    }
}
