//! Writes packets to a device, together if they are still adjacent.

use std::io::{self, IoSlice};
use std::ops::Range;

use haul_base::Rng;
use haul_sim::Damage;

use super::pool::Slot;
use crate::net::Tun;
use crate::packet::{SuperPacketBuilder, Vnet, complete, header_of};

/// Device header, packet headers, and the payloads of a train of maximum length.
const MAX_PIECES: usize = 2 + 64;

/// Writes the packets `range` of a stored packet.
pub(super) fn write_run(device: &Tun, slot: &Slot, range: Range<u16>, congestion: bool) -> io::Result<()> {
    let layout = &slot.layout;
    let is_complete = range == (0..layout.packets);
    if is_complete && !congestion {
        return device.write(&[IoSlice::new(slot.with_header())]);
    }
    let header = header_of(layout, slot.packet(), range, congestion).ok_or(io::ErrorKind::InvalidData)?;
    let vnet = header.vnet.write(header.cwr);
    let payload = &slot.packet()[header.payload.clone()];
    device.write(&[IoSlice::new(&vnet), IoSlice::new(header.bytes()), IoSlice::new(payload)])
}

/// Writes one packet with a damaged transport part and its original checksum.
pub(super) fn write_damaged(
    device: &Tun,
    slot: &Slot,
    index: u16,
    congestion: bool,
    damage: Damage,
    rng: &mut Rng,
) -> io::Result<()> {
    let layout = &slot.layout;
    let mut complete_packet =
        complete(layout, slot.packet(), index, congestion).ok_or(io::ErrorKind::InvalidData)?;
    let len = damage.apply(&mut complete_packet[layout.transport..], rng.next_u64());
    complete_packet.truncate(layout.transport + len);
    device.write(&[IoSlice::new(&Vnet::PLAIN.write(false)), IoSlice::new(&complete_packet)])
}

/// Writes packets that arrived singly as one super-packet.
pub(super) fn write_super_packet<'a>(
    device: &Tun,
    builder: &SuperPacketBuilder,
    mut slots: impl Iterator<Item = &'a Slot> + Clone,
) -> io::Result<()> {
    let layout = builder.layout();
    let first = slots.clone().next().ok_or(io::ErrorKind::InvalidInput)?;
    let header =
        header_of(layout, first.packet(), 0..layout.packets, false).ok_or(io::ErrorKind::InvalidData)?;
    let vnet = header.vnet.write(false);
    let mut pieces = [IoSlice::new(&[]); MAX_PIECES];
    pieces[0] = IoSlice::new(&vnet);
    pieces[1] = IoSlice::new(header.bytes());
    let mut used = 2;
    for (piece, slot) in pieces[2..].iter_mut().zip(&mut slots) {
        *piece = IoSlice::new(&slot.packet()[layout.payload..]);
        used += 1;
    }
    device.write(&pieces[..used])
}
