//! One-way delay of single packets: from the send call to the receiving kernel.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use haul_base::{Ecn, Span};
use haul_udp::{Interest, Options, Receiver, RecvError, UdpSocket};

use haul_wan::{Side, V4, World};

/// Time to wait for the last packets.
const TAIL: Duration = Duration::from_millis(500);

/// Delay samples.
#[derive(Debug, Clone, Default)]
pub(super) struct Delays(Vec<Span>);

impl Delays {
    pub(super) fn add(&mut self, delay: Span) {
        self.0.push(delay);
    }

    fn quantile(&self, share: f64) -> Span {
        let mut sorted = self.0.clone();
        sorted.sort_unstable();
        let place = ((sorted.len() as f64 - 1.0).max(0.0) * share).round() as usize;
        sorted.get(place).copied().unwrap_or(Span::MAX)
    }

    pub(super) fn median(&self) -> Span {
        self.quantile(0.5)
    }

    pub(super) fn p99(&self) -> Span {
        self.quantile(0.99)
    }
}

/// Returns the wall-clock time, which the kernel's arrival timestamps use.
pub(super) fn today() -> Span {
    SystemTime::now().duration_since(UNIX_EPOCH).map(Span::from).unwrap_or_default()
}

/// Returns the delay of a timestamped datagram.
pub(super) fn delay_of(data: &[u8], arrival: Option<haul_udp::Arrival>) -> Option<Span> {
    let sent = u64::from_le_bytes(*data.first_chunk()?);
    let arrival = Span::from(arrival?.since_unix_epoch());
    Some(arrival.saturating_sub(Span::from_nanos(sent)))
}

/// Packets at regular intervals.
#[derive(Debug, Clone, Copy)]
pub(super) struct Probes {
    /// Interval.
    pub every: Span,
    /// Duration.
    pub time: Span,
}

/// Binds a socket on a side.
pub(super) fn socket_on(side: &Side, ip: IpAddr, port: u16, options: &Options) -> io::Result<UdpSocket> {
    side.namespace.run(|| UdpSocket::bind(SocketAddr::new(ip, port), options).map_err(io::Error::other))
}

impl Probes {
    /// Returns the delays from A to B and from B to A.
    pub(super) fn both_directions(self, world: &World) -> io::Result<[Delays; 2]> {
        let options = Options::default();
        let make = |side: &Side, number: usize| socket_on(side, IpAddr::V4(V4[number]), 0, &options);
        let (a, b) = (make(&world.a, 0)?, make(&world.b, 1)?);
        let address = |socket: &UdpSocket| socket.local_addr().map_err(io::Error::other);
        let (to_a, to_b) = (address(&a)?, address(&b)?);
        a.connect(to_b).and_then(|()| b.connect(to_a)).map_err(io::Error::other)?;
        let forth = self.one_way(&a, &b)?;
        Ok([forth, self.one_way(&b, &a)?])
    }

    fn one_way(self, from: &UdpSocket, to: &UdpSocket) -> io::Result<Delays> {
        thread::scope(|scope| {
            let receiver = scope.spawn(|| collect(to));
            let count = self.time.as_nanos() / self.every.as_nanos().max(1);
            for _ in 0..count {
                let mut packet = [0; 64];
                packet[..8].copy_from_slice(&today().as_nanos().to_le_bytes());
                from.send(&packet, packet.len(), Ecn::NotEct).map_err(io::Error::other)?;
                thread::sleep(self.every.into());
            }
            receiver.join().unwrap_or_else(|_| Err(io::Error::other("the receiver panicked")))
        })
    }
}

/// Receives until nothing has arrived for a while.
fn collect(socket: &UdpSocket) -> io::Result<Delays> {
    let mut receiver = Receiver::new(socket);
    let mut delays = Delays::default();
    let mut has_begun = false;
    while socket.wait(Interest::Read, if has_begun { TAIL } else { 4 * TAIL })? {
        has_begun = true;
        match receiver.recv(socket) {
            Ok(_) => {}
            Err(RecvError::WouldBlock) => continue,
            Err(error) => return Err(io::Error::other(error)),
        }
        for mut batch in receiver.datagrams() {
            let arrival = batch.arrival;
            for data in batch.iter_mut() {
                if let Some(delay) = delay_of(data, arrival) {
                    delays.add(delay);
                }
            }
        }
    }
    Ok(delays)
}
