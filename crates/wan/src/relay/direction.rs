//! One direction of a relay: the stages, and the datagrams in transit. Reads no clock.

use std::collections::{HashMap, VecDeque};

use haul_base::{Bytes, Ecn, Time, WithCauses};
use haul_sim::{DropReason, Drops, Exit, PacketInfo, Path, PathSpec, SpecError, UDP_OVERHEAD};
use haul_udp::SendError;

use crate::emulator::{rate_of, rtt_of};
use crate::link::Traffic;

/// Counters of one direction of a relay, in datagrams and payload bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Relayed {
    /// Datagrams received by the relay.
    pub sent: Traffic,
    /// Datagrams delivered by the relay.
    pub received: Traffic,
    /// Dropped datagrams by reason; `carrier` counts the relay's own failures.
    pub drops: Drops,
    /// Socket buffers (of up to 44 datagrams) that the kernel dropped because the relay was too slow.
    pub overrun: u64,
}

/// Memory for packets in addition to the path's own capacity.
const SPARE: u64 = 4 << 20;
/// Memory limit for packets, for unusual combinations of rate and delay.
const MAX_MEMORY: u64 = 2 << 30;
/// Overhead per packet, bytes.
const OF_PACKET: u64 = 64;
/// Maximum datagrams per batch, accepted by every kernel with GSO (`UDP_MAX_SEGMENTS` of Linux 4.18).
const MAX_BATCH: usize = 64;
/// Maximum bytes per batch: UDP payload of one IPv4 packet.
const MAX_BATCH_BYTES: usize = 65_507;

pub(super) type FlowId = u32;

/// Packets enter at one end and leave at the other when they are due.
#[derive(Debug)]
pub(super) struct Direction {
    path: Path,
    /// Packets in transit, by number.
    kept: HashMap<u64, Packet>,
    /// Number of the next packet.
    next: u64,
    /// Packets that are due, in order.
    due: VecDeque<Packet>,
    /// Remaining memory for packets.
    room: Bytes,
    /// Bytes of the batch being sent.
    batch: Vec<u8>,
    pub(super) counts: Relayed,
}

#[derive(Debug)]
struct Packet {
    bytes: Box<[u8]>,
    flow: FlowId,
    ecn: Ecn,
}

impl Packet {
    fn memory(&self) -> u64 {
        self.bytes.len() as u64 + OF_PACKET
    }
}

/// Packets of one client and one size (the last may be shorter) that are sent together.
#[derive(Debug, Clone, Copy)]
pub(super) struct Batch {
    pub packets: usize,
    pub segment: usize,
    pub flow: FlowId,
    pub ecn: Ecn,
}

impl Direction {
    pub(super) fn new(spec: &PathSpec, seed: u64) -> Result<Self, SpecError> {
        // Data queued at the bottleneck and in transit behind it.
        let on_path = rate_of(spec).bytes_in(rtt_of(spec, spec)).saturating_mul(2);
        Ok(Self {
            path: Path::new(spec, seed)?,
            kept: HashMap::new(),
            next: 0,
            due: VecDeque::new(),
            room: Bytes(on_path.saturating_add(SPARE).min(MAX_MEMORY)),
            batch: Vec::new(),
            counts: Relayed::default(),
        })
    }

    /// Offers packets of one client that arrive together. An earlier time than the last one counts as equal.
    pub(super) fn offer<'a>(
        &mut self,
        packets: impl Iterator<Item = &'a [u8]>,
        arrival: Time,
        (flow, ecn): (FlowId, Ecn),
    ) {
        for bytes in packets {
            self.counts.sent.count(1, bytes.len() as u64);
            let packet = Packet { bytes: bytes.into(), flow, ecn };
            let Some(room) = self.room.0.checked_sub(packet.memory()) else {
                self.counts.drops.count(DropReason::Carrier, 1);
                continue;
            };
            let info = PacketInfo {
                id: self.next,
                flow: haul_sim::FlowId(flow),
                bytes: bytes.len() as u32 + UDP_OVERHEAD,
                ecn,
            };
            self.room = Bytes(room);
            self.kept.insert(self.next, packet);
            self.next += 1;
            self.path.offer(arrival, info);
            // Frees the memory of packets dropped immediately before the next one arrives.
            self.advance(arrival);
        }
    }

    /// Advances the path to `now`. Later arrivals must not be earlier.
    pub(super) fn advance(&mut self, now: Time) {
        let Self { path, kept, due, room, counts, .. } = self;
        path.advance(now, &mut |_, parcel, exit| {
            let packets = parcel.indices().filter_map(|index| kept.remove(&(parcel.id() + index as u64)));
            match exit {
                Exit::Delivered => due.extend(packets),
                Exit::Dropped(reason) => {
                    counts.drops.count(reason, parcel.packets().into());
                    room.0 += packets.map(|packet| packet.memory()).sum::<u64>();
                }
                // No stage of this path makes copies.
                Exit::Copied => {}
            }
        });
    }

    pub(super) fn next_event(&self) -> Option<Time> {
        self.path.next_event()
    }

    /// Sends due packets with `send`, which returns the number of packets accepted. Returns false if a socket
    /// was full and the rest has to wait.
    pub(super) fn deliver(&mut self, send: impl Fn(&Batch, &[u8]) -> Result<usize, SendError>) -> bool {
        while let Some(batch) = self.gather() {
            let gone = match send(&batch, &self.batch) {
                Ok(packets) => {
                    let bytes = self.batch.len().min(packets * batch.segment);
                    self.counts.received.count(packets as u64, bytes as u64);
                    packets
                }
                Err(SendError::WouldBlock(_)) => return false,
                Err(error) => {
                    // For example, the receiver has closed its socket: the packets are lost, as on a path.
                    tracing::debug!(error = %WithCauses(&error), "emulated path: packets dropped at its end");
                    self.counts.drops.count(DropReason::Carrier, batch.packets as u64);
                    batch.packets
                }
            };
            self.room.0 += self.due.drain(..gone).map(|packet| packet.memory()).sum::<u64>();
        }
        true
    }

    /// Copies the bytes of the next packets that can be sent with one call into `batch`.
    fn gather(&mut self) -> Option<Batch> {
        let first = self.due.front()?;
        let (segment, flow, ecn) = (first.bytes.len(), first.flow, first.ecn);
        self.batch.clear();
        let mut packets = 0;
        for packet in self.due.iter().take(MAX_BATCH) {
            let are_all_complete = self.batch.len() == packets * segment;
            let fits = are_all_complete
                && (1..=segment).contains(&packet.bytes.len())
                && (packet.flow, packet.ecn) == (flow, ecn)
                && self.batch.len() + packet.bytes.len() <= MAX_BATCH_BYTES;
            if packets > 0 && !fits {
                break;
            }
            self.batch.extend_from_slice(&packet.bytes);
            packets += 1;
        }
        Some(Batch { packets, segment, flow, ecn })
    }
}

#[cfg(test)]
pub(super) mod tests;
