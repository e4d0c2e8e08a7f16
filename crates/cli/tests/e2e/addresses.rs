//! Path validation (RFC 9000, sections 8 and 9): replaying a client's packets from another address does not
//! redirect the server's data. Until the new address has answered, the server sends it at most 3 times the
//! bytes received from it.

use std::io::{Read, Write};
use std::net::UdpSocket;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use socket2::{Domain, Protocol, Socket, Type};

use crate::pipes::{finish, listen, start};
use crate::support::{
    Host, LIMIT, Mtu, Net, PORT, Running, Server, assert_same_file, directory, file, haul, until,
};

/// Drops all UDP from the client.
const FROM_CLIENT: &str = "-i link0 -p udp -j DROP";
/// `ETH_P_ALL` from `linux/if_ether.h`.
const ALL_FRAMES: u16 = 3;

/// The payload of an Ethernet frame that carries a UDP datagram over IPv4 to the server's port.
fn to_server(frame: &[u8]) -> Option<&[u8]> {
    let (ethernet, packet) = frame.split_at_checked(14)?;
    let header = usize::from(packet.first()? & 15) * 4;
    let (ip, udp) = packet.split_at_checked(header)?;
    let is_udp = ethernet[12..] == [8, 0] && ip.get(9) == Some(&17);
    let payload = udp.get(8..)?;
    (is_udp && udp[2..4] == PORT.to_be_bytes()).then_some(payload)
}

/// Captures all datagrams from a host to the server. Ends when dropped.
struct Eavesdropper {
    received: Arc<Mutex<Vec<Vec<u8>>>>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Eavesdropper {
    fn on(host: &Host) -> Self {
        let protocol = Protocol::from(i32::from(ALL_FRAMES.to_be()));
        let socket = host.enter(|| Socket::new(Domain::PACKET, Type::RAW, Some(protocol)).unwrap());
        socket.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
        let (received, stop) = (Arc::new(Mutex::new(Vec::new())), Arc::new(AtomicBool::new(false)));
        let (into, ended) = (received.clone(), stop.clone());
        let listen = move || {
            let mut frame = vec![0; 1 << 16];
            while !ended.load(Ordering::Relaxed) {
                let Ok(len) = (&socket).read(&mut frame) else { continue };
                into.lock().unwrap().extend(to_server(&frame[..len]).map(<[u8]>::to_vec));
            }
        };
        Self { received, stop, thread: Some(std::thread::spawn(listen)) }
    }

    /// Waits for `count` new packets and returns them.
    fn next(&self, count: usize) -> Vec<Vec<u8>> {
        self.received.lock().unwrap().clear();
        until("packets of the client", || self.received.lock().unwrap().len() >= count);
        self.received.lock().unwrap().split_off(0)
    }
}

impl Drop for Eavesdropper {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

/// A host on another link to the server that replays captured packets.
struct Victim {
    socket: UdpSocket,
    sent: usize,
    received: usize,
}

impl Victim {
    fn on(host: &Host) -> Self {
        let socket = host.enter(|| UdpSocket::bind("0.0.0.0:0").unwrap());
        socket.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
        Self { socket, sent: 0, received: 0 }
    }

    /// Replays `copies`, and waits a moment for an answer.
    fn sends(&mut self, copies: &[Vec<u8>]) {
        for copy in copies {
            self.sent += self.socket.send_to(copy, (Net::SERVER_FOR_STRANGERS, PORT)).unwrap();
        }
        self.received += self.socket.recv(&mut vec![0; 1 << 16]).unwrap_or(0);
    }

    /// Sends copies until one is answered.
    fn sends_until_answered(&mut self, copies: impl Fn() -> Vec<Vec<u8>>) {
        until("an answer to a copy", || {
            if self.received == 0 {
                self.sends(&copies());
            }
            self.received > 0
        });
    }

    /// Receives until nothing arrives for a moment.
    fn take(&mut self) {
        let mut buffer = vec![0; 1 << 16];
        self.received += std::iter::from_fn(|| self.socket.recv(&mut buffer).ok()).sum::<usize>();
    }

    fn assert_little(&self) {
        let Self { sent, received, .. } = self;
        assert!(*received > 0, "the server did not answer the replayed packets");
        assert!(
            *received <= 3 * *sent,
            "{received} bytes to an address that has sent {sent} bytes and answered no challenge"
        );
    }
}

#[test]
fn a_copied_challenge_does_not_redirect_a_download() {
    let Some(net) = Net::new(Mtu::Ethernet) else {
        return;
    };
    let stranger = net.stranger();
    let (here, root) = (directory(), directory());
    file(&root.path().join("file"), 1, 16_000_000);
    let server = Server::start(&net, root.path(), &[]);
    let (eavesdropper, mut victim) = (Eavesdropper::on(&net.client), Victim::on(&stranger));
    net.server.firewall("-A", FROM_CLIENT);
    let got = here.path().join("got");
    let copy = Running::start(haul(&net.client, ["cp"]).arg(server.at("file")).arg(&got));
    let challenges = eavesdropper.next(1);
    for _ in 0..3 {
        victim.sends(&challenges);
    }
    victim.sends_until_answered(|| challenges.clone());
    // At once: the client waits for an answer for a few seconds only.
    net.server.firewall("-D", FROM_CLIENT);
    victim.take();
    victim.assert_little();
    copy.wait(LIMIT).exits(0);
    assert_same_file(&root.path().join("file"), &got);
    victim.take();
    victim.assert_little();
}

#[test]
fn copied_packets_do_not_redirect_a_connection() {
    let Some(net) = Net::new(Mtu::Ethernet) else {
        return;
    };
    let stranger = net.stranger();
    let place = directory();
    let mut listening = listen(&net, place.path(), &["--reverse"]);
    let mut command = haul(&net.client, ["pipe", "--preset", "msg", "--reverse"]);
    let mut client = start(command.arg(&listening.url));
    let (mut stdin, mut stdout) = (listening.child.stdin.take().unwrap(), client.stdout.take().unwrap());
    let mut first = [0; 6];
    stdin.write_all(b"first\n").unwrap();
    stdout.read_exact(&mut first).unwrap();
    assert_eq!(&first, b"first\n");
    let reading = std::thread::spawn(move || {
        let mut rest = Vec::new();
        stdout.read_to_end(&mut rest).map(|_| rest)
    });
    let (eavesdropper, mut victim) = (Eavesdropper::on(&net.client), Victim::on(&stranger));
    net.server.firewall("-A", FROM_CLIENT);
    let line = [&[b'x'; 999][..], b"\n"].concat();
    // Unacknowledged data is retransmitted to the current address. The connection would time out after 12 s
    // without a packet.
    stdin.write_all(&line.repeat(300)).unwrap();
    for count in [3, 1, 1] {
        victim.sends(&eavesdropper.next(count));
    }
    victim.sends_until_answered(|| eavesdropper.next(1));
    net.server.firewall("-D", FROM_CLIENT);
    victim.take();
    victim.assert_little();
    drop(stdin);
    let (code, _, stderr) = finish(listening.child);
    assert_eq!(code, 0, "{stderr}");
    assert!(reading.join().unwrap().unwrap() == line.repeat(300));
    assert_eq!(finish(client).0, 0);
    victim.take();
    victim.assert_little();
}
