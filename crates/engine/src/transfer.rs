//! Moving one object: the data thread of a session, which runs a sender's or a receiver's stack.

use std::any::Any;
use std::num::NonZero;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll};
use std::thread::JoinHandle;
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

/// Silence after which either end gives up: as long as the control channel waits.
const SILENCE: Span = Span::from_secs(15);
/// Bytes that may be sent before the receiver has said how much it takes. Every sink must take as much.
pub const FIRST_LIMIT: u64 = 64 << 20;

/// A transfer that runs on a thread of its own. Dropping it stops the thread.
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
            // Without this, Linux rounds waits up by 50 us. Harmless where it is refused.
            let _ = rustix::thread::set_current_timer_slack(NonZero::new(1));
            DataThread::new(thread_shared, connection, side, thread_published).run();
        };
        Ok(Self { shared, connection: weak, published, waker, thread: Some(spawn(name, run)?) })
    }

    /// What the socket can do, and what it has to do without.
    pub fn capabilities(&self) -> &Capabilities {
        self.shared.socket.capabilities()
    }

    /// The counters, at most a twentieth of a second old; `None` before the first.
    pub fn counters(&self) -> Option<Counters> {
        self.published.lock().counters
    }

    /// CPU time of the data thread.
    pub fn cpu(&self) -> Span {
        self.published.lock().cpu
    }

    /// The other side assigns this one a rate, UDP payload; for a receiver it means nothing.
    pub fn set_quota(&self, rate: Rate) {
        self.raise(QUOTA, &mut Quota(rate));
    }

    /// Another control law, or other parameters of the present one, from now on (`haul_proto::Sender::switch_law`); for
    /// a receiver it means nothing.
    pub fn switch_law(&self, mut law: ChosenLaw) {
        self.raise(LAW_CHOSEN, &mut law);
    }

    fn raise<T: Any>(&self, event: Name<Event<T>>, argument: &mut T) {
        // Gone when the thread has ended.
        if let Some(connection) = self.connection.upgrade() {
            let mut state = connection.lock();
            state.stack.raise(self.shared.clock.now(), event, argument);
            drop(state);
            self.waker.wake();
        }
    }

    /// The transmission windows that were diagnosed since this was last asked, from the first time on, and the newest 8 at most; none of a
    /// receiver. The last one ends with the data thread, or when every byte has arrived.
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

    /// Why the data thread has ended, if it has failed.
    pub fn failure(&self) -> Option<EngineError> {
        self.published.lock().failure.clone()
    }

    /// Waits until every byte has arrived. `Ok(false)` if that takes longer than `timeout`.
    ///
    /// # Errors
    /// What ended the data thread.
    pub fn wait_delivered(&self, timeout: Duration) -> Result<bool, EngineError> {
        let delivered = block_until(Some(after(timeout)), |context| self.poll_delivered(context));
        delivered.map_or(Ok(false), |delivered| delivered.map(|()| true))
    }

    /// Ready when every byte has arrived.
    ///
    /// # Errors
    /// What ended the data thread.
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
        if let Some(thread) = self.thread.take() {
            // A panic there has already been reported by its message; the session ends either way.
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
    /// Sends an object on a thread of its own. `waker` is to be woken when `source` has more to read.
    ///
    /// The server first waits for the client's first challenge, for up to 3 seconds from
    /// [`Incoming::accept`](crate::Incoming::accept): call it soon after that.
    ///
    /// # Errors
    /// [`EngineError::UdpBlocked`] if no challenge comes; how the control channel failed;
    /// [`EngineError::Recipe`] if no stack can be made of the settings' recipe and controller; [`EngineError::System`].
    ///
    /// # Panics
    /// When the session has sent or received already.
    pub fn start_sending(
        &mut self,
        source: Box<dyn ObjectSource>,
        waker: Waker,
    ) -> Result<Transfer, EngineError> {
        let (recipe, model, initial_rtt) = (self.recipe.clone(), self.loss_model.clone(), self.round_trip);
        // UDP payload of a jumbo frame.
        let max_datagram = sizes_for(self.peer.ip())[2];
        self.start(ObjectEnd::Source, waker, |now, link, heard| {
            let config = SenderConfig {
                datagram: MIN_DATAGRAM,
                // What has come from there probably passes the other way.
                likely_datagram: MIN_DATAGRAM.max(heard),
                max_datagram,
                initial_rtt,
                model,
                ..SenderConfig::default()
            };
            Sender::of_recipe(now, recipe, &config, link, source, FIRST_LIMIT).map(Sender::into_stack)
        })
    }

    /// Receives an object on a thread of its own, until the sender closes or the transfer is stopped: feedback goes on
    /// after the last byte, as the last feedback may be lost. `waker` is to be woken when `sink` has room again.
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

    /// Starts the data thread with the stack that `make_stack` gives, from the time, the keys and the size of the largest challenge
    /// that has come.
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
        let connection = Connection::of_session(now, frames, self.role, peer, stack, SILENCE);
        let shared = Arc::new(EndpointSocket::of_one(socket, self.clock)?);
        Transfer::spawn(shared, Arc::new(connection), SessionSide { end, control, waker, udp })
    }

    /// Sees whether packets get through both ways: the client sends an empty object. The server's transfer has to be
    /// kept until the client knows.
    ///
    /// # Errors
    /// As [`Session::start_sending`]; what kept the object from arriving; [`EngineError::TimedOut`].
    ///
    /// # Panics
    /// As [`Session::start_sending`].
    pub fn check_path(&mut self, timeout: Duration) -> Result<Transfer, EngineError> {
        let waker = Waker::new()?;
        let transfer = match self.role {
            Role::Client => self.start_sending(Box::new(Nothing), waker)?,
            Role::Server => self.start_receiving(Box::new(Nothing), waker)?,
        };
        wait_for(Some(timeout), "an empty object", |context| transfer.poll_delivered(context))?;
        Ok(transfer)
    }
}

struct Nothing;

impl ObjectSource for Nothing {
    fn available(&mut self) -> Available {
        Available { upto: 0, end: true }
    }

    fn read(&mut self, _: u64, _: &mut [u8]) {}

    fn release(&mut self, _: u64) {}
}

impl ObjectSink for Nothing {
    fn deliver(&mut self, _: &[u8], _: &[Piece]) {}

    fn limit(&mut self) -> u64 {
        FIRST_LIMIT
    }

    fn complete(&mut self, _: u64) {}
}
