//! Moving one object: the data thread of a session, which runs a sender's or a receiver's stack.

use std::any::Any;
use std::num::NonZero;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll};
use std::thread::JoinHandle;
use std::time::Duration;

use haul_base::{Piece, Rate, Span};
use haul_proto::micro::events::{LAW_CHOSEN, QUOTA, Quota};
use haul_proto::micro::shared::DiagnosedWindows;
use haul_proto::{
    Available, ChosenLaw, DiagnosedWindow, Link, ObjectSink, ObjectSource, Receiver, ReceiverConfig, Sender,
    SenderConfig,
};
use haul_stack::Stack;
use haul_udp::Capabilities;

use crate::clock::after;
use crate::endpoint::{
    Connection, Counters, DataThread, EndpointSocket, MIN_DATAGRAM, ObjectEnd, PathProbe, Published,
    sizes_for,
};
use crate::session::OpenPath;
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
    fn spawn(session: &Session, (socket, keys, side): OpenPath, stack: Stack) -> Result<Self, EngineError> {
        let (clock, role) = (session.clock, session.role);
        let peer = socket.peer_addr().ok_or(EngineError::Closed)?;
        let connection = Connection::of_session(clock.now(), keys, role, peer, stack, SILENCE);
        let shared = Arc::new(EndpointSocket::of_one(socket, clock)?);
        let (connection, published) = (Arc::new(connection), Arc::<Monitor<Published>>::default());
        let waker = side.waker.clone();
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

    fn raise<T: Any>(&self, event: &str, notice: &mut T) {
        // Gone when the thread has ended.
        if let Some(connection) = self.connection.upgrade() {
            let mut state = connection.lock();
            state.stack.raise(self.shared.clock.now(), event, notice);
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
    pub fn waker(&self) -> Waker {
        self.waker.clone()
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
    /// [`EngineError::UdpBlocked`] if no challenge comes, which the client is told; how the control channel failed;
    /// [`EngineError::Recipe`] if no stack can be made of the settings' recipe and controller; [`EngineError::System`].
    ///
    /// # Panics
    /// When the session has sent or received already.
    pub fn start_sending(
        &mut self,
        source: Box<dyn ObjectSource>,
        waker: Waker,
    ) -> Result<Transfer, EngineError> {
        let path = self.take_path(ObjectEnd::Source, waker)?;
        let (now, (_, _, side)) = (self.clock.now(), &path);
        let probe = side.probe.as_ref();
        let initial_rtt = probe.and_then(|probe| probe.round_trip).unwrap_or(self.round_trip);
        let datagram = probe.map_or(MIN_DATAGRAM, PathProbe::datagram);
        // One that has come from there probably passes the other way.
        let heard = side.pending.as_ref().map_or(0, |it| it.largest());
        let config = SenderConfig {
            datagram,
            likely_datagram: datagram.max(heard),
            // UDP payload of a jumbo frame.
            max_datagram: sizes_for(self.peer)[2],
            initial_rtt,
            model: self.loss_model.clone(),
            ..SenderConfig::default()
        };
        let recipe = self.recipe.clone();
        let sender = Sender::of_recipe(now, recipe, &config, self.link(), source, FIRST_LIMIT)?;
        Transfer::spawn(self, path, sender.into_stack())
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
        let path = self.take_path(ObjectEnd::Sink, waker)?;
        let (now, config) = (self.clock.now(), ReceiverConfig::default());
        let receiver = Receiver::of_recipe(now, &self.recipe, config, self.link(), sink)?;
        Transfer::spawn(self, path, receiver.into_stack())
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

    fn link(&self) -> Link {
        Link::new(Box::new(self.keys.sealer(self.role)), Box::new(self.keys.opener(self.role)), 0)
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
