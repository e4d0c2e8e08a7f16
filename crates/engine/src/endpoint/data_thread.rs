//! The event loop of a connection that has its own socket: a session's data thread.

use std::sync::Arc;
use std::time::{Duration, Instant};

use haul_base::{Deadline, DeadlineReason, HostSample, Machine, Span, Time};
use haul_host::{HostDrops, Sensors};
use haul_proto::connection::{Failure, PathProbe};
use haul_proto::micro::events::{ENDED, HOST_SAMPLE, SIZE_PASSED};
use haul_proto::micro::shared::DiagnosedWindows;
use haul_proto::{Counters, DiagnosedWindow, ObjectEnd};
use haul_stack::{Stack, StackEvent};
use haul_udp::UdpSocket;
use haul_wire::packet::{CONTROL_FRAME_KIND, CloseReason, ControlFrame, ControlFrameKind};
use rustix::event::{PollFd, PollFlags};
use rustix::time::{ClockId, clock_gettime};

use super::connection::{Connection, LockedConnection, received};
use super::pending::{UdpSide, send_probes};
use super::socket::EndpointSocket;
use crate::socket_reader::{ReceiveOutcome, SocketReader};
use crate::wake::{deferring, wait_ready};
use crate::{Control, Direction, EngineError, Monitor, Waker};

/// Receive calls per turn before sending.
const MAX_CALLS: usize = 4;
/// Interval at which the counters are published.
const PUBLISH_INTERVAL: Span = Span::from_millis(50);
/// Interval at which the path probe is polled.
const PROBE_INTERVAL: Span = Span::from_millis(1);
/// Pacer pauses up to this length are slept through: packets that arrive meanwhile stay in the socket buffer
/// and cause no wake-up. The stack has nothing to send before the pause ends.
const MAX_PACING_SLEEP: Span = Span::from_millis(3);
/// Longest sleep. Stopping also wakes the thread, so this only bounds unforeseen cases.
const MAX_WAIT: Span = Span::from_millis(500);
/// Time for the reason of an early end to arrive on the control channel.
const REASON_TIMEOUT: Duration = Duration::from_secs(5);

/// Samples this host's load and the fill level of the socket buffer.
#[derive(Debug)]
struct HostLoad(Sensors);

impl HostLoad {
    /// Starts watching the calling thread, which must be the one that reads the socket.
    fn of_this_thread(socket: &UdpSocket) -> Option<Self> {
        let local = socket.local_addr().ok().map(|local| local.ip());
        let sensors = Sensors::of_this_thread(local);
        sensors
            .inspect_err(|error| tracing::debug!(%error, "the load of this host is unknown"))
            .ok()
            .map(Self)
    }

    /// Returns the host's load, if a sample is due. The socket's fill level is what arrived since it was last
    /// read, so call this before reading.
    fn sample(&mut self, now: Time, socket: &UdpSocket) -> Option<HostSample> {
        if !self.0.is_due(now) {
            return None;
        }
        let socket_fill = socket.socket_memory().ok().and_then(|memory| memory.receive_fill());
        Some(HostSample { socket_fill, ..self.0.sample(now) })
    }
}

/// What a data thread publishes to its session every 50 ms, so that no reader locks the connection.
#[derive(Debug, Default)]
pub(crate) struct Published {
    pub(crate) counters: Option<Counters>,
    /// Whether every byte has arrived and, at the sender, is acknowledged.
    is_delivered: bool,
    /// Diagnosed windows not taken before the thread ended; sender only.
    pub(crate) windows: Vec<DiagnosedWindow>,
    /// Why the thread failed.
    pub(crate) failure: Option<EngineError>,
    /// Why the thread ended before everything was delivered, unless it failed.
    early_end: Option<EngineError>,
    pub(crate) cpu: Span,
}

impl Published {
    /// Also sets the CPU time of the calling thread.
    fn set_counters(&mut self, counters: &Counters) {
        let time = clock_gettime(ClockId::ThreadCPUTime);
        self.counters = Some(*counters);
        self.cpu = Span::from_nanos(time.tv_sec.unsigned_abs() * 1_000_000_000 + time.tv_nsec.unsigned_abs());
    }

    /// Whether everything is delivered, or why it will not be.
    pub(crate) fn delivered(&mut self) -> Option<Result<(), EngineError>> {
        let failed = self.failure.as_ref().or(self.early_end.as_ref()).cloned().map(Err);
        failed.or_else(|| self.is_delivered.then_some(Ok(())))
    }
}

/// A data thread's part of its session, apart from the connection.
pub(crate) struct SessionSide {
    pub(crate) end: ObjectEnd,
    pub(crate) control: Control,
    pub(crate) waker: Waker,
    pub(crate) udp: UdpSide,
}

impl SessionSide {
    /// Returns the path probe, at a client.
    fn probe(&mut self) -> Option<&mut PathProbe> {
        if let UdpSide::Client(_, probe) = &mut self.udp { Some(probe) } else { None }
    }
}

pub(crate) struct DataThread {
    shared: Arc<EndpointSocket>,
    connection: Arc<Connection>,
    side: SessionSide,
    published: Arc<Monitor<Published>>,
    reader: SocketReader,
    /// Receiver only.
    host: Option<HostLoad>,
    host_sample: Option<HostSample>,
    host_drops: Option<HostDrops>,
    is_complete: bool,
    published_at: Option<Time>,
    probe_polled: Time,
}

impl DataThread {
    pub(crate) fn new(
        shared: Arc<EndpointSocket>,
        connection: Arc<Connection>,
        side: SessionSide,
        published: Arc<Monitor<Published>>,
    ) -> Self {
        side.control.set_data_thread(side.waker.clone());
        let host = (side.end == ObjectEnd::Sink).then(|| HostLoad::of_this_thread(&shared.socket)).flatten();
        Self {
            reader: SocketReader::new(&shared.socket),
            shared,
            connection,
            side,
            published,
            host,
            host_sample: None,
            host_drops: HostDrops::of_this_process().ok(),
            is_complete: false,
            published_at: None,
            probe_polled: Time::ZERO,
        }
    }

    /// Runs until the connection has ended or is stopped. The publication is updated before `self` is
    /// dropped: whoever is woken by dropping the application's source or sink finds the outcome there.
    pub(crate) fn run(mut self) {
        let failure = self.run_until_ended().err();
        let now = self.shared.clock.now();
        self.end_windows(now);
        self.publish(now);
        let early_end = (failure.is_none() && !self.is_complete).then(|| self.reason());
        self.published.update(|published| (published.failure, published.early_end) = (failure, early_end));
    }

    /// Returns why the session ended early: the last message of the control channel contains the reason.
    fn reason(&self) -> EngineError {
        let (control, waker, until) = (&self.side.control, &self.side.waker, Instant::now() + REASON_TIMEOUT);
        while control.ended().is_none() && !self.shared.is_stopped() && Instant::now() < until {
            let mut fds = [PollFd::from_borrowed_fd(waker.fd(), PollFlags::IN)];
            let _ = wait_ready(&mut fds, Some(MAX_WAIT.into()));
            waker.reset();
        }
        control.ended().unwrap_or(EngineError::Closed)
    }

    /// Publishes the windows not taken yet, including the unfinished one.
    fn end_windows(&self, now: Time) {
        if self.side.end == ObjectEnd::Source {
            let mut state = self.connection.lock();
            state.stack.raise(now, ENDED, &mut ());
            // Under the connection's lock, so that `take_windows` finds them in exactly one place.
            self.published.lock().windows = DiagnosedWindows::all_of(&mut state.stack);
        }
    }

    fn run_until_ended(&mut self) -> Result<(), EngineError> {
        loop {
            self.sample_host();
            // The stack calls the application's source and sink, which wake tasks, under the connection's lock.
            let received = deferring(|| self.receive())?;
            let now = self.shared.clock.now();
            if now.since(self.probe_polled) >= PROBE_INTERVAL {
                self.probe_polled = now;
                self.probe_path(now)?;
            }
            match deferring(|| self.turn(now)) {
                Some(EngineError::Closed) => return Ok(()),
                Some(error) => return Err(error),
                None => {}
            }
            if self.published_at.is_none_or(|at| now.since(at) >= PUBLISH_INTERVAL) {
                self.publish(now);
            }
            if received != ReceiveOutcome::More {
                self.wait()?;
            }
        }
    }

    /// Runs the due timers and sends. Returns why the connection ended, if it has.
    fn turn(&mut self, now: Time) -> Option<EngineError> {
        let Self { shared, connection, side, .. } = self;
        let mut state = connection.lock();
        forward_messages(&side.control, &mut state.stack, now);
        if shared.is_stopped() {
            let reason = if self.is_complete { CloseReason::Graceful } else { CloseReason::Abort };
            state.lifecycle.start_close(now, ControlFrameKind::Close, reason);
            connection.send_due_frames(shared, &mut state, now);
            return Some(EngineError::Closed);
        }
        connection.turn(shared, &mut state, now);
        while let Some(event) = state.next_event() {
            if let StackEvent::Delivered | StackEvent::Complete(_) = event {
                self.is_complete = true;
                // Silence is normal from now on.
                state.lifecycle.stop_keep_alive();
                let counters = Counters::of(&state.stack, side.end, self.host_sample);
                self.published.update(|published| {
                    published.set_counters(&counters);
                    published.is_delivered = true;
                });
            }
            take_event(&mut state, now, side.end, &event);
        }
        state.ended()
    }

    /// Passes a due sample of the host's load to the stack. Wakes no thread for it: a sleeping one is not
    /// behind.
    fn sample_host(&mut self) {
        let Some(host) = &mut self.host else { return };
        let now = self.shared.clock.now();
        if let Some(mut sample) = host.sample(now, &self.shared.socket) {
            self.host_sample = Some(sample);
            self.connection.lock().stack.raise(now, HOST_SAMPLE, &mut sample);
        }
    }

    fn publish(&mut self, now: Time) {
        let before = self.published_at.replace(now);
        let state = self.connection.lock();
        let counters = Counters::of(&state.stack, self.side.end, self.host_sample);
        if before.is_some_and(|before| state.lifecycle.last_received() > before) {
            self.side.control.on_data_received();
        }
        drop(state);
        self.published.lock().set_counters(&counters);
    }

    /// Receives queued packets, with a bounded number of calls.
    fn receive(&mut self) -> Result<ReceiveOutcome, EngineError> {
        let Self { reader, shared, connection, side, host_drops, probe_polled, .. } = self;
        reader.receive(&shared.socket, shared.clock, MAX_CALLS, |now, arrival, mut batch| {
            let source = batch.source;
            for packet in batch.iter_mut().filter(|packet| packet.first() == Some(&CONTROL_FRAME_KIND)) {
                let frame = ControlFrame::parse(packet).ok();
                let Some(frame) = frame.filter(|frame| connection.keys.frames().verifies(frame)) else {
                    continue;
                };
                if let Some(probe) = side.probe()
                    && probe.on_frame(frame.kind, frame.size)
                {
                    connection.lock().stack.raise(now, SIZE_PASSED, &mut probe.datagram());
                } else {
                    connection.on_frame(shared, now, &frame, source);
                }
                // A challenge may be due at once.
                *probe_polled = Time::ZERO;
            }
            let mut packets = received(batch.data, batch.stride, batch.ecn, arrival);
            packets.socket_drops = match host_drops {
                Some(host) => batch.drops.map(|drops| host.count(now, drops)),
                None => batch.drops,
            };
            connection.lock().on_own_packets(now, &mut packets);
        })
    }

    /// Sends the path probe's packets; fails if the probe finds UDP blocked.
    fn probe_path(&mut self, now: Time) -> Result<(), EngineError> {
        let Self { shared, connection, side, .. } = self;
        let Some(probe) = side.probe() else { return Ok(()) };
        probe.on_deadline(now);
        send_probes(&shared.socket, probe, || connection.keys.frames());
        if !probe.is_unanswered(now) {
            return Ok(());
        }
        let port = shared.socket.peer_addr().map_or(0, |peer| peer.port());
        Err(udp_blocked(port, side.control.udp_seen().is_some()))
    }

    fn wait(&mut self) -> Result<(), EngineError> {
        let state = self.connection.lock();
        if state.transmit_at.is_some() {
            return Ok(());
        }
        let (now, deadline, stack) = (self.shared.clock.now(), state.deadline(), state.stack.deadline());
        let waits_for_space = state.unsent.as_ref().is_some_and(|unsent| unsent.retry.is_none());
        drop(state);
        let probing = self.side.probe().and_then(|probe| probe.next_round);
        let until = [deadline, probing].into_iter().flatten().min();
        let timeout = until.map_or(MAX_WAIT, |at| at.since(now)).min(MAX_WAIT);
        if timeout == Span::ZERO {
            return Ok(());
        }
        let mut events = if sleeps_through(now, stack) { PollFlags::empty() } else { PollFlags::IN };
        events.set(PollFlags::OUT, waits_for_space);
        let (socket, waker) = (&self.shared.socket, &self.side.waker);
        let mut fds = [PollFd::new(socket, events), PollFd::from_borrowed_fd(waker.fd(), PollFlags::IN)];
        wait_ready(&mut fds, Some(timeout.into()))?;
        let [socket_events, waker_events] = fds.map(|fd| fd.revents());
        if socket_events.contains(PollFlags::ERR) {
            socket.drain_errors();
        }
        if socket_events.contains(PollFlags::OUT) {
            self.connection.on_writable(&self.shared, self.shared.clock.now());
        }
        if !waker_events.is_empty() {
            waker.reset();
        }
        Ok(())
    }
}

/// Error for an unanswered probe: blocked towards the client if the server reported receiving its packets.
fn udp_blocked(port: u16, server_received: bool) -> EngineError {
    let direction = if server_received { Direction::ServerToClient } else { Direction::ClientToServer };
    EngineError::UdpBlocked { port, direction }
}

/// Moves messages between the stack and the control channel. Writes none while the previous one is queued.
fn forward_messages(control: &Control, stack: &mut Stack, now: Time) {
    for message in control.take_transport() {
        stack.on_channel(now, &message);
    }
    let mut message = Vec::new();
    if control.can_send_transport() && stack.poll_channel(now, &mut message) {
        control.send_transport(message);
    }
}

fn take_event(state: &mut LockedConnection, now: Time, end: ObjectEnd, event: &StackEvent) {
    match event {
        // The receiver needs no more data; its last feedback comes over the control channel.
        StackEvent::Delivered => {
            state.lifecycle.start_close(now, ControlFrameKind::Close, CloseReason::Graceful);
        }
        // A sender waiting for its disk sends nothing, but answers keep-alives.
        StackEvent::Silent(span) if end == ObjectEnd::Source => state.fail(Failure::Silent(*span)),
        StackEvent::PathMtu(size) => {
            tracing::debug!(size, "path MTU: larger datagrams");
        }
        _ => {}
    }
}

/// Whether the stack only waits for its pacer, for no longer than [`MAX_PACING_SLEEP`].
fn sleeps_through(now: Time, deadline: Option<Deadline>) -> bool {
    deadline.is_some_and(|deadline| {
        deadline.reason == DeadlineReason::Pacing && deadline.at.since(now) <= MAX_PACING_SLEEP
    })
}

#[cfg(test)]
mod tests {
    use haul_base::{Bytes, Ecn};
    use haul_udp::Options;

    use super::*;

    #[test]
    fn blocked_udp_is_named_with_port_and_direction() {
        let message = |server_received| udp_blocked(7000, server_received).fault().message;
        assert_eq!(udp_blocked(7000, true).fault().code, haul_wire::control::FaultCode::UdpBlocked);
        assert!(
            message(false).contains("from the client to the server (UDP port 7000"),
            "{}",
            message(false)
        );
        assert!(message(true).contains("from the server to the client"), "{}", message(true));
    }

    #[test]
    fn the_thread_sleeps_only_through_short_pacer_pauses() {
        let now = Time::ZERO + Span::from_secs(1);
        let after = |micros, reason| Some(Deadline { at: now + Span::from_micros(micros), reason });
        assert!(sleeps_through(now, after(2_400, DeadlineReason::Pacing)));
        assert!(!sleeps_through(now, after(20_000, DeadlineReason::Pacing)));
        assert!(!sleeps_through(now, after(100, DeadlineReason::Feedback)));
        assert!(!sleeps_through(now, None));
    }

    #[test]
    fn an_unread_socket_is_sampled_as_it_fills_and_never_early() {
        let options = Options { recv_buffer: Bytes(64 << 10), ..Options::default() };
        let receiving = UdpSocket::bind("127.0.0.1:0".parse().unwrap(), &options).unwrap();
        let sending = UdpSocket::bind("127.0.0.1:0".parse().unwrap(), &options).unwrap();
        sending.connect(receiving.local_addr().unwrap()).unwrap();
        let mut load = HostLoad::of_this_thread(&receiving).unwrap();
        let empty = load.sample(Time::ZERO, &receiving).unwrap();
        assert_eq!(empty.socket_fill, Some(0));
        assert!(empty.early_drops.is_some(), "of the interface that the socket is bound to: {empty:?}");
        assert_eq!(load.sample(Time::ZERO + HostSample::INTERVAL / 2, &receiving), None);
        for _ in 0..20 {
            sending.send(&[7; 1_000], 1_000, Ecn::NotEct).unwrap();
        }
        // A sample that took very long is not repeated soon.
        let later = load.sample(Time::ZERO + HostSample::INTERVAL * 1_000, &receiving).unwrap();
        // 20 datagrams of 1,000 bytes use 2,304 of 131,072 bytes each on Linux 6.18; other kernels vary.
        assert!((200..500).contains(&later.socket_fill.unwrap()), "{later:?}");
    }
}
