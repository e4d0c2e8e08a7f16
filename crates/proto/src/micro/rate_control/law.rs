//! Which law a session has, and what it was told.

use haul_base::{Bytes, Rate, Span};
use haul_stack::{ParameterKind, ParameterSpec, Parameters, Part};

use crate::control::held_rate::Mode;
use crate::control::{
    CauseAware, ControllerConfig, ControllerError, LawRegistration, RateController, add_law, law,
};
use crate::diagnosis::Evidence;
use crate::micro::shared::LawNow;

/// Bounds nothing: for checking that a law can be built.
pub(super) const ANY_DELAY: Span = Span::from_millis(2);

/// What every law can be told; the law's own parameters stand beside these in the recipe.
pub(super) const PARAMETERS: &[ParameterSpec] = &[
    ParameterSpec {
        name: "controller",
        kind: ParameterKind::Text,
        default: "bbr",
        help: "the control law (docs/controllers.md lists them)",
    },
    ParameterSpec {
        name: "rate",
        kind: ParameterKind::Rate,
        default: "unlimited",
        help: "ceiling of the law; the rate of `fixed`",
    },
    ParameterSpec {
        name: "cause_aware",
        kind: ParameterKind::Flag,
        default: "false",
        help: "whether the host's losses are kept from the law and bound the rate by what it drains",
    },
    ParameterSpec {
        name: "diagnosis",
        kind: ParameterKind::Choice(Evidence::NAMES),
        default: "on",
        help: "evidence for causes of loss: the pattern (`signature`), kernel and path (`kernel`), path (`delay`), all, or none",
    },
    ParameterSpec {
        name: "ecn",
        kind: ParameterKind::Flag,
        default: "false",
        help: "whether data packets are ECN-capable, ECT(0), where the law takes a mark for a loss",
    },
    ParameterSpec {
        name: "unit_window",
        kind: ParameterKind::BytesIn(Bytes(1), Bytes(1 << 50)),
        default: "100MB",
        help: "UDP payload bytes of a transmission window",
    },
    ParameterSpec {
        name: "mode",
        kind: ParameterKind::Choice(Mode::NAMES),
        default: "law",
        help: "how long a rate holds: as the law says, for a transmission window, or until a congestion event (`rate`)",
    },
    ParameterSpec {
        name: "switch",
        kind: ParameterKind::Text,
        default: "",
        help: "rules by which the law is exchanged, as in `after 30s -> cubic; loss > 5% -> tfrc` (docs/controllers.md)",
    },
    ParameterSpec {
        name: "switch_wait",
        kind: ParameterKind::SpanIn(Span::from_secs(1), Span::from_secs(86_400)),
        default: "10s",
        help: "time between two switches by rule, at least",
    },
    ParameterSpec {
        name: "debt",
        kind: ParameterKind::Span,
        default: "100ms",
        help: "lateness that the pacer makes up for",
    },
    ParameterSpec {
        name: "max_batch",
        kind: ParameterKind::Integer(1, 64),
        default: "64",
        help: "most packets that leave back to back",
    },
];

/// Those of the law that a recipe names.
pub(super) fn law_parameters(part: &Part) -> &'static [ParameterSpec] {
    let named = part.parameters.iter().find(|(name, _)| name == PARAMETERS[0].name);
    let name = named.map_or(PARAMETERS[0].default, |(_, value)| value.as_str());
    // A law that does not exist is refused when it is built.
    law(name).map_or(&[], |law| law.parameters)
}

/// Adds a law to those of this process: recipes can name it from now on, for files as for messages.
///
/// # Errors
/// [`ControllerError::Taken`] if its name, or that of one of its parameters, is taken.
pub fn register_law(law: &'static LawRegistration) -> Result<(), ControllerError> {
    let is_taken = |new: &&ParameterSpec| PARAMETERS.iter().any(|known| known.name == new.name);
    if let Some(both) = law.parameters.iter().find(is_taken) {
        let message = format!("`rate_control` has a parameter `{}` itself", both.name);
        return Err(ControllerError::Taken { law: law.name, message });
    }
    add_law(law)
}

/// What the law is built from.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Law {
    pub(super) name: String,
    parameters: Parameters,
    pub(super) ceiling: Option<Rate>,
    pub(super) initial_rtt: Span,
    cause_aware: bool,
    ecn: bool,
    mode: Mode,
}

impl Law {
    pub(super) fn read(parameters: &Parameters, initial_rtt: Span) -> Self {
        let rate = parameters.rate("rate");
        Self {
            name: parameters.text("controller").to_owned(),
            parameters: parameters.clone(),
            ceiling: (rate < Rate::MAX).then_some(rate),
            initial_rtt,
            cause_aware: parameters.flag("cause_aware"),
            ecn: parameters.flag("ecn"),
            mode: Mode::named(parameters.text("mode")),
        }
    }

    /// Another one with the same ceiling.
    pub(super) fn of_name(&self, name: &str, parameters: Parameters) -> Self {
        Self { name: name.to_owned(), parameters, ..self.clone() }
    }

    /// The law `kept` under this one's ceiling and modes.
    pub(super) fn keeping(self, kept: &Self) -> Self {
        Self { name: kept.name.clone(), parameters: kept.parameters.clone(), ..self }
    }

    /// For those who look on, once it has been built.
    pub(super) fn now(&self) -> LawNow {
        let registered = law(&self.name).expect("what was built is registered");
        LawNow { name: registered.name, ceiling: self.ceiling }
    }

    /// Whether it can be built.
    pub(super) fn check(&self) -> Result<(), ControllerError> {
        self.try_build(ANY_DELAY).map(drop)
    }

    fn try_build(&self, feedback_interval: Span) -> Result<Box<dyn RateController>, ControllerError> {
        let config =
            ControllerConfig { ceiling: self.ceiling, initial_rtt: self.initial_rtt, feedback_interval };
        let registered = law(&self.name)?;
        let built = registered.build_checked(&self.parameters, &config)?;
        if self.ecn && !built.answers_marks() {
            let message = "it does not answer marks of congestion: `ecn` must be false".to_owned();
            return Err(ControllerError::Unsuitable { law: registered.name, message });
        }
        Ok(self.wrapped(built))
    }

    pub(super) fn build(&self, feedback_interval: Span) -> Result<Box<dyn RateController>, String> {
        self.try_build(feedback_interval).map_err(|error| error.to_string())
    }

    /// The same for every law, if the recipe says so: its rate holds for a while, and it is deaf to losses of the host.
    pub(super) fn wrapped(&self, law: Box<dyn RateController>) -> Box<dyn RateController> {
        let law = self.mode.hold(law, self.initial_rtt);
        if self.cause_aware { Box::new(CauseAware::new(law)) } else { law }
    }
}
