//! Datagrams from hosts without a key: at full speed, and with the client's own source address.

use std::net::UdpSocket;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use haul_base::Rng;
use socket2::{Domain, Protocol, Socket, Type};

use crate::support::{
    LIMIT, Mtu, Net, PORT, Running, Server, assert_same, assert_same_file, directory, file, haul, odd, until,
};

/// Random bytes that sometimes resemble a packet: a valid kind and a plausible packet number.
fn forged(rng: &mut Rng, bytes: &mut [u8]) {
    rng.fill(bytes);
    if let [kind, pn @ ..] = bytes {
        *kind = rng.below(8) as u8;
        let zeros = pn.len().min(4);
        pn[..zeros].fill(0);
    }
}

#[test]
fn a_flood_of_unauthenticated_packets_changes_nothing_and_gets_no_answer() {
    let Some(net) = Net::new(Mtu::Ethernet) else {
        return;
    };
    let stranger = net.stranger();
    let (here, root) = (directory(), directory());
    odd(here.path());
    file(&here.path().join("larger"), 3, 16_000_000);
    let server = Server::start(&net, root.path(), &[]);
    let (stop, sent) = (AtomicBool::new(false), AtomicU64::new(0));
    let flood = || {
        let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
        socket.connect((Net::SERVER_FOR_STRANGERS, PORT)).unwrap();
        socket.set_nonblocking(true).unwrap();
        let (mut rng, mut bytes) = (Rng::from_seed(5), [0; 1_472]);
        let mut answers = 0;
        while !stop.load(Ordering::Relaxed) {
            let size = rng.below(bytes.len() as u64 + 1) as usize;
            forged(&mut rng, &mut bytes[..size]);
            sent.fetch_add(u64::from(socket.send(&bytes[..size]).is_ok()), Ordering::Relaxed);
            answers += u64::from(socket.recv(&mut [0; 2_000]).is_ok());
        }
        answers
    };
    let answers = std::thread::scope(|scope| {
        let flooding = scope.spawn(|| stranger.enter(flood));
        until("the flood", || sent.load(Ordering::Relaxed) > 10_000);
        let mut command = haul(&net.client, ["cp"]);
        let outcome = Running::start(command.arg(here.path()).arg(server.at("tree"))).wait(LIMIT);
        stop.store(true, Ordering::Relaxed);
        outcome.exits(0);
        flooding.join().unwrap()
    });
    assert_eq!(answers, 0, "the server answered unauthenticated packets");
    assert_same(here.path(), &root.path().join("tree"));
}

/// Local ports of the UDP sockets connected to the server, in the calling thread's network namespace.
fn client_ports() -> Vec<u16> {
    let table = std::fs::read_to_string("/proc/thread-self/net/udp").unwrap_or_default();
    let port = |field: &str| u16::from_str_radix(field.split(':').nth(1)?, 16).ok();
    let row = |line: &str| {
        let mut fields = line.split_whitespace().skip(1);
        let (local, remote) = (port(fields.next()?)?, port(fields.next()?)?);
        (remote == PORT).then_some(local)
    };
    table.lines().skip(1).filter_map(row).collect()
}

/// A UDP datagram with its header, without a checksum, for a raw socket.
fn datagram(source: u16, payload: &[u8]) -> Vec<u8> {
    let length = (payload.len() + 8) as u16;
    let header = [source, PORT, length, 0].map(u16::to_be_bytes).concat();
    [&header, payload].concat()
}

#[test]
fn packets_spoofing_the_clients_address_change_nothing() {
    let Some(net) = Net::new(Mtu::Ethernet) else {
        return;
    };
    let (here, root) = (directory(), directory());
    let source = here.path().join("file");
    file(&source, 1, 24 << 20);
    let server = Server::start(&net, root.path(), &[]);
    let mut command = haul(&net.client, ["cp", "--rate", "100Mbit"]);
    let copy = Running::start(command.arg(&source).arg(server.at("copy")));
    until("a temporary file", || std::fs::read_dir(root.path()).unwrap().count() > 0);
    let injected = net.client.enter(|| {
        let ports = client_ports();
        assert!(!ports.is_empty(), "the client has no connected socket");
        let socket = Socket::new(Domain::IPV4, Type::RAW, Some(Protocol::UDP)).unwrap();
        let to: std::net::SocketAddr = format!("{}:{PORT}", Net::SERVER).parse().unwrap();
        let (mut rng, mut bytes) = (Rng::from_seed(6), [0; 1_400]);
        let mut injected = 0;
        for _ in 0..20_000 {
            let size = rng.below(bytes.len() as u64 + 1) as usize;
            forged(&mut rng, &mut bytes[..size]);
            for &port in &ports {
                injected += u64::from(socket.send_to(&datagram(port, &bytes[..size]), &to.into()).is_ok());
            }
        }
        injected
    });
    assert!(injected > 10_000, "{injected}");
    copy.wait(LIMIT).exits(0);
    assert_same_file(&source, &root.path().join("copy"));
}

/// TCP data that is not TLS, or a handshake that never completes, only costs that peer its connection.
#[test]
fn garbage_over_tcp_changes_nothing() {
    use std::io::Write;
    let Some(net) = Net::new(Mtu::Ethernet) else {
        return;
    };
    let (here, root) = (directory(), directory());
    let mut server = Server::start(&net, root.path(), &[]);
    net.client.enter(|| {
        let mut rng = Rng::from_seed(8);
        for _ in 0..50 {
            let mut stream = std::net::TcpStream::connect((Net::SERVER, PORT)).unwrap();
            let mut bytes = vec![0; rng.below(5_000) as usize];
            rng.fill(&mut bytes);
            // The server may have closed the connection by now.
            let _ = stream.write_all(&bytes);
        }
    });
    assert!(server.process.is_running());
    let source = here.path().join("file");
    file(&source, 1, 100_000);
    let url = server.at("copy");
    crate::support::run(&net.client, [Path::new("cp"), &source, Path::new(&url)]).exits(0);
    assert_same_file(&source, &root.path().join("copy"));
    assert!(!server.process.stderr().contains("panicked"), "{}", server.process.stderr());
}
