//! Raw measurements of both worlds, and results computed in the same way for both.

use haul_base::{Rate, Span};
use serde::{Deserialize, Serialize};

use super::cases::{Measure, UdpCase};

/// Payload of a full TCP segment with timestamps.
const MSS: u64 = haul_sim::tcp::MSS as u64;

/// State of a TCP sender at one time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Sample {
    /// Nanoseconds since the flow was able to send.
    pub at_ns: u64,
    /// Segments known to be delivered.
    pub delivered: u64,
    /// Segments sent, including retransmissions.
    pub sent: u64,
    /// Segments retransmitted.
    pub repeated: u64,
    /// Smoothed round-trip time, nanoseconds.
    pub srtt_ns: u64,
    /// Congestion window, segments.
    pub window: u64,
}

/// The flows of one run, sampled at regular intervals.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Series {
    /// Samples of each flow, in the order of the case's laws.
    pub flows: Vec<Vec<Sample>>,
}

impl Series {
    fn part(&self, flow: usize, from: Span) -> &[Sample] {
        let samples = self.flows.get(flow).map_or(&[][..], Vec::as_slice);
        let begin = samples.partition_point(|sample| sample.at_ns < from.as_nanos());
        &samples[begin.min(samples.len().saturating_sub(1))..]
    }

    /// Returns the payload rate from `from` on.
    pub(super) fn goodput(&self, flow: usize, from: Span) -> Rate {
        match self.part(flow, from) {
            [first, .., last] => Rate::from_transfer(
                (last.delivered - first.delivered) * MSS,
                Span::from_nanos(last.at_ns - first.at_ns),
            ),
            _ => Rate::ZERO,
        }
    }

    /// Returns the share of retransmitted segments, over all flows.
    pub(super) fn repeated(&self, from: Span) -> f64 {
        let ends = (0..self.flows.len()).filter_map(|flow| match self.part(flow, from) {
            [first, .., last] => Some((last.repeated - first.repeated, last.sent - first.sent)),
            _ => None,
        });
        let (repeated, sent) = ends.fold((0, 0), |sum, end| (sum.0 + end.0, sum.1 + end.1));
        repeated as f64 / sent.max(1) as f64
    }

    /// Returns the mean of the smoothed round-trip time, milliseconds, over all flows.
    pub(super) fn srtt_ms(&self, from: Span) -> f64 {
        let samples = (0..self.flows.len()).flat_map(|flow| self.part(flow, from));
        let known = samples.filter(|sample| sample.srtt_ns > 0).map(|sample| sample.srtt_ns as f64 / 1e6);
        let (sum, count) = known.fold((0.0, 0u64), |(sum, count), ms| (sum + ms, count + 1));
        sum / count.max(1) as f64
    }
}

/// Arrivals of numbered packets.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Arrivals {
    /// Packets sent.
    pub sent: u64,
    /// Number and delay in nanoseconds, in order of arrival.
    pub delays: Vec<(u64, u64)>,
    /// Actual sending times in nanoseconds since the first packet; empty in virtual time.
    #[serde(default)]
    pub sent_at: Vec<u64>,
    /// Packets lost by the emulator or the receiving socket, not by the path. A valid measurement has none.
    #[serde(default)]
    pub foreign: u64,
}

impl Arrivals {
    /// Computes a quantity; the first 10 % of the packets are not evaluated.
    pub(super) fn measure(&self, case: &UdpCase, what: Measure) -> f64 {
        let skip = self.sent / 10;
        let mut delays: Vec<u64> = self.delays.iter().filter(|d| d.0 >= skip).map(|d| d.1).collect();
        delays.sort_unstable();
        let quantile = |share: f64| {
            let place = (delays.len().saturating_sub(1) as f64 * share).round() as usize;
            delays.get(place).map_or(f64::NAN, |ns| *ns as f64 / 1e6)
        };
        match what {
            Measure::Median => quantile(0.5),
            Measure::P99 => quantile(0.99),
            Measure::MeanWait => {
                let mean = delays.iter().sum::<u64>() as f64 / delays.len().max(1) as f64;
                mean / 1e6 - case.unqueued.as_millis_f64()
            }
            Measure::Loss => 100.0 * (1.0 - delays.len() as f64 / (self.sent - skip).max(1) as f64),
            Measure::MeanRun => {
                let runs = self.runs(skip);
                runs.iter().sum::<u64>() as f64 / runs.len().max(1) as f64
            }
        }
    }

    /// Returns the lengths of the runs of lost packets from number `from` on.
    fn runs(&self, from: u64) -> Vec<u64> {
        let mut numbers: Vec<u64> = self.delays.iter().map(|d| d.0).filter(|n| *n >= from).collect();
        numbers.sort_unstable();
        numbers.dedup();
        numbers.windows(2).map(|pair| pair[1] - pair[0] - 1).filter(|run| *run > 0).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compare::cases;

    fn sample(secs: u64, delivered: u64, sent: u64, repeated: u64, srtt_ms: u64) -> Sample {
        let (at_ns, srtt_ns) = (secs * 1_000_000_000, srtt_ms * 1_000_000);
        Sample { at_ns, delivered, sent, repeated, srtt_ns, window: 10 }
    }

    #[test]
    fn a_series_counts_from_its_start() {
        let flow = vec![sample(0, 0, 0, 0, 0), sample(1, 100, 120, 20, 40), sample(3, 1_100, 1_320, 80, 60)];
        let series = Series { flows: vec![flow] };
        // 1,000 segments of 1,448 bytes in 2 s.
        assert_eq!(series.goodput(0, Span::from_secs(1)), Rate::from_bps(5_792_000));
        assert!((series.repeated(Span::from_secs(1)) - 0.05).abs() < 1e-9);
        assert!((series.srtt_ms(Span::ZERO) - 50.0).abs() < 1e-9);
        assert_eq!(Series::default().goodput(0, Span::ZERO), Rate::ZERO);
    }

    #[test]
    fn arrivals_give_loss_runs_and_waits() {
        let case = cases::udp().remove(0);
        let base = case.unqueued.as_nanos();
        // The first two of 20 are not evaluated; 5, 6 and 10 are lost, all others have waited 1 ms.
        let delays = (0..20).filter(|n| ![5, 6, 10].contains(n)).map(|n| (n, base + 1_000_000)).collect();
        let arrivals = Arrivals { sent: 20, delays, ..Arrivals::default() };
        assert!((arrivals.measure(&case, Measure::Loss) - 100.0 * 3.0 / 18.0).abs() < 1e-9);
        assert!((arrivals.measure(&case, Measure::MeanRun) - 1.5).abs() < 1e-9);
        assert!((arrivals.measure(&case, Measure::MeanWait) - 1.0).abs() < 1e-9);
        assert!((arrivals.measure(&case, Measure::P99) - (base as f64 / 1e6 + 1.0)).abs() < 1e-9);
    }
}
