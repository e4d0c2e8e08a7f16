//! Byte streams on one connection, beside its messages. The recipe's `streams` enables and limits them.

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

/// The sending half of a stream. [`SendStream::finish`] ends it; dropping it earlier resets the stream, and
/// the peer's reader gets an error.
#[derive(derive_more::Debug)]
#[debug("SendStream({number})")]
pub struct SendStream {
    streams: Arc<Streams>,
    number: StreamId,
    is_finished: bool,
}

/// The receiving half of a stream. Dropping it before the end tells the peer to stop sending.
#[derive(derive_more::Debug)]
#[debug("RecvStream({number})")]
pub struct RecvStream {
    streams: Arc<Streams>,
    number: StreamId,
    /// Error with which the stream failed. Every later read returns it again.
    failed: Option<io::ErrorKind>,
}

impl SendStream {
    fn poll_write(&self, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        if self.is_finished {
            return Poll::Ready(Err(io::Error::other("the stream has already been finished")));
        }
        self.streams.poll_write(self.number, bytes, context)
    }

    /// Like [`Write::write`], as an [`Operation`]. Concurrent writers would get the same offset, hence `&mut`:
    ///
    /// ```compile_fail,E0596
    /// fn shared(stream: &haulage::SendStream) {
    ///     let _ = stream.write_some(b"bytes");
    /// }
    /// ```
    pub fn write_some(&mut self, bytes: &[u8]) -> Operation<'_, impl Polled<usize, io::Error>> {
        let poll = |context: &mut Context<'_>| self.poll_write(context, bytes);
        Operation::new("buffer space", Some(self.streams.channel()), poll)
    }

    /// Ends the stream. Written bytes are delivered while the connection is open, whether or not the caller
    /// waits; [`Connection::flush`](crate::Connection::flush) waits for it.
    ///
    /// # Errors
    /// [`io::ErrorKind::BrokenPipe`] if the peer stopped reading before the end.
    pub fn finish(&mut self) -> io::Result<()> {
        if !self.is_finished && !self.streams.end(|it| it.finish(self.number)) {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        self.is_finished = true;
        Ok(())
    }

    /// Resets the stream, as dropping it does: the reader gets an error and loses what it has not read yet.
    pub fn abort(self) {}
}

impl Write for SendStream {
    /// Sends as much as flow control permits; blocks while it permits nothing. [`io::ErrorKind::BrokenPipe`]
    /// if the peer stopped reading, [`io::ErrorKind::ConnectionAborted`] if the connection has ended.
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.write_some(bytes).wait()
    }

    /// Does nothing: bytes are sent as soon as the path accepts them.
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
    /// Like [`Read::read`], as an [`Operation`].
    pub fn read_some(&mut self, into: &mut [u8]) -> Operation<'_, impl Polled<usize, io::Error>> {
        let Self { streams, number, failed } = self;
        let poll = |context: &mut Context<'_>| streams.poll_read(*number, into, context, failed);
        Operation::new("bytes", Some(streams.channel()), poll)
    }
}

impl Read for RecvStream {
    /// Waits for at least one byte. Returns 0 at the end of the stream. Fails with
    /// [`io::ErrorKind::ConnectionReset`] if the peer reset the stream, [`io::ErrorKind::ConnectionAborted`]
    /// if the connection ended before the stream.
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.read_some(into).wait()
    }
}

impl Drop for RecvStream {
    fn drop(&mut self) {
        self.streams.end(|it| it.stop(self.number));
    }
}
