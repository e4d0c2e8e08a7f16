//! `haul://` URLs.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    haul_engine::check::url(bytes);
});
