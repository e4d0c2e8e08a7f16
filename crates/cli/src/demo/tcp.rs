//! The TCP half of the emulated path: bytes pass unchanged and late. The rate is not emulated, since only
//! small control messages travel here; connecting takes a round trip, as it would.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use haul_base::Span;

use super::spec::relay_problem;

/// Bytes read at a time.
const READ: usize = 64 * 1024;
/// Reads under way in one direction; beyond it the sender has to wait.
const UNDER_WAY: usize = 1_024;
/// How soon a stop is noticed.
const POLL: Duration = Duration::from_millis(20);

/// What travels, with the time when it came in: bytes, none at the end, or that the connection broke.
type Parcel = (Instant, io::Result<Vec<u8>>);

/// Accepts connections and passes their bytes on until it is told to stop.
pub(super) fn accept_all(listener: &TcpListener, server: SocketAddr, rtt: Span, stop: &Arc<AtomicBool>) {
    if let Err(error) = listener.set_nonblocking(true) {
        return relay_problem("listening for TCP connections", &error);
    }
    // Accepting must not add noticeably to the path's delay.
    let poll = Duration::from(rtt / 50).clamp(Duration::from_millis(1), POLL);
    while !stop.load(Ordering::Relaxed) {
        match listener.accept() {
            Ok((client, _)) => {
                if let Err(error) = connect_through(client, server, rtt, stop) {
                    relay_problem("a TCP connection", &error);
                }
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => thread::sleep(poll),
            Err(error) => {
                relay_problem("accepting TCP connections", &error);
                thread::sleep(POLL);
            }
        }
    }
}

fn connect_through(
    client: TcpStream,
    server: SocketAddr,
    rtt: Span,
    stop: &Arc<AtomicBool>,
) -> io::Result<()> {
    // The kernel has completed the client's handshake at once; on the path it would have taken a round trip.
    let connected = Instant::now() + Duration::from(rtt);
    client.set_nonblocking(false)?;
    let upstream = TcpStream::connect(server)?;
    for stream in [&client, &upstream] {
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(POLL))?;
    }
    let one_way = Duration::from(rtt / 2);
    pipe(client.try_clone()?, upstream.try_clone()?, (one_way, connected), stop)?;
    pipe(upstream, client, (one_way, connected), stop)
}

/// Passes bytes from one stream to the other, `delay` later; none before `connected`.
fn pipe(
    from: TcpStream,
    to: TcpStream,
    (delay, connected): (Duration, Instant),
    stop: &Arc<AtomicBool>,
) -> io::Result<()> {
    let (sender, receiver) = sync_channel(UNDER_WAY);
    let (reading, stop) = (from.try_clone()?, Arc::clone(stop));
    thread::Builder::new().name("path-tcp-in".to_owned()).spawn(move || read_all(reading, &sender, &stop))?;
    thread::Builder::new().name("path-tcp-out".to_owned()).spawn(move || {
        if write_all(&to, &receiver, delay, connected).is_err() {
            let _ = from.shutdown(Shutdown::Both);
            let _ = to.shutdown(Shutdown::Both);
        }
    })?;
    Ok(())
}

fn read_all(mut from: TcpStream, parcels: &SyncSender<Parcel>, stop: &AtomicBool) {
    let mut buffer = vec![0; READ];
    loop {
        let read = match from.read(&mut buffer) {
            Err(error) if is_pause(&error) && !stop.load(Ordering::Relaxed) => continue,
            read => read.map(|read| buffer[..read].to_vec()),
        };
        let is_last = read.as_ref().map_or(true, Vec::is_empty);
        if parcels.send((Instant::now(), read)).is_err() || is_last {
            return;
        }
    }
}

/// Whether a call with a time limit gave up, or was interrupted, and may be repeated.
pub(super) fn is_pause(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted)
}

fn write_all(
    mut to: &TcpStream,
    parcels: &Receiver<Parcel>,
    delay: Duration,
    connected: Instant,
) -> io::Result<()> {
    for (came, read) in parcels {
        let due = came.max(connected) + delay;
        thread::sleep(due.saturating_duration_since(Instant::now()));
        match read? {
            bytes if bytes.is_empty() => return to.shutdown(Shutdown::Write),
            bytes => to.write_all(&bytes)?,
        }
    }
    Ok(())
}
