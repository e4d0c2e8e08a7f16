//! Helpers of the integration tests: servers, clients, and a relay with configurable drops.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker as TaskWaker};
use std::time::{Duration, Instant};

use haul_base::{Piece, Rate};
use haul_engine::{
    Channel, ConnectOptions, Counters, Endpoint, EngineError, HaulUrl, ListenOptions, Listener, Message,
    OpenOptions, Session, Waker, block_on, block_until, connect, offer,
};
use haul_proto::presets::preset;
use haul_proto::{Available, ObjectSink, ObjectSource, SenderStats};
use haul_stack::{Ends, Recipe, Registry, SendOptions};
use haul_wire::control::{Growth, Preserve, Request, RunMode, Selection, Settings};

/// Longer than any operation takes on a busy machine.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(60);
pub(crate) const LOOPBACKS: [&str; 2] = ["127.0.0.1", "::1"];

pub(crate) fn settings() -> Settings {
    settings_of(&preset("bulk").unwrap().unwrap(), Some(Rate::from_mbps(200)))
}

/// Returns this recipe with the law `fixed`, small chunks and rare reports.
pub(crate) fn settings_of(recipe: &Recipe, rate: Option<Rate>) -> Settings {
    let mut recipe = recipe.clone();
    for (parameter, value) in
        [("object.chunk", "1MiB"), ("bitmap_ack.interval", "10ms"), ("rate_control.controller", "fixed")]
    {
        let _ = haul_proto::micro::registry().set(&mut recipe, parameter, value);
    }
    let rate = rate.map_or_else(|| "unlimited".to_owned(), Rate::exact);
    let _ = haul_proto::micro::registry().set(&mut recipe, "rate_control.rate", &rate);
    Settings { recipe: Some(offer(&recipe)), ..Settings::default() }
}

pub(crate) fn listen_options(host: &str) -> ListenOptions {
    ListenOptions::new(SocketAddr::new(host.parse().unwrap(), 0))
}

pub(crate) fn listener(host: &str) -> Listener {
    Listener::bind(listen_options(host)).unwrap()
}

pub(crate) fn options(request: Request) -> ConnectOptions {
    ConnectOptions::new(request, settings())
}

/// Connects in a separate thread while the server accepts.
pub(crate) fn session_pair(
    listener: &Listener,
    url: &HaulUrl,
    options: ConnectOptions,
) -> (Session, Session) {
    std::thread::scope(|scope| {
        let client = scope.spawn(|| connect(url, options));
        let server = accept(listener);
        (client.join().unwrap().unwrap(), server)
    })
}

pub(crate) fn accept(listener: &Listener) -> Session {
    listener.accept(TIMEOUT).expect("a client").accept().unwrap()
}

/// A request for files.
pub(crate) fn get(sources: Vec<Vec<u8>>) -> Request {
    Request::Get {
        sources,
        selection: Selection::default(),
        growth: Growth::Refuse,
        run: RunMode::Move,
        preserve: Preserve::default(),
    }
}

pub(crate) fn check(url: &HaulUrl) -> Result<Session, EngineError> {
    connect(url, options(Request::Check))
}

/// An object of this many zeros.
pub(crate) struct Zeros(pub(crate) u64);

impl ObjectSource for Zeros {
    fn available(&mut self) -> Available {
        Available { upto: self.0, end: true }
    }

    fn read(&mut self, _: u64, into: &mut [u8]) {
        into.fill(0);
    }

    fn release(&mut self, _: u64) {}
}

/// Discards an object.
pub(crate) struct DiscardingSink;

impl ObjectSink for DiscardingSink {
    fn deliver(&mut self, _: &[u8], _: &[Piece]) {}

    fn limit(&mut self) -> u64 {
        u64::MAX
    }

    fn complete(&mut self, _: u64) {}
}

/// Sends an object of `len` bytes, and returns the sender's last counters.
pub(crate) fn transfer_object(from: &mut Session, to: &mut Session, len: u64) -> SenderStats {
    let mut sending = from.start_sending(Box::new(Zeros(len)), Waker::new().unwrap()).unwrap();
    let mut receiving = to.start_receiving(Box::new(DiscardingSink), Waker::new().unwrap()).unwrap();
    for end in [&sending, &receiving] {
        assert!(end.wait_delivered(TIMEOUT).unwrap(), "timed out");
    }
    let Some(Counters::Receiving(received)) = receiving.stop() else {
        panic!("the receiver has no counters")
    };
    assert_eq!((received.object_len, received.object_bytes), (Some(len), len));
    let Some(Counters::Sending(sent)) = sending.stop() else { panic!("the sender has no counters") };
    sent.stats
}

type Recorded = Arc<Mutex<Vec<Vec<u8>>>>;
type ReplaySlot = Arc<Mutex<Option<Vec<u8>>>>;

/// Forwards TCP to a server, and UDP in the directions that are open.
pub(crate) struct Relay {
    pub(crate) port: u16,
    pub(crate) to_server: Arc<AtomicBool>,
    pub(crate) to_client: Arc<AtomicBool>,
    /// Every datagram that a client has sent.
    pub(crate) received: Recorded,
    /// Every datagram that a server has sent.
    pub(crate) answered: Recorded,
    /// Sent to the client repeatedly.
    pub(crate) replayed: ReplaySlot,
    /// From now on the server sees the client at another port, as after a NAT rebinding.
    pub(crate) rebind: Arc<AtomicBool>,
    tcp: Arc<Mutex<Vec<TcpStream>>>,
}

impl Relay {
    pub(crate) fn start(server: SocketAddr) -> Self {
        Self::start_with(server, Late::default())
    }

    /// The first bytes in both directions of each TCP connection are late, as if retransmitted.
    pub(crate) fn start_late(server: SocketAddr, first: Duration) -> Self {
        Self::start_with(server, Late { first, each: Duration::ZERO })
    }

    /// All bytes on TCP connections are late, as if retransmitted.
    pub(crate) fn start_slow(server: SocketAddr, each: Duration) -> Self {
        Self::start_with(server, Late { first: Duration::ZERO, each })
    }

    fn start_with(server: SocketAddr, late: Late) -> Self {
        let (tcp, udp) = bind_both();
        let relay = Self {
            port: tcp.local_addr().unwrap().port(),
            to_server: Arc::new(AtomicBool::new(true)),
            to_client: Arc::new(AtomicBool::new(true)),
            received: Arc::default(),
            answered: Arc::default(),
            replayed: Arc::default(),
            rebind: Arc::default(),
            tcp: Arc::default(),
        };
        let streams = relay.tcp.clone();
        std::thread::spawn(move || {
            for client in tcp.incoming().map_while(Result::ok) {
                let Ok(to) = TcpStream::connect(server) else {
                    return;
                };
                streams.lock().unwrap().extend([client.try_clone().unwrap(), to.try_clone().unwrap()]);
                pump(client.try_clone().unwrap(), to.try_clone().unwrap(), late);
                pump(to, client, late);
            }
        });
        let (to_server, to_client) = (relay.to_server.clone(), relay.to_client.clone());
        let records = (relay.received.clone(), relay.answered.clone(), relay.replayed.clone());
        let rebind = relay.rebind.clone();
        std::thread::spawn(move || relay_udp(&udp, server, (&to_server, &to_client), &rebind, &records));
        relay
    }

    /// Breaks all TCP connections.
    pub(crate) fn cut(&self) {
        for stream in self.tcp.lock().unwrap().drain(..) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

fn bind_both() -> (TcpListener, UdpSocket) {
    loop {
        let tcp = TcpListener::bind("127.0.0.1:0").unwrap();
        if let Ok(udp) = UdpSocket::bind(tcp.local_addr().unwrap()) {
            return (tcp, udp);
        }
    }
}

/// Delay of bytes over TCP.
#[derive(Clone, Copy, Default)]
struct Late {
    first: Duration,
    each: Duration,
}

fn pump(mut from: TcpStream, mut to: TcpStream, mut late: Late) {
    std::thread::spawn(move || {
        let mut buffer = [0; 16_384];
        while let Ok(len @ 1..) = from.read(&mut buffer) {
            std::thread::sleep(std::mem::take(&mut late.first) + late.each);
            if to.write_all(&buffer[..len]).is_err() {
                break;
            }
        }
        let _ = to.shutdown(Shutdown::Write);
    });
}

/// One client at a time is enough for the tests.
fn relay_udp(
    front: &UdpSocket,
    server: SocketAddr,
    (to_server, to_client): (&AtomicBool, &AtomicBool),
    rebind: &AtomicBool,
    (received, answered, replayed): &(Recorded, Recorded, ReplaySlot),
) {
    let connected = || {
        let back = UdpSocket::bind("127.0.0.1:0").unwrap();
        back.connect(server).unwrap();
        back.set_nonblocking(true).unwrap();
        back
    };
    let mut back = connected();
    front.set_nonblocking(true).unwrap();
    let mut client = None;
    let mut buffer = vec![0; 65_536];
    loop {
        let mut idle = true;
        if rebind.swap(false, Ordering::Relaxed) {
            back = connected();
        }
        if let Ok((len, from)) = front.recv_from(&mut buffer) {
            (client, idle) = (Some(from), false);
            received.lock().unwrap().push(buffer[..len].to_vec());
            if to_server.load(Ordering::Relaxed) {
                let _ = back.send(&buffer[..len]);
            }
        }
        if let (Ok(len), Some(client)) = (back.recv(&mut buffer), client) {
            idle = false;
            answered.lock().unwrap().push(buffer[..len].to_vec());
            if to_client.load(Ordering::Relaxed) {
                let _ = front.send_to(&buffer[..len], client);
            }
        }
        if let (Some(packet), Some(client)) = (&*replayed.lock().unwrap(), client) {
            let _ = front.send_to(packet, client);
        }
        if idle {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// Blocking versions of a channel's poll functions.
pub(crate) trait Waits {
    fn try_send(&self, data: &[u8], options: SendOptions) -> Result<Option<u64>, EngineError>;
    fn send(&self, data: &[u8], options: SendOptions, timeout: Option<Duration>) -> Result<u64, EngineError>;
    fn try_recv(&self) -> Result<Option<Message>, EngineError>;
    fn recv(&self, timeout: Option<Duration>) -> Result<Message, EngineError>;
    fn flush(&self, timeout: Option<Duration>) -> Result<(), EngineError>;
    fn wait_confirmed(&self, timeout: Duration) -> Result<(), EngineError>;
    fn wait_ended(&self, timeout: Duration) -> Result<EngineError, EngineError>;
    fn close(&self, timeout: Duration) -> Result<(), EngineError>;
}

fn now<T>(poll: Poll<Result<T, EngineError>>) -> Result<Option<T>, EngineError> {
    match poll {
        Poll::Ready(result) => result.map(Some),
        Poll::Pending => Ok(None),
    }
}

impl Waits for Channel {
    fn try_send(&self, data: &[u8], options: SendOptions) -> Result<Option<u64>, EngineError> {
        now(self.poll_send(&mut Context::from_waker(TaskWaker::noop()), data, options))
    }

    fn send(&self, data: &[u8], options: SendOptions, timeout: Option<Duration>) -> Result<u64, EngineError> {
        self.wait_for(timeout, "room", |context| self.poll_send(context, data, options))
    }

    fn try_recv(&self) -> Result<Option<Message>, EngineError> {
        now(self.poll_recv(&mut Context::from_waker(TaskWaker::noop())))
    }

    fn recv(&self, timeout: Option<Duration>) -> Result<Message, EngineError> {
        self.wait_for(timeout, "a message", |context| self.poll_recv(context))
    }

    fn flush(&self, timeout: Option<Duration>) -> Result<(), EngineError> {
        self.wait_for(timeout, "the arrival of all messages", |context| self.poll_flush(context))
    }

    fn wait_confirmed(&self, timeout: Duration) -> Result<(), EngineError> {
        self.wait_for(Some(timeout), "an answer", |context| self.poll_confirmed(context))
    }

    fn wait_ended(&self, timeout: Duration) -> Result<EngineError, EngineError> {
        self.wait_for(Some(timeout), "the end", |context| self.poll_ended(context).map(Ok))
    }

    fn close(&self, timeout: Duration) -> Result<(), EngineError> {
        self.wait_for(Some(timeout), "the end", |context| self.poll_close(context, Poll::Ready(())))
    }
}

/// Returns the next connection opened by a peer.
pub(crate) fn next_connection(endpoint: &Endpoint, timeout: Duration) -> Option<Channel> {
    let until = Some(Instant::now() + timeout);
    block_until(until, |context| endpoint.poll_accept(context)).map(Result::unwrap)
}

/// Connects in a thread; without `endpoint` the channel has its own.
pub(crate) fn connect_by(
    endpoint: Option<&Endpoint>,
    url: &HaulUrl,
    recipe: &Recipe,
    registry: &Arc<Registry>,
    options: &OpenOptions,
    ends: Ends,
) -> Result<Channel, EngineError> {
    let endpoint = endpoint.map_or_else(|| Endpoint::client().unwrap(), Clone::clone);
    let options = OpenOptions { registry: registry.clone(), ..options.clone() };
    block_on(endpoint.connect(url, recipe, &options, ends))
}
