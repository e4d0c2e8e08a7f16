//! Compiled stacks: checked recipes, shared by all stacks of one recipe.

use std::sync::Arc;

use haul_base::Time;

use crate::declaration::{Clash, Declaration, Resolution, SharedValues, Tables};
use crate::protect::{Open, Seal, Unauthentic};
use crate::protocol::{MicroProtocol, checked};
use crate::recipe::{Part, Recipe, RecipeError};
use crate::registry::{Registration, Registry, Setup};

/// A checked recipe, ready to create stacks.
#[derive(Debug)]
pub struct CompiledStack {
    pub(crate) recipe: Recipe,
    pub(crate) registry: Arc<Registry>,
    pub(crate) parts: Vec<(Arc<Registration>, Part)>,
    pub(crate) tables: Tables,
    pub(crate) tag_len: usize,
}

/// Placeholder for keys while a recipe is checked.
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

/// The micro-protocols of one stack and their shared values.
pub(crate) type Parts = (Vec<Option<Box<dyn MicroProtocol>>>, SharedValues);

impl CompiledStack {
    pub(crate) fn new(
        recipe: Recipe,
        registry: Arc<Registry>,
        parts: Vec<(Arc<Registration>, Part)>,
        tag_len: usize,
    ) -> Result<Self, RecipeError> {
        let mut compiled = Self { recipe, registry, parts, tables: Tables::default(), tag_len };
        let mut setup = Setup::new(Time::ZERO);
        setup.keys = Some((Box::new(Placeholder(tag_len)), Box::new(Placeholder(tag_len))));
        let mut shared = SharedValues::default();
        let mut prototypes = compiled.build(&mut setup)?;
        let placed = compiled.place(&mut prototypes, &mut shared);
        let dropped = compiled.drop_each(prototypes);
        let tables = placed?;
        dropped?;
        if let Some(clash) = tables.clashes.first() {
            return Err(RecipeError::Clash(clash.clone()));
        }
        compiled.tables = tables;
        Ok(compiled)
    }

    /// The recipe that this stack was compiled from.
    pub fn recipe(&self) -> &Recipe {
        &self.recipe
    }

    /// The packet format.
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
        checked(registration.name, || (registration.build)(parameters, setup))?
            .map_err(|message| RecipeError::Unbuildable { protocol: registration.name.to_owned(), message })
    }

    fn build(&self, setup: &mut Setup) -> Result<Vec<Option<Box<dyn MicroProtocol>>>, RecipeError> {
        // Exact capacity: there may be many thousand stacks.
        let mut protocols = Vec::with_capacity(self.parts.len());
        for index in 0..self.parts.len() {
            protocols.push(Some(self.build_one(index, setup)?));
        }
        Ok(protocols)
    }

    /// Drops each micro-protocol separately: two panics at once would abort the process. Returns the first
    /// error.
    fn drop_each(&self, protocols: Vec<Option<Box<dyn MicroProtocol>>>) -> Result<(), RecipeError> {
        let named = self.parts.iter().zip(protocols);
        let dropped = named.map(|((part, _), protocol)| checked(part.name, || drop(protocol)));
        dropped.fold(Ok(()), Result::and)
    }

    /// Lets every micro-protocol declare and bind; returns the resulting tables.
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
                checked(self.parts[owner].0.name, || protocol.declare(&mut declaration))?;
            }
        }
        for (owner, protocol) in protocols.iter_mut().enumerate() {
            if let Some(protocol) = protocol {
                let mut resolution = Resolution { owner: owner as u8, tables: &mut tables };
                checked(self.parts[owner].0.name, || protocol.bind(&mut resolution))?;
            }
        }
        tables.finish();
        Ok(tables)
    }

    /// Creates the parts of a new stack.
    pub(crate) fn instantiate(&self, setup: &mut Setup) -> Result<Parts, RecipeError> {
        let mut shared = SharedValues::default();
        let mut protocols = self.build(setup)?;
        self.place_as_checked(&mut protocols, &mut shared)?;
        shared.values.shrink_to_fit();
        Ok((protocols, shared))
    }

    /// As [`CompiledStack::place`]. Returns an error if a micro-protocol does not declare what it did when
    /// the recipe was checked.
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

/// Datagram size in which every recipe's headers must leave space for data.
const SMALLEST_DATAGRAM: usize = 1_200;
/// Payload bytes that headers must leave in the smallest datagram.
const SMALLEST_PAYLOAD: usize = 64;

impl Registry {
    /// Checks a recipe: permission, names, parameters, requirements, conflicts, headers. `tag_len` is the
    /// length of the packets' tag.
    ///
    /// # Errors
    /// What is wrong or missing, worded for the author of the recipe.
    pub fn compile(
        self: &Arc<Self>,
        recipe: &Recipe,
        tag_len: usize,
    ) -> Result<Arc<CompiledStack>, RecipeError> {
        let parts = self.parts_of(recipe)?;
        let compiled = CompiledStack::new(recipe.clone(), self.clone(), parts, tag_len)?;
        let parts = compiled.parts.iter().map(|(_, part)| part.clone()).collect();
        let complete = Recipe { parts, ..recipe.clone() };
        compiled.parts.iter().try_for_each(|(registration, part)| registration.compare(part, &complete))?;
        let header = compiled.layout().data_overhead();
        if header + SMALLEST_PAYLOAD > SMALLEST_DATAGRAM {
            return Err(RecipeError::Headers { header, datagram: SMALLEST_DATAGRAM });
        }
        Ok(Arc::new(compiled))
    }
}
