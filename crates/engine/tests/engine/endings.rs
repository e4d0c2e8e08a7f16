//! Closes of connections that the server has not heard of yet, or never hears of.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use haul_engine::{Channel, EngineError};

use crate::connections::{client_of, connection};
use crate::support::{Relay, TIMEOUT, Waits, listener};

fn is_cut(server: &Channel) -> bool {
    matches!(server.recv(Some(TIMEOUT)), Err(EngineError::Peer(_)))
}

#[test]
fn a_connection_without_messages_is_opened_and_closed_at_the_server() {
    let listener = listener("127.0.0.1");
    let url = listener.url("127.0.0.1", b"");
    client_of(&listener, &url).close(TIMEOUT).unwrap();
    assert!(matches!(connection(&listener).recv(Some(TIMEOUT)), Err(EngineError::Closed)));
    let client = client_of(&listener, &url);
    client.abort();
    assert!(is_cut(&connection(&listener)));
    assert!(matches!(client.wait_ended(TIMEOUT), Ok(EngineError::Closed)));
    drop(client_of(&listener, &url));
    assert!(matches!(connection(&listener).recv(Some(TIMEOUT)), Err(EngineError::Closed)));
}

#[test]
fn a_close_opens_its_connection_even_if_the_first_packet_is_late() {
    let listener = listener("127.0.0.1");
    for cut in [false, true] {
        let relay = Relay::start(listener.local_addr());
        relay.to_server.store(false, Ordering::Relaxed);
        let mut url = listener.url("127.0.0.1", b"");
        url.port = relay.port;
        let client = client_of(&listener, &url);
        let way = relay.to_server.clone();
        // Longer than all closes of a confirmed connection take.
        let opening = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_secs(2));
            way.store(true, Ordering::Relaxed);
        });
        if cut {
            client.abort();
            assert!(matches!(client.wait_ended(TIMEOUT), Ok(EngineError::Closed)));
            assert!(is_cut(&connection(&listener)));
        } else {
            client.close(TIMEOUT).unwrap();
            assert!(matches!(connection(&listener).recv(Some(TIMEOUT)), Err(EngineError::Closed)));
        }
        opening.join().unwrap();
    }
}

#[test]
fn closing_without_a_peer_is_not_graceful() {
    let listener = listener("127.0.0.1");
    let relay = Relay::start(listener.local_addr());
    relay.to_server.store(false, Ordering::Relaxed);
    let mut url = listener.url("127.0.0.1", b"");
    url.port = relay.port;
    let began = Instant::now();
    let error = client_of(&listener, &url).close(Duration::from_secs(1)).unwrap_err();
    assert!(matches!(error, EngineError::TimedOut { .. }), "{error}");
    let error = client_of(&listener, &url).close(TIMEOUT).unwrap_err();
    assert!(matches!(error, EngineError::UdpBlocked { .. }), "{error}");
    assert!(began.elapsed() < TIMEOUT, "{:?}", began.elapsed());
}
