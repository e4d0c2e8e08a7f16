//! Bodies of data packets, complete and partial.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    haul_wire::check::data_body(bytes);
    haul_wire::check::part_body(bytes);
});
