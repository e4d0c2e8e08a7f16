//! The receiver's blocks: packets received of each, until it is complete.

use std::collections::VecDeque;

use haul_stack::{Buffer, Context, Kind};
use reed_solomon_simd::ReedSolomonDecoder;

/// Length of the header of a repair packet: `block u24, data packets u8 | number of repairs u8 | index u8`.
pub(super) const REPAIR_HEADER: usize = 6;
/// Length of the header of a protected packet: `length u16 | kind u8 | packet number u48`.
pub(super) const SHARD_HEADER: usize = 9;
/// Maximum number of blocks kept: with more reordering than that, repair packets are useless.
pub(super) const MAX_KEPT: usize = 8;

/// A received data packet.
pub(super) struct Piece<'p> {
    pub(super) kind: Kind,
    pub(super) pn: u64,
    pub(super) body: &'p [u8],
}

/// Encoding parameters of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Shape {
    data: usize,
    repairs: usize,
    /// Size of every shard, in bytes.
    len: usize,
}

#[derive(Debug)]
struct Block {
    number: u32,
    /// Received shards by index, without padding.
    data: Vec<Option<Buffer>>,
    repairs: Vec<(usize, Buffer)>,
    shape: Option<Shape>,
    /// The block is finished: every data packet has arrived, or the decoder has run. Its buffers are free.
    finished: bool,
}

#[derive(Default)]
pub(super) struct Blocks {
    kept: VecDeque<Block>,
    decoder: Option<ReedSolomonDecoder>,
    padded: Vec<u8>,
    pub(super) recovered: u64,
    pub(super) unrepaired: u64,
}

impl std::fmt::Debug for Blocks {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Blocks").field("kept", &self.kept).finish_non_exhaustive()
    }
}

impl Block {
    fn has(&self) -> usize {
        self.data.iter().flatten().count()
    }

    /// Whether nothing is missing, or what is missing can be recovered.
    fn can_finish(&self, full: usize) -> bool {
        let needed = self.shape.map_or(full, |shape| shape.data);
        let repairs = if self.shape.is_some() { self.repairs.len() } else { 0 };
        !self.finished && self.has() + repairs >= needed
    }

    fn finish(&mut self, context: &mut Context<'_>) {
        self.finished = true;
        for buffer in self.data.drain(..).flatten().chain(self.repairs.drain(..).map(|repair| repair.1)) {
            context.pool().put(buffer);
        }
    }
}

impl Blocks {
    /// Returns the index of the block with this number. A new block evicts the oldest one if needed.
    fn block(&mut self, number: u32, context: &mut Context<'_>) -> usize {
        if let Some(at) = self.kept.iter().rposition(|block| block.number == number) {
            return at;
        }
        if self.kept.len() == MAX_KEPT
            && let Some(mut oldest) = self.kept.pop_front()
        {
            self.unrepaired += u64::from(!oldest.finished && oldest.shape.is_some());
            oldest.finish(context);
        }
        self.kept.push_back(Block {
            number,
            data: Vec::new(),
            repairs: Vec::new(),
            shape: None,
            finished: false,
        });
        self.kept.len() - 1
    }

    /// Records a data packet. `full` is the number of packets of a full block.
    pub(super) fn on_data(
        &mut self,
        number: u32,
        place: usize,
        full: usize,
        piece: &Piece<'_>,
        context: &mut Context<'_>,
    ) {
        let at = self.block(number, context);
        let block = &mut self.kept[at];
        if block.finished {
            return;
        }
        if block.data.len() <= place {
            block.data.resize_with(place + 1, || None);
        }
        if block.data[place].is_none() {
            let mut shard = context.pool().get(SHARD_HEADER + piece.body.len());
            shard.extend(&(piece.body.len() as u16).to_be_bytes());
            shard.extend(&[piece.kind.0]);
            shard.extend(&piece.pn.to_be_bytes()[2..]);
            shard.extend(piece.body);
            block.data[place] = Some(shard);
        }
        if block.can_finish(full) {
            self.complete(at, full, context);
        }
    }

    /// Records a repair packet; returns `false` if it is invalid.
    pub(super) fn on_repair(&mut self, packet: &[u8], context: &mut Context<'_>) -> bool {
        let Some((number, which, shape)) = read(packet) else { return false };
        let at = self.block(number, context);
        let block = &mut self.kept[at];
        if block.finished {
            return true;
        }
        let too_long = |shard: &Buffer| shard.len() > shape.len;
        if *block.shape.get_or_insert(shape) != shape
            || block.data.len() > shape.data
            || block.data.iter().flatten().any(too_long)
        {
            return false;
        }
        if block.repairs.iter().all(|repair| repair.0 != which) {
            let shard = context.pool().copy(&packet[REPAIR_HEADER..]);
            block.repairs.push((which, shard));
        }
        if block.can_finish(shape.data) {
            self.complete(at, shape.data, context);
        }
        true
    }

    /// Recovers the missing packets of a block with enough shards.
    fn complete(&mut self, at: usize, full: usize, context: &mut Context<'_>) {
        let block = &self.kept[at];
        if let Some(shape) = block.shape
            && block.has() < shape.data.min(full)
            && self.decode(at, shape, context).is_none()
        {
            self.unrepaired += 1;
        }
        self.kept[at].finish(context);
    }

    /// Returns `None` if the shards are inconsistent, which only a malicious peer causes.
    fn decode(&mut self, at: usize, shape: Shape, context: &mut Context<'_>) -> Option<()> {
        let block = &self.kept[at];
        let decoder = match &mut self.decoder {
            Some(decoder) => {
                decoder.reset(shape.data, shape.repairs, shape.len).ok()?;
                decoder
            }
            none => none.insert(ReedSolomonDecoder::new(shape.data, shape.repairs, shape.len).ok()?),
        };
        for (place, shard) in block.data.iter().enumerate() {
            let Some(shard) = shard else { continue };
            self.padded.clear();
            self.padded.extend_from_slice(shard);
            self.padded.resize(shape.len, 0);
            decoder.add_original_shard(place, &self.padded).ok()?;
        }
        for (which, repair) in &block.repairs {
            decoder.add_recovery_shard(*which, &**repair).ok()?;
        }
        for (_, shard) in decoder.decode().ok()?.restored_original_iter() {
            let len = usize::from(u16::from_be_bytes([shard[0], shard[1]]));
            let mut pn = [0; 8];
            pn[2..].copy_from_slice(&shard[3..SHARD_HEADER]);
            let body = shard.get(SHARD_HEADER..SHARD_HEADER + len)?;
            context.recovered(Kind(shard[2]), u64::from_be_bytes(pn), body);
            self.recovered += 1;
        }
        Some(())
    }
}

fn read(packet: &[u8]) -> Option<(u32, usize, Shape)> {
    let header: [u8; REPAIR_HEADER] = packet.get(..REPAIR_HEADER)?.try_into().ok()?;
    let [a, b, c, data, repairs, which] = header;
    let len = packet.len() - REPAIR_HEADER;
    let shape = Shape { data: usize::from(data), repairs: usize::from(repairs), len };
    let plausible = (1..=128).contains(&data)
        && (1..=64).contains(&repairs)
        && which < repairs
        && len >= SHARD_HEADER
        && len.is_multiple_of(2);
    plausible.then(|| (u32::from_be_bytes([0, a, b, c]), usize::from(which), shape))
}
