//! The control channel breaks in the middle of a transfer.

use std::fs;
use std::io;
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::{Arc, Mutex};
use std::thread;

use crate::support::{Server, exits, haul, object};

const ANY: (Ipv4Addr, u16) = (Ipv4Addr::LOCALHOST, 0);

type Channels = Arc<Mutex<Vec<TcpStream>>>;

/// A proxy in front of the server at `port`: it forwards, and closes the control channels after this many
/// bytes of datagrams. Returns its own port.
fn relay(server: u16, cut_after: usize) -> u16 {
    let server = SocketAddr::from((Ipv4Addr::LOCALHOST, server));
    let (tcp, udp) = loop {
        let tcp = TcpListener::bind(ANY).unwrap();
        if let Ok(udp) = UdpSocket::bind(tcp.local_addr().unwrap()) {
            break (tcp, udp);
        }
    };
    let port = udp.local_addr().unwrap().port();
    let channels = Channels::default();
    let open = channels.clone();
    thread::spawn(move || {
        for client in tcp.incoming().map(Result::unwrap) {
            let there = TcpStream::connect(server).unwrap();
            carry(client.try_clone().unwrap(), there.try_clone().unwrap());
            carry(there, client.try_clone().unwrap());
            open.lock().unwrap().push(client);
        }
    });
    thread::spawn(move || carry_datagrams(&udp, server, &channels, cut_after));
    port
}

fn carry(mut from: TcpStream, mut to: TcpStream) {
    thread::spawn(move || {
        let _ = io::copy(&mut from, &mut to);
        let _ = to.shutdown(Shutdown::Both);
    });
}

fn carry_datagrams(udp: &UdpSocket, server: SocketAddr, channels: &Channels, cut_after: usize) {
    let there = UdpSocket::bind(ANY).unwrap();
    there.connect(server).unwrap();
    let client = Arc::new(Mutex::new(None::<SocketAddr>));
    let (to, known, from) = (udp.try_clone().unwrap(), client.clone(), there.try_clone().unwrap());
    thread::spawn(move || {
        let mut buffer = vec![0; 65_536];
        loop {
            let received = from.recv(&mut buffer);
            if let (Ok(len), Some(client)) = (received, *known.lock().unwrap()) {
                let _ = to.send_to(&buffer[..len], client);
            }
        }
    });
    let (mut passed, mut buffer) = (0, vec![0; 65_536]);
    while let Ok((len, from)) = udp.recv_from(&mut buffer) {
        *client.lock().unwrap() = Some(from);
        let _ = there.send(&buffer[..len]);
        passed += len;
        if passed >= cut_after {
            channels.lock().unwrap().drain(..).for_each(|channel| drop(channel.shutdown(Shutdown::Both)));
        }
    }
}

#[test]
fn a_copy_that_lost_its_peer_does_not_blame_storage() {
    let (dir, root) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let source = dir.path().join("source");
    fs::write(&source, vec![7; 300_000_000]).unwrap();
    let mut server = haul();
    server.args(["serve", "--listen", "127.0.0.1:0", "--root"]).arg(root.path());
    server.env("HAUL_DISK_RATE", "8000000").stdout(std::process::Stdio::piped());
    let server = Server::of(server.stderr(std::process::Stdio::null()).spawn().unwrap());
    let port = server.url.split(':').nth(2).and_then(|rest| rest.split('/').next()).unwrap();
    let relayed = relay(port.parse().unwrap(), 90_000_000).to_string();
    let output = haul()
        .args(["cp", "--json", "--rate", "800Mbit"])
        .arg(&source)
        .arg(server.at("copy").replacen(port, &relayed, 1))
        .output()
        .unwrap();
    exits(&output, 5);
    let report = object(&output);
    assert_eq!(report["error"]["code"], "control_lost", "{report}");
    let blamed = report["limited_by"].as_str().unwrap_or_default();
    assert!(report["bytes"].as_u64().unwrap() > 0 && !blamed.ends_with("_storage"), "{report}");
}
