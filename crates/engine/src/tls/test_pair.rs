//! Two ends of a TLS connection over loopback, for unit tests.

use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustls::pki_types::ServerName;
use rustls::{ClientConnection, Connection, ServerConnection};

use super::{BlockingWait, client_config, handshake, server_config};
use crate::identity::ServerIdentity;
use crate::wake::block_on;

/// A client and a server end whose handshake is complete.
pub(crate) fn pair() -> [(Connection, TcpStream); 2] {
    let identity = ServerIdentity::generate(None).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let tcp = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let config = client_config(identity.fingerprint()).unwrap();
    let name = ServerName::try_from("haul").unwrap();
    let client = ClientConnection::new(Arc::new(config), name).unwrap();
    let server = ServerConnection::new(Arc::new(server_config(&identity).unwrap())).unwrap();
    let peer = listener.accept().unwrap().0;
    let other = std::thread::spawn(move || complete(server.into(), peer));
    [complete(client.into(), tcp), other.join().unwrap()]
}

fn complete(mut tls: Connection, tcp: TcpStream) -> (Connection, TcpStream) {
    tcp.set_nonblocking(true).unwrap();
    block_on(handshake(&mut tls, &tcp, Instant::now() + Duration::from_secs(10), &BlockingWait)).unwrap();
    (tls, tcp)
}
