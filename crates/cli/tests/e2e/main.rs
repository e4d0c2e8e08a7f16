//! The built program between network namespaces: what docs/testing.md lists under "End to end".
//!
//! Needs root; without it every test says that it is skipped. `HAUL_E2E=required` makes that a failure.

#![expect(clippy::unwrap_used, reason = "a test ends where something unexpected happens")]

mod disks;
mod escapes;
mod interface;
mod interruptions;
mod keys;
mod kinds;
mod memory;
mod outages;
mod pipes;
mod sessions;
mod strangers;
mod support;
mod trees;
