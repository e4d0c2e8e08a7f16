//! Where the UDP routing thread and a session meet: HELLOs come in by the listener's socket, and the
//! session's own socket comes out.

use std::net::SocketAddr;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use haul_udp::{Options, UdpSocket};
use haul_wire::control::ControlMessage;
use haul_wire::packet::HelloBody;

use crate::crypto::Opener;
use crate::hello::open_hello;
use crate::{Control, Direction, EngineError};

/// HELLOs that wait for the session; more than there are sizes.
const MAX_WAITING: usize = 4;
/// Longest time without a look at the control channel.
const LOOK: Duration = Duration::from_millis(50);

/// The UDP side of one session, as the routing thread sees it.
pub(crate) struct Slot {
    state: Mutex<SlotState>,
    changed: Condvar,
}

struct SlotState {
    open: Opener,
    /// Where the first authentic HELLO came from. Others are ignored.
    source: Option<SocketAddr>,
    waiting: Vec<HelloBody>,
    service: Option<Service>,
    socket: Option<Result<UdpSocket, EngineError>>,
}

/// What an accepted session brings.
pub(crate) struct Service {
    /// Where to say that UDP passes.
    pub(crate) control: Control,
    /// Where the client reached the server.
    pub(crate) local: SocketAddr,
    /// How to open the session's socket.
    pub(crate) options: Options,
    /// No HELLO by then: UDP is blocked.
    pub(crate) deadline: Instant,
}

/// What became of a HELLO.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Verdict {
    Taken,
    Unauthentic,
    /// From another address than the first.
    Foreign,
}

impl Slot {
    pub(super) fn new(open: Opener) -> Self {
        let state = SlotState { open, source: None, waiting: Vec::new(), service: None, socket: None };
        Self { state: Mutex::new(state), changed: Condvar::new() }
    }

    fn lock(&self) -> MutexGuard<'_, SlotState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes what claims to be a HELLO of this session.
    pub(super) fn on_hello(&self, packet: &mut [u8], from: SocketAddr) -> Verdict {
        let mut state = self.lock();
        if state.source.is_some_and(|source| source != from) {
            return Verdict::Foreign;
        }
        let Some(hello) = open_hello(&mut state.open, packet) else {
            return Verdict::Unauthentic;
        };
        state.source = Some(from);
        state.note(hello);
        state.open_socket();
        drop(state);
        self.changed.notify_all();
        Verdict::Taken
    }

    /// The session has been accepted: from now on it may have its socket.
    pub(crate) fn serve(&self, service: Service) {
        let mut state = self.lock();
        state.service = Some(service);
        state.open_socket();
    }

    /// Takes the HELLOs that have come by the listener's socket.
    pub(super) fn drain(&self, into: &mut Vec<HelloBody>) {
        into.append(&mut self.lock().waiting);
    }

    /// The session's socket, once the client's first HELLO has come.
    pub(crate) fn wait_for_socket(&self, control: &Control) -> Result<UdpSocket, EngineError> {
        let mut state = self.lock();
        loop {
            if let Some(socket) = state.socket.take() {
                return socket;
            }
            let Some(service) = &state.service else {
                return Err(EngineError::Closed);
            };
            let left = service.deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                let direction = Direction::ClientToServer;
                return Err(EngineError::UdpBlocked { port: service.local.port(), direction });
            }
            if let Some(error) = control.failure() {
                return Err(error);
            }
            let waited = self.changed.wait_timeout(state, left.min(LOOK));
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

impl SlotState {
    /// The latest HELLO of each size waits for its answer.
    fn note(&mut self, hello: HelloBody) {
        if let Some(same) = self.waiting.iter_mut().find(|h| h.size == hello.size) {
            *same = hello;
        } else if self.waiting.len() < MAX_WAITING {
            self.waiting.push(hello);
        }
    }

    /// Opens the session's socket when both the accept and a HELLO are there. The service is then used up.
    fn open_socket(&mut self) {
        let (Some(source), Some(first)) = (self.source, self.waiting.first()) else {
            return;
        };
        let Some(service) = self.service.take() else {
            return;
        };
        let hello_size = first.size;
        let socket = UdpSocket::connected(service.local, source, &service.options)
            .map_err(|e| EngineError::system("cannot open the session's UDP socket", e));
        if socket.is_ok() {
            // If the channel has failed the session finds out by itself.
            let _ = service.control.send_now(&ControlMessage::UdpSeen { hello_size });
        }
        self.socket = Some(socket);
    }
}
