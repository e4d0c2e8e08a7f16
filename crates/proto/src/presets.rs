//! The recipes that are compiled in.

use haul_stack::{Recipe, RecipeError};

/// Every shipped recipe: its name and its text.
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

/// The shipped recipe of this name.
///
/// # Errors
/// If its text is no recipe; the tests make sure that each is.
pub fn preset(name: &str) -> Option<Result<Recipe, RecipeError>> {
    PRESETS.iter().find(|preset| preset.0 == name).map(|preset| Recipe::parse(preset.1))
}
