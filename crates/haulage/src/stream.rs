//! Reliable byte streams over the bulk transport or any other object recipe.

mod buffers;
mod law_requests;

use std::io::{self, Read, Write};
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use haul_base::{CauseCounts, Rate, Span};
use haul_engine::{
    ConnectOptions, Control, Counters, EngineError as Error, HaulUrl, Monitor, Session, Transfer, Waker,
};
use haul_proto::connection::settings_for;
use haul_proto::multiplexer::SendBuffer;
use haul_proto::{ChosenLaw, ControllerError, LawChange, Limit, LimitEvidence, limit_of_sender};
use haul_stack::{Part, Recipe, RecipeError};
use haul_wire::control::{Cipher, ControlMessage, Fault, FaultCode, Request, Settings};

use self::buffers::{Inbox, Sink, Source};
pub use self::law_requests::{LawRequestError, LawRequests};
use crate::operation::of_future;
use crate::{ConnectionError, Endpoint, OpenError, Operation, Options, Polled, WaitError};

/// Capacity for unacknowledged bytes: 100 ms at 5 Gbit/s.
const MAX_OUTSTANDING: usize = 64 << 20;
/// Timeout for the peer's close after the last byte.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(15);

/// The sending end of a byte stream. [`ByteWriter::finish`] ends the stream; dropping the writer earlier
/// makes the reader fail with an error.
#[derive(derive_more::Debug)]
#[debug("ByteWriter({} outstanding)", self.outstanding())]
pub struct ByteWriter {
    outbox: Arc<Monitor<SendBuffer>>,
    transport: Transport,
    /// Whether the stream was finished: no byte can follow.
    is_ended: bool,
}

/// The receiving end of a byte stream.
#[derive(derive_more::Debug)]
#[debug("ByteReader")]
pub struct ByteReader {
    inbox: Arc<Monitor<Inbox>>,
    transport: Transport,
}

/// Counters of a byte stream, at most 50 ms old.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StreamStatistics {
    /// Bytes of the stream that have arrived: at the writer, that were acknowledged.
    pub bytes: u64,
    /// Data packets sent or received, including retransmissions.
    pub packets: u64,
    /// Writer only: retransmitted packets.
    pub resent: u64,
    /// Duplicate packets received: at the writer, as last reported by the reader.
    pub duplicates: u64,
    /// Writer only: lost packets, by diagnosed cause.
    pub lost: CauseCounts,
    /// Writer only: current rate of the control law.
    pub rate: Option<Rate>,
    /// Round-trip time: smoothed at the writer, that of the control channel at the reader.
    pub rtt: Option<Span>,
}

impl StreamStatistics {
    fn of(counters: Option<&Counters>, control: Option<Span>) -> Self {
        match counters {
            None => Self { rtt: control, ..Self::default() },
            Some(Counters::Sending(sending)) => Self {
                bytes: sending.stats.object_acked,
                packets: sending.stats.packets,
                resent: sending.stats.resent,
                duplicates: u64::from(sending.stats.receiver_duplicates),
                lost: sending.stats.lost_by_cause,
                rate: Some(sending.rate),
                rtt: Some(sending.stats.rtt),
            },
            Some(Counters::Receiving(stats)) => Self {
                bytes: stats.object_bytes,
                packets: stats.packets,
                duplicates: stats.duplicates,
                rtt: control,
                ..Self::default()
            },
        }
    }
}

/// The session that carries a stream. Dropping the transfer stops its thread.
struct Transport {
    transfer: Transfer,
    control: Control,
    began: Instant,
    is_over: bool,
    /// Includes the current parameters of the law.
    recipe: Recipe,
    cipher: Cipher,
}

impl Transport {
    fn law(&self) -> Option<&Part> {
        self.recipe.part("rate_control")
    }

    fn new(session: &Session, transfer: Transfer) -> Self {
        let (control, recipe) = (session.control().clone(), session.recipe().clone());
        Self { transfer, control, began: Instant::now(), is_over: false, recipe, cipher: session.cipher() }
    }

    /// Polls for an end before all bytes have arrived; wakes the task when it occurs.
    fn poll_failure(&self, context: &Context<'_>) -> Poll<Error> {
        match self.transfer.poll_delivered(context) {
            Poll::Ready(delivered) => delivered.map_or_else(Poll::Ready, |()| Poll::Pending),
            Poll::Pending => self.control.poll_ended(context),
        }
    }

    fn statistics(&self) -> StreamStatistics {
        StreamStatistics::of(self.transfer.counters().as_ref(), self.control.round_trip())
    }

    fn limit(&self) -> Option<Limit> {
        let Some(Counters::Sending(sending)) = self.transfer.counters() else { return None };
        let round_trip = self.control.round_trip().unwrap_or_default();
        limit_of_sender(&LimitEvidence::of(&sending.stats, round_trip, None, self.began.elapsed().into()))
    }

    fn set_law(&mut self, change: &LawChange) -> Result<(), ControllerError> {
        if let Some(law) = self.recipe.part_mut("rate_control") {
            self.transfer.switch_law(ChosenLaw::change(law, change)?);
        }
        Ok(())
    }

    fn check(&self) -> Result<(), Error> {
        let polled = self.poll_failure(&Context::from_waker(std::task::Waker::noop()));
        if let Poll::Ready(error) = polled { Err(error) } else { Ok(()) }
    }

    /// Aborts the session if it has not ended yet.
    fn abort(&mut self, what: &str) {
        if !self.is_over {
            self.is_over = true;
            self.control.abort(Fault::new(FaultCode::Interrupted, what, ""));
        }
    }
}

/// Opens a session and has `begin` start its transfer.
fn open<S>(
    endpoint: &Endpoint,
    url: &str,
    recipe: &Recipe,
    options: &Options,
    request: Request,
    begin: fn(Session) -> Result<S, Error>,
) -> Operation<'static, impl Polled<S, OpenError> + use<S>> {
    let (url, settings) = (url.parse::<HaulUrl>(), settings(recipe, options));
    let (endpoint, ciphers, timeout, loss_model) =
        (endpoint.engine.clone(), options.ciphers.clone(), options.timeout, options.loss_model.clone());
    of_future("the server's answer", async move {
        let options = ConnectOptions { ciphers, timeout, ..ConnectOptions::new(request, settings?) };
        let mut session = endpoint.connect_session(&url?, options).await?;
        session.set_loss_model(loss_model);
        Ok(begin(session)?)
    })
}

/// Returns the settings of a session that runs this recipe.
fn settings(recipe: &Recipe, options: &Options) -> Result<Settings, RecipeError> {
    let socket_buffer = options.socket_buffer.map(|bytes| bytes.0);
    Ok(Settings { offload: options.offload, socket_buffer, ..settings_for(recipe, options.rate)? })
}

impl Endpoint {
    /// Opens a byte stream to the server that printed `url`. The endpoint's thread waits for the handshake;
    /// the stream then has its own socket and threads.
    ///
    /// The recipe must be an object recipe: `bulk`, `fobs`, `rbudp` or your own. The server runs the client's
    /// recipe. [`Options::rate`] overrides the rate in the recipe.
    ///
    /// # Errors
    /// If the server is unreachable or refuses, or the recipe is invalid or does not carry an object.
    pub fn open_writer(
        &self,
        url: &str,
        recipe: &Recipe,
        options: &Options,
    ) -> Operation<'static, impl Polled<ByteWriter, OpenError> + use<>> {
        open(self, url, recipe, options, Request::StreamSend, ByteWriter::of)
    }

    /// Opens a byte stream from the server that printed `url`, as [`Endpoint::open_writer`].
    ///
    /// # Errors
    /// As [`Endpoint::open_writer`].
    pub fn open_reader(
        &self,
        url: &str,
        recipe: &Recipe,
        options: &Options,
    ) -> Operation<'static, impl Polled<ByteReader, OpenError> + use<>> {
        open(self, url, recipe, options, Request::StreamReceive, ByteReader::of)
    }
}

impl ByteWriter {
    pub(crate) fn of(mut session: Session) -> Result<Self, Error> {
        let (outbox, waker) = (Arc::new(Monitor::new(SendBuffer::new(MAX_OUTSTANDING))), Waker::new()?);
        let transfer = session.start_sending(Box::new(Source(outbox.clone())), waker)?;
        Ok(Self { outbox, transport: Transport::new(&session, transfer), is_ended: false })
    }

    /// Ends the stream and waits until every byte is acknowledged. May be called again after a timeout.
    ///
    /// # Errors
    /// If the stream failed before all bytes arrived.
    pub fn finish(&mut self) -> Operation<'_, impl Polled<(), WaitError>> {
        Operation::new("delivery of all bytes", None, |context| self.poll_finish(context))
    }

    fn poll_finish(&mut self, context: &mut Context<'_>) -> Poll<Result<(), WaitError>> {
        if !self.is_ended {
            self.is_ended = true;
            self.outbox.lock().finish();
            self.transport.transfer.waker().wake();
        }
        if !self.transport.is_over {
            if let Poll::Ready(error) = self.transport.poll_failure(context) {
                return Poll::Ready(Err(error.into()));
            }
            ready!(self.transport.transfer.poll_delivered(context))?;
        }
        self.transport.is_over = true;
        self.transport.control.poll_close(context).map_err(Into::into)
    }

    /// Returns the recipe's `rate_control` with the changes by [`ByteWriter::set_law`].
    pub fn law(&self) -> Option<&Part> {
        self.transport.law()
    }

    /// Changes parameters of `rate_control` while the stream runs. No written data is lost; a new law starts
    /// at the current rate.
    ///
    /// # Errors
    /// If there is no such law or parameter; nothing is changed then.
    pub fn set_law(&mut self, change: &LawChange) -> Result<(), ControllerError> {
        self.transport.set_law(change)
    }

    /// Returns the next law change requested by the reader ([`LawRequests::request`]), or the error if it is
    /// invalid. The stream does not apply it; the application may do so with [`ByteWriter::set_law`], within
    /// its own limits.
    pub fn take_law_request(&mut self) -> Option<Result<LawChange, ControllerError>> {
        // A failure of the channel is reported by the other calls.
        match self.transport.control.try_recv(Duration::ZERO) {
            Ok(Some(ControlMessage::LawChange(texts))) => Some(LawChange::parse(self.law()?, &texts)),
            _ => None,
        }
    }

    /// Checks that the stream still runs, for writers that currently have nothing to write.
    ///
    /// # Errors
    /// Why it failed.
    pub fn check(&self) -> Result<(), ConnectionError> {
        Ok(self.transport.check()?)
    }

    /// Returns the number of bytes written but not yet acknowledged.
    pub fn outstanding(&self) -> usize {
        self.outbox.lock().outstanding()
    }

    /// Like [`Write::write`], as an [`Operation`].
    pub fn write_some(&mut self, bytes: &[u8]) -> Operation<'_, impl Polled<usize, io::Error>> {
        Operation::new("buffer space", None, |context| self.poll_write(context, bytes))
    }

    fn poll_write(&mut self, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        if self.is_ended {
            return Poll::Ready(Err(io::Error::other("the stream has already been finished")));
        }
        self.transport.check()?;
        if let Poll::Ready(taken) = self.outbox.poll(context, |outbox| outbox.push(bytes)) {
            self.transport.transfer.waker().wake();
            return Poll::Ready(Ok(taken));
        }
        // Both polls register the task. A failure before this call woke no task, so it is checked here.
        self.transport.poll_failure(context).map(|error| Err(error.into()))
    }

    /// Returns the name of the recipe that carries the stream, chosen by the client.
    pub fn recipe(&self) -> &str {
        &self.transport.recipe.name
    }

    /// Returns the cipher that protects the packets.
    pub fn cipher(&self) -> Cipher {
        self.transport.cipher
    }

    /// Returns the counters of the stream.
    pub fn statistics(&self) -> StreamStatistics {
        self.transport.statistics()
    }

    /// Returns what has limited the stream's rate since its start; `None` while too little was sent to tell.
    pub fn limit(&self) -> Option<Limit> {
        self.transport.limit()
    }
}

impl Write for ByteWriter {
    /// Buffers as many bytes as fit, at least one. Blocks while the buffer is full.
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.write_some(bytes).wait()
    }

    /// Does nothing: bytes are sent as soon as the path accepts them.
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for ByteWriter {
    fn drop(&mut self) {
        self.transport.abort("the writer disconnected before the end of the stream");
    }
}

impl ByteReader {
    pub(crate) fn of(mut session: Session) -> Result<Self, Error> {
        let (inbox, waker) = (Arc::<Monitor<Inbox>>::default(), Waker::new()?);
        let transfer = session.start_receiving(Box::new(Sink(inbox.clone())), waker)?;
        Ok(Self { inbox, transport: Transport::new(&session, transfer) })
    }

    /// Reads available bytes; returns 0 at the end of the stream.
    fn poll_take(&mut self, context: &Context<'_>, into: &mut [u8]) -> Poll<io::Result<usize>> {
        if let Poll::Ready((bytes, has_freed_space)) = self.inbox.poll(context, |inbox| inbox.pull(into)) {
            if has_freed_space {
                self.transport.transfer.waker().wake();
            }
            return Poll::Ready(Ok(bytes));
        }
        // The failure may have occurred after the last byte arrived.
        match self.transport.poll_failure(context) {
            Poll::Ready(_) if self.inbox.lock().is_readable() => self.poll_take(context, into),
            Poll::Ready(error) => Poll::Ready(Err(error.into())),
            Poll::Pending if self.inbox.lock().limit_exceeded => {
                let reason = "it sent bytes beyond its flow-control limit".to_owned();
                Poll::Ready(Err(Error::Protocol(reason).into()))
            }
            Poll::Pending => Poll::Pending,
        }
    }

    /// Everything has been read: ready once the writer knows that, or [`CLOSE_TIMEOUT`] has expired.
    fn poll_end(&mut self, context: &Context<'_>) -> Poll<()> {
        if !self.transport.is_over {
            // The writer closes once all bytes are acknowledged. If it cannot, this end still has all bytes.
            let _ = ready!(self.transport.control.poll_closed(context, CLOSE_TIMEOUT));
            self.transport.is_over = true;
            self.transport.transfer.stop();
        }
        Poll::Ready(())
    }

    /// Returns `rate_control` of the writer's initial recipe.
    pub fn law(&self) -> Option<&Part> {
        self.transport.law()
    }

    /// Returns a handle that requests other control laws from the writer while the stream runs.
    pub fn law_requests(&self) -> LawRequests {
        LawRequests::new(self.transport.control.clone(), self.transport.law().cloned())
    }

    /// Returns the name of the recipe that carries the stream, chosen by the client.
    pub fn recipe(&self) -> &str {
        &self.transport.recipe.name
    }

    /// Returns the cipher that protects the packets.
    pub fn cipher(&self) -> Cipher {
        self.transport.cipher
    }

    /// Returns the counters of the stream.
    pub fn statistics(&self) -> StreamStatistics {
        self.transport.statistics()
    }

    /// Like [`Read::read`], as an [`Operation`].
    pub fn read_some(&mut self, into: &mut [u8]) -> Operation<'_, impl Polled<usize, io::Error>> {
        Operation::new("bytes", None, |context| self.poll_read(context, into))
    }

    fn poll_read(&mut self, context: &mut Context<'_>, into: &mut [u8]) -> Poll<io::Result<usize>> {
        match self.poll_take(context, into) {
            Poll::Ready(Ok(0)) if !into.is_empty() => self.poll_end(context).map(|()| Ok(0)),
            read => read,
        }
    }
}

impl Read for ByteReader {
    /// Waits for at least one byte. Returns 0 at the end of the stream.
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.read_some(into).wait()
    }
}

impl Drop for ByteReader {
    fn drop(&mut self) {
        self.transport.abort("the reader disconnected before the end of the stream");
    }
}
