//! Bodies of HELLO, HELLO_ACK and PROBE packets.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    haul_wire::check::hello(bytes);
});
