//! The built program on the loopback interface and without privileges.

#![expect(clippy::unwrap_used, reason = "a test ends where something unexpected happens")]

mod leftovers;
mod machines;
mod manners;
mod program;
mod selection;
mod shares;
mod signals;
mod support;
