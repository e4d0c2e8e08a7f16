//! Endpoints with several connections: none delays the others, and the work for one is independent of their
//! number.

use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::thread::ThreadId;
use std::time::{Duration, Instant};

use haul_base::{Span, Time};
use haul_proto::connection::{Peer, PeerAddress, ResumptionSecret, ResumptionState, compile};
use haul_proto::micro::registry;
use haul_stack::{CompiledStack, Ends, Recipe, SendOptions};
use haul_udp::{Options, UdpSocket};
use haul_wire::control::Cipher;
use haul_wire::packet::ConnectionId;

use super::{Channel, Connection, Endpoint, EndpointSocket};
use crate::wake::{block_on, block_until, lock};
use crate::{ConnectionOptions, EngineError, ListenOptions, Listener, OpenOptions, Role, Terms};

/// Longer than any operation takes on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Nothing is acknowledged or retransmitted.
fn recipe() -> Recipe {
    Recipe::new("test").with("fixed_size").with("transport_driver").with("sequenced_segment").with("seal")
}

/// Creates a server's connections without a network.
pub(super) struct Maker(Arc<CompiledStack>);

impl Maker {
    pub(super) fn new() -> Self {
        Self(compile(&Arc::new(registry()), &recipe(), Cipher::Aes128Gcm).unwrap())
    }

    fn resumption(&self, identity: u32) -> ResumptionState {
        let (cipher, round_trip) = (Cipher::Aes128Gcm, Span::from_millis(1));
        let (compiled, secret) = (self.0.clone(), ResumptionSecret([1; 32].into()));
        ResumptionState { role: Role::Server, identity, secret, cipher, compiled, round_trip }
    }

    pub(super) fn connection(&self, identity: u32) -> Connection {
        let id = ConnectionId { identity, epoch: 1, salt: 0 };
        let peer = PeerAddress { at: "127.0.0.1:9".parse().unwrap(), moves: Some(0) };
        let (options, ends) = (ConnectionOptions::default(), Ends::default());
        let resumption = self.resumption(identity);
        Connection::new(Time::ZERO, &resumption, id, peer, Duration::ZERO, &options, ends).unwrap()
    }
}

/// Opens a connection of this endpoint; returns both ends.
fn pair(endpoint: &Endpoint, listener: &Listener) -> (Channel, Channel) {
    let (url, recipe, options) = (listener.url("127.0.0.1", b""), recipe(), OpenOptions::default());
    let client = std::thread::scope(|scope| {
        let client = scope.spawn(|| block_on(endpoint.connect(&url, &recipe, &options, Ends::default())));
        let terms = Terms::new(Arc::new(registry()));
        listener.accept(TIMEOUT).expect("a client").agree(&terms).unwrap();
        client.join().unwrap().unwrap()
    });
    client.wait_for(Some(TIMEOUT), "an answer", |context| client.poll_confirmed(context)).unwrap();
    let until = Some(Instant::now() + TIMEOUT);
    let server = block_until(until, |context| listener.endpoint().poll_accept(context));
    (client, server.expect("a connection").unwrap())
}

fn send_now(channel: &Channel, data: &[u8]) {
    let mut context = Context::from_waker(Waker::noop());
    assert!(channel.poll_send(&mut context, data, SendOptions::default()).is_ready());
}

fn recv(channel: &Channel) -> Vec<u8> {
    channel.wait_for(Some(TIMEOUT), "a message", |context| channel.poll_recv(context)).unwrap().data
}

fn until(what: &str, done: impl Fn() -> bool) {
    let end = Instant::now() + TIMEOUT;
    while !done() {
        assert!(Instant::now() < end, "{what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// An endpoint whose send buffer appears full until this is dropped.
struct FullSocket<'e>(&'e EndpointSocket);

impl<'e> FullSocket<'e> {
    fn new(socket: &'e EndpointSocket) -> Self {
        *lock(&socket.refused) = Some([].into());
        Self(socket)
    }

    fn was_used(&self) -> bool {
        lock(&self.0.refused).as_ref().is_some_and(|refused| !refused.is_empty())
    }

    /// Returns how often this thread has tried to send.
    fn attempts(&self, thread: ThreadId) -> usize {
        lock(&self.0.refused).as_ref().and_then(|refused| refused.get(&thread).copied()).unwrap_or(0)
    }
}

impl Drop for FullSocket<'_> {
    fn drop(&mut self) {
        *lock(&self.0.refused) = None;
    }
}

#[test]
fn a_full_socket_stalls_no_connection() {
    let listener = Listener::bind(ListenOptions::new("127.0.0.1:0".parse().unwrap())).unwrap();
    let endpoint = Endpoint::client().unwrap();
    let (first, second) = (pair(&endpoint, &listener), pair(&endpoint, &listener));
    std::thread::scope(|scope| {
        let full = FullSocket::new(endpoint.shared());
        let sends = scope.spawn(|| send_now(&first.0, b"delayed"));
        until("nothing is sent", || full.was_used());
        // Packets arrive for the connection that cannot send, then for the other one.
        send_now(&first.1, b"first");
        send_now(&second.1, b"second");
        let [one, other] = [&first.0, &second.0].map(|channel| scope.spawn(|| recv(channel)));
        until("a thread waits for the socket", || {
            sends.is_finished() && one.is_finished() && other.is_finished()
        });
        assert_eq!((one.join().unwrap(), other.join().unwrap()), (b"first".to_vec(), b"second".to_vec()));
        // It retries when the socket is writable, without waiting behind the connection's lock.
        assert!(full.attempts(sends.thread().id()) <= 1, "{}", full.attempts(sends.thread().id()));
    });
    assert_eq!(recv(&first.1), b"delayed");
    assert_eq!(endpoint.stats().unsent, 0);
}

#[test]
fn idle_memory_is_released_without_locking_other_connections() {
    const CONNECTIONS: u32 = 1_000;
    let (endpoint, maker) = (Endpoint::client().unwrap(), Maker::new());
    let (shared, now) = (endpoint.shared(), endpoint.shared().clock.now());
    let connections: Vec<_> = (0..CONNECTIONS).map(|identity| Arc::new(maker.connection(identity))).collect();
    for (identity, connection) in (0..).zip(&connections) {
        let mut peer = Peer::new(maker.resumption(identity), now, None);
        peer.live = Some(connection.clone());
        lock(&shared.table).insert(peer).unwrap();
    }
    let (idle, others) = connections.split_first().expect("there are connections");
    let mut state = idle.lock();
    let before = state.deadline();
    state.note_memory(now);
    assert!(state.deadline() != before, "a timer releases the memory");
    idle.set_timer(shared, &mut state, false);
    drop(state);
    let locks = idle.locks.get();
    until("the timer does not expire", || idle.locks.get() > locks);
    until("the memory is not released", || idle.lock().deadline() == before);
    let locked = others.iter().filter(|connection| connection.locks.get() > 0).count();
    assert_eq!(locked, 0, "of {CONNECTIONS}");
}

#[test]
fn a_connection_opened_on_an_endpoint_that_has_failed_ends() {
    let listener = Listener::bind(ListenOptions::new("127.0.0.1:0".parse().unwrap())).unwrap();
    let endpoint = Endpoint::client().unwrap();
    let (client, _server) = pair(&endpoint, &listener);
    let mut saved = client.saved().expect("a client's").clone();
    saved.last_epoch += 1;
    endpoint.shared().end_all(&EngineError::system_other("the socket failed", "as this test wants"));
    let channel = endpoint.begin(saved, &recipe(), &OpenOptions::default(), Ends::default()).unwrap();
    let received = channel.poll_recv(&mut Context::from_waker(Waker::noop()));
    assert!(matches!(received, Poll::Ready(Err(_))), "{received:?}");
}

#[test]
fn many_short_deadlines_leave_one_timer_of_a_connection() {
    let socket = UdpSocket::bind("127.0.0.1:0".parse().unwrap(), &Options::default()).unwrap();
    let shared = EndpointSocket::shared(Arc::new(socket)).unwrap();
    let connection = Maker::new().connection(7);
    let mut state = connection.lock();
    for cycle in 0..1_000 {
        let now = Time::ZERO + Span::from_micros(200) * cycle;
        state.note_memory(now);
        // An acknowledgement is deferred, and sent before the timer expires.
        state.transmit_at = Some(now + Span::from_micros(500));
        connection.set_timer(&shared, &mut state, false);
        state.transmit_at = None;
        connection.set_timer(&shared, &mut state, cycle % 2 == 0);
    }
    let timers = shared.timers.as_ref().expect("the socket is shared");
    let entries = std::iter::from_fn(|| timers.due(Time::MAX)).count();
    assert_eq!(entries, 1);
}
