//! Tests of the built `haul-lab wan` with real sockets on its two sides. Need root and `/dev/net/tun`;
//! without them each test prints SKIPPED and passes, or fails with `HAUL_E2E=required`.

#![expect(clippy::unwrap_used, reason = "a panic fails the test")]

mod cleanup;
mod input;
mod support;
mod traffic;
