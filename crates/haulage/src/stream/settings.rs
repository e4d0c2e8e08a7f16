//! What a stream of bytes runs by.

use std::str::FromStr;

use haul_base::{Bytes, Rate, Span};
use haul_engine::{default_settings, offer};
use haul_proto::check_object_recipe;
use haul_stack::{Recipe, RecipeError};
use haul_wire::control::Settings;

use crate::Options;

/// Bytes of the tag of a packet: which cipher it will be is not known yet, and none has a longer one.
const TAG_LEN: usize = 16;
/// What is wrong with the recipe of messages here.
const MESSAGES: &str = "it carries no object, and a stream of bytes is one; a recipe of messages is for `Connection` \
                        (docs/recipes.md)";

/// The settings of a session that runs this recipe.
pub(super) fn settings(recipe: &Recipe, options: &Options) -> Result<Settings, RecipeError> {
    if !recipe.has("object") {
        let message = MESSAGES.to_owned();
        return Err(RecipeError::Unbuildable { protocol: recipe.name.clone(), message });
    }
    // The session's own check sees what the settings put in the place of nonsense.
    check_object_recipe(recipe, TAG_LEN)?;
    let mut settings = default_settings();
    take(recipe, &mut settings);
    settings.recipe = Some(offer(recipe));
    let ceiling = |rate: Rate| (rate != Rate::MAX).then(|| rate.as_bps());
    settings.rate_bps = options.rate.map_or(settings.rate_bps, ceiling);
    settings.offload = options.offload;
    let buffer = options.socket_buffer.map(|bytes| ("socket_buffer".to_owned(), bytes.0.to_string()));
    settings.extra.extend(buffer);
    Ok(settings)
}

/// What a session's settings say too holds for its recipe: they say the same.
fn take(recipe: &Recipe, settings: &mut Settings) {
    fn value<T: FromStr>(recipe: &Recipe, part: &str, parameter: &str) -> Option<T> {
        recipe.get(part, parameter)?.parse().ok()
    }
    if let Some(Bytes(chunk)) = value(recipe, "object", "chunk") {
        settings.chunk_bytes = chunk;
    }
    if let Some(interval) = value::<Span>(recipe, "bitmap_ack", "interval") {
        settings.feedback_interval_us = u32::try_from(interval.as_micros()).unwrap_or(u32::MAX);
    }
    if let Some(controller) = recipe.get("rate_control", "controller") {
        controller.clone_into(&mut settings.controller);
    }
    settings.rate_bps = value(recipe, "rate_control", "rate").map(Rate::as_bps);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::preset;

    #[test]
    fn what_the_recipe_says_is_what_the_session_runs_by() {
        let of = |name: &str, rate: Option<Rate>| {
            settings(&preset(name).unwrap(), &Options { rate, ..Options::default() }).unwrap()
        };
        let fobs = of("fobs", None);
        assert_eq!((fobs.controller.as_str(), fobs.rate_bps), ("fixed", Some(900_000_000)));
        assert_eq!((fobs.feedback_interval_us, fobs.chunk_bytes), (10_000, 100_000_000));
        assert_eq!(of("rbudp", Some(Rate::from_mbps(5))).rate_bps, Some(5_000_000));
        assert_eq!(of("rbudp", Some(Rate::MAX)).rate_bps, None, "it reads `unlimited`");
        let bulk = of("bulk", None);
        assert_eq!((bulk.controller.as_str(), bulk.rate_bps), ("bbr", None));
    }

    #[test]
    fn a_recipe_of_messages_is_refused_by_its_name_and_nonsense_by_its_place() {
        let error = settings(&preset("viz").unwrap(), &Options::default()).unwrap_err().to_string();
        assert!(error.contains("viz: it carries no object"), "{error}");
        let mut wrong = preset("bulk").unwrap();
        wrong.set("bitmap_ack.interval", "soon").ok();
        wrong.set("object.chunk", "much").unwrap();
        let error = settings(&wrong, &Options::default()).unwrap_err().to_string();
        assert!(error.contains("object.chunk") || error.contains("bitmap_ack.interval"), "{error}");
    }
}
