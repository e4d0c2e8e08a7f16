//! Reliable streams of bytes, over the bulk transport or any other recipe of an object.

mod buffers;
mod law_requests;

use std::io::{self, Read, Write};
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use haul_base::{CauseCounts, Rate, Span};
use haul_engine::{
    ConnectOptions, Control, Counters, EngineError as Error, HaulUrl, Monitor, Session, Transfer, Waker,
    connect, spawn_blocking,
};
use haul_proto::connection::settings_for;
use haul_proto::multiplexer::SendBuffer;
use haul_proto::{ChosenLaw, ControllerError, Limit, LimitEvidence, limit_of_sender};
use haul_stack::{Part, Recipe, RecipeError};
use haul_wire::control::{Cipher, ControlMessage, Fault, FaultCode, Request, Settings};

use self::buffers::{Inbox, Sink, Source};
use self::law_requests::owned;
pub use self::law_requests::{LawRequestError, LawRequests};
use crate::operation::of_future;
use crate::{ConnectionError, OpenError, Operation, Options, Polled, WaitError};

/// Most bytes that wait for their arrival: what fits into 100 ms at 5 Gbit/s.
const MOST_OUTSTANDING: usize = 64 << 20;
/// How long the other side's close may take after the last byte.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(15);

/// The sending end of a stream of bytes. [`ByteWriter::finish`] ends it; dropped before, it ends with an error at the
/// other side.
#[derive(derive_more::Debug)]
#[debug("ByteWriter({} outstanding)", self.outstanding())]
pub struct ByteWriter {
    outbox: Arc<Monitor<SendBuffer>>,
    transport: Transport,
    /// The end of the stream is known: nothing can follow.
    is_ended: bool,
}

/// The receiving end of a stream of bytes.
#[derive(derive_more::Debug)]
#[debug("ByteReader")]
pub struct ByteReader {
    inbox: Arc<Monitor<Inbox>>,
    transport: Transport,
}

/// What a stream of bytes has done so far; at most a twentieth of a second old.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StreamStatistics {
    /// Bytes of the stream that have arrived: at the writer, that are known to.
    pub bytes: u64,
    /// Data packets that were sent or received, repeated ones included.
    pub packets: u64,
    /// The writer: of these, repeated ones.
    pub resent: u64,
    /// Packets that came although they had come before: at the writer, as the reader last said.
    pub duplicates: u64,
    /// The writer: packets that were lost, by what the diagnosis puts them down to.
    pub lost: CauseCounts,
    /// The writer: the rate at which the control law sends at present.
    pub rate: Option<Rate>,
    /// The round trip: the writer's is smoothed, the reader's that of the control channel.
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
    /// With what it says of its law now.
    recipe: Recipe,
    cipher: Cipher,
}

impl Transport {
    fn law(&self) -> Option<&Part> {
        self.recipe.parts.iter().find(|part| part.name == "rate_control")
    }

    fn new(session: &Session, transfer: Transfer) -> Self {
        let (control, recipe) = (session.control().clone(), session.recipe().clone());
        Self { transfer, control, began: Instant::now(), is_over: false, recipe, cipher: session.cipher() }
    }

    /// As [`Transport::failure`]; the task is woken when there is one.
    fn poll_failure(&self, context: &Context<'_>) -> Poll<Error> {
        let lost = self.control.poll_failure(context);
        self.transfer.failure().map_or(lost, Poll::Ready)
    }

    fn statistics(&self) -> StreamStatistics {
        StreamStatistics::of(self.transfer.counters().as_ref(), self.control.round_trip())
    }

    fn limit(&self) -> Option<Limit> {
        let Some(Counters::Sending(sending)) = self.transfer.counters() else { return None };
        let round_trip = self.control.round_trip().unwrap_or_default();
        limit_of_sender(&LimitEvidence::of(&sending.stats, round_trip, None, self.began.elapsed().into()))
    }

    fn set_law(&mut self, changes: &[(&str, &str)]) -> Result<(), ControllerError> {
        if let Some(law) = self.recipe.parts.iter_mut().find(|part| part.name == "rate_control") {
            self.transfer.switch_law(ChosenLaw::change(law, &owned(changes))?);
        }
        Ok(())
    }

    fn failure(&self) -> Option<Error> {
        self.transfer.failure().or_else(|| self.control.failure())
    }

    /// Aborts a session that has not ended yet.
    fn abort(&mut self, what: &str) {
        if !self.is_over {
            self.is_over = true;
            self.control.abort(Fault::new(FaultCode::Interrupted, what, ""));
        }
    }
}

/// Opens a session and has `begin` start its transfer. A thread of its own does the handshake.
fn open<S: Send + 'static>(
    url: &str,
    recipe: &Recipe,
    options: &Options,
    request: Request,
    begin: fn(Session) -> Result<S, Error>,
) -> Operation<'static, impl Polled<S, OpenError> + use<S>> {
    let url = url.parse::<HaulUrl>();
    let settings = settings(recipe, options);
    let (ciphers, timeout, loss_model) =
        (options.ciphers.clone(), options.timeout, options.loss_model.clone());
    let opening = move || {
        let options = ConnectOptions { ciphers, timeout, ..ConnectOptions::new(request, settings?) };
        let mut session = connect(&url?, options)?;
        session.set_loss_model(loss_model);
        Ok(begin(session)?)
    };
    of_future("the server's answer", spawn_blocking(opening))
}

/// The settings of a session that runs this recipe.
fn settings(recipe: &Recipe, options: &Options) -> Result<Settings, RecipeError> {
    let socket_buffer = options.socket_buffer.map(|bytes| bytes.0);
    Ok(Settings { offload: options.offload, socket_buffer, ..settings_for(recipe, options.rate)? })
}

impl ByteWriter {
    /// Opens a stream to the server that printed `url`.
    ///
    /// The recipe is one of an object: `bulk`, `fobs`, `rbudp` or one's own. The server runs what the client brings.
    /// [`Options::rate`] goes before the recipe's.
    ///
    /// # Errors
    /// If the server cannot be reached or refuses; if the recipe does not carry an object, or cannot be used.
    pub fn open(
        url: &str,
        recipe: &Recipe,
        options: &Options,
    ) -> Operation<'static, impl Polled<Self, OpenError> + use<>> {
        open(url, recipe, options, Request::StreamSend, Self::of)
    }

    pub(crate) fn of(mut session: Session) -> Result<Self, Error> {
        let (outbox, waker) = (Arc::new(Monitor::new(SendBuffer::new(MOST_OUTSTANDING))), Waker::new()?);
        let transfer = session.start_sending(Box::new(Source(outbox.clone())), waker)?;
        Ok(Self { outbox, transport: Transport::new(&session, transfer), is_ended: false })
    }

    /// Ends the stream and waits until every byte has arrived. If that took too long, it may be called again.
    ///
    /// # Errors
    /// What kept the bytes from arriving.
    pub fn finish(&mut self) -> Operation<'_, impl Polled<(), WaitError>> {
        Operation::new("the arrival of all bytes", None, |context| self.poll_finish(context))
    }

    fn poll_finish(&mut self, context: &mut Context<'_>) -> Poll<Result<(), WaitError>> {
        if !self.is_ended {
            self.is_ended = true;
            self.outbox.lock().finish();
            self.transport.transfer.waker().wake();
        }
        if !self.transport.is_over {
            match self.transport.transfer.poll_delivered(context) {
                Poll::Ready(delivered) => delivered?,
                Poll::Pending => {
                    return self.transport.control.poll_failure(context).map(|error| Err(error.into()));
                }
            }
        }
        self.transport.is_over = true;
        self.transport.control.poll_close(context).map_err(Into::into)
    }

    /// What the recipe, and [`ByteWriter::set_law`] since, say of `rate_control`.
    pub fn law(&self) -> Option<&Part> {
        self.transport.law()
    }

    /// Changes parameters of the stream's `rate_control` while it runs: `("rate", "50Mbit")`, `("controller", "reno")`.
    /// Nothing that was written is lost by it, and a new law goes on from the rate of the one before.
    ///
    /// # Errors
    /// If there is no such law or parameter; then nothing changes.
    pub fn set_law(&mut self, changes: &[(&str, &str)]) -> Result<(), ControllerError> {
        self.transport.set_law(changes)
    }

    /// The next change of the law that the reader asks for ([`LawRequests::ask`]): parameters of `rate_control` and
    /// their new values, not checked. Nothing is changed unless the application does it, with [`ByteWriter::set_law`]
    /// and within its own limits.
    pub fn take_law_request(&mut self) -> Option<Vec<(String, String)>> {
        // How the channel has failed is said elsewhere.
        match self.transport.control.try_recv(Duration::ZERO) {
            Ok(Some(ControlMessage::LawChange(changes))) => Some(changes),
            _ => None,
        }
    }

    /// Whether the stream still runs, for writers that have nothing to write now.
    ///
    /// # Errors
    /// How it has failed.
    pub fn check(&self) -> Result<(), ConnectionError> {
        self.transport.failure().map_or(Ok(()), |error| Err(error.into()))
    }

    /// Bytes that were written and have not arrived for certain.
    pub fn outstanding(&self) -> usize {
        self.outbox.lock().outstanding()
    }

    /// As [`Write::write`].
    pub fn write_some(&mut self, bytes: &[u8]) -> Operation<'_, impl Polled<usize, io::Error>> {
        Operation::new("room for bytes", None, |context| self.poll_write(context, bytes))
    }

    /// As [`Write::write`], for those who poll.
    ///
    /// # Errors
    /// If the stream has been finished, or has failed.
    pub fn poll_write(&mut self, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.check_open()?;
        if let Poll::Ready(taken) = self.outbox.poll(context, |outbox| outbox.push(bytes)) {
            self.transport.transfer.waker().wake();
            return Poll::Ready(Ok(taken));
        }
        // Either wakes the task. A failure before this call has woken nobody.
        self.transport.poll_failure(context).map(|error| Err(error.into()))
    }

    fn check_open(&self) -> io::Result<()> {
        if self.is_ended {
            return Err(io::Error::other("the end of the stream was said already"));
        }
        self.transport.failure().map_or(Ok(()), |error| Err(error.into()))
    }

    /// Name of the recipe that carries the stream; the client chose it.
    pub fn recipe(&self) -> &str {
        &self.transport.recipe.name
    }

    /// How packets are protected.
    pub fn cipher(&self) -> Cipher {
        self.transport.cipher
    }

    /// What the stream has done so far.
    pub fn statistics(&self) -> StreamStatistics {
        self.transport.statistics()
    }

    /// What has limited the stream from its opening until now. `None` while too little was sent to tell.
    pub fn limit(&self) -> Option<Limit> {
        self.transport.limit()
    }
}

impl Write for ByteWriter {
    /// Takes as many bytes as there is room for, at least one. Waits while there is none.
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.write_some(bytes).wait()
    }

    /// Bytes leave as soon as the path takes them; there is nothing to do.
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for ByteWriter {
    fn drop(&mut self) {
        self.transport.abort("the writer of the stream has gone before its end");
    }
}

impl ByteReader {
    /// Opens a stream from the server that printed `url`.
    ///
    /// # Errors
    /// As [`ByteWriter::open`].
    pub fn open(
        url: &str,
        recipe: &Recipe,
        options: &Options,
    ) -> Operation<'static, impl Polled<Self, OpenError> + use<>> {
        open(url, recipe, options, Request::StreamReceive, Self::of)
    }

    pub(crate) fn of(mut session: Session) -> Result<Self, Error> {
        let (inbox, waker) = (Arc::<Monitor<Inbox>>::default(), Waker::new()?);
        let transfer = session.start_receiving(Box::new(Sink(inbox.clone())), waker)?;
        Ok(Self { inbox, transport: Transport::new(&session, transfer) })
    }

    /// Bytes if there are some, 0 behind the last.
    fn poll_take(&mut self, context: &Context<'_>, into: &mut [u8]) -> Poll<io::Result<usize>> {
        if let Poll::Ready((bytes, has_freed_room)) = self.inbox.poll(context, |inbox| inbox.pull(into)) {
            if has_freed_room {
                self.transport.transfer.waker().wake();
            }
            return Poll::Ready(Ok(bytes));
        }
        // What failed may have failed after the last byte came.
        match self.transport.poll_failure(context) {
            Poll::Ready(_) if self.inbox.lock().is_readable() => self.poll_take(context, into),
            Poll::Ready(error) => Poll::Ready(Err(error.into())),
            Poll::Pending if self.inbox.lock().broken => {
                let reason = "it sent bytes beyond what it was permitted".to_owned();
                Poll::Ready(Err(Error::Protocol(reason).into()))
            }
            Poll::Pending => Poll::Pending,
        }
    }

    /// Everything has been read: ready when the writer knows that, or has had the time for it.
    fn poll_end(&mut self, context: &Context<'_>) -> Poll<()> {
        if !self.transport.is_over {
            // The writer closes once it knows that all has arrived; if it cannot, the bytes are here all the same.
            let _ = ready!(self.transport.control.poll_closed(context, CLOSE_TIMEOUT));
            self.transport.is_over = true;
            self.transport.transfer.stop();
        }
        Poll::Ready(())
    }

    /// What the writer's recipe says of `rate_control` at the start.
    pub fn law(&self) -> Option<&Part> {
        self.transport.law()
    }

    /// Asks the writer for another control law while the stream runs.
    pub fn law_requests(&self) -> LawRequests {
        LawRequests::new(self.transport.control.clone(), self.transport.law().cloned())
    }

    /// Name of the recipe that carries the stream; the client chose it.
    pub fn recipe(&self) -> &str {
        &self.transport.recipe.name
    }

    /// How packets are protected.
    pub fn cipher(&self) -> Cipher {
        self.transport.cipher
    }

    /// What the stream has done so far.
    pub fn statistics(&self) -> StreamStatistics {
        self.transport.statistics()
    }

    /// As [`Read::read`].
    pub fn read_some(&mut self, into: &mut [u8]) -> Operation<'_, impl Polled<usize, io::Error>> {
        Operation::new("bytes", None, |context| self.poll_read(context, into))
    }

    /// As [`Read::read`], for those who poll.
    ///
    /// # Errors
    /// If the stream has failed.
    pub fn poll_read(&mut self, context: &mut Context<'_>, into: &mut [u8]) -> Poll<io::Result<usize>> {
        match self.poll_take(context, into) {
            Poll::Ready(Ok(0)) if !into.is_empty() => self.poll_end(context).map(|()| Ok(0)),
            read => read,
        }
    }
}

impl Read for ByteReader {
    /// Waits for at least one byte; 0 at the end of the stream.
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.read_some(into).wait()
    }
}

impl Drop for ByteReader {
    fn drop(&mut self) {
        self.transport.abort("the reader of the stream has gone before its end");
    }
}
