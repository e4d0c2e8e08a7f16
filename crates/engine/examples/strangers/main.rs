//! Connects to a server on this machine without knowing its secret, at a given rate: `strangers ADDR:PORT
//! KIND RATE SECONDS THREADS`. The cost to the server is measured separately (scripts/bench/strangers.sh).
//!
//! KIND is `plain` (connects and closes), `hold` (connects and is silent for 5 s) or `proof` (completes TLS,
//! sends a wrong proof and waits for the refusal).

mod stranger;

use std::collections::VecDeque;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use haul_wire::control::FaultCode;
use rustls::ClientConfig;
use stranger::Stranger;

/// Source address of the connections.
const FROM: IpAddr = IpAddr::V4(Ipv4Addr::new(127, 9, 0, 1));
/// Timeout of every step.
const TIMEOUT: Duration = Duration::from_secs(2);
/// Time for which a connection is held.
const HOLD_TIME: Duration = Duration::from_secs(5);
/// Maximum connections per second, seconds and threads.
const LIMITS: (u64, u64, u64) = (20_000, 120, 64);

const USAGE: &str = "strangers 127.0.0.1:PORT plain|hold|proof RATE SECONDS THREADS
to an address of this machine; at most 20000 a second, 120 seconds, 64 threads";

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Plain,
    Hold,
    Proof,
}

#[derive(Default)]
struct Counts {
    connected: AtomicU64,
    refused: AtomicU64,
    closed: AtomicU64,
    failed: AtomicU64,
}

struct Load {
    to: SocketAddr,
    kind: Kind,
    rate: u64,
    seconds: u64,
    threads: u64,
}

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let Some(load) = parse(&args) else {
        eprintln!("{USAGE}");
        return ExitCode::from(2);
    };
    run(&load);
    ExitCode::SUCCESS
}

fn parse(args: &[String]) -> Option<Load> {
    let [to, kind, numbers @ ..] = args else { return None };
    let to: SocketAddr = to.parse().ok()?;
    let kind = match kind.as_str() {
        "plain" => Kind::Plain,
        "hold" => Kind::Hold,
        "proof" => Kind::Proof,
        _ => return None,
    };
    let numbers: Vec<u64> = numbers.iter().map(|word| word.parse().ok()).collect::<Option<_>>()?;
    let [rate, seconds, threads] = numbers[..] else { return None };
    let fits = |value, max| (1..=max).contains(&value);
    let is_bounded = fits(rate, LIMITS.0) && fits(seconds, LIMITS.1) && fits(threads, LIMITS.2);
    (to.ip().is_loopback() && is_bounded).then_some(Load { to, kind, rate, seconds, threads })
}

fn run(load: &Load) {
    let (counts, config, started) = (Counts::default(), stranger::config(), Instant::now());
    std::thread::scope(|scope| {
        for _ in 0..load.threads {
            scope.spawn(|| connect_clients(load, &counts, &config, started));
        }
    });
    let seconds = started.elapsed().as_secs_f64();
    let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    println!(
        "{:.0} connections/s for {seconds:.1} s: {} connected, {} refused, {} closed by the server, {} not connected",
        count(&counts.connected) as f64 / seconds,
        count(&counts.connected),
        count(&counts.refused),
        count(&counts.closed),
        count(&counts.failed),
    );
}

/// One thread's part of the load.
fn connect_clients(load: &Load, counts: &Counts, config: &Arc<ClientConfig>, started: Instant) {
    let each = Duration::from_secs_f64(load.threads as f64 / load.rate as f64);
    let (mut next, mut held) = (started, VecDeque::<(Instant, TcpStream)>::new());
    while started.elapsed() < Duration::from_secs(load.seconds) {
        std::thread::sleep(next.saturating_duration_since(Instant::now()));
        // Missed connections are not made up for later.
        next = (next + each).max(Instant::now().checked_sub(Duration::from_millis(100)).unwrap_or(next));
        while held.front().is_some_and(|(since, _)| since.elapsed() > HOLD_TIME) {
            held.pop_front();
        }
        match stranger::dial(FROM, load.to, TIMEOUT) {
            Ok(tcp) => {
                count(&counts.connected);
                match load.kind {
                    Kind::Plain => {}
                    Kind::Hold => held.push_back((Instant::now(), tcp)),
                    Kind::Proof => prove(tcp, config, counts),
                }
            }
            Err(_) => count(&counts.failed),
        }
    }
}

fn prove(tcp: TcpStream, config: &Arc<ClientConfig>, counts: &Counts) {
    let answered = Stranger::secure(tcp, config).and_then(|mut stranger| {
        stranger.send_wrong_proof(stranger::HEAD.len() as u32)?;
        stranger.refusal()
    });
    let is_refused = answered.is_ok_and(|fault| fault.code == FaultCode::NotAuthorised);
    count(if is_refused { &counts.refused } else { &counts.closed });
}

fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}
