//! The bulk transport: sender and receiver of one object, with typed settings and counters, over the recipe
//! `bulk` or another that carries objects. Both are thin: the recipe's micro-protocols do the work.

mod counters;
mod receiver;
mod sender;

use std::sync::Arc;

use haul_stack::{Recipe, RecipeError, Registry, Setup, Stack, StackEvent};

use crate::micro::config::{Keep, RetransmitConfig};
use crate::{micro, presets};

pub use counters::{Counters, ObjectEnd, Sending};
pub use receiver::{Receiver, ReceiverConfig, ReceiverEvent, ReceiverStats};
pub use sender::{Sender, SenderConfig, SenderEvent, SenderStats};

/// Micro-protocols required in a session's recipe: an object, authenticated packets, and a silence timeout.
const NEEDED: [&str; 3] = ["object", "seal", "liveness"];

/// Checks that a recipe compiles and suits a session that moves an object.
///
/// # Errors
/// If something is invalid or missing.
pub fn check_object_recipe(recipe: &Recipe, tag_len: usize) -> Result<(), RecipeError> {
    if let Some(part) = NEEDED.into_iter().find(|part| !recipe.has(part)) {
        let (protocol, alternatives) = ("a session that moves files or memory".to_owned(), part.to_owned());
        return Err(RecipeError::Missing { protocol, alternatives });
    }
    if let Some(RetransmitConfig { keep: Keep::Copies, .. }) = recipe.configuration() {
        return Err(RecipeError::Value {
            protocol: "retransmit".to_owned(),
            parameter: "keep".to_owned(),
            value: "copies".to_owned(),
            allowed: "lost parts of an object are read again; write keep = \"object\"".to_owned(),
        });
    }
    Arc::new(micro::registry()).compile(recipe, tag_len).map(|_| ())
}

/// Returns the recipe `bulk`.
fn shipped() -> Result<Recipe, RecipeError> {
    presets::preset("bulk").unwrap_or_else(|| Ok(Recipe::default()))
}

/// Registry that permits only this recipe: a session's recipe is agreed on before it starts, within what the
/// server permits. A change by the peer would bypass that.
fn fixed(recipe: &Recipe) -> Arc<Registry> {
    let agreed = recipe.clone();
    let permit = move |new: &Recipe| {
        let refusal = || "the recipe of a session that moves an object cannot change".to_owned();
        new.same_stack(&agreed).then_some(()).ok_or_else(refusal)
    };
    Arc::new(micro::registry().permitting(permit))
}

/// Builds a stack of `recipe`.
fn build(recipe: &Recipe, setup: Setup) -> Result<Stack, RecipeError> {
    let tag_len = setup.keys.as_ref().map_or(0, |keys| keys.0.tag_len());
    Stack::new(fixed(recipe).compile(recipe, tag_len)?, setup)
}

/// Describes which micro-protocol failed, and how.
fn failure(event: &StackEvent) -> Option<String> {
    match event {
        StackEvent::Failed { protocol, message } => Some(format!("{protocol}: {message}")),
        _ => None,
    }
}
