//! Cycle of bandwidth probes (draft-ietf-ccwg-bbr, section "`ProbeBW`").

use haul_base::{Rate, Rng, Span, Time};

use super::Bbr;
use super::history::Mark;
use super::loss::LossCounts;
use super::model::{ShortTerm, volume};
use super::phase::Phase;
use super::state::{Acks, Cycle};
use crate::control::FeedbackSample;

/// The draft: rounds after which a probe is due in any case, to leave a share to Reno and CUBIC flows.
const MAX_ROUNDS: u64 = 63;
/// Minimum rounds between probes: a probe lasts some rounds, so at a longer round-trip time it loads the
/// bottleneck for longer, and takes capacity from flows with a shorter one. The minimum is limited in time,
/// so that free capacity of a long path is found soon enough. Our choices: of 100 Mbit/s with a queue of 40
/// ms, a flow with 20 ms beside one with 100 ms gets 27 instead of 19 Mbit/s (`neighbours`, 16 seeds).
const MIN_ROUNDS: u64 = 40;
const MAX_MIN_WAIT: Span = Span::from_secs(6);
/// A path that holds fewer than [`MAX_ROUNDS`] packets is probed after that many rounds, as Reno grows by
/// one packet per round; packets that only await a report do not count. But not after fewer rounds than
/// these, and later after a probe that lost too much: on a short path a round is mostly the time between two
/// reports, and a probe lasts some rounds. Our choices: with 4, queues of 10 packets lose 3 to 4 %.
const FEWEST_ROUNDS: u64 = 10;
const FEWEST_ROUNDS_AFTER_LOSS: u64 = 24;
/// Bandwidth gain of a probe that shows that the path has changed.
const NEW_PATH: f64 = 1.5;

impl Cycle {
    pub(super) fn new(wait: Span) -> Self {
        Self {
            least_wait: wait,
            wait,
            began: Time::ZERO,
            rounds: 0,
            acks: Acks::Init,
            is_probe_sample: false,
            was_too_high: false,
            postponed: 0,
            was_precautionary: false,
            down_rounds: 0,
            up_rounds: 0,
            up_acked: 0,
            up_per_packet: u64::MAX,
            before: Rate::ZERO,
            rng: None,
        }
    }

    /// Counts a round.
    pub(super) fn on_round(&mut self) {
        self.rounds = self.rounds.saturating_add(1);
        self.down_rounds = self.down_rounds.saturating_add(1);
    }

    /// Returns the minimum time between probes.
    pub(super) fn least_wait(&self) -> Span {
        self.least_wait
    }

    /// Whether packets being acknowledged were sent while not probing.
    pub(super) fn is_clean(&self) -> bool {
        self.acks == Acks::Init
    }

    /// The draft's `PickProbeWait`. The generator is seeded from the time and round trip of the first
    /// feedback, so that flows differ.
    fn pick_wait(&mut self, now: Time, rtt: Span, least_rtt: Span) {
        let seed = now.as_nanos() ^ rtt.as_nanos().rotate_left(32);
        let rng = self.rng.get_or_insert_with(|| Rng::from_seed(seed));
        self.rounds = rng.below(2);
        let least = self.least_wait.max((least_rtt * MIN_ROUNDS).min(MAX_MIN_WAIT));
        self.wait = least + least.mul_f64(rng.next_f64() / 2.0);
        self.began = now;
    }
}

impl Bbr {
    /// The draft's `StartProbeBW_DOWN`.
    pub(super) fn enter_down(&mut self, now: Time) {
        self.cycle.pick_wait(now, self.rtt, self.min_rtt());
        self.begin_down();
    }

    /// As [`Bbr::enter_down`], but keeps the time of the next probe.
    pub(super) fn begin_down(&mut self) {
        self.phase = Phase::Down;
        self.begin_trial();
        self.rounds.totals.lost = 0;
        self.rounds.totals.marked = 0;
        self.cycle.up_per_packet = u64::MAX;
        self.cycle.acks = Acks::Stopping;
        self.cycle.down_rounds = 0;
        self.start_round();
    }

    /// The draft's `StartProbeBW_REFILL`.
    pub(super) fn enter_refill(&mut self) {
        self.phase = Phase::Refill;
        self.cycle.postponed = 0;
        self.short_term = ShortTerm::default();
        self.cycle.up_rounds = 0;
        self.cycle.up_acked = 0;
        self.cycle.was_precautionary = false;
        self.cycle.acks = Acks::Refilling;
        self.start_round();
    }

    /// Whether the pipe is not full yet because the window is still growing: losses of bursts into it are no
    /// bound of what the path holds.
    fn is_refilling(&self) -> bool {
        let held = volume(self.bandwidth(), 1.0, self.min_rtt());
        let is_bounded = self.long_term.is_some_and(|bound| self.window >= bound);
        self.is_window_full() && self.in_flight < held && !is_bounded
    }

    /// The draft's `StartProbeBW_UP`.
    fn enter_up(&mut self) {
        self.phase = Phase::Up;
        self.cycle.acks = Acks::Starting;
        self.cycle.is_probe_sample = true;
        self.cycle.before = self.max_bandwidth.get();
        self.plateau.reset(self.rounds.last.0);
        self.raise_slope();
        self.start_round();
    }

    /// The draft's `UpdateProbeBWCyclePhase`.
    pub(super) fn advance_cycle(&mut self, sample: &FeedbackSample<'_>, mark: &Mark, is_round: bool) {
        if !self.is_filled || self.adapt_long_term(sample, mark, is_round) {
            return;
        }
        let phase = self.phase;
        match phase {
            Phase::Down | Phase::Cruise if self.is_time_to_probe(sample.now) => self.enter_refill(),
            Phase::Down if self.is_time_to_cruise() => self.phase = Phase::Cruise,
            Phase::Refill if is_round && !self.is_refilling() => self.enter_up(),
            Phase::Up if self.has_new_path() => self.restart(),
            Phase::Up if self.is_time_to_go_down() => {
                self.cycle.was_too_high = false;
                self.enter_down(sample.now);
            }
            _ => {}
        }
    }

    /// The draft's `AdaptLongTermModel`: returns true if it has changed the phase.
    fn adapt_long_term(&mut self, sample: &FeedbackSample<'_>, mark: &Mark, is_round: bool) -> bool {
        if is_round && self.cycle.acks == Acks::Starting {
            self.cycle.acks = Acks::Feedback;
        }
        if is_round && self.cycle.acks == Acks::Stopping && self.end_probe(sample.app_limited) {
            return true;
        }
        if self.loss.is_too_high(self.since(mark)) {
            return self.cycle.is_probe_sample && self.on_too_high(sample, mark);
        }
        if let Some(bound) = self.long_term {
            self.long_term = Some(bound.max(mark.in_flight));
            if self.phase == Phase::Up {
                self.probe_upward(sample.acked_packets, is_round);
            }
        }
        false
    }

    /// Handles the acknowledgement of the last packet of a probe. Returns true if the next probe follows at
    /// once, as a precautionary one succeeded.
    fn end_probe(&mut self, is_app_limited: bool) -> bool {
        self.cycle.is_probe_sample = false;
        self.cycle.acks = Acks::Init;
        if !self.phase.is_probe_bw() {
            return false;
        }
        if !is_app_limited {
            self.max_bandwidth.advance_known();
        }
        let is_safe = self.cycle.was_precautionary && !self.cycle.was_too_high;
        if is_safe {
            self.enter_refill();
        }
        is_safe
    }

    /// Returns the counts for packets sent in the round trip since `mark`.
    pub(super) fn since(&self, mark: &Mark) -> LossCounts {
        let lost = self.counts.lost.saturating_sub(mark.lost);
        let marked = self.counts.marked.saturating_sub(mark.marked);
        LossCounts { lost, marked, packets: mark.in_flight / self.datagram, runs: 0 }
    }

    /// The draft's `HandleInflightTooHigh`: returns true if it ends the probe.
    fn on_too_high(&mut self, sample: &FeedbackSample<'_>, mark: &Mark) -> bool {
        self.cycle.was_too_high = true;
        self.cycle.is_probe_sample = false;
        if !sample.app_limited {
            let least = (self.target_in_flight() as f64 * self.settings.beta) as u64;
            self.long_term = Some(mark.in_flight.max(least));
        }
        let is_up = self.phase == Phase::Up;
        if is_up {
            self.enter_down(sample.now);
        }
        is_up
    }

    /// The draft's `IsTimeToProbeBW` and `IsRenoCoexistenceProbeTime`.
    fn is_time_to_probe(&self, now: Time) -> bool {
        let held = volume(self.bandwidth(), 1.0, self.min_rtt()).min(self.window);
        let fewest = if self.cycle.was_too_high { FEWEST_ROUNDS_AFTER_LOSS } else { FEWEST_ROUNDS };
        let rounds = (held / self.datagram).clamp(fewest, MAX_ROUNDS);
        now > self.cycle.began + self.cycle.wait || self.cycle.rounds >= rounds
    }

    /// The draft's `IsTimeToCruise`, but not before a round has ended.
    fn is_time_to_cruise(&self) -> bool {
        self.cycle.down_rounds > 0
            && self.policer.trial.is_none()
            && self.with_headroom().is_none_or(|most| self.in_flight <= most)
            && self.in_flight <= self.target(1.0)
    }

    /// The draft's `IsTimeToGoDown`.
    fn is_time_to_go_down(&mut self) -> bool {
        if let Some(bound) = self.long_term {
            if self.cycle.was_too_high && self.in_flight >= bound {
                self.cycle.was_precautionary = true;
                return true;
            }
            if self.is_window_full() && self.window >= bound {
                // The bound limits the bandwidth, not the path.
                self.plateau.reset(self.rounds.last.0);
                return false;
            }
        }
        self.plateau.is_reached()
    }

    /// Whether the probe has found so much bandwidth, without a queue, that the path must have changed.
    fn has_new_path(&self) -> bool {
        let before = self.cycle.before;
        before > Rate::ZERO
            && !self.is_policed()
            && self.max_bandwidth.get() >= before.mul_f64(NEW_PATH)
            && !self.round_trip.is_queued(self.serialization())
    }

    /// Restarts Startup.
    fn restart(&mut self) {
        self.phase = Phase::Startup;
        self.cycle.acks = Acks::Init;
        self.cycle.is_probe_sample = false;
        self.is_filled = false;
        self.long_term = None;
        self.plateau.reset(self.max_bandwidth.get());
        self.round_trip.forget_earlier();
    }

    /// The draft's `RaiseInflightLongtermSlope`.
    fn raise_slope(&mut self) {
        let growth = 1u64 << self.cycle.up_rounds;
        self.cycle.up_rounds = (self.cycle.up_rounds + 1).min(30);
        self.cycle.up_per_packet = (self.window / growth).max(self.datagram);
    }

    /// The draft's `ProbeInflightLongtermUpward`.
    fn probe_upward(&mut self, acked: u64, is_round: bool) {
        let Some(bound) = self.long_term.filter(|&bound| self.is_window_full() && self.window >= bound)
        else {
            return;
        };
        let cycle = &mut self.cycle;
        cycle.up_acked = cycle.up_acked.saturating_add(acked.saturating_mul(self.datagram));
        let packets = cycle.up_acked / cycle.up_per_packet;
        cycle.up_acked %= cycle.up_per_packet;
        self.long_term = Some(bound.saturating_add(packets.saturating_mul(self.datagram)));
        if is_round {
            self.raise_slope();
        }
    }
}
