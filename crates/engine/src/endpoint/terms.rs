//! What a server asks of the recipe that a client brings.

use std::sync::{Arc, Mutex, Weak};

use haul_proto::connection::tag_len;
use haul_stack::{CompiledStack, Recipe, RecipeError, Registry};
use haul_wire::control::{Cipher, ControlMessage, Fault, FaultCode, Request};
use haul_wire::packet::IDENTITY_AT;

use super::connection::{ResumptionState, panicked};
use super::table::{Entry, NotAdded};
use crate::guard::{caught, lock};
use crate::recipe::refusal;
use crate::{EngineError, Incoming, Role};

/// Every recipe must have these: packets have to say whose they are, and prove it.
const NEEDED: [&str; 2] = ["transport_driver", "seal"];
/// What needs them, in error messages.
const MESSAGES: &str = "a connection, which carries messages,";
/// What is wrong with the recipe of an object.
const OBJECT: &str = "it carries an object, which takes a session; a connection carries messages: `fixed_size` instead \
                      of `object`, with `transport_driver` (first) and `seal` (docs/recipes.md). Files go by `haul cp`, \
                      a stream of bytes by `haul pipe`, `ByteWriter` and `ByteReader`";

/// What a server asks of the recipe that a client brings.
#[derive(derive_more::Debug)]
#[debug("Terms")]
pub struct Terms {
    /// Holds the policy, which therefore goes with every stack and its later changes.
    registry: Arc<Registry>,
    /// Stacks of equal recipes share what is equal.
    known: Mutex<Vec<Weak<CompiledStack>>>,
}

impl Terms {
    /// Takes every recipe that this registry can build.
    pub fn new(registry: Arc<Registry>) -> Self {
        Self { registry, known: Mutex::default() }
    }

    /// Takes only recipes that `permit` does not object to, when a client comes and whenever the recipe of a
    /// connection is to change; the client is told why.
    #[must_use]
    pub fn permitting(
        mut self,
        permit: impl Fn(&Recipe) -> Result<(), String> + Send + Sync + 'static,
    ) -> Self {
        self.registry = Arc::new(Registry::clone(&self.registry).permitting(permit));
        self
    }

    /// Whether the recipe of a client's session is permitted. One that cannot be used passes: the session refuses it when
    /// it begins, and says what is wrong.
    ///
    /// # Errors
    /// Why not.
    pub fn check(&self, incoming: &Incoming) -> Result<(), Fault> {
        let Ok(recipe) = &incoming.recipe else { return Ok(()) };
        self.registry.permits(recipe).map_err(|error| refusal(&error))
    }

    /// Checks a client's recipe, and the versions of its micro-protocols.
    fn agree(
        &self,
        recipe: &str,
        versions: &[(String, u16)],
        cipher: Cipher,
    ) -> Result<Arc<CompiledStack>, RecipeError> {
        let recipe = Recipe::parse(recipe)?;
        self.registry.check_versions(versions)?;
        self.registry.permits(&recipe)?;
        let mut known = lock(&self.known);
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

/// Checks a recipe as any other, and that its packets can be told apart.
pub(super) fn compile(
    registry: &Arc<Registry>,
    recipe: &Recipe,
    cipher: Cipher,
) -> Result<Arc<CompiledStack>, RecipeError> {
    if recipe.has("object") {
        return Err(RecipeError::Unbuildable { protocol: recipe.name.clone(), message: OBJECT.to_owned() });
    }
    if let Some(part) = NEEDED.into_iter().find(|part| !recipe.has(part)) {
        let alternatives =
            format!("`{part}`: its packets have to say whose they are, and prove it (docs/recipes.md)");
        return Err(RecipeError::Missing { protocol: MESSAGES.to_owned(), alternatives });
    }
    let compiled = caught(|| registry.compile(recipe, tag_len(cipher)))
        .unwrap_or_else(|message| Err(panicked(recipe, &message)))?;
    let mut attributes = compiled.layout().attributes().iter();
    if attributes.any(|a| a.name == "identity" && a.clear && usize::from(a.offset) == IDENTITY_AT) {
        return Ok(compiled);
    }
    let message = "it has to come before all others with clear attributes".to_owned();
    Err(RecipeError::Unbuildable { protocol: NEEDED[0].to_owned(), message })
}

impl Incoming {
    /// Agrees on the recipe of a client that wants connections, or refuses it, and closes the control channel.
    /// [`Endpoint::poll_accept`](crate::Endpoint::poll_accept) gives its connections.
    ///
    /// # Errors
    /// Why it was refused; how the control channel failed.
    ///
    /// # Panics
    /// If the request is another one.
    pub fn agree(self, terms: &Terms) -> Result<(), EngineError> {
        let Request::Connect { recipe, versions } = self.request() else {
            panic!("the client does not want connections");
        };
        let cipher = self.cipher();
        let compiled = match terms.agree(recipe, versions, cipher) {
            Ok(compiled) => compiled,
            Err(error) => return Err(self.refuse_because(refusal(&error))),
        };
        let accept = self.answer();
        let (identity, round_trip) = (accept.session, self.session.round_trip);
        let secret = self.secret.clone();
        let resumption =
            ResumptionState { role: Role::Server, identity, secret, cipher, compiled, round_trip };
        let shared = self.port.upgrade().ok_or(EngineError::Closed)?;
        let entry = Entry::new(resumption, shared.clock.now(), Some(self.peer().ip().to_canonical()));
        let added = lock(&shared.table).insert(entry);
        if let Err(reason) = added {
            return Err(self.refuse_because(not_added(reason)));
        }
        self.session.control.send(ControlMessage::Accept(accept))?;
        // It has been agreed on whether or not the close leaves.
        let _ = self.session.control.send_now(&ControlMessage::Bye);
        Ok(())
    }
}

fn not_added(reason: NotAdded) -> Fault {
    let (message, hint) = match reason {
        NotAdded::Taken => ("the identity is taken", "connect again"),
        NotAdded::Full => ("the server has no room for another client", "connect again in a while"),
    };
    Fault::new(FaultCode::Busy, message, hint)
}
