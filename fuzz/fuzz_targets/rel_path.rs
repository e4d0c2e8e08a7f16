//! Paths sent by a peer.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    haul_wire::check::rel_path(bytes);
});
