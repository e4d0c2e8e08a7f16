//! TCP on the demo's path, beside our transfer: one flow at a time between two network namespaces, through the same
//! stages with the same seed. All of it is in a process of its own (`haul demo-tcp`), since only a process with one
//! thread can enter a user namespace. The namespaces have no names, so they are gone when that process is.

use std::io::{self, BufRead, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use haul_base::{Rate, Span};
use haul_sim::DropReason;
use haul_wan::{Emulator, EmulatorOptions, Names, TcpWindow, V4, acquire};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use socket2::{Domain, Protocol, Socket, Type};

use super::spec::PathSpec;

/// The longest that one flow may take, from its first packet on.
const LONGEST: Duration = Duration::from_secs(10);
/// How often a blocked flow looks whether it is over, and progress is told.
const LOOK: Duration = Duration::from_millis(100);
/// Bytes read or written at a time.
const BLOCK: usize = 256 << 10;
/// The congestion controls that are shown, in this order.
pub const CONGESTIONS: [&str; 2] = ["cubic", "bbr"];

/// What the process is told on its standard input, on one line. It ends when that is closed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TcpJob {
    /// The stages of each direction.
    pub stages: haul_sim::PathSpec,
    /// Longest IP packet.
    pub mtu: u16,
    /// Seed of the losses.
    pub seed: u64,
    /// Bytes that each flow carries.
    pub bytes: u64,
}

impl TcpJob {
    /// `bytes` over this path.
    pub fn new(spec: &PathSpec, bytes: u64) -> Self {
        Self { stages: spec.stages(), mtu: spec.mtu, seed: spec.seed, bytes }
    }
}

/// What the process says on its standard output, one of these on each line.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "news", rename_all = "snake_case")]
pub enum TcpNews {
    /// There can be no such path here, and why.
    LeftOut {
        /// In words.
        why: String,
    },
    /// A flow goes on.
    Progress {
        /// Its congestion control.
        congestion: String,
        /// Bytes that have arrived.
        bytes: u64,
    },
    /// A flow is over.
    Done(TcpFlow),
    /// The kernel does not have this congestion control.
    Missing {
        /// Which.
        congestion: String,
        /// In words.
        why: String,
    },
}

/// What a TCP flow has done, memory to memory.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TcpFlow {
    /// Its congestion control.
    pub congestion: String,
    /// Bytes that have arrived.
    pub bytes: u64,
    /// Seconds from the first packet of the handshake to the last byte, or until it was ended.
    pub seconds: f64,
    /// Packets that the emulator itself had no room or time for: with any, it is the emulator that was measured.
    pub emulator_lost: u64,
}

impl TcpFlow {
    /// Bytes that have arrived per second.
    pub fn goodput(&self) -> Rate {
        Rate::from_transfer(self.bytes, Span::from_secs_f64(self.seconds))
    }

    /// For scripts; `path` is the rate of the path.
    pub(crate) fn json(&self, path: Rate) -> Value {
        let goodput = self.goodput().as_bps() as f64;
        json!({
            "congestion": self.congestion,
            "bytes": self.bytes,
            "seconds": self.seconds,
            "goodput_bps": goodput,
            "share": goodput / path.as_bps().max(1) as f64,
            "emulator_lost": self.emulator_lost,
        })
    }
}

/// TCP on the path of a demo.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct TcpBeside {
    /// The rate of the path.
    pub path: Rate,
    /// The flows, each alone on the path.
    pub flows: Vec<TcpFlow>,
    /// Congestion controls that this kernel does not have, and in which words it said so.
    pub missing: Vec<(String, String)>,
    /// Why flows are left out, if they are.
    pub left_out: Option<String>,
}

impl TcpBeside {
    /// For scripts.
    pub(crate) fn json(&self) -> Value {
        let flows: Vec<Value> = self.flows.iter().map(|flow| flow.json(self.path)).collect();
        let missing = self.missing.iter().map(|(name, why)| json!({ "congestion": name, "why": why }));
        json!({ "flows": flows, "missing": missing.collect::<Vec<_>>(), "left_out": self.left_out })
    }
}

/// What the hidden command does: reads a [`TcpJob`], runs the flows, and says how they went.
///
/// # Errors
/// When nobody tells it what to do, or hears what it says.
pub fn run_tcp_flows() -> io::Result<()> {
    let mut line = String::new();
    io::stdin().lock().read_line(&mut line)?;
    let job: TcpJob = serde_json::from_str(&line)?;
    if let Err(error) = acquire() {
        let hint = if error.is_missing_privilege() { "; run it as root (sudo) to see it" } else { "" };
        return say(&TcpNews::LeftOut { why: format!("{error}{hint}") });
    }
    // From here on there may be threads.
    thread::Builder::new().name("orders".to_owned()).spawn(end_with_input)?;
    for congestion in CONGESTIONS {
        match flow(&job, congestion) {
            Ok(news) => say(&news)?,
            Err(error) => return say(&TcpNews::LeftOut { why: error.to_string() }),
        }
    }
    Ok(())
}

/// Whoever started this process is gone, or wants no more: nothing is worth keeping.
fn end_with_input() {
    let _ = io::stdin().lock().read_to_end(&mut Vec::new());
    std::process::exit(0);
}

fn say(news: &TcpNews) -> io::Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "{}", serde_json::to_string(news)?)?;
    out.flush()
}

/// One flow, alone on a new path.
fn flow(job: &TcpJob, congestion: &str) -> io::Result<TcpNews> {
    let mut emulator = Emulator::start(&EmulatorOptions {
        forth: &job.stages,
        back: &job.stages,
        seed: job.seed,
        mtu: job.mtu.into(),
        offload: true,
        window: TcpWindow::Path,
        cpu: None,
        names: Names::Hidden,
    })
    .map_err(io::Error::other)?;
    let (a, b) = (&emulator.world.a.namespace, &emulator.world.b.namespace);
    let listener = b.run(|| TcpListener::bind((V4[1], 0)))?;
    let socket = a.run(|| Socket::new(Domain::IPV4, Type::STREAM, Some(Protocol::TCP)))?;
    if let Err(error) = socket.set_tcp_congestion(congestion.as_bytes()) {
        let why = format!("the kernel does not have it ({error})");
        return Ok(TcpNews::Missing { congestion: congestion.to_owned(), why });
    }
    let (bytes, took) = carry(socket, &listener, job.bytes, congestion)?;
    if let Some(error) = emulator.failure() {
        return Err(io::Error::other(format!("the emulated path has failed: {error}")));
    }
    let emulator_lost = lost_by(&emulator)?;
    let (congestion, seconds) = (congestion.to_owned(), took.as_secs_f64());
    Ok(TcpNews::Done(TcpFlow { congestion, bytes, seconds, emulator_lost }))
}

/// Packets that did not come through for another reason than the path.
fn lost_by(emulator: &Emulator) -> io::Result<u64> {
    let carried = emulator.snapshots().into_iter().flatten();
    let refused: u64 = carried.map(|way| way.drops.of(DropReason::Carrier)).sum();
    Ok(refused + emulator.world.a.device_drops()? + emulator.world.b.device_drops()?)
}

/// Sends `bytes` from side A to side B; how many arrived, and how long that took.
fn carry(
    socket: Socket,
    listener: &TcpListener,
    bytes: u64,
    congestion: &str,
) -> io::Result<(u64, Duration)> {
    let (received, over) = (AtomicU64::new(0), AtomicBool::new(false));
    let to = listener.local_addr()?;
    let started = Instant::now();
    thread::scope(|scope| {
        let sender = scope.spawn(|| -> io::Result<()> {
            socket.connect_timeout(&to.into(), LONGEST)?;
            fill(&socket.into(), bytes, &over)
        });
        let reporter = scope.spawn(|| tell(congestion, &received, &over));
        let took = accept_until(listener, started + LONGEST)
            .and_then(|stream| stream.map_or(Ok(LONGEST), |stream| drain(stream, bytes, started, &received)));
        over.store(true, Ordering::Relaxed);
        reporter.join().unwrap_or_else(|_| Err(io::Error::other("the reporting thread has crashed")))?;
        // That the receiver has gone is no failure of the sender; that nothing could be sent shows in the bytes.
        drop(sender.join());
        took.map(|took| (received.load(Ordering::Relaxed), took))
    })
}

/// The first connection; `None` if there is none by then, because the path has eaten the handshake.
fn accept_until(listener: &TcpListener, end: Instant) -> io::Result<Option<TcpStream>> {
    listener.set_nonblocking(true)?;
    loop {
        match listener.accept() {
            Ok((stream, _)) => return stream.set_nonblocking(false).map(|()| Some(stream)),
            Err(error) if error.kind() != io::ErrorKind::WouldBlock => return Err(error),
            Err(_) if Instant::now() > end => return Ok(None),
            Err(_) => thread::sleep(LOOK / 100),
        }
    }
}

fn is_pause(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut | io::ErrorKind::Interrupted)
}

/// Writes `bytes` bytes, or until it is over.
fn fill(mut stream: &TcpStream, bytes: u64, over: &AtomicBool) -> io::Result<()> {
    stream.set_write_timeout(Some(LOOK))?;
    let block = vec![0; BLOCK];
    let mut left = bytes;
    while left > 0 && !over.load(Ordering::Relaxed) {
        match stream.write(&block[..left.min(BLOCK as u64) as usize]) {
            Ok(written) => left -= written as u64,
            Err(error) if is_pause(&error) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Reads until all `bytes` are there or the time is over; how long that took since `started`.
fn drain(mut stream: TcpStream, bytes: u64, started: Instant, received: &AtomicU64) -> io::Result<Duration> {
    stream.set_read_timeout(Some(LOOK))?;
    let mut block = vec![0; BLOCK];
    while started.elapsed() < LONGEST {
        match stream.read(&mut block) {
            Ok(0) => break,
            Ok(read) => {
                if received.fetch_add(read as u64, Ordering::Relaxed) + read as u64 >= bytes {
                    break;
                }
            }
            Err(error) if is_pause(&error) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(started.elapsed())
}

/// Says how far it is.
fn tell(congestion: &str, received: &AtomicU64, over: &AtomicBool) -> io::Result<()> {
    while !over.load(Ordering::Relaxed) {
        let bytes = received.load(Ordering::Relaxed);
        say(&TcpNews::Progress { congestion: congestion.to_owned(), bytes })?;
        thread::sleep(LOOK);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use haul_base::{Probability, Span};

    use super::*;

    #[test]
    fn the_path_is_told_to_the_bit_and_the_nanosecond() {
        let spec = PathSpec {
            rtt: Span::from_nanos(50_000_002),
            rate: Rate::from_bps(123_456_789),
            loss: Probability::new(0.001_234_567).unwrap(),
            mtu: 1_500,
            seed: u64::MAX,
        };
        let job = TcpJob::new(&spec, 7);
        let line = serde_json::to_string(&job).unwrap();
        assert!(!line.contains('\n'));
        assert_eq!(serde_json::from_str::<TcpJob>(&line).unwrap(), job);
    }

    #[test]
    fn a_flow_carries_what_it_is_given_and_stops() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let socket = Socket::new(Domain::IPV4, Type::STREAM, Some(Protocol::TCP)).unwrap();
        let (bytes, took) = carry(socket, &listener, 3_000_001, "test").unwrap();
        assert_eq!(bytes, 3_000_001);
        assert!(took < LONGEST);
    }
}
