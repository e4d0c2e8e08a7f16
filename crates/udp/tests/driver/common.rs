//! Pairs of sockets on the loopback interface.

use std::net::SocketAddr;
use std::time::Duration;

use haul_base::{Bytes, Ecn};
use haul_udp::{Arrival, Interest, Offload, Options, Receiver, RecvError, UdpSocket};

pub(crate) const V4: &str = "127.0.0.1:0";
const V6: &str = "[::1]:0";

/// Both address families, or only IPv4 on a machine without IPv6.
pub(crate) fn families() -> impl Iterator<Item = &'static str> {
    [V4, V6].into_iter().filter(|addr| *addr == V4 || std::net::UdpSocket::bind(addr).is_ok())
}

/// Options with buffers that every machine grants.
pub(crate) fn options(offload: Offload) -> Options {
    Options { recv_buffer: Bytes(200_000), send_buffer: Bytes(200_000), offload, ..Options::default() }
}

pub(crate) fn bind(addr: &str, options: &Options) -> UdpSocket {
    UdpSocket::bind(addr.parse().expect("a literal"), options).expect("loopback is there")
}

/// A sender connected to a receiver.
pub(crate) fn pair(addr: &str, offload: Offload) -> (UdpSocket, UdpSocket) {
    let receiving = bind(addr, &options(offload));
    let sending = bind(addr, &options(offload));
    sending.connect(receiving.local_addr().expect("bound")).expect("loopback is there");
    (sending, receiving)
}

/// One received message, copied.
#[derive(Clone, Debug)]
pub(crate) struct Message {
    pub(crate) datagrams: Vec<Vec<u8>>,
    pub(crate) source: SocketAddr,
    pub(crate) ecn: Ecn,
    pub(crate) arrival: Option<Arrival>,
    pub(crate) drops: Option<u32>,
}

/// Returns everything that is queued; waits for the first message.
pub(crate) fn receive(receiver: &mut Receiver, socket: &UdpSocket) -> Vec<Message> {
    socket.wait(Interest::Read, Duration::from_secs(5)).expect("poll works");
    let mut messages = Vec::new();
    loop {
        match receiver.recv(socket) {
            Ok(_) => messages.extend(receiver.datagrams().map(|mut batch| {
                let count = batch.count();
                let datagrams: Vec<_> = batch.iter_mut().map(|datagram| datagram.to_vec()).collect();
                assert!(datagrams.is_empty() || datagrams.len() == count);
                let (source, ecn, arrival, drops) = (batch.source, batch.ecn, batch.arrival, batch.drops);
                Message { datagrams, source, ecn, arrival, drops }
            })),
            Err(RecvError::WouldBlock) => return messages,
            Err(error) => panic!("{error}"),
        }
    }
}

/// Returns bytes that depend on their position.
pub(crate) fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i % 251) as u8).collect()
}
