//! Packet headers.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    haul_wire::check::packet_headers(bytes);
});
