//! Feedback bodies: decoded, and encoded again.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    haul_wire::check::feedback(bytes);
});
