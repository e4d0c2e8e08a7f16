//! Feedback with its blocks, read and written again.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    haul_wire::check::feedback(bytes);
});
