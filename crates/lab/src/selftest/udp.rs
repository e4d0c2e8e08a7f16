//! UDP at a constant rate, counted at both ends.

use std::io;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use haul_base::{Ecn, Rate, Span};
use haul_udp::{Interest, Offload, Options, Receiver, RecvError, SendError, UdpSocket};

use super::probes::{Delays, delay_of, socket_on, today};
use haul_wan::end_soon;
use haul_wan::{V4, World};

/// UDP payload of a 1,500-byte IP packet, and its header bytes.
const PAYLOAD: usize = 1_472;
const HEADERS: u64 = 28;
/// Maximum datagrams per call, limited by the length of an IP packet.
const BATCH: u64 = 44;
/// Interval between sends: long enough for the sender to sleep, short enough to avoid bursts.
const TICK: Span = Span::from_micros(200);
/// Maximum sleep of the sender.
const LONGEST_SLEEP: Span = Span::from_millis(2);
/// Maximum delay for which the sender catches up.
const CATCH_UP: Span = Span::from_millis(10);
/// Time to wait for the last packets.
const TAIL: Duration = Duration::from_millis(400);

/// How the sender passes packets to the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Method {
    /// One system call per packet.
    PacketByPacket,
    /// Up to 44 per super-packet (UDP segmentation offload).
    Batched,
}

/// Parameters of the sender.
#[derive(Debug, Clone, Copy)]
pub(super) struct Blast {
    /// Bits per second, counting whole IP packets.
    pub rate: Rate,
    /// How packets are passed to the kernel.
    pub method: Method,
    /// Duration.
    pub time: Span,
    /// Whether each packet carries its send time.
    pub stamps: bool,
}

/// Result of a measurement.
#[derive(Debug, Default)]
pub(super) struct Outcome {
    /// Packets sent.
    pub sent: u64,
    /// Time that sending took.
    pub elapsed: Span,
    /// Packets received.
    pub received: u64,
    /// Time from the first arrival to the last.
    pub window: Span,
    /// Bytes per packet, including headers.
    pub packet_bytes: u64,
    /// Delays of timestamped packets.
    pub delays: Delays,
}

impl Outcome {
    /// Returns the rate at which `arrived` packets reached the kernel, including those lost by the socket.
    /// The first packet starts the clock and is not counted.
    pub(super) fn rate(&self, arrived: u64) -> Rate {
        Rate::from_transfer(arrived.saturating_sub(1) * self.packet_bytes, self.window)
    }
}

impl Blast {
    /// Sends from A to B and measures.
    pub(super) fn run(self, world: &World) -> io::Result<Outcome> {
        let send_options = Options {
            offload: if self.method == Method::PacketByPacket { Offload::Off } else { Offload::Auto },
            ..Options::default()
        };
        let to = socket_on(&world.b, IpAddr::V4(V4[1]), 0, &Options::default())?;
        let from = socket_on(&world.a, IpAddr::V4(V4[0]), 0, &send_options)?;
        let address = to.local_addr().map_err(io::Error::other)?;
        from.connect(address).map_err(io::Error::other)?;
        let sending = AtomicBool::new(true);
        thread::scope(|scope| {
            let receiver = scope.spawn(|| self.receive(&to, &sending));
            let sent = self.send(&from);
            sending.store(false, Ordering::Relaxed);
            let received = receiver.join().unwrap_or_else(|_| Err(io::Error::other("the receiver panicked")));
            let (sent, elapsed) = sent?;
            Ok(Outcome { sent, elapsed, packet_bytes: PAYLOAD as u64 + HEADERS, ..received? })
        })
    }

    /// Sends at the rate; catches up after a late wake-up.
    fn send(self, socket: &UdpSocket) -> io::Result<(u64, Span)> {
        end_soon();
        let each = self.rate.time_for(PAYLOAD as u64 + HEADERS);
        let mut slot = vec![0x5a; PAYLOAD * BATCH as usize];
        let start = Instant::now();
        let elapsed = || Span::from(start.elapsed());
        let (mut due, mut sent) = (Span::ZERO, 0);
        while elapsed() < self.time {
            let now = elapsed();
            due = due.max(now.saturating_sub(CATCH_UP.max(each)));
            let count = (now.saturating_sub(due).as_nanos() / each.as_nanos().max(1)).min(BATCH);
            // A super-packet is sent only when full, to keep their number low.
            let min_batch = if self.method == Method::Batched { BATCH } else { 1 };
            if count < min_batch {
                let tick = if self.method == Method::Batched { TICK / 8 } else { TICK };
                let until_enough = (due + each * min_batch).saturating_sub(now);
                thread::sleep(until_enough.clamp(tick, LONGEST_SLEEP).into());
                continue;
            }
            if self.stamps {
                let stamp = today().as_nanos().to_le_bytes();
                slot.chunks_exact_mut(PAYLOAD).for_each(|packet| packet[..8].copy_from_slice(&stamp));
            }
            match socket.send(&slot[..count as usize * PAYLOAD], PAYLOAD, Ecn::NotEct) {
                Ok(done) => {
                    sent += done.datagrams as u64;
                    due = due + each * done.datagrams as u64;
                }
                Err(SendError::WouldBlock(_)) => {
                    socket.wait(Interest::Write, Duration::from_millis(1))?;
                }
                Err(error) => return Err(io::Error::other(error)),
            }
        }
        Ok((sent, elapsed()))
    }

    /// Receives until the sender has ended and packets have stopped arriving.
    fn receive(self, socket: &UdpSocket, sending: &AtomicBool) -> io::Result<Outcome> {
        end_soon();
        let mut receiver = Receiver::new(socket);
        let mut outcome = Outcome::default();
        let (mut first, mut last) = (None, Span::ZERO);
        loop {
            if !socket.wait(Interest::Read, TAIL)? {
                if sending.load(Ordering::Relaxed) {
                    continue;
                }
                break;
            }
            match receiver.recv(socket) {
                Ok(_) => {}
                Err(RecvError::WouldBlock) => continue,
                Err(error) => return Err(io::Error::other(error)),
            }
            for mut batch in receiver.datagrams() {
                outcome.received += batch.count() as u64;
                let arrival = batch.arrival;
                if let Some(arrival) = arrival.map(|a| Span::from(a.since_unix_epoch())) {
                    first = first.or(Some(arrival));
                    last = last.max(arrival);
                }
                if self.stamps {
                    let delays = batch.iter_mut().filter_map(|data| delay_of(data, arrival));
                    delays.for_each(|delay| outcome.delays.add(delay));
                }
            }
        }
        outcome.window = first.map_or(Span::ZERO, |first| last.saturating_sub(first));
        Ok(outcome)
    }
}
