//! Traffic between the sides, and the counters.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use haul_testing::privileged;
use rustix::net::sockopt::set_socket_recv_buffer_size_force;
use rustix::process::Signal;
use serde_json::Value;

use crate::support::{A, B, Wan};

/// Receive buffer for everything that a test sends, however late it is read.
const ROOM: usize = 32 << 20;

/// Binds a socket with a short read timeout.
fn bind(address: &str, port: u16) -> UdpSocket {
    let socket = UdpSocket::bind((address, port)).unwrap();
    socket.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
    set_socket_recv_buffer_size_force(&socket, ROOM).unwrap();
    socket
}

/// Receives until sending is over and nothing has arrived for a second.
fn receive(socket: &UdpSocket, is_over: &AtomicBool, mut take: impl FnMut(&[u8], SocketAddr)) {
    let (mut buffer, mut looks) = (vec![0; 65_536], 0);
    while looks < 10 {
        let over = is_over.load(Ordering::Relaxed);
        match socket.recv_from(&mut buffer) {
            Ok((len, from)) => {
                take(&buffer[..len], from);
                looks = 0;
            }
            Err(_) => looks += u32::from(over),
        }
    }
}

/// A receiving thread on side B.
struct Receiver<T> {
    thread: JoinHandle<T>,
    is_over: Arc<AtomicBool>,
}

impl<T: Send + 'static> Receiver<T> {
    /// Starts `work`, which gets a socket and a flag that is set when sending is over.
    fn start(
        wan: &Wan,
        address: &'static str,
        port: u16,
        work: impl FnOnce(&UdpSocket, &AtomicBool) -> T + Send + 'static,
    ) -> Self {
        let is_over = Arc::new(AtomicBool::new(false));
        let ((ready, is_ready), over) = (channel(), is_over.clone());
        let thread = wan.on('b', move || {
            let socket = bind(address, port);
            ready.send(()).unwrap();
            work(&socket, &over)
        });
        is_ready.recv().unwrap();
        Self { thread, is_over }
    }

    /// Declares that sending is over, and returns the thread's result.
    fn end(self) -> T {
        self.is_over.store(true, Ordering::Relaxed);
        self.thread.join().unwrap()
    }
}

/// Echoes and counts datagrams on side B.
fn echo(wan: &Wan, address: &'static str) -> Receiver<u64> {
    Receiver::start(wan, address, 7, |socket, is_over| {
        let mut count = 0;
        receive(socket, is_over, |data, from| {
            socket.send_to(data, from).unwrap();
            count += 1;
        });
        count
    })
}

fn echo_over(local: &'static str, peer: &'static str, packets: u64) {
    let wan = Wan::start("--rtt 20ms");
    let server = echo(&wan, peer);
    let client = wan.on('a', move || {
        let socket = UdpSocket::bind((local, 0)).unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        socket.connect((peer, 7)).unwrap();
        for number in 0..20u8 {
            let (start, mut buffer) = (Instant::now(), [0; 2_000]);
            // Also longer than a packet: fragments must pass.
            let sent = vec![number; 100 + 80 * usize::from(number)];
            socket.send(&sent).unwrap();
            let len = socket.recv(&mut buffer).unwrap();
            assert_eq!(buffer[..len], sent);
            assert!(start.elapsed() >= Duration::from_millis(19), "{:?}", start.elapsed());
        }
    });
    client.join().unwrap();
    assert_eq!(server.end(), 20);
    let (status, counters) = wan.end(Signal::INT);
    assert!(status.success());
    for way in ["forth", "back"] {
        assert_eq!(counters[way]["sent"], counters[way]["received"]);
        assert_eq!(counters[way]["sent"]["packets"], packets, "{counters}");
    }
}

#[test]
fn an_echo_takes_the_round_trip_over_ipv4() {
    if privileged("an_echo_takes_the_round_trip_over_ipv4") {
        // Twenty datagrams, the last two of them in two fragments each.
        echo_over(A, B, 22);
    }
}

#[test]
fn an_echo_takes_the_round_trip_over_ipv6() {
    if privileged("an_echo_takes_the_round_trip_over_ipv6") {
        // With the longer headers, the third from the end also has two fragments.
        echo_over("fd00:201::1", "fd00:201::2", 23);
    }
}

/// Returns bytes that depend on the position.
fn pattern(at: usize) -> u8 {
    (at ^ at >> 8 ^ at >> 16).wrapping_mul(167) as u8
}

fn tcp_transfer(options: &str, bytes: usize) -> Value {
    let wan = Wan::start(options);
    let (ready, is_ready) = channel();
    let receiver = wan.on('b', move || {
        let listener = TcpListener::bind((B, 9)).unwrap();
        ready.send(()).unwrap();
        let mut got = Vec::with_capacity(bytes);
        listener.accept().unwrap().0.read_to_end(&mut got).unwrap();
        got
    });
    is_ready.recv().unwrap();
    let sender = wan.on('a', move || {
        let data: Vec<u8> = (0..bytes).map(pattern).collect();
        TcpStream::connect((B, 9)).unwrap().write_all(&data).unwrap();
    });
    sender.join().unwrap();
    let got = receiver.join().unwrap();
    assert_eq!(got.len(), bytes);
    assert!(got.iter().enumerate().all(|(at, byte)| *byte == pattern(at)));
    wan.end(Signal::TERM).1
}

#[test]
fn tcp_is_byte_exact_through_loss_and_reordering() {
    if privileged("tcp_is_byte_exact_through_loss_and_reordering") {
        let counters = tcp_transfer("--rtt 2ms --loss 0.2% --reorder 1%:1ms --seed 1", 50_000_000);
        assert!(counters["forth"]["drops"]["random"].as_u64().unwrap() > 0, "{counters}");
        // Super-packets arrived whole: fewer buffers than packets.
        let sent = &counters["forth"]["sent"];
        assert!(sent["buffers"].as_u64().unwrap() < sent["packets"].as_u64().unwrap(), "{sent}");
    }
}

#[test]
fn tcp_is_byte_exact_through_a_bottleneck_with_a_managed_queue() {
    if privileged("tcp_is_byte_exact_through_a_bottleneck_with_a_managed_queue") {
        tcp_transfer("--rtt 4ms --rate 200Mbit --aqm codel", 10_000_000);
        tcp_transfer("--rtt 4ms --rate 200Mbit --no-offload", 10_000_000);
    }
}

/// Sends datagrams from A to B. Returns how many arrived.
fn send(wan: &Wan, count: u64, len: usize) -> u64 {
    let receiver = Receiver::start(wan, B, 9, move |socket, is_over| {
        let mut count = 0;
        receive(socket, is_over, |data, _| {
            assert_eq!(data.len(), len);
            count += 1;
        });
        count
    });
    let sender = wan.on('a', move || {
        let socket = UdpSocket::bind((A, 0)).unwrap();
        for number in 0..count {
            socket.send_to(&vec![number as u8; len], (B, 9)).unwrap();
            // Pauses after every 20 datagrams, so that no queue overflows on a slow machine.
            if number % 20 == 0 {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    });
    sender.join().unwrap();
    receiver.end()
}

#[test]
fn every_packet_is_accounted_for_with_its_reason() {
    if !privileged("every_packet_is_accounted_for_with_its_reason") {
        return;
    }
    let wan = Wan::start(
        "--rtt 4ms --rate 50Mbit --queue 15p --loss 2% --duplicate 2% --corrupt 2% --reorder 2% --jitter 1ms",
    );
    let arrived = send(&wan, 5_000, 1_000);
    let (_, counters) = wan.end(Signal::TERM);
    let forth = &counters["forth"];
    let number = |value: &Value| value.as_u64().unwrap();
    assert_eq!(number(&forth["sent"]["packets"]), 5_000);
    for reason in ["random", "queue_full"] {
        assert!(number(&forth["drops"][reason]) > 0, "{forth}");
    }
    assert!(number(&forth["copies"]) > 0 && number(&forth["damaged"]) > 0, "{forth}");
    // The receiving kernel detects every bit error by the checksum; copies of damaged packets are damaged
    // too.
    let received = number(&forth["received"]["packets"]);
    let damaged = number(&forth["damaged"]);
    assert!(arrived <= received - damaged && arrived + 2 * damaged >= received, "{arrived} {forth}");
}

#[test]
fn the_drop_log_lists_each_missing_packet() {
    if !privileged("the_drop_log_lists_each_missing_packet") {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let log = directory.path().join("drops");
    let options =
        format!("--rtt 4ms --rate 50Mbit --queue 15p --loss 2% --corrupt 2% --drop-log {}", log.display());
    let wan = Wan::start(&options);
    let receiver = Receiver::start(&wan, B, 9, |socket, is_over| {
        let mut numbers = BTreeSet::new();
        receive(socket, is_over, |data, _| {
            numbers.insert(u64::from_be_bytes(*data.first_chunk().unwrap()));
        });
        numbers
    });
    let sender = wan.on('a', || {
        let socket = UdpSocket::bind((A, 0)).unwrap();
        for number in 0..5_000u64 {
            socket.send_to(&[&number.to_be_bytes()[..], &[7; 992]].concat(), (B, 9)).unwrap();
            if number % 20 == 0 {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    });
    sender.join().unwrap();
    let arrived = receiver.end();
    let (_, counters) = wan.end(Signal::TERM);
    let text = std::fs::read_to_string(&log).unwrap();
    let mut dropped = BTreeSet::new();
    for line in text.lines() {
        let words: Vec<&str> = line.split(' ').collect();
        let [time, "forth", "queue_full" | "random" | "corrupted", "udp", _, "9", payload] = words[..] else {
            panic!("{line}")
        };
        assert!(time.parse::<f64>().unwrap() < 60.0, "{line}");
        dropped.insert(u64::from_str_radix(payload, 16).unwrap());
    }
    for reason in ["queue_full", "random", "corrupted"] {
        assert!(text.contains(reason), "{counters}");
    }
    let missing: BTreeSet<u64> = (0..5_000).filter(|number| !arrived.contains(number)).collect();
    assert_eq!(dropped, missing);
}

#[test]
fn a_path_changes_while_it_runs() {
    if !privileged("a_path_changes_while_it_runs") {
        return;
    }
    let wan = Wan::start("--rate 100Mbit --change 0s:loss-back=50%");
    let stream = UnixStream::connect(wan.socket()).unwrap();
    let mut answers = BufReader::new(stream.try_clone().unwrap());
    let mut request = |question: &str| {
        writeln!(&stream, "{question}").unwrap();
        let mut line = String::new();
        answers.read_line(&mut line).unwrap();
        serde_json::from_str::<Value>(&line).unwrap()
    };
    assert_eq!(send(&wan, 100, 200), 100);
    assert_eq!(request("set loss-forth=100%")["ok"], true);
    assert_eq!(send(&wan, 100, 200), 0);
    assert_eq!(request("stage forth loss {\"share\": \"0%\"}")["ok"], true);
    assert_eq!(request("set rate=50Mbit")["ok"], true);
    assert_eq!(send(&wan, 100, 200), 100);
    assert_eq!(request("counters")["forth"]["drops"]["random"], 100);
    assert!(request("set jitter=1ms")["error"].as_str().unwrap().contains("jitter"));
    assert!(request("set colour=red")["error"].as_str().unwrap().contains("burst-loss"));
    let (_, counters) = wan.end(Signal::TERM);
    assert_eq!(counters["forth"]["drops"]["random"], 100);
    assert_eq!(counters["changes"].as_array().unwrap().len(), 4, "{}", counters["changes"]);
    assert_eq!(counters["back"]["stages"][2]["name"], "loss");
}

#[test]
fn loads_and_cross_traffic_run_beside_a_command() {
    if !privileged("loads_and_cross_traffic_run_beside_a_command") {
        return;
    }
    let wan = Wan::start(
        "--rtt 4ms --rate 100Mbit --burners 1 --generator --background cubic --background bbr --background udp:5Mbit",
    );
    std::thread::sleep(Duration::from_secs(5));
    let (_, counters) = wan.end(Signal::TERM);
    let flows = counters["background"].as_array().unwrap();
    assert_eq!(flows.len(), 3);
    assert!(flows.iter().all(|flow| flow["received_bytes"].as_u64().unwrap() > 0), "{flows:?}");
    assert!(!counters["load"].as_array().unwrap().is_empty());
}
