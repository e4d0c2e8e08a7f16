//! Signature of a transmission window: which of its packets arrived, in sending order.

/// Number of received packets between two losses that separates two bursts. Our choice: the smallest power of
/// two that leaves hardly any window of the training data undecided.
const BURST_GAP: u64 = 256;

/// A run of consecutive lost packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// Position of the first packet in the window, from 0.
    pub first: u64,
    /// Length of the run, at least 1.
    pub packets: u64,
}

/// The bursts of a window in which each burst was lost completely.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CompleteBursts {
    /// Number of bursts, at least one.
    pub number: usize,
    /// Packets in the shortest burst, at least two.
    pub shortest: u64,
}

impl Run {
    /// Returns the position after the last packet.
    fn end(&self) -> u64 {
        self.first + self.packets
    }
}

/// A sequence of received (1) and lost (0) packets (dickens-classifier, section 3.1), stored as runs of lost
/// ones: losses are few, and every measure needs time and memory proportional to the runs only.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Signature {
    packets: u64,
    lost: u64,
    runs: Vec<Run>,
}

impl Signature {
    /// Creates an empty signature.
    pub fn new() -> Self {
        Self::default()
    }

    /// Appends received packets.
    pub fn received(&mut self, packets: u64) {
        self.packets = self.packets.saturating_add(packets);
    }

    /// Appends lost packets. A signature has at most `u64::MAX` packets; more are ignored.
    pub fn lost(&mut self, packets: u64) {
        let packets = packets.min(u64::MAX - self.packets);
        if packets == 0 {
            return;
        }
        match self.runs.last_mut().filter(|run| run.end() == self.packets) {
            Some(run) => run.packets += packets,
            None => self.runs.push(Run { first: self.packets, packets }),
        }
        self.packets += packets;
        self.lost += packets;
    }

    /// Creates the signature of a window of `packets` with losses at `positions`, in any order and possibly
    /// repeated; positions outside the window are ignored.
    pub fn of_lost(packets: u64, positions: impl IntoIterator<Item = u64>) -> Self {
        let mut signature = Self::new();
        signature.set_lost(packets, &mut positions.into_iter().collect());
        signature
    }

    /// Sets the signature as by [`of_lost`](Self::of_lost), reusing its memory. Sorts the positions.
    pub fn set_lost(&mut self, packets: u64, positions: &mut Vec<u64>) {
        positions.sort_unstable();
        positions.dedup();
        self.clear();
        for &position in positions.iter().take_while(|position| **position < packets) {
            self.received(position - self.packets);
            self.lost(1);
        }
        self.received(packets - self.packets);
    }

    /// Removes all packets, but keeps the memory.
    pub fn clear(&mut self) {
        self.runs.clear();
        (self.packets, self.lost) = (0, 0);
    }

    /// Appends the packets of the next window.
    pub fn append(&mut self, next: &Self) {
        let mut position = 0;
        for run in &next.runs {
            self.received(run.first - position);
            self.lost(run.packets);
            position = run.end();
        }
        self.received(next.packets - position);
    }

    /// Returns the number of packets.
    pub fn packets(&self) -> u64 {
        self.packets
    }

    /// Returns the number of lost packets.
    pub fn lost_packets(&self) -> u64 {
        self.lost
    }

    /// Returns the runs of lost packets, in order; runs never touch.
    pub fn runs(&self) -> &[Run] {
        &self.runs
    }

    /// Returns the share of lost packets, 0 to 1; 0 for an empty window.
    pub fn loss_rate(&self) -> f64 {
        self.lost as f64 / self.packets.max(1) as f64
    }

    /// Returns the share of lost packets that are followed by another lost one (dickens-classifier, section
    /// 3.1.5), in `[0, 1)`; `None` without losses.
    pub fn success_proportion(&self) -> Option<f64> {
        (self.lost > 0).then(|| (self.lost - self.runs.len() as u64) as f64 / self.lost as f64)
    }

    /// Returns the density of bursts of losses, in `(0, 1)`; `None` if no burst has two losses. Losses with
    /// fewer than 256 packets between them form a burst; one of `length` packets, `lost` of which were lost,
    /// has the density `(lost - 1) / length`. The result is the mean over all lost packets. Our measure: a
    /// host that does not read loses everything until it reads again, a full queue only the excess, and a
    /// medium single packets.
    pub fn burst_density(&self) -> Option<f64> {
        let weighted = |(lost, length): (u64, u64)| lost as f64 * (lost - 1) as f64 / length as f64;
        let density = self.bursts().map(weighted).sum::<f64>() / self.lost as f64;
        (density > 0.0).then_some(density)
    }

    /// Returns the bursts of [`Signature::burst_density`], if each was lost completely and none is a single
    /// packet.
    pub fn complete_bursts(&self) -> Option<CompleteBursts> {
        let (number, shortest) =
            self.bursts().try_fold((0, u64::MAX), |(number, shortest), (lost, length)| {
                (lost == length && lost > 1).then_some((number + 1, shortest.min(lost)))
            })?;
        (number > 0).then_some(CompleteBursts { number, shortest })
    }

    /// Returns the lost packets of each burst, and the number of packets from its first to its last loss.
    fn bursts(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.runs.chunk_by(|run, next| next.first - run.end() < BURST_GAP).map(|burst| {
            let length = burst[burst.len() - 1].end() - burst[0].first;
            (burst.iter().map(|run| run.packets).sum(), length)
        })
    }

    /// Returns the positions of the lost packets, in order.
    pub fn lost_positions(&self) -> impl Iterator<Item = u64> + '_ {
        self.runs.iter().flat_map(|run| run.first..run.end())
    }

    /// Returns for each packet whether it arrived.
    pub fn symbols(&self) -> impl Iterator<Item = bool> + '_ {
        let ends = self.runs.iter().map(|run| (run.first, run.end()));
        let last = std::iter::once((self.packets, self.packets));
        let mut position = 0;
        ends.chain(last).flat_map(move |(from, to)| {
            let received = from - position;
            position = to;
            (0..received).map(|_| true).chain((from..to).map(|_| false))
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    fn of(text: &str) -> Signature {
        let mut signature = Signature::new();
        text.bytes()
            .for_each(|symbol| if symbol == b'1' { signature.received(1) } else { signature.lost(1) });
        signature
    }

    #[test]
    fn losses_are_runs() {
        let signature = of("1000100");
        assert_eq!((signature.packets(), signature.lost_packets()), (7, 5));
        assert_eq!(signature.runs(), [Run { first: 1, packets: 3 }, Run { first: 5, packets: 2 }]);
        assert_eq!(signature.success_proportion(), Some(0.6));
        assert_eq!(Signature::of_lost(7, [6, 2, 1, 3, 5, 3, 7]), signature);
    }

    #[test]
    fn counts_saturate() {
        let mut signature = Signature::new();
        signature.received(u64::MAX - 5);
        signature.lost(9);
        signature.lost(1);
        signature.received(3);
        let last = Run { first: u64::MAX - 5, packets: 5 };
        assert_eq!(
            (signature.packets(), signature.lost_packets(), signature.runs()),
            (u64::MAX, 5, &[last][..])
        );
        let mut twice = signature.clone();
        twice.append(&signature);
        assert_eq!(twice, signature);
    }

    #[test]
    fn windows_without_a_measure_report_it() {
        for (text, loss, success) in
            [("", 0.0, None), ("1111", 0.0, None), ("0", 1.0, Some(0.0)), ("0000", 1.0, Some(0.75))]
        {
            let signature = of(text);
            assert_eq!((signature.loss_rate(), signature.success_proportion()), (loss, success), "{text}");
        }
    }

    #[test]
    fn a_burst_is_dense_if_all_its_packets_are_lost() {
        let packets = |text: &str, gap: u64| {
            let mut signature = of(text);
            signature.received(gap);
            signature
        };
        assert_eq!([of(""), of("111"), of("101")].map(|signature| signature.burst_density()), [None; 3]);
        assert_eq!(
            [of("100001"), of("1010")].map(|signature| signature.burst_density()),
            [Some(0.75), Some(1.0 / 3.0)]
        );
        // Two bursts, of two and of three lost packets, half and all of whose packets are lost.
        let mut apart = packets("0110", BURST_GAP);
        apart.append(&of("000"));
        assert_eq!(apart.burst_density(), Some((2.0 * 0.25 + 3.0 * (2.0 / 3.0)) / 5.0));
        let mut close = packets("00", BURST_GAP - 1);
        close.append(&of("00"));
        assert_eq!(close.burst_density(), Some(3.0 / (BURST_GAP as f64 + 3.0)));
        // Losses far from each other form no bursts.
        let single = Signature::of_lost(10_000, (0..10).map(|n| n * 1_000));
        assert_eq!((single.burst_density(), single.complete_bursts()), (None, None));
        let all = Signature::of_lost(10_000, [1, 2, 500, 501]);
        let one_single = Signature::of_lost(10_000, [1, 500, 501]);
        let bursts =
            |signature: Signature| signature.complete_bursts().map(|bursts| (bursts.number, bursts.shortest));
        assert_eq!(
            [all, of("1001"), one_single, apart, close, of("")].map(bursts),
            [Some((2, 2)), Some((1, 2)), None, None, None, None]
        );
    }

    proptest! {
        #[test]
        fn symbols_do_not_depend_on_how_runs_are_split(symbols in vec(any::<bool>(), 0..200), cut in 0usize..200) {
            let make = |symbols: &[bool]| {
                let mut signature = Signature::new();
                for arrived in symbols {
                    if *arrived { signature.received(1) } else { signature.lost(1) }
                }
                signature
            };
            let all = make(&symbols);
            prop_assert_eq!(all.symbols().collect::<Vec<_>>(), symbols.clone());
            let zeros = symbols.iter().enumerate().filter(|(_, arrived)| !**arrived).map(|(at, _)| at as u64);
            prop_assert_eq!(all.lost_positions().collect::<Vec<_>>(), zeros.collect::<Vec<_>>());
            let cut = cut.min(symbols.len());
            let mut joined = make(&symbols[..cut]);
            joined.append(&make(&symbols[cut..]));
            prop_assert_eq!(&joined, &all);
            let lost = symbols.iter().enumerate().filter(|(_, arrived)| !**arrived).map(|(at, _)| at as u64);
            prop_assert_eq!(&Signature::of_lost(symbols.len() as u64, lost), &all);
            let pairs = symbols.windows(2).filter(|pair| !pair[0] && !pair[1]).count() as f64;
            let zeros = symbols.iter().filter(|arrived| !**arrived).count() as f64;
            prop_assert_eq!(all.success_proportion(), (zeros > 0.0).then_some(pairs / zeros));
        }
    }
}
