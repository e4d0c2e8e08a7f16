//! Packets to the receiver of an object.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    haul_proto::check::bulk_receiver(bytes);
});
