//! Sealing and opening packets allocates nothing.

use std::alloc::System;

use haul_engine::{DataKeys, Role};
use haul_proto::{Open, Seal};
use haul_wire::control::Cipher;
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

const PACKET: usize = 1400;
const BATCH: usize = 44;

#[test]
fn batches_are_sealed_and_opened_without_allocation() {
    for cipher in [Cipher::Aes128Gcm, Cipher::Aes256Gcm, Cipher::ChaCha20Poly1305, Cipher::None] {
        let keys = DataKeys::new(cipher, [1; 32], [2; 32]);
        let (mut sealer, mut opener) = (keys.sealer(Role::Client), keys.opener(Role::Server));
        let mut batch = vec![7; PACKET * BATCH];
        let region = Region::new(ALLOCATOR);
        for round in 0..20 {
            let first = round * BATCH as u64;
            sealer.seal_batch(&mut batch, PACKET, 7, first);
            for (pn, packet) in (first..).zip(batch.chunks_mut(PACKET)) {
                opener.open(packet, 7, pn).unwrap();
            }
        }
        let change = region.change();
        assert_eq!((change.allocations, change.reallocations), (0, 0), "{cipher}");
    }
}
