//! Changing the law, or its ceiling, in a running session.

use haul_base::Rate;
use haul_stack::{Configuration as _, Event, Name, ParameterSpec, Parameters, Part};

use super::law::{ANY_DELAY, Law, RateControlConfig, law_parameters};
use super::rules::Rules;
use crate::control::ControllerError;

/// Selects another control law, or other parameters of the present one. Raised by the driver, handled by
/// `rate_control`.
pub const LAW_CHOSEN: Name<Event<ChosenLaw>> = Name::new("law chosen");

/// A law and its parameters, checked, for a running session.
#[derive(Clone, Debug)]
pub struct ChosenLaw {
    pub(super) parameters: Parameters,
    pub(super) config: RateControlConfig,
    /// Whether to keep a law that a rule of the recipe has chosen meanwhile.
    pub(super) keeps_law: bool,
}

impl ChosenLaw {
    /// Checks the `rate_control` part of a recipe; parameters that it does not name have their defaults.
    ///
    /// # Errors
    /// If there is no such law or parameter, or they are inconsistent.
    pub fn check(part: &Part) -> Result<Self, ControllerError> {
        let wrong = |error| ControllerError::Parameter(Box::new(error));
        let specs = [RateControlConfig::PARAMETERS, law_parameters(part)].concat();
        let parameters = Parameters::check(part, &specs, "").map_err(wrong)?;
        let (law, config) = (Law::read(&parameters, ANY_DELAY), parameters.read());
        law.check()?;
        Rules::of(&config, &law).map_err(ControllerError::Rules)?;
        Ok(Self { parameters, config, keeps_law: false })
    }

    /// Changes some parameters of the `rate_control` part of a recipe. If the law changes, drops parameters
    /// that only the previous one had. If no parameter of a law changes, the running law stays, even if a
    /// rule has chosen it.
    ///
    /// # Errors
    /// As [`ChosenLaw::check`]; `part` is then unchanged.
    pub fn change(part: &mut Part, changes: &[(String, String)]) -> Result<Self, ControllerError> {
        let changed = Self::changed(part, changes);
        let bounds = |name: &str| RateControlConfig::PARAMETERS[1..].iter().any(|spec| spec.name == name);
        let keeps_law = changes.iter().all(|(name, _)| bounds(name) && name != "switch");
        let chosen = Self { keeps_law, ..Self::check(&changed)? };
        *part = changed;
        Ok(chosen)
    }

    /// Returns this law, which `asked` describes, with the parameters in `limits` replaced.
    ///
    /// # Errors
    /// As [`ChosenLaw::check`].
    pub fn within(self, asked: &Part, limits: &[(String, String)]) -> Result<Self, ControllerError> {
        let limited = Self::change(&mut asked.clone(), limits)?;
        Ok(Self { keeps_law: self.keeps_law && limited.keeps_law, ..limited })
    }

    /// Name of the law.
    pub fn controller(&self) -> &str {
        &self.config.controller
    }

    /// Rules that switch the law; empty if there are none.
    pub fn rules(&self) -> &str {
        &self.config.switch
    }

    /// Ceiling of the law, or the rate of `fixed`; `Rate::MAX` if there is none.
    pub fn rate(&self) -> Rate {
        self.config.rate
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
        Part::new("rate_control", parameters)
    }

    fn changed(before: &[(&str, &str)], changes: &[(&str, &str)]) -> Part {
        ChosenLaw::changed(&part(before), &part(changes).parameters)
    }

    #[test]
    fn a_change_replaces_named_parameters_and_drops_those_of_the_old_law() {
        let before = [("controller", "reno"), ("rate", "9Mbit"), ("initial_window", "20")];
        assert_eq!(changed(&before, &[("rate", "5Mbit")]).parameters.len(), 3);
        let other = changed(&before, &[("controller", "delivery")]);
        assert_eq!(other, part(&[("rate", "9Mbit"), ("controller", "delivery")]));
        assert!(ChosenLaw::check(&other).is_ok());
        // Both laws have it.
        let alike = changed(&before, &[("controller", "scalable")]);
        assert!(alike.parameters.iter().any(|(name, _)| name == "initial_window"), "{alike:?}");
    }

    #[test]
    fn limits_apply_to_any_request_and_a_bound_alone_keeps_the_law() {
        let limits = |limits: &[(&str, &str)]| part(limits).parameters;
        let mut asked = part(&[("controller", "reno"), ("rate", "9Mbit")]);
        let chosen = ChosenLaw::change(&mut asked, &limits(&[("rate", "unlimited")])).unwrap();
        let within = chosen.clone().within(&asked, &limits(&[("rate", "5Mbit")])).unwrap();
        assert_eq!(
            (within.rate(), within.controller(), within.keeps_law),
            (Rate::from_mbps(5), "reno", true)
        );
        let fixed = chosen.within(&asked, &limits(&[("controller", "tfrc")])).unwrap();
        assert_eq!((fixed.rate(), fixed.controller(), fixed.keeps_law), (Rate::MAX, "tfrc", false));
        // Another law is one even where only its ceiling is limited.
        let chosen = ChosenLaw::change(&mut asked, &limits(&[("controller", "cubic")])).unwrap();
        assert!(!chosen.within(&asked, &limits(&[("rate", "5Mbit")])).unwrap().keeps_law);
    }

    #[test]
    fn invalid_laws_are_refused_with_a_message() {
        for (wrong, words) in [
            (part(&[("controller", "frobnicate")]), "frobnicate"),
            (part(&[("controller", "fixed")]), "needs a rate"),
            (part(&[("rate", "0bit")]), "above zero"),
            (part(&[("rate", "fast")]), "fast"),
            (part(&[("window", "3")]), "window"),
            (part(&[("controller", "delivery"), ("ecn", "true")]), "ECN marks"),
            (part(&[("controller", "reno"), ("initial_window", "1")]), "initial_window"),
        ] {
            let error = ChosenLaw::check(&wrong).unwrap_err().to_string();
            assert!(error.contains(words), "{error}");
        }
    }
}
