//! Sends at a given rate, whatever is lost (`fixed_rate` of H-CTP, the blast of RBUDP).

use haul_base::{Rate, Time};

use super::{ControllerError, FeedbackSample, LawRegistration, Limits, Permit, RateController, RateState};

/// Registry entry.
pub(super) static LAW: LawRegistration = LawRegistration {
    name: "fixed",
    version: 1,
    summary: "sends at the given rate regardless of losses",
    source: "the blast of RBUDP (he-rbudp, section 2), `fixed_rate` of H-CTP (wu-h-ctp, table 5)",
    parameters: &[],
    build: |_, config| {
        let rate = config.ceiling.ok_or(ControllerError::NeedsRate("fixed"))?;
        Ok(Box::new(Fixed::new(rate)))
    },
};

/// A constant rate without a window.
#[derive(Debug)]
pub struct Fixed {
    rate: Rate,
}

impl Fixed {
    /// Creates a controller that sends at `rate`.
    pub fn new(rate: Rate) -> Self {
        Self { rate }
    }
}

impl RateController for Fixed {
    fn permit(&self) -> Permit {
        Permit::Go(Limits::at_rate(self.rate))
    }

    fn on_feedback(&mut self, _: &FeedbackSample<'_>) {}

    fn on_silence(&mut self, _: Time, _: u32) {}

    fn answers_marks(&self) -> bool {
        false
    }

    fn allows_rare_reports(&self) -> bool {
        true
    }

    fn ceiling(&self) -> Option<Rate> {
        Some(self.rate)
    }

    fn state(&self) -> RateState {
        RateState { phase: "fixed", rate: self.rate }
    }
}
