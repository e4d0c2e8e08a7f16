//! Payload bytes of packets in transit.

use haul_base::{Ecn, PathId, Time, Transmit};

use crate::parcel::{Damage, FlowId, MAX_PARCEL, PacketInfo, Parcel};

/// Buffers by index. A buffer is freed when its last packet arrives or is dropped.
#[derive(Debug)]
pub(super) struct TransitBuffers {
    places: Vec<TransitBuffer>,
    free: Vec<u32>,
    /// Spare buffers by capacity: `1 << (SMALLEST + index)` bytes.
    spare: Vec<Vec<Vec<u8>>>,
    slot: Vec<u8>,
    scratch: Vec<u8>,
}

/// Size of a writer's slot: the capacity of one kernel buffer.
const SLOT: usize = 65_536;

/// log2 of the smallest and largest buffer size.
const SMALLEST: u32 = 7;
const LARGEST: u32 = 16;

/// Payload bytes of one parcel.
#[derive(Debug, Default)]
struct TransitBuffer {
    data: Vec<u8>,
    len: usize,
    stride: usize,
    /// Packets neither delivered nor dropped.
    in_transit: u32,
    /// Whether copies share the bytes, which must then not be changed in place.
    shared: bool,
}

/// A parcel that a node has just sent.
#[derive(Clone, Copy, Debug)]
pub(super) struct Launch {
    pub(super) at: Time,
    pub(super) buffer: u32,
    pub(super) parcel: Parcel,
    pub(super) port: PathId,
}

fn class_of(len: usize) -> u32 {
    len.next_power_of_two().trailing_zeros().clamp(SMALLEST, LARGEST)
}

impl TransitBuffers {
    pub(super) fn new() -> Self {
        let classes = (LARGEST - SMALLEST + 1) as usize;
        Self {
            places: Vec::new(),
            free: Vec::new(),
            spare: std::iter::repeat_with(Vec::new).take(classes).collect(),
            slot: vec![0; SLOT],
            scratch: Vec::new(),
        }
    }

    /// Returns the slot for the next sender.
    pub(super) fn slot(&mut self) -> &mut [u8] {
        &mut self.slot
    }

    fn buffer(&mut self, class: u32) -> Vec<u8> {
        self.spare[(class - SMALLEST) as usize].pop().unwrap_or_else(|| vec![0; 1 << class])
    }

    fn take(&mut self, buffer: TransitBuffer) -> u32 {
        if let Some(place) = self.free.pop() {
            self.places[place as usize] = buffer;
            return place;
        }
        self.places.push(buffer);
        (self.places.len() - 1) as u32
    }

    /// Sends the first bytes of the slot as one or more parcels.
    pub(super) fn launch_slot(
        &mut self,
        transmit: &Transmit,
        overhead: u32,
        mut sent: impl FnMut(u32, Parcel),
    ) {
        let (len, stride) = (transmit.len.min(self.slot.len()), transmit.segment_size.max(1));
        let mut at = 0;
        while at < len {
            let end = len.min(at + stride * MAX_PARCEL);
            let data = self.detach(at, end);
            let count = (end - at).div_ceil(stride);
            let last = (end - at) - (count - 1) * stride;
            let buffer =
                TransitBuffer { data, len: end - at, stride, in_transit: count as u32, shared: false };
            let place = self.take(buffer);
            let wire = |bytes: usize| bytes as u32 + overhead;
            let first = PacketInfo {
                id: place.into(),
                flow: FlowId::default(),
                bytes: wire(stride.min(end - at)),
                ecn: transmit.ecn,
            };
            if let Some(parcel) = Parcel::batch(first, count, wire(last)) {
                sent(place, parcel);
            }
            at = end;
        }
    }

    /// Moves bytes `at..end` of the slot to a separate buffer. A full slot is moved without copying.
    fn detach(&mut self, at: usize, end: usize) -> Vec<u8> {
        let class = class_of(end - at);
        let mut buffer = self.buffer(class);
        if class == LARGEST && at == 0 {
            std::mem::swap(&mut buffer, &mut self.slot);
        } else {
            buffer[..end - at].copy_from_slice(&self.slot[at..end]);
        }
        buffer
    }

    /// Sends packets that carry only a note.
    pub(super) fn launch_filled(
        &mut self,
        wire_bytes: u32,
        count: usize,
        ecn: Ecn,
        note: &[u8],
        mut sent: impl FnMut(u32, Parcel),
    ) {
        let mut remaining = count;
        while remaining > 0 {
            let packets = remaining.min(MAX_PARCEL);
            remaining -= packets;
            let len = note.len() * packets;
            let mut data = if len == 0 { Vec::new() } else { self.buffer(class_of(len)) };
            if data.len() < len {
                data.resize(len, 0);
            }
            for i in 0..packets {
                data[i * note.len()..(i + 1) * note.len()].copy_from_slice(note);
            }
            let buffer =
                TransitBuffer { data, len, stride: note.len(), in_transit: packets as u32, shared: false };
            let place = self.take(buffer);
            let first = PacketInfo { id: place.into(), flow: FlowId::default(), bytes: wire_bytes, ecn };
            if let Some(parcel) = Parcel::batch(first, packets, wire_bytes) {
                sent(place, parcel);
            }
        }
    }

    /// Registers copies made by the path, so that their bytes are kept.
    pub(super) fn copied(&mut self, parcel: &Parcel) {
        let buffer = &mut self.places[parcel.id() as usize];
        buffer.in_transit += parcel.packets();
        buffer.shared = true;
    }

    /// Registers packets as delivered or dropped. The last one of a buffer frees it.
    pub(super) fn finish(&mut self, parcel: &Parcel) {
        let buffer = &mut self.places[parcel.id() as usize];
        buffer.in_transit -= parcel.packets();
        if buffer.in_transit == 0 {
            let data = std::mem::take(&mut buffer.data);
            if !data.is_empty() && data.len().is_power_of_two() && data.len() <= 1 << LARGEST {
                self.spare[(class_of(data.len()) - SMALLEST) as usize].push(data);
            }
            self.free.push(parcel.id() as u32);
        }
    }

    /// Returns the payload bytes of a parcel, and the bytes per packet.
    pub(super) fn payload(&self, parcel: &Parcel) -> (&[u8], usize) {
        let buffer = &self.places[parcel.id() as usize];
        (&buffer.data[..buffer.len.min(buffer.data.len())], buffer.stride)
    }

    /// Takes the bytes of a parcel out for a reader that may change them. They must be returned.
    pub(super) fn borrow(&mut self, parcel: &Parcel) -> Borrowed {
        let buffer = &mut self.places[parcel.id() as usize];
        Borrowed {
            data: std::mem::take(&mut buffer.data),
            scratch: std::mem::take(&mut self.scratch),
            len: buffer.len,
            stride: buffer.stride,
            access: if buffer.shared { Access::Copy } else { Access::InPlace },
            damage: parcel.damage(),
        }
    }

    pub(super) fn return_buffer(&mut self, parcel: &Parcel, borrowed: Borrowed) {
        self.places[parcel.id() as usize].data = borrowed.data;
        self.scratch = borrowed.scratch;
    }
}

/// Whether a reader may change the bytes in place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Access {
    InPlace,
    Copy,
}

/// The bytes of a parcel while a node reads them.
#[derive(Debug)]
pub(super) struct Borrowed {
    data: Vec<u8>,
    scratch: Vec<u8>,
    len: usize,
    pub(super) stride: usize,
    access: Access,
    damage: Damage,
}

impl Borrowed {
    /// Whether the packets have to be read one by one.
    pub(super) fn is_damaged(&self) -> bool {
        self.damage != Damage::None
    }

    /// Returns the bytes of `count` packets from `first`, damaged if necessary (depending on `salt` alone).
    pub(super) fn run(&mut self, first: usize, count: usize, salt: u64) -> &mut [u8] {
        let from = (first * self.stride).min(self.len);
        let to = ((first + count) * self.stride).min(self.len);
        if self.access == Access::InPlace && !self.is_damaged() {
            return &mut self.data[from..to];
        }
        self.scratch.clear();
        self.scratch.extend_from_slice(&self.data[from..to]);
        let len = self.damage.apply(&mut self.scratch, salt);
        &mut self.scratch[..len]
    }
}
