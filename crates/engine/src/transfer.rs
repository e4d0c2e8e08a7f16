//! Moving one object: the data thread of a session, which runs a sender's or a receiver's stack.

use std::any::Any;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::num::NonZero;
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

use haul_base::{Bytes, Rate, Span};
use haul_proto::micro::events::{LAW_CHOSEN, QUOTA, Quota};
use haul_proto::{
    ChosenLaw, ControllerConfig, ControllerError, Link, ObjectSink, ObjectSource, RateController, Receiver,
    ReceiverConfig, Sender, SenderConfig, build_controller,
};
use haul_stack::Stack;
use haul_udp::{Capabilities, UdpSocket};
use haul_wire::control::Settings;

use crate::endpoint::{Connection, Counters, DataThread, ObjectEnd, Published, SessionSide, Shared};
use crate::recipe::{feedback_interval, in_force};
use crate::{Clock, DataPath, EngineError, Role, Session, Waker};

/// Silence after which either end gives up: as long as the control channel waits.
const SILENCE: Span = Span::from_secs(15);
/// Feedback packets of this size pass on every path that is supported.
const FEEDBACK_DATAGRAM: u16 = 1_200;
/// Bytes that may be sent before the receiver has said how much it takes. Every sink must take as much.
pub const FIRST_LIMIT: u64 = 64 << 20;

/// UDP payload of a jumbo frame of 9,000 bytes.
fn largest_datagram(peer: SocketAddr) -> u16 {
    match peer.ip() {
        IpAddr::V6(ip) if ip.to_ipv4_mapped().is_none() => 8_952,
        _ => 8_972,
    }
}

/// A transfer that runs on a thread of its own. Dropping it stops the thread.
pub struct Transfer {
    shared: Arc<Shared>,
    connection: Weak<Connection>,
    published: Arc<Published>,
    waker: Waker,
    thread: Option<JoinHandle<()>>,
}

impl Transfer {
    fn spawn(stack: Stack, (socket, clock, role): OwnSocket, side: SessionSide) -> Result<Self, EngineError> {
        let peer = socket.peer_addr().ok_or(EngineError::Closed)?;
        let connection = Connection::of_session(clock.now(), side.probe.keys(), role, peer, stack, SILENCE);
        let shared = Arc::new(Shared::of_one(socket, role, clock)?);
        let (connection, published) = (Arc::new(connection), Arc::new(Published::default()));
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
        let thread = std::thread::Builder::new()
            .name(name.to_owned())
            .spawn(run)
            .map_err(|error| EngineError::system("cannot start a thread", error))?;
        Ok(Self { shared, connection: weak, published, waker, thread: Some(thread) })
    }

    /// What the socket can do, and what it has to do without.
    pub fn capabilities(&self) -> &Capabilities {
        self.shared.capabilities()
    }

    /// The counters, at most a twentieth of a second old; `None` before the first.
    pub fn counters(&self) -> Option<Counters> {
        self.published.counters()
    }

    /// CPU time of the data thread.
    pub fn cpu(&self) -> Span {
        self.published.cpu()
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

    /// Wakes the data thread.
    pub fn waker(&self) -> Waker {
        self.waker.clone()
    }

    /// Why the data thread has ended, if it has failed.
    pub fn failure(&self) -> Option<EngineError> {
        self.published.failure()
    }

    /// Waits until every byte has arrived. `Ok(false)` if that takes longer than `timeout`.
    ///
    /// # Errors
    /// What ended the data thread.
    pub fn wait_delivered(&self, timeout: Duration) -> Result<bool, EngineError> {
        self.published.wait_delivered(timeout)
    }

    /// Stops the thread and returns the last counters.
    pub fn stop(mut self) -> Option<Counters> {
        self.halt();
        self.published.counters()
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

impl fmt::Debug for Transfer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Transfer").field("published", &self.published).finish_non_exhaustive()
    }
}

/// The controller that the settings name; also for a check before anything is sent.
///
/// # Errors
/// If there is none of that name, or it lacks a parameter.
pub fn controller_for(
    settings: &Settings,
    initial_rtt: Span,
) -> Result<Box<dyn RateController>, ControllerError> {
    let config = ControllerConfig {
        ceiling: settings.rate_bps.map(Rate::from_bps),
        initial_rtt,
        feedback_interval: feedback_interval(settings),
    };
    build_controller(&settings.controller, &config)
}

impl Session {
    /// Sends an object on a thread of its own. `waker` is to be woken when `source` has more to read.
    ///
    /// # Errors
    /// As [`Session::take_data_path`]; [`EngineError::Controller`] if the settings name no known controller,
    /// [`EngineError::Recipe`] if no stack can be made of their recipe.
    pub fn start_sending(
        &mut self,
        source: Box<dyn ObjectSource>,
        waker: Waker,
    ) -> Result<Transfer, EngineError> {
        let path = self.take_data_path()?;
        let initial_rtt = path.probe.round_trip().unwrap_or(path.round_trip);
        let recipe = in_force(&path.settings)?;
        let config = SenderConfig {
            chunk: Bytes(path.settings.chunk_bytes.max(1)),
            datagram: path.probe.datagram(),
            likely_datagram: path.likely_datagram(),
            max_datagram: largest_datagram(path.peer),
            initial_rtt,
            feedback_interval: feedback_interval(&path.settings),
            silence: SILENCE,
            ..SenderConfig::default()
        };
        let controller = controller_for(&path.settings, initial_rtt);
        let now = path.clock.now();
        let (own, link, side) = split(path, ObjectEnd::Source, waker);
        let sender = match recipe {
            None => Sender::with_config(now, &config, link, source, controller?, FIRST_LIMIT)?,
            Some(recipe) => Sender::of_recipe(now, recipe, &config, link, source, FIRST_LIMIT)?,
        };
        Transfer::spawn(sender.into_stack(), own, side)
    }

    /// Receives an object on a thread of its own, until the transfer is stopped: feedback goes on after the
    /// last byte, as the last feedback may be lost. `waker` is to be woken when `sink` has room again.
    ///
    /// # Errors
    /// As [`Session::take_data_path`]; [`EngineError::Recipe`] if no stack can be made of the settings' recipe.
    pub fn start_receiving(
        &mut self,
        sink: Box<dyn ObjectSink>,
        waker: Waker,
    ) -> Result<Transfer, EngineError> {
        let path = self.take_data_path()?;
        let config = ReceiverConfig {
            feedback_interval: feedback_interval(&path.settings),
            feedback_datagram: FEEDBACK_DATAGRAM,
            silence: SILENCE,
        };
        let recipe = in_force(&path.settings)?;
        let now = path.clock.now();
        let (own, link, side) = split(path, ObjectEnd::Sink, waker);
        let receiver = match recipe {
            None => Receiver::with_config(now, config, link, sink)?,
            Some(recipe) => Receiver::of_recipe(now, &recipe, config, link, sink)?,
        };
        Transfer::spawn(receiver.into_stack(), own, side)
    }
}

/// A connected socket, its clock, and which end it is of.
type OwnSocket = (UdpSocket, Clock, Role);

fn split(path: DataPath, end: ObjectEnd, waker: Waker) -> (OwnSocket, Link, SessionSide) {
    let DataPath { role, socket, seal, open, probe, control, clock, registration, .. } = path;
    let side = SessionSide { end, probe, control, waker, _registration: registration };
    ((socket, clock, role), Link::new(seal, open, 0), side)
}
