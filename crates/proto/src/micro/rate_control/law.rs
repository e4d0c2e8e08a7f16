//! The law of a session and its parameters.

use haul_base::{Bytes, Rate, Span};
use haul_stack::{Configuration, ParameterSpec, ParameterValue, Part, configuration};

use crate::control::held_rate::Mode;
use crate::control::{
    CauseAware, ControllerConfig, ControllerError, LawRegistration, RateController, add_law, law,
};
use crate::diagnosis::Evidence;
use crate::micro::shared::LawNow;

/// Report interval used when checking that a law can be built.
pub(super) const ANY_DELAY: Span = Span::from_millis(2);

configuration! {
    /// Parameters of `rate_control` for every law. The law's own parameters are beside them in the recipe;
    /// see [`RateControlConfig::with_law`].
    pub struct RateControlConfig: "rate_control" {
        controller: String = "bbr", "the control law (docs/controllers.md lists them)";
        rate: Rate = "unlimited", "maximum rate; the rate of `fixed`";
        cause_aware: bool = "false",
            "whether host losses are hidden from the law and limit the rate to what the host drains";
        diagnosis: Evidence = "on",
            "evidence for the causes of losses: pattern (`signature`), kernel and path (`kernel`), path (`delay`), all, or none";
        ecn: bool = "false",
            "whether data packets are ECN-capable, ECT(0); only for laws that treat marks as losses";
        unit_window: Bytes in (Bytes(1), Bytes(1 << 50)) = "100MB",
            "UDP payload bytes per transmission window";
        mode: Mode = "law",
            "how long a rate is kept: as the law says, for a transmission window, or until a congestion event (`rate`)";
        switch: String = "",
            "rules for switching the law, as in `after 30s -> cubic; loss > 5% -> tfrc` (docs/controllers.md)";
        switch_wait: Span in (Span::from_secs(1), Span::from_secs(86_400)) = "10s",
            "minimum time between two switches by rule";
        debt: Span = "100ms", "maximum delay that the pacer catches up on";
        max_batch: usize in (1, 64) = "64", "maximum number of packets sent back to back";
    }
}

impl RateControlConfig {
    /// Adds a control law and its parameters.
    pub fn with_law<C: Configuration>(self, law: &C) -> Part {
        Part::from(Self { controller: C::NAME.to_owned(), ..self }).with(law)
    }
}

/// The parameter that names the law.
pub(super) const CONTROLLER: ParameterSpec = RateControlConfig::PARAMETERS[0];

/// Returns the parameters of the law that a recipe names.
pub(super) fn law_parameters(part: &Part) -> &'static [ParameterSpec] {
    let name = match part.get(CONTROLLER.name) {
        Some(ParameterValue::Text(name)) => name,
        _ => CONTROLLER.default,
    };
    // An unknown law is rejected when it is built.
    law(name).map_or(&[], |law| law.parameters)
}

/// Registers a law in this process: recipes can name it from now on, for files and for messages.
///
/// # Errors
/// [`ControllerError::Taken`] if its name, or that of one of its parameters, is already in use.
pub fn register_law(law: &'static LawRegistration) -> Result<(), ControllerError> {
    let is_taken =
        |new: &&ParameterSpec| RateControlConfig::PARAMETERS.iter().any(|known| known.name == new.name);
    if let Some(both) = law.parameters.iter().find(is_taken) {
        let message = format!("`rate_control` itself has a parameter `{}`", both.name);
        return Err(ControllerError::Taken { law: law.name, message });
    }
    add_law(law)
}

/// Everything needed to build a law.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Law {
    pub(super) name: String,
    /// Only the law's own: one whose ceiling changes stays the same law.
    parameters: Part,
    pub(super) ceiling: Option<Rate>,
    pub(super) initial_rtt: Span,
    cause_aware: bool,
    ecn: bool,
    mode: Mode,
}

impl Law {
    pub(super) fn read(parameters: &Part, initial_rtt: Span) -> Self {
        let RateControlConfig { controller, rate, cause_aware, ecn, mode, .. } = parameters.read();
        let (mut own, specs) = (parameters.clone(), law_parameters(parameters));
        own.parameters.retain(|(name, _)| specs.iter().any(|spec| spec.name == *name));
        Self {
            name: controller,
            parameters: own,
            ceiling: (rate < Rate::MAX).then_some(rate),
            initial_rtt,
            cause_aware,
            ecn,
            mode,
        }
    }

    /// Returns a description of another law with the same ceiling.
    pub(super) fn of_name(&self, name: &str, parameters: Part) -> Self {
        Self { name: name.to_owned(), parameters, ..self.clone() }
    }

    /// Returns the law `kept` with this one's ceiling and modes.
    pub(super) fn keeping(self, kept: &Self) -> Self {
        Self { name: kept.name.clone(), parameters: kept.parameters.clone(), ..self }
    }

    /// Returns the published description, once the law has been built.
    pub(super) fn now(&self) -> LawNow {
        let registered = law(&self.name).expect("what was built is registered");
        LawNow { name: registered.name, ceiling: self.ceiling }
    }

    /// Checks that the law can be built.
    pub(super) fn check(&self) -> Result<(), ControllerError> {
        self.try_build(ANY_DELAY).map(drop)
    }

    fn try_build(&self, feedback_interval: Span) -> Result<Box<dyn RateController>, ControllerError> {
        let config =
            ControllerConfig { ceiling: self.ceiling, initial_rtt: self.initial_rtt, feedback_interval };
        let registered = law(&self.name)?;
        let built = registered.build_checked(&self.parameters, &config)?;
        if self.ecn && !built.answers_marks() {
            let message = "it does not respond to ECN marks: `ecn` must be false".to_owned();
            return Err(ControllerError::Unsuitable { law: registered.name, message });
        }
        Ok(self.wrapped(built))
    }

    pub(super) fn build(&self, feedback_interval: Span) -> Result<Box<dyn RateController>, String> {
        self.try_build(feedback_interval).map_err(|error| error.to_string())
    }

    /// Adds what the recipe applies to every law: rates that hold for a while, and ignoring losses of the
    /// host.
    pub(super) fn wrapped(&self, law: Box<dyn RateController>) -> Box<dyn RateController> {
        let law = self.mode.hold(law, self.initial_rtt);
        if self.cause_aware { Box::new(CauseAware::new(law)) } else { law }
    }
}
