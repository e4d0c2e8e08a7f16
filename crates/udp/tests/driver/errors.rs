//! Errors are distinguished and counted, and do not make the socket unusable.

use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::time::Duration;

use crate::common::{V4, bind, families, options, pair, pattern, receive};
use haul_base::Ecn;
use haul_udp::{Interest, Offload, Receiver, RecvError, SendError, SocketError, UdpSocket};

#[test]
fn an_empty_socket_is_would_block() {
    let (_, receiving) = pair(V4, Offload::Auto);
    let mut receiver = Receiver::new(&receiving);
    assert!(matches!(receiver.recv(&receiving), Err(RecvError::WouldBlock)));
    assert_eq!(receiver.datagrams().count(), 0);
    assert!(!receiving.wait(Interest::Read, Duration::ZERO).unwrap());
    assert!(receiving.wait(Interest::Write, Duration::ZERO).unwrap());
}

#[test]
fn a_too_large_datagram_is_distinguished_from_an_icmp_error() {
    for addr in families() {
        let (sending, receiving) = pair(addr, Offload::Auto);
        let error = sending.send(&pattern(70_000), 70_000, Ecn::NotEct).unwrap_err();
        assert!(matches!(error, SendError::TooLarge), "{error:?}");
        assert!(!error.is_fatal());
        assert_eq!(sending.stats().packet_too_big, 0);
        // The next one is sent.
        sending.send(&pattern(1_000), 1_000, Ecn::NotEct).unwrap();
        assert_eq!(receive(&mut Receiver::new(&receiving), &receiving).len(), 1);
    }
}

/// Returns a socket connected to a port without a listener.
fn to_closed_port(addr: &str, offload: Offload) -> (UdpSocket, SocketAddr) {
    let (sending, receiving) = pair(addr, offload);
    let closed_port = receiving.local_addr().expect("bound");
    drop(receiving);
    (sending, closed_port)
}

#[test]
fn a_refusing_peer_is_distinguished_and_can_recover() {
    for addr in families() {
        let (sending, closed_port) = to_closed_port(addr, Offload::Auto);
        sending.send(b"anyone?", 100, Ecn::NotEct).unwrap();
        let error = sending.send(b"anyone?", 100, Ecn::NotEct).unwrap_err();
        assert!(matches!(error, SendError::Refused), "{error:?}");
        assert_eq!(sending.stats().refused, 1);
        let back = bind(&closed_port.to_string(), &options(Offload::Auto));
        sending.send(b"there!", 100, Ecn::NotEct).unwrap();
        assert_eq!(receive(&mut Receiver::new(&back), &back).len(), 1);
        assert!(!sending.wait(Interest::Read, Duration::ZERO).unwrap(), "an error is still pending");
    }
}

#[test]
fn a_receiver_learns_of_a_refusal() {
    for addr in families() {
        let (sending, _) = to_closed_port(addr, Offload::Auto);
        sending.send(b"anyone?", 100, Ecn::NotEct).unwrap();
        let mut receiver = Receiver::new(&sending);
        assert!(sending.wait(Interest::Read, Duration::from_secs(5)).unwrap());
        assert!(matches!(receiver.recv(&sending), Err(RecvError::Refused)));
        assert!(matches!(receiver.recv(&sending), Err(RecvError::WouldBlock)));
        assert_eq!(sending.stats().refused, 1);
    }
}

#[test]
fn draining_clears_the_error() {
    let (sending, _) = to_closed_port(V4, Offload::Auto);
    sending.send(b"anyone?", 100, Ecn::NotEct).unwrap();
    assert!(sending.wait(Interest::Read, Duration::from_secs(5)).unwrap());
    assert_eq!(sending.drain_errors(), 1);
    assert_eq!(sending.drain_errors(), 0);
    sending.send(b"anyone?", 100, Ecn::NotEct).unwrap();
}

#[test]
fn a_partial_batch_reports_its_progress() {
    // On the loopback interface the error arrives before the next datagram of the same call.
    let (sending, _) = to_closed_port(V4, Offload::Off);
    let sent = sending.send(&pattern(5_000), 1_000, Ecn::NotEct).unwrap();
    assert!(sent.bytes < 5_000 && sent.bytes == sent.datagrams * 1_000, "{sent:?}");
    assert!(sending.stats().refused >= 1);
}

#[test]
fn a_listener_is_not_disturbed_by_dead_peers() {
    let (closed, _) = pair(V4, Offload::Auto);
    let addr = closed.local_addr().unwrap();
    drop(closed);
    let (sending, listener) = pair(V4, Offload::Auto);
    listener.send_to(b"too late", 100, Ecn::NotEct, addr).unwrap();
    sending.send(b"hello", 100, Ecn::NotEct).unwrap();
    let mut receiver = Receiver::new(&listener);
    // At most one error, then the received datagrams.
    let received = receiver.recv(&listener).or_else(|error| {
        assert!(matches!(error, RecvError::Refused), "{error:?}");
        receiver.recv(&listener)
    });
    assert_eq!(received.unwrap(), 1);
}

#[test]
fn segments_of_zero_bytes_are_refused() {
    let (sending, _receiving) = pair(V4, Offload::Auto);
    assert!(matches!(sending.send(b"x", 0, Ecn::NotEct), Err(SendError::Io(_))));
}

#[test]
fn binding_errors_have_hints() {
    let existing = bind(V4, &options(Offload::Auto));
    let error = UdpSocket::bind(existing.local_addr().unwrap(), &options(Offload::Auto)).unwrap_err();
    assert!(matches!(error, SocketError::Bind { .. }));
    assert!(error.to_string().contains("another program"), "{error}");
    let error = UdpSocket::bind("192.0.2.1:0".parse().unwrap(), &options(Offload::Auto)).unwrap_err();
    assert!(error.to_string().contains("ip address"), "{error}");
    assert!(existing.as_fd().try_clone_to_owned().is_ok());
}
