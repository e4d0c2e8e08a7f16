//! Data packets that are parts of others.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    haul_wire::check::part_body(bytes);
});
