//! The built `haul-lab wan` with real sockets on its two sides. Needs root and `/dev/net/tun`; without, each test
//! says SKIPPED and passes, or fails with `HAUL_E2E=required`.

#![expect(clippy::unwrap_used, reason = "a test ends where something unexpected happens")]

mod cleanup;
mod input;
mod support;
mod traffic;
