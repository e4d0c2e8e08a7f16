//! Distinguishes a longer path from a queue: its delay rises in one step, stays, and most packets arrive.

use haul_base::{Span, Time};

use crate::control::FeedbackSample;
use crate::rtt::WindowedMin;

/// Window of the shortest round trip: with a queue that never empties, the minimum of the last 10 s grows.
const LONG_MEMORY: Span = Span::from_secs(120);
/// Smaller steps are jitter of the receive path.
const MIN_STEP: Span = Span::from_millis(2);
/// A step is a growth of the delay by at least this share of the time between two feedbacks. A queue grows as
/// fast only if packets arrive at three times the rate at which it drains: more than any law sends when it
/// starts. A constant rate above the path's can be as high, but then two of three packets are lost while the
/// delay stays. Our choice.
const STEEP: f64 = 2.0 / 3.0;
/// A step counts if the delay has stayed this long and for four round trips: a burst's queue drains.
const HOLD: Span = Span::from_secs(1);
const HOLD_ROUNDS: u64 = 4;

/// Window of the least delay that counts as a standing queue before a step: jitter does not stand.
const STANDING: Span = Span::from_secs(1);

/// A step that may be due to a longer path.
#[derive(Clone, Copy, Debug)]
struct Step {
    at: Time,
    /// Least delay of [`STANDING`] before the step, and the last delay before it.
    floor: Span,
    from: Span,
    /// Delay after its latest growth.
    to: Span,
    /// Half of the step: if the delay falls below it, the step has not stayed.
    half: Span,
    least: Span,
    /// Packets acknowledged and lost since the step.
    acked: u64,
    lost: u64,
}

/// A step that has stayed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rise {
    /// Height of the step. A flow's first burst makes a small step, and its queue stays.
    pub(crate) at_once: Span,
    /// How much longer the path is: the least delay since the step, at most the step itself. More is a queue.
    pub(crate) delay: Span,
}

/// Estimates the delay that was added by the path itself.
#[derive(Debug)]
pub(crate) struct LongerPath {
    round_trips: WindowedMin,
    shortest: Option<Span>,
    last: Option<(Time, Span)>,
    /// Least delay of [`STANDING`].
    floor: WindowedMin,
    step: Option<Step>,
    added: Span,
    risen: Option<Rise>,
}

impl Default for LongerPath {
    fn default() -> Self {
        let [round_trips, floor] = [LONG_MEMORY, STANDING].map(WindowedMin::new);
        Self { round_trips, shortest: None, last: None, floor, step: None, added: Span::ZERO, risen: None }
    }
}

impl LongerPath {
    /// Returns by how much the latest round trip exceeds the shortest of [`LONG_MEMORY`].
    pub(crate) fn longer_round_trip(&mut self, sample: &FeedbackSample<'_>) -> Span {
        if !sample.rtt.is_measured() {
            return Span::ZERO;
        }
        let latest = sample.rtt.latest();
        let shortest = self.round_trips.on_span(sample.now, latest);
        self.shortest = Some(shortest);
        latest.saturating_sub(shortest)
    }

    /// Returns the shortest round trip of [`LONG_MEMORY`], once one was measured.
    pub(crate) fn shortest(&self) -> Option<Span> {
        self.shortest
    }

    /// Returns the delay that the path has added.
    pub(crate) fn added(&self) -> Span {
        self.added
    }

    /// Adds a sample; returns a step, once, when it has stayed.
    pub(crate) fn rise(&mut self, sample: &FeedbackSample<'_>) -> Option<Rise> {
        let longer = self.longer_round_trip(sample);
        self.without(sample, longer);
        self.risen.take()
    }

    /// Adds a sample; returns whether the round trip has more than doubled in one step that has stayed.
    pub(crate) fn has_doubled(&mut self, sample: &FeedbackSample<'_>) -> bool {
        let known = self.shortest.map(|shortest| shortest + self.added);
        let rise = self.rise(sample);
        rise.zip(known).is_some_and(|(rise, known)| rise.at_once > known)
    }

    /// Whether such a step was seen and has stayed so far.
    pub(crate) fn may_have_doubled(&self) -> bool {
        let known = self.shortest.map(|shortest| shortest + self.added);
        self.step.zip(known).is_some_and(|(step, known)| step.to.saturating_sub(step.from) > known)
    }

    /// Adds a delay above the remembered minimum and returns the part of it that is due to the queue.
    pub(crate) fn without(&mut self, sample: &FeedbackSample<'_>, delay: Span) -> Span {
        let (now, round_trip) = (sample.now, sample.rtt.smoothed());
        let floor = self.floor.on_span(now, delay);
        if let Some((at, before)) = self.last.replace((now, delay)) {
            let grown = delay.saturating_sub(before);
            if grown >= MIN_STEP && grown >= now.since(at).mul_f64(STEEP) {
                // The two directions become longer one after the other.
                let (floor, from) = self.step.map_or((floor, before), |step| (step.floor, step.from));
                let half = (from + delay) / 2;
                let step = Step { at: now, floor, from, to: delay, half, least: delay, acked: 0, lost: 0 };
                self.step = Some(step);
            }
        }
        if let Some(step) = &mut self.step {
            step.least = step.least.min(delay);
            step.acked += sample.acked_packets;
            step.lost += sample.lost_packets;
            if delay < step.half {
                self.step = None;
            } else if now.since(step.at) >= HOLD.max(round_trip * HOLD_ROUNDS) {
                if step.lost <= step.acked {
                    // A queue that stood before the step is still there.
                    self.added = step.least.min(self.added + step.to.saturating_sub(step.floor));
                    let at_once = step.to.saturating_sub(step.from);
                    self.risen = Some(Rise { at_once, delay: step.least.min(step.to) });
                }
                self.step = None;
            }
        }
        // The remembered minimum has grown as well, or the path is shorter again.
        self.added = self.added.min(delay);
        delay.saturating_sub(self.added)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::testing::feedback;
    use crate::rtt::RttEstimator;

    /// Queueing delays (ms) computed from delays (ms) reported every 5 ms without loss.
    fn detections(delays: impl IntoIterator<Item = f64>) -> Vec<u64> {
        detections_with_losses(delays.into_iter().map(|delay| (delay, 0)))
    }

    /// The same with this many packets lost for every ten that arrive.
    fn detections_with_losses(delays: impl IntoIterator<Item = (f64, u64)>) -> Vec<u64> {
        let (mut path, rtt) = (LongerPath::default(), RttEstimator::new(Span::from_millis(40)));
        let on_sample = |(n, (delay, lost)): (usize, (f64, u64))| {
            let now = Time::ZERO + Span::from_millis(5) * n as u64;
            let delay = Span::from_secs_f64(delay / 1e3);
            path.without(&feedback(now, &rtt, 10, lost, None), delay).as_micros() / 1_000
        };
        delays.into_iter().enumerate().map(on_sample).collect()
    }

    /// A constant rate of five times the path's fills its queue at once and keeps it full.
    #[test]
    fn a_persistent_delay_with_heavy_loss_is_a_queue() {
        let full = |lost| (0..800).map(move |n| if n < 10 { (0.0, 0) } else { (38.0, lost) });
        assert_eq!(detections_with_losses(full(40))[799], 38);
        assert_eq!(detections_with_losses(full(4))[799], 0, "a medium may lose much, too");
    }

    #[test]
    fn a_persistent_step_is_the_path_and_additional_delay_a_queue() {
        let steps = |n: usize| {
            if n < 10 {
                0.0
            } else if n < 400 {
                30.0
            } else {
                30.0 + (n % 100) as f64 / 10.0
            }
        };
        let queue = detections((0..800).map(steps));
        assert_eq!((queue[20], queue[300], queue[799]), (30, 0, 9));
    }

    #[test]
    fn a_standing_queue_before_a_step_remains_a_queue() {
        let full = |n: usize| f64::min(n as f64 / 10.0, 20.0);
        let longer = |n: usize| f64::from(u8::from(n >= 400)) * 60.0 + f64::from(u8::from(n >= 800)) * 30.0;
        let queue = detections((0..1_200).map(|n| full(n) + longer(n)));
        assert_eq!((queue[399], queue[799], queue[1_199]), (20, 20, 20));
        // The queue drains on the longer path.
        let queue = detections((0..800).map(|n| longer(n) + if n < 450 { full(n) } else { 0.0 }));
        assert_eq!(queue[799], 0);
    }

    #[test]
    fn a_path_that_is_short_again_adds_no_delay() {
        let queue = detections((0..900).map(|n| {
            if (10..400).contains(&n) {
                30.0
            } else if n < 600 {
                0.0
            } else {
                20.0
            }
        }));
        assert_eq!((queue[399], queue[500], queue[650]), (0, 0, 20));
    }

    #[test]
    fn growing_and_burst_filled_queues_are_queues() {
        // The queue grows by 1 ms per 5 ms and stays full.
        let grows = detections((0..800).map(|n| f64::min(n as f64, 20.0)));
        assert_eq!((grows[300], grows[799]), (20, 20));
        // The queue is filled at once every 500 ms and drains within 250 ms.
        let bursts = detections(
            (0..800).map(|n| if n < 50 { 0.0 } else { 20.0 - f64::min((n % 100) as f64 * 0.4, 20.0) }),
        );
        assert_eq!((bursts[700], bursts[760]), (20, 0));
    }
}
