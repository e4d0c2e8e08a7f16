//! A bad network in a program that is tested (feature `faults`, never in a release): between a machine and its
//! socket, datagrams are dropped, duplicated, held back, damaged, cut and replayed, as a seed decides.
//!
//! `HAUL_FAULTS="loss=0.01,duplicate=0.02,reorder=0.05,corrupt=0.01,truncate=0.005,replay=0.01,seed=7"` turns
//! it on for the sockets of sessions; what is not named does not happen.

use std::collections::VecDeque;

use haul_base::{Ecn, Rng};

use crate::{Full, Method, SendError, Sent, UdpSocket};

const VARIABLE: &str = "HAUL_FAULTS";
/// Datagrams that pass one that is held back, at most.
const LONGEST_HOLD: u64 = 64;
/// Datagrams that are remembered for replays: some older than anything still under way.
const REMEMBERED: usize = 512;
/// Runs that may wait for the kernel before it counts as full.
const LONGEST_QUEUE: usize = 4;
/// The longest UDP message over IPv4.
const LONGEST_MESSAGE: usize = 65_507;

/// How often what happens, each a probability per datagram.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Plan {
    loss: f64,
    duplicate: f64,
    reorder: f64,
    corrupt: f64,
    truncate: f64,
    replay: f64,
    seed: u64,
}

impl Plan {
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

/// Datagrams of one size (the last may be shorter), as one call of the kernel takes them.
#[derive(Debug, PartialEq, Eq)]
struct Run {
    bytes: Vec<u8>,
    segment: usize,
}

impl Run {
    fn takes(&self, datagram: &[u8]) -> bool {
        self.bytes.len().is_multiple_of(self.segment)
            && datagram.len() <= self.segment
            && self.bytes.len() + datagram.len() <= LONGEST_MESSAGE
    }
}

#[derive(Debug)]
struct Held {
    datagram: Vec<u8>,
    /// How many more datagrams pass it.
    passes: u64,
}

/// Decides what becomes of each datagram, before a socket sends it.
#[derive(Debug)]
pub struct Faults {
    plan: Plan,
    rng: Rng,
    held: VecDeque<Held>,
    remembered: VecDeque<Vec<u8>>,
    queue: VecDeque<Run>,
}

impl Faults {
    fn new(plan: Plan) -> Self {
        let (held, remembered, queue) = (VecDeque::new(), VecDeque::new(), VecDeque::new());
        Self { plan, rng: Rng::from_seed(plan.seed), held, remembered, queue }
    }

    /// Takes one datagram; what becomes of it is in the queue, or will be.
    fn pass(&mut self, datagram: &[u8]) {
        self.release();
        self.remember(datagram);
        let plan = self.plan;
        if self.rng.chance(plan.replay) {
            let old = self.rng.below(self.remembered.len() as u64) as usize;
            let old = self.remembered[old].clone();
            self.emit(&old);
        }
        if self.rng.chance(plan.loss) {
            return;
        }
        let mut datagram = datagram.to_vec();
        if self.rng.chance(plan.corrupt) {
            self.flip_a_bit(&mut datagram);
        }
        if self.rng.chance(plan.truncate) {
            datagram.truncate(self.rng.below(datagram.len() as u64) as usize);
        }
        if self.rng.chance(plan.duplicate) {
            self.emit(&datagram);
        }
        if self.rng.chance(plan.reorder) {
            let passes = 1 + self.rng.below(LONGEST_HOLD);
            self.held.push_back(Held { datagram, passes });
        } else {
            self.emit(&datagram);
        }
    }

    fn flip_a_bit(&mut self, datagram: &mut [u8]) {
        let bit = self.rng.below(8 * datagram.len() as u64) as usize;
        if let Some(byte) = datagram.get_mut(bit / 8) {
            *byte ^= 1 << (bit % 8);
        }
    }

    fn remember(&mut self, datagram: &[u8]) {
        if self.plan.replay > 0.0 {
            if self.remembered.len() == REMEMBERED {
                self.remembered.pop_front();
            }
            self.remembered.push_back(datagram.to_vec());
        }
    }

    /// Lets go what has been held back long enough.
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
            // The kernel has no datagram without content in a run.
            _ if datagram.is_empty() => {}
            Some(run) if run.takes(datagram) => run.bytes.extend_from_slice(datagram),
            _ => self.queue.push_back(Run { bytes: datagram.to_vec(), segment: datagram.len() }),
        }
    }
}

impl Faults {
    /// What `HAUL_FAULTS` asks for; says on the log what it does, or why it does nothing.
    pub fn from_environment() -> Option<Self> {
        let text = std::env::var(VARIABLE).ok()?;
        match Plan::parse(&text) {
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

    /// As [`UdpSocket::send`], and as bad as planned. What is held back when nothing more is sent is lost.
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
        if self.queue.len() >= LONGEST_QUEUE {
            return Err(SendError::WouldBlock(Full::SocketBuffer));
        }
        let mut datagrams = 0;
        for datagram in data.chunks(segment_size.max(1)) {
            self.pass(datagram);
            datagrams += 1;
        }
        match self.flush(socket, segment_size, ecn) {
            // It is in the queue, so it is sent.
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
                // A replayed datagram may be too large by now; that is nobody's business.
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
