//! `fec`: repair packets after every block of data packets, so that some losses need no round trip.
//!
//! Of each block of `data` new packets, as many may be missing as repair packets have arrived. Everything
//! between clear attributes and tag is protected, so that a recovered packet is handled like a received one.
//! Retransmitted packets are not protected: their contents differ, and they already repair a loss.

mod blocks;

use std::any::Any;
use std::collections::VecDeque;

use haul_base::Span;
use haul_stack::{
    Attribute, Batch, BatchEvent, Buffer, Context, Declaration, EventId, Kind, MicroProtocol, Order, Part,
    ProtocolStats, Registration, Resolution, SEND_PERMIT, configuration,
};
use reed_solomon_simd::ReedSolomonEncoder;

use super::attributes::FEC_BLOCK;
use super::stats::FecStats;
use blocks::{Blocks, Piece, REPAIR_HEADER, SHARD_HEADER};

/// Kind of the control packets of `fec`.
pub const FEC_KIND: Kind = Kind(12);

/// Bytes by which data packets are shorter than the maximum, so that a repair of the longest fits into a
/// packet; one of them for an even length.
const RESERVE: usize = REPAIR_HEADER + SHARD_HEADER + 1;
/// Attribute of packets outside of blocks. Otherwise the upper 24 bits are the block, the lower 8 the index.
const NO_BLOCK: u32 = u32::MAX;

#[derive(Debug)]
struct Fec {
    data: usize,
    repair: usize,
    delay: Span,
    attribute: Option<Attribute<u32>>,
    sending: Sending,
    blocks: Blocks,
}

/// State of the block being filled.
#[derive(Default)]
struct Sending {
    block: u32,
    /// Packets that have an index in the block.
    placed: usize,
    /// Protected contents of each packet sent. The ones after `filled` are kept for reuse.
    shards: Vec<Vec<u8>>,
    filled: usize,
    repairs: VecDeque<Buffer>,
    encoder: Option<ReedSolomonEncoder>,
    packets: u64,
}

impl std::fmt::Debug for Sending {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sending")
            .field("block", &self.block)
            .field("left", &self.filled)
            .finish_non_exhaustive()
    }
}

configuration! {
    /// Parameters of `fec`.
    pub struct FecConfig: "fec" {
        data: usize in (1, 128) = "20", "data packets per block";
        repair: usize in (1, 64) = "2", "repair packets per block";
        delay: Span = "5ms", "age at which a block is closed";
    }
}

pub(super) fn registration() -> Registration {
    Registration {
        needs: &[&["sequenced_segment"]],
        ..Registration::of::<FecConfig>(1, "repairs losses without retransmission", |parameters, _| {
            let FecConfig { data, repair, delay } = parameters.read();
            Ok(Box::new(Fec {
                data,
                repair,
                delay,
                attribute: None,
                sending: Sending::default(),
                blocks: Blocks::default(),
            }))
        })
    }
}

impl Fec {
    fn place(&mut self, batch: &mut Batch<'_>) {
        let attribute = self.attribute.expect("declared");
        let sending = &mut self.sending;
        let (mut block, mut placed) = (sending.block, sending.placed);
        for i in 0..batch.len() {
            if batch.is_resent(i) {
                batch.set(i, attribute, NO_BLOCK);
                continue;
            }
            batch.set(i, attribute, block << 8 | placed as u32);
            placed += 1;
            if placed >= self.data {
                (block, placed) = (block.wrapping_add(1) & 0x00FF_FFFF, 0);
            }
        }
    }

    fn record(&mut self, batch: &mut Batch<'_>, context: &mut Context<'_>) {
        let attribute = self.attribute.expect("declared");
        for i in 0..batch.len() {
            if batch.get(i, attribute) == NO_BLOCK {
                continue;
            }
            if self.sending.filled == 0 {
                context.set_timer(0, context.now() + self.delay);
            }
            self.sending.keep(batch, i);
            if self.sending.filled >= self.data {
                self.close(context);
            }
        }
    }

    /// Computes the repair packets of the block and starts the next.
    fn close(&mut self, context: &mut Context<'_>) {
        context.cancel_timer(0);
        self.sending.encode(self.repair, context);
        if !self.sending.repairs.is_empty() {
            context.request_control();
        }
    }

    fn take_in(&mut self, batch: &mut Batch<'_>, context: &mut Context<'_>) {
        let attribute = self.attribute.expect("declared");
        for i in batch.live() {
            let value = batch.get(i, attribute);
            if value == NO_BLOCK {
                continue;
            }
            let place = (value & 0xFF) as usize;
            if place >= self.data {
                batch.reject(i);
                continue;
            }
            let piece = Piece { kind: batch.kind(i), pn: batch.pn(i), body: body(batch, i) };
            self.blocks.on_data(value >> 8, place, self.data, &piece, context);
        }
    }
}

/// Protected contents of packet `i`.
fn body<'b>(batch: &'b Batch<'_>, i: usize) -> &'b [u8] {
    let payload = batch.payload_range(i);
    let attributes = batch.layout().data_header_len() - batch.layout().clear_len();
    &batch.buffer()[payload.start - attributes..payload.end]
}

impl Sending {
    fn keep(&mut self, batch: &Batch<'_>, i: usize) {
        if self.shards.len() == self.filled {
            self.shards.push(Vec::new());
        }
        let (shard, body) = (&mut self.shards[self.filled], body(batch, i));
        shard.clear();
        shard.extend_from_slice(&(body.len() as u16).to_be_bytes());
        shard.push(batch.kind(i).0);
        shard.extend_from_slice(&batch.pn(i).to_be_bytes()[2..]);
        shard.extend_from_slice(body);
        self.filled += 1;
        self.placed = self.filled;
    }

    fn encode(&mut self, repairs: usize, context: &mut Context<'_>) {
        let shards = &mut self.shards[..self.filled];
        let longest = shards.iter().map(Vec::len).max().unwrap_or(0).next_multiple_of(2);
        if self.encoder.is_none() {
            self.encoder = ReedSolomonEncoder::new(shards.len(), repairs, longest).ok();
        } else if let Some(encoder) = &mut self.encoder {
            encoder
                .reset(shards.len(), repairs, longest)
                .expect("any block of at most 128 and 64 is supported");
        }
        let encoder = self.encoder.as_mut().expect("any block of at most 128 and 64 is supported");
        for shard in shards.iter_mut() {
            shard.resize(longest, 0);
            encoder.add_original_shard(&*shard).expect("as many shards as announced, of equal length");
        }
        let result = encoder.encode().expect("all shards were added");
        let name = self.block << 8 | shards.len() as u32;
        for (which, repair) in result.recovery_iter().enumerate() {
            let mut packet = context.pool().get(REPAIR_HEADER + repair.len());
            packet.extend(&name.to_be_bytes());
            packet.extend(&[repairs as u8, which as u8]);
            packet.extend(repair);
            self.repairs.push_back(packet);
        }
        self.block = self.block.wrapping_add(1) & 0x00FF_FFFF;
        (self.filled, self.placed) = (0, 0);
    }
}

impl MicroProtocol for Fec {
    fn declare(&mut self, declaration: &mut Declaration<'_>) {
        self.attribute = Some(declaration.attribute(FEC_BLOCK));
        declaration.kind(FEC_KIND);
    }

    fn bind(&mut self, resolution: &mut Resolution<'_>) {
        resolution.on_event(SEND_PERMIT, Order::EARLY);
        resolution.on_batch(BatchEvent::SEGMENT_FROM_USER, Order::LATE);
        // All attributes are written, and nothing is sealed yet.
        resolution.on_batch(BatchEvent::SEGMENT_TO_NET, Order::LATE);
        resolution.on_batch(BatchEvent::SEGMENT_FROM_NET, Order::EARLY);
    }

    fn on_event(&mut self, event: EventId, argument: &mut dyn Any, _: &mut Context<'_>) {
        if let Some(permit) = SEND_PERMIT.of(event, argument) {
            permit.datagram = permit.datagram.saturating_sub(RESERVE);
        }
    }

    fn on_batch(&mut self, event: BatchEvent, batch: &mut Batch<'_>, context: &mut Context<'_>) {
        if event == BatchEvent::SEGMENT_FROM_USER {
            self.place(batch);
        } else if event == BatchEvent::SEGMENT_FROM_NET {
            self.take_in(batch, context);
        } else if batch.is_data() {
            self.record(batch, context);
        }
    }

    fn on_timer(&mut self, _: u8, context: &mut Context<'_>) {
        if self.sending.filled > 0 {
            self.close(context);
        }
    }

    fn write_control(&mut self, batch: &mut Batch<'_>, context: &mut Context<'_>) {
        let Some(repair) = self.sending.repairs.pop_front() else { return };
        // If the path MTU has shrunk since, the repair packet does not fit and is dropped.
        if let Some(i) = batch.push(FEC_KIND, repair.len()) {
            batch.payload_mut(i).copy_from_slice(&repair);
            self.sending.packets += 1;
        }
        context.pool().put(repair);
        if !self.sending.repairs.is_empty() {
            context.request_control();
        }
    }

    fn on_control(&mut self, _: Kind, batch: &mut Batch<'_>, i: usize, context: &mut Context<'_>) {
        if !self.blocks.on_repair(batch.payload(i), context) {
            batch.reject(i);
        }
    }

    fn on_parameters(&mut self, parameters: &Part, context: &mut Context<'_>) -> Result<(), String> {
        let FecConfig { data, repair, delay } = parameters.read();
        if data != self.data {
            return Err(
                "the size of blocks cannot be changed while running, only repair and delay".to_owned()
            );
        }
        (self.repair, self.delay) = (repair, delay);
        if self.sending.filled > 0 {
            context.set_timer(0, context.now() + self.delay);
        }
        Ok(())
    }

    fn statistics(&self, report: &mut dyn FnMut(&dyn ProtocolStats)) {
        report(&FecStats {
            repairs_sent: self.sending.packets,
            recovered: self.blocks.recovered,
            unrepaired_blocks: self.blocks.unrepaired,
        });
    }
}

#[cfg(test)]
mod tests {
    use haul_base::{Machine, Rng, Span};
    use haul_stack::{Recipe, SendOptions};
    use proptest::prelude::*;

    use crate::config::FecConfig;
    use crate::micro::stats::FecStats;
    use crate::micro::testing::{Pair, Path, T0, receive, stats};

    fn recipe(data: usize, repair: usize) -> Recipe {
        Recipe::new("x")
            .with("fixed_size")
            .with("sequenced_segment")
            .with(FecConfig { data, repair, ..FecConfig::default() })
            .with("seal")
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        /// In each block at most as many data packets are lost as it has repair packets.
        #[test]
        fn as_many_losses_as_repairs_need_no_round_trip(
            seed: u64, data in 1usize..24, repair in 1usize..8, messages in 1usize..80, longest in 1u64..3_000,
        ) {
            let mut rng = Rng::from_seed(seed);
            let mut pair = Pair::new(&recipe(data, repair));
            let mut sent = Vec::new();
            for id in 0..messages as u64 {
                let mut message = vec![0; rng.below(longest) as usize];
                rng.fill(&mut message);
                pair.a.send(T0, &message, SendOptions::default()).unwrap();
                sent.push((id, message));
            }
            let mut slot = vec![0; 65_536];
            let (mut lost, mut deaths, mut data_packets) = (0, 0, 0);
            for now in [T0, T0 + Span::from_millis(5)] {
                pair.a.on_deadline(now);
                while let Some(batch) = pair.a.poll_transmit(now, &mut slot) {
                    for packet in slot[..batch.len].chunks_mut(batch.segment_size) {
                        // A block consists of `data` consecutive data packets, or fewer at the end.
                        if packet[0] == 1 {
                            if data_packets % data == 0 { deaths = 0; }
                            data_packets += 1;
                            if deaths < repair && rng.chance(0.3) {
                                (deaths, lost) = (deaths + 1, lost + 1);
                                continue;
                            }
                        }
                        let stride = packet.len();
                        receive(&mut pair.b, now, packet, stride);
                    }
                }
            }
            let mut got = pair.received_by_b();
            got.sort();
            prop_assert!(got == sent, "{} of {} with {} lost", got.len(), sent.len(), lost);
            // The repair packet of an evicted block starts it again, and recovers packets that had arrived.
            let recovered = stats::<FecStats>(&pair.b).recovered;
            let is_exact = data_packets <= data * super::blocks::MAX_KEPT;
            prop_assert!(if is_exact { recovered == lost } else { recovered >= lost }, "{recovered} of {lost}");
            prop_assert_eq!(pair.b.stats().violations, 0);
        }

        #[test]
        fn false_repairs_are_tolerated(
            noise in prop::collection::vec(any::<u8>(), 0..200), honest in any::<bool>(), data in 0u8..20, of in 0u8..9,
        ) {
            let mut pair = Pair::new(&recipe(8, 2).without("seal"));
            for n in 0..6 {
                pair.a.send(T0, &[n; 100], SendOptions::default()).unwrap();
            }
            let mut lose = |packet| packet == 2 || packet > 6;
            pair.exchange(T0, &mut Path { lose: Some(&mut lose), ..Path::default() });
            let mut packet = vec![super::FEC_KIND.0, 0, 0, 0, 0, 1, 0];
            if honest {
                packet.extend_from_slice(&[0, 0, 0, data, 2, of]);
            }
            packet.extend_from_slice(&noise);
            let stride = packet.len();
            for _ in 0..3 {
                receive(&mut pair.b, T0, &mut packet.clone(), stride);
            }
            prop_assert!(!pair.b.has_failed());
        }
    }

    #[test]
    fn more_losses_than_repairs_are_reported_as_lost() {
        let mut pair = Pair::new(&recipe(10, 2));
        for n in 0..200u8 {
            pair.a.send(T0, &[n; 50], SendOptions::default()).unwrap();
        }
        let mut lose = |packet: usize| packet < 128 && packet % 10 < 3;
        pair.exchange(T0, &mut Path { lose: Some(&mut lose), ..Path::default() });
        assert!(pair.received_by_b().len() < 170);
        assert!(stats::<FecStats>(&pair.b).unrepaired_blocks > 0);
    }
}
