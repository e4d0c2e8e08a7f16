//! The schedulers that there are.

use haul_base::Time;

use super::Scheduler;
use super::fair::{Fair, FairConfig};
use super::o1::{O1, O1Config};

/// Which scheduler a host has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SchedulerKind {
    /// Linux 2.6 up to 2.6.22, the one of the papers.
    O1(O1Config),
    /// Fair with slices, as Linux from 6.6.
    Fair(FairConfig),
}

impl SchedulerKind {
    /// The scheduler, at the start of its core.
    pub fn build(self, start: Time) -> Box<dyn Scheduler> {
        match self {
            Self::O1(config) => Box::new(O1::new(config, start)),
            Self::Fair(config) => Box::new(Fair::new(config, start)),
        }
    }
}
