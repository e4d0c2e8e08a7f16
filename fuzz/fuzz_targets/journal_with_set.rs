//! A receiving job that finds a journal, followed by a set that may match it.
#![no_main]

#[path = "../../crates/mover/tests/mover/check/mod.rs"]
#[expect(dead_code, reason = "the tests of the mover use more of it")]
mod check;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let directory = tempfile::tempdir().expect("there is room for a directory");
    check::journal_with_set(directory.path(), bytes);
});
