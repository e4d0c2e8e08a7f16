//! Sender and receiver on real sockets.

use std::error::Error;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use haul_base::{Ecn, Machine, Received, Time};
use haul_stack::{SendError as Refused, SendOptions, Stack};
use haul_udp::{FullQueue, Interest, Options, SendError, UdpSocket};

use super::extra::{Counter, stack};
use super::hand::{HandWrittenSender, read};
use super::modes::{Messages, Mode};

/// Maximum wait for a full socket before it is tried again.
const QUIET: Duration = Duration::from_secs(1);
const SLOT: usize = 65_507;

/// The reading end.
pub(super) enum Reading {
    HandWritten(u64),
    Stack(Box<Stack>, Counter),
}

impl Reading {
    pub(super) fn new(mode: Mode) -> Result<Self, Box<dyn Error>> {
        let Mode::Stack(extra) = mode else { return Ok(Self::HandWritten(0)) };
        let counter = Counter::default();
        Ok(Self::Stack(Box::new(stack(extra, None, counter.clone())?), counter))
    }

    /// Returns the message bytes received.
    pub(super) fn bytes(&self) -> u64 {
        match self {
            Self::HandWritten(bytes) => *bytes,
            Self::Stack(_, counter) => counter.0.load(Ordering::Relaxed),
        }
    }

    pub(super) fn take(&mut self, data: &mut [u8], stride: usize, start: Instant) {
        match self {
            Self::HandWritten(bytes) => *bytes += read(data, stride),
            Self::Stack(stack, _) => {
                let path = haul_base::PathId::default();
                let mut received =
                    Received { data, stride, arrival: None, path, ecn: Ecn::NotEct, socket_drops: None };
                stack.on_receive(since(start), &mut received);
            }
        }
    }
}

fn since(start: Instant) -> Time {
    Time::from_nanos(start.elapsed().as_nanos() as u64)
}

enum Writing {
    HandWritten(HandWrittenSender),
    Stack(Box<Stack>, Messages),
}

/// Sends to one address.
pub(super) struct Sending {
    socket: UdpSocket,
    writing: Writing,
    message: Vec<u8>,
    slot: Vec<u8>,
}

impl Sending {
    pub(super) fn new(mode: Mode, to: SocketAddr, size: usize) -> Result<Self, Box<dyn Error>> {
        let any: IpAddr = Ipv4Addr::UNSPECIFIED.into();
        let socket = UdpSocket::bind(SocketAddr::new(any, 0), &Options::default())?;
        socket.connect(to)?;
        let writing = match mode {
            Mode::HandWritten => Writing::HandWritten(HandWrittenSender::default()),
            Mode::Stack(extra) => {
                Writing::Stack(Box::new(stack(extra, Some(size), Counter::default())?), extra.messages)
            }
        };
        Ok(Self { socket, writing, message: vec![0x5a; size], slot: vec![0x5a; SLOT] })
    }

    /// Sends for `time` as fast as the socket accepts packets. The stack's time counts from `start`.
    pub(super) fn run(&mut self, start: Instant, time: Duration) -> Result<(), Box<dyn Error>> {
        let begin = Instant::now();
        while begin.elapsed() < time {
            let (len, stride) = match &mut self.writing {
                Writing::HandWritten(hand) => hand.fill(&mut self.slot, self.message.len()),
                Writing::Stack(stack, messages) => {
                    let now = since(start);
                    if *messages != Messages::Pulled {
                        push(stack, now, &self.message)?;
                    }
                    let transmit = stack.poll_transmit(now, &mut self.slot);
                    let transmit = transmit.ok_or("the stack has nothing to send")?;
                    (transmit.len, transmit.segment_size)
                }
            };
            send_batch(&mut self.socket, &self.slot[..len], stride)?;
        }
        Ok(())
    }
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

fn send_batch(socket: &mut UdpSocket, slot: &[u8], stride: usize) -> Result<(), Box<dyn Error>> {
    loop {
        match socket.send(slot, stride, Ecn::NotEct) {
            Ok(_) => return Ok(()),
            Err(SendError::WouldBlock(FullQueue::SocketBuffer)) => {
                socket.wait(Interest::Write, QUIET)?;
            }
            Err(SendError::WouldBlock(FullQueue::LocalQueue)) => std::thread::yield_now(),
            Err(error) if error.is_fatal() => return Err(error.into()),
            Err(_) => std::thread::sleep(Duration::from_millis(1)),
        }
    }
}
