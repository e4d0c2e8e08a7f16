//! The fields of data packets.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    haul_wire::check::data_body(bytes);
});
