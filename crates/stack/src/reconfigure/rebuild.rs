//! Applying new parameters to a running stack, and rebuilding it from another recipe.

use std::sync::Arc;

use haul_base::Time;

use crate::batch::GENERATION_BIT;
use crate::compiled_stack::CompiledStack;
use crate::recipe::RecipeError;
use crate::registry::Setup;
use crate::stack::Stack;

/// Micro-protocols whose parameters may change, but not their presence: what was sent or received in part
/// would be lost.
pub(super) const CARRIERS: [&str; 2] = ["fixed_size", "object"];

impl Stack {
    /// Applies all new parameters, or none.
    pub(super) fn apply(&mut self, now: Time, new: Arc<CompiledStack>) -> Result<(), RecipeError> {
        let old = std::mem::replace(&mut self.compiled, new);
        let parts = self.compiled.parts.iter().zip(&old.parts);
        let changed: Vec<usize> =
            parts.enumerate().filter(|(_, (new, old))| new.1 != old.1).map(|(owner, _)| owner).collect();
        let result = self.tell_parameters(now, &changed);
        if result.is_err() {
            self.compiled = old;
            // Those that have accepted new parameters get the old ones back, which they can accept too.
            let _ = self.tell_parameters(now, &changed);
        }
        result
    }

    /// Restores previous parameters. If that fails, the session ends, because the peer uses them.
    pub(super) fn restore(&mut self, now: Time, before: Arc<CompiledStack>) {
        if let Err(error) = self.apply(now, before) {
            self.fail_over_recipe(error);
        }
    }

    /// Passes their parameters to these micro-protocols.
    fn tell_parameters(&mut self, now: Time, owners: &[usize]) -> Result<(), RecipeError> {
        let compiled = self.compiled.clone();
        for &owner in owners {
            let parameters = &compiled.parts[owner].1;
            let mut result = Ok(());
            self.context(now).run(owner as u8, |protocol, context| {
                result = protocol.on_parameters(parameters, context);
            });
            let protocol = compiled.parts[owner].0.name.to_owned();
            result.map_err(|message| RecipeError::Unbuildable { protocol, message })?;
        }
        Ok(())
    }

    /// Rebuilds the stack from the new recipe.
    pub(super) fn change_over(&mut self, now: Time, compiled: &Arc<CompiledStack>) -> bool {
        self.core.draining = false;
        match self.rebuild(now, compiled) {
            Ok(()) => true,
            Err(error) => {
                self.fail_over_recipe(error);
                false
            }
        }
    }

    fn fail_over_recipe(&self, error: RecipeError) {
        match error {
            RecipeError::Unbuildable { protocol, message } => self.fail(protocol, message),
            error => self.fail("recipe".to_owned(), error.to_string()),
        }
    }

    fn rebuild(&mut self, now: Time, new: &Arc<CompiledStack>) -> Result<(), RecipeError> {
        let old = std::mem::replace(&mut self.compiled, new.clone());
        let mut old_slots = std::mem::take(&mut self.slots);
        let place = |name: &str| new.names().position(|known| known == name).map(|at| at as u8);
        let moved: Vec<Option<u8>> = old.names().map(place).collect();
        self.core.move_owners(&moved, &|event| event_in(&old, new, event));
        let mut setup = self.running_setup(now);
        let (mut fresh, mut changed) = (Vec::with_capacity(new.parts.len()), Vec::new());
        for (index, (registration, parameters)) in new.parts.iter().enumerate() {
            let before = old.names().position(|known| known == registration.name);
            let is_same = before.is_some_and(|at| old.parts[at].1 == *parameters);
            // A carrier has messages within the old limits to send, and to receive.
            let kept = before.filter(|_| is_same || CARRIERS.contains(&registration.name));
            fresh.push(kept.is_none());
            changed.extend(kept.filter(|_| !is_same).map(|_| index));
            self.slots.push(match kept {
                Some(at) => old_slots[at].take(),
                None => Some(new.build_one(index, &mut setup)?),
            });
        }
        self.core.provided = setup.provided;
        new.place_as_checked(&mut self.slots, &mut self.core.shared)?;
        self.generation ^= GENERATION_BIT;
        self.changes.begin_generation();
        self.start(now, |owner| fresh[usize::from(owner)]);
        self.tell_parameters(now, &changed)
    }

    fn running_setup(&mut self, now: Time) -> Setup {
        let mut setup = Setup::new(now);
        setup.provided = std::mem::take(&mut self.core.provided);
        setup.initiator = self.core.initiator;
        setup.datagram = self.core.path.datagram;
        setup.likely_datagram = self.core.path.datagram;
        setup.initial_rtt = self.core.path.rtt;
        setup
    }
}

/// Returns the new stack's event with the name of an old one.
fn event_in(old: &CompiledStack, new: &CompiledStack, event: u16) -> Option<u16> {
    new.tables.find_event(old.tables.argument_events.get(usize::from(event))?)
}
