//! Journals of receivers, as raw bytes and as records with valid checksums.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    haul_mover::check::journal(bytes);
});
