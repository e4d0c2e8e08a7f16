//! Simulated bad network for tests (feature `faults`, never in a release): datagrams between a machine and
//! its socket are dropped, duplicated, reordered, corrupted, truncated and replayed, as determined by a seed.
//!
//! `HAUL_FAULTS="loss=0.01,duplicate=0.02,reorder=0.05,corrupt=0.01,truncate=0.005,replay=0.01,seed=7"`
//! enables it for the sockets of sessions; omitted faults do not occur.

use std::collections::VecDeque;

use haul_base::{Ecn, Rng};

use crate::{FullQueue, Method, SendError, Sent, UdpSocket};

const VARIABLE: &str = "HAUL_FAULTS";
/// Maximum number of datagrams that overtake a delayed one.
const MAX_HOLD: u64 = 64;
/// Number of datagrams kept for replay: some older than any in flight.
const MAX_REPLAY: usize = 512;
/// Maximum number of runs queued for the kernel; the socket then counts as full.
const MAX_QUEUE: usize = 4;
/// The longest UDP message over IPv4.
const MAX_MESSAGE: usize = 65_507;

/// Probability of each fault per datagram.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct FaultPlan {
    loss: f64,
    duplicate: f64,
    reorder: f64,
    corrupt: f64,
    truncate: f64,
    replay: f64,
    seed: u64,
}

impl FaultPlan {
    fn parse(text: &str) -> Result<Self, String> {
        let mut plan = Self::default();
        for item in text.split(',').map(str::trim).filter(|item| !item.is_empty()) {
            let (key, value) = item.split_once('=').ok_or_else(|| format!("`{item}` is not KEY=VALUE"))?;
            if key == "seed" {
                plan.seed = value.parse().map_err(|_| format!("`{value}` is no seed"))?;
            } else {
                *plan.share(key).ok_or_else(|| format!("there is no fault `{key}`"))? = probability(value)?;
            }
        }
        Ok(plan)
    }

    fn share(&mut self, key: &str) -> Option<&mut f64> {
        match key {
            "loss" => Some(&mut self.loss),
            "duplicate" => Some(&mut self.duplicate),
            "reorder" => Some(&mut self.reorder),
            "corrupt" => Some(&mut self.corrupt),
            "truncate" => Some(&mut self.truncate),
            "replay" => Some(&mut self.replay),
            _ => None,
        }
    }
}

fn probability(value: &str) -> Result<f64, String> {
    let parsed: f64 = value.parse().map_err(|_| format!("`{value}` is no number"))?;
    if (0.0..=1.0).contains(&parsed) { Ok(parsed) } else { Err(format!("{value} is no probability")) }
}

/// Datagrams of one size (the last may be shorter), sent in one system call.
#[derive(Debug, PartialEq, Eq)]
struct Run {
    bytes: Vec<u8>,
    segment: usize,
}

impl Run {
    fn matches(&self, datagram: &[u8]) -> bool {
        self.bytes.len().is_multiple_of(self.segment)
            && datagram.len() <= self.segment
            && self.bytes.len() + datagram.len() <= MAX_MESSAGE
    }
}

#[derive(Debug)]
struct HeldDatagram {
    datagram: Vec<u8>,
    /// Number of datagrams still to overtake it.
    passes: u64,
}

/// Applies faults to datagrams before a socket sends them.
#[derive(Debug)]
pub struct Faults {
    plan: FaultPlan,
    rng: Rng,
    held: VecDeque<HeldDatagram>,
    replayable: VecDeque<Vec<u8>>,
    queue: VecDeque<Run>,
}

impl Faults {
    fn new(plan: FaultPlan) -> Self {
        let (held, replayable, queue) = (VecDeque::new(), VecDeque::new(), VecDeque::new());
        Self { plan, rng: Rng::from_seed(plan.seed), held, replayable, queue }
    }

    /// Applies faults to one datagram; the result is queued now or later.
    fn pass(&mut self, datagram: &[u8]) {
        self.release();
        self.keep_for_replay(datagram);
        let plan = self.plan;
        if self.rng.chance(plan.replay) {
            let old = self.rng.below(self.replayable.len() as u64) as usize;
            let old = self.replayable[old].clone();
            self.emit(&old);
        }
        if self.rng.chance(plan.loss) {
            return;
        }
        let mut datagram = datagram.to_vec();
        if self.rng.chance(plan.corrupt) {
            self.flip_random_bit(&mut datagram);
        }
        if self.rng.chance(plan.truncate) {
            datagram.truncate(self.rng.below(datagram.len() as u64) as usize);
        }
        if self.rng.chance(plan.duplicate) {
            self.emit(&datagram);
        }
        if self.rng.chance(plan.reorder) {
            let passes = 1 + self.rng.below(MAX_HOLD);
            self.held.push_back(HeldDatagram { datagram, passes });
        } else {
            self.emit(&datagram);
        }
    }

    fn flip_random_bit(&mut self, datagram: &mut [u8]) {
        let bit = self.rng.below(8 * datagram.len() as u64) as usize;
        if let Some(byte) = datagram.get_mut(bit / 8) {
            *byte ^= 1 << (bit % 8);
        }
    }

    fn keep_for_replay(&mut self, datagram: &[u8]) {
        if self.plan.replay > 0.0 {
            if self.replayable.len() == MAX_REPLAY {
                self.replayable.pop_front();
            }
            self.replayable.push_back(datagram.to_vec());
        }
    }

    /// Emits the delayed datagrams that are due.
    fn release(&mut self) {
        for held in &mut self.held {
            held.passes -= 1;
        }
        while let Some(index) = self.held.iter().position(|held| held.passes == 0) {
            if let Some(held) = self.held.remove(index) {
                self.emit(&held.datagram);
            }
        }
    }

    fn emit(&mut self, datagram: &[u8]) {
        match self.queue.back_mut() {
            // A GSO batch cannot contain empty datagrams.
            _ if datagram.is_empty() => {}
            Some(run) if run.matches(datagram) => run.bytes.extend_from_slice(datagram),
            _ => self.queue.push_back(Run { bytes: datagram.to_vec(), segment: datagram.len() }),
        }
    }
}

impl Faults {
    /// Parses `HAUL_FAULTS`; logs what it enables, or why it is ignored.
    pub fn from_environment() -> Option<Self> {
        let text = std::env::var(VARIABLE).ok()?;
        match FaultPlan::parse(&text) {
            Ok(plan) => {
                tracing::warn!("{VARIABLE}: this process damages what it sends: {plan:?}");
                Some(Self::new(plan))
            }
            Err(error) => {
                tracing::error!("{VARIABLE} is ignored: {error}");
                None
            }
        }
    }

    /// Like [`UdpSocket::send`], with faults. Delayed datagrams are lost if nothing more is sent.
    ///
    /// # Errors
    /// As [`UdpSocket::send`].
    pub fn send(
        &mut self,
        socket: &UdpSocket,
        data: &[u8],
        segment_size: usize,
        ecn: Ecn,
    ) -> Result<Sent, SendError> {
        self.flush(socket, segment_size, ecn)?;
        if self.queue.len() >= MAX_QUEUE {
            return Err(SendError::WouldBlock(FullQueue::SocketBuffer));
        }
        let mut datagrams = 0;
        for datagram in data.chunks(segment_size.max(1)) {
            self.pass(datagram);
            datagrams += 1;
        }
        match self.flush(socket, segment_size, ecn) {
            // It is queued, so it counts as sent.
            Ok(()) | Err(SendError::WouldBlock(_)) => {}
            Err(error) => return Err(error),
        }
        Ok(Sent { bytes: data.len(), datagrams, method: Method::Fallback })
    }

    fn flush(&mut self, socket: &UdpSocket, segment_size: usize, ecn: Ecn) -> Result<(), SendError> {
        while let Some(run) = self.queue.front_mut() {
            match socket.send(&run.bytes, run.segment, ecn) {
                Ok(sent) if sent.bytes < run.bytes.len() => {
                    run.bytes.drain(..sent.bytes);
                }
                // A replayed datagram may be too large by now; the caller did not send it.
                Err(SendError::TooLarge) if run.segment != segment_size => {
                    self.queue.pop_front();
                }
                Err(SendError::TooLarge) => {
                    self.queue.pop_front();
                    return Err(SendError::TooLarge);
                }
                Err(error) => return Err(error),
                Ok(_) => {
                    self.queue.pop_front();
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
#[path = "faults_tests.rs"]
mod tests;
