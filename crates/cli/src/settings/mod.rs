//! Typed recipe parameters of sessions, and presets.

mod parameters;
mod presets;

use haul_proto::{check_object_recipe, law_names};
use haul_wire::control::Cipher;
use haulage::RecipeError;

use crate::config::{ConfigRow, Setting};
use crate::fault::{self, Fault};

pub(crate) use parameters::{IN_RECIPE, PARAMETERS, Settings, parameter_names, session_key};
use parameters::{Parameter, RECIPES};
pub(crate) use presets::Preset;

/// Maximum tag length of all ciphers, in bytes: the cipher is not known yet.
pub(crate) const TAG_LEN: usize = 16;

/// Returns the ciphers that a client offers: `only` this one, or all that encrypt, the fastest on this
/// machine first.
pub(crate) fn ciphers(only: Option<Cipher>) -> Vec<Cipher> {
    use Cipher::{Aes128Gcm, Aes256Gcm, ChaCha20Poly1305};
    match only {
        Some(cipher) => vec![cipher],
        None if has_aes() => vec![Aes128Gcm, Aes256Gcm, ChaCha20Poly1305],
        None => vec![ChaCha20Poly1305, Aes128Gcm, Aes256Gcm],
    }
}

/// Whether the processor has AES and GCM instructions; without them `ChaCha20` is faster.
fn has_aes() -> bool {
    #[cfg(target_arch = "x86_64")]
    return std::arch::is_x86_feature_detected!("aes") && std::arch::is_x86_feature_detected!("pclmulqdq");
    #[cfg(target_arch = "aarch64")]
    return std::arch::is_aarch64_feature_detected!("aes")
        && std::arch::is_aarch64_feature_detected!("pmull");
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    false
}

impl Settings {
    /// Starts from a preset and applies settings in order.
    pub(crate) fn build(preset: &Preset, settings: &[Setting]) -> Result<Self, Fault> {
        let built = Self::collect(preset, settings)?;
        // Builds the stack once, so that errors are reported before anything starts.
        let problem = |error| fault::usage(format!("preset {}: {error}", built.recipe.name), hint(&error));
        check_object_recipe(&built.recipe, TAG_LEN).map_err(problem)?;
        Ok(built)
    }

    /// Like [`Settings::build`], without checking that the stack can be built.
    pub(crate) fn collect(preset: &Preset, settings: &[Setting]) -> Result<Self, Fault> {
        let mut collected = preset.settings()?;
        for Setting { origin, assignment } in settings {
            collected.set(origin, session_key(&assignment.key), &assignment.value)?;
        }
        Ok(collected)
    }

    /// Returns every parameter with its value and origin: the last of `settings` that set it, or the preset.
    pub(crate) fn rows(&self, preset: &Preset, settings: &[Setting]) -> Vec<ConfigRow> {
        let row = |Parameter { key, show, .. }: &Parameter| {
            let sets_it = |set: &&Setting| {
                Parameter::find(session_key(&set.assignment.key)).is_ok_and(|found| found.key == *key)
            };
            let set = settings.iter().rfind(sets_it).map(|set| set.origin.clone());
            let origin = set.unwrap_or_else(|| preset.origin()).to_string();
            ConfigRow { key: format!("set.{key}"), value: Some(show(self)), origin }
        };
        PARAMETERS.iter().map(row).collect()
    }
}

/// Returns the hint for a stack that cannot be built.
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
        _ => RECIPES.to_owned(),
    }
}

#[cfg(test)]
mod tests;
