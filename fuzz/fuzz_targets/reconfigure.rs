//! Negotiations of a new recipe, with a stack.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    haul_proto::check::reconfigure(bytes);
});
