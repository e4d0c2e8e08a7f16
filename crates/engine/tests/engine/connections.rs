//! Connections: agreed on once, opened and closed without TCP, and attacks by strangers.

use std::net::UdpSocket;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use haul_base::{Bytes, Span};
use haul_engine::{
    Channel, ConnectionOptions, Endpoint, EngineError, HaulUrl, ListenOptions, Listener, Message,
    OpenOptions, ResumptionFile, Role, Terms,
};
use haul_proto::micro::registry;
use haul_proto::presets;
use haul_stack::{
    Context, Declaration, Delivery, Ends, MicroProtocol, Order, Recipe, Registration, Registry, Resolution,
    SendOptions,
};
use haul_testing::attempts;
use haul_wire::control::{Cipher, FaultCode};
use haul_wire::packet::{INITIAL_HEADER_KIND, INITIAL_HEADER_LEN};

use crate::support::{
    LOOPBACKS, Relay, TIMEOUT, Waits, connect_by, listen_options, listener, next_connection,
};

pub(crate) fn recipe() -> Recipe {
    Recipe::new("test").with("fixed_size").with("transport_driver").with("sequenced_segment").with("seal")
}

pub(crate) fn custom_registry() -> Arc<Registry> {
    Arc::new(registry())
}

/// Agrees with the next client.
pub(crate) fn agree_with_client(listener: &Listener, terms: &Terms) -> Result<(), EngineError> {
    listener.accept(TIMEOUT).expect("a client").agree(terms)
}

/// Connects while the server agrees by `terms`.
pub(crate) fn connect_and_agree(
    listener: &Listener,
    terms: &Terms,
    url: &HaulUrl,
    recipe: &Recipe,
    registry: &Arc<Registry>,
    options: &OpenOptions,
) -> (Result<Channel, EngineError>, Result<(), EngineError>) {
    std::thread::scope(|scope| {
        let client = scope.spawn(|| connect_by(None, url, recipe, registry, options, Ends::default()));
        let accepted = agree_with_client(listener, terms);
        (client.join().unwrap(), accepted)
    })
}

/// Returns the client's end. The server's connection usually does not exist yet.
pub(crate) fn client_of(listener: &Listener, url: &HaulUrl) -> Channel {
    let terms = Terms::new(custom_registry());
    let (client, accepted) =
        connect_and_agree(listener, &terms, url, &recipe(), &custom_registry(), &OpenOptions::default());
    accepted.unwrap();
    client.unwrap()
}

pub(crate) fn send(channel: &Channel, data: &[u8]) {
    channel.send(data, SendOptions::default(), Some(TIMEOUT)).unwrap();
}

pub(crate) fn recv(channel: &Channel) -> Vec<u8> {
    channel.recv(Some(TIMEOUT)).unwrap().data
}

pub(crate) fn connection(listener: &Listener) -> Channel {
    next_connection(listener.endpoint(), TIMEOUT).expect("a connection")
}

pub(crate) fn until(what: &str, done: impl Fn() -> bool) {
    let end = Instant::now() + TIMEOUT;
    while !done() {
        assert!(Instant::now() < end, "{what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn a_tcp_retransmission_is_not_a_round_trip_sample() {
    let listener = listener("127.0.0.1");
    let late = Duration::from_millis(1_500);
    let relay = Relay::start_late(listener.local_addr(), late);
    let url = HaulUrl { port: relay.port, ..listener.url("127.0.0.1", b"") };
    // Larger samples are ignored, however long TCP took.
    let initial_rtt = Span::from_millis(333);
    // The client has two samples, and nothing was late in the second. If the machine stalled meanwhile, the
    // client tries again; if a retransmission counted, it would be that late each time.
    let mut clients = Vec::new();
    while clients.last().is_none_or(|client: &Channel| client.path().rtt >= initial_rtt) {
        assert!(clients.len() < 20, "{:?}", clients.last());
        clients.push(client_of(&listener, &url));
    }
    let client = clients.last().expect("there is one");
    send(client, b"one");
    // The server has only one sample, which counts at most as much as the default estimate.
    let server = connection(&listener);
    assert!(server.path().rtt <= initial_rtt, "{:?}", server.path());
    assert_eq!(recv(&server), b"one");
}

#[test]
fn the_first_packets_correct_tcps_round_trip_estimate() {
    let listener = listener("127.0.0.1");
    // Larger samples are ignored, however long TCP took.
    let initial_rtt = Span::from_millis(333);
    let relay = Relay::start_slow(listener.local_addr(), Duration::from_millis(400));
    let url = HaulUrl { port: relay.port, ..listener.url("127.0.0.1", b"") };
    let connect = || {
        let endpoint = Endpoint::client().unwrap();
        let (client, server) = crate::waiting::pair_on(&endpoint, &listener, &url);
        client.wait_confirmed(TIMEOUT).unwrap();
        let of_client = client.path().rtt;
        assert_eq!(server.path().rtt, initial_rtt);
        send(&client, b"one");
        assert_eq!(recv(&server), b"one");
        let of_server = server.path().rtt;
        (client, server, [of_client, of_server])
    };
    // If the machine stalls meanwhile, the first packets are slow, too.
    let (mut client, server, rtts) =
        attempts(connect, |(.., rtts)| rtts.iter().all(|rtt| *rtt < initial_rtt));
    assert!(rtts.iter().all(|rtt| *rtt < initial_rtt), "{rtts:?}");
    // A resuming client need not measure it again.
    let directory = tempfile::tempdir().unwrap();
    let file = ResumptionFile::new(directory.path().join("resumption"));
    file.store(&mut client).unwrap();
    drop((client, server));
    let again = file.resume(&Endpoint::client().unwrap(), &OpenOptions::default(), Ends::default()).unwrap();
    assert!(again.path().rtt < initial_rtt, "{:?}", again.path());
}

#[test]
fn keep_alives_do_not_open_a_connection() {
    let listener = listener("127.0.0.1");
    let keep_alive = Some(Duration::from_millis(400));
    listener.endpoint().set_options(ConnectionOptions { keep_alive, ..ConnectionOptions::default() });
    let relay = Relay::start_slow(listener.local_addr(), Duration::from_millis(400));
    let url = HaulUrl { port: relay.port, ..listener.url("127.0.0.1", b"") };
    let endpoint = Endpoint::client().unwrap();
    let (client, server) = crate::waiting::pair_on(&endpoint, &listener, &url);
    client.wait_confirmed(TIMEOUT).unwrap();
    let initial_rtt = server.path().rtt;
    let before = relay.answered.lock().unwrap().len();
    until("the server sends no challenges", || relay.answered.lock().unwrap().len() > before + 5);
    // The message follows an answer to the server's challenge, which is no sample of the round trip.
    send(&client, b"one");
    assert_eq!((recv(&server), server.path().rtt), (b"one".to_vec(), initial_rtt));
}

#[test]
fn messages_pass_both_ways_with_every_cipher_and_family_and_the_close_arrives() {
    for host in LOOPBACKS {
        let mut listening = listen_options(host);
        listening.permit_cipher_none = true;
        let listener = Listener::bind(listening).unwrap();
        for cipher in [Cipher::Aes128Gcm, Cipher::ChaCha20Poly1305, Cipher::None] {
            let options = OpenOptions { ciphers: vec![cipher], ..OpenOptions::default() };
            let (url, terms) = (listener.url(host, b""), Terms::new(custom_registry()));
            let (client, accepted) =
                connect_and_agree(&listener, &terms, &url, &recipe(), &custom_registry(), &options);
            accepted.unwrap();
            let client = client.unwrap();
            send(&client, b"there");
            let server = connection(&listener);
            assert_eq!((client.role(), server.role()), (Role::Client, Role::Server));
            assert_eq!(server.recv(Some(TIMEOUT)).unwrap(), Message { id: 0, data: b"there".to_vec() });
            let long: Vec<u8> = (0..50_000u32).map(|i| i as u8).collect();
            send(&server, &long);
            assert_eq!(recv(&client), long);
            client.close(TIMEOUT).unwrap();
            assert!(matches!(server.recv(Some(TIMEOUT)), Err(EngineError::Closed)));
            assert!(matches!(client.try_send(b"late", SendOptions::default()), Err(EngineError::Closed)));
            drop(server);
        }
        until("the clients were not forgotten", || listener.endpoint().known_peers() == 0);
        assert_eq!(listener.endpoint().stats().unauthentic, 0);
    }
}

#[test]
fn a_server_can_send_first_once_the_client_has_opened() {
    let listener = listener("127.0.0.1");
    let client = client_of(&listener, &listener.url("127.0.0.1", b""));
    let server = connection(&listener);
    send(&server, b"first");
    assert_eq!(recv(&client), b"first");
    client.wait_confirmed(TIMEOUT).unwrap();
    drop(server);
    assert!(matches!(client.recv(Some(TIMEOUT)), Err(EngineError::Closed)));
}

/// If too large for the path, all initial packets would be lost, with the header that the server needs.
#[test]
fn packets_behind_an_initial_header_are_no_larger_than_others() {
    const LARGEST: u16 = 1_300;
    let listener = listener("127.0.0.1");
    let relay = Relay::start(listener.local_addr());
    let url = HaulUrl { port: relay.port, ..listener.url("127.0.0.1", b"") };
    let mut options = OpenOptions::default();
    options.connection.datagram = LARGEST;
    let (terms, recipe) = (Terms::new(custom_registry()), presets::preset("msg").unwrap().unwrap());
    let (client, accepted) =
        connect_and_agree(&listener, &terms, &url, &recipe, &custom_registry(), &options);
    accepted.unwrap();
    let client = client.unwrap();
    let message = [7; 1_240];
    relay.to_client.store(false, Ordering::Relaxed);
    send(&client, &message);
    let opens =
        || relay.received.lock().unwrap().iter().any(|datagram| datagram[0] == 14 && datagram.len() > 31);
    until("no data came with the initial header", opens);
    relay.to_client.store(true, Ordering::Relaxed);
    client.wait_confirmed(TIMEOUT).unwrap();
    send(&client, &message);
    let server = connection(&listener);
    assert!(recv(&server) == message && recv(&server) == message);
    let received = relay.received.lock().unwrap();
    let largest = |opens: bool| {
        let these = received.iter().filter(|datagram| (datagram[0] == 14) == opens);
        these.map(Vec::len).max().unwrap()
    };
    assert!(largest(true) <= LARGEST.into(), "{}", largest(true));
    assert!(largest(false) > message.len() && largest(false) <= LARGEST.into(), "{}", largest(false));
}

#[test]
fn unacceptable_recipes_are_refused_with_the_reason() {
    let listener = listener("127.0.0.1");
    let url = listener.url("127.0.0.1", b"");
    let mut more = registry();
    more.register(Registration::new("frobnicate", 3, "", |_, _| Ok(Box::new(Boom))));
    let more = Arc::new(more);
    let terms = Terms::new(custom_registry())
        .permitting(|recipe| if recipe.name == "evil" { Err("I know you".to_owned()) } else { Ok(()) });
    let refused = |terms: &Terms, recipe: &Recipe, registry: &Arc<Registry>| {
        let (client, accepted) =
            connect_and_agree(&listener, terms, &url, recipe, registry, &OpenOptions::default());
        assert!(accepted.is_err());
        client.unwrap_err().fault()
    };
    let fault = refused(&terms, &recipe().with("frobnicate"), &more);
    assert_eq!(fault.code, FaultCode::Usage);
    assert!(fault.message.contains("no micro-protocol `frobnicate`"), "{fault}");
    let mut other = registry();
    other.register(Registration::new("frobnicate", 4, "", |_, _| Ok(Box::new(Boom))));
    let fault = refused(&Terms::new(Arc::new(other)), &recipe().with("frobnicate"), &more);
    assert_eq!(fault.code, FaultCode::VersionMismatch);
    assert!(fault.message.contains("version 3 of `frobnicate`"), "{fault}");
    let mut panicking = recipe();
    panicking.name = "evil".to_owned();
    let fault = refused(&terms, &panicking, &custom_registry());
    assert_eq!(
        (fault.code, fault.message.contains("I know you")),
        (FaultCode::NotPermitted, true),
        "{fault}"
    );
    assert_eq!(listener.endpoint().known_peers(), 0);
}

#[test]
fn a_recipe_without_seal_or_identity_is_not_even_offered() {
    let listener = listener("127.0.0.1");
    for part in ["seal", "transport_driver"] {
        let error = connect_by(
            None,
            &listener.url("127.0.0.1", b""),
            &recipe().without(part),
            &custom_registry(),
            &OpenOptions::default(),
            Ends::default(),
        );
        let error = error.unwrap_err().fault().message;
        assert!(error.contains("a connection, which carries messages, needs"), "{error}");
        assert!(error.contains(part), "{error}");
    }
    let of_object = presets::preset("fobs").unwrap().unwrap();
    let options = OpenOptions::default();
    let url = listener.url("127.0.0.1", b"");
    let error = connect_by(None, &url, &of_object, &custom_registry(), &options, Ends::default());
    let error = error.unwrap_err().fault().message;
    assert!(error.contains("fobs: it carries an object"), "{error}");
    assert_eq!(listener.stats().connections, 0);
}

#[test]
fn replayed_packets_are_rejected() {
    let listener = listener("127.0.0.1");
    let relay = Relay::start(listener.local_addr());
    let url = HaulUrl { port: relay.port, ..listener.url("127.0.0.1", b"") };
    let mut client = client_of(&listener, &url);
    let directory = tempfile::tempdir().unwrap();
    let file = ResumptionFile::new(directory.path().join("resumption"));
    file.store(&mut client).unwrap();
    send(&client, b"one");
    let server = connection(&listener);
    assert_eq!(recv(&server), b"one");
    let attacker = UdpSocket::bind("127.0.0.1:0").unwrap();
    attacker.set_nonblocking(true).unwrap();
    let replay = || {
        let received = relay.received.lock().unwrap().clone();
        assert!(!received.is_empty());
        for datagram in &received {
            attacker.send_to(datagram, listener.local_addr()).unwrap();
        }
        received.len()
    };
    let peer = server.peer();
    replay();
    send(&client, b"two");
    assert_eq!(recv(&server), b"two");
    assert!(server.try_recv().unwrap().is_none(), "a replayed message was accepted");
    assert_eq!(server.peer(), peer, "the connection moved to the attacker's address");
    assert!(listener.endpoint().stats().unauthentic > 0);
    // The connection has ended and the next one is open: its packets are useless.
    client.close(TIMEOUT).unwrap();
    drop((client, server));
    let again = file.resume(&Endpoint::client().unwrap(), &OpenOptions::default(), Ends::default()).unwrap();
    send(&again, b"three");
    let server = connection(&listener);
    assert_eq!(recv(&server), b"three");
    replay();
    until("a replayed connection was not noticed", || listener.endpoint().stats().replayed_connections > 0);
    send(&again, b"four");
    assert_eq!(recv(&server), b"four");
    assert!(next_connection(listener.endpoint(), Duration::ZERO).is_none());
    assert_eq!(attacker.recv_from(&mut [0; 100]).unwrap_err().kind(), std::io::ErrorKind::WouldBlock);
}

#[test]
fn a_resuming_client_needs_no_handshake_and_sends_its_message_in_the_first_packet() {
    let listener = listener("127.0.0.1");
    let relay = Relay::start(listener.local_addr());
    let url = HaulUrl { port: relay.port, ..listener.url("127.0.0.1", b"") };
    let directory = tempfile::tempdir().unwrap();
    let file = ResumptionFile::new(directory.path().join("resumption"));
    {
        let mut client = client_of(&listener, &url);
        file.store(&mut client).unwrap();
        let _server = connection(&listener);
        // A close of an unconfirmed connection carries an initial header.
        client.wait_confirmed(TIMEOUT).unwrap();
    }
    let connections = listener.stats().connections;
    let mut round = 0;
    // Returns the size of the first datagram.
    let mut resume = || {
        relay.received.lock().unwrap().clear();
        let client =
            file.resume(&Endpoint::client().unwrap(), &OpenOptions::default(), Ends::default()).unwrap();
        let message = format!("round {round}");
        round += 1;
        send(&client, message.as_bytes());
        let server = connection(&listener);
        assert_eq!(recv(&server), message.as_bytes());
        client.close(TIMEOUT).unwrap();
        let received = relay.received.lock().unwrap();
        received.iter().find(|datagram| datagram[0] == INITIAL_HEADER_KIND).unwrap().len()
    };
    // If this thread is stopped between the two calls, the initial header goes ahead alone.
    let with_message = |first: &usize| *first > INITIAL_HEADER_LEN + b"round 0".len();
    let first = attempts(&mut resume, with_message);
    assert!(with_message(&first), "the first datagram has {first} bytes");
    for _ in 0..2 {
        resume();
    }
    assert_eq!(listener.stats().connections, connections);
}

#[test]
fn a_server_ignores_unknown_clients() {
    let directory = tempfile::tempdir().unwrap();
    let file = ResumptionFile::new(directory.path().join("resumption"));
    let addr = {
        let listener = listener("127.0.0.1");
        let mut client = client_of(&listener, &listener.url("127.0.0.1", b""));
        file.store(&mut client).unwrap();
        client.close(TIMEOUT).unwrap();
        listener.local_addr()
    };
    let mut listening = listen_options("127.0.0.1");
    listening.addr = addr;
    let other = Listener::bind(listening).unwrap();
    let options = OpenOptions { timeout: Duration::from_secs(3), ..OpenOptions::default() };
    let client = file.resume(&Endpoint::client().unwrap(), &options, Ends::default()).unwrap();
    send(&client, b"anybody?");
    assert!(matches!(client.wait_confirmed(TIMEOUT), Err(EngineError::UdpBlocked { .. })));
    until("the client's packets are not counted", || other.endpoint().stats().unknown > 0);
    assert_eq!(other.endpoint().stats().connections, 0);
}

#[test]
fn unauthenticated_packets_get_no_answer_and_change_nothing() {
    let listener = listener("127.0.0.1");
    let client = client_of(&listener, &listener.url("127.0.0.1", b""));
    send(&client, b"hello");
    let server = connection(&listener);
    assert_eq!(recv(&server), b"hello");
    let (peer, stranger) = (server.peer(), UdpSocket::bind("127.0.0.1:0").unwrap());
    stranger.set_nonblocking(true).unwrap();
    for kind in [1, 2, 3, 8, 14, 15, 0x3F, 0x81, 0xFF] {
        for len in [0, 1, 7, 11, 31, 36, 64, 1_200] {
            let mut datagram = vec![0x55; len];
            if let [first, .., _] = &mut datagram[..] {
                *first = kind;
            }
            if let Some(identity) = datagram.get_mut(7..11) {
                identity.copy_from_slice(&client.identity().to_be_bytes());
            }
            stranger.send_to(&datagram, listener.local_addr()).unwrap();
        }
    }
    until("the strangers' packets were not counted", || listener.endpoint().stats().unauthentic >= 20);
    send(&client, b"still here");
    assert_eq!(recv(&server), b"still here");
    assert_eq!(server.peer(), peer);
    assert_eq!(stranger.recv_from(&mut [0; 100]).unwrap_err().kind(), std::io::ErrorKind::WouldBlock);
}

/// Panics on the message "boom".
#[derive(Debug)]
struct Boom;

impl MicroProtocol for Boom {
    fn declare(&mut self, _: &mut Declaration<'_>) {}

    fn bind(&mut self, resolution: &mut Resolution<'_>) {
        resolution.on_delivery(Order::NORMAL);
    }

    fn on_delivery(&mut self, delivery: &mut Delivery<'_>, _: &mut Context<'_>) {
        assert!(delivery.data != b"boom", "I do not like boom");
    }
}

#[test]
fn a_panic_in_a_users_micro_protocol_ends_its_own_session_by_name() {
    let listener = listener("127.0.0.1");
    let url = listener.url("127.0.0.1", b"");
    let mut more = registry();
    more.register(Registration::new("boom", 1, "panics", |_, _| Ok(Box::new(Boom))));
    let more = Arc::new(more);
    let terms = Terms::new(more.clone());
    let pair = || {
        let options = OpenOptions::default();
        let (client, accepted) =
            connect_and_agree(&listener, &terms, &url, &recipe().with("boom"), &more, &options);
        accepted.unwrap();
        (client.unwrap(), connection(&listener))
    };
    let ((doomed, doomed_server), (client, server)) = (pair(), pair());
    send(&doomed, b"boom");
    let error = doomed_server.recv(Some(TIMEOUT)).unwrap_err();
    assert!(matches!(&error, EngineError::MicroProtocol { protocol, .. } if protocol == "boom"), "{error}");
    assert!(matches!(doomed.recv(Some(TIMEOUT)), Err(EngineError::Peer(_))));
    send(&client, b"fine");
    assert_eq!(recv(&server), b"fine");
}

/// Sends `count` messages of `len` bytes to a server with an inbox of `inbox`; returns how many it keeps for
/// its application.
fn stored_of(inbox: Bytes, len: usize, count: usize) -> usize {
    let listener = listener("127.0.0.1");
    let room = ConnectionOptions { inbox, ..ConnectionOptions::default() };
    listener.endpoint().set_options(room);
    let client = client_of(&listener, &listener.url("127.0.0.1", b""));
    client.wait_confirmed(TIMEOUT).unwrap();
    let server = connection(&listener);
    for _ in 0..count {
        send(&client, &vec![7; len]);
    }
    client.flush(Some(TIMEOUT)).unwrap();
    until("nothing was dropped", || {
        let is_full = listener.endpoint().stats().inbox_full > 0;
        if !is_full {
            // On a busy machine the socket's buffer may have dropped the others.
            send(&client, &vec![7; len]);
        }
        is_full
    });
    client.flush(Some(TIMEOUT)).unwrap();
    // Messages still in flight would use the capacity freed by reading: on a busy machine, possibly most of
    // them. Packets of another client arrive after them.
    let later = client_of(&listener, &listener.url("127.0.0.1", b""));
    later.wait_confirmed(TIMEOUT).unwrap();
    until("data is still dropped", || {
        let dropped = || listener.endpoint().stats().inbox_full;
        let before = dropped();
        std::thread::sleep(Duration::from_millis(300));
        dropped() == before
    });
    let mut stored = 0;
    while let Ok(message) = server.recv(Some(Duration::from_millis(300))) {
        assert_eq!(message.data.len(), len);
        stored += 1;
    }
    // There is capacity again.
    send(&client, b"after");
    assert_eq!(recv(&server), b"after");
    stored
}

#[test]
fn unread_messages_use_bounded_memory() {
    // One buffer of packets may exceed the limit: 64 KiB, or 64 packets.
    let stored = stored_of(Bytes(100_000), 1_000, 1_000);
    assert!((100..=170).contains(&stored), "{stored} messages of 1,000 bytes");
    assert_eq!(ConnectionOptions::default().inbox, Bytes(4 << 20), "docs/security.md");
}

#[test]
fn the_number_of_queued_messages_is_limited() {
    let stored = stored_of(ConnectionOptions::default().inbox, 1, 24_000);
    assert!((16_384..=17_600).contains(&stored), "{stored} messages of 1 byte");
    // However small the limit: 16, and at most one buffer of packets more.
    let stored = stored_of(Bytes(1), 1_000, 1_000);
    assert!((16..=90).contains(&stored), "{stored} messages of 1,000 bytes");
}

#[test]
fn the_number_of_known_peers_is_limited() {
    const MAX: usize = 3;
    let listening = ListenOptions { max_known_peers: MAX, ..listen_options("127.0.0.1") };
    assert_eq!(listen_options("127.0.0.1").max_known_peers, 1 << 20, "docs/security.md");
    let listener = Listener::bind(listening).unwrap();
    let url = listener.url("127.0.0.1", b"");
    let terms = Terms::new(custom_registry());
    let mut connections: Vec<_> = (0..MAX)
        .map(|_| {
            let client = client_of(&listener, &url);
            send(&client, b"here");
            (client, connection(&listener))
        })
        .collect();
    let fault = std::thread::scope(|scope| {
        let one_more = scope.spawn(|| {
            connect_by(None, &url, &recipe(), &custom_registry(), &OpenOptions::default(), Ends::default())
        });
        // It tries twice: the first refusal might be due to its number.
        for _ in 0..2 {
            assert!(
                matches!(agree_with_client(&listener, &terms), Err(EngineError::Peer(f)) if f.code == FaultCode::Busy)
            );
        }
        one_more.join().unwrap().unwrap_err().fault()
    });
    assert_eq!((fault.code, fault.message.contains("cannot accept")), (FaultCode::Busy, true), "{fault}");
    assert_eq!(listener.endpoint().known_peers(), MAX);
    // Only a peer whose connection has ended is replaced.
    let directory = tempfile::tempdir().unwrap();
    let file = ResumptionFile::new(directory.path().join("resumption"));
    let (mut client, server) = connections.remove(1);
    file.store(&mut client).unwrap();
    client.close(TIMEOUT).unwrap();
    drop((client, server));
    let newcomer = client_of(&listener, &url);
    send(&newcomer, b"new");
    assert_eq!(recv(&connection(&listener)), b"new");
    assert_eq!(listener.endpoint().known_peers(), MAX);
    for (client, server) in &connections {
        send(client, b"still");
        assert_eq!((recv(server), recv(server)), (b"here".to_vec(), b"still".to_vec()));
    }
}

#[test]
fn the_number_of_pending_connections_is_limited_and_later_ones_succeed() {
    const MAX: usize = 2;
    let listening = ListenOptions { max_connections_waiting: MAX, ..listen_options("127.0.0.1") };
    assert_eq!(listen_options("127.0.0.1").max_connections_waiting, 4_096, "docs/security.md");
    let listener = Listener::bind(listening).unwrap();
    let url = listener.url("127.0.0.1", b"");
    let clients: Vec<_> = (0..=MAX)
        .map(|number| {
            let client = client_of(&listener, &url);
            send(&client, &[number as u8]);
            client
        })
        .collect();
    // Each repeats its header until the server has answered.
    until("two connections have begun", || listener.endpoint().stats().connections == MAX as u64);
    assert!(clients[MAX].wait_confirmed(Duration::from_millis(500)).is_err());
    assert_eq!(listener.endpoint().stats().connections, MAX as u64);
    let first = connection(&listener);
    clients[MAX].wait_confirmed(TIMEOUT).unwrap();
    assert_eq!(listener.endpoint().stats().connections, MAX as u64 + 1);
    drop(first);
}
