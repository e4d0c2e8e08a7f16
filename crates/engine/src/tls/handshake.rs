//! The TLS handshake over a non-blocking socket, with a deadline.

use std::future::poll_fn;
use std::io;
use std::net::TcpStream;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};
use rustls::Connection;
use socket2::SockRef;

use crate::EngineError;
use crate::wake::wait_ready;

/// Default timeout of each step of opening a session or connection.
pub(crate) const STEP_TIMEOUT: Duration = Duration::from_secs(10);

#[derive(Debug, derive_more::From)]
pub(crate) enum HandshakeError {
    /// The peer closed the connection.
    Closed,
    TimedOut,
    /// The connection broke.
    Io(#[from] io::Error),
    /// TLS failed.
    Tls(#[from] rustls::Error),
}

/// For a connection whose handshake is complete.
impl From<HandshakeError> for EngineError {
    fn from(error: HandshakeError) -> Self {
        match error {
            HandshakeError::Closed => Self::lost("the peer disconnected without closing"),
            HandshakeError::TimedOut => Self::lost("the peer does not respond"),
            HandshakeError::Io(error) => Self::lost(error.to_string()),
            HandshakeError::Tls(error) => Self::lost(format!("TLS failed: {error}")),
        }
    }
}

/// Prepares a TCP connection for TLS and control messages: non-blocking, without Nagle's algorithm, and with
/// BBR if available, as CUBIC backs off at loss rates that the data path tolerates.
pub(crate) fn prepare_tcp(tcp: &TcpStream) -> Result<(), EngineError> {
    let prepared = tcp.set_nonblocking(true).and_then(|()| tcp.set_nodelay(true));
    prepared.map_err(|e| EngineError::system("cannot prepare the TCP connection", e))?;
    if let Err(error) = SockRef::from(tcp).set_tcp_congestion(b"bbr") {
        tracing::debug!(%error, "TCP stays with the system's congestion control");
    }
    Ok(())
}

/// How the owner of a TCP connection waits for it.
pub(crate) trait Readiness {
    /// Returns ready when reading or writing, according to `interest`, would make progress.
    ///
    /// # Errors
    /// [`HandshakeError::TimedOut`] after `deadline`; an I/O error if waiting fails.
    fn poll_ready(
        &self,
        tcp: &TcpStream,
        interest: PollFlags,
        deadline: Instant,
        context: &Context<'_>,
    ) -> Poll<Result<(), HandshakeError>>;

    /// Ends the wait for the connection.
    fn deregister(&self, _tcp: &TcpStream) {}
}

/// Blocks the polling thread.
pub(crate) struct BlockingWait;

impl Readiness for BlockingWait {
    fn poll_ready(
        &self,
        tcp: &TcpStream,
        interest: PollFlags,
        deadline: Instant,
        _: &Context<'_>,
    ) -> Poll<Result<(), HandshakeError>> {
        loop {
            let remaining = deadline.saturating_duration_since(Instant::now());
            if remaining.is_zero() {
                return Poll::Ready(Err(HandshakeError::TimedOut));
            }
            if wait_ready(&mut [PollFd::new(tcp, interest)], Some(remaining)).map_err(io::Error::other)? > 0 {
                return Poll::Ready(Ok(()));
            }
        }
    }
}

/// Completes the handshake and sends all of it. Returns the time between the last flight sent that needed an
/// answer and that answer: about one round trip.
pub(crate) async fn handshake(
    tls: &mut Connection,
    tcp: &TcpStream,
    deadline: Instant,
    readiness: &impl Readiness,
) -> Result<Duration, HandshakeError> {
    let mut sent_at = Instant::now();
    let mut round_trip = Duration::ZERO;
    loop {
        if flush(tls, tcp)? && tls.is_handshaking() {
            sent_at = Instant::now();
        }
        if !tls.is_handshaking() && !tls.wants_write() {
            return Ok(round_trip);
        }
        wait(tls, tcp, deadline, readiness).await?;
        if tls.is_handshaking() && receive(tls, tcp)? {
            round_trip = sent_at.elapsed();
        }
    }
}

/// Writes pending TLS records. Returns whether anything was written.
pub(crate) fn flush(tls: &mut Connection, mut tcp: &TcpStream) -> io::Result<bool> {
    let mut written = false;
    while tls.wants_write() {
        match tls.write_tls(&mut tcp) {
            Ok(_) => written = true,
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => break,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(written)
}

/// Reads available TLS records. Returns whether anything was read.
pub(crate) fn receive(tls: &mut Connection, mut tcp: &TcpStream) -> Result<bool, HandshakeError> {
    match tls.read_tls(&mut tcp) {
        Ok(0) => return Err(HandshakeError::Closed),
        Ok(_) => {}
        Err(e) if matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {
            return Ok(false);
        }
        Err(e) => return Err(e.into()),
    }
    if let Err(error) = tls.process_new_packets() {
        // Best effort: the alert tells the peer why.
        let _ = flush(tls, tcp);
        return Err(HandshakeError::Tls(error));
    }
    Ok(true)
}

pub(crate) async fn wait(
    tls: &Connection,
    tcp: &TcpStream,
    deadline: Instant,
    readiness: &impl Readiness,
) -> Result<(), HandshakeError> {
    let mut interest = PollFlags::IN;
    interest.set(PollFlags::OUT, tls.wants_write());
    wait_for(tcp, interest, deadline, readiness).await
}

/// Waits until reading or writing, according to `interest`, would make progress.
pub(crate) async fn wait_for(
    tcp: &TcpStream,
    interest: PollFlags,
    deadline: Instant,
    readiness: &impl Readiness,
) -> Result<(), HandshakeError> {
    let _waiting = Waiting(tcp, readiness);
    poll_fn(|context| readiness.poll_ready(tcp, interest, deadline, context)).await
}

/// Deregisters the wait when it ends or its task is dropped.
struct Waiting<'w, R: Readiness>(&'w TcpStream, &'w R);

impl<R: Readiness> Drop for Waiting<'_, R> {
    fn drop(&mut self) {
        self.1.deregister(self.0);
    }
}
