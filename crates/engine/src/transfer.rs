//! Transfer of one object: the data thread of a session, which runs the stack of a sender or a receiver.

use std::any::Any;
use std::num::NonZero;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use haul_base::{Piece, Rate, Span, Time};
use haul_proto::connection::{MIN_DATAGRAM, sizes_for};
use haul_proto::micro::events::{QUOTA, Quota};
use haul_proto::micro::shared::DiagnosedWindows;
use haul_proto::{
    Available, ChosenLaw, Counters, DiagnosedWindow, LAW_CHOSEN, Link, ObjectEnd, ObjectSink, ObjectSource,
    Receiver, ReceiverConfig, Sender, SenderConfig,
};
use haul_stack::{Event, Name, RecipeError, Stack};
use haul_udp::Capabilities;

use crate::clock::after;
use crate::endpoint::{Connection, DataThread, EndpointSocket, Published, SessionSide};
use crate::session::DataPath;
use crate::spawn::spawn;
use crate::wake::{block_until, wait_for};
use crate::{EngineError, Monitor, Role, Session, Waker};

/// Idle timeout of the data path, the same as the control channel's.
const IDLE_TIMEOUT: Span = Span::from_secs(15);
/// Bytes that may be sent before the receiver's first limit arrives. Every sink must accept as many.
pub const INITIAL_LIMIT: u64 = 64 << 20;

/// A transfer running in its own thread. Dropping it stops the thread.
#[derive(derive_more::Debug)]
#[debug("Transfer({published:?})")]
pub struct Transfer {
    shared: Arc<EndpointSocket>,
    connection: Weak<Connection>,
    published: Arc<Monitor<Published>>,
    waker: Waker,
    thread: Option<JoinHandle<()>>,
}

impl Transfer {
    fn spawn(
        shared: Arc<EndpointSocket>,
        connection: Arc<Connection>,
        side: SessionSide,
    ) -> Result<Self, EngineError> {
        let (published, waker) = (Arc::<Monitor<Published>>::default(), side.waker.clone());
        let name = match side.end {
            ObjectEnd::Source => "haul-send",
            ObjectEnd::Sink => "haul-receive",
        };
        let weak = Arc::downgrade(&connection);
        let (thread_shared, thread_published) = (shared.clone(), published.clone());
        let run = move || {
            // Without this, Linux delays timers by up to 50 us. Failure is harmless.
            let _ = rustix::thread::set_current_timer_slack(NonZero::new(1));
            DataThread::new(thread_shared, connection, side, thread_published).run();
        };
        Ok(Self { shared, connection: weak, published, waker, thread: Some(spawn(name, run)?) })
    }

    /// Returns the kernel features that the socket uses or lacks.
    pub fn capabilities(&self) -> &Capabilities {
        self.shared.socket.capabilities()
    }

    /// Returns the counters, at most 50 ms old; `None` before the data path has run once.
    pub fn counters(&self) -> Option<Counters> {
        self.published.lock().counters
    }

    /// Returns the CPU time of the data thread.
    pub fn cpu(&self) -> Span {
        self.published.lock().cpu
    }

    /// Applies a rate (UDP payload) assigned by the peer. Has no effect on a receiver.
    pub fn set_quota(&self, rate: Rate) {
        self.raise(QUOTA, &mut Quota(rate));
    }

    /// Switches to another control law, or other parameters of the current one
    /// (`haul_proto::Sender::switch_law`). Has no effect on a receiver.
    pub fn switch_law(&self, mut law: ChosenLaw) {
        self.raise(LAW_CHOSEN, &mut law);
    }

    fn raise<T: Any>(&self, event: Name<Event<T>>, argument: &mut T) {
        // `None` once the thread has ended.
        if let Some(connection) = self.connection.upgrade() {
            let mut state = connection.lock();
            state.stack.raise(self.shared.clock.now(), event, argument);
            drop(state);
            self.waker.wake();
        }
    }

    /// Returns the transmission windows diagnosed since the last call, at most the newest 8; always empty at
    /// a receiver. The last window ends with the data thread, or when every byte is acknowledged.
    pub fn take_windows(&self) -> Vec<DiagnosedWindow> {
        let running = self.connection.upgrade();
        let mut windows = running
            .map_or_else(Vec::new, |connection| DiagnosedWindows::all_of(&mut connection.lock().stack));
        windows.append(&mut self.published.lock().windows);
        windows
    }

    /// Wakes the data thread.
    pub fn waker(&self) -> &Waker {
        &self.waker
    }

    /// Returns why the data thread failed, if it has. The control channel tells why the peer ended it early.
    pub fn failure(&self) -> Option<EngineError> {
        self.published.lock().failure.clone()
    }

    /// Waits until every byte is known to have arrived. Returns `Ok(false)` if `timeout` expires.
    ///
    /// # Errors
    /// Why the data thread ended.
    pub fn wait_delivered(&self, timeout: Duration) -> Result<bool, EngineError> {
        let delivered = block_until(Some(after(timeout)), |context| self.poll_delivered(context));
        delivered.map_or(Ok(false), |delivered| delivered.map(|()| true))
    }

    /// Polls until every byte is known to have arrived.
    ///
    /// # Errors
    /// Why the data thread ended.
    pub fn poll_delivered(&self, context: &Context<'_>) -> Poll<Result<(), EngineError>> {
        self.published.poll(context, Published::delivered)
    }

    /// Stops the thread and returns the last counters.
    pub fn stop(&mut self) -> Option<Counters> {
        self.halt();
        self.published.lock().counters
    }

    fn halt(&mut self) {
        self.shared.stop();
        self.waker.wake();
        // A waker called on the data thread may drop the transfer: no thread can join itself.
        let is_other = |thread: &JoinHandle<()>| thread.thread().id() != thread::current().id();
        if let Some(thread) = self.thread.take().filter(is_other) {
            // The panic's message has been reported already; the session ends either way.
            let _ = thread.join();
        }
    }
}

impl Drop for Transfer {
    fn drop(&mut self) {
        self.halt();
    }
}

impl Session {
    /// Sends an object in a new thread. Wake `waker` when `source` has more to read.
    ///
    /// The server first waits for the client's first challenge, until 3 s after
    /// [`Incoming::accept`](crate::Incoming::accept): call it soon after that.
    ///
    /// # Errors
    /// [`EngineError::UdpBlocked`] if no challenge arrives; why the control channel failed;
    /// [`EngineError::Recipe`] if the recipe and controller make no stack; [`EngineError::System`].
    ///
    /// # Panics
    /// If the session has already sent or received an object.
    pub fn start_sending(
        &mut self,
        source: Box<dyn ObjectSource>,
        waker: Waker,
    ) -> Result<Transfer, EngineError> {
        let (recipe, model, initial_rtt) = (self.recipe.clone(), self.loss_model.clone(), self.round_trip);
        // UDP payload of a jumbo frame.
        let max_datagram = sizes_for(self.peer.ip())[2];
        self.start(ObjectEnd::Source, waker, |now, link, largest_challenge| {
            let config = SenderConfig {
                datagram: MIN_DATAGRAM,
                // A size received from the peer probably also passes in the other direction.
                likely_datagram: MIN_DATAGRAM.max(largest_challenge),
                max_datagram,
                initial_rtt,
                model,
                ..SenderConfig::default()
            };
            Sender::of_recipe(now, recipe, &config, link, source, INITIAL_LIMIT).map(Sender::into_stack)
        })
    }

    /// Receives an object in a new thread, until the sender closes or the transfer is stopped: feedback
    /// continues after the last byte, as the last feedback may be lost. Wake `waker` when `sink` has capacity
    /// again.
    ///
    /// # Errors
    /// As [`Session::start_sending`].
    ///
    /// # Panics
    /// As [`Session::start_sending`].
    pub fn start_receiving(
        &mut self,
        sink: Box<dyn ObjectSink>,
        waker: Waker,
    ) -> Result<Transfer, EngineError> {
        let recipe = self.recipe.clone();
        self.start(ObjectEnd::Sink, waker, |now, link, _| {
            let config = ReceiverConfig::default();
            Receiver::of_recipe(now, &recipe, config, link, sink).map(Receiver::into_stack)
        })
    }

    /// Starts the data thread with the stack returned by `make_stack`, which is passed the time, the keys and
    /// the size of the largest challenge received.
    fn start(
        &mut self,
        end: ObjectEnd,
        waker: Waker,
        make_stack: impl FnOnce(Time, Link, u16) -> Result<Stack, RecipeError>,
    ) -> Result<Transfer, EngineError> {
        let DataPath { keys: (seal, open), frames, udp } =
            self.path.take().expect("a session moves one object");
        let control = self.control.clone();
        let socket = udp.socket(&control)?;
        let peer = socket.peer_addr().ok_or(EngineError::Closed)?;
        let (now, link) = (self.clock.now(), Link::new(Box::new(seal), Box::new(open), 0));
        let stack = make_stack(now, link, udp.largest())?;
        let connection =
            Connection::of_session(now, (self.role, frames, self.cipher), peer, stack, IDLE_TIMEOUT);
        let shared = Arc::new(EndpointSocket::dedicated(socket, self.clock)?);
        Transfer::spawn(shared, Arc::new(connection), SessionSide { end, control, waker, udp })
    }

    /// Checks that packets arrive in both directions: the client sends an empty object. The server's transfer
    /// must be kept until the client has the result.
    ///
    /// # Errors
    /// As [`Session::start_sending`]; why the object did not arrive; [`EngineError::TimedOut`].
    ///
    /// # Panics
    /// As [`Session::start_sending`].
    pub fn check_path(&mut self, timeout: Duration) -> Result<Transfer, EngineError> {
        let waker = Waker::new()?;
        let transfer = match self.role {
            Role::Client => self.start_sending(Box::new(EmptyObject), waker)?,
            Role::Server => self.start_receiving(Box::new(EmptyObject), waker)?,
        };
        wait_for(Some(timeout), "an empty object", |context| transfer.poll_delivered(context))?;
        Ok(transfer)
    }
}

struct EmptyObject;

impl ObjectSource for EmptyObject {
    fn available(&mut self) -> Available {
        Available { upto: 0, end: true }
    }

    fn read(&mut self, _: u64, _: &mut [u8]) {}

    fn release(&mut self, _: u64) {}
}

impl ObjectSink for EmptyObject {
    fn deliver(&mut self, _: &[u8], _: &[Piece]) {}

    fn limit(&mut self) -> u64 {
        INITIAL_LIMIT
    }

    fn complete(&mut self, _: u64) {}
}
