//! Published discriminators between congestion and other losses, for comparison. Each uses the arrival times
//! of packets at the receiver, and classifies missing packets when the next one arrives.
//!
//! Biaz and Vaidya, "Discriminating congestion losses from wireless losses using inter-arrival times at the
//! receiver" (ASSET 1999); Tobe et al., "Achieving moderate fairness for UDP flows by path-status
//! classification" (LCN 2000), with the parameters of, and all others from, Cen, Cosman and Voelker,
//! "End-to-end differentiation of congestion and wireless losses" (IEEE/ACM Transactions on Networking 11(5),
//! 2003).

/// Biaz: the packet after `lost` missing ones arrives as late as if they had arrived before it, so the
/// bottleneck has forwarded them. Times in any unit: `gap` since the previous packet, `least` the shortest
/// gap between two packets so far. `upper` is 2 in the original and 1.25 as modified (mBiaz). Returns whether
/// they were lost to congestion.
pub fn biaz(lost: u64, gap: f64, least: f64, upper: f64) -> bool {
    let lost = lost as f64;
    !((lost + 1.0) * least..(lost + upper) * least).contains(&gap)
}

/// `ZigZag`: packets were lost to congestion if the one-way trip time `trip` of the next packet is long
/// compared with its `mean` and mean `deviation`; the more packets are missing, the longer it must be.
/// (Citations differ on whether the bound for more than three is above or below the mean; we take the one
/// that continues the sequence.)
pub fn zigzag(lost: u64, trip: f64, mean: f64, deviation: f64) -> bool {
    let bound = match lost {
        0 | 1 => mean - deviation,
        2 => mean - deviation / 2.0,
        3 => mean,
        _ => mean + deviation / 2.0,
    };
    trip >= bound
}

/// Spike: whether the one-way trip time is in a spike, during which losses are congestion. A spike begins
/// above one half of the range of observed trip times, and ends below a third of it.
pub fn spike(was_in_spike: bool, trip: f64, least: f64, most: f64) -> bool {
    let share = if was_in_spike { 1.0 / 3.0 } else { 0.5 };
    let bound = least + share * (most - least);
    if was_in_spike { trip >= bound } else { trip > bound }
}

/// A published algorithm that distinguishes congestion from random loss by delays.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Discriminator {
    /// [`biaz`] with 2.
    Biaz,
    /// [`biaz`] with 1.25.
    ModifiedBiaz,
    /// [`spike`].
    Spike,
    /// [`zigzag`].
    ZigZag,
    /// The hybrid of the last three.
    Zbs,
}

impl Discriminator {
    /// All discriminators.
    pub const ALL: [Self; 5] = [Self::Biaz, Self::ModifiedBiaz, Self::Spike, Self::ZigZag, Self::Zbs];

    /// Returns the name for tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::Biaz => "biaz",
            Self::ModifiedBiaz => "mbiaz",
            Self::Spike => "spike",
            Self::ZigZag => "zigzag",
            Self::Zbs => "zbs",
        }
    }
}

/// Weights of the newest value in the means of the trip time, its deviation and the gaps (Cen et al.).
const TRIP_GAIN: f64 = 1.0 / 32.0;
const DEVIATION_GAIN: f64 = 2.0 * TRIP_GAIN;
const GAP_GAIN: f64 = 0.125;

/// A run of consecutive lost packets, with the verdicts of the discriminators.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Classified {
    /// Packets in the run.
    pub lost: u64,
    /// Verdict of each of [`Discriminator::ALL`].
    pub is_congestion: [bool; 5],
}

/// State of all discriminators for one flow.
#[derive(Clone, Debug, Default)]
pub struct Discriminators {
    /// Previous packet: its number and its arrival time.
    before: Option<(u64, f64)>,
    least_gap: Option<f64>,
    mean_gap: f64,
    trips: Option<(f64, f64)>,
    mean_trip: f64,
    deviation: f64,
    in_spike: bool,
}

impl Discriminators {
    /// Handles the arrival of packet `number`, in order of transmission, at `arrived` after a trip of `trip`,
    /// both in seconds by any clock. If packets before it are missing, returns the verdicts on them. A packet
    /// that is itself late is ignored.
    pub fn on_arrival(&mut self, number: u64, arrived: f64, trip: f64) -> Option<Classified> {
        let Some((last, arrived_before)) = self.before else {
            (self.before, self.trips, self.mean_trip) = (Some((number, arrived)), Some((trip, trip)), trip);
            return None;
        };
        let lost = number.checked_sub(last)?.checked_sub(1)?;
        self.before = Some((number, arrived));
        let gap = arrived - arrived_before;
        let least = self.least_gap.map_or(gap, |least| least.min(gap));
        self.least_gap = Some(least);
        self.mean_gap += (gap / (lost + 1) as f64 - self.mean_gap) * GAP_GAIN;
        let (shortest, longest) = self.trips.map_or((trip, trip), |(a, b)| (a.min(trip), b.max(trip)));
        self.trips = Some((shortest, longest));
        self.in_spike = spike(self.in_spike, trip, shortest, longest);
        let classified = (lost > 0).then(|| self.classify(lost, gap, trip));
        self.deviation += ((trip - self.mean_trip).abs() - self.deviation) * DEVIATION_GAIN;
        self.mean_trip += (trip - self.mean_trip) * TRIP_GAIN;
        classified
    }

    fn classify(&self, lost: u64, gap: f64, trip: f64) -> Classified {
        let least = self.least_gap.unwrap_or(gap);
        let [original, modified] = [2.0, 1.25].map(|upper| biaz(lost, gap, least, upper));
        let zigzag = zigzag(lost, trip, self.mean_trip, self.deviation);
        let shortest = self.trips.map_or(trip, |(shortest, _)| shortest);
        let gaps = self.mean_gap / least;
        let hybrid = if trip < shortest + 0.05 * least {
            self.in_spike
        } else if gaps < 0.875 {
            zigzag
        } else if gaps < 1.5 {
            modified
        } else if gaps < 2.0 {
            zigzag
        } else {
            self.in_spike
        };
        Classified { lost, is_congestion: [original, modified, self.in_spike, zigzag, hybrid] }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn biaz_recognises_a_packet_at_its_expected_arrival_time() {
        // Two missing, one packet per millisecond: the next is due after three.
        for (gap, original, modified) in [
            (2.9, true, true),
            (3.0, false, false),
            (3.2, false, false),
            (3.3, false, true),
            (4.0, true, true),
        ] {
            assert_eq!((biaz(2, gap, 1.0, 2.0), biaz(2, gap, 1.0, 1.25)), (original, modified), "{gap}");
        }
    }

    #[test]
    fn zigzag_requires_a_longer_trip_time_for_more_losses() {
        let bound = |lost| (0..200).map(f64::from).find(|trip| zigzag(lost, *trip, 100.0, 20.0));
        assert_eq!([1, 2, 3, 4, 50].map(bound), [80.0, 90.0, 100.0, 110.0, 110.0].map(Some));
    }

    #[test]
    fn a_spike_starts_above_one_half_and_ends_below_one_third() {
        let trips = [1.0, 5.0, 5.6, 4.0, 3.9, 6.0];
        let mut is_in = false;
        let seen = trips.map(|trip| {
            is_in = spike(is_in, trip, 1.0, 10.0);
            is_in
        });
        assert_eq!(seen, [false, false, true, true, false, true]);
    }

    /// 1,000 packets, one per millisecond, on a path of 20 ms with a queue of up to 30 ms; those in `missing`
    /// are lost.
    fn classified(queue: impl Fn(u64) -> f64, missing: impl Fn(u64) -> bool) -> Vec<Classified> {
        let mut all = Discriminators::default();
        let arrivals = (0..1_000).filter(|number| !missing(*number));
        arrivals
            .filter_map(|number| {
                let trip = 0.020 + queue(number);
                all.on_arrival(number, number as f64 / 1e3 + trip, trip)
            })
            .collect()
    }

    #[test]
    fn losses_on_an_empty_path_are_congestion_only_to_zigzag_and_at_a_full_queue_to_all() {
        let random = classified(|_| 0.0, |number| number % 50 == 49);
        assert_eq!(random.iter().map(|classified| classified.lost).sum::<u64>(), 19);
        // Without a queue every trip equals the mean, at which ZigZag already reports congestion.
        for classified in &random {
            assert_eq!(classified.is_congestion, [false, false, false, true, false], "{classified:?}");
        }
        // The queue grows for 40 packets and is full for 10, in which every other packet is lost.
        let queue = |number: u64| (number % 50).min(40) as f64 * 0.000_75;
        let full = classified(queue, |number| number % 50 >= 40 && number % 2 == 1);
        assert!(full.len() > 90);
        let right = |which: usize| full.iter().filter(|classified| classified.is_congestion[which]).count();
        // The last loss of each fifty is judged by the packet that finds the queue empty again.
        let both = [right(2), right(3)];
        assert!(both.iter().all(|right| right * 5 >= full.len() * 4), "{both:?} of {}", full.len());
    }

    #[test]
    fn late_and_duplicate_packets_change_nothing_and_equal_times_are_allowed() {
        let mut all = Discriminators::default();
        assert_eq!(all.on_arrival(5, 1.0, 0.02), None);
        let before = format!("{all:?}");
        for number in [5, 4, 0] {
            assert_eq!(all.on_arrival(number, 1.1, 0.5), None);
        }
        assert_eq!(format!("{all:?}"), before);
        // Packets of one merged buffer arrive at the same time: nothing fails, and Biaz never sees the gap
        // that it requires.
        for number in (6..100).filter(|number| number % 7 != 0) {
            let classified = all.on_arrival(number, 1.0, 0.02);
            assert!(
                classified.is_none_or(|classified| classified.is_congestion[..2] == [true, true]),
                "{classified:?}"
            );
        }
    }
}
