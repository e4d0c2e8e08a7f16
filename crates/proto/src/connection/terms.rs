//! A server's requirements on the recipes of its clients.

use std::sync::{Arc, Mutex, PoisonError, Weak};

use haul_stack::{CompiledStack, Recipe, RecipeError, Registry};
use haul_wire::control::{Cipher, Fault};
use haul_wire::packet::IDENTITY_OFFSET;

use super::negotiation::refusal;
use super::protection::tag_len;
use crate::micro::attributes::IDENTITY;

/// Required micro-protocols of a connection: packets must identify their connection and be authenticated.
const NEEDED: [&str; 2] = ["transport_driver", "seal"];
/// Name of what requires them, for error messages.
const MESSAGES: &str = "a connection, which carries messages,";
/// Error for the recipe of an object.
const OBJECT: &str = "it carries an object, which needs a session; a connection carries messages: use `fixed_size` instead of `object`, with `transport_driver` (first) and `seal`";

/// A server's requirements on the recipes of its clients.
#[derive(derive_more::Debug)]
#[debug("Terms")]
pub struct Terms {
    /// Registry that includes the policy, so that it applies to every stack and its later changes.
    registry: Arc<Registry>,
    /// Compiled stacks, shared by equal recipes.
    known: Mutex<Vec<Weak<CompiledStack>>>,
}

impl Terms {
    /// Permits every recipe that this registry can build.
    pub fn new(registry: Arc<Registry>) -> Self {
        Self { registry, known: Mutex::default() }
    }

    /// Permits only recipes that `permit` accepts, checked for a new client and whenever the recipe of a
    /// connection is to change; the client receives the reason for a refusal.
    #[must_use]
    pub fn permitting(
        mut self,
        permit: impl Fn(&Recipe) -> Result<(), String> + Send + Sync + 'static,
    ) -> Self {
        self.registry = Arc::new(Registry::clone(&self.registry).permitting(permit));
        self
    }

    /// Checks that the recipe of a client's session is permitted.
    ///
    /// # Errors
    /// If it is not.
    pub fn check(&self, recipe: &Recipe) -> Result<(), Fault> {
        self.registry.permits(recipe).map_err(|error| refusal(&error))
    }

    /// Checks the recipe of a client that wants connections, and the versions of its micro-protocols.
    ///
    /// # Errors
    /// If it is invalid or not permitted.
    pub fn agree(
        &self,
        recipe: &str,
        versions: &[(String, u16)],
        cipher: Cipher,
    ) -> Result<Arc<CompiledStack>, RecipeError> {
        self.registry.check_versions(versions)?;
        let recipe = self.registry.parse(recipe)?;
        self.registry.permits(&recipe)?;
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.retain(|known| known.strong_count() > 0);
        let same = |known: &Arc<CompiledStack>| {
            let text = known.recipe();
            text.name == recipe.name
                && text.same_stack(&recipe)
                && known.layout().tag_len() == tag_len(cipher)
        };
        if let Some(known) = known.iter().filter_map(Weak::upgrade).find(same) {
            return Ok(known);
        }
        let compiled = compile(&self.registry, &recipe, cipher)?;
        known.push(Arc::downgrade(&compiled));
        Ok(compiled)
    }
}

/// Compiles the recipe of a connection, and checks that its packets identify their connection.
///
/// # Errors
/// If it is invalid.
pub fn compile(
    registry: &Arc<Registry>,
    recipe: &Recipe,
    cipher: Cipher,
) -> Result<Arc<CompiledStack>, RecipeError> {
    if recipe.has("object") {
        return Err(RecipeError::Unbuildable { protocol: recipe.name.clone(), message: OBJECT.to_owned() });
    }
    if let Some(part) = NEEDED.into_iter().find(|part| !recipe.has(part)) {
        let alternatives = format!("`{part}`: packets must carry an identity and be authenticated");
        return Err(RecipeError::Missing { protocol: MESSAGES.to_owned(), alternatives });
    }
    let compiled = registry.compile(recipe, tag_len(cipher))?;
    let mut attributes = compiled.layout().attributes().iter();
    if attributes.any(|a| a.name == IDENTITY.text() && a.clear && usize::from(a.offset) == IDENTITY_OFFSET) {
        return Ok(compiled);
    }
    let message = "it must come before all others with clear attributes".to_owned();
    Err(RecipeError::Unbuildable { protocol: NEEDED[0].to_owned(), message })
}
