//! What carries memory over TCP for as long as it may: each call looks often whether it is time to stop.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

/// How often a call looks whether it is time to stop.
const LOOK: Duration = Duration::from_millis(100);
/// Bytes read or written at a time.
const BLOCK: usize = 256 << 10;

/// Whether a call with a time limit gave up, or was interrupted, and may be repeated.
pub(crate) fn is_pause(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted)
}

/// The first connection; `None` if there is none until it is time to `stop`.
///
/// # Errors
/// As the system has them.
pub fn accept(listener: &TcpListener, stop: &AtomicBool) -> io::Result<Option<TcpStream>> {
    listener.set_nonblocking(true)?;
    while !stop.load(Ordering::Relaxed) {
        match listener.accept() {
            Ok((stream, _)) => return stream.set_nonblocking(false).map(|()| Some(stream)),
            Err(error) if is_pause(&error) => thread::sleep(LOOK / 100),
            Err(error) => return Err(error),
        }
    }
    Ok(None)
}

/// Writes `bytes` bytes, or until it is time to `stop`, and counts them in `sent`.
///
/// # Errors
/// As the system has them.
pub fn fill(mut stream: &TcpStream, bytes: u64, stop: &AtomicBool, sent: &AtomicU64) -> io::Result<()> {
    stream.set_write_timeout(Some(LOOK))?;
    let block = vec![0; BLOCK];
    let mut left = bytes;
    while left > 0 && !stop.load(Ordering::Relaxed) {
        match stream.write(&block[..left.min(BLOCK as u64) as usize]) {
            Ok(written) => {
                left -= written as u64;
                sent.fetch_add(written as u64, Ordering::Relaxed);
            }
            Err(error) if is_pause(&error) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Reads `bytes` bytes, or until the end or until it is time to `stop`, and counts them in `received`.
///
/// # Errors
/// As the system has them.
pub fn drain(mut stream: &TcpStream, bytes: u64, stop: &AtomicBool, received: &AtomicU64) -> io::Result<()> {
    stream.set_read_timeout(Some(LOOK))?;
    let mut block = vec![0; BLOCK];
    let mut left = bytes;
    while left > 0 && !stop.load(Ordering::Relaxed) {
        match stream.read(&mut block) {
            Ok(0) => break,
            Ok(read) => {
                left = left.saturating_sub(read as u64);
                received.fetch_add(read as u64, Ordering::Relaxed);
            }
            Err(error) if is_pause(&error) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
