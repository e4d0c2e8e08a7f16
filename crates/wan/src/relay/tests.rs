use std::io::{Read, Write};
use std::net::{TcpStream, UdpSocket};
use std::time::{Duration, Instant};

use super::direction::tests::path;
use super::*;

/// 20 ms each way at 200 Mbit/s.
fn start(loss: f64, server: SocketAddr) -> Relay {
    Relay::start(&path(40, 200, loss), 3, server).unwrap()
}

/// Returns a server's TCP and UDP sockets on one port.
fn server() -> (TcpListener, UdpSocket) {
    loop {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        if let Ok(socket) = UdpSocket::bind(listener.local_addr().unwrap()) {
            socket.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
            return (listener, socket);
        }
    }
}

fn client(path: &Relay) -> UdpSocket {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.connect(path.address()).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    socket
}

#[test]
fn datagrams_of_two_clients_cross_both_ways_delayed_and_unchanged() {
    let (_listener, server) = server();
    let path = start(0.0, server.local_addr().unwrap());
    let clients = [client(&path), client(&path)];
    let started = Instant::now();
    for (number, client) in clients.iter().enumerate() {
        client.send(&vec![number as u8; 1_000 + number]).unwrap();
    }
    let mut buffer = [0; 2_000];
    for _ in &clients {
        let (len, from) = server.recv_from(&mut buffer).unwrap();
        assert!(started.elapsed() >= Duration::from_millis(20));
        server.send_to(&buffer[..len], from).unwrap();
    }
    for (number, client) in clients.iter().enumerate() {
        let len = client.recv(&mut buffer).unwrap();
        assert_eq!(buffer[..len], vec![number as u8; 1_000 + number]);
        assert!(started.elapsed() >= Duration::from_millis(40));
    }
    // The relay counts a packet after it has forwarded it.
    let deadline = Instant::now() + Duration::from_secs(60);
    while path.counts()[1].received.packets < 2 && Instant::now() < deadline {
        thread::yield_now();
    }
    let [up, down] = path.counts();
    assert_eq!((up.sent.packets, up.received.packets, up.drops.total()), (2, 2, 0));
    assert_eq!((down.sent.packets, down.received.bytes), (2, 2_001));
}

#[test]
fn every_datagram_is_delivered_or_counted_with_its_reason() {
    let (_listener, server) = server();
    let path = start(0.2, server.local_addr().unwrap());
    let client = client(&path);
    // In steps, so that no socket of the test overflows.
    let mut received = 0;
    let mut buffer = [0; 2_000];
    server.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
    for _ in 0..20 {
        for _ in 0..50 {
            client.send(&[7; 1_472]).unwrap();
        }
        client.send(&[7; 1_473]).unwrap();
        while server.recv(&mut buffer).is_ok() {
            received += 1;
        }
    }
    let deadline = Instant::now() + Duration::from_secs(60);
    let mut up = path.counts()[0];
    while (up.sent.packets, up.received.packets) != (1_020, received) && Instant::now() < deadline {
        received += u64::from(server.recv(&mut buffer).is_ok());
        up = path.counts()[0];
    }
    assert_eq!((up.sent.packets, up.drops.of(DropReason::TooLarge), up.overrun), (1_020, 20, 0));
    assert_eq!(up.received.packets, received);
    assert_eq!(up.received.packets + up.drops.total(), up.sent.packets);
    // 1,000 packets at 20 %: 200 expected, standard deviation 12.6; tolerance 5 standard deviations.
    assert!((137..263).contains(&up.drops.of(DropReason::Random)), "{up:?}");
}

#[test]
fn tcp_crosses_in_order_with_the_delay_and_closes_properly() {
    let (listener, udp) = server();
    let path = start(0.0, udp.local_addr().unwrap());
    let sent: Vec<u8> = (0..300_000u32).map(|i| (i % 251) as u8).collect();
    let expected = sent.clone();
    let echo = thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut all = Vec::new();
        stream.read_to_end(&mut all).unwrap();
        stream.write_all(&all).unwrap();
    });
    let started = Instant::now();
    let mut stream = TcpStream::connect(path.address()).unwrap();
    stream.write_all(&sent).unwrap();
    stream.shutdown(Shutdown::Write).unwrap();
    let mut back = Vec::new();
    stream.read_to_end(&mut back).unwrap();
    echo.join().unwrap();
    assert!(back == expected);
    // One round trip to connect, and one for the data.
    assert!(started.elapsed() >= Duration::from_millis(80));
}

#[test]
fn a_path_without_a_server_and_a_dropped_path_end_their_connections() {
    let (listener, udp) = server();
    let address = udp.local_addr().unwrap();
    drop((listener, udp));
    let path = start(0.0, address);
    let mut idle_client = TcpStream::connect(path.address()).unwrap();
    idle_client.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    assert!(!matches!(idle_client.read(&mut [0; 10]), Ok(1..)));

    let (listener, udp) = server();
    let path = start(0.0, udp.local_addr().unwrap());
    let mut stream = TcpStream::connect(path.address()).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let (_server_side, _) = listener.accept().unwrap();
    drop(path);
    assert!(!matches!(stream.read(&mut [0; 10]), Ok(1..)));
}
