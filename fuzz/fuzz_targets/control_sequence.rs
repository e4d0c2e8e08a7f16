//! Sequences of control messages on a control channel.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    haul_proto::check::control_sequence(bytes);
});
