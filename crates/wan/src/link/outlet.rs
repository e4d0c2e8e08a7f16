//! Output side: packets that leave together are written together.

use std::io;
use std::ops::Range;
use std::sync::Arc;

use haul_base::Rng;
use haul_sim::{Damage, Parcel};

use super::pool::{Pool, Slot};
use super::snapshot::Traffic;
use super::writer::{write_damaged, write_run, write_super_packet};
use crate::net::Tun;
use crate::packet::SuperPacketBuilder;

/// Writes packets to a device and counts them.
#[derive(Debug)]
pub(super) struct Outlet {
    device: Arc<Tun>,
    rng: Rng,
    received: Traffic,
    /// Packets that the device rejected.
    refused: u64,
    /// Single UDP packets that can be combined in one write, and the resulting train.
    waiting: Vec<u32>,
    builder: Option<SuperPacketBuilder>,
    /// Whether single packets are combined.
    merges_udp: bool,
}

impl Outlet {
    pub(super) fn new(device: Arc<Tun>, seed: u64) -> Self {
        let merges_udp = device.offloads().udp;
        Self {
            device,
            rng: Rng::from_seed(seed),
            received: Traffic::default(),
            refused: 0,
            waiting: Vec::with_capacity(64),
            builder: None,
            merges_udp,
        }
    }

    /// Returns the counters of written packets.
    pub(super) fn received(&self) -> Traffic {
        self.received
    }

    /// Returns the number of packets that the device rejected.
    pub(super) fn refused(&self) -> u64 {
        self.refused
    }

    /// Writes a parcel, or holds it until [`Outlet::flush`] to combine it with following packets.
    pub(super) fn deliver(&mut self, pool: &mut Pool, number: u32, first: u16, parcel: &Parcel) {
        let slot = pool.slot(number);
        let congestion = parcel.ecn() != slot.layout.ecn;
        if self.merges_udp && parcel.damage() == Damage::None && !congestion {
            if self.join(pool, number) {
                return;
            }
            self.flush(pool);
            let slot = pool.slot(number);
            self.builder = SuperPacketBuilder::begin(&slot.layout, slot.packet());
            if self.builder.is_some() {
                self.waiting.push(number);
                return;
            }
        }
        self.flush(pool);
        self.write(pool.slot(number), first, parcel, congestion);
        pool.remove_packets(number, parcel.packets());
    }

    /// Adds a packet to the train, if it fits.
    fn join(&mut self, pool: &Pool, number: u32) -> bool {
        let (Some(builder), Some(first)) = (&mut self.builder, self.waiting.first()) else { return false };
        let slot = pool.slot(number);
        let joined = builder.add(pool.slot(*first).packet(), &slot.layout, slot.packet());
        if joined {
            self.waiting.push(number);
        }
        joined
    }

    /// Writes the held packets.
    pub(super) fn flush(&mut self, pool: &mut Pool) {
        let Some(builder) = self.builder.take() else { return };
        if let [number] = self.waiting[..] {
            let slot = pool.slot(number);
            let written = write_run(&self.device, slot, 0..1, false);
            self.record(slot, 0..1, &written);
        } else {
            let slots = self.waiting.iter().map(|number| pool.slot(*number));
            match write_super_packet(&self.device, &builder, slots) {
                Ok(()) => {
                    let bytes = self.waiting.iter().map(|number| pool.slot(*number).layout.len as u64).sum();
                    self.received.count(self.waiting.len() as u64, bytes);
                }
                Err(_) => self.refused += self.waiting.len() as u64,
            }
        }
        for number in self.waiting.drain(..) {
            pool.remove_packets(number, 1);
        }
    }

    /// Writes the packets of a parcel, adjacent ones together.
    fn write(&mut self, slot: &Slot, first: u16, parcel: &Parcel, congestion: bool) {
        for (start, len) in parcel.runs() {
            let from = first + start as u16;
            let range = from..from + len as u16;
            if parcel.damage() == Damage::None {
                let written = write_run(&self.device, slot, range.clone(), congestion);
                self.record(slot, range, &written);
                continue;
            }
            for index in range {
                let (damage, rng) = (parcel.damage(), &mut self.rng);
                let written = write_damaged(&self.device, slot, index, congestion, damage, rng);
                self.record(slot, index..index + 1, &written);
            }
        }
    }

    fn record(&mut self, slot: &Slot, range: Range<u16>, written: &io::Result<()>) {
        let packets = range.len() as u64;
        match written {
            Ok(()) => {
                let bytes = range.map(|index| u64::from(slot.layout.packet_bytes(index))).sum();
                self.received.count(packets, bytes);
            }
            Err(_) => self.refused += packets,
        }
    }
}
