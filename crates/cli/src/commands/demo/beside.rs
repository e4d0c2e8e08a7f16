//! TCP over the demo's path: one flow at a time between two network namespaces, with equal stages and seed.

use std::net::TcpListener;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use std::{io, thread};

use haul_base::{Rate, Span};
use haul_sim::DropReason;
use haul_wan::{Emulator, V4, accept, drain, fill};
use serde::Serialize;
use socket2::{Domain, Protocol, Socket, Type};

use super::path::emulator;
use crate::args::PathArgs;

/// Maximum duration of a flow, from its first packet.
const MAX_DURATION: Duration = Duration::from_secs(10);
/// Interval of progress reports and of checks whether a flow is over.
const CHECK_INTERVAL: Duration = Duration::from_millis(100);
/// Congestion controls to show, in this order.
pub(super) const CONGESTIONS: [&str; 2] = ["cubic", "bbr"];

#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct TcpFlow {
    pub congestion: String,
    pub bytes: u64,
    /// Seconds from the first packet of the handshake to the last byte, or until it was ended.
    pub seconds: f64,
    pub goodput_bps: f64,
    /// The goodput's share of the path's rate.
    pub share: f64,
    /// Packets that the emulator itself dropped: if there are any, the flow measured the emulator.
    pub emulator_lost: u64,
}

#[derive(Debug, derive_more::From)]
pub(super) enum FlowError {
    /// The kernel lacks the congestion control.
    #[from(skip)]
    Missing(io::Error),
    Failed(io::Error),
}

/// Runs a flow alone on a new path, for at most 10 s and while `goes_on` of the bytes that arrived is true.
pub(super) fn flow(
    spec: &PathArgs,
    congestion: &str,
    bytes: u64,
    goes_on: impl FnMut(u64) -> bool + Send,
) -> Result<TcpFlow, FlowError> {
    let mut emulator = emulator(spec).map_err(io::Error::other)?;
    let (a, b) = (&emulator.world.a.namespace, &emulator.world.b.namespace);
    let listener = b.run(|| TcpListener::bind((V4[1], 0)))?;
    let socket = a.run(|| Socket::new(Domain::IPV4, Type::STREAM, Some(Protocol::TCP)))?;
    socket.set_tcp_congestion(congestion.as_bytes()).map_err(FlowError::Missing)?;
    let (bytes, took) = carry(socket, &listener, bytes, goes_on)?;
    if let Some(error) = emulator.failure() {
        return Err(io::Error::other(format!("the emulated path has failed: {error}")).into());
    }
    let emulator_lost = lost_by(&emulator)?;
    let (congestion, seconds) = (congestion.to_owned(), took.as_secs_f64());
    let goodput_bps = Rate::from_transfer(bytes, Span::from_secs_f64(seconds)).as_bps() as f64;
    let share = goodput_bps / spec.path_rate.as_bps().max(1) as f64;
    Ok(TcpFlow { congestion, bytes, seconds, goodput_bps, share, emulator_lost })
}

/// Returns the number of packets that the emulator dropped, or did not read in time.
fn lost_by(emulator: &Emulator) -> io::Result<u64> {
    let carried = emulator.snapshots().into_iter().flatten();
    let refused: u64 = carried.map(|way| way.drops.of(DropReason::Carrier)).sum();
    Ok(refused + emulator.world.a.device_drops()? + emulator.world.b.device_drops()?)
}

/// Sends `bytes` bytes from side A to side B. Returns how many arrived, and how long that took.
fn carry(
    socket: Socket,
    listener: &TcpListener,
    bytes: u64,
    mut goes_on: impl FnMut(u64) -> bool + Send,
) -> io::Result<(u64, Duration)> {
    let (sent, received, over) = (AtomicU64::new(0), AtomicU64::new(0), AtomicBool::new(false));
    let to = listener.local_addr()?;
    let started = Instant::now();
    thread::scope(|scope| {
        let sender = scope.spawn(|| -> io::Result<()> {
            socket.connect_timeout(&to.into(), MAX_DURATION)?;
            fill(&socket.into(), bytes, &over, &sent)
        });
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                if !goes_on(received.load(Ordering::Relaxed)) || started.elapsed() >= MAX_DURATION {
                    over.store(true, Ordering::Relaxed);
                }
                thread::sleep(CHECK_INTERVAL);
            }
        });
        // There is no stream if the path lost the handshake.
        let drained = accept(listener, &over)
            .and_then(|stream| stream.map_or(Ok(()), |stream| drain(&stream, bytes, &over, &received)));
        let took = started.elapsed();
        over.store(true, Ordering::Relaxed);
        // An error is no failure: the receiver may have gone; if nothing could be sent, no bytes arrived.
        drop(sender.join());
        drained.map(|()| (received.load(Ordering::Relaxed), took))
    })
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    #[test]
    fn a_tcp_flow_carries_the_given_bytes_and_stops() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let socket = Socket::new(Domain::IPV4, Type::STREAM, Some(Protocol::TCP)).unwrap();
        let (bytes, took) = carry(socket, &listener, 3_000_001, |_| true).unwrap();
        assert_eq!(bytes, 3_000_001);
        assert!(took < MAX_DURATION);
    }
}
