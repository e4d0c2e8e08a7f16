//! Which law a session has, and what it was told.

use haul_base::{Bytes, Rate, Span};
use haul_stack::{ParameterKind, ParameterSpec, Parameters, Part};

use super::ANY_DELAY;
use super::rules::Rules;
use crate::control::held_rate::Mode;
use crate::control::{CauseAware, ControllerConfig, ControllerError, RateController, law};
use crate::diagnosis::Evidence;
use crate::micro::shared::LawNow;

/// What every law can be told; the law's own parameters stand beside these in the recipe.
pub(crate) const PARAMETERS: &[ParameterSpec] = &[
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
        help: "evidence for causes of loss: the pattern (`signature`), kernel and queue (`kernel`), all, or none",
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

/// A law and its parameters, checked, for a session that runs.
#[derive(Clone, Debug)]
pub struct ChosenLaw {
    pub(super) parameters: Parameters,
    /// If a rule of the recipe has chosen another law meanwhile, that one stays.
    pub(super) keeps_law: bool,
}

impl ChosenLaw {
    /// Checks what a recipe says of its `rate_control`; parameters that it does not name have their defaults.
    ///
    /// # Errors
    /// If there is no such law or parameter, or they do not suit each other.
    pub fn check(part: &Part) -> Result<Self, ControllerError> {
        let wrong = |error| ControllerError::Parameter(Box::new(error));
        let specs = [PARAMETERS, law_parameters(part)].concat();
        let parameters = Parameters::check(part, &specs, "").map_err(wrong)?;
        let law = Law::read(&parameters, ANY_DELAY);
        law.check()?;
        Rules::of(&parameters, &law).map_err(ControllerError::Rules)?;
        Ok(Self { parameters, keeps_law: false })
    }

    /// Changes some parameters of what a recipe says of its `rate_control`. If the law changes, parameters that only
    /// the one before had are left out. If what is changed is no law's own, the law that runs stays, also where a rule
    /// has chosen it.
    ///
    /// # Errors
    /// As [`ChosenLaw::check`]; `part` is as before then.
    pub fn change(part: &mut Part, changes: &[(String, String)]) -> Result<Self, ControllerError> {
        let changed = Self::changed(part, changes);
        let bounds = |name: &str| PARAMETERS[1..].iter().any(|spec| spec.name == name);
        let keeps_law = changes.iter().all(|(name, _)| bounds(name) && name != "switch");
        let chosen = Self { keeps_law, ..Self::check(&changed)? };
        *part = changed;
        Ok(chosen)
    }

    fn changed(part: &Part, changes: &[(String, String)]) -> Part {
        let mut changed = part.clone();
        for (name, value) in changes {
            changed.parameters.retain(|(known, _)| known != name);
            changed.parameters.push((name.clone(), value.clone()));
        }
        let (before, after) = (law_parameters(part), law_parameters(&changed));
        let named = |specs: &[ParameterSpec], name: &str| specs.iter().any(|spec| spec.name == name);
        changed.parameters.retain(|(name, _)| !named(before, name) || named(after, name));
        changed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(parameters: &[(&str, &str)]) -> Part {
        let parameters = parameters.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        Part { name: "rate_control".to_owned(), parameters: parameters.collect() }
    }

    fn changed(before: &[(&str, &str)], changes: &[(&str, &str)]) -> Part {
        ChosenLaw::changed(&part(before), &part(changes).parameters)
    }

    #[test]
    fn a_change_replaces_what_it_names_and_drops_what_only_the_old_law_had() {
        let before = [("controller", "reno"), ("rate", "9Mbit"), ("initial_window", "20")];
        assert_eq!(changed(&before, &[("rate", "5Mbit")]).parameters.len(), 3);
        let other = changed(&before, &[("controller", "delivery")]);
        assert_eq!(other, part(&[("rate", "9Mbit"), ("controller", "delivery")]));
        assert!(ChosenLaw::check(&other).is_ok());
        // Both have it.
        let alike = changed(&before, &[("controller", "scalable")]);
        assert!(alike.parameters.iter().any(|(name, _)| name == "initial_window"), "{alike:?}");
    }

    #[test]
    fn what_no_law_can_be_is_refused_in_words() {
        for (wrong, words) in [
            (part(&[("controller", "frobnicate")]), "frobnicate"),
            (part(&[("controller", "fixed")]), "needs a rate"),
            (part(&[("rate", "0bit")]), "above zero"),
            (part(&[("rate", "fast")]), "fast"),
            (part(&[("window", "3")]), "window"),
            (part(&[("controller", "delivery"), ("ecn", "true")]), "marks of congestion"),
            (part(&[("controller", "reno"), ("initial_window", "1")]), "initial_window"),
        ] {
            let error = ChosenLaw::check(&wrong).unwrap_err().to_string();
            assert!(error.contains(words), "{error}");
        }
    }
}
