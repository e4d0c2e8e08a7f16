//! Several byte streams on one connection, beside its messages. The recipe says that there are any (`streams`), and how
//! large they may become.

mod driver;

use std::io::{self, Read, Write};
use std::sync::Arc;
use std::task::{Context, Poll};

use haul_wire::stream_frame::StreamId;

pub(crate) use self::driver::Streams;
use crate::{Operation, Polled};

pub(crate) fn both(streams: &Arc<Streams>, number: StreamId) -> (SendStream, RecvStream) {
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
    number: StreamId,
    is_finished: bool,
}

/// The receiving direction of a stream. When it is dropped before the end the other side is told that nobody reads.
#[derive(derive_more::Debug)]
#[debug("RecvStream({number})")]
pub struct RecvStream {
    streams: Arc<Streams>,
    number: StreamId,
    /// How the stream has failed; it does not come to its end after that.
    failed: Option<io::ErrorKind>,
}

impl SendStream {
    /// As [`Write::write`], for those who poll. Two that write at the same time would get the same place in the stream:
    ///
    /// ```compile_fail,E0596
    /// # use std::task::Context;
    /// fn shared(stream: &haulage::SendStream, context: &mut Context<'_>) {
    ///     let _ = stream.poll_write(context, b"bytes");
    /// }
    /// ```
    ///
    /// # Errors
    /// [`io::ErrorKind::BrokenPipe`] if the other side does not read the stream any more; how the connection has ended.
    pub fn poll_write(&mut self, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.write_once(context, bytes)
    }

    fn write_once(&self, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        if self.is_finished {
            return Poll::Ready(Err(io::Error::other("the end of the stream was said already")));
        }
        self.streams.poll_write(self.number, bytes, context)
    }

    /// As [`Write::write`].
    pub fn write_some(&mut self, bytes: &[u8]) -> Operation<'_, impl Polled<usize, io::Error>> {
        let poll = |context: &mut Context<'_>| self.write_once(context, bytes);
        Operation::new("room for bytes", Some(self.streams.channel()), poll)
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
        self.write_some(bytes).wait()
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
    ///
    /// # Errors
    /// [`io::ErrorKind::ConnectionReset`] if the other side has given the stream up before its end; how the connection
    /// has ended.
    pub fn poll_read(&mut self, context: &Context<'_>, into: &mut [u8]) -> Poll<io::Result<usize>> {
        let Self { streams, number, failed } = self;
        streams.poll_read(*number, into, context, failed)
    }

    /// As [`Read::read`].
    pub fn read_some(&mut self, into: &mut [u8]) -> Operation<'_, impl Polled<usize, io::Error>> {
        let Self { streams, number, failed } = self;
        let poll = |context: &mut Context<'_>| streams.poll_read(*number, into, context, failed);
        Operation::new("bytes", Some(streams.channel()), poll)
    }
}

impl Read for RecvStream {
    /// Waits for at least one byte; 0 at the end of the stream. [`io::ErrorKind::ConnectionReset`] if the other side has
    /// given the stream up, [`io::ErrorKind::ConnectionAborted`] if the connection has ended before the stream.
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.read_some(into).wait()
    }
}

impl Drop for RecvStream {
    fn drop(&mut self) {
        self.streams.end(|it| it.stop(self.number));
    }
}
