//! Tests of the server's costs. They run one at a time, because they count the threads and sockets of the
//! process.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use haul_engine::{ConnectOptions, HandshakeLimits, ListenOptions, Listener, connect};
use haul_wire::control::{Fault, FaultCode, HelloHead, MAX_HELLO_BODY, PROTOCOL_VERSION, Request};
use rustls::ClientConfig;

use crate::stranger::{self, HEAD, Stranger};

const TIMEOUT: Duration = Duration::from_secs(60);
const PLACES: usize = 8;
/// Source address of strangers.
const OTHER_HOST: IpAddr = IpAddr::V4(Ipv4Addr::new(127, 9, 0, 1));

/// Held by the running test, so that only one runs at a time.
static SERIAL: Mutex<()> = Mutex::new(());

fn options() -> ListenOptions {
    ListenOptions::new(SocketAddr::from(([127, 0, 0, 1], 0)))
}

fn listener(total: usize) -> Listener {
    let handshakes = HandshakeLimits { total, ..HandshakeLimits::default() };
    Listener::bind(ListenOptions { handshakes, ..options() }).unwrap()
}

fn stranger(listener: &Listener, config: &Arc<ClientConfig>) -> std::io::Result<Stranger> {
    Stranger::secure(stranger::dial(OTHER_HOST, listener.local_addr(), TIMEOUT)?, config)
}

/// Returns the number of threads that serve strangers or sessions.
fn serving_threads() -> usize {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap().flatten();
    let names = tasks.filter_map(|task| std::fs::read_to_string(task.path().join("comm")).ok());
    names.filter(|name| name.starts_with("haul-handshake") || name.starts_with("haul-control")).count()
}

/// Waits until an earlier test has released its resources.
fn settled() {
    until("an earlier test's threads have ended", || serving_threads() == 0);
}

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

fn until(what: &str, mut done: impl FnMut() -> bool) {
    let deadline = Instant::now() + TIMEOUT;
    while !done() {
        assert!(Instant::now() < deadline, "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_wrong_proof_is_refused_before_the_rest_of_the_hello_arrives() {
    let _serial = SERIAL.lock().unwrap_or_else(PoisonError::into_inner);
    let listener = listener(PLACES);
    let mut stranger = stranger(&listener, &stranger::config()).unwrap();
    stranger.send_wrong_proof(100_000).unwrap();
    let fault = stranger.refusal().unwrap();
    assert_eq!(fault.code, FaultCode::NotAuthorised, "{fault}");
    assert_eq!(listener.stats().refused, 1);
}

#[test]
fn a_lingering_refused_client_is_closed_long_before_the_handshake_timeout() {
    let _serial = SERIAL.lock().unwrap_or_else(PoisonError::into_inner);
    let handshake_timeout = Duration::from_secs(3_600);
    let listener = Listener::bind(ListenOptions { handshake_timeout, ..options() }).unwrap();
    settled();
    let before = descriptors();
    let mut stranger = stranger(&listener, &stranger::config()).unwrap();
    stranger.send_wrong_proof(34).unwrap();
    assert_eq!(stranger.refusal().unwrap().code, FaultCode::NotAuthorised);
    until("its thread and socket are given back", || serving_threads() == 0 && descriptors() == before + 1);
}

/// Sends the head of a Hello with a valid proof, and nothing else.
fn prove(mut client: Stranger, listener: &Listener) -> Stranger {
    let auth = client.0.conn.export_keying_material([0; 32], b"EXPORTER-haul-auth", Some(&[])).unwrap();
    let proof = blake3::keyed_hash(listener.url("127.0.0.1", b"").secret.as_bytes(), &auth);
    let mut head = HEAD;
    head[HelloHead::LEN - 32..].copy_from_slice(proof.as_bytes());
    client.0.write_all(&[&1_000_u32.to_be_bytes()[..], &head].concat()).unwrap();
    client
}

#[test]
fn an_incomplete_hello_times_out_even_with_a_valid_proof() {
    let _serial = SERIAL.lock().unwrap_or_else(PoisonError::into_inner);
    let handshake_timeout = Duration::from_secs(3);
    let listener = Listener::bind(ListenOptions { handshake_timeout, ..options() }).unwrap();
    let mut client = prove(stranger(&listener, &stranger::config()).unwrap(), &listener);
    until("the proof was not accepted", || listener.sessions() == 1);
    // Closed without sending anything.
    let closed = client.0.read(&mut [0; 16]);
    let is_closed = |error: &std::io::Error| {
        matches!(error.kind(), ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset)
    };
    assert!(closed.as_ref().is_err_and(is_closed), "{closed:?}");
    until("it does not count as failed", || listener.stats().failed == 1 && listener.sessions() == 0);
    assert_eq!(listener.stats().refused, 0);
}

#[test]
fn lingering_refused_clients_use_limited_threads_and_sockets() {
    let _serial = SERIAL.lock().unwrap_or_else(PoisonError::into_inner);
    let (listener, config) = (listener(PLACES), stranger::config());
    settled();
    let before = descriptors();
    let (mut open_connections, mut max_threads, mut max_descriptors) = (Vec::new(), 0, 0);
    for _ in 0..100 {
        // Some are evicted before they have sent anything.
        if let Ok(mut stranger) = stranger(&listener, &config) {
            let _ = stranger.send_wrong_proof(34);
            open_connections.push(stranger);
        }
        max_threads = max_threads.max(serving_threads());
        max_descriptors = max_descriptors.max(descriptors() - open_connections.len());
    }
    assert!(open_connections.len() > PLACES, "{}", open_connections.len());
    assert!(max_threads <= PLACES, "{max_threads} threads");
    // Connections that are evicted for as many new ones.
    assert!(max_descriptors <= before + 2 * PLACES, "{max_descriptors}, at first {before}");
    until("all of it is given back", || {
        serving_threads() == 0 && descriptors() <= before + open_connections.len()
    });
}

#[test]
fn clients_with_the_secret_connect_during_a_flood_of_strangers() {
    let _serial = SERIAL.lock().unwrap_or_else(PoisonError::into_inner);
    let listener = listener(PLACES);
    let config = stranger::config();
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let mut open_connections = Vec::new();
                while !over.load(Ordering::Relaxed) && open_connections.len() < 2_000 {
                    if let Ok(mut stranger) = stranger(&listener, &config) {
                        let _ = stranger.send_wrong_proof(34);
                    }
                    open_connections.extend(stranger::dial(OTHER_HOST, listener.local_addr(), TIMEOUT));
                }
            });
        }
        for _ in 0..5 {
            let url = listener.url("127.0.0.1", b"");
            let client = scope.spawn(move || {
                connect(&url, ConnectOptions::new(Request::Check, haul_wire::control::Settings::default()))
            });
            let session = listener.accept(TIMEOUT).map(|incoming| incoming.accept().unwrap());
            let client = client.join().unwrap();
            assert!(client.is_ok() && session.is_some(), "{client:?} {:?}", listener.stats());
        }
        over.store(true, Ordering::Relaxed);
    });
}

#[test]
fn clients_that_stall_after_their_proof_do_not_lock_out_others() {
    let _serial = SERIAL.lock().unwrap_or_else(PoisonError::into_inner);
    let (handshake_timeout, config) = (Duration::from_secs(3_600), stranger::config());
    let listener = Listener::bind(ListenOptions { handshake_timeout, ..options() }).unwrap();
    let places = HandshakeLimits::default().total;
    let _stalled: Vec<_> = (1..=places)
        .map(|number| {
            // No address has too many.
            let from = Ipv4Addr::new(127, 9, number as u8, 1).into();
            let tcp = stranger::dial(from, listener.local_addr(), TIMEOUT).unwrap();
            let stalled = prove(Stranger::secure(tcp, &config).unwrap(), &listener);
            until("a proof was not accepted", || listener.sessions() == number);
            stalled
        })
        .collect();
    let mut options = ConnectOptions::new(Request::Check, haul_wire::control::Settings::default());
    options.timeout = Duration::from_secs(5);
    let url = listener.url("127.0.0.1", b"");
    let client = std::thread::spawn(move || connect(&url, options));
    let session = listener.accept(TIMEOUT).map(|incoming| incoming.accept().unwrap());
    let client = client.join().unwrap();
    assert!(client.is_ok() && session.is_some(), "{client:?} {:?}", listener.stats());
}

#[test]
fn a_hello_of_another_version_is_answered_with_both_versions() {
    let _serial = SERIAL.lock().unwrap_or_else(PoisonError::into_inner);
    let listener = listener(PLACES);
    // A Hello (0) of the next version, which this version cannot parse any further.
    let next = PROTOCOL_VERSION + 1;
    let fault = refusal(&listener, &[0, 0, 0, 5, 0, next as u8, 0xff, 0xff, 0xff]);
    assert_eq!(fault.code, FaultCode::VersionMismatch);
    assert!(fault.message.contains(&format!("version {PROTOCOL_VERSION}")), "{fault}");
    assert!(fault.message.contains(&format!("version {next}")), "{fault}");
}

#[test]
fn an_invalid_or_too_long_hello_is_refused_by_its_first_bytes() {
    let _serial = SERIAL.lock().unwrap_or_else(PoisonError::into_inner);
    let listener = listener(PLACES);
    let too_long = MAX_HELLO_BODY as u32 + 1;
    for start in [&too_long.to_be_bytes()[..], &[0, 0, 0, 3, 200, 1, 2], &[0, 0, 0, 1, 12]] {
        let fault = refusal(&listener, start);
        assert_eq!(fault.code, FaultCode::Internal, "{fault}");
    }
    assert_eq!(listener.stats().refused, 3);
}

/// Returns the server's answer to a client whose connection begins with these bytes.
fn refusal(listener: &Listener, start: &[u8]) -> Fault {
    let mut stranger = stranger(listener, &stranger::config()).unwrap();
    stranger.0.write_all(start).unwrap();
    stranger.refusal().unwrap()
}
