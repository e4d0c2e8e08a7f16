//! Reassembly of a stream's bytes, which arrive in any order.

use haul_base::RangeSet;

/// Receive window of a stream: from the bytes already read to the flow-control limit.
#[derive(Debug)]
pub struct Reassembly {
    /// Byte `offset` of the stream is at `offset % capacity`. Allocated for the first byte.
    ring: Vec<u8>,
    capacity: u64,
    arrived: RangeSet,
    /// Offset up to which everything was read.
    read: u64,
    /// Limit last announced to the sender.
    advertised: u64,
    end: Option<u64>,
}

impl Reassembly {
    /// Creates a window of `capacity` bytes.
    pub fn new(capacity: u64) -> Self {
        Self {
            ring: Vec::new(),
            capacity,
            arrived: RangeSet::new(),
            read: 0,
            advertised: capacity,
            end: None,
        }
    }

    /// Returns the number of bytes that can be read now.
    pub fn ready(&self) -> u64 {
        self.arrived.containing(self.read).map_or(0, |range| range.end - self.read)
    }

    /// Returns the number of received ranges: at most one more than the gaps before and between them.
    pub fn ranges(&self) -> usize {
        self.arrived.len()
    }

    /// Whether the stream has ended and was read completely.
    pub fn is_at_end(&self) -> bool {
        self.end == Some(self.read)
    }

    /// Whether the end is known.
    pub fn has_end(&self) -> bool {
        self.end.is_some()
    }

    /// Returns the sender's current limit.
    pub fn limit(&self) -> u64 {
        self.read + self.capacity
    }

    /// Returns the limit if it has grown by a quarter of the window since it was announced.
    pub fn new_limit(&mut self) -> Option<u64> {
        let should_advertise = self.limit() - self.advertised >= self.capacity / 4;
        should_advertise.then(|| {
            self.advertised = self.limit();
            self.advertised
        })
    }

    /// Stores received bytes. Returns false if the sender may not send them: they were read already, exceed
    /// its limit, or lie beyond the end of the stream.
    #[must_use]
    pub fn put(&mut self, offset: u64, bytes: &[u8]) -> bool {
        let Some(end) = offset.checked_add(bytes.len() as u64) else { return false };
        if offset < self.read || end > self.limit() || self.end.is_some_and(|last| end > last) {
            return false;
        }
        if bytes.is_empty() {
            return true;
        }
        if self.ring.is_empty() {
            self.ring = vec![0; self.capacity as usize];
        }
        let at = (offset % self.capacity) as usize;
        let first = bytes.len().min(self.ring.len() - at);
        self.ring[at..at + first].copy_from_slice(&bytes[..first]);
        self.ring[..bytes.len() - first].copy_from_slice(&bytes[first..]);
        self.arrived.insert(offset..end);
        true
    }

    /// Sets the end of the stream. Returns false if that contradicts what was received.
    #[must_use]
    pub fn set_end(&mut self, end: u64) -> bool {
        let highest = self.arrived.iter().next_back().map_or(self.read, |range| range.end);
        let is_possible = end >= highest && self.end.is_none_or(|known| known == end);
        self.end = if is_possible { Some(end) } else { self.end };
        is_possible
    }

    /// Reads the next bytes, as many as are available and fit; returns their number.
    pub fn pull(&mut self, into: &mut [u8]) -> usize {
        let bytes = self.ready().min(into.len() as u64) as usize;
        if bytes > 0 {
            let at = (self.read % self.capacity) as usize;
            let first = bytes.min(self.ring.len() - at);
            into[..first].copy_from_slice(&self.ring[at..at + first]);
            into[first..bytes].copy_from_slice(&self.ring[..bytes - first]);
            let (from, to) = (self.read, self.read + bytes as u64);
            self.arrived.remove(from..to);
            self.read = to;
        }
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_arrive_in_any_order_and_are_read_in_order() {
        let mut bytes = Reassembly::new(128);
        let data: Vec<u8> = (0..100).collect();
        assert!(bytes.put(50, &data[50..]));
        let mut out = [0; 100];
        assert_eq!((bytes.pull(&mut out), bytes.ranges()), (0, 1));
        assert!(bytes.put(0, &data[..20]) && bytes.put(20, &data[20..50]));
        assert!(!bytes.set_end(99) && bytes.set_end(100) && !bytes.set_end(101));
        assert_eq!(bytes.pull(&mut out[..70]), 70);
        assert_eq!(bytes.pull(&mut out[70..]), 30);
        assert!(bytes.is_at_end() && out[..] == data[..]);
    }

    #[test]
    fn the_ring_wraps_and_a_sender_that_exceeds_it_is_detected() {
        let capacity = 1 << 12;
        let mut bytes = Reassembly::new(capacity);
        let (mut chunk, mut out) = ([0; 1_000], [0; 1_000]);
        for round in 0..50 {
            chunk.fill(round as u8);
            let offset = round * chunk.len() as u64;
            assert_eq!(bytes.limit(), offset + capacity);
            assert!(bytes.put(offset, &chunk));
            assert_eq!(bytes.pull(&mut out), chunk.len());
            assert!(out == chunk, "round {round}");
        }
        let (read, limit) = (50_000, bytes.limit());
        for (offset, len) in [(read - 1, 2), (limit, 1), (limit - 1, 2), (u64::MAX, 1)] {
            assert!(!bytes.put(offset, &chunk[..len]), "{offset} {len}");
        }
        assert!(bytes.put(limit - 1, &[1]) && bytes.put(limit, &[]));
    }

    #[test]
    fn the_sender_is_notified_of_every_quarter_of_the_capacity() {
        let mut bytes = Reassembly::new(400);
        assert!(bytes.put(0, &[1; 400]));
        let mut advertised = Vec::new();
        while bytes.pull(&mut [0; 30]) > 0 {
            advertised.extend(bytes.new_limit());
        }
        assert_eq!(advertised, [520, 640, 760]);
    }
}
