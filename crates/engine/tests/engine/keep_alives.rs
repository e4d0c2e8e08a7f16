//! Keep-alives of connections at rest.

use std::sync::atomic::Ordering;
use std::time::Duration;

use haul_engine::{Channel, ConnectionOptions, EngineError, HaulUrl, Listener, OpenOptions, Terms};
use haul_wire::packet::{ControlFrame, ControlFrameKind};

use crate::connections::{connect_and_agree, connection, custom_registry, recipe, recv, send, until};
use crate::support::{Relay, TIMEOUT, Waits, listener};

/// Returns a client connected through the relay, with a keep-alive interval of 400 ms, and its server.
fn connect_with_keep_alives(listener: &Listener, relay: &Relay) -> [Channel; 2] {
    let url = HaulUrl { port: relay.port, ..listener.url("127.0.0.1", b"") };
    let channel =
        ConnectionOptions { keep_alive: Some(Duration::from_millis(400)), ..ConnectionOptions::default() };
    let options = OpenOptions { connection: channel, ..OpenOptions::default() };
    let (client, accepted) = connect_and_agree(
        listener,
        &Terms::new(custom_registry()),
        &url,
        &recipe(),
        &custom_registry(),
        &options,
    );
    accepted.unwrap();
    let client = client.unwrap();
    client.wait_confirmed(TIMEOUT).unwrap();
    [client, connection(listener)]
}

/// Its pings are all that the server receives from the new address.
#[test]
fn keep_alives_find_an_idle_client_after_nat_rebinding() {
    let listener = listener("127.0.0.1");
    let relay = Relay::start(listener.local_addr());
    let [client, server] = connect_with_keep_alives(&listener, &relay);
    for _ in 0..2 {
        let before = server.peer();
        relay.rebind.store(true, Ordering::Relaxed);
        until("the connection has not moved", || server.peer() != before);
    }
    assert!(matches!(client.recv(Some(Duration::from_millis(2_400))), Err(EngineError::TimedOut { .. })));
    send(&server, b"found");
    assert_eq!(recv(&client), b"found");
}

#[test]
fn a_dead_peer_is_detected_if_requested() {
    let listener = listener("127.0.0.1");
    let relay = Relay::start(listener.local_addr());
    let [client, server] = connect_with_keep_alives(&listener, &relay);
    // Several times the interval: alive as long as somebody answers.
    assert!(matches!(client.recv(Some(Duration::from_millis(2_400))), Err(EngineError::TimedOut { .. })));
    assert!(client.ended().is_none());
    relay.to_server.store(false, Ordering::Relaxed);
    // A replayed `Opened` frame is no keep-alive.
    let is_opened =
        |packet: &[u8]| ControlFrame::parse(packet).is_ok_and(|p| p.kind == ControlFrameKind::Opened);
    let opened = relay.answered.lock().unwrap().iter().find(|packet| is_opened(packet)).cloned();
    *relay.replayed.lock().unwrap() = Some(opened.expect("the server confirmed the connection"));
    until("the silence was not noticed", || client.ended().is_some());
    assert!(matches!(client.ended(), Some(EngineError::Silent(_))));
    assert!(server.ended().is_none());
}
