//! The built program on the loopback interface, without privileges.

#![expect(clippy::unwrap_used, reason = "a panic fails the test")]

#[cfg(feature = "faults")]
mod connection_lost;
mod ctl;
mod descriptors;
mod diagnosis;
mod doctor;
mod hard_trees;
mod leftovers;
#[cfg(feature = "faults")]
mod losses;
mod machines;
mod models;
mod overlap;
mod pipes;
mod program;
mod receive_policy;
mod restricted;
mod resumes;
mod secrets;
mod selection;
mod serving;
mod shares;
mod signals;
mod support;
mod terminal;
