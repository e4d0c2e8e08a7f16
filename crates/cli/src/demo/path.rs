//! A long path inside this machine: a relay on the loopback interface with one port toward the client, which
//! carries TCP and UDP to the server as a path of the given length, rate and loss would. Needs no privilege.

use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;

use haul_sim::DropReason;
use haul_udp::{Options, SocketError, UdpSocket};

use super::spec::PathSpec;
use super::tcp::TcpRelay;
use super::udp::UdpRelay;
use crate::fault::{self, Fault, FaultCode};

/// How often a port is tried that must be free for TCP and UDP alike.
const PORT_TRIES: u32 = 20;

/// A running relay; stops when dropped.
#[derive(Debug)]
pub struct EmulatedPath {
    address: SocketAddr,
    stop: Arc<AtomicBool>,
    counters: Arc<[Counters; 2]>,
    udp: Option<JoinHandle<()>>,
    tcp: Option<TcpRelay>,
}

/// What one direction has done with datagrams.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DirectionCounts {
    /// Packets that came in.
    pub offered: u64,
    /// Packets that came out.
    pub delivered: u64,
    /// Payload bytes that came out.
    pub delivered_bytes: u64,
    /// Dropped at the full queue.
    pub queue_full: u64,
    /// Lost at random.
    pub random: u64,
    /// Longer than the path's MTU.
    pub too_large: u64,
    /// Dropped because the relay itself had no room or could not pass them on. On a machine that keeps up
    /// these are none.
    pub relay: u64,
    /// Socket buffers (each up to 44 packets) that the kernel dropped because the relay came too late.
    pub overrun: u64,
}

/// What both directions have done.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PathCounts {
    /// From the client to the server.
    pub up: DirectionCounts,
    /// From the server to the client.
    pub down: DirectionCounts,
}

impl EmulatedPath {
    /// Opens a path to `server` and returns at once; [`EmulatedPath::address`] is its near end.
    ///
    /// # Errors
    /// When sockets or threads cannot be made.
    pub fn start(spec: &PathSpec, server: SocketAddr) -> Result<Self, Fault> {
        let (listener, socket) = bind_pair().map_err(|e| cannot_start(&e))?;
        let address = listener.local_addr().map_err(|e| cannot_start(&e))?;
        let stop = Arc::new(AtomicBool::new(false));
        let counters: Arc<[Counters; 2]> = Arc::default();
        let relay = UdpRelay::new(spec, socket, server, Arc::clone(&stop), Arc::clone(&counters))
            .map_err(|e| fault::usage(format!("there is no such path: {e}"), "see `haul demo --help`"))?;
        let udp = std::thread::Builder::new()
            .name("path-udp".to_owned())
            .spawn(move || relay.run())
            .map_err(|e| cannot_start(&e))?;
        let mut path = Self { address, stop, counters, udp: Some(udp), tcp: None };
        let tcp = TcpRelay::start(listener, server, spec.rtt, Arc::clone(&path.stop));
        path.tcp = Some(tcp.map_err(|e| cannot_start(&e))?);
        Ok(path)
    }

    /// Where the client connects to, TCP and UDP.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// What happened to datagrams so far.
    pub fn counts(&self) -> PathCounts {
        PathCounts { up: self.counters[0].read(), down: self.counters[1].read() }
    }
}

impl Drop for EmulatedPath {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        drop(self.tcp.take());
        if let Some(udp) = self.udp.take() {
            // A panic of the relay has been reported by its thread.
            let _ = udp.join();
        }
    }
}

fn cannot_start(error: &io::Error) -> Fault {
    Fault::new(FaultCode::Internal, format!("cannot start the emulated path: {error}"), "")
}

/// A TCP listener and a UDP socket on the same port.
fn bind_pair() -> io::Result<(TcpListener, UdpSocket)> {
    let mut tries = 0;
    loop {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        tries += 1;
        match UdpSocket::bind(listener.local_addr()?, &Options::default()) {
            Ok(socket) => return Ok((listener, socket)),
            Err(SocketError::Bind { .. }) if tries < PORT_TRIES => {}
            Err(error) => return Err(io::Error::other(error)),
        }
    }
}

/// The counts of one direction while they grow.
#[derive(Debug, Default)]
pub(super) struct Counters {
    offered: AtomicU64,
    delivered: AtomicU64,
    delivered_bytes: AtomicU64,
    queue_full: AtomicU64,
    random: AtomicU64,
    too_large: AtomicU64,
    relay: AtomicU64,
    overrun: AtomicU64,
}

fn add(counter: &AtomicU64, number: u64) {
    counter.fetch_add(number, Ordering::Relaxed);
}

impl Counters {
    pub(super) fn offered(&self, packets: u64) {
        add(&self.offered, packets);
    }

    pub(super) fn delivered(&self, packets: usize, bytes: usize) {
        add(&self.delivered, packets as u64);
        add(&self.delivered_bytes, bytes as u64);
    }

    /// Packets that the path has dropped. It has no stage that drops for another reason than these.
    pub(super) fn dropped(&self, reason: DropReason, packets: u32) {
        let counter = match reason {
            DropReason::QueueFull => &self.queue_full,
            DropReason::Random => &self.random,
            DropReason::TooLarge => &self.too_large,
            _ => &self.relay,
        };
        add(counter, u64::from(packets));
    }

    pub(super) fn relay_dropped(&self, packets: usize) {
        add(&self.relay, packets as u64);
    }

    pub(super) fn overrun(&self, buffers: u32) {
        add(&self.overrun, u64::from(buffers));
    }

    pub(super) fn read(&self) -> DirectionCounts {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        DirectionCounts {
            offered: get(&self.offered),
            delivered: get(&self.delivered),
            delivered_bytes: get(&self.delivered_bytes),
            queue_full: get(&self.queue_full),
            random: get(&self.random),
            too_large: get(&self.too_large),
            relay: get(&self.relay),
            overrun: get(&self.overrun),
        }
    }
}

impl DirectionCounts {
    /// Packets that were dropped, for whatever reason.
    pub fn dropped(&self) -> u64 {
        self.queue_full + self.random + self.too_large + self.relay
    }
}

impl std::fmt::Display for DirectionCounts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { offered, queue_full, random, too_large, relay, overrun, .. } = self;
        write!(f, "{offered} packets, lost {random} at random, {queue_full} at the full queue")?;
        for (number, why) in [(too_large, "too large"), (relay, "in the relay"), (overrun, "buffers overrun")]
        {
            if *number > 0 {
                write!(f, ", {number} {why}")?;
            }
        }
        Ok(())
    }
}

/// A failure of the loopback sockets in words; kept here so that both relays say it alike.
pub(super) fn relay_problem(what: &str, error: &dyn std::error::Error) {
    tracing::warn!("emulated path: {what}: {error}");
}

#[cfg(test)]
mod tests;
