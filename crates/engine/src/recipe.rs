//! The recipe of a session: the client offers it, both ends check it and build their data path from it.

use haul_proto::connection::tag_len;
use haul_proto::presets::preset;
use haul_proto::{check_object_recipe, micro};
use haul_stack::{Recipe, RecipeError};
use haul_wire::control::{Cipher, Fault, FaultCode, RecipeOffer, Settings};


/// What a client says of the recipe that it wants a session to run.
pub fn offer(recipe: &Recipe) -> RecipeOffer {
    RecipeOffer { text: recipe.to_toml(), versions: micro::registry().versions(recipe) }
}

/// Microseconds between two reports that a peer may ask for, least and most.
const FEEDBACK_INTERVAL_US: (u32, u32) = (100, 1_000_000);

/// The recipe that a session with these settings runs: the one that they name, or `bulk`, with what else they say.
pub(crate) fn session_recipe(settings: &Settings) -> Result<Recipe, RecipeError> {
    let recipe = match &settings.recipe {
        Some(offer) => Recipe::parse(&offer.text),
        None => preset("bulk").unwrap_or_else(|| Ok(Recipe::default())),
    };
    with_settings(recipe?, settings)
}

/// The recipe of a session with the settings that are in force at last.
pub(crate) fn with_settings(mut recipe: Recipe, settings: &Settings) -> Result<Recipe, RecipeError> {
    let (least, most) = FEEDBACK_INTERVAL_US;
    let interval = settings.feedback_interval_us.clamp(least, most);
    let rate = settings.rate_bps.map_or_else(|| "unlimited".to_owned(), |bps| format!("{bps}bit"));
    for (part, parameter, value) in [
        ("object", "chunk", format!("{}B", settings.chunk_bytes.max(1))),
        ("bitmap_ack", "interval", format!("{interval}us")),
        ("rate_control", "controller", settings.controller.clone()),
        ("rate_control", "rate", rate),
    ] {
        // What is missing is said by the check, in better words.
        if recipe.has(part) {
            recipe.set(&format!("{part}.{parameter}"), &value)?;
        }
    }
    Ok(recipe)
}

/// The recipe, if this end can run a session by it.
pub(crate) fn checked(recipe: Recipe, cipher: Cipher) -> Result<Recipe, RecipeError> {
    check_object_recipe(&recipe, tag_len(cipher))?;
    Ok(recipe)
}

/// The recipe of a session with the settings that a client offers, if this end can run it.
pub(crate) fn offered(settings: &Settings, cipher: Cipher) -> Result<Recipe, RecipeError> {
    let recipe = session_recipe(settings)?;
    let versions = settings.recipe.as_ref().map_or(&[][..], |offer| &offer.versions);
    micro::registry().check_versions(versions)?;
    checked(recipe, cipher)
}

/// What a client is told about a recipe that cannot be used here.
pub(crate) fn refusal(error: &RecipeError) -> Fault {
    let code = match error {
        RecipeError::NotPermitted(reason) => {
            let message = format!("the server does not permit this recipe: {reason}");
            return Fault::new(FaultCode::NotPermitted, message, "");
        }
        RecipeError::PolicyPanicked(words) => {
            let message = format!("the server's own check of recipes has panicked: {words}");
            return Fault::new(FaultCode::Internal, message, "mend the server's program");
        }
        RecipeError::Version { .. } => FaultCode::VersionMismatch,
        _ => FaultCode::Usage,
    };
    Fault::new(
        code,
        format!("the server cannot use the recipe: {error}"),
        "use a recipe whose micro-protocols both sides have, in the same version",
    )
}
