//! The bulk transport: an object over the recipe `bulk`, as a sender and a receiver with typed settings and counters.
//! Both are thin: what they do is in the recipe's micro-protocols.

mod receiver;
mod sender;

use std::sync::Arc;

use haul_base::{Bytes, Span};
use haul_stack::{Recipe, RecipeError, Registry, Setup, Stack, StackEvent};

use crate::{micro, presets};

pub use receiver::{Receiver, ReceiverConfig, ReceiverEvent, ReceiverStats};
pub use sender::{Sender, SenderConfig, SenderEvent, SenderStats};

/// A size as recipes write it, exact.
fn bytes(bytes: Bytes) -> String {
    format!("{}B", bytes.0)
}

/// A time as recipes write it, exact.
fn span(span: Span) -> String {
    format!("{}ns", span.as_nanos())
}

/// A stack of the recipe `bulk` with these parameters.
fn build(parameters: &[(&str, String)], setup: Setup) -> Result<Stack, RecipeError> {
    let mut recipe = presets::preset("bulk").unwrap_or_else(|| Ok(Recipe::default()))?;
    for (key, value) in parameters {
        recipe.set(key, value)?;
    }
    let tag_len = setup.keys.as_ref().map_or(0, |keys| keys.0.tag_len());
    let registry: Arc<Registry> = Arc::new(micro::registry());
    Stack::new(registry.compile(&recipe, tag_len)?, setup)
}

/// Which micro-protocol has failed, and how.
fn failure(event: &StackEvent) -> Option<String> {
    match event {
        StackEvent::Failed { protocol, message } => Some(format!("{protocol}: {message}")),
        _ => None,
    }
}
