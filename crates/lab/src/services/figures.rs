//! Computes results from message arrivals.

use super::job::StreamResult;

/// Arrival of a message: nanoseconds since the receiver's start, and bytes.
pub(super) type Arrival = (u64, usize);

/// Initial time that is not evaluated: set-up and the first round trip.
const WARM_UP_NANOS: u64 = 300_000_000;
/// Length of the lines whose intersection determines when a rate changed.
const LINE_NANOS: u64 = 700_000_000;
/// Length of the parts nearest to the change, which determine the height of the lines.
const NEAR_NANOS: u64 = 300_000_000;
/// Number of points from which a line's slope is estimated.
const POINTS: usize = 64;
/// The rate after a change is measured from this long after it.
const AFTER_NANOS: u64 = 300_000_000;
/// Precision of a line in time: bursts of 64 KiB at 100 Mbit/s.
const BURST_NANOS: f64 = 5_200_000.0;
/// Maximum share of headers in the packet rate.
const HEADERS: f64 = 0.1;

/// Returns the `q`-quantile; 0 for an empty slice.
pub(super) fn quantile(values: &mut [f64], q: f64) -> f64 {
    values.sort_by(f64::total_cmp);
    let last = values.len().saturating_sub(1);
    values.get((last as f64 * q).round() as usize).copied().unwrap_or(0.0)
}

/// Returns the mean; 0 for an empty slice.
pub(super) fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len().max(1) as f64
}

fn goodput(arrivals: &[Arrival]) -> f64 {
    let (Some(first), Some(last)) = (arrivals.first(), arrivals.last()) else { return 0.0 };
    let bytes: usize = arrivals[1..].iter().map(|arrival| arrival.1).sum();
    bytes as f64 * 8e9 / (last.0 - first.0).max(1) as f64
}

fn jitter(arrivals: &[Arrival], rate_bps: f64) -> f64 {
    let deviation = |pair: &[Arrival]| {
        let ideal = pair[1].1 as f64 * 8e6 / rate_bps;
        ((pair[1].0 - pair[0].0) as f64 / 1e3 - ideal).abs()
    };
    quantile(&mut arrivals.windows(2).map(deviation).collect::<Vec<_>>(), 0.99)
}

/// Cumulative bytes at each arrival, over time in nanoseconds.
type Curve = [(f64, f64)];

fn curve(arrivals: &[Arrival]) -> Vec<(f64, f64)> {
    let bytes = arrivals.iter().scan(0, |bytes, arrival| {
        *bytes += arrival.1;
        Some((arrival.0 as f64, *bytes as f64))
    });
    bytes.collect()
}

/// Returns the median slope between pairs of points (Theil and Sen), which is robust against stalls.
fn slope(curve: &Curve) -> Option<f64> {
    let points: Vec<_> = curve.iter().step_by(curve.len().div_ceil(POINTS).max(1)).collect();
    let mut slopes = Vec::with_capacity(POINTS * POINTS / 2);
    for (n, a) in points.iter().enumerate() {
        slopes.extend(points[n + 1..].iter().filter(|b| b.0 > a.0).map(|b| (b.1 - a.1) / (b.0 - a.0)));
    }
    (!slopes.is_empty()).then(|| quantile(&mut slopes, 0.5))
}

/// Returns the value at time zero of the line with this slope through most of the points: the median, since
/// points of a stall lie below the line.
fn height(curve: &Curve, slope: f64) -> f64 {
    quantile(&mut curve.iter().map(|point| point.1 - slope * point.0).collect::<Vec<_>>(), 0.5)
}

/// Returns when the rate changed, in nanoseconds after `changed`: where the lines before and after intersect.
/// Packets are sent in bursts, so rates over short windows are imprecise.
fn settled(arrivals: &[Arrival], changed: u64) -> Option<u64> {
    let curve = curve(arrivals);
    let within = |from: u64, to: u64| {
        let index = |at: u64| arrivals.partition_point(|arrival| arrival.0 < at);
        &curve[index(from)..index(to)]
    };
    let after = changed + AFTER_NANOS;
    let old = slope(within(changed.saturating_sub(LINE_NANOS), changed))?;
    let new = slope(within(after, after + LINE_NANOS))?;
    if (new / old - 1.0).abs() < HEADERS {
        return None;
    }
    let before = height(within(changed.saturating_sub(NEAR_NANOS), changed), old);
    let meet = (height(within(after, after + NEAR_NANOS), new) - before) / (old - new);
    // More than one burst before the request: something else has shifted one of the lines.
    let elapsed = meet - changed as f64;
    (elapsed >= -BURST_NANOS).then_some(elapsed.max(0.0) as u64)
}

/// Evaluates the arrivals of a stream whose sender has sent for `millis`. Later arrivals were delayed and are
/// ignored: they would add waiting time to the sending time.
pub(super) fn stream_result(
    all: &[Arrival],
    rate_bps: Option<u64>,
    change: Option<(u64, u64)>,
    millis: u64,
) -> StreamResult {
    let end = all.first().map_or(0, |first| first.0 + millis * 1_000_000);
    let arrivals = &all[..all.partition_point(|arrival| arrival.0 < end)];
    let warm = arrivals.first().map_or(0, |first| first.0 + WARM_UP_NANOS);
    let from = arrivals.partition_point(|arrival| arrival.0 < warm);
    let until = change.map_or(arrivals.len(), |(at, _)| arrivals.partition_point(|arrival| arrival.0 < at));
    let steady = &arrivals[from.min(until)..until];
    let goodput_bps = goodput(steady);
    let nominal = rate_bps.map_or(goodput_bps, |rate| rate as f64);
    let later = change.map(|(at, _)| {
        let from = arrivals.partition_point(|arrival| arrival.0 < at + AFTER_NANOS);
        goodput(&arrivals[from..])
    });
    // The requested rate counts whole packets; the message rate shows at the end.
    let is_reached =
        |&((_, requested), rate): &((u64, u64), f64)| (rate / requested as f64 - 1.0).abs() < HEADERS;
    let elapsed = change.zip(later).filter(is_reached).and_then(|((at, _), _)| settled(arrivals, at));
    StreamResult {
        bytes: all.iter().map(|arrival| arrival.1 as u64).sum(),
        goodput_bps,
        jitter_p99_us: jitter(steady, nominal),
        settled_ms: elapsed.map(|elapsed| elapsed as f64 / 1e6),
        later_goodput_bps: later,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns 1,000-byte messages every `gap` microseconds from `from` to `to` milliseconds.
    fn even(from: u64, to: u64, gap: u64) -> Vec<Arrival> {
        (from * 1_000..to * 1_000).step_by(gap as usize).map(|micros| (micros * 1_000, 1_000)).collect()
    }

    #[test]
    fn an_even_stream_has_its_rate_and_no_jitter() {
        let stream_result = stream_result(&even(0, 2_000, 100), Some(80_000_000), None, 2_000);
        assert!((stream_result.goodput_bps / 80e6 - 1.0).abs() < 1e-3, "{stream_result:?}");
        assert!(stream_result.jitter_p99_us < 1e-6, "{stream_result:?}");
    }

    #[test]
    fn late_messages_do_not_count_for_the_rate() {
        let mut arrivals = even(0, 2_000, 100);
        arrivals.push((2_900_000_000, 1_000));
        let stream_result = stream_result(&arrivals, Some(80_000_000), None, 2_000);
        assert!((stream_result.goodput_bps / 80e6 - 1.0).abs() < 1e-3, "{stream_result:?}");
        assert_eq!(stream_result.bytes, arrivals.len() as u64 * 1_000);
    }

    #[test]
    fn a_change_is_detected_when_it_happens() {
        let mut arrivals = even(0, 1_040, 100);
        arrivals.extend(even(1_040, 2_000, 200));
        let stream_result =
            stream_result(&arrivals, Some(80_000_000), Some((1_000_000_000, 40_000_000)), 2_000);
        let settled = stream_result.settled_ms.unwrap();
        assert!((36.0..=42.0).contains(&settled), "{settled}");
        assert!((stream_result.later_goodput_bps.unwrap() / 40e6 - 1.0).abs() < 0.01);
    }

    #[test]
    fn bursts_do_not_hide_the_time_of_a_change() {
        let bursts = |from: u64, to: u64, gap: u64| even(from, to, gap).into_iter().step_by(45);
        let packets = |(at, len): Arrival| std::iter::repeat_n((at, len), 45);
        let arrivals: Vec<Arrival> =
            bursts(0, 1_061, 100).chain(bursts(1_061, 2_000, 200)).flat_map(packets).collect();
        let stream_result =
            stream_result(&arrivals, Some(80_000_000), Some((1_000_000_000, 40_000_000)), 2_000);
        let settled = stream_result.settled_ms.unwrap();
        assert!((50.0..=72.0).contains(&settled), "{settled}");
    }

    #[test]
    fn stalls_do_not_hide_the_time_of_a_change() {
        // No arrivals for 60 ms; before the change the backlog is recovered, after it never.
        let late = |(at, len): Arrival| {
            (if (800_000_000..860_000_000).contains(&at) { 860_000_000 } else { at }, len)
        };
        let lost = |arrival: &Arrival| !(1_750_000_000..1_810_000_000).contains(&arrival.0);
        let arrivals = even(0, 1_040, 100).into_iter().map(late);
        let arrivals: Vec<Arrival> =
            arrivals.chain(even(1_040, 2_600, 200).into_iter().filter(lost)).collect();
        let stream_result =
            stream_result(&arrivals, Some(80_000_000), Some((1_000_000_000, 40_000_000)), 2_600);
        let settled = stream_result.settled_ms.unwrap();
        assert!((30.0..=50.0).contains(&settled), "{settled}");
    }

    #[test]
    fn a_missing_change_is_not_detected() {
        assert_eq!(
            stream_result(&even(0, 2_000, 100), None, Some((1_000_000_000, 40_000_000)), 2_000).settled_ms,
            None
        );
    }

    #[test]
    fn quantiles() {
        let near = |a: f64, b: f64| (a - b).abs() < 1e-12;
        assert!(near(quantile(&mut [3.0, 1.0, 2.0], 0.5), 2.0));
        assert!(near(quantile(&mut [], 0.5), 0.0));
        assert!(near(mean(&[1.0, 3.0]), 2.0));
    }
}
