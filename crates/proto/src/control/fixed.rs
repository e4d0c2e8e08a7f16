//! Sends at a given rate, whatever is lost (the `fixed_rate` of H-CTP, the blast of RBUDP).

use haul_base::{Rate, Time};

use super::{
    ControllerConfig, ControllerError, FeedbackSample, Limits, Permit, RateController, RateState, SentBatch,
    burst_for,
};

/// A constant rate without a window.
#[derive(Debug)]
pub struct Fixed {
    rate: Rate,
}

impl Fixed {
    /// A controller that sends at `rate`.
    pub fn new(rate: Rate) -> Self {
        Self { rate }
    }

    pub(super) fn build(config: &ControllerConfig) -> Result<Box<dyn RateController>, ControllerError> {
        let rate = config.ceiling.ok_or(ControllerError::NeedsRate("fixed"))?;
        Ok(Box::new(Self::new(rate)))
    }
}

impl RateController for Fixed {
    fn permit(&self) -> Permit {
        Permit::Go(Limits { rate: self.rate, window: None, burst: burst_for(self.rate) })
    }

    fn on_sent(&mut self, _: &SentBatch) {}

    fn on_feedback(&mut self, _: &FeedbackSample<'_>) {}

    fn on_silence(&mut self, _: Time, _: u32) {}

    fn ceiling(&self) -> Option<Rate> {
        Some(self.rate)
    }

    fn state(&self) -> RateState {
        RateState { phase: "fixed", rate: self.rate }
    }
}
