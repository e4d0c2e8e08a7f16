//! Runs one machine on one socket: the data thread's loop.

use std::sync::atomic::Ordering;
use std::time::Duration;

use haul_base::{
    AlignedBytes, Deadline, DeadlineReason, HostSample, Machine, PathId, Rate, Received as Packets, Span,
    Time, Transmit,
};
use haul_proto::ChosenLaw;
use haul_udp::{Datagrams, Full, SendError, UdpSocket};
use haul_wire::packet::CONTROL_FRAME_KIND;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::faulty_socket::FaultySocket;
use super::host::HostWatch;
use super::shared::Shared;
use crate::data_path::send_probes;
use crate::endpoint::{PathProbe, Registration};
use crate::socket_reader::{Received, SocketReader};
use crate::{Clock, Control, EngineError, Waker};

/// Room for one batch: no UDP message of the kernel is larger.
const SLOT: usize = 65_536;
/// Receive calls before it is time to send again, and batches sent before it is time to receive.
const ROUNDS: usize = 4;
/// Wait when a queue below the socket is full: about what it takes to send a batch at 1 Gbit/s.
const LOCAL_QUEUE_WAIT: Span = Span::from_micros(500);
/// How often the counters are published.
const PUBLISH: Span = Span::from_millis(50);
/// How often the path probe is asked what it has to send.
const PROBE_POLL: Span = Span::from_millis(1);
/// A pause of the pacer up to this length is slept through: what arrives meanwhile waits in the socket, and costs
/// no wake-up of its own. The machine has nothing to send before the pause ends.
const PACED_SLEEP: Span = Span::from_millis(3);
/// Longest sleep: stop flags are also set with a wake-up, so this only bounds the unforeseen.
const LONGEST_WAIT: Span = Span::from_millis(500);

/// What the loop needs to know about its machine beside the [`Machine`] contract.
pub(super) trait Driven: Machine {
    /// Whether the machine wants to know the load of this host.
    const LOOKS_AT_HOST: bool;
    /// The counters, to be published.
    fn publish(&self, shared: &Shared);
    /// Whether the loop should end by itself, or has failed.
    fn on_event(&mut self, event: Self::Event, shared: &Shared) -> Result<Flow, EngineError>;
    /// The local interface refused a datagram of this size.
    fn on_too_large(&mut self, _: Time, _: usize) {}
    /// The other side assigns a rate.
    fn on_quota(&mut self, _: Time, _: Rate) {}
    /// Another control law from now on.
    fn on_law(&mut self, _: Time, _: ChosenLaw) {}
    /// Datagrams of this size are known to pass to the peer.
    fn on_size_passed(&mut self, _: Time, _: u16) {}
    /// The load of this host, if [`Driven::LOOKS_AT_HOST`].
    fn on_host_sample(&mut self, _: Time, _: HostSample) {}
}

/// What a data thread knows of its session beside the socket.
pub(super) struct Peer {
    pub(super) probe: PathProbe,
    pub(super) control: Control,
    pub(super) clock: Clock,
    /// The server's: late challenges find the session by it.
    pub(super) _registration: Option<Registration>,
}

/// Whether to go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Flow {
    GoOn,
    Done,
}

/// One machine, its socket and its clock.
pub(super) struct Driver<'a, M> {
    pub(super) machine: M,
    socket: &'a UdpSocket,
    faulty_socket: FaultySocket<'a>,
    peer: Peer,
    waker: Waker,
    shared: &'a Shared,
    reader: SocketReader,
    slot: AlignedBytes,
    /// A batch that the kernel has not taken yet, and how much of it it has.
    pending: Option<(Transmit, usize)>,
    /// Nothing can be sent before, because a queue below the socket was full.
    blocked_until: Option<Time>,
    published: Time,
    /// When the path probe was last asked what it has to send.
    probe_polled: Time,
    quota: Rate,
    host: HostWatch,
}

impl<'a, M: Driven> Driver<'a, M> {
    /// A driver for the thread that calls this.
    pub(super) fn new(
        machine: M,
        socket: &'a UdpSocket,
        peer: Peer,
        waker: Waker,
        shared: &'a Shared,
    ) -> Self {
        peer.control.set_data_thread(waker.clone());
        Self {
            machine,
            socket,
            faulty_socket: FaultySocket::new(socket),
            peer,
            waker,
            shared,
            reader: SocketReader::new(socket),
            slot: AlignedBytes::zeroed(SLOT),
            pending: None,
            blocked_until: None,
            published: Time::ZERO,
            probe_polled: Time::ZERO,
            quota: Rate::MAX,
            host: if M::LOOKS_AT_HOST { HostWatch::of_this_thread(socket) } else { HostWatch::absent() },
        }
    }

    /// Runs until the machine is done, fails or is told to stop.
    pub(super) fn run(&mut self) -> Result<(), EngineError> {
        let result = self.turn_until_done();
        self.machine.publish(self.shared);
        result
    }

    fn turn_until_done(&mut self) -> Result<(), EngineError> {
        let mut now = self.peer.clock.now();
        loop {
            if self.shared.stop.load(Ordering::Relaxed) {
                return Ok(());
            }
            self.look_at_host(now);
            let received = self.receive()? == Received::Some;
            now = self.peer.clock.now();
            if self.machine.deadline().is_some_and(|d| d.at <= now) {
                self.machine.on_deadline(now);
            }
            if now.since(self.probe_polled) >= PROBE_POLL {
                self.probe_polled = now;
                self.probe_path(now)?;
            }
            let quota = Rate::from_bps(self.shared.quota.load(Ordering::Relaxed));
            if quota != self.quota {
                self.quota = quota;
                self.machine.on_quota(now, quota);
            }
            if let Some(law) = self.shared.take_law() {
                self.machine.on_law(now, law);
            }
            self.carry_messages(now);
            let sent = self.transmit()?;
            if self.take_events()? == Flow::Done {
                return Ok(());
            }
            if now.since(self.published) >= PUBLISH {
                self.published = now;
                self.machine.publish(self.shared);
            }
            if !received && !sent {
                self.wait()?;
                now = self.peer.clock.now();
            }
        }
    }

    /// Carries the messages of the control channel. None is written while the one before waits to be sent.
    fn carry_messages(&mut self, now: Time) {
        for message in self.peer.control.take_transport() {
            self.machine.on_channel(now, &message);
        }
        let mut message = Vec::new();
        if self.peer.control.takes_transport() && self.machine.poll_channel(now, &mut message) {
            self.peer.control.send_transport(message);
        }
    }

    /// Tells the machine of the host's load now and then. Nobody is woken for it: a thread that sleeps is not behind.
    fn look_at_host(&mut self, now: Time) {
        if !M::LOOKS_AT_HOST {
            return;
        }
        if let Some(sample) = self.host.look(now, self.socket) {
            self.machine.on_host_sample(now, sample);
        }
    }

    fn take_events(&mut self) -> Result<Flow, EngineError> {
        while let Some(event) = self.machine.poll_event() {
            if self.machine.on_event(event, self.shared)? == Flow::Done {
                return Ok(Flow::Done);
            }
        }
        Ok(Flow::GoOn)
    }

    /// Takes what is waiting, a bounded number of calls.
    fn receive(&mut self) -> Result<Received, EngineError> {
        let Self { reader, socket, peer, machine, probe_polled, .. } = self;
        reader.receive(socket, peer.clock, ROUNDS, |now, arrival, mut message| {
            for frame in message.iter_mut().filter(|datagram| datagram.first() == Some(&CONTROL_FRAME_KIND)) {
                if peer.probe.on_packet(now, frame) {
                    machine.on_size_passed(now, peer.probe.datagram());
                    // A response may be due at once.
                    *probe_polled = Time::ZERO;
                }
            }
            let Datagrams { data, stride, ecn, drops: socket_drops, .. } = message;
            machine.on_receive(
                now,
                &mut Packets { data, stride, arrival, path: PathId::default(), ecn, socket_drops },
            );
        })
    }

    /// Sends what the path probe has to send; fails if it says that UDP is blocked.
    fn probe_path(&mut self, now: Time) -> Result<(), EngineError> {
        self.peer.probe.on_deadline(now);
        send_probes(self.socket, &mut self.peer.probe, now);
        let seen = self.peer.control.udp_seen().is_some();
        self.peer.probe.failure(now, seen).map_or(Ok(()), Err)
    }

    /// Sends what is due, a bounded number of batches; returns whether there may be more.
    fn transmit(&mut self) -> Result<bool, EngineError> {
        for _ in 0..ROUNDS {
            let now = self.peer.clock.now();
            if self.blocked_until.is_some_and(|until| now < until) {
                return Ok(false);
            }
            self.blocked_until = None;
            if self.pending.is_none() {
                let Some(transmit) = self.machine.poll_transmit(now, &mut self.slot) else {
                    return Ok(false);
                };
                self.pending = Some((transmit, 0));
            }
            if !self.flush(now)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Gives the pending batch to the kernel; false if it takes no more now.
    fn flush(&mut self, now: Time) -> Result<bool, EngineError> {
        while let Some((transmit, done)) = self.pending {
            let rest = &self.slot[done..transmit.len];
            match self.faulty_socket.send(rest, transmit.segment_size, transmit.ecn) {
                Ok(sent) if done + sent.bytes >= transmit.len => self.pending = None,
                Ok(sent) => self.pending = Some((transmit, done + sent.bytes)),
                Err(SendError::WouldBlock(full)) => {
                    if full == Full::LocalQueue {
                        self.blocked_until = Some(now + LOCAL_QUEUE_WAIT);
                    }
                    return Ok(false);
                }
                Err(SendError::TooLarge) => {
                    self.machine.on_too_large(now, transmit.segment_size);
                    self.pending = None;
                }
                Err(SendError::NotPermitted(error)) => {
                    return Err(EngineError::system("sending UDP is not permitted here", error));
                }
                Err(SendError::Io(error)) => return Err(EngineError::system("the UDP socket failed", error)),
                // Lost like any other packet.
                Err(SendError::Refused | SendError::Unreachable(_)) => self.pending = None,
            }
        }
        Ok(true)
    }

    fn wait(&mut self) -> Result<(), EngineError> {
        let now = self.peer.clock.now();
        let deadline = self.machine.deadline().map(|d| d.at);
        let until = [deadline, self.blocked_until, self.peer.probe.deadline()].into_iter().flatten().min();
        let timeout = until.map_or(LONGEST_WAIT, |at| at.since(now)).min(LONGEST_WAIT);
        let mut events =
            if sleeps_through(now, self.machine.deadline()) { PollFlags::empty() } else { PollFlags::IN };
        if self.pending.is_some() && self.blocked_until.is_none() {
            events |= PollFlags::OUT;
        }
        let waker = self.waker.clone();
        let mut fds = [PollFd::new(self.socket, events), PollFd::from_borrowed_fd(waker.fd(), PollFlags::IN)];
        let timeout = Timespec::try_from(Duration::from(timeout)).ok();
        match poll(&mut fds, timeout.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(EngineError::system("cannot wait for the UDP socket", error)),
        }
        if fds[0].revents().contains(PollFlags::ERR) {
            self.socket.drain_errors();
        }
        if !fds[1].revents().is_empty() {
            self.waker.reset();
        }
        Ok(())
    }
}

/// Whether the sender only waits for its pacer, and not for long.
fn sleeps_through(now: Time, deadline: Option<Deadline>) -> bool {
    deadline.is_some_and(|deadline| {
        deadline.reason == DeadlineReason::Pacing && deadline.at.since(now) <= PACED_SLEEP
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_short_pauses_of_the_pacer_are_slept_through() {
        let now = Time::ZERO + Span::from_secs(1);
        let after = |micros, reason| Some(Deadline { at: now + Span::from_micros(micros), reason });
        assert!(sleeps_through(now, after(2_400, DeadlineReason::Pacing)));
        assert!(!sleeps_through(now, after(20_000, DeadlineReason::Pacing)));
        assert!(!sleeps_through(now, after(100, DeadlineReason::Feedback)));
        assert!(!sleeps_through(now, None));
    }
}
