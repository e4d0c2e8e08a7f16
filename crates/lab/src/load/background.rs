//! Cross traffic through the bottleneck: TCP with a chosen congestion control, or UDP at a constant rate.

use std::fmt;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, UdpSocket};
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{JoinHandle, sleep};
use std::time::{Duration, Instant};

use haul_base::{Rate, Span};
use haul_wan::{Namespace, accept, drain, fill};
use serde::Serialize;
use socket2::{Domain, Protocol, Socket, Type};

/// Interval at which a thread checks whether to stop.
const POLL_INTERVAL: Duration = Duration::from_millis(100);
/// Connect timeout; the path may be long and lossy.
const CONNECT: Duration = Duration::from_secs(10);
/// UDP payload of a 1,500-byte IP packet (RFC 791, RFC 768).
const DATAGRAM: usize = 1_472;
/// Header bytes, which count towards the rate as at the bottleneck.
const HEADERS: u64 = 28;
/// Interval between bursts of a UDP flow.
const TICK: Duration = Duration::from_micros(500);

/// Kind of flow.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Background {
    /// TCP without a rate limit, with this congestion control.
    Tcp(String),
    /// UDP at this rate, including IP headers.
    Udp(Rate),
}

impl FromStr for Background {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Some(rate) = text.strip_prefix("udp:") {
            return rate.parse().map(Self::Udp).map_err(|e: haul_base::UnitError| e.to_string());
        }
        let is_name = !text.is_empty() && text.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
        if is_name && text != "udp" {
            return Ok(Self::Tcp(text.to_owned()));
        }
        Err("write cubic, bbr, reno, or udp:RATE as in udp:100Mbit".to_owned())
    }
}

impl fmt::Display for Background {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(congestion) => f.write_str(congestion),
            Self::Udp(rate) => write!(f, "udp:{rate}"),
        }
    }
}

/// A running flow from A to B; ends when dropped.
#[derive(Debug)]
pub(crate) struct Flow {
    kind: Background,
    stop: Arc<AtomicBool>,
    counts: Arc<Counts>,
    threads: Vec<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct Counts {
    sent: AtomicU64,
    received: AtomicU64,
}

/// Payload byte counters of a flow.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct FlowReport {
    /// Kind of flow, for the report.
    pub kind: String,
    /// Bytes passed to the socket by the sender.
    pub sent_bytes: u64,
    /// Bytes received.
    pub received_bytes: u64,
}

impl Flow {
    /// Starts a flow between the two sides; `address` is B's.
    ///
    /// # Errors
    /// If the congestion control does not exist or sockets cannot be created.
    pub(crate) fn start(
        kind: &Background,
        a: &Namespace,
        b: &Namespace,
        address: Ipv4Addr,
    ) -> io::Result<Self> {
        let mut flow =
            Self { kind: kind.clone(), stop: Arc::default(), counts: Arc::default(), threads: Vec::new() };
        match kind {
            Background::Tcp(congestion) => flow.start_tcp(congestion, a, b, address)?,
            Background::Udp(rate) => flow.start_udp(*rate, a, b, address)?,
        }
        Ok(flow)
    }

    /// Returns the counters so far.
    pub(crate) fn report(&self) -> FlowReport {
        FlowReport {
            kind: self.kind.to_string(),
            sent_bytes: self.counts.sent.load(Ordering::Relaxed),
            received_bytes: self.counts.received.load(Ordering::Relaxed),
        }
    }

    fn start_tcp(&mut self, congestion: &str, a: &Namespace, b: &Namespace, to: Ipv4Addr) -> io::Result<()> {
        let listener = b.run(|| TcpListener::bind((to, 0)))?;
        let to = listener.local_addr()?;
        let socket = a.run(|| {
            let socket = Socket::new(Domain::IPV4, Type::STREAM, Some(Protocol::TCP))?;
            socket.set_tcp_congestion(congestion.as_bytes()).map_err(|e| no_congestion(congestion, &e))?;
            Ok(socket)
        })?;
        self.spawn("bg-sink", move |stop, counts| {
            let stream = accept(&listener, stop)?;
            stream.map_or(Ok(()), |stream| drain(&stream, u64::MAX, stop, &counts.received))
        })?;
        self.spawn("bg-source", move |stop, counts| {
            socket.connect_timeout(&to.into(), CONNECT)?;
            fill(&socket.into(), u64::MAX, stop, &counts.sent)
        })
    }

    fn start_udp(&mut self, rate: Rate, a: &Namespace, b: &Namespace, to: Ipv4Addr) -> io::Result<()> {
        let sink = b.run(|| UdpSocket::bind((to, 0)))?;
        let to = sink.local_addr()?;
        let source = a.run(|| UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)))?;
        self.spawn("bg-sink", move |stop, counts| {
            sink.set_read_timeout(Some(POLL_INTERVAL))?;
            let mut buffer = [0; 2_048];
            while !stop.load(Ordering::Relaxed) {
                if let Ok(len) = sink.recv(&mut buffer) {
                    counts.received.fetch_add(len as u64, Ordering::Relaxed);
                }
            }
            Ok(())
        })?;
        self.spawn("bg-source", move |stop, counts| {
            send_at(&source, to, rate, stop, counts);
            Ok(())
        })
    }

    fn spawn(
        &mut self,
        name: &str,
        work: impl FnOnce(&AtomicBool, &Counts) -> io::Result<()> + Send + 'static,
    ) -> io::Result<()> {
        let (stop, counts) = (Arc::clone(&self.stop), Arc::clone(&self.counts));
        let label = format!("the background flow {}", self.kind);
        let thread = std::thread::Builder::new().name(name.to_owned()).spawn(move || {
            let done = work(&stop, &counts);
            if let Err(error) = done
                && !stop.load(Ordering::Relaxed)
            {
                eprintln!("haul-lab: {label} has ended: {error}");
            }
        })?;
        self.threads.push(thread);
        Ok(())
    }
}

impl Drop for Flow {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

fn no_congestion(name: &str, error: &io::Error) -> io::Error {
    let known = std::fs::read_to_string("/proc/sys/net/ipv4/tcp_available_congestion_control");
    let known = known.unwrap_or_default();
    io::Error::new(
        error.kind(),
        format!("no congestion control `{name}` here ({error}); there is: {}", known.trim()),
    )
}

/// Sends at `rate`. After a late wake-up it catches up to 10 ms of packets.
fn send_at(socket: &UdpSocket, to: SocketAddr, rate: Rate, stop: &AtomicBool, counts: &Counts) {
    let each = rate.time_for(DATAGRAM as u64 + HEADERS);
    let catch_up = Span::from_millis(10).max(each);
    let start = Instant::now();
    let mut due = Span::ZERO;
    let payload = [0; DATAGRAM];
    while !stop.load(Ordering::Relaxed) {
        let now = Span::from(start.elapsed());
        due = due.max(now.saturating_sub(catch_up));
        while due <= now {
            due = due + each;
            // Errors are ignored: a full queue or a failed path affects other people's flows in the same way.
            if let Ok(len) = socket.send_to(&payload, to) {
                counts.sent.fetch_add(len as u64, Ordering::Relaxed);
            }
        }
        sleep(Duration::from(due.saturating_sub(now)).clamp(TICK, POLL_INTERVAL));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_round_trip_through_text() {
        assert_eq!("bbr".parse(), Ok(Background::Tcp("bbr".to_owned())));
        assert_eq!("udp:100Mbit".parse(), Ok(Background::Udp(Rate::from_mbps(100))));
        assert!("udp".parse::<Background>().unwrap_err().contains("udp:100Mbit"));
        assert!("udp:fast".parse::<Background>().is_err());
        assert!("".parse::<Background>().is_err());
    }
}
