use std::future::poll_fn;
use std::io::{self, Read, Write};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use haul_engine::after;

use super::driver::Streams;
use super::frame::Number;

pub(crate) fn both(streams: &Arc<Streams>, number: Number) -> (SendStream, RecvStream) {
    let streams = || streams.clone();
    (
        SendStream { streams: streams(), number, is_finished: false },
        RecvStream { streams: streams(), number, failed: None },
    )
}

/// The sending direction of a stream. [`SendStream::finish`] ends it; dropped before, it ends with an error at the other
/// side.
#[derive(derive_more::Debug)]
#[debug("SendStream({number})")]
pub struct SendStream {
    streams: Arc<Streams>,
    number: Number,
    is_finished: bool,
}

/// The receiving direction of a stream. When it is dropped before the end the other side is told that nobody reads.
#[derive(derive_more::Debug)]
#[debug("RecvStream({number})")]
pub struct RecvStream {
    streams: Arc<Streams>,
    number: Number,
    /// How the stream has failed; it does not come to its end after that.
    failed: Option<io::ErrorKind>,
}

impl SendStream {
    /// As [`Write::write`], for those who poll.
    pub fn poll_write(&mut self, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        if self.is_finished {
            return Poll::Ready(Err(io::Error::other("the end of the stream was said already")));
        }
        self.streams.poll_write(self.number, bytes, context)
    }

    /// As [`Write::write`], for tasks.
    pub async fn write_async(&mut self, bytes: &[u8]) -> io::Result<usize> {
        poll_fn(|context| self.poll_write(context, bytes)).await
    }

    /// As [`Write::write`], with a limit for the wait.
    ///
    /// # Errors
    /// As [`Write::write`]; [`io::ErrorKind::TimedOut`].
    pub fn write_timeout(&mut self, bytes: &[u8], timeout: Duration) -> io::Result<usize> {
        let streams = self.streams.clone();
        streams.block_io(Some(after(timeout)), |context| self.poll_write(context, bytes))
    }

    /// Ends the stream. What was written arrives whether or not anybody waits for it, as long as the connection is there:
    /// [`Connection::flush`](crate::Connection::flush) waits.
    ///
    /// # Errors
    /// [`io::ErrorKind::BrokenPipe`] if the other side does not read the stream to its end.
    pub fn finish(&mut self) -> io::Result<()> {
        if !self.is_finished && !self.streams.end(|it| it.finish(self.number)) {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        self.is_finished = true;
        Ok(())
    }

    /// Gives the stream up, as dropping it does: the reader gets an error, and not what it has not read yet.
    pub fn abort(self) {}
}

impl Write for SendStream {
    /// Sends as many bytes as there is room for, at least one. Waits while there is none: [`io::ErrorKind::BrokenPipe`]
    /// if nobody reads them, [`io::ErrorKind::ConnectionAborted`] if the connection has ended.
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let streams = self.streams.clone();
        streams.block_io(None, |context| self.poll_write(context, bytes))
    }

    /// Bytes leave as soon as the path takes them; there is nothing to do.
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for SendStream {
    fn drop(&mut self) {
        if !self.is_finished {
            self.streams.end(|it| it.reset(self.number));
        }
    }
}

impl RecvStream {
    /// As [`Read::read`], for those who poll.
    pub fn poll_read(&mut self, context: &Context<'_>, into: &mut [u8]) -> Poll<io::Result<usize>> {
        if let Some(failed) = self.failed {
            return Poll::Ready(Err(failed.into()));
        }
        let read = self.streams.poll_read(self.number, into, context);
        if let Poll::Ready(Err(error)) = &read {
            self.failed = Some(error.kind());
        }
        read
    }

    /// As [`Read::read`], for tasks.
    pub async fn read_async(&mut self, into: &mut [u8]) -> io::Result<usize> {
        poll_fn(|context| self.poll_read(context, into)).await
    }

    /// As [`Read::read`], with a limit for the wait.
    ///
    /// # Errors
    /// As [`Read::read`]; [`io::ErrorKind::TimedOut`].
    pub fn read_timeout(&mut self, into: &mut [u8], timeout: Duration) -> io::Result<usize> {
        let streams = self.streams.clone();
        streams.block_io(Some(after(timeout)), |context| self.poll_read(context, into))
    }
}

impl Read for RecvStream {
    /// Waits for at least one byte; 0 at the end of the stream. [`io::ErrorKind::ConnectionReset`] if the other side has
    /// given the stream up, [`io::ErrorKind::ConnectionAborted`] if the connection has ended before the stream.
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let streams = self.streams.clone();
        streams.block_io(None, |context| self.poll_read(context, into))
    }
}

impl Drop for RecvStream {
    fn drop(&mut self) {
        self.streams.end(|it| it.stop(self.number));
    }
}
