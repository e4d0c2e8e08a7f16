//! What every recipe promises, for recipes made at random from the registry; and the tables about recipes in the
//! documentation, which are made from the recipes and the registry.

#![expect(clippy::unwrap_used, reason = "a test ends where something unexpected happens")]

mod channel;
mod contradictions;
mod docs;
mod generator;
mod promises;
mod together;
