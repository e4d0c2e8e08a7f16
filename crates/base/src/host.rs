//! What a host says of its own load.

use crate::Span;

/// One look at the load of a host. A field is `None` where the host cannot say. Totals count from the start of the
/// session, so that a lost sample costs nothing; [`HostSample::since`] turns them into what happened between two looks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HostSample {
    /// Total time for which the thread that reads the socket was ready to run and had no processor
    /// (`/proc/thread-self/schedstat`, second field).
    pub run_delay: Option<Span>,
    /// How full the socket's receive buffer is, thousandths.
    pub socket_fill: Option<u16>,
    /// How often that thread was made to give up its processor, in total (`nonvoluntary_ctxt_switches`).
    pub involuntary_switches: Option<u32>,
    /// Share of the last 10 s in which some task waited for a processor, thousandths (`/proc/pressure/cpu`,
    /// `some avg10`).
    pub cpu_pressure: Option<u16>,
    /// The same for tasks that waited for a disk (`/proc/pressure/io`). What the receiving program itself cannot take
    /// because its disk is behind, the flow control says.
    pub disk_pressure: Option<u16>,
    /// Total time that the hypervisor gave to others (`/proc/stat`, `steal`).
    pub steal: Option<Span>,
    /// How long that thread has slept lately, as the O(1) scheduler of Linux 2.6 averages it (`sleep_avg`, up to 1 s),
    /// of which its dynamic priority follows. Schedulers of today have no such value; the simulated one has.
    pub sleep_average: Option<Span>,
    /// Packets that the host dropped before a socket saw them, in total, wrapping: the ring of the interface that the
    /// data come in by was full, or the kernel's queue of a processor. They need not be this session's.
    pub early_drops: Option<u32>,
}

impl HostSample {
    /// How often a host is looked at, at most. A look costs a few microseconds: well below 0.1 % of a core.
    pub const INTERVAL: Span = Span::from_millis(50);

    /// The totals as what has happened since `before`; the other fields as they are. A total that was not known before
    /// is not known to have changed.
    #[must_use]
    pub fn since(&self, before: &Self) -> Self {
        let grown = |new: Option<Span>, old: Option<Span>| Some(new?.saturating_sub(old?));
        let counted = |new: Option<u32>, old: Option<u32>| Some(new?.wrapping_sub(old?));
        Self {
            run_delay: grown(self.run_delay, before.run_delay),
            involuntary_switches: counted(self.involuntary_switches, before.involuntary_switches),
            steal: grown(self.steal, before.steal),
            // An interface that was made anew counts from zero.
            early_drops: counted(self.early_drops, before.early_drops).filter(|grown| *grown <= u32::MAX / 2),
            ..*self
        }
    }

    /// What has happened since the look before `earlier`, if `self` and `earlier` say what has happened since the look
    /// before each ([`HostSample::since`]).
    #[must_use]
    pub fn with(&self, earlier: &Self) -> Self {
        let sum = |new: Option<Span>, old: Option<Span>| {
            Some(Span::from_nanos(new?.as_nanos().saturating_add(old.unwrap_or_default().as_nanos())))
        };
        let counted = |new: Option<u32>, old: Option<u32>| Some(new?.saturating_add(old.unwrap_or_default()));
        Self {
            run_delay: sum(self.run_delay, earlier.run_delay),
            involuntary_switches: counted(self.involuntary_switches, earlier.involuntary_switches),
            steal: sum(self.steal, earlier.steal),
            early_drops: counted(self.early_drops, earlier.early_drops),
            ..*self
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn totals_become_what_happened_since_and_the_rest_stays() {
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
