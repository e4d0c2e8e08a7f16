//! The control channel: messages over TLS over TCP, carried by a thread of their own.

mod pump;
mod state;

use std::future::poll_fn;
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use haul_base::Span;
use haul_proto::connection::Timing;
use haul_wire::control::{ControlMessage, Fault};
use rustls::Connection;

pub(crate) use self::pump::Pump;
use self::state::{Room, Shared};
use crate::EngineError;
use crate::clock::after;
use crate::spawn::spawn;
use crate::wake::block_on;

/// How long [`Control::close`] tries to get its close out and waits for the peer's.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(4);
/// How long [`Control::abort`] tries to get its message out.
const ABORT: Duration = Duration::from_secs(1);

/// One end of a session's control channel. Clones are the same channel, and any thread may use them.
///
/// The channel pings the peer every second, and takes it for lost ([`EngineError::ControlLost`]) when nothing is heard
/// for 15 seconds, a minute while packets come over UDP, or when the connection breaks or ends without a close. Pings,
/// their answers and `UdpSeen` are handled here and never come out of [`Control::recv`]; a `Refuse` or `Abort` of the
/// peer comes out as [`EngineError::Peer`]. When the last clone is dropped, what was sent before still leaves, and the
/// connection ends without a close.
#[derive(derive_more::Debug, Clone)]
#[debug("Control({:?})", handle.shared.state.lock().ended)]
pub struct Control {
    handle: Arc<Handle>,
}

struct Handle {
    shared: Arc<Shared>,
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.shared.state.update(|state| state.abandoned = true);
        self.shared.wake.wake();
    }
}

impl Control {
    /// Starts the channel on a connection whose handshake is complete, to a peer that has proved who it is. `tcp` is
    /// non-blocking.
    pub(crate) fn start(tls: Connection, tcp: TcpStream, timing: Timing) -> Result<Self, EngineError> {
        Self::served_by(Pump::new(tls, tcp, timing)?)
    }

    /// Gives a channel its thread.
    pub(crate) fn served_by(pump: Pump) -> Result<Self, EngineError> {
        let shared = pump.shared.clone();
        spawn("haul-control", move || pump.run())?;
        Ok(Self { handle: Arc::new(Handle { shared }) })
    }

    fn shared(&self) -> &Shared {
        &self.handle.shared
    }

    /// Sends a message. Waits while more than 8 MiB are queued.
    ///
    /// # Errors
    /// How the channel ended, or [`EngineError::Closed`] after [`Control::close`];
    /// [`EngineError::TooLong`] if the message does not fit a frame.
    #[expect(
        clippy::needless_pass_by_value,
        reason = "a message is made to be sent, and then of no more use"
    )]
    pub fn send(&self, message: ControlMessage) -> Result<(), EngineError> {
        self.shared().push(&message, Room::Wait).map(|_| ())
    }

    /// Sends a message if no more than 8 MiB are queued; says whether it did. Never waits.
    ///
    /// # Errors
    /// Like [`Control::send`].
    pub fn send_if_room(&self, message: &ControlMessage) -> Result<bool, EngineError> {
        self.shared().push(message, Room::OrNot)
    }

    pub(crate) fn send_now(&self, message: &ControlMessage) -> Result<(), EngineError> {
        self.shared().push(message, Room::Ignore).map(|_| ())
    }

    /// The next message. Messages that came before the end of the channel are given out before its end.
    ///
    /// # Errors
    /// How the channel ended; [`EngineError::TimedOut`] if nothing comes within `timeout` (`None`: no limit).
    pub fn recv(&self, timeout: Option<Duration>) -> Result<ControlMessage, EngineError> {
        let until = timeout.map(after);
        let what = "the next message of the other side";
        self.shared().take(until)?.ok_or_else(|| EngineError::timed_out(what, timeout))
    }

    /// The next message, or `None` if none comes within `timeout`.
    ///
    /// # Errors
    /// How the channel ended.
    pub fn try_recv(&self, timeout: Duration) -> Result<Option<ControlMessage>, EngineError> {
        self.shared().take(Some(after(timeout)))
    }

    /// How the channel failed, if it has; `None` while it works and after a regular end. Cheap enough for a
    /// data path to ask every few milliseconds.
    pub fn failure(&self) -> Option<EngineError> {
        let ended = self.shared().state.lock().ended.clone();
        ended.filter(|error| !matches!(error, EngineError::Closed))
    }

    /// As [`Control::failure`]; the task is woken when the channel ends.
    pub fn poll_failure(&self, context: &Context<'_>) -> Poll<EngineError> {
        match self.shared().state.poll(context, |state| state.ended.clone()) {
            Poll::Ready(EngineError::Closed) => Poll::Pending,
            polled => polled,
        }
    }

    /// Size of the first datagram that the server saw, once it has told this client so.
    pub fn udp_seen(&self) -> Option<u16> {
        let size = self.shared().udp_seen.load(Ordering::Relaxed);
        (size != 0).then_some(size)
    }

    /// The data thread has heard the peer.
    pub(crate) fn note_data(&self) {
        self.shared().data_heard.store(true, Ordering::Relaxed);
    }

    /// The data thread to wake when a message of the transport comes, and when another one may be sent.
    pub(crate) fn set_data_thread(&self, waker: crate::Waker) {
        // There is one.
        let _ = self.shared().transport.data_thread.set(waker);
    }

    /// Whether a message of the transport may be sent: the one before is on its way.
    pub(crate) fn takes_transport(&self) -> bool {
        !self.shared().transport.outgoing.is_full()
    }

    /// Sends a message of the transport. Never waits.
    pub(crate) fn send_transport(&self, message: Vec<u8>) {
        self.shared().transport.outgoing.force_push(message);
        self.shared().wake.wake();
    }

    /// The other side's messages of the transport since the last time, the newest few.
    pub(crate) fn take_transport(&self) -> impl Iterator<Item = Vec<u8>> {
        std::iter::from_fn(|| self.shared().transport.incoming.pop())
    }

    /// The round trip of the latest ping, including what was queued in front of it.
    pub fn round_trip(&self) -> Option<Span> {
        self.shared().state.lock().channel.round_trip()
    }

    /// Ends the session regularly: sends what is queued and a close, and waits for the peer's, for up to 4 seconds.
    /// Later sends fail with [`EngineError::Closed`]. May be called again.
    ///
    /// # Errors
    /// How the channel ended, if not regularly.
    pub fn close(&self) -> Result<(), EngineError> {
        block_on(poll_fn(|context| self.poll_close(context)))
    }

    /// As [`Control::close`], for tasks.
    ///
    /// # Errors
    /// As [`Control::close`].
    pub fn poll_close(&self, context: &Context<'_>) -> Poll<Result<(), EngineError>> {
        // Refused if one of the two has closed already; then there is only the rest to wait for.
        let _ = self.shared().push(&ControlMessage::Close, Room::Ignore);
        self.poll_closed(context, CLOSE_TIMEOUT)
    }

    /// Ready when the channel has ended; the peer may take `timeout` to close it from the first call on.
    ///
    /// # Errors
    /// How the channel ended, if not regularly.
    pub fn poll_closed(&self, context: &Context<'_>, timeout: Duration) -> Poll<Result<(), EngineError>> {
        let ended = self.shared().state.poll(context, |state| {
            let close_by = after(timeout);
            if state.close_by.is_none_or(|known| close_by < known) {
                state.close_by = Some(close_by);
                self.shared().wake.wake();
            }
            state.ended.clone()
        });
        ended.map(|ended| match ended {
            EngineError::Closed => Ok(()),
            error => Err(error),
        })
    }

    /// Ends the session irregularly and tells the peer why. Waits up to a second for the message to go out.
    pub fn abort(&self, fault: Fault) {
        self.end_with(&ControlMessage::Abort(fault));
    }

    pub(crate) fn end_with(&self, message: &ControlMessage) {
        if self.shared().push(message, Room::Ignore).is_ok() {
            let until = Some(Instant::now() + ABORT);
            self.shared()
                .state
                .wait(until, |state| (state.close_sent || state.ended.is_some()).then_some(()));
        }
    }
}

#[cfg(test)]
mod tests;
