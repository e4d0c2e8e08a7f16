//! The control channel: messages over TLS over TCP, served by a separate thread.

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
use self::state::{SharedControl, WhenFull};
use crate::EngineError;
use crate::clock::after;
use crate::spawn::spawn;
use crate::wake::block_on;

/// Time in which [`Control::close`] sends its close and waits for the peer's.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(4);
/// Time in which [`Control::abort`] sends its message.
const ABORT_TIMEOUT: Duration = Duration::from_secs(1);

/// One end of a session's control channel. Clones share the channel; it may be used from any thread.
///
/// The channel pings the peer every second. It fails with [`EngineError::ControlLost`] after 15 s of silence
/// (60 s while UDP packets arrive), or when the connection breaks or ends without a close. Pings, their
/// answers and `UdpSeen` are handled internally; a `Refuse` or `Abort` from the peer is returned as
/// [`EngineError::Peer`]. After the last clone is dropped, queued messages are still sent, but no close.
#[derive(derive_more::Debug, Clone)]
#[debug("Control({:?})", handle.shared.state.lock().ended)]
pub struct Control {
    handle: Arc<ControlHandle>,
}

struct ControlHandle {
    shared: Arc<SharedControl>,
}

impl Drop for ControlHandle {
    fn drop(&mut self) {
        self.shared.state.update(|state| state.abandoned = true);
        self.shared.wake.wake();
    }
}

impl Control {
    /// Starts the channel on a connection after its handshake, with an authenticated peer and non-blocking
    /// `tcp`.
    pub(crate) fn start(tls: Connection, tcp: TcpStream, timing: Timing) -> Result<Self, EngineError> {
        Self::served_by(Pump::new(tls, tcp, timing)?)
    }

    /// Starts the thread that serves a channel.
    pub(crate) fn served_by(pump: Pump) -> Result<Self, EngineError> {
        let shared = pump.shared.clone();
        spawn("haul-control", move || pump.run())?;
        Ok(Self { handle: Arc::new(ControlHandle { shared }) })
    }

    fn shared(&self) -> &SharedControl {
        &self.handle.shared
    }

    /// Sends a message. Blocks while more than 8 MiB are queued.
    ///
    /// # Errors
    /// Why the channel ended, or [`EngineError::Closed`] after [`Control::close`]; [`EngineError::TooLong`]
    /// if the message does not fit a frame.
    #[expect(clippy::needless_pass_by_value, reason = "messages are created to be sent")]
    pub fn send(&self, message: ControlMessage) -> Result<(), EngineError> {
        self.shared().push(&message, WhenFull::Wait).map(|_| ())
    }

    /// Sends a message unless more than 8 MiB are queued, and returns whether it did. Never blocks.
    ///
    /// # Errors
    /// Like [`Control::send`].
    pub fn send_if_room(&self, message: &ControlMessage) -> Result<bool, EngineError> {
        self.shared().push(message, WhenFull::Drop)
    }

    pub(crate) fn send_now(&self, message: &ControlMessage) -> Result<(), EngineError> {
        self.shared().push(message, WhenFull::Exceed).map(|_| ())
    }

    /// Receives the next message. Messages that arrived before the end of the channel are returned first.
    ///
    /// # Errors
    /// Why the channel ended; [`EngineError::TimedOut`] if no message arrives within `timeout`.
    pub fn recv(&self, timeout: Option<Duration>) -> Result<ControlMessage, EngineError> {
        let until = timeout.map(after);
        let what = "the next message of the peer";
        self.shared().take(until)?.ok_or_else(|| EngineError::timed_out(what, timeout))
    }

    /// Receives the next message, or returns `None` if none arrives within `timeout`.
    ///
    /// # Errors
    /// Why the channel ended.
    pub fn try_recv(&self, timeout: Duration) -> Result<Option<ControlMessage>, EngineError> {
        self.shared().take(Some(after(timeout)))
    }

    /// Returns why the channel failed; `None` while it works and after a graceful end. Cheap to call.
    pub fn failure(&self) -> Option<EngineError> {
        self.ended().filter(|error| !matches!(error, EngineError::Closed))
    }

    pub(crate) fn ended(&self) -> Option<EngineError> {
        self.shared().state.lock().ended.clone()
    }

    /// Waits for the end of the channel, and returns why it ended: [`EngineError::Closed`] if gracefully.
    pub fn poll_ended(&self, context: &Context<'_>) -> Poll<EngineError> {
        self.shared().state.poll(context, |state| state.ended.clone())
    }

    /// Returns the size of the first datagram that the server received, once it has reported it.
    pub fn udp_seen(&self) -> Option<u16> {
        let size = self.shared().udp_seen.load(Ordering::Relaxed);
        (size != 0).then_some(size)
    }

    /// Notes that the data thread received a packet from the peer.
    pub(crate) fn on_data_received(&self) {
        self.shared().data_received.store(true, Ordering::Relaxed);
    }

    /// Sets the data thread to wake when a transport message arrives and when another one may be sent.
    pub(crate) fn set_data_thread(&self, waker: crate::Waker) {
        // There is only one data thread.
        let _ = self.shared().transport.data_thread.set(waker);
    }

    /// Whether a transport message may be sent: the previous one is no longer queued.
    pub(crate) fn can_send_transport(&self) -> bool {
        !self.shared().transport.outgoing.is_full()
    }

    /// Queues a transport message. Never blocks.
    pub(crate) fn send_transport(&self, message: Vec<u8>) {
        self.shared().transport.outgoing.force_push(message);
        self.shared().wake.wake();
    }

    /// Returns the newest few transport messages received since the last call.
    pub(crate) fn take_transport(&self) -> impl Iterator<Item = Vec<u8>> {
        std::iter::from_fn(|| self.shared().transport.incoming.pop())
    }

    /// Returns the round-trip time of the latest ping, including what was queued before it.
    pub fn round_trip(&self) -> Option<Span> {
        self.shared().state.lock().channel.round_trip()
    }

    /// Ends the session gracefully: sends queued messages and a close, and waits up to 4 s for the peer's
    /// close. Later sends fail with [`EngineError::Closed`]. May be called again.
    ///
    /// # Errors
    /// Why the channel ended, if not gracefully.
    pub fn close(&self) -> Result<(), EngineError> {
        block_on(poll_fn(|context| self.poll_close(context)))
    }

    /// Polling version of [`Control::close`].
    ///
    /// # Errors
    /// As [`Control::close`].
    pub fn poll_close(&self, context: &Context<'_>) -> Poll<Result<(), EngineError>> {
        // Fails if either end has closed already; then only the remaining wait is left.
        let _ = self.shared().push(&ControlMessage::Close, WhenFull::Exceed);
        self.poll_closed(context, CLOSE_TIMEOUT)
    }

    /// Waits until the channel has ended; the peer has `timeout` from the first call on to close it.
    ///
    /// # Errors
    /// Why the channel ended, if not gracefully.
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

    /// Aborts the session and tells the peer why. Waits up to 1 s until the message is sent.
    pub fn abort(&self, fault: Fault) {
        self.end_with(&ControlMessage::Abort(fault));
    }

    pub(crate) fn end_with(&self, message: &ControlMessage) {
        if self.shared().push(message, WhenFull::Exceed).is_ok() {
            let until = Some(Instant::now() + ABORT_TIMEOUT);
            self.shared()
                .state
                .wait(until, |state| (state.close_sent || state.ended.is_some()).then_some(()));
        }
    }
}

#[cfg(test)]
mod tests;
