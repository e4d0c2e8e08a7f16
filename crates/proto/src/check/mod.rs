//! Invariants of recipes and machines as functions, for fuzz targets and tests, as in [`haul_wire::check`]:
//! each takes arbitrary bytes, panics if a rule is violated, and returns whether the bytes had any effect.

mod bulk;
mod control_channel;
mod machine;
mod reconfigure;

use std::sync::Arc;

use crate::micro;
pub use bulk::{bulk_receiver, bulk_sender};
pub use control_channel::control_sequence;
pub use reconfigure::reconfigure;

/// Checks the texts of recipes: what is parsed is serialised to an equal recipe, even if the registry refuses
/// it, and a recipe that compiles still does so afterwards. Returns true if it compiles.
///
/// # Panics
/// If a rule is violated.
pub fn recipe(bytes: &[u8]) -> bool {
    let Ok(text) = std::str::from_utf8(bytes) else { return false };
    let Ok(recipe) = micro::registry().parse(text) else { return false };
    let again = micro::registry().parse(&recipe.to_toml()).expect("what was written can be read");
    assert!(again.same_stack(&recipe), "the recipe changed: {recipe:?}, {again:?}");
    let compiles = |recipe| Arc::new(micro::registry()).compile(recipe, 0).is_ok();
    let compiled = compiles(&recipe);
    assert_eq!(compiles(&again), compiled, "written back, {again:?} is checked differently");
    compiled
}
