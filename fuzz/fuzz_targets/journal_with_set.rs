//! A receiving job that finds a journal, and a set that may fit it.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let directory = tempfile::tempdir().expect("there is room for a directory");
    haul_mover::check::journal_with_set(directory.path(), bytes);
});
