//! The built program between network namespaces: what docs/testing.md lists under "End to end".
//!
//! Needs root but for copies over ssh; without it every other test says that it is skipped. `HAUL_E2E=required` makes that a failure.

#![expect(clippy::unwrap_used, reason = "a test ends where something unexpected happens")]

mod addresses;
mod disks;
mod escapes;
mod folding;
mod interface;
mod interruptions;
mod keys;
mod kills;
mod kinds;
mod many;
mod memory;
mod outages;
mod pipes;
mod sessions;
#[cfg(feature = "faults")]
mod slow;
mod ssh;
mod ssh_failures;
mod strangers;
mod support;
mod third_party;
mod trees;
