//! Runs the built program between network namespaces; docs/testing.md lists these tests under "End to end".
//!
//! Everything except copies over ssh needs root; other tests are skipped with a message without it.
//! `HAUL_E2E=required` turns a skip into a failure.

#![expect(clippy::unwrap_used, reason = "a panic fails the test")]

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
