//! Packets to the sender of an object.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    haul_proto::check::bulk_sender(bytes);
});
