//! The recipes that are compiled in.

use haul_stack::{Recipe, RecipeError};

/// Every shipped recipe: its name and its text.
pub const PRESETS: &[(&str, &str)] = &[
    ("bulk", include_str!("../presets/bulk.toml")),
    ("fobs", include_str!("../presets/fobs.toml")),
    ("rbudp", include_str!("../presets/rbudp.toml")),
    ("viz", include_str!("../presets/viz.toml")),
    ("msg", include_str!("../presets/msg.toml")),
    ("sensor", include_str!("../presets/sensor.toml")),
];

/// The shipped recipe of this name.
///
/// # Errors
/// If its text is no recipe; the tests make sure that each is.
pub fn preset(name: &str) -> Option<Result<Recipe, RecipeError>> {
    PRESETS.iter().find(|preset| preset.0 == name).map(|preset| Recipe::parse(preset.1))
}
