//! Changing the law, or its ceiling, in a running session.

use haul_base::Rate;
use haul_stack::{Configuration, Event, Name, ParameterSpec, ParameterType as _, Part};

use super::law::{ANY_DELAY, CONTROLLER, Law, RateControlConfig, law_parameters};
use super::rules::Rules;
use crate::control::ControllerError;

/// Selects another control law, or other parameters of the present one. Raised by the driver, handled by
/// `rate_control`.
pub const LAW_CHOSEN: Name<Event<ChosenLaw>> = Name::new("law chosen");

/// New values of some parameters of `rate_control`, for a running session.
#[derive(Clone, Debug, PartialEq)]
pub struct LawChange(Part);

impl LawChange {
    /// Selects a law with these parameters.
    pub fn to<C: Configuration>(law: &C) -> Self {
        let mut parameters = law.values();
        parameters.push((CONTROLLER.name, C::NAME.to_owned().value()));
        Self(Part { name: RateControlConfig::NAME, parameters })
    }

    /// Changes the parameters that are common to all laws as `change` changes those of `present`. Names only
    /// those that then differ, so it does not select a law that `present` names already.
    pub fn of(present: &Part, change: impl FnOnce(&mut RateControlConfig)) -> Self {
        Self(Part { name: present.name, parameters: present.changes(change) })
    }

    /// Parses names and values of parameters, including those of the law that they name, or that is `present`.
    ///
    /// # Errors
    /// If there is no such parameter, or a value is invalid.
    pub fn parse(
        present: &Part,
        texts: &[(impl AsRef<str>, impl AsRef<str>)],
    ) -> Result<Self, ControllerError> {
        let mut named = present.clone();
        let texts = || texts.iter().map(|(name, text)| (name.as_ref(), text.as_ref()));
        for (_, law) in texts().filter(|(name, _)| *name == CONTROLLER.name) {
            named.put(CONTROLLER.name, law.to_owned().value());
        }
        let (specs, mut parsed) = (specs(&named), Part::from(RateControlConfig::NAME));
        for (name, text) in texts() {
            parsed.parse(&specs, name, text)?;
        }
        Ok(Self(parsed))
    }

    /// Returns names and values as text.
    pub fn texts(&self) -> Vec<(String, String)> {
        self.0.texts()
    }

    /// Adds another change, which overrides this one.
    #[must_use]
    pub fn and(mut self, other: Self) -> Self {
        other.0.parameters.into_iter().for_each(|(name, value)| self.0.put(name, value));
        self
    }
}

/// Returns the specifications of `rate_control` with the law that it names.
fn specs(part: &Part) -> Vec<ParameterSpec> {
    [RateControlConfig::PARAMETERS, law_parameters(part)].concat()
}

/// A law and its parameters, checked, for a running session.
#[derive(Clone, Debug)]
pub struct ChosenLaw {
    /// All parameters.
    pub(super) parameters: Part,
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
        let parameters = part.complete(&specs(part))?;
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
    pub fn change(part: &mut Part, change: &LawChange) -> Result<Self, ControllerError> {
        let changed = Self::changed(part, change);
        let bounds = |name: &str| RateControlConfig::PARAMETERS[1..].iter().any(|spec| spec.name == name);
        let keeps_law = change.0.parameters.iter().all(|(name, _)| bounds(name) && *name != "switch");
        let chosen = Self { keeps_law, ..Self::check(&changed)? };
        *part = changed;
        Ok(chosen)
    }

    /// Returns this law, which `asked` describes, as changed by `limit`.
    ///
    /// # Errors
    /// As [`ChosenLaw::check`].
    pub fn within(
        self,
        asked: &Part,
        limit: impl FnOnce(&mut RateControlConfig),
    ) -> Result<Self, ControllerError> {
        let limited = Self::change(&mut asked.clone(), &LawChange::of(asked, limit))?;
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

    fn changed(part: &Part, change: &LawChange) -> Part {
        let mut changed = part.clone();
        for (name, value) in &change.0.parameters {
            changed.put(name, value.clone());
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
    use crate::config::CubicConfig;

    fn change(present: &Part, texts: &[(&str, &str)]) -> LawChange {
        LawChange::parse(present, texts).unwrap()
    }

    fn part(texts: &[(&str, &str)]) -> Part {
        let present = Part::from("rate_control");
        ChosenLaw::changed(&present, &change(&present, texts))
    }

    fn changed(before: &[(&str, &str)], changes: &[(&str, &str)]) -> Part {
        ChosenLaw::changed(&part(before), &change(&part(before), changes))
    }

    #[test]
    fn a_change_replaces_named_parameters_and_drops_those_of_the_old_law() {
        let before = [("controller", "reno"), ("rate", "9Mbit"), ("initial_window", "20")];
        assert_eq!(changed(&before, &[("rate", "5Mbit")]).parameters.len(), 3);
        let other = changed(&before, &[("controller", "delivery")]);
        assert_eq!(other, part(&[("controller", "delivery"), ("rate", "9Mbit")]));
        assert!(ChosenLaw::check(&other).is_ok());
        // Both laws have it.
        let alike = changed(&before, &[("controller", "scalable")]);
        assert!(alike.get("initial_window").is_some(), "{alike:?}");
    }

    #[test]
    fn limits_apply_to_any_request_and_a_bound_alone_keeps_the_law() {
        let limits = |limits: &[(&str, &str)]| change(&Part::from("rate_control"), limits);
        let five = |law: &mut RateControlConfig| law.rate = Rate::from_mbps(5);
        let mut asked = part(&[("controller", "reno"), ("rate", "9Mbit")]);
        let chosen = ChosenLaw::change(&mut asked, &limits(&[("rate", "unlimited")])).unwrap();
        let within = chosen.clone().within(&asked, five).unwrap();
        assert_eq!(
            (within.rate(), within.controller(), within.keeps_law),
            (Rate::from_mbps(5), "reno", true)
        );
        let fixed = chosen.within(&asked, |law| "tfrc".clone_into(&mut law.controller)).unwrap();
        assert_eq!((fixed.rate(), fixed.controller(), fixed.keeps_law), (Rate::MAX, "tfrc", false));
        // Another law is one even where only its ceiling is limited.
        let chosen = ChosenLaw::change(&mut asked, &limits(&[("controller", "cubic")])).unwrap();
        assert!(!chosen.within(&asked, five).unwrap().keeps_law);
    }

    #[test]
    fn invalid_laws_are_refused_with_a_message() {
        let check = |texts: &[(&str, &str)]| {
            let mut present = Part::from("rate_control");
            let change = LawChange::parse(&present, texts)?;
            ChosenLaw::change(&mut present, &change)
        };
        for (wrong, words) in [
            (&[("controller", "frobnicate")][..], "frobnicate"),
            (&[("controller", "fixed")], "needs a rate"),
            (&[("rate", "0bit")], "above zero"),
            (&[("rate", "fast")], "fast"),
            (&[("window", "3")], "window"),
            (&[("controller", "delivery"), ("ecn", "true")], "ECN marks"),
            (&[("controller", "reno"), ("initial_window", "1")], "initial_window"),
            (&[("controller", "delivery"), ("initial_window", "20")], "no parameter `initial_window`"),
        ] {
            let error = check(wrong).unwrap_err().to_string();
            assert!(error.contains(words), "{error}");
        }
    }

    #[test]
    fn typed_changes_equal_parsed_ones() {
        let before = part(&[("controller", "reno"), ("rate", "9Mbit"), ("initial_window", "20")]);
        let unlimited = LawChange::of(&before, |law| law.rate = Rate::MAX);
        assert_eq!(unlimited, change(&before, &[("rate", "unlimited")]));
        assert_eq!(LawChange::parse(&before, &unlimited.texts()).unwrap(), unlimited);
        let mut both = before.clone();
        let cubic = LawChange::to(&CubicConfig { decrease: 0.5, ..CubicConfig::default() });
        let chosen = ChosenLaw::change(&mut both, &cubic.and(unlimited)).unwrap();
        assert_eq!(
            (chosen.controller(), chosen.rate(), both.value("decrease")),
            ("cubic", Rate::MAX, Some(0.5))
        );
        let back = LawChange::to(&CubicConfig::default());
        ChosenLaw::change(&mut both, &back).unwrap();
        assert_eq!(both.read::<CubicConfig>(), CubicConfig::default(), "a law has all its parameters");
    }
}
