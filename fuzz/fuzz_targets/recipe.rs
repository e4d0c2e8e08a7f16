//! Recipe texts, parsed and compiled by the registry.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    haul_proto::check::recipe(bytes);
});
