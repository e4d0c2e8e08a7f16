//! A relay on the loopback interface with one port toward the client, which carries TCP and UDP to the server as a path
//! of the given length, rate and loss would. Needs no privilege.

use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use haul_udp::{Options, SocketError, UdpSocket};

use super::spec::{PathCounts, PathSpec};
use super::tcp;
use super::udp::UdpRelay;
use crate::fault::{self, Fault, FaultCode};

/// How often a port is tried that must be free for TCP and UDP alike.
const PORT_TRIES: u32 = 20;

/// A running relay; stops when dropped.
#[derive(Debug)]
pub(super) struct Relay {
    address: SocketAddr,
    stop: Arc<AtomicBool>,
    counts: Arc<Mutex<PathCounts>>,
    threads: Vec<JoinHandle<()>>,
}

impl Relay {
    /// Starts a relay to `server` and returns at once; [`Relay::address`] is its near end.
    pub(super) fn start(spec: &PathSpec, server: SocketAddr) -> Result<Self, Fault> {
        let (listener, socket) = bind_pair().map_err(|e| cannot_start(&e))?;
        let address = listener.local_addr().map_err(|e| cannot_start(&e))?;
        let (stop, counts) = (Arc::new(AtomicBool::new(false)), Arc::default());
        let udp = UdpRelay::new(spec, socket, server, Arc::clone(&stop), Arc::clone(&counts))
            .map_err(|e| no_such_path(&e))?;
        let mut relay = Self { address, stop, counts, threads: Vec::new() };
        let (rtt, stop) = (spec.rtt, Arc::clone(&relay.stop));
        relay.spawn("path-udp", move || udp.run())?;
        relay.spawn("path-tcp", move || tcp::accept_all(&listener, server, rtt, &stop))?;
        Ok(relay)
    }

    fn spawn(&mut self, name: &str, work: impl FnOnce() + Send + 'static) -> Result<(), Fault> {
        let thread = std::thread::Builder::new().name(name.to_owned()).spawn(work);
        self.threads.push(thread.map_err(|e| cannot_start(&e))?);
        Ok(())
    }

    /// Where the client connects to, TCP and UDP.
    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }

    pub(super) fn counts(&self) -> PathCounts {
        *self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            // A panic of the relay has been reported by its thread.
            let _ = thread.join();
        }
    }
}

/// What was asked for cannot be emulated.
pub(super) fn no_such_path(error: &haul_sim::SpecError) -> Fault {
    fault::usage(format!("there is no such path: {error}"), "see `haul demo --help`")
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

#[cfg(test)]
mod tests;
