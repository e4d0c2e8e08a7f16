//! Machines as nodes.

use std::fmt::Debug;

use haul_base::{HostSample, Machine, Rate, Span, Time, Verdict};

use super::node::{Arrival, Node, Outbox};

/// IPv4 and UDP header length of every datagram (RFC 791, RFC 768).
pub const UDP_OVERHEAD: u32 = 28;

/// Delay before a machine that requests an immediate call is called again: about a system call.
const MIN_WAIT: Span = Span::from_micros(1);

/// Node that runs an unmodified machine, following the contract of [`haul_base::Machine`].
#[derive(Debug)]
pub struct SessionNode<M: Machine> {
    machine: M,
    events: Vec<(Time, M::Event)>,
    overhead: u32,
    progress: fn(&M) -> Option<u64>,
    law_rate: fn(&M) -> Option<Rate>,
    host_sample: fn(&mut M, Time, HostSample),
    verdict: fn(&mut M, Time, Option<Verdict>),
    wake: Option<Time>,
}

impl<M: Machine> SessionNode<M> {
    /// Creates a node for this machine, whose datagrams travel over UDP and IPv4.
    pub fn new(machine: M) -> Self {
        Self {
            machine,
            events: Vec::new(),
            overhead: UDP_OVERHEAD,
            progress: |_| None,
            law_rate: |_| None,
            host_sample: |_, _, _| {},
            verdict: |_, _, _| {},
            wake: Some(Time::ZERO),
        }
    }

    /// Sets the function that reads the machine's useful bytes.
    #[must_use]
    pub fn with_progress(mut self, progress: fn(&M) -> Option<u64>) -> Self {
        self.progress = progress;
        self
    }

    /// Sets the function that reads the rate of the machine's control law.
    #[must_use]
    pub fn with_law_rate(mut self, law_rate: fn(&M) -> Option<Rate>) -> Self {
        self.law_rate = law_rate;
        self
    }

    /// Sets the function that passes samples of the host's load to the machine.
    #[must_use]
    pub fn with_host_sample(mut self, set: fn(&mut M, Time, HostSample)) -> Self {
        self.host_sample = set;
        self
    }

    /// Sets the function that passes the true causes of losses to the machine, in place of a diagnosis.
    #[must_use]
    pub fn with_verdict(mut self, set: fn(&mut M, Time, Option<Verdict>)) -> Self {
        self.verdict = set;
        self
    }

    /// Returns the machine.
    pub fn machine(&self) -> &M {
        &self.machine
    }

    /// Returns the machine mutably, for changes from outside the world.
    pub fn machine_mut(&mut self) -> &mut M {
        &mut self.machine
    }

    /// Returns the machine's events with their times.
    pub fn events(&self) -> &[(Time, M::Event)] {
        &self.events
    }

    fn drain(&mut self, now: Time, out: &mut Outbox<'_>) {
        while out.send_with(self.overhead, |slot| self.machine.poll_transmit(now, slot)) {}
        while let Some(event) = self.machine.poll_event() {
            self.events.push((now, event));
        }
        let at = if out.is_full() { Some(now) } else { self.machine.deadline().map(|d| d.at) };
        self.set_wake(now, at);
    }

    fn set_wake(&mut self, now: Time, at: Option<Time>) {
        self.wake = at.map(|at| if at <= now { now + MIN_WAIT } else { at });
    }
}

impl<M> Node for SessionNode<M>
where
    M: Machine + Debug + Send + 'static,
    M::Event: Send,
{
    fn on_arrival(&mut self, now: Time, arrival: &mut Arrival<'_>, out: &mut Outbox<'_>) {
        self.machine.on_receive(now, &mut arrival.batch);
        self.drain(now, out);
    }

    fn on_deadline(&mut self, now: Time, out: &mut Outbox<'_>) {
        self.machine.on_deadline(now);
        self.drain(now, out);
    }

    fn deadline(&self) -> Option<Time> {
        self.wake
    }

    fn on_channel(&mut self, now: Time, message: &[u8], out: &mut Outbox<'_>) {
        self.machine.on_channel(now, message);
        self.drain(now, out);
    }

    fn poll_channel(&mut self, now: Time, out: &mut Vec<u8>) -> bool {
        let is_written = self.machine.poll_channel(now, out);
        if is_written {
            self.set_wake(now, self.machine.deadline().map(|d| d.at));
        }
        is_written
    }

    fn on_host_sample(&mut self, now: Time, host: HostSample) {
        (self.host_sample)(&mut self.machine, now, host);
    }

    fn on_verdict(&mut self, now: Time, verdict: Verdict) {
        (self.verdict)(&mut self.machine, now, Some(verdict));
    }

    fn goodput_bytes(&self) -> Option<u64> {
        (self.progress)(&self.machine)
    }

    fn law_rate(&self) -> Option<Rate> {
        (self.law_rate)(&self.machine)
    }

    fn event_count(&self) -> u64 {
        self.events.len() as u64
    }
}
