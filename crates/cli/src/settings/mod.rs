//! How data is to be carried: the parameters of a recipe, typed, with the place that each value came from.

mod parameters;
mod presets;

use haul_proto::{check_object_recipe, law, law_names};
use haul_wire::control::Cipher;
use haulage::RecipeError;

use crate::config::{ConfigRow, Origin, Setting};
use crate::fault::{self, Fault};

pub(crate) use parameters::{IN_STACKS, PARAMETERS, Parameter, Settings, parameter_names, session_key};
pub(crate) use presets::Preset;
use presets::STACKS;

/// Bytes of the tag of a packet: which cipher it will be is not known yet, and none has a longer one.
const TAG_LEN: usize = 16;

/// The ciphers that a client offers: `only` this one, or all that encrypt, the fastest on this machine first.
pub(crate) fn ciphers(only: Option<Cipher>) -> Vec<Cipher> {
    use Cipher::{Aes128Gcm, Aes256Gcm, ChaCha20Poly1305};
    match only {
        Some(cipher) => vec![cipher],
        None if has_aes() => vec![Aes128Gcm, Aes256Gcm, ChaCha20Poly1305],
        None => vec![ChaCha20Poly1305, Aes128Gcm, Aes256Gcm],
    }
}

/// Whether the processor has instructions for AES and its mode, without which `ChaCha20` is faster.
fn has_aes() -> bool {
    #[cfg(target_arch = "x86_64")]
    return std::arch::is_x86_feature_detected!("aes") && std::arch::is_x86_feature_detected!("pclmulqdq");
    #[cfg(target_arch = "aarch64")]
    return std::arch::is_aarch64_feature_detected!("aes")
        && std::arch::is_aarch64_feature_detected!("pmull");
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    false
}

#[derive(Debug, Clone)]
pub(crate) struct Recipe {
    pub settings: Settings,
    /// Where each of [`PARAMETERS`] came from, in the same order.
    origins: Vec<Origin>,
}

impl Recipe {
    /// Starts from a preset and applies single settings in their order.
    pub(crate) fn build(preset: &Preset, settings: &[Setting]) -> Result<Self, Fault> {
        let recipe = Self::collect(preset, settings)?;
        recipe.check()?;
        Ok(recipe)
    }

    /// As [`Recipe::build`], for looking at values that need not be complete.
    pub(crate) fn collect(preset: &Preset, settings: &[Setting]) -> Result<Self, Fault> {
        let mut recipe =
            Self { settings: preset.settings()?, origins: vec![preset.origin(); PARAMETERS.len()] };
        for Setting { origin, assignment } in settings {
            let key = session_key(&assignment.key);
            if key.contains('.') {
                let set = recipe.settings.stack.set(key, &assignment.value);
                set.map_err(|error| fault::usage(format!("{origin}: {error}"), STACKS))?;
                continue;
            }
            let law_before = recipe.settings.controller;
            let parameter = recipe.settings.set(origin, key, &assignment.value)?;
            recipe.origins[parameter.index()] = origin.clone();
            recipe.drop_parameters_of(law_before);
        }
        recipe.settle_stack()?;
        Ok(recipe)
    }

    /// Another law has parameters of its own: those that the preset gave to the law `before` go with it.
    fn drop_parameters_of(&mut self, before: &str) {
        let is_another = self.settings.controller != before;
        for parameter in law(before).iter().filter(|_| is_another).flat_map(|law| law.parameters) {
            self.settings.stack.unset("rate_control", parameter.name);
        }
    }

    /// Writes into the stack what the session has too: both say the same.
    fn settle_stack(&mut self) -> Result<(), Fault> {
        for (of_part, key) in IN_STACKS {
            let value = (Parameter::find(key)?.show)(&self.settings);
            // What a recipe lacks is said when it is checked.
            let _ = self.settings.stack.set(of_part, &value);
        }
        Ok(())
    }

    /// The preset's name and every parameter with its value and origin.
    pub(crate) fn rows(&self) -> Vec<ConfigRow> {
        let rows = PARAMETERS.iter().zip(&self.origins).map(|(parameter, origin)| ConfigRow {
            key: format!("set.{}", parameter.key),
            value: Some((parameter.show)(&self.settings)),
            origin: origin.to_string(),
        });
        rows.collect()
    }

    /// Builds the stack once, so that what it lacks is said before anything starts.
    fn check(&self) -> Result<(), Fault> {
        check_object_recipe(&self.settings.stack, TAG_LEN).map_err(|error| {
            fault::usage(format!("preset {}: {error}", self.settings.stack.name), hint(&error))
        })
    }
}

/// What to do about a stack that cannot be built.
fn hint(error: &RecipeError) -> String {
    match error {
        RecipeError::Unbuildable { protocol, message }
            if protocol == "rate_control" && message.starts_with("switch") =>
        {
            format!(
                "a rule is `CONDITION -> LAW`, as in `loss > 5% -> tfrc`; the laws are {}",
                law_names().join(", ")
            )
        }
        _ => STACKS.to_owned(),
    }
}

#[cfg(test)]
mod tests;
