//! Owner of a control channel's TCP socket and TLS state: a thread or, in a client's handshake, its task.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use haul_base::Span;
use haul_proto::connection::{MessageFor, Timing};
use haul_wire::control::{ControlMessage, FrameDecoder};
use rustix::event::{PollFd, PollFlags};
use rustls::Connection;

use super::state::{SharedControl, WhenFull};
use crate::tls::{HandshakeError, Readiness, flush, receive, wait};
use crate::wake::wait_ready;
use crate::{Clock, EngineError, Monitor};

/// Plaintext that rustls may buffer for sending.
const TLS_BUFFER: usize = 256 << 10;
/// Timeout for sending the last messages, and for the peer to close the connection.
const LINGER_TIMEOUT: Duration = Duration::from_secs(1);

pub(crate) struct Pump {
    pub(super) shared: Arc<SharedControl>,
    tls: Connection,
    tcp: TcpStream,
    clock: Clock,
    decoder: FrameDecoder,
    buffer: Vec<u8>,
    frame: Vec<u8>,
    written: usize,
    abandoned_at: Option<Instant>,
    close_started: bool,
    /// Why the channel ended, while a message received before is still to be returned.
    end: Option<EngineError>,
}

impl Pump {
    pub(crate) fn new(mut tls: Connection, tcp: TcpStream, timing: Timing) -> Result<Self, EngineError> {
        tls.set_buffer_limit(Some(TLS_BUFFER));
        let clock = Clock::start();
        Ok(Self {
            shared: Arc::new(SharedControl::new(clock.now(), timing)?),
            tls,
            tcp,
            clock,
            decoder: FrameDecoder::new(),
            buffer: vec![0; 64 << 10],
            frame: Vec::new(),
            written: 0,
            abandoned_at: None,
            close_started: false,
            end: None,
        })
    }

    /// Sends a message, or as much of it as the connection accepts now.
    pub(crate) fn send(&mut self, message: &ControlMessage) -> Result<(), EngineError> {
        let pushed = self.shared.push(message, WhenFull::Exceed);
        self.send_all()?;
        pushed.map(|_| ())
    }

    /// Receives the next message for a task, which serves the channel meanwhile; `None` if none arrives by
    /// `deadline`.
    pub(crate) async fn recv(
        &mut self,
        deadline: Instant,
        readiness: &impl Readiness,
    ) -> Result<Option<ControlMessage>, EngineError> {
        let mut served = self.resume();
        loop {
            served = served.and_then(|()| self.send_all());
            // Messages received before the end are returned first.
            let message = self.shared.take(Some(Instant::now()))?;
            if message.is_some() {
                self.end = served.err();
                return Ok(message);
            }
            served?;
            match wait(&self.tls, &self.tcp, deadline, readiness).await {
                Err(HandshakeError::TimedOut) => return Ok(None),
                waited => waited?,
            }
            served = self.receive();
        }
    }

    /// Serves the channel until it ends, and records why.
    pub(super) fn run(mut self) {
        let end = self.serve().err();
        if let Some(error @ EngineError::Protocol(_)) = &end {
            let abort = ControlMessage::Abort(error.fault());
            // Best effort: tells the peer what it did wrong.
            let _ = self.shared.push(&abort, WhenFull::Exceed);
            let _ = self.send_pending();
        }
        let result = end.unwrap_or(EngineError::Closed);
        self.shared.state.update(|state| state.ended = Some(result));
        self.shared.transport.wake_data_thread();
        self.linger();
    }

    fn serve(&mut self) -> Result<(), EngineError> {
        self.resume()?;
        loop {
            let now = Instant::now();
            self.tick(now)?;
            self.send_all()?;
            if self.is_over(now) {
                return Ok(());
            }
            if self.wait(now)? {
                self.receive()?;
            }
        }
    }

    /// Runs the timers: sends a ping when one is due, ends the channel after too long a silence.
    fn tick(&mut self, now: Instant) -> Result<(), EngineError> {
        if self.check_deadline(now).is_err() {
            // This process may have been stopped for that long: what has arrived meanwhile counts.
            self.receive()?;
            let lost = |silence: Span| {
                let seconds = silence.as_secs_f64().floor();
                EngineError::lost(format!("nothing was received for {seconds:.0} seconds"))
            };
            self.check_deadline(now).map_err(lost)?;
        }
        if self.shared.state.lock().close_by.is_some_and(|close_by| close_by <= now) {
            return Err(EngineError::Closed);
        }
        Ok(())
    }

    /// Queues a ping when one is due. Fails with the duration of the silence if it is too long.
    fn check_deadline(&self, now: Instant) -> Result<(), Span> {
        let (time, is_sending) = (self.clock.time(now), self.has_pending());
        let mut state = self.shared.state.lock();
        if self.shared.data_received.swap(false, Ordering::Relaxed) {
            state.channel.on_data_received(time);
        }
        state.channel.on_deadline(time, is_sending)
    }

    fn has_pending(&self) -> bool {
        let is_sending = self.written < self.frame.len() || self.tls.wants_write();
        is_sending
            || self.shared.transport.outgoing.is_full()
            || self.shared.state.lock().channel.outgoing_frames() > 0
    }

    /// Sends. If that fails, reads first: the peer's reason is better than the bare I/O error.
    fn send_all(&mut self) -> Result<(), EngineError> {
        if let Err(error) = self.send_pending() {
            self.receive()?;
            return Err(EngineError::lost(error.to_string()));
        }
        if !self.close_started && self.is_close_written() {
            self.close_started = true;
            self.tls.send_close_notify();
            let _ = flush(&mut self.tls, &self.tcp);
            let _ = self.tcp.shutdown(Shutdown::Write);
            self.shared.state.update(|state| state.close_sent = true);
        }
        Ok(())
    }

    fn is_close_written(&self) -> bool {
        let state = self.shared.state.lock();
        let is_queue_empty = state.channel.is_closing() && state.channel.outgoing_frames() == 0;
        is_queue_empty && self.written == self.frame.len() && !self.tls.wants_write()
    }

    /// Moves frames to TLS and TLS records to TCP until one of them has no more.
    fn send_pending(&mut self) -> io::Result<()> {
        loop {
            if self.written == self.frame.len() {
                self.written = 0;
                self.frame = self.shared.next_frame().unwrap_or_default();
            }
            self.written += self.tls.writer().write(&self.frame[self.written..])?;
            flush(&mut self.tls, &self.tcp)?;
            if self.tls.wants_write() || !self.has_pending() {
                return Ok(());
            }
        }
    }

    fn is_over(&mut self, now: Instant) -> bool {
        let (over, abandoned) = {
            let state = self.shared.state.lock();
            (state.close_sent && state.channel.is_over(), state.abandoned)
        };
        if !abandoned {
            return over;
        }
        let since = *self.abandoned_at.get_or_insert(now);
        over || !self.has_pending() || now.duration_since(since) >= LINGER_TIMEOUT
    }

    /// Waits for the network, a user's wake-up or a timer. Returns whether there may be data to read.
    fn wait(&self, now: Instant) -> Result<bool, EngineError> {
        let state = self.shared.state.lock();
        let timer = Duration::from(state.channel.deadline().since(self.clock.time(now)));
        let others = [state.close_by, self.abandoned_at.map(|since| since + LINGER_TIMEOUT)];
        let others = others.into_iter().flatten().map(|at| at.saturating_duration_since(now));
        let timeout = others.fold(timer, Duration::min);
        let is_full = state.channel.is_full();
        drop(state);
        let mut interest = PollFlags::empty();
        interest.set(PollFlags::IN, !is_full);
        interest.set(PollFlags::OUT, self.tls.wants_write());
        let mut fds = [
            PollFd::new(&self.tcp, interest),
            PollFd::from_borrowed_fd(self.shared.wake.fd(), PollFlags::IN),
        ];
        wait_ready(&mut fds, Some(timeout))?;
        let events = fds[0].revents();
        if !fds[1].revents().is_empty() {
            self.shared.wake.reset();
        }
        let broken = PollFlags::HUP | PollFlags::ERR;
        Ok(events.intersects(PollFlags::IN) || events.intersects(broken))
    }

    fn receive(&mut self) -> Result<(), EngineError> {
        loop {
            match receive(&mut self.tls, &self.tcp) {
                Ok(true) => self.shared.state.lock().channel.on_received(self.clock.now()),
                Ok(false) => return Ok(()),
                Err(error @ HandshakeError::Tls(_)) => return Err(error.into()),
                Err(error) => return Err(self.end_of_connection(error.into())),
            }
            self.take_received()?;
            if self.shared.is_full() {
                return Ok(());
            }
        }
    }

    /// Maps the end of the TCP connection: graceful if either end's close was sent.
    fn end_of_connection(&self, reason: EngineError) -> EngineError {
        let state = self.shared.state.lock();
        let is_finished = state.close_sent || state.channel.is_closed_by_peer();
        if is_finished { EngineError::Closed } else { reason }
    }

    /// Continues with messages that the decoder has buffered, or returns the recorded end.
    fn resume(&mut self) -> Result<(), EngineError> {
        self.end.take().map_or_else(|| self.take_received(), Err)
    }

    /// Reads the plaintext that TLS holds.
    fn take_received(&mut self) -> Result<(), EngineError> {
        loop {
            // An error means no data now or none any more; TCP reports which.
            let Ok(len @ 1..) = self.tls.reader().read(&mut self.buffer) else {
                return Ok(());
            };
            self.decoder.feed(&self.buffer[..len]);
            while let Some(message) =
                self.decoder.next_message().map_err(|e| EngineError::protocol(e.to_string()))?
            {
                self.dispatch(message)?;
            }
        }
    }

    fn dispatch(&self, message: ControlMessage) -> Result<(), EngineError> {
        let mut state = self.shared.state.lock();
        match state.channel.on_message(self.clock.now(), message).map_err(EngineError::Peer)? {
            MessageFor::Channel => {}
            MessageFor::Users => Monitor::release(state),
            MessageFor::PathProbe(size) => self.shared.udp_seen.store(size, Ordering::Relaxed),
            MessageFor::Stack(message) => {
                drop(state);
                self.shared.transport.deliver(message)?;
            }
        }
        Ok(())
    }

    /// Closes the sending direction and waits briefly for the peer to close: closing a socket with unread
    /// bytes resets the connection, and a reset can overtake the last bytes sent.
    fn linger(mut self) {
        let until = Instant::now() + LINGER_TIMEOUT;
        let _ = self.tcp.shutdown(Shutdown::Write);
        loop {
            let remaining = until.saturating_duration_since(Instant::now());
            let mut fds = [PollFd::new(&self.tcp, PollFlags::IN)];
            let is_ready =
                !remaining.is_zero() && wait_ready(&mut fds, Some(remaining)).is_ok_and(|ready| ready > 0);
            if !is_ready || !matches!((&self.tcp).read(&mut self.buffer), Ok(1..)) {
                return;
            }
        }
    }
}
