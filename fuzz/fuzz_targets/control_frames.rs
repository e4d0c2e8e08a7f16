//! A stream of control frames, in chunks of several sizes.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    haul_wire::check::control_frames(bytes);
});
