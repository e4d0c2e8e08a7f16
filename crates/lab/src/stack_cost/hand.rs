//! Hand-written loop that the base stack is compared with: reads and writes the same packets.

/// Header of the base stack's packets: `kind | packet number | identity | message | place`.
const HEADER: usize = 7 + 4 + 4 + 4;
const KIND: u8 = 1;
const IDENTITY: u32 = 7;
const LAST: u32 = 1 << 31;
/// UDP payload of a 1,500-byte IP packet.
const DATAGRAM: usize = 1_472;
const BATCH: usize = 64;

/// Writes batches.
#[derive(Debug, Default)]
pub(super) struct HandWrittenSender {
    pn: u64,
    message: u32,
    place: usize,
}

impl HandWrittenSender {
    /// Fills `slot`. Returns the bytes used, and the size of every packet but the last.
    pub(super) fn fill(&mut self, slot: &mut [u8], size: usize) -> (usize, usize) {
        let (mut used, mut stride) = (0, 0);
        for _ in 0..BATCH {
            let payload = (size - self.place).min(DATAGRAM - HEADER);
            let len = HEADER + payload;
            if (stride != 0 && len > stride) || used + len > slot.len() {
                break;
            }
            let last = self.place + payload == size;
            let header = &mut slot[used..used + HEADER];
            header[0] = KIND;
            header[1..7].copy_from_slice(&self.pn.to_be_bytes()[2..]);
            header[7..11].copy_from_slice(&IDENTITY.to_be_bytes());
            header[11..15].copy_from_slice(&self.message.to_be_bytes());
            let place = self.place as u32 | if last { LAST } else { 0 };
            header[15..19].copy_from_slice(&place.to_be_bytes());
            self.pn += 1;
            self.place = if last { 0 } else { self.place + payload };
            self.message = self.message.wrapping_add(u32::from(last));
            used += len;
            if stride == 0 {
                stride = len;
            } else if len < stride {
                break;
            }
        }
        (used, stride)
    }
}

/// Reads a received buffer. Returns its message bytes.
pub(super) fn read(data: &[u8], stride: usize) -> u64 {
    let mut bytes = 0;
    for packet in data.chunks(stride.max(1)) {
        if packet.len() < HEADER || packet[0] != KIND || packet[7..11] != IDENTITY.to_be_bytes() {
            continue;
        }
        let message = u32::from_be_bytes([packet[11], packet[12], packet[13], packet[14]]);
        std::hint::black_box(message);
        bytes += (packet.len() - HEADER) as u64;
    }
    bytes
}
