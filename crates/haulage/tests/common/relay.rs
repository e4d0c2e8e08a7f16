//! A relay between clients and a server that loses chosen datagrams.

use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::{io, thread};

/// Starts a relay to `server` for one client: passes on all of its TCP connection, and those datagrams for
/// which `passes` returns true, given their source. Returns the port.
pub(crate) fn relay(
    server: SocketAddr,
    mut passes: impl FnMut(&[u8], SocketAddr) -> bool + Send + 'static,
) -> u16 {
    let (tcp, udp) = loop {
        let tcp = TcpListener::bind("127.0.0.1:0").unwrap();
        if let Ok(udp) = UdpSocket::bind(tcp.local_addr().unwrap()) {
            break (tcp, udp);
        }
    };
    let port = tcp.local_addr().unwrap().port();
    thread::spawn(move || {
        let mut here = tcp.accept().unwrap().0;
        let mut there = TcpStream::connect(server).unwrap();
        let (mut answers, mut to) = (there.try_clone().unwrap(), here.try_clone().unwrap());
        thread::spawn(move || io::copy(&mut answers, &mut to));
        let _ = io::copy(&mut here, &mut there);
    });
    thread::spawn(move || {
        let (mut client, mut datagram) = (server, vec![0; 65_536]);
        while let Ok((len, from)) = udp.recv_from(&mut datagram) {
            if from != server {
                client = from;
            }
            if passes(&datagram[..len], from) {
                let _ = udp.send_to(&datagram[..len], if from == server { client } else { server });
            }
        }
    });
    port
}
