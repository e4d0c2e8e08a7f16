//! The TCP half of the emulated path: bytes pass unchanged and late. The rate is not emulated, since only
//! small control messages travel here; connecting takes a round trip, as it would.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use haul_base::Span;

use super::counters::relay_problem;

/// Bytes read at a time.
const READ: usize = 64 * 1024;
/// Reads under way in one direction; beyond it the sender has to wait.
const UNDER_WAY: usize = 1_024;
/// How soon a stop is noticed.
const POLL: Duration = Duration::from_millis(20);

/// Accepts connections and passes them on until it is dropped.
#[derive(Debug)]
pub(super) struct TcpRelay {
    stop: Arc<AtomicBool>,
    accepting: Option<JoinHandle<()>>,
    open: Arc<Mutex<Vec<TcpStream>>>,
}

/// What travels: bytes, or the end, with the time when they came in.
enum Parcel {
    Bytes(Instant, Vec<u8>),
    End(Instant),
    Broken(Instant),
}

impl TcpRelay {
    pub(super) fn start(
        listener: TcpListener,
        server: SocketAddr,
        rtt: Span,
        stop: Arc<AtomicBool>,
    ) -> io::Result<Self> {
        listener.set_nonblocking(true)?;
        let open: Arc<Mutex<Vec<TcpStream>>> = Arc::default();
        let (stopping, streams) = (Arc::clone(&stop), Arc::clone(&open));
        let accepting = thread::Builder::new()
            .name("path-tcp".to_owned())
            .spawn(move || accept_all(&listener, server, rtt, &stopping, &streams))?;
        Ok(Self { stop, accepting: Some(accepting), open })
    }
}

impl Drop for TcpRelay {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(accepting) = self.accepting.take() {
            let _ = accepting.join();
        }
        // The threads of each connection end when its streams do.
        if let Ok(open) = self.open.lock() {
            for stream in open.iter() {
                let _ = stream.shutdown(Shutdown::Both);
            }
        }
    }
}

fn accept_all(
    listener: &TcpListener,
    server: SocketAddr,
    rtt: Span,
    stop: &AtomicBool,
    open: &Mutex<Vec<TcpStream>>,
) {
    while !stop.load(Ordering::Relaxed) {
        match listener.accept() {
            Ok((client, _)) => {
                if let Err(error) = connect_through(client, server, rtt, open) {
                    relay_problem("a TCP connection", &error);
                }
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => thread::sleep(POLL.min(rtt_poll(rtt))),
            Err(error) => {
                relay_problem("accepting TCP connections", &error);
                thread::sleep(POLL);
            }
        }
    }
}

/// Accepting must not add noticeably to the path's delay.
fn rtt_poll(rtt: Span) -> Duration {
    Duration::from(rtt / 50).max(Duration::from_millis(1))
}

fn connect_through(
    client: TcpStream,
    server: SocketAddr,
    rtt: Span,
    open: &Mutex<Vec<TcpStream>>,
) -> io::Result<()> {
    // The kernel has completed the client's handshake at once; on the path it would have taken a round trip.
    let connected = Instant::now() + Duration::from(rtt);
    client.set_nonblocking(false)?;
    let upstream = TcpStream::connect(server)?;
    for stream in [&client, &upstream] {
        stream.set_nodelay(true)?;
    }
    if let Ok(mut open) = open.lock() {
        open.push(client.try_clone()?);
        open.push(upstream.try_clone()?);
    }
    let one_way = Duration::from(rtt / 2);
    pipe(client.try_clone()?, upstream.try_clone()?, one_way, connected)?;
    pipe(upstream, client, one_way, connected)
}

/// Passes bytes from one stream to the other, `delay` later; none before `connected`.
fn pipe(from: TcpStream, to: TcpStream, delay: Duration, connected: Instant) -> io::Result<()> {
    let (sender, receiver) = sync_channel(UNDER_WAY);
    let reading = from.try_clone()?;
    thread::Builder::new().name("path-tcp-in".to_owned()).spawn(move || read_all(reading, &sender))?;
    thread::Builder::new().name("path-tcp-out".to_owned()).spawn(move || {
        if write_all(&to, &receiver, delay, connected).is_err() {
            let _ = from.shutdown(Shutdown::Both);
            let _ = to.shutdown(Shutdown::Both);
        }
    })?;
    Ok(())
}

fn read_all(mut from: TcpStream, parcels: &SyncSender<Parcel>) {
    let mut buffer = vec![0; READ];
    loop {
        let parcel = match from.read(&mut buffer) {
            Ok(0) => Parcel::End(Instant::now()),
            Ok(read) => Parcel::Bytes(Instant::now(), buffer[..read].to_vec()),
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            Err(_) => Parcel::Broken(Instant::now()),
        };
        let is_last = !matches!(parcel, Parcel::Bytes(..));
        if parcels.send(parcel).is_err() || is_last {
            return;
        }
    }
}

fn write_all(
    mut to: &TcpStream,
    parcels: &Receiver<Parcel>,
    delay: Duration,
    connected: Instant,
) -> io::Result<()> {
    let wait = |came: Instant| {
        let due = came.max(connected) + delay;
        thread::sleep(due.saturating_duration_since(Instant::now()));
    };
    for parcel in parcels {
        match parcel {
            Parcel::Bytes(came, bytes) => {
                wait(came);
                to.write_all(&bytes)?;
            }
            Parcel::End(came) => {
                wait(came);
                return to.shutdown(Shutdown::Write);
            }
            Parcel::Broken(came) => {
                wait(came);
                return Err(ErrorKind::ConnectionReset.into());
            }
        }
    }
    Ok(())
}
