//! Guarantees of every recipe, tested with recipes generated from the registry; and the tables in the
//! documentation that are generated from the recipes and the registry.

#![expect(clippy::unwrap_used, reason = "a panic fails the test")]

mod changes;
mod channel;
mod coalesced;
#[path = "../common/mod.rs"]
#[expect(dead_code, reason = "the path between sender and receiver is not used here")]
mod common;
mod configurations;
mod connections;
mod contradictions;
mod docs;
mod false_messages;
mod generator;
mod objects;
mod promises;
