//! Headers of packets: the common one, and that of a HELLO.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    haul_wire::check::packet_headers(bytes);
});
