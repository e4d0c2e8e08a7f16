//! What a login shell and `haul` behind it say over ssh.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    haul_cli::check::announcement(bytes);
});
