//! The law that a client asks for while it receives from this server, within what the server's owner has set.

use haul_base::Rate;
use haul_proto::{ChosenLaw, ControllerError, Part};

/// What the owner of a server has set of the law that sends; no client changes it.
#[derive(Clone, Debug, Default)]
pub(crate) struct LawLimits {
    pub(crate) rate: Option<Rate>,
    pub(crate) controller: Option<&'static str>,
}

impl LawLimits {
    /// The parameters in which `asked` is beyond them.
    pub(crate) fn beyond(&self, asked: &ChosenLaw) -> Vec<(String, String)> {
        let rate = self.rate.filter(|&limit| asked.rate() > limit).map(|limit| ("rate", limit.exact()));
        let other = self.controller.filter(|&fixed| asked.controller() != fixed);
        let controller = other.map(|fixed| ("controller", fixed.to_owned()));
        let rules = self.controller.filter(|_| !asked.rules().is_empty()).map(|_| ("switch", String::new()));
        let beyond = [rate, controller, rules].into_iter().flatten();
        beyond.map(|(name, value)| (name.to_owned(), value)).collect()
    }
}

/// What a client has asked for so far.
#[derive(Debug)]
pub(crate) struct AskedLaw {
    /// As the client has it, without the limits: both check its changes against the same.
    asked: Part,
    is_changed: bool,
    limits: LawLimits,
}

impl AskedLaw {
    /// `agreed` is what the session's recipe says of `rate_control`.
    pub(crate) fn new(agreed: Part, limits: LawLimits) -> Self {
        Self { asked: agreed, is_changed: false, limits }
    }

    /// The law from now on. `None` if there is none within the limits: the present one stays.
    ///
    /// # Errors
    /// If there is no such law at all, which the client should have seen itself.
    pub(crate) fn change(
        &mut self,
        changes: &[(String, String)],
    ) -> Result<Option<ChosenLaw>, ControllerError> {
        let chosen = ChosenLaw::change(&mut self.asked, changes)?;
        self.is_changed = true;
        Ok(self.limited(chosen))
    }

    /// The law to begin with, if it was changed before there was a transfer.
    pub(crate) fn at_start(&self) -> Option<ChosenLaw> {
        let chosen = self.is_changed.then(|| ChosenLaw::check(&self.asked).ok()).flatten();
        chosen.and_then(|chosen| self.limited(chosen))
    }

    fn limited(&self, chosen: ChosenLaw) -> Option<ChosenLaw> {
        let beyond = self.limits.beyond(&chosen);
        let limited = chosen.within(&self.asked, &beyond);
        limited.inspect_err(|error| tracing::debug!(%error, "no law within the server's limits")).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_law_that_the_owner_fixes_has_no_rules_that_exchange_it() {
        let agreed = Part { name: "rate_control".to_owned(), parameters: Vec::new() };
        let rules = [("switch".to_owned(), "after 1s -> cubic".to_owned())];
        for (controller, kept) in [(Some("bbr"), ""), (None, "after 1s -> cubic")] {
            let mut asked = AskedLaw::new(agreed.clone(), LawLimits { rate: None, controller });
            let law = asked.change(&rules).unwrap().unwrap();
            assert_eq!(law.rules(), kept, "{controller:?}");
        }
    }
}
