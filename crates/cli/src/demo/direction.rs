//! One direction of the emulated path: the stages, and the bytes of what is under way. It reads no clock.

use std::collections::VecDeque;

use haul_base::{Bytes, Ecn, Time};
use haul_sim::{Exit, MAX_PARCEL, PacketInfo, Parcel, Path, SpecError, UDP_OVERHEAD};
use haul_udp::SendError;
use haul_wan::{GRAIN, Way};

use super::counters::Counters;
use super::ring::{Batch, FlowId, Ring};
use super::spec::PathSpec;

/// Room of the ring beyond what the path itself holds.
const SPARE: u64 = 4 << 20;
/// The most that one ring takes, so that an odd choice of rate and delay does not eat the machine.
const MAX_RING: u64 = 2 << 30;

/// Packets enter at one end, and leave at the other when they are due.
#[derive(Debug)]
pub(super) struct Direction {
    path: Path,
    ring: Ring,
    /// What is due, in order.
    due: VecDeque<Batch>,
    /// The most bytes that travel as one.
    grain: u64,
}

/// Packets of one client that have come together, while they are collected.
#[derive(Debug, Clone, Copy)]
struct Run {
    first: PacketInfo,
    packets: usize,
    last_bytes: u32,
}

impl Run {
    /// Whether a packet of `bytes` can travel with these.
    fn takes(&self, bytes: u32, grain: u64) -> bool {
        self.last_bytes == self.first.bytes
            && bytes <= self.first.bytes
            && self.packets < MAX_PARCEL
            && (self.packets as u64 + 1) * u64::from(self.first.bytes) <= grain
    }
}

impl Direction {
    /// One direction of the path; the two of them draw their losses independently.
    ///
    /// # Errors
    /// When there can be no such path.
    pub(super) fn new(spec: &PathSpec, way: Way) -> Result<Self, SpecError> {
        let in_flight = spec.rate.bytes_in(spec.rtt / 2);
        let room = spec.queue().0.saturating_add(in_flight).saturating_add(SPARE);
        Ok(Self {
            path: Path::new(&spec.stages(), way.seed(spec.seed))?,
            ring: Ring::new(Bytes(room.min(MAX_RING))),
            due: VecDeque::with_capacity(64),
            grain: spec.rate.bytes_in(GRAIN),
        })
    }

    /// Packets of one client arrive together. Arrivals that seem to go back in time count as simultaneous with
    /// the one before.
    pub(super) fn offer<'a>(
        &mut self,
        packets: impl Iterator<Item = &'a [u8]>,
        arrival: Time,
        (flow, ecn): (FlowId, Ecn),
        counters: &Counters,
    ) {
        let mut run: Option<Run> = None;
        for packet in packets {
            let bytes = packet.len() as u32 + UDP_OVERHEAD;
            // Before the next packet is kept, so that the room of what is dropped at once comes back.
            if let Some(whole) = run.take_if(|run| !run.takes(bytes, self.grain)) {
                self.enter(whole, arrival, counters);
            }
            let Some(number) = self.ring.push(packet, flow, ecn) else {
                counters.relay_dropped(1);
                continue;
            };
            if let Some(run) = &mut run {
                run.packets += 1;
                run.last_bytes = bytes;
            } else {
                let first = PacketInfo { id: number, flow: haul_sim::FlowId(flow), bytes, ecn };
                run = Some(Run { first, packets: 1, last_bytes: bytes });
            }
        }
        if let Some(last) = run {
            self.enter(last, arrival, counters);
        }
    }

    fn enter(&mut self, run: Run, arrival: Time, counters: &Counters) {
        match Parcel::batch(run.first, run.packets, run.last_bytes) {
            Some(parcel) => self.path.offer_batch(arrival, parcel),
            // It cannot be: a run has between 1 packet and as many as a parcel.
            None => self.ring.release(run.first.id, run.packets),
        }
        self.advance(arrival, counters);
    }

    /// Lets time pass up to `now`: nothing may arrive earlier than that any more.
    pub(super) fn advance(&mut self, now: Time, counters: &Counters) {
        let Self { path, ring, due, .. } = self;
        path.advance(now, &mut |_, parcel, exit| match exit {
            Exit::Delivered => {
                for index in parcel.indices() {
                    let number = parcel.id() + index as u64;
                    if !due.back_mut().is_some_and(|batch| ring.join(batch, number)) {
                        due.extend(ring.batch(number));
                    }
                }
            }
            Exit::Dropped(reason) => {
                counters.dropped(reason, parcel.packets());
                for (first, packets) in parcel.runs() {
                    ring.release(parcel.id() + first as u64, packets);
                }
            }
            // No stage of this path makes copies.
            Exit::Copied => {}
        });
    }

    /// When something happens next.
    pub(super) fn next_event(&self) -> Option<Time> {
        self.path.next_event()
    }

    /// Sends what is due with `send`; false if a socket was full and the rest has to wait.
    pub(super) fn deliver(
        &mut self,
        counters: &Counters,
        send: impl Fn(&Batch, &[u8]) -> Result<usize, SendError>,
    ) -> bool {
        while let Some(batch) = self.due.pop_front() {
            let gone = match send(&batch, self.ring.bytes(&batch)) {
                Ok(packets) => {
                    let bytes = batch.range.len().min(packets * batch.segment);
                    counters.delivered(packets, bytes);
                    packets
                }
                Err(SendError::WouldBlock(_)) => {
                    self.due.push_front(batch);
                    return false;
                }
                Err(error) => {
                    // Nobody listens any more, or the like: the packets are gone, as on a real path.
                    tracing::debug!(%error, "emulated path: packets dropped at its end");
                    counters.relay_dropped(batch.packets);
                    batch.packets
                }
            };
            self.ring.release(batch.first, gone.min(batch.packets));
            if let Some(rest) = batch.without(gone) {
                self.due.push_front(rest);
            }
        }
        true
    }
}

#[cfg(test)]
mod tests;
