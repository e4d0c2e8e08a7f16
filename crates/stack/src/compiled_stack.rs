//! A recipe that has been checked: what all stacks of one recipe share.

use std::any::Any;
use std::sync::Arc;

use haul_base::{Span, Time};

use crate::context::{Ends, SharedValues};
use crate::declaration::{Clash, Declaration, Resolution, Tables};
use crate::guard;
use crate::protect::{Open, Seal, Unauthentic};
use crate::protocol::MicroProtocol;
use crate::recipe::{Parameters, Recipe, RecipeError};
use crate::registry::{Registration, Registry};

/// What one end of a session brings to its stack.
#[derive(Debug)]
pub struct Setup {
    /// When it starts.
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

    /// The value of this type, if one was brought and nobody has taken it; for whoever builds a micro-protocol.
    pub fn take<T: Any + Send>(&mut self) -> Option<T> {
        let index = self.provided.iter().position(|value| value.is::<T>())?;
        self.provided.swap_remove(index).downcast().ok().map(|value| *value)
    }
}

/// A checked recipe, ready to make stacks.
#[derive(Debug)]
pub struct CompiledStack {
    pub(crate) recipe: Recipe,
    pub(crate) registry: Arc<Registry>,
    pub(crate) parts: Vec<(Arc<Registration>, Parameters)>,
    pub(crate) tables: Tables,
    pub(crate) tag_len: usize,
}

/// Stands in for keys while a recipe is checked.
#[derive(Debug)]
struct Placeholder(usize);

impl Seal for Placeholder {
    fn tag_len(&self) -> usize {
        self.0
    }

    fn seal_batch(&mut self, _: &mut [u8], _: usize, _: usize, _: u64) {}
}

impl Open for Placeholder {
    fn open(&mut self, _: &mut [u8], _: usize, _: u64) -> Result<usize, Unauthentic> {
        Err(Unauthentic)
    }
}

/// The micro-protocols of one stack with their shared values.
pub(crate) type Parts = (Vec<Option<Box<dyn MicroProtocol>>>, SharedValues);

impl CompiledStack {
    pub(crate) fn new(
        recipe: Recipe,
        registry: Arc<Registry>,
        parts: Vec<(Arc<Registration>, Parameters)>,
        tag_len: usize,
    ) -> Result<Self, RecipeError> {
        let mut compiled = Self { recipe, registry, parts, tables: Tables::default(), tag_len };
        let mut setup = Setup::new(Time::ZERO);
        setup.keys = Some((Box::new(Placeholder(tag_len)), Box::new(Placeholder(tag_len))));
        let mut shared = SharedValues::default();
        let mut prototypes = compiled.build(&mut setup)?;
        let tables = compiled.place(&mut prototypes, &mut shared)?;
        if let Some(clash) = tables.clashes.first() {
            return Err(RecipeError::Clash(clash.clone()));
        }
        compiled.tables = tables;
        Ok(compiled)
    }

    /// The recipe.
    pub fn recipe(&self) -> &Recipe {
        &self.recipe
    }

    /// How packets look.
    pub fn layout(&self) -> &crate::Layout {
        &self.tables.layout
    }

    /// Names of the micro-protocols, in order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.tables.names.iter().map(String::as_str)
    }

    pub(crate) fn build_one(
        &self,
        index: usize,
        setup: &mut Setup,
    ) -> Result<Box<dyn MicroProtocol>, RecipeError> {
        let (registration, parameters) = &self.parts[index];
        guard::checked(registration.name, || (registration.build)(parameters, setup))?
            .map_err(|message| RecipeError::Unbuildable { protocol: registration.name.to_owned(), message })
    }

    fn build(&self, setup: &mut Setup) -> Result<Vec<Option<Box<dyn MicroProtocol>>>, RecipeError> {
        // Sized beforehand: there may be many thousand stacks.
        let mut protocols = Vec::with_capacity(self.parts.len());
        for index in 0..self.parts.len() {
            protocols.push(Some(self.build_one(index, setup)?));
        }
        Ok(protocols)
    }

    /// Lets every micro-protocol declare and bind; gives the resulting tables.
    pub(crate) fn place(
        &self,
        protocols: &mut [Option<Box<dyn MicroProtocol>>],
        shared: &mut SharedValues,
    ) -> Result<Tables, RecipeError> {
        let names = self.parts.iter().map(|(part, _)| part.name.to_owned()).collect();
        let clear = self.parts.iter().map(|(part, _)| part.clear_bytes).sum();
        let mut tables = Tables::new(names, clear);
        for (owner, protocol) in protocols.iter_mut().enumerate() {
            if let Some(protocol) = protocol {
                let mut declaration = Declaration { owner: owner as u8, tables: &mut tables, shared };
                guard::checked(self.parts[owner].0.name, || protocol.declare(&mut declaration))?;
            }
        }
        for (owner, protocol) in protocols.iter_mut().enumerate() {
            if let Some(protocol) = protocol {
                let mut resolution = Resolution { owner: owner as u8, tables: &mut tables };
                guard::checked(self.parts[owner].0.name, || protocol.bind(&mut resolution))?;
            }
        }
        tables.finish();
        Ok(tables)
    }

    /// The parts of a new stack.
    pub(crate) fn instantiate(&self, setup: &mut Setup) -> Result<Parts, RecipeError> {
        let mut shared = SharedValues::default();
        let mut protocols = self.build(setup)?;
        self.place_as_checked(&mut protocols, &mut shared)?;
        shared.values.shrink_to_fit();
        Ok((protocols, shared))
    }

    /// As [`CompiledStack::place`]; an error if a micro-protocol does not declare what it did when the recipe was checked.
    pub(crate) fn place_as_checked(
        &self,
        protocols: &mut [Option<Box<dyn MicroProtocol>>],
        shared: &mut SharedValues,
    ) -> Result<(), RecipeError> {
        let tables = self.place(protocols, shared)?;
        match tables.clashes.first() {
            Some(clash) => Err(RecipeError::Clash(clash.clone())),
            None if tables != self.tables => Err(RecipeError::Clash(Clash::Changed)),
            None => Ok(()),
        }
    }
}
