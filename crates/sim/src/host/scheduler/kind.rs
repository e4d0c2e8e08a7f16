//! The available schedulers.

use haul_base::Time;

use super::Scheduler;
use super::fair::{Fair, FairConfig};
use super::o1::{O1, O1Config};

/// Scheduler of a host.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SchedulerKind {
    /// O(1) scheduler of Linux 2.6 up to 2.6.22, as used in the papers.
    O1(O1Config),
    /// Fair scheduler with slices, as in Linux from 6.6.
    Fair(FairConfig),
}

impl SchedulerKind {
    /// Creates the scheduler of a core that starts at `start`.
    pub fn build(self, start: Time) -> Box<dyn Scheduler> {
        match self {
            Self::O1(config) => Box::new(O1::new(config, start)),
            Self::Fair(config) => Box::new(Fair::new(config, start)),
        }
    }
}
