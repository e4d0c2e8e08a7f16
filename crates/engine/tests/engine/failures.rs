//! Sessions that fail to open or end abnormally: both peers get the reason, and others are not affected.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use crate::support::{
    DiscardingSink, Relay, TIMEOUT, accept, check, get, listen_options, listener, options, session_pair,
};
use haul_engine::{Direction, EngineError, HaulUrl, Listener, Waker, connect};
use haul_proto::connection::ENCRYPTION_REQUIRED;
use haul_wire::control::{Cipher, FaultCode, Request};

const HOST: &str = "127.0.0.1";

/// A foreign server that answers every connection with these bytes.
fn other_server(answer: &'static [u8]) -> u16 {
    let listener = TcpListener::bind((HOST, 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for mut tcp in listener.incoming().map_while(Result::ok) {
            let _ = tcp.read(&mut [0; 1024]);
            let _ = tcp.write_all(answer);
        }
    });
    port
}

fn url_with_port(listener: &Listener, port: u16) -> HaulUrl {
    HaulUrl { port, ..listener.url(HOST, b"") }
}

fn wait_for_failed(listener: &Listener, count: u64) {
    let timeout = Instant::now() + TIMEOUT;
    while listener.stats().failed < count {
        assert!(Instant::now() < timeout, "{:?}", listener.stats());
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn another_server_with_another_certificate_is_not_trusted() {
    let (ours, theirs) = (listener(HOST), listener(HOST));
    let fault = check(&url_with_port(&ours, theirs.local_addr().port())).unwrap_err().fault();
    assert_eq!(fault.code, FaultCode::NotAuthorised);
    assert!(fault.message.contains("certificate") && fault.message.contains("does not match the URL"));
    assert_eq!(theirs.stats().sessions, 0);
}

#[test]
fn a_wrong_secret_is_refused() {
    let listener = listener(HOST);
    let url = HaulUrl { secret: [9; 32].into(), ..listener.url(HOST, b"") };
    let fault = check(&url).unwrap_err().fault();
    assert_eq!(fault.code, FaultCode::NotAuthorised);
    assert!(fault.message.contains("secret"), "{fault}");
    assert!(listener.accept(Duration::from_millis(100)).is_none());
}

#[test]
fn an_expired_url_is_refused_by_client_and_server() {
    let mut listening = listen_options(HOST);
    listening.expires = Some(Duration::from_secs(1));
    let listener = Listener::bind(listening).unwrap();
    let url = listener.url(HOST, b"");
    std::thread::sleep(Duration::from_millis(2100));
    assert!(matches!(check(&url), Err(EngineError::Expired(_))));
    assert_eq!(listener.stats().connections, 0);
    let fault = check(&HaulUrl { expires: None, ..url }).unwrap_err().fault();
    assert_eq!(fault.code, FaultCode::Expired);
}

#[test]
fn no_encryption_is_refused_unless_the_server_permits_it() {
    let listener = listener(HOST);
    let mut client_options = options(Request::Check);
    client_options.ciphers = vec![Cipher::None];
    let fault = connect(&listener.url(HOST, b""), client_options).unwrap_err().fault();
    assert_eq!((fault.code, &*fault.message), (FaultCode::NotPermitted, ENCRYPTION_REQUIRED));
}

#[test]
fn a_server_of_another_protocol_is_reported() {
    let listener = listener(HOST);
    for answer in [b"HTTP/1.1 400 Bad Request\r\n\r\n".as_slice(), b"SSH-2.0-OpenSSH_9.9\r\n", b""] {
        let error = check(&url_with_port(&listener, other_server(answer))).unwrap_err();
        assert!(matches!(error, EngineError::NotHaul { .. }), "{error}");
        assert_eq!(error.fault().code, FaultCode::Unreachable);
    }
}

#[test]
fn a_closed_port_is_reported() {
    let port = TcpListener::bind((HOST, 0)).unwrap().local_addr().unwrap().port();
    let fault = check(&url_with_port(&listener(HOST), port)).unwrap_err().fault();
    assert_eq!(fault.code, FaultCode::Unreachable);
    assert!(fault.message.contains(&port.to_string()) && fault.message.contains("refused"), "{fault}");
}

#[test]
fn a_silent_server_times_out() {
    let silent = TcpListener::bind((HOST, 0)).unwrap();
    let url = url_with_port(&listener(HOST), silent.local_addr().unwrap().port());
    let mut client_options = options(Request::Check);
    client_options.timeout = Duration::from_millis(300);
    assert!(matches!(connect(&url, client_options), Err(EngineError::NotHaul { .. })));
}

#[test]
fn an_unanswered_handshake_is_retried_on_another_connection() {
    let listener = listener(HOST);
    let proxy = TcpListener::bind((HOST, 0)).unwrap();
    let url = url_with_port(&listener, proxy.local_addr().unwrap().port());
    let server = listener.local_addr();
    let relay = std::thread::spawn(move || {
        // The first connection is accepted and never served; the second is relayed until either end closes.
        let (_silent, _) = proxy.accept().unwrap();
        let (client, _) = proxy.accept().unwrap();
        let server = TcpStream::connect(server).unwrap();
        let copy = |mut from: TcpStream, mut to: TcpStream| move || std::io::copy(&mut from, &mut to);
        let there = copy(client.try_clone().unwrap(), server.try_clone().unwrap());
        std::thread::spawn(there);
        let _ = copy(server, client)();
    });
    let mut client_options = options(Request::Check);
    client_options.timeout = Duration::from_secs(4);
    // The handshake is complete; no application accepts the request.
    let error = connect(&url, client_options).unwrap_err();
    assert!(matches!(error, EngineError::TimedOut { .. }), "{error}");
    drop(listener);
    relay.join().unwrap();
}

#[test]
fn an_undecided_server_times_out() {
    let listener = listener(HOST);
    let mut client_options = options(Request::Check);
    // Longer than the handshake takes on a busy machine.
    client_options.timeout = Duration::from_secs(3);
    let error = connect(&listener.url(HOST, b""), client_options).unwrap_err();
    assert!(matches!(error, EngineError::TimedOut { .. }), "{error}");
    // Whether or not the listener has noticed yet, there is no session.
    if let Some(incoming) = listener.accept(Duration::from_millis(500)) {
        let ended = incoming.accept().and_then(|session| session.control().recv(Some(TIMEOUT)));
        assert!(matches!(ended, Err(EngineError::ControlLost(_))), "{ended:?}");
    }
}

#[test]
fn a_too_long_request_is_a_usage_error() {
    let listener = listener(HOST);
    let client_options = options(get(vec![vec![b'x'; 4000]; 100]));
    let error = connect(&listener.url(HOST, b""), client_options).unwrap_err();
    assert_eq!(error.code(), FaultCode::Usage);
    assert_eq!(listener.stats().connections, 0);
}

#[test]
fn garbage_and_partial_handshakes_disturb_no_session() {
    let listener = listener(HOST);
    let url = listener.url(HOST, b"");
    let mut open = Vec::new();
    for garbage in [b"GET / HTTP/1.0\r\n\r\n".as_slice(), &[0x16, 3, 1, 0xff, 0xff], &[0; 5000], b""] {
        let mut tcp = TcpStream::connect(listener.local_addr()).unwrap();
        let _ = tcp.write_all(garbage);
        open.push(tcp);
    }
    let (client, _server) = session_pair(&listener, &url, options(Request::Check));
    assert!(client.control().failure().is_none());
    wait_for_failed(&listener, 2);
}

#[test]
fn open_handshakes_do_not_lock_out_other_clients() {
    let mut listening = listen_options(HOST);
    listening.handshakes.total = 4;
    let listener = Listener::bind(listening).unwrap();
    let slow: Vec<_> = (0..20).map(|_| TcpStream::connect(listener.local_addr()).unwrap()).collect();
    for _ in 0..3 {
        let (client, _server) = session_pair(&listener, &listener.url(HOST, b""), options(Request::Check));
        assert!(client.control().failure().is_none());
    }
    assert!(listener.stats().evicted >= 16, "{:?}", listener.stats());
    drop(slow);
}

#[test]
fn handshakes_that_take_too_long_are_ended() {
    let mut listening = listen_options(HOST);
    assert_eq!(listening.handshake_timeout, Duration::from_secs(10), "docs/security.md");
    listening.handshake_timeout = Duration::from_millis(200);
    let listener = Listener::bind(listening).unwrap();
    let mut slow = TcpStream::connect(listener.local_addr()).unwrap();
    slow.set_read_timeout(Some(TIMEOUT)).unwrap();
    assert_eq!(slow.read(&mut [0; 10]).unwrap(), 0);
    wait_for_failed(&listener, 1);
}

#[test]
fn udp_blocked_towards_the_server_is_reported_at_both_ends_with_port_and_direction() {
    let listener = listener(HOST);
    let relay = Relay::start(listener.local_addr());
    relay.to_server.store(false, Ordering::Relaxed);
    let url = url_with_port(&listener, relay.port);
    let started = Instant::now();
    let (mut client, mut server) = session_pair(&listener, &url, options(Request::BenchSend));
    let port = listener.local_addr().port();
    let towards_server = |error: &EngineError| {
        let text = error.to_string();
        text.contains(&port.to_string()) && text.contains(&Direction::ClientToServer.to_string())
    };
    let error = server.check_path(TIMEOUT).unwrap_err();
    assert!(matches!(error, EngineError::UdpBlocked { .. }) && towards_server(&error), "{error}");
    server.control().abort(error.fault());
    let error = client.check_path(TIMEOUT).unwrap_err();
    assert_eq!(error.code(), FaultCode::UdpBlocked);
    assert!(started.elapsed() < Duration::from_secs(15), "five seconds, and slack for a busy machine");
}

#[test]
fn udp_blocked_towards_the_client_is_noticed_there() {
    let listener = listener(HOST);
    let relay = Relay::start(listener.local_addr());
    relay.to_client.store(false, Ordering::Relaxed);
    let url = url_with_port(&listener, relay.port);
    let (mut client, mut server) = session_pair(&listener, &url, options(Request::BenchReceive));
    let _receiving = server.start_receiving(Box::new(DiscardingSink), Waker::new().unwrap()).unwrap();
    let error = client.check_path(TIMEOUT).unwrap_err();
    let direction = Direction::ServerToClient;
    let expected = EngineError::UdpBlocked { port: relay.port, direction };
    assert_eq!(error.to_string(), expected.to_string());
    client.control().abort(error.fault());
    assert_eq!(server.control().recv(Some(TIMEOUT)).unwrap_err().code(), FaultCode::UdpBlocked);
}

#[test]
fn a_path_that_starts_to_work_late_is_used() {
    let listener = listener(HOST);
    let relay = Relay::start(listener.local_addr());
    relay.to_server.store(false, Ordering::Relaxed);
    let url = url_with_port(&listener, relay.port);
    let (mut client, mut server) = session_pair(&listener, &url, options(Request::BenchSend));
    std::thread::scope(|scope| {
        let client = scope.spawn(move || client.check_path(TIMEOUT).map(drop));
        std::thread::sleep(Duration::from_millis(600));
        relay.to_server.store(true, Ordering::Relaxed);
        let _transfer = server.check_path(TIMEOUT).unwrap();
        client.join().unwrap().unwrap();
    });
}

#[test]
fn a_dead_peer_is_a_lost_connection_and_other_sessions_continue() {
    let listener = listener(HOST);
    let url = listener.url(HOST, b"");
    let (client, server) = session_pair(&listener, &url, options(Request::Check));
    let (other_client, other_server) = session_pair(&listener, &url, options(Request::Check));
    drop(server);
    let error = client.control().recv(Some(TIMEOUT)).unwrap_err();
    assert!(matches!(error, EngineError::ControlLost(_)), "{error}");
    assert!(error.fault().retryable);
    other_client.control().close().unwrap();
    other_server.control().close().unwrap();
}

#[test]
fn a_broken_connection_is_noticed_at_both_ends_even_while_waiting_for_udp() {
    let listener = listener(HOST);
    let relay = Relay::start(listener.local_addr());
    relay.to_server.store(false, Ordering::Relaxed);
    let url = url_with_port(&listener, relay.port);
    let (client, mut server) = session_pair(&listener, &url, options(Request::Check));
    relay.cut();
    assert!(matches!(client.control().recv(Some(TIMEOUT)), Err(EngineError::ControlLost(_))));
    assert!(matches!(server.check_path(TIMEOUT), Err(EngineError::ControlLost(_))));
}

#[test]
fn excess_waiting_clients_are_told_to_retry() {
    let mut listening = listen_options(HOST);
    assert_eq!(listening.max_waiting, 64, "docs/security.md");
    listening.max_waiting = 1;
    let listener = Listener::bind(listening).unwrap();
    let url = listener.url(HOST, b"");
    std::thread::scope(|scope| {
        let first = scope.spawn(|| check(&url));
        while listener.stats().sessions < 1 {
            std::thread::sleep(Duration::from_millis(5));
        }
        assert_eq!(check(&url).unwrap_err().code(), FaultCode::Busy);
        let _server = accept(&listener);
        first.join().unwrap().unwrap();
    });
}
