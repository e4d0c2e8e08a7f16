//! The bulk transport: an object over the recipe `bulk`, or another that carries objects, as a sender and a receiver
//! with typed settings and counters. Both are thin: what they do is in the recipe's micro-protocols.

mod counters;
mod receiver;
mod sender;

use std::sync::Arc;

use haul_stack::{ParameterType as _, Recipe, RecipeError, Registry, Setup, Stack, StackEvent};

use crate::micro::config::{Keep, RetransmitConfig};
use crate::{micro, presets};

pub use counters::{Counters, ObjectEnd, Sending};
pub use receiver::{Receiver, ReceiverConfig, ReceiverEvent, ReceiverStats};
pub use sender::{Sender, SenderConfig, SenderEvent, SenderStats};

/// What a recipe must have so that a session can run it: an object, packets that prove where they come from, and an end
/// if the other side falls silent.
const NEEDED: [&str; 3] = ["object", "seal", "liveness"];

/// Checks a recipe as any other, and that it suits a session that moves an object.
///
/// # Errors
/// What is wrong or missing.
pub fn check_object_recipe(recipe: &Recipe, tag_len: usize) -> Result<(), RecipeError> {
    if let Some(part) = NEEDED.into_iter().find(|part| !recipe.has(part)) {
        let (protocol, alternatives) = ("a session that moves files or memory".to_owned(), part.to_owned());
        return Err(RecipeError::Missing { protocol, alternatives });
    }
    if let Some(RetransmitConfig { keep: Keep::Copies, .. }) = recipe.configuration()? {
        return Err(RecipeError::Value {
            place: String::new(),
            protocol: "retransmit".to_owned(),
            parameter: "keep".to_owned(),
            value: Keep::Copies.text(),
            allowed: "what is lost of an object is read once more; write keep = \"object\"".to_owned(),
        });
    }
    Arc::new(micro::registry()).compile(recipe, tag_len).map(|_| ())
}

/// The recipe `bulk`.
fn shipped() -> Result<Recipe, RecipeError> {
    presets::preset("bulk").unwrap_or_else(|| Ok(Recipe::default()))
}

/// Permits this recipe only: what a session runs is agreed on, within what the server permits, before it begins. A
/// change by the other side would go around that.
fn fixed(recipe: &Recipe) -> Arc<Registry> {
    let agreed = recipe.clone();
    let permit = move |new: &Recipe| {
        let refusal = || "the recipe of a session that moves an object does not change".to_owned();
        new.same_stack(&agreed).then_some(()).ok_or_else(refusal)
    };
    Arc::new(micro::registry().permitting(permit))
}

/// A stack of a recipe.
fn build(recipe: &Recipe, setup: Setup) -> Result<Stack, RecipeError> {
    let tag_len = setup.keys.as_ref().map_or(0, |keys| keys.0.tag_len());
    Stack::new(fixed(recipe).compile(recipe, tag_len)?, setup)
}

/// Which micro-protocol has failed, and how.
fn failure(event: &StackEvent) -> Option<String> {
    match event {
        StackEvent::Failed { protocol, message } => Some(format!("{protocol}: {message}")),
        _ => None,
    }
}
