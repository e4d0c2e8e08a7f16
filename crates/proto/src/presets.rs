//! Recipes compiled into the crate.

use haul_stack::{Recipe, RecipeError};

use crate::micro;

/// Name and TOML text of every built-in recipe.
pub const PRESETS: &[(&str, &str)] = &[
    ("bulk", include_str!("../presets/bulk.toml")),
    ("fobs", include_str!("../presets/fobs.toml")),
    ("fobs-state", include_str!("../presets/fobs_state.toml")),
    ("fobs-gentle", include_str!("../presets/fobs_gentle.toml")),
    ("fobs-classifier", include_str!("../presets/fobs_classifier.toml")),
    ("rbudp", include_str!("../presets/rbudp.toml")),
    ("rbudp+", include_str!("../presets/rbudp_plus.toml")),
    ("rapid", include_str!("../presets/rapid.toml")),
    ("rapid+", include_str!("../presets/rapid_plus.toml")),
    ("asynch", include_str!("../presets/asynch.toml")),
    ("proactive", include_str!("../presets/proactive.toml")),
    ("udt", include_str!("../presets/udt.toml")),
    ("sabul", include_str!("../presets/sabul.toml")),
    ("viz", include_str!("../presets/viz.toml")),
    ("msg", include_str!("../presets/msg.toml")),
    ("sensor", include_str!("../presets/sensor.toml")),
    ("streams", include_str!("../presets/streams.toml")),
];

/// Returns the built-in recipe `name`, or `None` if there is none.
///
/// # Errors
/// If its text does not parse; tests ensure that every one does.
pub fn preset(name: &str) -> Option<Result<Recipe, RecipeError>> {
    PRESETS.iter().find(|preset| preset.0 == name).map(|preset| micro::registry().parse(preset.1))
}
