//! Storage for packets in transit, with reference counts.

use crate::packet::{Layout, VNET_LEN};

/// Maximum packet of a device: 64 KiB of IPv6 payload and its header, behind the device's header.
const LARGEST: usize = VNET_LEN + 65_535 + 40;
/// Buffer sizes: an Ethernet frame, a jumbo frame, a super-packet.
const CLASSES: [usize; 3] = [2_048, 10_240, LARGEST.next_multiple_of(1_024)];

/// Pool of reused buffers.
#[derive(Debug)]
pub(super) struct Pool {
    slots: Vec<Slot>,
    free: Vec<u32>,
    spare: [Vec<Box<[u8]>>; CLASSES.len()],
    /// Bytes of all buffers in use.
    used: u64,
    limit: u64,
}

#[derive(Debug)]
pub(super) struct Slot {
    /// Device header and packet.
    data: Box<[u8]>,
    /// Layout of the packet.
    pub layout: Layout,
    /// Packets of it still in transit.
    users: u32,
}

impl Slot {
    /// Returns the packet as received.
    pub(super) fn packet(&self) -> &[u8] {
        &self.data[VNET_LEN..VNET_LEN + self.layout.len]
    }

    /// Returns source port, destination port and payload of one packet. `None` if it has no UDP header.
    pub(super) fn udp(&self, index: u16) -> Option<(u16, u16, &[u8])> {
        let packet = self.packet();
        let header = packet.get(self.layout.udp_header(packet)?..)?;
        let port = |at: usize| Some(u16::from_be_bytes(*header.get(at..)?.first_chunk()?));
        Some((port(0)?, port(2)?, packet.get(self.layout.udp_payload(index))?))
    }

    /// Returns the packet including the device header.
    pub(super) fn with_header(&self) -> &[u8] {
        &self.data[..VNET_LEN + self.layout.len]
    }
}

impl Pool {
    /// Creates a pool with a limit of `limit` bytes. Buffers are allocated when first needed.
    pub(super) fn new(limit: u64) -> Self {
        Self { slots: Vec::new(), free: Vec::new(), spare: Default::default(), used: 0, limit }
    }

    /// Returns a buffer that holds any packet a device can deliver.
    pub(super) fn buffer(&mut self) -> Box<[u8]> {
        self.spare[CLASSES.len() - 1].pop().unwrap_or_else(|| vec![0; CLASSES[CLASSES.len() - 1]].into())
    }

    /// Stores the packet in `buffer`, replaces `buffer` with a free one, and returns the packet's number.
    /// Returns `None` if the pool is full.
    pub(super) fn keep(&mut self, buffer: &mut Box<[u8]>, layout: Layout) -> Option<u32> {
        let len = VNET_LEN + layout.len;
        let class = CLASSES.iter().position(|size| len <= *size)?;
        if self.used + CLASSES[class] as u64 > self.limit {
            return None;
        }
        self.used += CLASSES[class] as u64;
        let data = if class == CLASSES.len() - 1 {
            let next = self.buffer();
            std::mem::replace(buffer, next)
        } else {
            let spare = self.spare[class].pop();
            let mut data = spare.unwrap_or_else(|| vec![0; CLASSES[class]].into_boxed_slice());
            data[..len].copy_from_slice(&buffer[..len]);
            data
        };
        let slot = Slot { data, layout, users: u32::from(layout.packets) };
        if let Some(number) = self.free.pop() {
            self.slots[number as usize] = slot;
            return Some(number);
        }
        self.slots.push(slot);
        Some(self.slots.len() as u32 - 1)
    }

    /// Returns a stored packet that is still in use.
    pub(super) fn slot(&self, number: u32) -> &Slot {
        &self.slots[number as usize]
    }

    /// Registers copies: more of its packets are in transit.
    pub(super) fn more(&mut self, number: u32, packets: u32) {
        self.slots[number as usize].users += packets;
    }

    /// Registers packets that have left. The last one frees the buffer.
    pub(super) fn remove_packets(&mut self, number: u32, packets: u32) {
        let slot = &mut self.slots[number as usize];
        debug_assert!(slot.users >= packets, "a packet left twice");
        slot.users = slot.users.saturating_sub(packets);
        if slot.users == 0 {
            let data = std::mem::take(&mut slot.data);
            self.used -= data.len() as u64;
            let class = CLASSES.iter().position(|size| data.len() <= *size).unwrap_or(CLASSES.len() - 1);
            self.spare[class].push(data);
            self.free.push(number);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packet::Vnet;

    fn layout(len: usize) -> Layout {
        let mut packet = vec![0u8; len];
        packet[0] = 0x45;
        Layout::parse(Vnet::PLAIN, &packet).unwrap()
    }

    #[test]
    fn buffers_return_with_their_last_packet() {
        let mut pool = Pool::new(3 * CLASSES[0] as u64);
        let mut buffer = pool.buffer();
        let numbers: Vec<u32> = (0..3).filter_map(|_| pool.keep(&mut buffer, layout(1_500))).collect();
        assert_eq!(numbers, [0, 1, 2]);
        assert_eq!(pool.keep(&mut buffer, layout(1_500)), None);
        pool.more(1, 1);
        pool.remove_packets(1, 1);
        assert_eq!(pool.keep(&mut buffer, layout(1_500)), None);
        pool.remove_packets(1, 1);
        assert_eq!(pool.keep(&mut buffer, layout(1_500)), Some(1));
    }

    #[test]
    fn packets_keep_their_bytes_in_every_class() {
        let mut pool = Pool::new(1 << 20);
        for len in [40, 1_500, 9_000, 65_000] {
            let mut buffer = pool.buffer();
            buffer[VNET_LEN] = 0x45;
            buffer[VNET_LEN + len - 1] = 77;
            let number = pool.keep(&mut buffer, layout(len)).unwrap();
            assert_eq!(pool.slot(number).packet().len(), len);
            assert_eq!(pool.slot(number).packet()[len - 1], 77);
        }
    }
}
