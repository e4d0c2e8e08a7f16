//! Jobs in which nothing is done any more.

use std::time::{Duration, Instant};

use haul_base::Span;
use haul_mover::Stage;
use haul_wire::control::{Fault, FaultCode};

use crate::output::{Stall, clock};

/// A job in which nothing was done for so long ends. Syncing what a machine holds in memory to a slow disk takes minutes.
pub(crate) const LIMIT: Duration = Duration::from_secs(30 * 60);
/// What the threads of a job may take to end when it was ended from here.
pub(crate) const ENDING: Duration = Duration::from_secs(60);

/// Follows since when a number has been the same.
#[derive(Debug)]
pub(crate) struct Unchanged {
    value: u64,
    pub(crate) since: Instant,
}

impl Unchanged {
    pub(crate) fn new() -> Self {
        Self { value: 0, since: Instant::now() }
    }

    pub(crate) fn lasts(&mut self, value: u64, now: Instant) -> Span {
        if value != self.value {
            (self.value, self.since) = (value, now);
        }
        now.saturating_duration_since(self.since).into()
    }
}

/// Why a job ends in which nothing is done.
pub(crate) fn too_long(stall: Stall) -> Option<Fault> {
    let is_over = Duration::from(stall.lasts) >= LIMIT && stall.stage.is_limited();
    is_over.then(|| {
        let message = format!("nothing was done for {}: waited for {}", clock(stall.lasts), stall.stage);
        let hint = "look whether the disks and the other machine answer, and run the same command again: it goes on where \
                    it stopped";
        Fault::new(FaultCode::PeerSilent, message, hint)
    })
}

/// The fault of a job whose threads have not ended in time either.
pub(crate) fn unended(fault: Fault, stage: Stage) -> Fault {
    let message = format!("{}; after {} s it still waited for {stage}", fault.message, ENDING.as_secs());
    Fault { message, ..fault }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whatever_is_done_starts_the_clock_anew() {
        let mut clock = Unchanged::new();
        let at = |seconds| clock_start() + Duration::from_secs(seconds);
        assert_eq!(clock.lasts(1, at(10)), Span::ZERO);
        assert_eq!(clock.lasts(1, at(17)), Span::from_secs(7));
        assert_eq!(clock.lasts(2, at(18)), Span::ZERO);
        assert_eq!(clock.lasts(2, at(19)), Span::from_secs(1));
    }

    fn clock_start() -> Instant {
        static START: std::sync::OnceLock<Instant> = std::sync::OnceLock::new();
        *START.get_or_init(Instant::now)
    }

    #[test]
    fn every_stage_but_a_pipe_has_a_limit_and_the_fault_names_it() {
        let stall = |lasts: Duration, stage| too_long(Stall { lasts: lasts.into(), stage });
        for stage in [Stage::Wants, Stage::Reading, Stage::Delivery, Stage::Completion] {
            assert_eq!(stall(LIMIT / 2, stage), None);
            let fault = stall(LIMIT, stage).unwrap();
            assert!(fault.message.contains(&stage.to_string()), "{}", fault.message);
            assert_eq!(fault.code, FaultCode::PeerSilent);
        }
        assert_eq!(stall(10 * LIMIT, Stage::Pipe), None);
        let fault = Fault::new(FaultCode::Interrupted, "interrupted", "");
        assert_eq!(
            unended(fault, Stage::Reading).message,
            "interrupted; after 60 s it still waited for the sources to be read"
        );
    }
}
