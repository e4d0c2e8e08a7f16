//! Which micro-protocols there are, the project's own and the user's, and what they are made from.

use std::any::Any;
use std::fmt;
use std::sync::Arc;

use haul_base::{Span, Time};

use crate::context::Ends;
use crate::protect::{Open, Seal};
use crate::protocol::{MicroProtocol, caught};
use crate::recipe::{Configuration, ParameterSpec, Parameters, Part, Recipe, RecipeError, place};

/// What one end of a session brings to its stack.
#[derive(Debug)]
pub struct Setup {
    /// When the stack starts.
    pub now: Time,
    /// Whether this end opened the session.
    pub initiator: bool,
    /// Names the session in packets, for the recipes that carry it.
    pub identity: u32,
    /// The keys. `seal` in the recipe takes them.
    pub keys: Option<(Box<dyn Seal>, Box<dyn Open>)>,
    /// Number of the first packet; lower ones may have been used during set-up.
    pub first_pn: u64,
    /// Datagram size that is known to pass, UDP payload bytes.
    pub datagram: u16,
    /// Size that probably passes, because it did in the other direction.
    pub likely_datagram: u16,
    /// Largest datagram that may ever be tried.
    pub max_datagram: u16,
    /// First guess of the round-trip time.
    pub initial_rtt: Span,
    /// Bytes of messages that may wait to be sent.
    pub queue_bytes: usize,
    /// The user's ends.
    pub ends: Ends,
    /// What single micro-protocols take for themselves; see [`Setup::provide`].
    pub provided: Vec<Box<dyn Any + Send>>,
}

impl Setup {
    /// A set-up with nothing but a start; the fields are public.
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

    /// Brings a value that a recipe cannot hold, for the micro-protocol that takes this type with [`Setup::take`].
    #[must_use]
    pub fn provide<T: Any + Send>(mut self, value: T) -> Self {
        self.provided.push(Box::new(value));
        self
    }

    /// Takes the value of this type, if one was provided and not taken before; for builders of micro-protocols.
    pub fn take<T: Any + Send>(&mut self) -> Option<T> {
        let index = self.provided.iter().position(|value| value.is::<T>())?;
        self.provided.swap_remove(index).downcast().ok().map(|value| *value)
    }
}

/// How a micro-protocol is made. The message of an error says what is wrong with the parameters or the set-up.
pub type Build = fn(&Parameters, &mut Setup) -> Result<Box<dyn MicroProtocol>, String>;

/// Compares the parameters of a micro-protocol with those of its peers. An error names the parameter and says what is
/// wanted instead of its value.
pub type Compare = fn(&Parameters, &PeerProtocols<'_>) -> Result<(), (&'static str, String)>;

/// Parameters that a micro-protocol takes besides its own because of what it is given: those of the control law that it
/// is to run, say.
pub type Further = fn(&Part) -> &'static [ParameterSpec];

/// The micro-protocols of a recipe, for [`Compare`].
#[derive(Clone, Copy, Debug)]
pub struct PeerProtocols<'p> {
    pub(crate) parts: &'p [(Arc<Registration>, Parameters)],
    pub(crate) recipe: &'p Recipe,
}

impl PeerProtocols<'_> {
    /// Whether the recipe has this micro-protocol.
    pub fn has(&self, name: &str) -> bool {
        self.find(name).is_some()
    }

    /// The parameters of a micro-protocol, if the recipe has it.
    pub fn get<C: Configuration>(&self) -> Option<C> {
        self.find(C::NAME).map(|(_, parameters)| parameters.read())
    }

    fn find(&self, name: &str) -> Option<&(Arc<Registration>, Parameters)> {
        self.parts.iter().find(|(known, _)| known.name == name)
    }

    /// A parameter as it stands in the recipe, or its default; empty if there is no such parameter.
    fn text(&self, name: &str, parameter: &str) -> &str {
        let specs = self.find(name).map_or(&[][..], |(known, _)| known.parameters);
        let default = || specs.iter().find(|spec| spec.name == parameter).map(|spec| spec.default);
        self.recipe.get(name, parameter).or_else(default).unwrap_or_default()
    }

    pub(crate) fn agrees(&self) -> Result<(), RecipeError> {
        for (registration, parameters) in self.parts {
            let protocol = registration.name;
            (registration.compare)(parameters, self).map_err(|(parameter, allowed)| RecipeError::Value {
                place: place(&self.recipe.source, protocol, Some(parameter)),
                protocol: protocol.to_owned(),
                parameter: parameter.to_owned(),
                value: self.text(protocol, parameter).to_owned(),
                allowed,
            })?;
        }
        Ok(())
    }
}

/// One line of the registry.
#[derive(Clone, Debug)]
pub struct Registration {
    /// Its name in recipes.
    pub name: &'static str,
    /// Changes whenever two versions could not talk to each other.
    pub version: u16,
    /// A line for people.
    pub summary: &'static str,
    /// What it can be told.
    pub parameters: &'static [ParameterSpec],
    /// What else, depending on what it is told.
    pub further: Further,
    /// Of each list at least one must be in the recipe too.
    pub needs: &'static [&'static [&'static str]],
    /// None of these may be in the recipe, and why.
    pub conflicts: &'static [(&'static str, &'static str)],
    /// Bytes of its clear attributes in every packet.
    pub clear_bytes: u16,
    /// Which of its parameters contradict those of others.
    pub compare: Compare,
    /// Makes one.
    pub build: Build,
}

impl Registration {
    /// A micro-protocol with the parameters of `C`, without needs or conflicts.
    pub const fn of<C: Configuration>(version: u16, summary: &'static str, build: Build) -> Self {
        Self { parameters: C::PARAMETERS, ..Self::new(C::NAME, version, summary, build) }
    }

    /// A micro-protocol without parameters, needs or conflicts.
    pub const fn new(name: &'static str, version: u16, summary: &'static str, build: Build) -> Self {
        Self {
            name,
            version,
            summary,
            parameters: &[],
            further: |_| &[],
            needs: &[],
            conflicts: &[],
            clear_bytes: 0,
            compare: |_, _| Ok(()),
            build,
        }
    }
}

/// Says why a recipe must not run at this end.
type Permit = dyn Fn(&Recipe) -> Result<(), String> + Send + Sync;

/// Which recipes may run at this end: asked for each that is checked here, that of a new stack and that of every change
/// of a running one, whichever end wants it.
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

/// All micro-protocols that recipes can name, and which recipes may run.
#[derive(Clone, Debug, Default)]
pub struct Registry {
    entries: Vec<Arc<Registration>>,
    policy: Policy,
}

impl Registry {
    /// A registry without entries.
    pub fn empty() -> Self {
        Self::default()
    }

    /// Adds a micro-protocol; a name that is there already is replaced.
    pub fn register(&mut self, registration: Registration) {
        self.entries.retain(|known| known.name != registration.name);
        self.entries.push(Arc::new(registration));
    }

    /// The same, where only recipes run that `permit` does not object to, from the first one of a stack to the last
    /// that either end changes it to. It takes the place of an earlier one.
    #[must_use]
    pub fn permitting(self, permit: impl Fn(&Recipe) -> Result<(), String> + Send + Sync + 'static) -> Self {
        Self { policy: Policy(Some(Arc::new(permit))), ..self }
    }

    /// Whether a recipe may run here, whether or not it builds.
    ///
    /// # Errors
    /// [`RecipeError::NotPermitted`]; [`RecipeError::PolicyPanicked`].
    pub fn permits(&self, recipe: &Recipe) -> Result<(), RecipeError> {
        self.policy.ask(recipe)
    }

    /// All of them, in the order in which they were registered.
    pub fn iter(&self) -> impl Iterator<Item = &Registration> {
        self.entries.iter().map(Arc::as_ref)
    }

    /// The one with this name.
    pub fn get(&self, name: &str) -> Option<&Registration> {
        self.iter().find(|known| known.name == name)
    }

    fn find(&self, name: &str, source: &str) -> Result<Arc<Registration>, RecipeError> {
        let found = self.entries.iter().find(|known| known.name == name);
        found.cloned().ok_or_else(|| {
            let known = self.entries.iter().map(|e| e.name).collect::<Vec<_>>().join(", ");
            let hint = haul_base::suggestion(name, self.iter().map(|e| e.name));
            let place = place(source, name, None);
            RecipeError::Unknown { place, name: name.to_owned(), hint, known }
        })
    }

    /// The micro-protocols of a recipe with their parameters: checks permission, names, parameters, needs, conflicts.
    pub(crate) fn parts_of(
        &self,
        recipe: &Recipe,
    ) -> Result<Vec<(Arc<Registration>, Parameters)>, RecipeError> {
        self.permits(recipe)?;
        if recipe.parts.is_empty() {
            return Err(RecipeError::Empty);
        }
        let mut parts = Vec::with_capacity(recipe.parts.len());
        for (index, part) in recipe.parts.iter().enumerate() {
            if recipe.parts[..index].iter().any(|known| known.name == part.name) {
                return Err(RecipeError::Twice(part.name.clone()));
            }
            let registration = self.find(&part.name, &recipe.source)?;
            let further = (registration.further)(part);
            let specs = [registration.parameters, further].concat();
            let parameters = Parameters::check(part, &specs, &recipe.source)?;
            parts.push((registration, parameters));
        }
        for (registration, _) in &parts {
            check_company(registration, recipe)?;
        }
        Ok(parts)
    }

    /// Name and version of each micro-protocol of a recipe, for the other side to compare.
    pub fn versions(&self, recipe: &Recipe) -> Vec<(String, u16)> {
        let version = |part: &Part| self.get(&part.name).map(|known| (part.name.clone(), known.version));
        recipe.parts.iter().filter_map(version).collect()
    }

    /// Compares the other side's versions with those here.
    ///
    /// # Errors
    /// The first that differs.
    pub fn check_versions(&self, theirs: &[(String, u16)]) -> Result<(), RecipeError> {
        for (name, theirs) in theirs {
            let ours = self.find(name, "")?.version;
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
    fn alternatives_read_well() {
        assert_eq!(
            one_of(&["positive_ack", "negative_ack", "bitmap_ack"]),
            "positive_ack, negative_ack or bitmap_ack"
        );
        assert_eq!(one_of(&["a"]), "a");
    }
}
