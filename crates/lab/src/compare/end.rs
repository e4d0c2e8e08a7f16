//! Both ends of an emulated path: the kernel's TCP, and UDP with sequence numbers and timestamps.

use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::num::NonZeroU64;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use clap::Args;
use haul_base::{Ecn, Span, WithCauses};
use haul_udp::{Interest, Offload, Options, Receiver, RecvError, SendError, UdpSocket};
use serde::{Deserialize, Serialize};
use socket2::{Domain, Protocol, Socket, Type};

use super::cases::{Law, Offer, PACKET};
use super::diag;
use super::figures::{Arrivals, Sample, Series};
use super::simulated::EVERY;

/// Port of the receivers.
const PORT: u16 = 5_201;
/// Length of IPv4 and UDP headers.
const HEADERS: u32 = 28;
/// Timeout for a connection, the first packet, or the other end's results.
const TIMEOUT: Duration = Duration::from_secs(20);
/// Interval at which a blocked thread checks whether to stop.
const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// The receiver ends when nothing has arrived for this long.
const SILENCE: Duration = Duration::from_millis(1_500);
/// A packet is awaited without sleeping for this long before its sending time.
const SPIN: Duration = Duration::from_micros(60);

/// Arguments of the hidden command `compare-end`.
#[derive(Debug, Args)]
pub(crate) struct EndArgs {
    /// The task, as JSON
    task: String,
}

/// Task of one end.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Task {
    /// Reads from all connections.
    TcpSink,
    /// Fills one connection for each law, and prints a [`Series`].
    TcpSource {
        /// Law of each flow.
        laws: Vec<Law>,
        /// Duration, milliseconds.
        time_ms: u64,
    },
    /// Records arrivals, and writes [`Arrivals`] to a file.
    UdpSink { out: PathBuf },
    /// Sends numbered packets, waits for the sink's file, and prints the actual sending times in nanoseconds
    /// since the first packet.
    UdpSource {
        offer: Offer,
        /// Duration, milliseconds.
        time_ms: u64,
        /// Seed of random sending times.
        seed: u64,
        /// File written by the sink.
        results: PathBuf,
    },
}

/// Runs one end.
pub(crate) fn end(args: &EndArgs) -> ExitCode {
    // Both only improve precision; errors for lack of privileges are ignored.
    let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(1));
    let _ = rustix::process::setpriority_process(None, -20);
    let task = serde_json::from_str(&args.task).map_err(io::Error::from);
    match task.and_then(|task| run(&task)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("haul-lab: compare-end: {}", WithCauses(&error));
            ExitCode::from(1)
        }
    }
}

fn run(task: &Task) -> io::Result<()> {
    match task {
        Task::TcpSink => tcp_sink(),
        Task::TcpSource { laws, time_ms } => {
            let series = tcp_source(laws, Duration::from_millis(*time_ms))?;
            serde_json::to_writer(io::stdout().lock(), &series).map_err(io::Error::from)
        }
        Task::UdpSink { out } => udp_sink(out),
        Task::UdpSource { offer, time_ms, seed, results } => {
            let stamps = udp_source(&offer.times(Span::from_millis(*time_ms), *seed), results)?;
            serde_json::to_writer(io::stdout().lock(), &stamps).map_err(io::Error::from)
        }
    }
}

/// Returns the address of a side, from the environment set by the emulator.
fn side(variable: &str) -> io::Result<IpAddr> {
    let text = std::env::var(variable).map_err(|e| io::Error::other(format!("{variable}: {e}")))?;
    text.parse::<Ipv4Addr>().map(IpAddr::V4).map_err(io::Error::other)
}

fn tcp_sink() -> io::Result<()> {
    let listener = TcpListener::bind((side("HAUL_WAN_B")?, PORT))?;
    loop {
        let (mut stream, _) = listener.accept()?;
        thread::spawn(move || {
            let mut buffer = vec![0; 1 << 18];
            while stream.read(&mut buffer).is_ok_and(|len| len > 0) {}
        });
    }
}

fn connect(law: Law, to: SocketAddr) -> io::Result<TcpStream> {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, Some(Protocol::TCP))?;
    let name = law.name();
    socket.set_tcp_congestion(name.as_bytes()).map_err(|error| {
        io::Error::new(error.kind(), format!("this kernel has no congestion control `{name}`: {error}"))
    })?;
    socket.connect_timeout(&to.into(), TIMEOUT)?;
    let stream = TcpStream::from(socket);
    stream.set_write_timeout(Some(POLL_INTERVAL))?;
    Ok(stream)
}

fn tcp_source(laws: &[Law], time: Duration) -> io::Result<Series> {
    let to = SocketAddr::new(side("HAUL_WAN_B")?, PORT);
    let streams = laws.iter().map(|law| connect(*law, to)).collect::<io::Result<Vec<_>>>()?;
    let ports = streams.iter().map(|s| Ok(s.local_addr()?.port())).collect::<io::Result<Vec<_>>>()?;
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        for stream in &streams {
            scope.spawn(|| fill(stream, &stop));
        }
        let series = watch(&ports, time);
        stop.store(true, Ordering::Relaxed);
        series
    })
}

fn fill(mut stream: &TcpStream, stop: &AtomicBool) {
    let buffer = vec![0; 1 << 18];
    while !stop.load(Ordering::Relaxed) {
        match stream.write(&buffer) {
            Err(e) if !matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => return,
            _ => {}
        }
    }
}

fn watch(ports: &[u16], time: Duration) -> io::Result<Series> {
    let begin = Instant::now();
    let mut series = Series { flows: vec![Vec::new(); ports.len()] };
    let mut due = Duration::ZERO;
    while due <= time {
        thread::sleep(due.saturating_sub(begin.elapsed()));
        let at_ns = Span::from(begin.elapsed()).as_nanos();
        let connections = diag::connections()?;
        for (samples, port) in series.flows.iter_mut().zip(ports) {
            let found = connections.iter().find(|info| info.port == *port);
            let info = found.ok_or_else(|| io::Error::other("a connection ended early"))?;
            samples.push(Sample {
                at_ns,
                delivered: info.delivered.into(),
                sent: info.sent.into(),
                repeated: info.repeated.into(),
                srtt_ns: u64::from(info.srtt_us) * 1_000,
                window: info.window.into(),
            });
        }
        due += Duration::from(EVERY);
    }
    Ok(series)
}

/// Returns the wall-clock time, which the kernel's arrival timestamps use.
fn today() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| Span::from(time).as_nanos())
}

fn udp_source(times: &[Span], results: &Path) -> io::Result<Vec<u64>> {
    let options = Options { offload: Offload::Off, ..Options::default() };
    let socket =
        UdpSocket::bind(SocketAddr::new(side("HAUL_WAN_A")?, 0), &options).map_err(io::Error::other)?;
    socket.connect(SocketAddr::new(side("HAUL_WAN_B")?, PORT)).map_err(io::Error::other)?;
    let mut packet = vec![0x5a; (PACKET - HEADERS) as usize];
    let (mut stamps, mut start) = (Vec::with_capacity(times.len()), None);
    let begin = Instant::now();
    for (number, at) in times.iter().enumerate() {
        let due = Duration::from(*at);
        thread::sleep(due.saturating_sub(begin.elapsed() + SPIN));
        while begin.elapsed() < due {
            std::hint::spin_loop();
        }
        packet[..8].copy_from_slice(&(number as u64).to_le_bytes());
        let now = today();
        packet[8..16].copy_from_slice(&now.to_le_bytes());
        stamps.push(now.saturating_sub(*start.get_or_insert(now)));
        while let Err(error) = socket.send(&packet, packet.len(), Ecn::NotEct) {
            match error {
                SendError::WouldBlock(_) => socket.wait(Interest::Write, POLL_INTERVAL)?,
                error => return Err(io::Error::other(error)),
            };
        }
    }
    let started = Instant::now();
    while !results.exists() {
        if started.elapsed() > TIMEOUT {
            return Err(io::Error::other("the receiver wrote no results"));
        }
        thread::sleep(POLL_INTERVAL);
    }
    Ok(stamps)
}

/// Parses a packet's number and computes its delay.
fn entry(data: &[u8], arrival: Option<haul_udp::Arrival>) -> Option<(u64, u64)> {
    let number = u64::from_le_bytes(*data.first_chunk()?);
    let sent = u64::from_le_bytes(*data.get(8..)?.first_chunk()?);
    let arrival = Span::from(arrival?.since_unix_epoch()).as_nanos();
    Some((number, arrival.saturating_sub(sent)))
}

fn udp_sink(out: &Path) -> io::Result<()> {
    let address = SocketAddr::new(side("HAUL_WAN_B")?, PORT);
    let socket = UdpSocket::bind(address, &Options::default()).map_err(io::Error::other)?;
    let mut receiver = Receiver::new(&socket);
    let mut arrivals = Arrivals::default();
    let timeout = |begun: bool| if begun { SILENCE } else { TIMEOUT };
    while socket.wait(Interest::Read, timeout(!arrivals.delays.is_empty()))? {
        match receiver.recv(&socket) {
            Ok(_) => {}
            Err(RecvError::WouldBlock) => continue,
            Err(error) => return Err(io::Error::other(error)),
        }
        for mut batch in receiver.datagrams() {
            let arrival = batch.arrival;
            arrivals.delays.extend(batch.iter_mut().filter_map(|data| entry(data, arrival)));
        }
    }
    // The file is renamed when complete, so that a waiting reader never sees a part.
    let part = out.with_extension("part");
    std::fs::write(&part, serde_json::to_vec(&arrivals)?)?;
    std::fs::rename(part, out)
}
