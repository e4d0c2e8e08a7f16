//! Data is only sent to addresses that have answered a challenge, however early a copy of a packet arrives
//! elsewhere.

use std::net::{SocketAddr, UdpSocket};
use std::sync::atomic::Ordering;
use std::time::Duration;

use haul_engine::{Channel, Endpoint, HaulUrl, OpenOptions, ResumptionFile};
use haul_stack::Ends;
use haul_wire::packet::{CONTROL_FRAME_KIND, INITIAL_HEADER_KIND, INITIAL_HEADER_LEN};

use crate::connections::{client_of, connection, recv, send, until};
use crate::support::{Relay, TIMEOUT, Waits, listener};

/// The address that an attacker uses as the source of copied packets.
struct Victim {
    socket: UdpSocket,
    sent: usize,
}

impl Victim {
    fn new() -> Self {
        let socket = UdpSocket::bind("127.0.0.9:0").unwrap();
        socket.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
        Self { socket, sent: 0 }
    }

    fn sends(&mut self, datagram: &[u8], to: SocketAddr) {
        self.sent += self.socket.send_to(datagram, to).unwrap();
    }

    /// Returns the number of bytes received, once no more arrive.
    fn received(&self) -> usize {
        let mut buffer = vec![0; 65_536];
        std::iter::from_fn(|| self.socket.recv(&mut buffer).ok()).sum()
    }

    fn address(&self) -> SocketAddr {
        self.socket.local_addr().unwrap()
    }
}

/// Returns the first packet with a message that the client has sent and the server has not received. If this
/// thread is stopped before it sends the first message, the initial header goes ahead alone.
fn intercepted(relay: &Relay, act: impl FnOnce()) -> Vec<u8> {
    relay.received.lock().unwrap().clear();
    relay.to_server.store(false, Ordering::Relaxed);
    act();
    let has_message = |packet: &&Vec<u8>| match packet[0] {
        CONTROL_FRAME_KIND => false,
        INITIAL_HEADER_KIND => packet.len() > INITIAL_HEADER_LEN,
        _ => true,
    };
    let found = || relay.received.lock().unwrap().iter().find(has_message).cloned();
    until("the client has sent nothing", || found().is_some());
    found().unwrap()
}

fn send_many(server: &Channel) {
    (0..30).for_each(|_| send(server, &[7; 1_000]));
}

#[test]
fn a_copied_packet_that_arrives_first_does_not_move_the_connection() {
    let listener = listener("127.0.0.1");
    let relay = Relay::start(listener.local_addr());
    let url = HaulUrl { port: relay.port, ..listener.url("127.0.0.1", b"") };
    let client = client_of(&listener, &url);
    send(&client, b"one");
    let server = connection(&listener);
    assert_eq!(recv(&server), b"one");
    client.wait_confirmed(TIMEOUT).unwrap();
    let peer = server.peer();
    let copy = intercepted(&relay, || send(&client, b"two"));
    let mut victim = Victim::new();
    victim.sends(&copy, listener.local_addr());
    assert_eq!(recv(&server), b"two", "the copy must be accepted like the packet");
    send_many(&server);
    let received = victim.received();
    assert!(received <= 3 * victim.sent, "{received} bytes to a victim for {} bytes", victim.sent);
    assert_eq!(server.peer(), peer);
    for _ in 0..30 {
        assert_eq!(recv(&client), [7; 1_000]);
    }
}

#[test]
fn copied_first_packets_do_not_redirect_a_connection() {
    let listener = listener("127.0.0.1");
    let relay = Relay::start(listener.local_addr());
    let url = HaulUrl { port: relay.port, ..listener.url("127.0.0.1", b"") };
    let directory = tempfile::tempdir().unwrap();
    let file = ResumptionFile::new(directory.path().join("resumption"));
    let mut first = client_of(&listener, &url);
    file.store(&mut first).unwrap();
    send(&first, b"zero");
    assert_eq!(recv(&connection(&listener)), b"zero");
    first.close(TIMEOUT).unwrap();
    drop(first);
    let mut again = None;
    let copy = intercepted(&relay, || {
        let resumed = file.resume(&Endpoint::client().unwrap(), &OpenOptions::default(), Ends::default());
        let resumed = again.insert(resumed.unwrap());
        send(resumed, b"one");
    });
    let mut victim = Victim::new();
    victim.sends(&copy, listener.local_addr());
    let server = connection(&listener);
    assert_eq!(recv(&server), b"one");
    send_many(&server);
    let received = victim.received();
    assert!(received <= 3 * victim.sent, "{received} bytes to a victim for {} bytes", victim.sent);
    // The client sends again, answers the challenge, and gets what was waiting for it.
    relay.to_server.store(true, Ordering::Relaxed);
    let client = again.unwrap();
    for _ in 0..30 {
        assert_eq!(recv(&client), [7; 1_000]);
    }
    assert_ne!(server.peer(), victim.address());
    send(&client, b"two");
    assert_eq!(recv(&server), b"two");
}

#[test]
fn a_client_is_found_again_after_nat_rebinding() {
    let listener = listener("127.0.0.1");
    let relay = Relay::start(listener.local_addr());
    let url = HaulUrl { port: relay.port, ..listener.url("127.0.0.1", b"") };
    let client = client_of(&listener, &url);
    send(&client, b"one");
    let server = connection(&listener);
    assert_eq!(recv(&server), b"one");
    client.wait_confirmed(TIMEOUT).unwrap();
    for round in 0..3 {
        let before = server.peer();
        relay.rebind.store(true, Ordering::Relaxed);
        until("the relay has no other port", || !relay.rebind.load(Ordering::Relaxed));
        send(&client, b"from elsewhere");
        assert_eq!(recv(&server), b"from elsewhere");
        until("the connection has not moved", || server.peer() != before);
        send(&server, format!("round {round}").as_bytes());
        assert_eq!(recv(&client), format!("round {round}").as_bytes());
    }
}
