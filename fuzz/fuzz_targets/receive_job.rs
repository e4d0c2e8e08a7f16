//! A receiving job whose peer says anything.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let directory = tempfile::tempdir().expect("there is room for a directory");
    haul_mover::check::receive_job(directory.path(), bytes);
});
