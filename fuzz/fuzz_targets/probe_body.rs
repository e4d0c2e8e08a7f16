//! Bodies of PROBE packets.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    haul_wire::check::probe_body(bytes);
});
