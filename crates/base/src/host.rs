//! Load of a host.

use crate::Span;

/// One sample of a host's load. A field is `None` if the host does not provide it. Totals count from the
/// start of the session, so a lost sample costs nothing; [`HostSample::since`] converts them to the change
/// between two samples.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HostSample {
    /// Total time for which the thread that reads the socket was runnable but had no CPU
    /// (`/proc/thread-self/schedstat`, second field).
    pub run_delay: Option<Span>,
    /// Fill level of the socket's receive buffer in thousandths.
    pub socket_fill: Option<u16>,
    /// Total number of involuntary context switches of that thread (`nonvoluntary_ctxt_switches`).
    pub involuntary_switches: Option<u32>,
    /// Share of the last 10 s in which some task waited for a CPU, in thousandths (`/proc/pressure/cpu`,
    /// `some avg10`).
    pub cpu_pressure: Option<u16>,
    /// The same for tasks waiting for I/O (`/proc/pressure/io`). Data that the receiving program cannot
    /// accept because its disk is slow is covered by flow control.
    pub disk_pressure: Option<u16>,
    /// Total time stolen by the hypervisor (`/proc/stat`, `steal`).
    pub steal: Option<Span>,
    /// Average recent sleep of that thread as computed by the O(1) scheduler of Linux 2.6 (`sleep_avg`, up to
    /// 1 s), which determines its dynamic priority. Current schedulers have no such value; the simulated one
    /// has.
    pub sleep_average: Option<Span>,
    /// Total number of packets dropped by the host before a socket received them, wrapping: the ring of the
    /// receiving interface or a CPU's backlog queue was full. They may belong to other sessions.
    pub early_drops: Option<u32>,
}

impl HostSample {
    /// Minimum time between two samples. A sample costs a few microseconds: well below 0.1 % of a core.
    pub const INTERVAL: Span = Span::from_millis(50);

    /// Returns the change of the totals since `before`, and the other fields unchanged. A change is unknown
    /// if the total was unknown before.
    #[must_use]
    pub fn since(&self, before: &Self) -> Self {
        let growth = |new: Option<Span>, old: Option<Span>| Some(new?.saturating_sub(old?));
        let difference = |new: Option<u32>, old: Option<u32>| Some(new?.wrapping_sub(old?));
        Self {
            run_delay: growth(self.run_delay, before.run_delay),
            involuntary_switches: difference(self.involuntary_switches, before.involuntary_switches),
            steal: growth(self.steal, before.steal),
            // A recreated interface counts from zero.
            early_drops: difference(self.early_drops, before.early_drops)
                .filter(|growth| *growth <= u32::MAX / 2),
            ..*self
        }
    }

    /// Adds two changes: if `earlier` and `self` are successive results of [`HostSample::since`], returns the
    /// change over both intervals.
    #[must_use]
    pub fn with(&self, earlier: &Self) -> Self {
        let sum = |new: Option<Span>, old: Option<Span>| {
            Some(Span::from_nanos(new?.as_nanos().saturating_add(old.unwrap_or_default().as_nanos())))
        };
        let difference =
            |new: Option<u32>, old: Option<u32>| Some(new?.saturating_add(old.unwrap_or_default()));
        Self {
            run_delay: sum(self.run_delay, earlier.run_delay),
            involuntary_switches: difference(self.involuntary_switches, earlier.involuntary_switches),
            steal: sum(self.steal, earlier.steal),
            early_drops: difference(self.early_drops, earlier.early_drops),
            ..*self
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn totals_become_differences_and_other_fields_are_kept() {
        let span = |ms| Some(Span::from_millis(ms));
        let before = HostSample {
            run_delay: span(5),
            involuntary_switches: Some(u32::MAX),
            early_drops: Some(4),
            ..HostSample::default()
        };
        let now = HostSample {
            run_delay: span(12),
            socket_fill: Some(400),
            involuntary_switches: Some(2),
            cpu_pressure: Some(70),
            disk_pressure: Some(80),
            steal: span(1),
            sleep_average: span(300),
            early_drops: Some(13),
        };
        let change = now.since(&before);
        assert_eq!((change.run_delay, change.involuntary_switches, change.steal), (span(7), Some(3), None));
        assert_eq!((change.socket_fill, change.cpu_pressure), (Some(400), Some(70)));
        assert_eq!(change.disk_pressure, Some(80));
        assert_eq!((change.sleep_average, change.early_drops), (span(300), Some(9)));
        let both = change.with(&change);
        assert_eq!((both.run_delay, both.involuntary_switches, both.steal), (span(14), Some(6), None));
        assert_eq!(both.early_drops, Some(18));
        assert_eq!(before.since(&now).early_drops, None, "it went back");
        assert_eq!(
            HostSample { early_drops: None, ..now }.since(&before).early_drops,
            None,
            "it has vanished"
        );
        assert_eq!(both.socket_fill, Some(400));
    }
}
