//! Paths that a peer sends.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    haul_wire::check::rel_path(bytes);
});
