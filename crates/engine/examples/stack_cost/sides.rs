//! Sender and receiver on real sockets.

use std::error::Error;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use haul_base::{Ecn, Machine, Received, Time};
use haul_stack::{SendError as Refused, SendOptions, Stack};
use haul_udp::{Full, Interest, Options as SocketOptions, Receiver, RecvError, SendError, UdpSocket};

use crate::extra::{Counter, stack};
use crate::hand::{HandSender, read};
use crate::{Messages, Mode, Options};

/// The receiver ends when nothing has come for so long.
const QUIET: Duration = Duration::from_secs(1);
const SLOT: usize = 65_507;

enum Reading {
    Hand(u64),
    Stack(Box<Stack>, Counter),
}

impl Reading {
    fn bytes(&self) -> u64 {
        match self {
            Self::Hand(bytes) => *bytes,
            Self::Stack(_, counter) => counter.0.load(Ordering::Relaxed),
        }
    }
}

/// Receives until nothing comes, and prints Gbit/s of message bytes.
pub(crate) fn receive(mode: Mode, options: &Options) -> Result<(), Box<dyn Error>> {
    let socket = UdpSocket::bind(options.addr, &SocketOptions::default())?;
    let mut reading = match mode {
        Mode::Hand => Reading::Hand(0),
        Mode::Stack(extra) => {
            let counter = Counter::default();
            Reading::Stack(Box::new(stack(extra, None, counter.clone())?), counter)
        }
    };
    let mut receiver = Receiver::new(&socket);
    while !socket.wait(Interest::Read, Duration::from_secs(3_600))? {}
    let start = Instant::now();
    let end = loop {
        match receiver.recv(&socket) {
            Ok(_) => {
                for batch in receiver.datagrams() {
                    take(&mut reading, batch.data, batch.stride, start);
                }
            }
            Err(RecvError::WouldBlock) => {
                let idle = Instant::now();
                if !socket.wait(Interest::Read, QUIET)? {
                    break idle;
                }
            }
            Err(error) if error.is_fatal() => return Err(error.into()),
            Err(_) => {}
        }
    };
    let seconds = (end - start).as_secs_f64();
    println!(
        "{{\"gbit_per_s\":{:.4},\"bytes\":{}}}",
        reading.bytes() as f64 * 8e-9 / seconds,
        reading.bytes()
    );
    Ok(())
}

fn take(reading: &mut Reading, data: &mut [u8], stride: usize, start: Instant) {
    match reading {
        Reading::Hand(bytes) => *bytes += read(data, stride),
        Reading::Stack(stack, _) => {
            let path = haul_base::PathId::default();
            let mut received =
                Received { data, stride, arrival: None, path, ecn: Ecn::NotEct, socket_drops: None };
            stack.on_receive(since(start), &mut received);
        }
    }
}

fn since(start: Instant) -> Time {
    Time::from_nanos(start.elapsed().as_nanos() as u64)
}

enum Writing {
    Hand(HandSender),
    Stack(Box<Stack>, Messages),
}

/// Sends as fast as the socket takes it.
pub(crate) fn send(mode: Mode, options: &Options) -> Result<(), Box<dyn Error>> {
    let any: IpAddr = Ipv4Addr::UNSPECIFIED.into();
    let mut socket = UdpSocket::bind(SocketAddr::new(any, 0), &SocketOptions::default())?;
    socket.connect(options.addr)?;
    let mut writing = match mode {
        Mode::Hand => Writing::Hand(HandSender::default()),
        Mode::Stack(extra) => {
            Writing::Stack(Box::new(stack(extra, Some(options.size), Counter::default())?), extra.messages)
        }
    };
    let message = vec![0x5a; options.size];
    let mut slot = vec![0x5a; SLOT];
    let start = Instant::now();
    while start.elapsed() < options.time {
        let (len, stride) = match &mut writing {
            Writing::Hand(hand) => hand.fill(&mut slot, options.size),
            Writing::Stack(stack, messages) => {
                let now = since(start);
                if *messages != Messages::Pulled {
                    push(stack, now, &message)?;
                }
                let transmit = stack.poll_transmit(now, &mut slot).ok_or("the stack has nothing to send")?;
                (transmit.len, transmit.segment_size)
            }
        };
        put(&mut socket, &slot[..len], stride)?;
    }
    Ok(())
}

/// Keeps the queue filled with a few batches.
fn push(stack: &mut Stack, now: Time, message: &[u8]) -> Result<(), Box<dyn Error>> {
    while stack.queued_bytes() < 2 * SLOT + message.len() {
        match stack.send(now, message, SendOptions::default()) {
            Ok(_) => {}
            Err(Refused::Full(_)) => break,
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

fn put(socket: &mut UdpSocket, slot: &[u8], stride: usize) -> Result<(), Box<dyn Error>> {
    loop {
        match socket.send(slot, stride, Ecn::NotEct) {
            Ok(_) => return Ok(()),
            Err(SendError::WouldBlock(Full::SocketBuffer)) => {
                socket.wait(Interest::Write, QUIET)?;
            }
            Err(SendError::WouldBlock(Full::LocalQueue)) => std::thread::yield_now(),
            Err(error) if error.is_fatal() => return Err(error.into()),
            Err(_) => std::thread::sleep(Duration::from_millis(1)),
        }
    }
}
