//! Journals of receivers, whole and as records with right checks.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    haul_mover::check::journal(bytes);
});
