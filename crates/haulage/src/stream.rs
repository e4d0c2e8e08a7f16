//! Reliable streams of bytes, over the bulk transport.

mod incoming;
mod outgoing;

use std::future::poll_fn;
use std::io::{self, Read, Write};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use haul_base::Rate;
use haul_engine::{
    ConnectOptions, Control, EngineError as Error, HaulUrl, Session, Transfer, Waker, connect,
    default_settings,
};
use haul_wire::control::{Fault, FaultCode, Request};

use self::incoming::Inbox;
use self::outgoing::Outbox;
use crate::Options;

/// How often a wait looks at the control channel.
const LOOK: Duration = Duration::from_millis(50);
/// How long the other side's goodbye may take after the last byte.
const GOODBYE: Duration = Duration::from_secs(15);

/// The sending end of a stream of bytes. [`ByteWriter::finish`] ends it; dropped before, it ends with an error at the
/// other side.
pub struct ByteWriter {
    outbox: Arc<Outbox>,
    line: Line,
}

/// The receiving end of a stream of bytes.
pub struct ByteReader {
    inbox: Arc<Inbox>,
    line: Line,
}

/// What carries a stream. Dropping the transfer stops its thread.
struct Line {
    transfer: Option<Transfer>,
    control: Control,
    waker: Waker,
    is_over: bool,
}

impl Line {
    fn failure(&self) -> Option<Error> {
        self.transfer.as_ref().and_then(Transfer::failure).or_else(|| self.control.failure())
    }

    /// Ends irregularly what has not ended yet.
    fn cut(&mut self, what: &str) {
        if !self.is_over {
            self.is_over = true;
            self.control.abort(Fault::new(FaultCode::Interrupted, what, "run it again"));
        }
    }
}

fn to_io(error: Error) -> io::Error {
    let kind = match &error {
        Error::TimedOut { .. } => io::ErrorKind::TimedOut,
        Error::ControlLost { .. } | Error::Peer(_) => io::ErrorKind::ConnectionAborted,
        _ => io::ErrorKind::Other,
    };
    io::Error::new(kind, error)
}

fn open(url: &str, options: &Options, request: Request) -> Result<Session, Error> {
    let url: HaulUrl = url.parse()?;
    let mut wanted = ConnectOptions::new(request, default_settings());
    wanted.settings.rate_bps = options.rate.map(Rate::as_bps);
    wanted.ciphers.clone_from(&options.ciphers);
    (wanted.connect_timeout, wanted.answer_timeout) = (options.timeout, options.timeout);
    connect(&url, wanted)
}

impl ByteWriter {
    /// Opens a stream to the server that printed `url`.
    ///
    /// # Errors
    /// If the server cannot be reached or refuses.
    pub fn open(url: &str, options: &Options) -> Result<Self, Error> {
        Self::of(open(url, options, Request::StreamSend)?)
    }

    pub(crate) fn of(mut session: Session) -> Result<Self, Error> {
        let (outbox, waker) = (Arc::new(Outbox::default()), Waker::new()?);
        let transfer = session.start_sending(Box::new(outbox.source()), waker.clone())?;
        let control = session.control().clone();
        Ok(Self { outbox, line: Line { transfer: Some(transfer), control, waker, is_over: false } })
    }

    /// Says that the stream ends here and waits until every byte has arrived.
    ///
    /// # Errors
    /// What kept them from arriving.
    pub fn finish(mut self) -> Result<(), Error> {
        self.outbox.end();
        self.line.waker.wake();
        while let Some(transfer) = &self.line.transfer {
            if transfer.wait_delivered(LOOK)? {
                break;
            }
            if let Some(error) = self.line.control.failure() {
                return Err(error);
            }
        }
        self.line.is_over = true;
        self.line.control.close()
    }

    /// Whether the stream still runs, for writers that have nothing to write now.
    ///
    /// # Errors
    /// How it has failed.
    pub fn check(&self) -> Result<(), Error> {
        self.line.failure().map_or(Ok(()), Err)
    }

    /// Bytes that were written and have not arrived for certain.
    pub fn outstanding(&self) -> usize {
        self.outbox.len()
    }

    /// As [`Write::write`], for tasks.
    ///
    /// # Errors
    /// As [`Write::write`].
    pub async fn write_async(&mut self, bytes: &[u8]) -> io::Result<usize> {
        poll_fn(|context| self.poll_write(context, bytes)).await
    }

    /// As [`Write::write`], for those who poll.
    ///
    /// # Errors
    /// As [`Write::write`].
    pub fn poll_write(&mut self, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        if let Some(error) = self.line.failure() {
            return Poll::Ready(Err(to_io(error)));
        }
        match self.outbox.push(bytes, Some(context.waker())) {
            0 if !bytes.is_empty() => Poll::Pending,
            taken => {
                self.line.waker.wake();
                Poll::Ready(Ok(taken))
            }
        }
    }
}

impl Write for ByteWriter {
    /// Takes as many bytes as there is room for, at least one. Waits while there is none.
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        loop {
            if let Some(error) = self.line.failure() {
                return Err(to_io(error));
            }
            let taken = self.outbox.push(bytes, None);
            if taken > 0 || bytes.is_empty() {
                self.line.waker.wake();
                return Ok(taken);
            }
            self.outbox.wait(LOOK);
        }
    }

    /// Bytes leave as soon as the path takes them; there is nothing to do.
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for ByteWriter {
    fn drop(&mut self) {
        self.line.cut("the writer of the stream has gone before its end");
    }
}

impl ByteReader {
    /// Opens a stream from the server that printed `url`.
    ///
    /// # Errors
    /// If the server cannot be reached or refuses.
    pub fn open(url: &str, options: &Options) -> Result<Self, Error> {
        Self::of(open(url, options, Request::StreamReceive)?)
    }

    pub(crate) fn of(mut session: Session) -> Result<Self, Error> {
        let (inbox, waker) = (Arc::new(Inbox::default()), Waker::new()?);
        let transfer = session.start_receiving(Box::new(inbox.sink()), waker.clone())?;
        let control = session.control().clone();
        Ok(Self { inbox, line: Line { transfer: Some(transfer), control, waker, is_over: false } })
    }

    /// As [`Read::read`], with a limit for the wait.
    ///
    /// # Errors
    /// As [`Read::read`]; [`io::ErrorKind::TimedOut`].
    pub fn read_timeout(&mut self, into: &mut [u8], timeout: Duration) -> io::Result<usize> {
        self.read_until(into, Some(Instant::now() + timeout))
    }

    fn read_until(&mut self, into: &mut [u8], until: Option<Instant>) -> io::Result<usize> {
        loop {
            if let Some(read) = self.take(into, None)? {
                return Ok(read);
            }
            let left = until.map_or(LOOK, |until| until.saturating_duration_since(Instant::now()).min(LOOK));
            if left.is_zero() {
                return Err(io::ErrorKind::TimedOut.into());
            }
            self.inbox.wait(left);
        }
    }

    /// Bytes if there are some, 0 at the end.
    fn take(&mut self, into: &mut [u8], waker: Option<&std::task::Waker>) -> io::Result<Option<usize>> {
        let taken = self.inbox.pull(into, waker);
        if taken.has_freed_room {
            self.line.waker.wake();
        }
        if taken.bytes > 0 || into.is_empty() {
            return Ok(Some(taken.bytes));
        }
        if taken.is_end {
            self.end();
            return Ok(Some(0));
        }
        // What failed may have failed after the last byte came.
        match self.line.failure().filter(|_| !self.inbox.is_readable()) {
            Some(error) => Err(to_io(error)),
            None if self.inbox.is_broken() => {
                let reason = "it sent bytes beyond what it was permitted".to_owned();
                Err(to_io(Error::Protocol { reason }))
            }
            None => Ok(None),
        }
    }

    /// Everything has been read: stays until the writer knows.
    fn end(&mut self) {
        if !self.line.is_over {
            self.line.is_over = true;
            // The writer says goodbye once it has heard that all has arrived; if it cannot, the bytes are here all the same.
            drop(self.line.control.recv(Some(GOODBYE)));
            drop(self.line.control.close());
            self.line.transfer = None;
        }
    }

    /// As [`Read::read`], for tasks.
    ///
    /// # Errors
    /// As [`Read::read`].
    pub async fn read_async(&mut self, into: &mut [u8]) -> io::Result<usize> {
        poll_fn(|context| self.poll_read(context, into)).await
    }

    /// As [`Read::read`], for those who poll.
    ///
    /// # Errors
    /// As [`Read::read`].
    pub fn poll_read(&mut self, context: &mut Context<'_>, into: &mut [u8]) -> Poll<io::Result<usize>> {
        self.take(into, Some(context.waker())).transpose().map_or(Poll::Pending, Poll::Ready)
    }
}

impl Read for ByteReader {
    /// Waits for at least one byte; 0 at the end of the stream.
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.read_until(into, None)
    }
}

impl Drop for ByteReader {
    fn drop(&mut self) {
        self.line.cut("the reader of the stream has gone before its end");
    }
}

impl std::fmt::Debug for ByteWriter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ByteWriter").field("outstanding", &self.outstanding()).finish_non_exhaustive()
    }
}

impl std::fmt::Debug for ByteReader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ByteReader").finish_non_exhaustive()
    }
}
