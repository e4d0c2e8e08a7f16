//! Probes of the minimum round-trip time (draft-ietf-ccwg-bbr, section "`ProbeRTT`"): regular and extra ones.

use haul_base::{Rate, Span, Time};

use super::Bbr;
use super::model::{ShortTerm, volume};
use super::phase::{PROBE_RTT_GAIN, Phase, UP_WINDOW};
use super::state::{Acks, RttProbe};
use crate::control::FeedbackSample;

/// The draft's `ProbeRTTDuration`.
const PROBE_RTT_DURATION: Span = Span::from_millis(200);
/// Gain of an extra probe, which only has to show whether a queue drains: three quarters of the delivery rate
/// leave none, and cost less throughput than half. Our choices: with 0.9, a CUBIC flow gets less than a fifth
/// beside this one (`neighbours`).
const RAISED_GAIN: f64 = 0.75;
const RAISED_PROBE_DURATION: Span = Span::from_millis(100);
/// On a longer path, the round-trip time stays as it was with less in flight, up to this fraction of it plus
/// a packet. What this flow removes from a queue shared by several shortens it, and what others add lengthens
/// it. Our choice: on paths that became longer by 50 and 60 ms, probes found a difference below 1 ms, except
/// for one (1.4 ms).
const SAME_RTT_DIVISOR: u64 = 64;
/// Round trips after which the window is full again and a whole round has been measured.
const REFILLED: u64 = 3;
/// From this factor on, a longer round-trip time belongs to another path; a smaller rise can be a queue of
/// other flows as deep as the path. Our choice.
const LONGER: u64 = 2;
/// How often in a row extra probes may postpone a bandwidth probe: 12 to 18 s in total. Our choice: CUBIC
/// needs 8 s to regain 100 Mbit/s at a round trip of 80 ms (RFC 9438, equation 2), and without a limit two
/// flows keep unequal shares for ever.
const MAX_POSTPONED: u32 = 6;

impl Bbr {
    /// The draft's `CheckProbeRTT`; `is_due`: the minimum round-trip time has expired.
    pub(super) fn check_probe_rtt(&mut self, sample: &FeedbackSample<'_>, is_due: bool, is_round: bool) {
        if self.phase == Phase::ProbeRtt {
            self.continue_probe_rtt(sample, is_round);
        } else if is_due && !self.pauses.is_restart && self.phase != Phase::Startup {
            self.enter_probe_rtt(None);
        } else if self.is_raised(sample.now) {
            let delivered = self.rounds.last.0.max(self.rounds.latest.0);
            self.enter_probe_rtt(Some((self.round_trip.last_round().least, delivered)));
        }
        if sample.acked_packets > 0 {
            self.pauses.is_restart = false;
        }
    }

    /// Whether the round-trip time has stayed above the minimum although no queue is intended.
    fn is_raised(&mut self, now: Time) -> bool {
        let expects_none = match self.phase {
            Phase::Cruise => true,
            // A draining queue leaves the window partly unused.
            Phase::Down => self.is_window_full(),
            _ => false,
        };
        let is_exempt = !expects_none || !self.cycle.is_clean();
        if is_exempt && !(self.phase.is_probe_bw() && self.exceeds_own_queue()) {
            self.round_trip.reset_raised();
        }
        // A recent probe explains the round-trip time, unless it has grown far beyond what it was then.
        let is_probed = now < self.raise_blocked_until && {
            let explained = self.rtt_probe.raised.map_or(Span::MAX, |(before, _)| before * LONGER);
            self.round_trip.last_round().least <= explained
        };
        self.settings.rtt_rise > 0.0 && !is_probed && self.round_trip.is_raised(now)
    }

    /// Whether the last round was longer than the queue that the window of a bandwidth probe can cause.
    fn exceeds_own_queue(&self) -> bool {
        self.round_trip.last_round().least > self.loop_time().mul_f64(UP_WINDOW)
    }

    fn enter_probe_rtt(&mut self, raised: Option<(Span, Rate)>) {
        self.prior_window = self.window;
        self.phase = Phase::ProbeRtt;
        self.cycle.acks = Acks::Stopping;
        self.rtt_probe = RttProbe { drained: None, round_done: false, raised };
        self.start_round();
    }

    /// Returns the window of `ProbeRTT`. For a path that has become narrower, the current delivery rate
    /// counts, not the former bandwidth.
    pub(super) fn probe_rtt_window(&self) -> u64 {
        let (delivered, gain) = match self.rtt_probe.raised {
            Some(_) => (self.rounds.last.0.max(self.rounds.latest.0), RAISED_GAIN),
            None => (Rate::MAX, PROBE_RTT_GAIN),
        };
        let bandwidth = self.bandwidth().min(delivered);
        (volume(bandwidth, gain, self.min_rtt()) + volume(bandwidth, 1.0, self.interval)).max(self.min_pipe())
    }

    fn continue_probe_rtt(&mut self, sample: &FeedbackSample<'_>, is_round: bool) {
        let rtt = sample.rtt.latest().max(Span::from_micros(1));
        let fits = self.in_flight <= self.probe_rtt_window();
        let RttProbe { drained, round_done, raised } = &mut self.rtt_probe;
        let duration = if raised.is_some() { RAISED_PROBE_DURATION } else { PROBE_RTT_DURATION };
        match drained {
            None if fits => {
                *drained = Some((sample.now, rtt));
                self.start_round();
            }
            None => {}
            Some((since, least)) => {
                *least = rtt.min(*least);
                *round_done |= is_round;
                if *round_done && sample.now >= *since + duration {
                    let least = *least;
                    self.leave_probe_rtt(sample.now, least);
                }
            }
        }
    }

    /// The draft's `ExitProbeRTT`.
    fn leave_probe_rtt(&mut self, now: Time, found: Span) {
        self.round_trip.on_probed(now);
        self.window = self.window.max(self.prior_window);
        self.short_term = ShortTerm::default();
        let is_new_path = self.check_raised(now, found);
        if !self.is_filled {
            self.phase = Phase::Startup;
        } else if is_new_path {
            // The new path may have more capacity, too.
            self.enter_refill();
        } else {
            self.resume_cycle(now);
        }
    }

    /// Judges an extra probe: returns true if the path has changed.
    fn check_raised(&mut self, now: Time, found: Span) -> bool {
        let Some((before, delivered)) = self.rtt_probe.raised else { return false };
        self.raise_blocked_until = now + self.cycle.least_wait();
        let least = self.min_rtt();
        let (remaining_rise, rise) = (found.saturating_sub(least), before.saturating_sub(least));
        if remaining_rise <= rise / 2 {
            if delivered > Rate::ZERO {
                self.max_bandwidth.reset(delivered.min(self.max_bandwidth.get()));
            }
            return false;
        }
        if !self.is_same_rtt(before, found) {
            if found > before {
                // The path became longer during the probe: another probe shows whether it stays.
                self.raise_blocked_until = now + found * REFILLED;
            }
            // An earlier queue may have drained meanwhile.
            if self.longer_path.may_have_doubled() {
                self.keep_bandwidth();
            }
            return false;
        }
        self.round_trip.adopt(now, found);
        self.long_term = None;
        let is_new_path = found > least * LONGER;
        if is_new_path {
            self.keep_bandwidth();
        }
        is_new_path
    }

    /// Samples since the path became longer were limited by the shorter path's window: they must not displace
    /// the older maximum.
    fn keep_bandwidth(&mut self) {
        self.max_bandwidth.reset(self.max_bandwidth.get());
    }

    /// Whether a probe has not changed the round-trip time.
    fn is_same_rtt(&self, before: Span, found: Span) -> bool {
        let change = found.max(before).saturating_sub(found.min(before));
        change <= found / SAME_RTT_DIVISOR + self.bandwidth().time_for(self.datagram)
    }

    /// Resumes the cycle of bandwidth probes.
    fn resume_cycle(&mut self, now: Time) {
        // Beside another flow the round trip is probed so often that the next bandwidth probe would never be
        // due. After one that was too high the wait may restart a limited number of times, or CUBIC would get
        // too little.
        let is_raised = self.rtt_probe.raised.is_some();
        if is_raised && (!self.cycle.was_too_high || self.cycle.postponed >= MAX_POSTPONED) {
            self.begin_down();
        } else {
            self.enter_down(now);
            self.cycle.postponed += u32::from(is_raised);
        }
        self.phase = Phase::Cruise;
    }
}
