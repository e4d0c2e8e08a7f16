//! Transfers memory over TCP until told to stop: each call regularly checks a stop flag.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

/// Interval at which a call checks the stop flag.
const POLL_INTERVAL: Duration = Duration::from_millis(100);
/// Bytes per read or write.
const BLOCK: usize = 256 << 10;

/// Whether a call timed out or was interrupted and may be repeated.
pub(crate) fn is_pause(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted)
}

/// Returns the first connection; `None` if there is none before `stop` is set.
///
/// # Errors
/// Errors of the socket.
pub fn accept(listener: &TcpListener, stop: &AtomicBool) -> io::Result<Option<TcpStream>> {
    listener.set_nonblocking(true)?;
    while !stop.load(Ordering::Relaxed) {
        match listener.accept() {
            Ok((stream, _)) => return stream.set_nonblocking(false).map(|()| Some(stream)),
            Err(error) if is_pause(&error) => thread::sleep(POLL_INTERVAL / 100),
            Err(error) => return Err(error),
        }
    }
    Ok(None)
}

/// Writes `bytes` bytes, or until `stop` is set, and counts them in `sent`.
///
/// # Errors
/// Errors of the socket.
pub fn fill(mut stream: &TcpStream, bytes: u64, stop: &AtomicBool, sent: &AtomicU64) -> io::Result<()> {
    stream.set_write_timeout(Some(POLL_INTERVAL))?;
    let block = vec![0; BLOCK];
    let mut remaining = bytes;
    while remaining > 0 && !stop.load(Ordering::Relaxed) {
        match stream.write(&block[..remaining.min(BLOCK as u64) as usize]) {
            Ok(written) => {
                remaining -= written as u64;
                sent.fetch_add(written as u64, Ordering::Relaxed);
            }
            Err(error) if is_pause(&error) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Reads `bytes` bytes, or until the end of the stream or until `stop` is set, and counts them in `received`.
///
/// # Errors
/// Errors of the socket.
pub fn drain(mut stream: &TcpStream, bytes: u64, stop: &AtomicBool, received: &AtomicU64) -> io::Result<()> {
    stream.set_read_timeout(Some(POLL_INTERVAL))?;
    let mut block = vec![0; BLOCK];
    let mut remaining = bytes;
    while remaining > 0 && !stop.load(Ordering::Relaxed) {
        match stream.read(&mut block) {
            Ok(0) => break,
            Ok(read) => {
                remaining = remaining.saturating_sub(read as u64);
                received.fetch_add(read as u64, Ordering::Relaxed);
            }
            Err(error) if is_pause(&error) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
