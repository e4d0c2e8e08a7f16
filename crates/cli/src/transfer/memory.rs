//! The object of a bench: made up in memory at the sender, forgotten at the receiver.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use haul_base::{Piece, Rng};
use haul_proto::{Available, ObjectSink, ObjectSource};
use haul_wire::control::BenchLimit;

/// Bytes of the pattern that repeats through the object.
const PATTERN: usize = 1 << 20;
/// How far ahead of the sender bytes are offered, when the end depends on time: so much is still sent when
/// the time is up.
const AHEAD: u64 = 1 << 20;
/// Seed of the pattern. Any will do: it only must not compress or look like zeros.
const SEED: u64 = 0x6861_756c;

/// Where a bench stands, seen from outside of the data thread.
#[derive(Debug, Clone, Default)]
pub(crate) struct Gauge {
    bytes: Arc<AtomicU64>,
}

impl Gauge {
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }
}

/// Bytes without end, up to a limit.
pub(crate) struct MemorySource {
    pattern: Vec<u8>,
    limit: BenchLimit,
    /// Counts from when the first bytes are asked for.
    started: Option<Instant>,
    upto: u64,
    read: u64,
    ended: bool,
    gauge: Gauge,
}

impl MemorySource {
    pub(crate) fn new(limit: BenchLimit, gauge: Gauge) -> Self {
        let mut pattern = vec![0; PATTERN];
        Rng::from_seed(SEED).fill(&mut pattern);
        Self { pattern, limit, started: None, upto: 0, read: 0, ended: false, gauge }
    }

    /// What is offered after `elapsed`.
    fn offer(&mut self, elapsed: Duration) -> Available {
        if !self.ended {
            match self.limit {
                BenchLimit::Bytes(bytes) => (self.upto, self.ended) = (bytes, true),
                BenchLimit::Micros(micros) if elapsed >= Duration::from_micros(micros) => self.ended = true,
                BenchLimit::Micros(_) | BenchLimit::Unlimited => self.upto = self.read + AHEAD,
            }
        }
        Available { upto: self.upto, end: self.ended }
    }
}

impl ObjectSource for MemorySource {
    fn available(&mut self) -> Available {
        let elapsed = self.started.get_or_insert_with(Instant::now).elapsed();
        self.offer(elapsed)
    }

    fn read(&mut self, offset: u64, into: &mut [u8]) {
        let mut place = (offset % PATTERN as u64) as usize;
        let mut rest = &mut *into;
        while !rest.is_empty() {
            let part = rest.len().min(PATTERN - place);
            let (now, later) = rest.split_at_mut(part);
            now.copy_from_slice(&self.pattern[place..place + part]);
            (rest, place) = (later, 0);
        }
        self.read = self.read.max(offset + into.len() as u64);
    }

    fn release(&mut self, offset: u64) {
        self.gauge.bytes.fetch_max(offset, Ordering::Relaxed);
    }
}

/// Takes everything and keeps nothing.
pub(crate) struct NullSink(pub(crate) Gauge);

impl ObjectSink for NullSink {
    fn deliver(&mut self, _data: &[u8], pieces: &[Piece]) {
        let bytes: usize = pieces.iter().map(|piece| piece.range.len()).sum();
        self.0.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    fn limit(&mut self) -> u64 {
        u64::MAX
    }

    fn complete(&mut self, _len: u64) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_size_is_offered_whole() {
        let mut source = MemorySource::new(BenchLimit::Bytes(5_000_000), Gauge::default());
        assert_eq!(source.available(), Available { upto: 5_000_000, end: true });
    }

    #[test]
    fn a_time_is_offered_in_steps_and_ends_where_it_stands() {
        let mut source = MemorySource::new(BenchLimit::Micros(1_000), Gauge::default());
        assert_eq!(source.offer(Duration::ZERO), Available { upto: AHEAD, end: false });
        source.read(0, &mut [0; 1_000]);
        assert_eq!(source.offer(Duration::from_micros(999)).upto, AHEAD + 1_000);
        source.read(1_000, &mut [0; 500]);
        let end = Available { upto: AHEAD + 1_000, end: true };
        assert_eq!(source.offer(Duration::from_millis(1)), end);
        assert_eq!(source.offer(Duration::ZERO), end);
    }

    #[test]
    fn the_same_place_always_has_the_same_bytes() {
        let mut source = MemorySource::new(BenchLimit::Unlimited, Gauge::default());
        let (mut whole, mut part) = (vec![0; 3_000], vec![0; 1_000]);
        let near_the_seam = PATTERN as u64 - 1_500;
        source.read(near_the_seam, &mut whole);
        source.read(near_the_seam + 1_000, &mut part);
        assert_eq!(part, whole[1_000..2_000]);
    }

    #[test]
    fn the_sink_counts() {
        let gauge = Gauge::default();
        let mut sink = NullSink(gauge.clone());
        sink.deliver(&[0; 30], &[Piece { offset: 0, range: 0..10 }, Piece { offset: 50, range: 20..30 }]);
        assert_eq!(gauge.bytes(), 20);
    }
}
