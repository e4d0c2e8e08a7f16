//! Initial headers, control frames and connection IDs.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    haul_wire::check::connection_packets(bytes);
});
