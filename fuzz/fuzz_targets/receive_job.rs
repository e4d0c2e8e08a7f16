//! A receiving job whose peer sends arbitrary messages.
#![no_main]

#[path = "../../crates/mover/tests/mover/check/mod.rs"]
#[expect(dead_code, reason = "the tests of the mover use more of it")]
mod check;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let directory = tempfile::tempdir().expect("there is room for a directory");
    check::receive_job(directory.path(), bytes);
});
