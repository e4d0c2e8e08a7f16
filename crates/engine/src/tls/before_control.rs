//! The little that is read and written on a TLS connection whose peer has not proved who it is, by the thread that
//! did the handshake.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::Instant;

use rustls::Connection;

use super::handshake::{HandshakeError, Readiness, flush, receive, wait};

/// Bytes of a connection that is over which are taken and thrown away.
const DISCARDED: usize = 256 << 10;

/// Fills `into`. What comes behind stays in the connection, unread.
pub(crate) async fn read_exact(
    tls: &mut Connection,
    tcp: &TcpStream,
    mut into: &mut [u8],
    deadline: Instant,
    readiness: &impl Readiness,
) -> Result<(), HandshakeError> {
    while !into.is_empty() {
        match tls.reader().read(into) {
            Ok(0) => return Err(HandshakeError::Closed),
            Ok(len) => into = &mut into[len..],
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                wait(tls, tcp, deadline, readiness).await?;
                receive(tls, tcp)?;
            }
            Err(e) => return Err(e.into()),
        }
    }
    Ok(())
}

/// Sends `frame` as the last one, and waits for the peer to close: closing a socket with unread bytes resets the
/// connection, and a reset can overtake what was sent last.
pub(crate) async fn say_last(
    tls: &mut Connection,
    tcp: &TcpStream,
    frame: &[u8],
    deadline: Instant,
    readiness: &impl Readiness,
) -> Result<(), HandshakeError> {
    tls.writer().write_all(frame)?;
    tls.send_close_notify();
    flush(tls, tcp)?;
    while tls.wants_write() {
        wait(tls, tcp, deadline, readiness).await?;
        flush(tls, tcp)?;
    }
    tcp.shutdown(Shutdown::Write)?;
    let (mut buffer, mut discarded) = ([0; 4096], 0);
    while discarded < DISCARDED {
        wait(tls, tcp, deadline, readiness).await?;
        match (&mut &*tcp).read(&mut buffer) {
            Ok(0) => break,
            Ok(len) => discarded += len,
            Err(e) if matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {}
            Err(e) => return Err(e.into()),
        }
    }
    Ok(())
}
