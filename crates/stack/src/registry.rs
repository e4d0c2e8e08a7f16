//! The registry of micro-protocols, built-in and user-defined, and what they are built from.

use std::any::Any;
use std::fmt;
use std::sync::Arc;

use haul_base::{Span, Time};

use crate::context::Ends;
use crate::protect::{Open, Seal};
use crate::protocol::{MicroProtocol, caught};
use crate::recipe::{Configuration, ParameterSpec, Part, Recipe, RecipeError};

/// What one end of a session provides to its stack.
#[derive(Debug)]
pub struct Setup {
    /// Start time of the stack.
    pub now: Time,
    /// Whether this end opened the session.
    pub initiator: bool,
    /// Identifies the session in packets, for recipes that carry it.
    pub identity: u32,
    /// The keys. `seal` in the recipe takes them.
    pub keys: Option<(Box<dyn Seal>, Box<dyn Open>)>,
    /// Number of the first packet; lower ones may have been used during the handshake.
    pub first_pn: u64,
    /// Datagram size known to pass, in UDP payload bytes.
    pub datagram: u16,
    /// Size that probably passes, because it did in the other direction.
    pub likely_datagram: u16,
    /// Largest datagram size that may be probed.
    pub max_datagram: u16,
    /// Initial estimate of the round-trip time.
    pub initial_rtt: Span,
    /// Maximum bytes of messages queued for sending.
    pub queue_bytes: usize,
    /// The user's ends.
    pub ends: Ends,
    /// Values for particular micro-protocols, of this recipe or a later one; see [`Setup::provide`].
    pub provided: Vec<Box<dyn Any + Send>>,
}

impl Setup {
    /// Creates a set-up with default values; the fields are public.
    pub fn new(now: Time) -> Self {
        Self {
            now,
            initiator: true,
            identity: 0,
            keys: None,
            first_pn: 0,
            datagram: 1_200,
            likely_datagram: 1_200,
            max_datagram: 8_972,
            initial_rtt: Span::from_millis(100),
            queue_bytes: 4 << 20,
            ends: Ends::default(),
            provided: Vec::new(),
        }
    }

    /// Provides a value that a recipe cannot hold, for the micro-protocol that takes this type with
    /// [`Setup::get`] or [`Setup::take`].
    #[must_use]
    pub fn provide<T: Any + Send>(mut self, value: T) -> Self {
        self.provided.push(Box::new(value));
        self
    }

    /// Returns a copy of the value of this type, if one was provided; for builders of micro-protocols.
    pub fn get<T: Any + Clone>(&self) -> Option<T> {
        self.provided.iter().find_map(|value| value.downcast_ref()).cloned()
    }

    /// Takes the value of this type, if one was provided and not yet taken; for builders of micro-protocols.
    pub fn take<T: Any + Send>(&mut self) -> Option<T> {
        let index = self.provided.iter().position(|value| value.is::<T>())?;
        self.provided.swap_remove(index).downcast().ok().map(|value| *value)
    }
}

/// Builds a micro-protocol from its parameters, all of which are explicit. The error message says what is wrong with the parameters or the set-up.
pub type Build = fn(&Part, &mut Setup) -> Result<Box<dyn MicroProtocol>, String>;

/// Checks the parameters of a micro-protocol against those of the others in the recipe. An error names the
/// parameter and describes what is allowed instead of its value.
pub type Compare = fn(&Part, &Recipe) -> Result<(), (&'static str, String)>;

/// Returns additional parameters that a micro-protocol accepts depending on its own, such as those of the
/// control law that it runs.
pub type Further = fn(&Part) -> &'static [ParameterSpec];

/// One entry of the registry.
#[derive(Clone, Debug)]
pub struct Registration {
    /// Name in recipes.
    pub name: &'static str,
    /// Version, changed whenever two versions are incompatible.
    pub version: u16,
    /// One-line description for users.
    pub summary: &'static str,
    /// Parameters.
    pub parameters: &'static [ParameterSpec],
    /// Additional parameters, depending on those given.
    pub further: Further,
    /// Required micro-protocols: at least one of each list must be in the recipe.
    pub needs: &'static [&'static [&'static str]],
    /// Micro-protocols that must not be in the recipe, each with the reason.
    pub conflicts: &'static [(&'static str, &'static str)],
    /// Parameters that cannot change while a stack runs, not even with other micro-protocols.
    pub fixed: &'static [&'static str],
    /// Bytes of its clear attributes in every packet.
    pub clear_bytes: u16,
    /// Checks its parameters against those of others.
    pub compare: Compare,
    /// Builds the micro-protocol.
    pub build: Build,
}

impl Registration {
    /// Creates an entry for a micro-protocol with the parameters of `C`, without needs or conflicts.
    pub const fn of<C: Configuration>(version: u16, summary: &'static str, build: Build) -> Self {
        Self { parameters: C::PARAMETERS, ..Self::new(C::NAME, version, summary, build) }
    }

    /// Creates an entry for a micro-protocol without parameters, needs or conflicts.
    pub const fn new(name: &'static str, version: u16, summary: &'static str, build: Build) -> Self {
        Self {
            name,
            version,
            summary,
            parameters: &[],
            further: |_| &[],
            needs: &[],
            conflicts: &[],
            fixed: &[],
            clear_bytes: 0,
            compare: |_, _| Ok(()),
            build,
        }
    }

    /// Checks that no fixed parameter differs.
    pub(crate) fn check_fixed(&self, old: &Part, new: &Part) -> Result<(), RecipeError> {
        let value = |part: &Part, spec: &ParameterSpec| {
            part.get(spec.name).cloned().unwrap_or_else(|| spec.default_value())
        };
        let mut fixed = self.parameters.iter().filter(|spec| self.fixed.contains(&spec.name));
        let Some(changed) = fixed.find(|spec| value(old, spec) != value(new, spec)) else {
            return Ok(());
        };
        let message = format!("`{}` cannot change during a session", changed.name);
        Err(RecipeError::Unbuildable { protocol: self.name.to_owned(), message })
    }

    pub(crate) fn is_further(&self, parameter: &str) -> bool {
        !self.parameters.iter().any(|spec| spec.name == parameter)
    }

    /// Returns the specifications of all parameters, including those that depend on the ones given.
    pub fn specs(&self, part: &Part) -> Vec<ParameterSpec> {
        [self.parameters, (self.further)(part)].concat()
    }

    /// Checks the parameters against those of others.
    pub(crate) fn compare(&self, part: &Part, recipe: &Recipe) -> Result<(), RecipeError> {
        (self.compare)(part, recipe).map_err(|(parameter, allowed)| {
            let value = part.get(parameter).map(ToString::to_string);
            part.wrong(parameter, &value.unwrap_or_default(), allowed)
        })
    }
}

/// Returns an error that says why a recipe must not run at this end.
type Permit = dyn Fn(&Recipe) -> Result<(), String> + Send + Sync;

/// Decides which recipes may run at this end. Asked for each recipe checked here: that of a new stack and
/// that of every change of a running one, whichever end requests it.
#[derive(Clone, Default)]
struct Policy(Option<Arc<Permit>>);

impl Policy {
    fn ask(&self, recipe: &Recipe) -> Result<(), RecipeError> {
        let Some(permit) = &self.0 else { return Ok(()) };
        caught(|| permit(recipe)).map_err(RecipeError::PolicyPanicked)?.map_err(RecipeError::NotPermitted)
    }
}

impl fmt::Debug for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "Policy" } else { "Everything" })
    }
}

/// All micro-protocols that recipes can name, and the policy of permitted recipes.
#[derive(Clone, Debug, Default)]
pub struct Registry {
    entries: Vec<Arc<Registration>>,
    policy: Policy,
}

impl Registry {
    /// Creates a registry without entries.
    pub fn empty() -> Self {
        Self::default()
    }

    /// Adds a micro-protocol; replaces one of the same name.
    pub fn register(&mut self, registration: Registration) {
        self.entries.retain(|known| known.name != registration.name);
        self.entries.push(Arc::new(registration));
    }

    /// Restricts the registry to recipes that `permit` accepts, from a stack's first one to every change by
    /// either end. Replaces an earlier restriction.
    #[must_use]
    pub fn permitting(self, permit: impl Fn(&Recipe) -> Result<(), String> + Send + Sync + 'static) -> Self {
        Self { policy: Policy(Some(Arc::new(permit))), ..self }
    }

    /// Checks whether a recipe may run here, whether or not it builds.
    ///
    /// # Errors
    /// [`RecipeError::NotPermitted`]; [`RecipeError::PolicyPanicked`].
    pub fn permits(&self, recipe: &Recipe) -> Result<(), RecipeError> {
        self.policy.ask(recipe)
    }

    /// All micro-protocols, in the order of registration.
    pub fn iter(&self) -> impl Iterator<Item = &Registration> {
        self.entries.iter().map(Arc::as_ref)
    }

    /// Returns the micro-protocol of this name.
    pub fn get(&self, name: &str) -> Option<&Registration> {
        self.iter().find(|known| known.name == name)
    }

    pub(crate) fn find(&self, name: &str) -> Result<&Arc<Registration>, RecipeError> {
        self.entries.iter().find(|known| known.name == name).ok_or_else(|| {
            let known = self.entries.iter().map(|e| e.name).collect::<Vec<_>>().join(", ");
            let hint = haul_base::suggestion(name, self.iter().map(|e| e.name));
            RecipeError::Unknown { name: name.to_owned(), hint, known }
        })
    }

    /// Returns the micro-protocols of a recipe with all their parameters. Checks permission, names,
    /// parameters, needs, conflicts.
    pub(crate) fn parts_of(&self, recipe: &Recipe) -> Result<Vec<(Arc<Registration>, Part)>, RecipeError> {
        self.permits(recipe)?;
        if recipe.parts.is_empty() {
            return Err(RecipeError::Empty);
        }
        let mut parts = Vec::with_capacity(recipe.parts.len());
        for (index, part) in recipe.parts.iter().enumerate() {
            if recipe.parts[..index].iter().any(|known| known.name == part.name) {
                return Err(RecipeError::Twice(part.name.to_owned()));
            }
            let registration = self.find(part.name)?;
            parts.push((registration.clone(), part.complete(&registration.specs(part))?));
        }
        for (registration, _) in &parts {
            check_company(registration, recipe)?;
        }
        Ok(parts)
    }

    /// Name and version of each micro-protocol of a recipe, for the peer to compare.
    pub fn versions(&self, recipe: &Recipe) -> Vec<(String, u16)> {
        let version = |part: &Part| self.get(part.name).map(|known| (part.name.to_owned(), known.version));
        recipe.parts.iter().filter_map(version).collect()
    }

    /// Compares the peer's versions with those here.
    ///
    /// # Errors
    /// For the first version that differs, or the first unknown micro-protocol.
    pub fn check_versions(&self, theirs: &[(String, u16)]) -> Result<(), RecipeError> {
        for (name, theirs) in theirs {
            let ours = self.find(name)?.version;
            if ours != *theirs {
                return Err(RecipeError::Version { protocol: name.clone(), ours, theirs: *theirs });
            }
        }
        Ok(())
    }
}

fn check_company(registration: &Registration, recipe: &Recipe) -> Result<(), RecipeError> {
    for alternatives in registration.needs {
        if !alternatives.iter().any(|name| recipe.has(name)) {
            let protocol = registration.name.to_owned();
            return Err(RecipeError::Missing { protocol, alternatives: one_of(alternatives) });
        }
    }
    for (other, reason) in registration.conflicts {
        if recipe.has(other) {
            let (first, second) = (registration.name.to_owned(), (*other).to_owned());
            return Err(RecipeError::Conflict { first, second, reason: (*reason).to_owned() });
        }
    }
    Ok(())
}

/// "a", "a or b", "a, b or c".
fn one_of(names: &[&str]) -> String {
    match names {
        [] => String::new(),
        [only] => (*only).to_owned(),
        [init @ .., last] => format!("{} or {last}", init.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn alternatives_are_listed_in_prose() {
        assert_eq!(
            one_of(&["positive_ack", "negative_ack", "bitmap_ack"]),
            "positive_ack, negative_ack or bitmap_ack"
        );
        assert_eq!(one_of(&["a"]), "a");
    }
}
