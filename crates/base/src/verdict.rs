//! Causes of packet loss.

use serde::{Deserialize, Serialize};

/// A cause of loss.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Cause {
    /// The receiving host: its socket buffer was full because the program did not read it in time.
    ReceiverHost,
    /// A queue on the path was full, or its AQM marked or dropped packets early.
    Congestion,
    /// The medium corrupts packets, independently of the load.
    Random,
    /// The path delivered nothing for a while.
    Outage,
    /// There is too little evidence.
    Inconclusive,
}

impl Cause {
    /// All causes.
    pub const ALL: [Self; 5] =
        [Self::ReceiverHost, Self::Congestion, Self::Random, Self::Outage, Self::Inconclusive];

    /// Returns the name for scripts.
    pub const fn name(self) -> &'static str {
        match self {
            Self::ReceiverHost => "receiver_host",
            Self::Congestion => "congestion",
            Self::Random => "random",
            Self::Outage => "outage",
            Self::Inconclusive => "inconclusive",
        }
    }
}

/// Shares of the causes in the lost packets. The remainder is inconclusive.
#[derive(Clone, Copy, Debug, PartialEq, Default)]
pub struct Verdict {
    receiver_host: f64,
    congestion: f64,
    random: f64,
    outage: f64,
}

impl Verdict {
    /// Attributes all loss to one cause.
    pub fn of(cause: Cause) -> Self {
        Self::mixed(&[(cause, 1.0)]).unwrap_or_default()
    }

    /// Creates a verdict from the shares of several causes; `None` unless each is in [0, 1] and their sum is
    /// at most 1. Causes not listed have no share. [`Cause::Inconclusive`] has the remainder; listing it only
    /// affects the sum.
    pub fn mixed(shares: &[(Cause, f64)]) -> Option<Self> {
        let valid = shares.iter().all(|(_, share)| (0.0..=1.0).contains(share));
        let sum_of_shares: f64 = shares.iter().map(|(_, share)| share).sum();
        let of = |cause| shares.iter().filter(|known| known.0 == cause).map(|known| known.1).sum();
        (valid && sum_of_shares <= 1.0 + 1e-9).then(|| Self {
            receiver_host: of(Cause::ReceiverHost),
            congestion: of(Cause::Congestion),
            random: of(Cause::Random),
            outage: of(Cause::Outage),
        })
    }

    /// Moves a part, 0 to 1, of one cause's share to another cause.
    pub fn attribute(&mut self, from: Cause, to: Cause, part: f64) {
        let moved = self.share(from) * part;
        if let Some(share) = self.share_mut(from) {
            *share -= moved;
        }
        if let Some(share) = self.share_mut(to) {
            *share += moved;
        }
    }

    /// Returns `None` for the cause that has the remainder.
    fn share_mut(&mut self, cause: Cause) -> Option<&mut f64> {
        match cause {
            Cause::ReceiverHost => Some(&mut self.receiver_host),
            Cause::Congestion => Some(&mut self.congestion),
            Cause::Random => Some(&mut self.random),
            Cause::Outage => Some(&mut self.outage),
            Cause::Inconclusive => None,
        }
    }

    /// Returns the cause with the largest share.
    pub fn likeliest(&self) -> Cause {
        let larger = |a: &Cause, b: &Cause| self.share(*a).total_cmp(&self.share(*b));
        Cause::ALL.into_iter().max_by(larger).unwrap_or(Cause::Inconclusive)
    }

    /// Returns the share of a cause, 0 to 1.
    pub fn share(&self, cause: Cause) -> f64 {
        match cause {
            Cause::ReceiverHost => self.receiver_host,
            Cause::Congestion => self.congestion,
            Cause::Random => self.random,
            Cause::Outage => self.outage,
            Cause::Inconclusive => {
                (1.0 - self.receiver_host - self.congestion - self.random - self.outage).max(0.0)
            }
        }
    }
}

/// Lost packets by cause.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CauseCounts([u64; Cause::ALL.len()]);

impl FromIterator<(Cause, u64)> for CauseCounts {
    fn from_iter<T: IntoIterator<Item = (Cause, u64)>>(lost: T) -> Self {
        let mut counts = Self::default();
        lost.into_iter().for_each(|(cause, packets)| counts.add(cause, packets));
        counts
    }
}

impl CauseCounts {
    /// Adds packets lost to a cause.
    pub fn add(&mut self, cause: Cause, packets: u64) {
        let count = &mut self.0[cause as usize];
        *count = count.saturating_add(packets);
    }

    /// Adds the counts of another.
    pub fn merge(&mut self, other: &Self) {
        for cause in Cause::ALL {
            self.add(cause, other.of(cause));
        }
    }

    /// Returns the difference to an earlier state of these counts.
    #[must_use]
    pub fn since(&self, before: &Self) -> Self {
        let of = |cause: Cause| (cause, self.of(cause).saturating_sub(before.of(cause)));
        Cause::ALL.into_iter().map(of).collect()
    }

    /// Returns the number of packets lost to a cause.
    pub fn of(&self, cause: Cause) -> u64 {
        self.0[cause as usize]
    }

    /// Attributes all packets of one cause to another.
    pub fn attribute(&mut self, from: Cause, to: Cause) {
        self.attribute_some(from, to, u64::MAX);
    }

    /// Attributes up to `packets` of one cause to another; returns how many.
    pub fn attribute_some(&mut self, from: Cause, to: Cause, packets: u64) -> u64 {
        let packets = packets.min(self.of(from));
        self.0[from as usize] -= packets;
        self.add(to, packets);
        packets
    }

    /// Returns the number of all lost packets.
    pub fn total(&self) -> u64 {
        self.0.iter().fold(0, |sum, packets| sum.saturating_add(*packets))
    }

    /// Returns each cause's share; `None` if nothing was lost.
    pub fn verdict(&self) -> Option<Verdict> {
        let total = self.total();
        let shares = Cause::ALL.map(|cause| (cause, self.of(cause) as f64 / total as f64));
        if total > 0 { Verdict::mixed(&shares) } else { None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_become_shares() {
        assert_eq!((CauseCounts::default().verdict(), CauseCounts::default().total()), (None, 0));
        let mut counts: CauseCounts = Cause::ALL.into_iter().zip([30, 40, 10, 0, 20]).collect();
        assert_eq!(Cause::ALL.map(|cause| counts.of(cause)), [30, 40, 10, 0, 20]);
        let verdict = counts.verdict().unwrap();
        for (cause, share) in Cause::ALL.into_iter().zip([0.3, 0.4, 0.1, 0.0, 0.2]) {
            assert!((verdict.share(cause) - share).abs() < 1e-12, "{cause:?}: {verdict:?}");
        }
        counts.attribute(Cause::Random, Cause::ReceiverHost);
        assert_eq!((counts.of(Cause::ReceiverHost), counts.of(Cause::Random), counts.total()), (40, 0, 100));
        assert_eq!(counts.attribute_some(Cause::Congestion, Cause::Random, 15), 15);
        assert_eq!(counts.attribute_some(Cause::Random, Cause::Outage, 99), 15);
        assert_eq!((counts.of(Cause::Congestion), counts.of(Cause::Random), counts.total()), (25, 0, 100));
    }

    #[test]
    fn the_remainder_is_inconclusive() {
        let verdict = Verdict::mixed(&[(Cause::ReceiverHost, 0.5), (Cause::Random, 0.25)]).unwrap();
        assert!((verdict.share(Cause::Inconclusive) - 0.25).abs() < 1e-12);
        assert!((Verdict::of(Cause::Inconclusive).share(Cause::Inconclusive) - 1.0).abs() < 1e-12);
        assert!((Verdict::of(Cause::Outage).share(Cause::Outage) - 1.0).abs() < 1e-12);
    }

    #[test]
    fn impossible_shares_are_refused() {
        for shares in [[1.5, 0.0], [-0.1, 0.0], [f64::NAN, 0.0], [0.6, 0.6]] {
            let named = [(Cause::Congestion, shares[0]), (Cause::Random, shares[1])];
            assert_eq!(Verdict::mixed(&named), None, "{shares:?}");
        }
    }
}
