//! Measures how fast datagrams go from one socket to another. Sends empty content as fast as the kernel
//! accepts it and does not process it: the upper bound for a transport on this driver.
//!
//! ```text
//! blaster recv --bind ADDR:PORT [--plain]
//! blaster send --to ADDR:PORT [--seconds 5] [--size 1448] [--plain]
//! ```
//!
//! Each side prints one line of JSON. The receiver starts its clock at the first datagram and ends after 1 s
//! without any, which it does not count. `--plain` disables GSO and GRO: one socket buffer per datagram,
//! `sendmmsg` and `recvmmsg`.

use std::error::Error;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use haul_base::{Ecn, WithCauses};
use haul_udp::{FullQueue, Interest, Offload, Options, Receiver, RecvError, SendError, UdpSocket};

/// Silence after which the receiver ends.
const QUIET: Duration = Duration::from_secs(1);
/// Bytes that the sender passes per call: the maximum with GSO.
const SLOT: usize = 65_507;
const USAGE: &str = "usage: blaster recv --bind ADDR:PORT [--plain]
       blaster send --to ADDR:PORT [--seconds 5] [--size 1448] [--plain]";

enum Job {
    Recv { bind: SocketAddr },
    Send { to: SocketAddr, time: Duration, size: usize },
}

fn main() -> ExitCode {
    let (job, offload) = match parse(std::env::args().skip(1)) {
        Ok(parsed) => parsed,
        Err(error) => {
            eprintln!("blaster: {error}\n{USAGE}");
            return ExitCode::from(2);
        }
    };
    let done = match job {
        Job::Recv { bind } => receive(bind, offload),
        Job::Send { to, time, size } => send(to, time, size, offload),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("blaster: {}", WithCauses(&*error));
            ExitCode::FAILURE
        }
    }
}

fn parse(mut args: impl Iterator<Item = String>) -> Result<(Job, Offload), String> {
    let role = args.next().ok_or("say `recv` or `send`")?;
    let (mut addr, mut seconds, mut size, mut offload) = (None, 5.0, 1448, Offload::Auto);
    while let Some(flag) = args.next() {
        let mut value = || args.next().ok_or(format!("{flag} needs a value"));
        match (role.as_str(), flag.as_str()) {
            (_, "--plain") => offload = Offload::Off,
            ("recv", "--bind") | ("send", "--to") => addr = Some(number(&flag, &value()?, "10.0.0.1:7000")?),
            ("send", "--seconds") => seconds = number(&flag, &value()?, "5")?,
            ("send", "--size") => size = number(&flag, &value()?, "1448")?,
            _ => return Err(format!("`{role}` does not know `{flag}`")),
        }
    }
    let time = Duration::try_from_secs_f64(seconds).map_err(|_| "--seconds must not be negative")?;
    if !(1..=SLOT).contains(&size) {
        return Err(format!("--size must lie between 1 and {SLOT} bytes"));
    }
    match (role.as_str(), addr) {
        ("recv", Some(bind)) => Ok((Job::Recv { bind }, offload)),
        ("send", Some(to)) => Ok((Job::Send { to, time, size }, offload)),
        ("recv", None) => Err("recv needs --bind ADDR:PORT".to_owned()),
        ("send", None) => Err("send needs --to ADDR:PORT".to_owned()),
        _ => Err(format!("`{role}` is neither `recv` nor `send`")),
    }
}

fn number<T: std::str::FromStr>(flag: &str, text: &str, example: &str) -> Result<T, String> {
    text.parse().map_err(|_| format!("`{text}` will not do for {flag}; write for example {example}"))
}

/// Returns this process's CPU time so far in seconds, if available (`/proc/self/schedstat`).
fn cpu_seconds() -> Option<f64> {
    let text = std::fs::read_to_string("/proc/self/schedstat").ok()?;
    let nanos: f64 = text.split_whitespace().next()?.parse().ok()?;
    Some(nanos / 1e9)
}

/// The printed results.
struct Report {
    role: &'static str,
    offload: Offload,
    bytes: u64,
    packets: u64,
    calls: u64,
    drops: Option<u32>,
    elapsed: Duration,
    cpu: Option<f64>,
}

impl Report {
    fn print(&self) {
        let Self { role, bytes, packets, calls, .. } = self;
        let seconds = self.elapsed.as_secs_f64();
        let gbit = if seconds > 0.0 { *bytes as f64 * 8e-9 / seconds } else { 0.0 };
        let or_null = |value: Option<String>| value.unwrap_or_else(|| "null".to_owned());
        let drops = or_null(self.drops.map(|drops| drops.to_string()));
        let cpu = or_null(self.cpu.map(|cpu| format!("{cpu:.3}")));
        let plain = self.offload == Offload::Off;
        println!(
            "{{\"role\":\"{role}\",\"plain\":{plain},\"gbit_per_s\":{gbit:.3},\"bytes\":{bytes},\
             \"packets\":{packets},\"calls\":{calls},\"socket_drops\":{drops},\"seconds\":{seconds:.3},\
             \"cpu_seconds\":{cpu}}}"
        );
    }
}

fn receive(bind: SocketAddr, offload: Offload) -> Result<(), Box<dyn Error>> {
    let socket = UdpSocket::bind(bind, &Options { offload, ..Options::default() })?;
    eprintln!("{}", socket.capabilities());
    let mut receiver = Receiver::new(&socket);
    while !socket.wait(Interest::Read, Duration::from_secs(3600))? {}
    let (start, cpu_start) = (Instant::now(), cpu_seconds());
    let (mut bytes, mut packets, mut calls) = (0, 0, 0);
    let end = loop {
        match receiver.recv(&socket) {
            Ok(_) => {
                calls += 1;
                for batch in receiver.datagrams() {
                    bytes += batch.data.len() as u64;
                    packets += batch.count() as u64;
                }
            }
            Err(RecvError::WouldBlock) => {
                let idle = Instant::now();
                if !socket.wait(Interest::Read, QUIET)? {
                    break idle;
                }
            }
            Err(error) if error.is_fatal() => return Err(error.into()),
            Err(_) => {}
        }
    };
    let drops = socket.socket_memory().ok().map(|memory| memory.drops);
    // The silent second takes no CPU time.
    let cpu = cpu_seconds().zip(cpu_start).map(|(end, start)| end - start);
    Report { role: "recv", offload, bytes, packets, calls, drops, elapsed: end - start, cpu }.print();
    Ok(())
}

fn send(to: SocketAddr, time: Duration, size: usize, offload: Offload) -> Result<(), Box<dyn Error>> {
    let any: IpAddr = if to.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let socket = UdpSocket::bind(SocketAddr::new(any, 0), &Options { offload, ..Options::default() })?;
    socket.connect(to)?;
    eprintln!("{}", socket.capabilities());
    let slot = vec![0x5a; SLOT / size * size];
    let (start, cpu_start) = (Instant::now(), cpu_seconds());
    let (mut bytes, mut packets, mut calls) = (0, 0, 0);
    while start.elapsed() < time {
        match socket.send(&slot, size, Ecn::NotEct) {
            Ok(sent) => {
                calls += 1;
                bytes += sent.bytes as u64;
                packets += sent.datagrams as u64;
            }
            Err(SendError::WouldBlock(FullQueue::SocketBuffer)) => {
                socket.wait(Interest::Write, QUIET)?;
            }
            Err(SendError::WouldBlock(FullQueue::LocalQueue)) => std::thread::yield_now(),
            Err(error @ SendError::TooLarge) => return Err(format!("{error} than --size {size}").into()),
            Err(error) if error.is_fatal() => return Err(error.into()),
            // No receiver or no route yet: retry until the time is over.
            Err(_) => std::thread::sleep(Duration::from_millis(1)),
        }
    }
    let elapsed = start.elapsed();
    let cpu = cpu_seconds().zip(cpu_start).map(|(end, start)| end - start);
    Report { role: "send", offload, bytes, packets, calls, drops: None, elapsed, cpu }.print();
    let stats = socket.stats();
    if stats != haul_udp::Stats::default() {
        eprintln!("{stats:?}");
    }
    Ok(())
}
