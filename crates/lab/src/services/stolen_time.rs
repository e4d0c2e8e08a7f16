//! CPU time that a virtual machine's hypervisor gave to other guests.

use std::fs;

/// Above this share of stolen time, results for small messages characterise the host rather than the carrier.
pub(super) const QUIET: f64 = 0.01;

/// CPU time counters of all processors (`proc_stat(5)`), in ticks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Ticks {
    stolen: u64,
    all: u64,
}

impl Ticks {
    /// Reads the counters; zero where they are not available.
    pub(super) fn now() -> Self {
        fs::read_to_string("/proc/stat").ok().as_deref().and_then(Self::parse).unwrap_or_default()
    }

    fn parse(stat: &str) -> Option<Self> {
        // User, nice, system, idle, iowait, irq, softirq, steal; guest time is included in the first two.
        let line = stat.lines().find_map(|line| line.strip_prefix("cpu "))?;
        let ticks: Vec<u64> =
            line.split_whitespace().take(8).filter_map(|ticks| ticks.parse().ok()).collect();
        Some(Self { stolen: ticks.get(7).copied()?, all: ticks.iter().sum() })
    }

    /// Returns the share stolen since `before`.
    pub(super) fn stolen_since(self, before: Self) -> f64 {
        let all = self.all.saturating_sub(before.all).max(1);
        self.stolen.saturating_sub(before.stolen) as f64 / all as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_share_covers_all_processors() {
        let stat = |stolen| format!("cpu  10 0 20 50 5 1 4 {stolen} 7 0\ncpu0 1 1 1 1 1 1 1 1 1 1\nintr 5\n");
        let [before, after] = [10, 20].map(|stolen| Ticks::parse(&stat(stolen)).unwrap());
        assert_eq!(before, Ticks { stolen: 10, all: 100 });
        assert!((after.stolen_since(before) - 1.0).abs() < 1e-9);
        assert!((after.stolen_since(Ticks::default()) - 20.0 / 110.0).abs() < 1e-9);
        assert!(before.stolen_since(before).abs() < 1e-9);
        assert_eq!(Ticks::parse("cpu0 1 2"), None);
        assert_eq!(Ticks::parse("cpu  1 2"), None);
    }
}
