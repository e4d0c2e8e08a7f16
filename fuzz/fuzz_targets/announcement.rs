//! Output of a login shell and of `haul` behind it, as received over ssh.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    haul_cli::check::announcement(bytes);
});
