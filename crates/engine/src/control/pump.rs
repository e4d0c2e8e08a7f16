//! What owns a control channel's TCP socket and TLS state: a thread or, while a client asks for something, its task.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use haul_wire::control::ControlMessage;
use haul_wire::packet::CloseReason;
use rustix::event::{PollFd, PollFlags};
use rustls::Connection;

use super::state::{Incoming, Room, Shared};
use crate::EngineError;
use crate::tls::{HandshakeError, Readiness, flush, receive, wait};
use crate::wake::wait_ready;

/// Plain bytes that rustls may hold for the network.
const TLS_BUFFER: usize = 256 << 10;
/// How long the last words may take, and how long the peer's end of the connection is waited for.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// While packets come over UDP, TCP may be silent for so many times as long: behind a queue that they keep full it
/// backs off (RFC 6298, section 5.5).
const BESIDE_DATA: u32 = 4;

/// How often to show life and how long to believe in the peer's.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Timing {
    pub(crate) ping: Duration,
    /// Nothing heard for so long: the peer is gone.
    pub(crate) silence: Duration,
}

impl Default for Timing {
    fn default() -> Self {
        Self { ping: Duration::from_secs(1), silence: Duration::from_secs(15) }
    }
}

pub(crate) struct Pump {
    pub(super) shared: Arc<Shared>,
    tls: Connection,
    tcp: TcpStream,
    timing: Timing,
    incoming: Incoming,
    buffer: Vec<u8>,
    frame: Vec<u8>,
    written: usize,
    started: Instant,
    last_heard: Instant,
    /// When the data thread last heard the peer over UDP.
    data_heard: Option<Instant>,
    next_ping: Instant,
    abandoned_at: Option<Instant>,
    at_end: bool,
    /// How the channel has ended, behind a message that was given out before.
    end: Option<EngineError>,
}

impl Pump {
    pub(crate) fn new(mut tls: Connection, tcp: TcpStream, timing: Timing) -> Result<Self, EngineError> {
        tls.set_buffer_limit(Some(TLS_BUFFER));
        let (shared, now) = (Arc::new(Shared::new()?), Instant::now());
        Ok(Self {
            incoming: Incoming::new(shared.clone(), now),
            shared,
            tls,
            tcp,
            timing,
            buffer: vec![0; 64 << 10],
            frame: Vec::new(),
            written: 0,
            started: now,
            last_heard: now,
            data_heard: None,
            next_ping: now + timing.ping,
            abandoned_at: None,
            at_end: false,
            end: None,
        })
    }

    /// Sends a message, or as much of it as the connection takes now.
    pub(crate) fn send(&mut self, message: &ControlMessage) -> Result<(), EngineError> {
        let pushed = self.shared.push(message, Room::Ignore);
        self.send_all()?;
        pushed.map(|_| ())
    }

    /// The next message, for a task that serves the channel meanwhile; `None` if none comes by `deadline`.
    pub(crate) async fn recv(
        &mut self,
        deadline: Instant,
        readiness: &impl Readiness,
    ) -> Result<Option<ControlMessage>, EngineError> {
        let mut served = self.resume();
        loop {
            served = served.and_then(|()| self.send_all());
            // What came before the end is given out before it.
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

    /// Serves the channel until it ends, and says how it ended.
    pub(super) fn run(mut self) {
        let end = self.serve().err();
        if let Some(error @ EngineError::Protocol(_)) = &end {
            let abort = ControlMessage::Abort(error.fault());
            // The peer should know what it did; it need not.
            let _ = self.shared.push(&abort, Room::Ignore);
            let _ = self.send_pending();
        }
        let how = end.unwrap_or(EngineError::Closed);
        self.shared.state.update(|state| state.ended = Some(how));
        self.linger();
    }

    /// `Ok` after a regular end.
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
        if self.shared.is_full() {
            // The peer is made to wait, so its silence means nothing.
            self.last_heard = now;
        }
        if self.shared.data_heard.swap(false, Ordering::Relaxed) {
            self.data_heard = Some(now);
        }
        if self.lost_at() <= now {
            let seconds = now.duration_since(self.last_heard).as_secs();
            return Err(EngineError::lost(format!("nothing was heard for {seconds} seconds")));
        }
        if self.shared.state.lock().close_by.is_some_and(|close_by| close_by <= now) {
            return Err(EngineError::Closed);
        }
        if now >= self.next_ping {
            self.next_ping = now + self.timing.ping;
            // What is queued already shows that this side is alive.
            if !self.has_pending() {
                let micros = now.duration_since(self.started).as_micros() as u64;
                let _ = self.shared.push(&ControlMessage::Ping(micros), Room::Ignore);
            }
        }
        Ok(())
    }

    /// When the peer is given up, if nothing more is heard of it.
    fn lost_at(&self) -> Instant {
        let silence = self.timing.silence;
        let last = self.last_heard + silence * BESIDE_DATA;
        let by_data = self.data_heard.map(|at| (at + silence).min(last));
        by_data.into_iter().fold(self.last_heard + silence, Instant::max)
    }

    fn has_pending(&self) -> bool {
        let is_sending = self.written < self.frame.len() || self.tls.wants_write();
        is_sending || self.shared.transport.outgoing.is_full() || self.shared.state.lock().has_outgoing()
    }

    /// Sends; if that fails, what the peer said before is better than the bare error.
    fn send_all(&mut self) -> Result<(), EngineError> {
        if let Err(error) = self.send_pending() {
            self.receive()?;
            return Err(EngineError::lost(error.to_string()));
        }
        if !self.at_end && self.is_close_out() {
            self.at_end = true;
            self.tls.send_close_notify();
            let _ = flush(&mut self.tls, &self.tcp);
            let _ = self.tcp.shutdown(Shutdown::Write);
            self.shared.state.update(|state| state.close_sent = true);
        }
        Ok(())
    }

    fn is_close_out(&self) -> bool {
        let state = self.shared.state.lock();
        let all_taken = state.close_reason.is_some() && !state.has_outgoing();
        all_taken && self.written == self.frame.len() && !self.tls.wants_write()
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
            let answered = state.bye_received || state.close_reason == Some(CloseReason::Abort);
            (state.close_sent && answered, state.abandoned)
        };
        if !abandoned {
            return over;
        }
        let since = *self.abandoned_at.get_or_insert(now);
        over || !self.has_pending() || now.duration_since(since) >= LAST_WORDS
    }

    /// Waits for the network, a user or the time; whether there may be something to read.
    fn wait(&self, now: Instant) -> Result<bool, EngineError> {
        let mut until = self.next_ping.min(self.lost_at());
        if let Some(close_by) = self.shared.state.lock().close_by {
            until = until.min(close_by);
        }
        if let Some(since) = self.abandoned_at {
            until = until.min(since + LAST_WORDS);
        }
        let mut interest = PollFlags::empty();
        interest.set(PollFlags::IN, !self.shared.is_full());
        interest.set(PollFlags::OUT, self.tls.wants_write());
        let mut fds = [
            PollFd::new(&self.tcp, interest),
            PollFd::from_borrowed_fd(self.shared.wake.fd(), PollFlags::IN),
        ];
        wait_ready(&mut fds, Some(until.saturating_duration_since(now)))?;
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
                Ok(true) => self.last_heard = Instant::now(),
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

    /// The connection is gone: regular if both ends are through.
    fn end_of_connection(&self, reason: EngineError) -> EngineError {
        let state = self.shared.state.lock();
        if state.close_sent || state.bye_received { EngineError::Closed } else { reason }
    }

    /// Goes on where the channel was served before.
    fn resume(&mut self) -> Result<(), EngineError> {
        self.end.take().map_or_else(|| self.take_received(), Err)
    }

    /// Takes the plain bytes that TLS holds.
    fn take_received(&mut self) -> Result<(), EngineError> {
        loop {
            // An error means that there is nothing now, or nothing any more; TCP will tell.
            let Ok(len @ 1..) = self.tls.reader().read(&mut self.buffer) else {
                return Ok(());
            };
            self.incoming.take(&self.buffer[..len])?;
        }
    }

    /// Closes with what is left to say, and waits shortly for the peer to close: closing a socket with
    /// unread bytes resets the connection, and a reset can overtake what was sent last.
    fn linger(mut self) {
        let until = Instant::now() + LAST_WORDS;
        let _ = self.tcp.shutdown(Shutdown::Write);
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let mut fds = [PollFd::new(&self.tcp, PollFlags::IN)];
            let is_ready = !left.is_zero() && wait_ready(&mut fds, Some(left)).is_ok_and(|ready| ready > 0);
            if !is_ready || !matches!((&self.tcp).read(&mut self.buffer), Ok(1..)) {
                return;
            }
        }
    }
}
