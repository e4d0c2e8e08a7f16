//! Checks the splitting of super-packets with an independent parser.

use std::ops::Range;

use haul_base::Ecn;
use proptest::prelude::*;

use super::vnet::Gso;
use super::*;

/// A super-packet as a kernel would pass it.
#[derive(Debug, Clone)]
struct Super {
    v6: bool,
    tcp: bool,
    options: usize,
    payload: Vec<u8>,
    stride: usize,
    seq: u32,
    id: u16,
    flags: u8,
}

impl Super {
    fn transport(&self) -> usize {
        if self.v6 { 40 } else { 20 }
    }

    fn header(&self) -> usize {
        self.transport() + if self.tcp { 20 + self.options } else { 8 }
    }

    fn build(&self) -> (Vnet, Vec<u8>) {
        let len = self.header() + self.payload.len();
        let mut packet = vec![0u8; self.header()];
        let protocol = if self.tcp { 6 } else { 17 };
        if self.v6 {
            packet[0] = 0x60;
            packet[4..6].copy_from_slice(&((len - 40) as u16).to_be_bytes());
            packet[6] = protocol;
            (8..40).for_each(|at| packet[at] = (at * 7) as u8);
        } else {
            packet[0] = 0x45;
            packet[2..4].copy_from_slice(&(len as u16).to_be_bytes());
            packet[4..6].copy_from_slice(&self.id.to_be_bytes());
            packet[6] = 0x40;
            packet[8] = 64;
            packet[9] = protocol;
            (12..20).for_each(|at| packet[at] = (at * 11) as u8);
        }
        let at = self.transport();
        packet[at..at + 4].copy_from_slice(&[0x12, 0x34, 0x56, 0x78]);
        if self.tcp {
            packet[at + 4..at + 8].copy_from_slice(&self.seq.to_be_bytes());
            packet[at + 12] = (((20 + self.options) / 4) << 4) as u8;
            packet[at + 13] = self.flags;
        } else {
            packet[at + 4..at + 6].copy_from_slice(&((len - at) as u16).to_be_bytes());
        }
        packet.extend(&self.payload);
        let gso = match (self.tcp, self.v6) {
            (true, false) => Gso::Tcp4,
            (true, true) => Gso::Tcp6,
            _ => Gso::Udp,
        };
        let vnet = Vnet {
            needs_checksum: true,
            gso,
            header_len: self.header() as u16,
            gso_size: self.stride as u16,
            checksum_start: at as u16,
            checksum_offset: if self.tcp { 16 } else { 6 },
        };
        (vnet, packet)
    }
}

fn supers() -> impl Strategy<Value = Super> {
    let shape = (any::<bool>(), any::<bool>(), 0usize..=10, 1usize..2_000);
    (shape, 1usize..20_000, any::<(u32, u16, u8)>()).prop_map(|(shape, len, (seq, id, flags))| {
        let (v6, tcp, options, stride) = shape;
        let payload = (0..len).map(|at| (at * 31 + at / 256) as u8).collect();
        Super { v6, tcp, options: options * 4, payload, stride, seq, id, flags }
    })
}

/// Sums big-endian 16-bit words, byte by byte; shares no code with the implementation.
fn naive_sum(bytes: impl IntoIterator<Item = u8>) -> u16 {
    let mut sum = 0u32;
    for (at, byte) in bytes.into_iter().enumerate() {
        sum += u32::from(byte) << if at % 2 == 0 { 8 } else { 0 };
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

/// Sums the transport part of a complete packet. The checksum is correct if the result is all ones.
fn transport_sum(packet: &[u8]) -> u16 {
    let v6 = packet[0] >> 4 == 6;
    let (addresses, at, protocol) =
        if v6 { (&packet[8..40], 40, packet[6]) } else { (&packet[12..20], 20, packet[9]) };
    let len = (packet.len() - at) as u16;
    let pseudo = addresses.iter().copied().chain([0, protocol]).chain(len.to_be_bytes());
    naive_sum(pseudo.chain(packet[at..].iter().copied()))
}

/// Returns one packet of a super-packet as a kernel without USO would pass it.
fn single(layout: &Layout, packet: &[u8], index: u16) -> (Layout, Vec<u8>) {
    let header = header_of(layout, packet, index..index + 1, false).unwrap();
    let alone = [header.bytes(), &packet[header.payload.clone()]].concat();
    (Layout::parse(header.vnet, &alone).unwrap(), alone)
}

fn declared_len(packet: &[u8]) -> usize {
    let word = |at: usize| usize::from(u16::from_be_bytes([packet[at], packet[at + 1]]));
    if packet[0] >> 4 == 6 { word(4) + 40 } else { word(2) }
}

proptest! {
    #[test]
    fn single_segments_are_complete_packets_that_rejoin(spec in supers()) {
        let (vnet, packet) = spec.build();
        let layout = Layout::parse(vnet, &packet).unwrap();
        prop_assert_eq!(usize::from(layout.packets), spec.payload.len().div_ceil(spec.stride));
        let mut joined = Vec::new();
        for index in 0..layout.packets {
            let single = complete(&layout, &packet, index, false).unwrap();
            prop_assert_eq!(single.len(), declared_len(&single));
            prop_assert_eq!(single.len() as u32, layout.packet_bytes(index));
            let sum = transport_sum(&single);
            // A single packet keeps the pseudo-header's sum of its sender, which is absent here.
            prop_assert!(sum == 0xffff || layout.packets == 1, "sum {:x}", sum);
            let at = spec.transport();
            if !spec.v6 && layout.packets > 1 {
                prop_assert_eq!(naive_sum(single[..20].iter().copied()), 0xffff);
                let id = u16::from_be_bytes([single[4], single[5]]);
                prop_assert_eq!(id, spec.id.wrapping_add(index));
            }
            if spec.tcp {
                let seq = u32::from_be_bytes(single[at + 4..at + 8].try_into().unwrap());
                prop_assert_eq!(seq, spec.seq.wrapping_add(joined.len() as u32));
                let last = index + 1 == layout.packets;
                let flags = spec.flags & if last { 0xff } else { !0x09 } & if index == 0 { 0xff } else { !0x80 };
                prop_assert_eq!(single[at + 13], flags);
            } else {
                let len = u16::from_be_bytes([single[at + 4], single[at + 5]]);
                prop_assert_eq!(usize::from(len), single.len() - at);
            }
            joined.extend_from_slice(&single[spec.header()..]);
        }
        prop_assert_eq!(joined, spec.payload);
    }

    #[test]
    fn runs_of_segments_are_super_packets(spec in supers(), from in any::<u16>(), count in any::<u16>()) {
        let (vnet, packet) = spec.build();
        let layout = Layout::parse(vnet, &packet).unwrap();
        prop_assume!(layout.packets > 1);
        let from = from % layout.packets;
        let range = from..from + 1 + count % (layout.packets - from);
        let header = header_of(&layout, &packet, range.clone(), false).unwrap();
        let part = [header.bytes(), &packet[header.payload.clone()]].concat();
        prop_assert_eq!(part.len(), declared_len(&part));
        let again = Layout::parse(header.vnet, &part).unwrap();
        prop_assert_eq!(again.packets, range.len() as u16);
        prop_assert_eq!(again.flow, layout.flow);
        // Splitting a part gives the same packets as splitting the whole.
        for (place, index) in range.clone().enumerate() {
            let of_part = complete(&again, &part, place as u16, false).unwrap();
            let of_super_packet = complete(&layout, &packet, index, false).unwrap();
            prop_assert_eq!(of_part, of_super_packet);
        }
    }

    #[test]
    fn ecn_marks_keep_checksums_valid(spec in supers()) {
        let (vnet, mut packet) = spec.build();
        // ECT(0), as set by an ECN-capable sender.
        packet[1] |= if spec.v6 { 0x20 } else { 0x02 };
        let layout = Layout::parse(vnet, &packet).unwrap();
        prop_assert_eq!(layout.ecn, Ecn::Ect0);
        prop_assume!(layout.packets > 1);
        let marked = complete(&layout, &packet, 0, true).unwrap();
        prop_assert_eq!(Layout::parse(Vnet::PLAIN, &marked).unwrap().ecn, Ecn::Ce);
        prop_assert_eq!(transport_sum(&marked), 0xffff);
        prop_assert!(spec.v6 || naive_sum(marked[..20].iter().copied()) == 0xffff);
    }

    #[test]
    fn single_packets_equal_the_segments_of_their_train(spec in supers(), other in 0usize..4) {
        let spec = Super { tcp: false, stride: spec.stride.clamp(1, 900), ..spec };
        let (vnet, packet) = spec.build();
        let layout = Layout::parse(vnet, &packet).unwrap();
        prop_assume!(layout.packets > 1);
        let singles: Vec<(Layout, Vec<u8>)> = (0..layout.packets).map(|index| single(&layout, &packet, index)).collect();
        let (first_layout, first) = &singles[0];
        let mut builder = SuperPacketBuilder::begin(first_layout, first).unwrap();
        let mut joined = first[..first_layout.len].to_vec();
        let mut taken = 1;
        for (layout, packet) in &singles[1..] {
            if !builder.add(first, layout, packet) {
                break;
            }
            joined.extend_from_slice(&packet[spec.header()..]);
            taken += 1;
        }
        prop_assert_eq!(taken, singles.len().min(64));
        let header = header_of(builder.layout(), first, 0..builder.layout().packets, false).unwrap();
        let super_packet = [header.bytes(), &joined[spec.header()..]].concat();
        let again = Layout::parse(header.vnet, &super_packet).unwrap();
        prop_assert_eq!(usize::from(again.packets), taken);
        for index in 0..again.packets {
            prop_assert_eq!(complete(&again, &super_packet, index, false), complete(&layout, &packet, index, false));
        }
        // A different port, type of service or hop limit: not part of this train.
        let (next_layout, mut next) = singles[1].clone();
        let place = match other {
            0 => spec.transport(),
            1 => spec.transport() + 3,
            2 => 1,
            _ => if spec.v6 { 7 } else { 8 },
        };
        next[place] ^= 4;
        prop_assert!(!SuperPacketBuilder::begin(first_layout, first).unwrap().add(first, &next_layout, &next));
    }

    #[test]
    fn garbage_is_refused_or_carried_and_never_panics(
        bytes in prop::collection::vec(any::<u8>(), 0..200),
        version in prop::sample::select(vec![0u8, 4, 6]),
        head in any::<[u8; VNET_LEN]>(),
        kind in prop::sample::select(vec![0u8, 1, 4, 5]),
    ) {
        let mut bytes = bytes;
        if let Some(first) = bytes.first_mut() {
            *first = version << 4 | *first & 0xf;
        }
        let mut head = head;
        head[1] = kind;
        let Some(vnet) = Vnet::parse(&head) else { return Ok(()) };
        if let Ok(layout) = Layout::parse(vnet, &bytes) {
            let all: Range<u16> = 0..layout.packets;
            let _ = header_of(&layout, &bytes, all, true);
            for index in 0..layout.packets {
                let _ = complete(&layout, &bytes, index, true);
            }
        }
    }

    #[test]
    fn device_headers_round_trip(head in any::<[u8; VNET_LEN]>()) {
        if let Some(vnet) = Vnet::parse(&head) {
            prop_assert_eq!(Vnet::parse(&vnet.write(true)), Some(vnet));
        }
    }
}

#[test]
fn a_packet_of_another_protocol_passes_unchanged() {
    // An ICMP echo request.
    let mut packet = vec![0x45, 0, 0, 28, 0, 1, 0x40, 0, 64, 1, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2];
    packet.extend([8, 0, 0xf7, 0xfd, 0, 1, 0, 1]);
    let layout = Layout::parse(Vnet::PLAIN, &packet).unwrap();
    assert_eq!((layout.packets, layout.packet_bytes(0)), (1, 28));
    let header = header_of(&layout, &packet, 0..1, false).unwrap();
    assert_eq!([header.bytes(), &packet[header.payload.clone()]].concat(), packet);
    assert_eq!(header.vnet, Vnet::PLAIN);
}
