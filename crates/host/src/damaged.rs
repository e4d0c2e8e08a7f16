//! Corrupted datagrams. Linux counts datagrams with a wrong UDP checksum among the drops of their socket
//! (`udp_recvmsg`, `sk_drops`), but they are damaged by the medium, not dropped by this host.

use haul_base::{Span, Time};

use crate::schedule::SampleSchedule;
use crate::source::{SensorError, Source};
use crate::{parse, thread_time};

/// Minimum interval between reads of the damage counters; longer if reading is slow.
const INTERVAL: Span = Span::from_millis(1);

/// Separates a socket's drops by this host from damaged datagrams. The kernel counts the latter per network
/// namespace: those of other sockets can hide a drop by the host, but never add one.
pub struct HostDrops {
    udp: Option<Source>,
    udp6: Option<Source>,
    split: DropSplit,
    schedule: SampleSchedule,
}

impl std::fmt::Debug for HostDrops {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("HostDrops")
            .field("split", &self.split)
            .field("schedule", &self.schedule)
            .finish_non_exhaustive()
    }
}

impl HostDrops {
    /// Starts counting for sockets in the process's network namespace. Counters that the kernel does not let
    /// this process read are no error: all drops then count as the host's.
    ///
    /// # Errors
    /// If an existing file cannot be opened, for example because the process has too many open files.
    pub fn of_this_process() -> Result<Self, SensorError> {
        let mut drops = Self {
            udp: Source::open("/proc/net/snmp")?,
            udp6: Source::open("/proc/net/snmp6")?,
            split: DropSplit::default(),
            schedule: SampleSchedule::new(INTERVAL),
        };
        drops.split.damaged = drops.damaged();
        Ok(drops)
    }

    /// Returns how many of the socket's `dropped` buffers, a wrapping total, the host dropped. Reads files
    /// only when the total has grown, and at the pace of the other sensors; in between, new drops are
    /// classified like the last ones.
    pub fn count(&mut self, now: Time, dropped: u32) -> u32 {
        if dropped == self.split.dropped {
            return self.split.reported;
        }
        let damaged = self.schedule.is_due(now).then(|| {
            let started = thread_time();
            let damaged = self.damaged();
            self.schedule.on_sample(now, thread_time().saturating_sub(started));
            damaged
        });
        self.split.update(dropped, damaged)
    }

    /// Returns the total of damaged datagrams, wrapping.
    fn damaged(&mut self) -> u32 {
        let read = |file: &mut Option<Source>, parse: fn(&[u8]) -> Option<u32>| {
            file.as_mut().and_then(|file| file.read_complete(parse)).unwrap_or(0)
        };
        read(&mut self.udp, parse::damaged_datagrams)
            .wrapping_add(read(&mut self.udp6, parse::damaged_datagrams_6))
    }
}

/// Counters; all wrap.
#[derive(Debug, Default)]
struct DropSplit {
    /// Totals at the last sample.
    dropped: u32,
    damaged: u32,
    /// Drops since `damaged` was last read.
    new: u32,
    /// Damaged datagrams not counted by the socket yet: it counts them when it dequeues them.
    uncounted: u32,
    /// Whether all new drops of the last sample were damaged datagrams.
    is_damage: bool,
    /// The host's drops at the last sample.
    host: u32,
    /// The host's drops as reported. Never decreases: after too high a guess, it stays until `host` has
    /// caught up.
    reported: u32,
}

impl DropSplit {
    /// Updates with the socket's total and, if read, the total of damaged datagrams. Returns the host's
    /// drops.
    fn update(&mut self, dropped: u32, damaged: Option<u32>) -> u32 {
        self.new = self.new.wrapping_add(dropped.wrapping_sub(std::mem::replace(&mut self.dropped, dropped)));
        if let Some(damaged) = damaged {
            let growth = damaged.wrapping_sub(std::mem::replace(&mut self.damaged, damaged));
            // A counter that decreased was reset.
            let growth = if growth > u32::MAX / 2 { 0 } else { growth };
            let damaged = growth.saturating_add(self.uncounted);
            let by_host = self.new.saturating_sub(damaged);
            self.uncounted = growth.min(damaged.saturating_sub(self.new));
            self.host = self.host.wrapping_add(by_host);
            (self.is_damage, self.new) = (by_host == 0, 0);
        }
        let known = self.host.wrapping_add(if self.is_damage { 0 } else { self.new });
        if known.wrapping_sub(self.reported) <= u32::MAX / 2 {
            self.reported = known;
        }
        self.reported
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reported(samples: &[(u32, Option<u32>)]) -> Vec<u32> {
        let mut split = DropSplit::default();
        samples.iter().map(|&(dropped, damaged)| split.update(dropped, damaged)).collect()
    }

    #[test]
    fn damaged_packets_are_not_the_hosts_losses() {
        assert_eq!(reported(&[(1, Some(0)), (4, Some(0))]), [1, 4], "the host's alone");
        assert_eq!(reported(&[(1, Some(1)), (4, Some(4))]), [0, 0], "damaged alone");
        assert_eq!(reported(&[(1, Some(1)), (6, Some(3)), (7, Some(4))]), [0, 3, 3], "both");
        assert_eq!(
            reported(&[(1, Some(3)), (3, Some(3)), (4, Some(3))]),
            [0, 0, 1],
            "counted before the socket has"
        );
        assert_eq!(
            reported(&[(1, Some(900)), (2, Some(900)), (900, Some(900))]),
            [0, 0, 898],
            "another socket's"
        );
    }

    #[test]
    fn drops_between_samples_have_the_last_ones_kind() {
        assert_eq!(reported(&[(1, Some(0)), (2, None), (3, None), (4, Some(0))]), [1, 2, 3, 4]);
        assert_eq!(reported(&[(1, Some(1)), (2, None), (3, None), (4, Some(4))]), [0, 0, 0, 0]);
        assert_eq!(
            reported(&[(1, Some(1)), (2, None), (9, None), (9 + 1, Some(1))]),
            [0, 0, 0, 9],
            "caught up with"
        );
        let too_many = [(1, Some(0)), (5, None), (6, Some(5)), (9, Some(5)), (10, Some(5))];
        assert_eq!(reported(&too_many), [1, 5, 5, 5, 5], "1 and 3 and 1 are the host's");
    }

    #[test]
    fn counters_can_wrap_and_decreasing_ones_are_ignored() {
        let near = u32::MAX - 1;
        let mut split = DropSplit { dropped: near, damaged: near, ..DropSplit::default() };
        assert_eq!(split.update(1, Some(near)), 3);
        assert_eq!(split.update(4, Some(1)), 3);
        assert_eq!(split.update(6, Some(0)), 5, "it went back");
    }

    #[test]
    fn nothing_is_read_without_drops() {
        let mut drops = HostDrops::of_this_process().unwrap();
        assert_eq!(drops.count(Time::ZERO, 0), 0);
        assert!(drops.schedule.is_due(Time::ZERO));
        assert_eq!(drops.count(Time::ZERO, 2), 2);
        assert!(!drops.schedule.is_due(Time::ZERO));
    }
}
