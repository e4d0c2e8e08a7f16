//! TCP sender: what to send and when, under any congestion control law.

use haul_base::{Deadline, DeadlineReason, Ecn, Machine, PathId, Received, Span, Time, Transmit};

use super::control::{AckSample, Control, ControlKind, LossSample};
use super::reduction::Reduction;
use super::scoreboard::{Outcome, Scoreboard};
use super::wire::{Ack, HEADER, write_data};
use super::{MSS, OVERHEAD, RtoBounds};

/// Configuration of a sender.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct TcpSenderConfig {
    /// Congestion control law.
    pub control: ControlKind,
    /// Number of segments to send; `None` for an endless flow.
    pub segments: Option<u64>,
    /// Payload of a segment, bytes.
    pub mss: u32,
    /// Initial window in segments: 10 (RFC 6928).
    pub initial_window: u64,
    /// The receiver's buffer: maximum segments beyond the first missing one.
    pub receive_window: u64,
    /// Duplicate threshold: number of later segments that indicate a loss, 3 (RFC 6675).
    pub reordering: u64,
    /// Maximum segments per batch (GSO).
    pub batch: u32,
    /// Bounds of the retransmission timeout.
    pub rto: RtoBounds,
}

impl TcpSenderConfig {
    /// Returns the usual configuration of an endless flow.
    pub fn endless(control: ControlKind) -> Self {
        Self {
            control,
            segments: None,
            mss: MSS,
            initial_window: 10,
            receive_window: 1 << 20,
            reordering: 3,
            batch: 44,
            rto: RtoBounds::default(),
        }
    }
}

/// Events of a flow.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TcpEvent {
    /// The last segment was acknowledged.
    Complete {
        /// Time of that acknowledgement.
        at: Time,
    },
}

/// Counters and state of a sender.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct TcpStats {
    /// Segments sent, including retransmissions.
    pub sent: u64,
    /// Segments retransmitted.
    pub repeated: u64,
    /// Segments known to be delivered.
    pub delivered: u64,
    /// Fast recoveries.
    pub recoveries: u64,
    /// Retransmission timeouts.
    pub timeouts: u64,
    /// Datagrams that were not acknowledgements.
    pub rejected: u64,
    /// Congestion window in segments.
    pub window: u64,
    /// Segments in flight.
    pub in_flight: u64,
    /// Smoothed round-trip time.
    pub srtt: Option<Span>,
    /// Current phase of the law.
    pub phase: &'static str,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Recovery {
    Open,
    /// Fast recovery until this segment is acknowledged.
    Fast(u64),
    /// Recovery after a timeout, until this segment is acknowledged.
    Timeout(u64),
}

/// Sender of one flow.
#[derive(Debug)]
pub struct TcpSender {
    config: TcpSenderConfig,
    control: Box<dyn Control>,
    board: Scoreboard,
    recovery: Recovery,
    /// Window during a proportional rate reduction.
    reduction: Option<Reduction>,
    srtt: Option<Span>,
    deviation: Span,
    backoff: u32,
    timeout_at: Option<Time>,
    /// Delivered count at which the current round trip ends.
    round_end: u64,
    /// Time at which pacing permits the next segment.
    paced_until: Time,
    window_limited: bool,
    sent: u64,
    repeated: u64,
    recoveries: u64,
    timeouts: u64,
    rejected: u64,
    complete: Option<TcpEvent>,
    is_complete: bool,
}

impl TcpSender {
    /// Creates a flow that starts when it is first polled.
    pub fn new(config: TcpSenderConfig) -> Self {
        let wire = config.mss + HEADER as u32 + OVERHEAD;
        Self {
            config,
            control: config.control.build(config.initial_window, wire),
            board: Scoreboard::new(config.reordering),
            recovery: Recovery::Open,
            reduction: None,
            srtt: None,
            deviation: Span::ZERO,
            backoff: 0,
            timeout_at: None,
            round_end: 0,
            paced_until: Time::ZERO,
            window_limited: false,
            sent: 0,
            repeated: 0,
            recoveries: 0,
            timeouts: 0,
            rejected: 0,
            complete: None,
            is_complete: false,
        }
    }

    /// Returns counters and state.
    pub fn stats(&self) -> TcpStats {
        TcpStats {
            sent: self.sent,
            repeated: self.repeated,
            delivered: self.board.delivered(),
            recoveries: self.recoveries,
            timeouts: self.timeouts,
            rejected: self.rejected,
            window: self.window(),
            in_flight: self.board.in_flight(),
            srtt: self.srtt,
            phase: self.control.phase(),
        }
    }

    /// Returns the law's name.
    pub fn control_name(&self) -> &'static str {
        self.control.name()
    }

    fn datagram(&self) -> usize {
        self.config.mss as usize + HEADER
    }

    /// Updates the round-trip time estimate (RFC 6298, section 2).
    fn measure(&mut self, rtt: Span) {
        match self.srtt {
            None => (self.srtt, self.deviation) = (Some(rtt), rtt / 2),
            Some(srtt) => {
                let error = if rtt > srtt { rtt.saturating_sub(srtt) } else { srtt.saturating_sub(rtt) };
                self.deviation = (self.deviation * 3 + error) / 4;
                self.srtt = Some((srtt * 7 + rtt) / 8);
            }
        }
    }

    fn rto(&self) -> Span {
        let RtoBounds { min, max, first } = self.config.rto;
        // Linux applies the lower bound to the deviation term, not to the sum.
        let base = self.srtt.map_or(first, |srtt| srtt + (self.deviation * 4).max(min));
        (base * (1 << self.backoff.min(20))).min(max)
    }

    fn on_ack(&mut self, now: Time, ack: &Ack) {
        let outcome = self.board.on_ack(now, ack);
        if outcome.delivered == 0 && outcome.lost == 0 && !outcome.advanced {
            return;
        }
        if let Some(rtt) = outcome.rtt {
            self.measure(rtt);
        }
        if outcome.advanced {
            self.backoff = 0;
        }
        self.leave_recovery(now);
        if outcome.lost > 0 && self.recovery == Recovery::Open {
            self.enter_recovery(now, &outcome);
        }
        self.notify_control(now, &outcome);
        if let Some(reduction) = &mut self.reduction {
            let smoothly = outcome.advanced && outcome.lost == 0;
            reduction.on_ack(outcome.delivered, self.board.in_flight(), smoothly);
        }
        self.timeout_at = (!self.board.is_idle()).then(|| now + self.rto());
        if self.config.segments == Some(self.board.base()) && !self.is_complete {
            self.is_complete = true;
            self.complete = Some(TcpEvent::Complete { at: now });
        }
    }

    fn enter_recovery(&mut self, now: Time, outcome: &Outcome) {
        self.recovery = Recovery::Fast(self.board.next_new());
        self.recoveries += 1;
        let prior = self.control.window();
        let in_flight = self.board.in_flight();
        self.control.on_loss(&LossSample { now, in_flight, acked: outcome.delivered });
        if self.control.reduces_in_proportion() {
            self.reduction = Some(Reduction::new(prior, self.control.window()));
        }
    }

    fn leave_recovery(&mut self, now: Time) {
        if let Recovery::Fast(end) | Recovery::Timeout(end) = self.recovery
            && self.board.base() >= end
        {
            self.recovery = Recovery::Open;
            self.reduction = None;
            self.control.on_recovered(now);
        }
    }

    fn notify_control(&mut self, now: Time, outcome: &Outcome) {
        let prior = outcome.rate.map(|rate| rate.prior_delivered);
        let round_start = prior.is_some_and(|prior| prior >= self.round_end);
        if round_start {
            self.round_end = self.board.delivered();
        }
        self.control.on_ack(&AckSample {
            now,
            acked: outcome.delivered,
            lost: outcome.lost,
            in_flight: self.board.in_flight(),
            delivered: self.board.delivered(),
            rtt: outcome.rtt,
            srtt: self.srtt,
            rate: outcome.rate,
            round_start,
            recovering: matches!(self.recovery, Recovery::Fast(_)),
            window_limited: self.window_limited,
        });
    }

    fn on_timeout(&mut self, now: Time) {
        self.timeouts += 1;
        self.backoff += 1;
        self.board.lose_all();
        self.recovery = Recovery::Timeout(self.board.next_new());
        self.reduction = None;
        self.control.on_timeout(now);
        self.timeout_at = Some(now + self.rto());
    }

    /// Returns the next segment to send, if any.
    fn next_segment(&self) -> Option<u64> {
        if let Some(lost) = self.board.first_lost() {
            return Some(lost);
        }
        let next = self.board.next_new();
        let exists = self.config.segments.is_none_or(|segments| next < segments);
        let fits = next < self.board.base() + self.config.receive_window;
        (exists && fits).then_some(next)
    }

    /// Returns the maximum number of segments in flight.
    fn window(&self) -> u64 {
        self.reduction.map_or_else(|| self.control.window(), |reduction| reduction.window())
    }

    fn has_window(&self) -> bool {
        self.board.in_flight() < self.window()
    }

    /// Advances pacing by the transmission time of `segments`; unused time does not accumulate.
    fn pace(&mut self, now: Time, segments: u64) {
        if let Some(rate) = self.control.pacing_rate() {
            let wire = self.datagram() as u64 + u64::from(OVERHEAD);
            self.paced_until = self.paced_until.max(now) + rate.time_for(segments * wire);
        }
    }

    fn is_paced(&self, now: Time) -> bool {
        self.control.pacing_rate().is_some() && self.paced_until > now
    }

    /// Returns the maximum batch size; with pacing, at most 1 ms at the pacing rate (`tcp_tso_autosize`).
    fn max_segments(&self, slot: usize) -> usize {
        let fits = (slot / self.datagram()).min(self.config.batch.max(1) as usize);
        match self.control.pacing_rate() {
            None => fits,
            Some(rate) => {
                let per_ms = rate.bytes_in(Span::from_millis(1)) / self.datagram() as u64;
                fits.min((per_ms as usize).max(2))
            }
        }
    }
}

impl Machine for TcpSender {
    type Event = TcpEvent;

    fn on_receive(&mut self, now: Time, batch: &mut Received<'_>) {
        for datagram in batch.data.chunks(batch.stride.max(1)) {
            match Ack::read(datagram) {
                Some(ack) => self.on_ack(now, &ack),
                None => self.rejected += 1,
            }
        }
    }

    fn on_deadline(&mut self, now: Time) {
        if self.timeout_at.is_some_and(|at| at <= now) && !self.board.is_idle() {
            self.on_timeout(now);
        }
    }

    fn poll_transmit(&mut self, now: Time, slot: &mut [u8]) -> Option<Transmit> {
        if self.is_paced(now) {
            return None;
        }
        let size = self.datagram();
        let max = self.max_segments(slot.len());
        let mut count = 0;
        while count < max && self.has_window() {
            let Some(segment) = self.next_segment() else {
                self.window_limited = false;
                break;
            };
            write_data(&mut slot[count * size..(count + 1) * size], segment);
            self.repeated += u64::from(segment < self.board.next_new());
            self.board.on_sent(now, segment);
            count += 1;
        }
        if !self.has_window() {
            self.window_limited = true;
        }
        if count == 0 {
            return None;
        }
        self.sent += count as u64;
        if let Some(reduction) = &mut self.reduction {
            reduction.on_sent(count as u64);
        }
        self.pace(now, count as u64);
        if self.timeout_at.is_none() {
            self.timeout_at = Some(now + self.rto());
        }
        let len = count * size;
        Some(Transmit { len, segment_size: size, ecn: Ecn::NotEct, path: PathId::default(), release: now })
    }

    fn poll_event(&mut self) -> Option<TcpEvent> {
        self.complete.take()
    }

    fn deadline(&self) -> Option<Deadline> {
        let timeout = self.timeout_at.map(|at| Deadline { at, reason: DeadlineReason::ProbeTimeout });
        let waits =
            self.control.pacing_rate().is_some() && self.has_window() && self.next_segment().is_some();
        let pacing = waits.then_some(Deadline { at: self.paced_until, reason: DeadlineReason::Pacing });
        Deadline::earlier(timeout, pacing)
    }
}
