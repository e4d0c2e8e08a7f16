//! Memory-to-memory transfers: both sides of `haul bench`.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use haul_base::{Piece, Rng};
use haul_engine::{Counters, EngineError, Session, Transfer, Waker};
use haul_proto::{Available, ObjectSink, ObjectSource};
use haul_wire::control::{BenchLimit, ControlMessage, Fault, FaultCode, Notes, Summary};
use serde_json::json;

use crate::fault;
use crate::output::{RunReport, Snapshot, count};
use crate::transfer::Sides;
use crate::transfer::control_socket::Side;
use crate::transfer::outcome::of_memory;
use crate::transfer::watch::Watch;

const TICK: Duration = Duration::from_millis(5);
/// Timeout for the peer's last message.
const COUNT_TIMEOUT: Duration = Duration::from_secs(15);

pub(crate) fn send(session: &mut Session, limit: BenchLimit, sides: &Sides) -> Result<RunReport, Fault> {
    let gauge = Gauge::default();
    let source = MemorySource::new(limit, gauge.clone());
    let total = if let BenchLimit::Bytes(bytes) = limit { Some(bytes) } else { None };
    run(sides, Side::Sends, (&gauge, total), |waker| session.start_sending(Box::new(source), waker))
}

pub(crate) fn receive(session: &mut Session, sides: &Sides) -> Result<RunReport, Fault> {
    let gauge = Gauge::default();
    let sink = Box::new(NullSink(gauge.clone()));
    run(sides, Side::Receives, (&gauge, None), |waker| session.start_receiving(sink, waker))
}

/// Runs the data path to its end, and compares the number of bytes with the peer's.
fn run(
    sides: &Sides,
    side: Side,
    (gauge, total): (&Gauge, Option<u64>),
    start: impl FnOnce(Waker) -> Result<Transfer, EngineError>,
) -> Result<RunReport, Fault> {
    let mut watch = Watch::start(sides, side, start)?;
    let delivered = wait(&mut watch, gauge, total);
    let bytes = delivered.and_then(|()| {
        let bytes = match watch.transfer.counters() {
            Some(Counters::Sending(sending)) => sending.stats.object_acked,
            _ => gauge.load(Ordering::Relaxed),
        };
        exchange_count(sides, side, bytes)
    });
    match &bytes {
        // The numbers are equal, whatever becomes of the close.
        Ok(_) => drop(sides.control.close()),
        Err(fault) => sides.control.abort(watch.for_peer(fault)),
    }
    let bytes = bytes.map_err(|fault| sides.context.cancel.interruption_or(fault, ""));
    Ok(of_memory(sides, bytes, &watch.stop()))
}

fn wait(watch: &mut Watch<'_>, gauge: &Gauge, total_bytes: Option<u64>) -> Result<(), Fault> {
    let sides = watch.sides;
    let trace = || json!({ "bytes": gauge.load(Ordering::Relaxed) });
    let result = loop {
        match watch.transfer.wait_delivered(TICK) {
            Ok(true) => break Ok(()),
            Ok(false) => {}
            Err(error) => break Err(sides.fault(error)),
        }
        let bytes = gauge.load(Ordering::Relaxed);
        watch.update(Snapshot { bytes, total_bytes, ..Snapshot::default() }, bytes, trace);
        let failure = || sides.control.failure().map(|error| sides.fault(error));
        let fault = watch.reason_to_stop().or_else(failure).or_else(|| sides.take_law_requests().err());
        if let Some(fault) = fault {
            break Err(fault);
        }
        // Nothing else wakes the data thread when the time is over.
        watch.transfer.waker().wake();
    };
    watch.end(trace());
    result
}

/// Exchanges the number of bytes with the peer. The sender tells first.
fn exchange_count(sides: &Sides, side: Side, bytes: u64) -> Result<u64, Fault> {
    let send = |message| {
        sides.control.send(ControlMessage::Counted(sides.ours())).map_err(fault::of)?;
        sides.control.send(message).map_err(fault::of)
    };
    let theirs = if side == Side::Sends {
        send(ControlMessage::ObjectSent { bytes })?;
        receive_count(sides, side)?
    } else {
        let theirs = receive_count(sides, side)?;
        let summary = Summary { entries: 0, failed: 0, bytes, digest: [0; 32], notes: Notes::default() };
        send(ControlMessage::Finish(summary))?;
        theirs
    };
    if bytes == theirs {
        return Ok(bytes);
    }
    let message = format!("this side counted {} and the peer {theirs}", count(bytes, "byte"));
    Err(Fault::new(FaultCode::VerifyFailed, message, "this is a bug: please report it"))
}

fn receive_count(sides: &Sides, side: Side) -> Result<u64, Fault> {
    loop {
        let message = sides.control.recv(Some(COUNT_TIMEOUT)).map_err(|error| sides.fault(error))?;
        match (side, sides.take(message)?) {
            (Side::Sends, Some(ControlMessage::Finish(Summary { bytes, .. })))
            | (Side::Receives, Some(ControlMessage::ObjectSent { bytes })) => return Ok(bytes),
            (_, Some(other)) => tracing::debug!("unexpected {} at the end of a bench", other.name()),
            (_, None) => {}
        }
    }
}

const PATTERN: usize = 1 << 20;
/// Maximum number of bytes that a timed bench offers ahead of the sender, which are sent even after its time:
/// two of the largest batches.
const AHEAD: u64 = 128 << 10;
/// Time in which the bytes offered to a slow sender leave, so that the end is not late.
const AHEAD_TIME: Duration = Duration::from_millis(10);
const ANY_PACKET: u64 = 16 << 10;
/// Seed of the random pattern, which does not compress.
const SEED: u64 = 0x6861_756c;

type Gauge = Arc<AtomicU64>;

struct MemorySource {
    pattern: Vec<u8>,
    limit: BenchLimit,
    started: Option<Instant>,
    /// End of the bytes offered so far.
    upto: u64,
    read: u64,
    /// `read` at the last request.
    offer: Option<u64>,
    /// Maximum number of bytes of a packet so far.
    packet: u64,
    ended: bool,
    gauge: Gauge,
}

impl MemorySource {
    fn new(limit: BenchLimit, gauge: Gauge) -> Self {
        let mut pattern = vec![0; PATTERN];
        Rng::from_seed(SEED).fill(&mut pattern);
        Self { pattern, limit, started: None, upto: 0, read: 0, offer: None, packet: 0, ended: false, gauge }
    }

    fn offer(&mut self, elapsed: Duration) -> Available {
        if !self.ended {
            match self.limit {
                BenchLimit::Bytes(bytes) => (self.upto, self.ended) = (bytes, true),
                BenchLimit::Micros(micros) if elapsed >= Duration::from_micros(micros) => self.ended = true,
                BenchLimit::Micros(_) => self.upto = self.upto.max(self.read + self.ahead(elapsed)),
                BenchLimit::Unlimited => self.upto = self.read + AHEAD,
            }
        }
        Available { upto: self.upto, end: self.ended }
    }

    /// Returns the bytes that leave in [`AHEAD_TIME`], but at least one packet's: the largest so far, or any
    /// packet's if the sender has read nothing since the last request.
    fn ahead(&mut self, elapsed: Duration) -> u64 {
        let is_read = self.offer.replace(self.read).is_some_and(|before| before < self.read);
        let least = if is_read { self.packet } else { ANY_PACKET };
        let leaves = u128::from(self.read) * AHEAD_TIME.as_nanos() / elapsed.as_nanos().max(1);
        u64::try_from(leaves).unwrap_or(AHEAD).clamp(least.min(AHEAD), AHEAD)
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
        self.packet = self.packet.max(into.len() as u64);
        self.read = self.read.max(offset + into.len() as u64);
    }

    fn release(&mut self, offset: u64) {
        self.gauge.fetch_max(offset, Ordering::Relaxed);
    }
}

struct NullSink(Gauge);

impl ObjectSink for NullSink {
    fn deliver(&mut self, _data: &[u8], pieces: &[Piece]) {
        let bytes: usize = pieces.iter().map(|piece| piece.range.len()).sum();
        self.0.fetch_add(bytes as u64, Ordering::Relaxed);
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
    fn a_byte_limit_is_offered_at_once() {
        let mut source = MemorySource::new(BenchLimit::Bytes(5_000_000), Gauge::default());
        assert_eq!(source.available(), Available { upto: 5_000_000, end: true });
    }

    fn timed(millis: u64) -> MemorySource {
        MemorySource::new(BenchLimit::Micros(millis * 1_000), Gauge::default())
    }

    #[test]
    fn a_time_limit_is_offered_in_steps_and_ends_at_the_last_one() {
        let mut source = timed(1);
        assert_eq!(source.offer(Duration::ZERO), Available { upto: ANY_PACKET, end: false });
        source.read(0, &mut [0; 1_000]);
        assert_eq!(source.offer(Duration::from_micros(999)).upto, ANY_PACKET);
        let mut rest = vec![0; ANY_PACKET as usize - 1_000];
        source.read(1_000, &mut rest);
        assert_eq!(source.offer(Duration::from_micros(999)).upto, ANY_PACKET + AHEAD);
        source.read(ANY_PACKET, &mut [0; 500]);
        let end = Available { upto: ANY_PACKET + AHEAD, end: true };
        assert_eq!(source.offer(Duration::from_millis(1)), end);
        assert_eq!(source.offer(Duration::ZERO), end);
    }

    #[test]
    fn a_slow_sender_is_offered_a_packet_at_a_time() {
        let mut source = timed(10_000);
        source.offer(Duration::ZERO);
        let (mut packet, mut read) = ([0; 1_400], 0);
        while read < ANY_PACKET {
            source.read(read, &mut packet);
            read += 1_400;
        }
        assert_eq!(source.offer(Duration::from_secs(2)).upto, read + 1_400);
        source.read(read, &mut packet);
        assert_eq!(source.offer(Duration::from_secs(2)).upto, read + 2 * 1_400);
        // Its packets have grown: what was offered is less than one.
        assert_eq!(source.offer(Duration::from_secs(2)).upto, read + 1_400 + ANY_PACKET);
    }

    #[test]
    fn the_same_offset_always_has_the_same_bytes() {
        let mut source = MemorySource::new(BenchLimit::Unlimited, Gauge::default());
        let (mut all, mut part) = (vec![0; 3_000], vec![0; 1_000]);
        let near_the_seam = PATTERN as u64 - 1_500;
        source.read(near_the_seam, &mut all);
        source.read(near_the_seam + 1_000, &mut part);
        assert_eq!(part, all[1_000..2_000]);
    }

    #[test]
    fn the_sink_counts_delivered_bytes() {
        let gauge = Gauge::default();
        let mut sink = NullSink(gauge.clone());
        sink.deliver(&[0; 30], &[Piece { offset: 0, range: 0..10 }, Piece { offset: 50, range: 20..30 }]);
        assert_eq!(gauge.load(Ordering::Relaxed), 20);
    }
}
