//! Counters of the machine since boot, and of a process since its start.

use std::fs::{read_dir, read_to_string};

use haul_base::Span;
use rustix::time::{ClockId, clock_gettime};

/// Packets dropped by this machine since boot before they reached a socket.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EarlyDropTotals {
    /// Dropped because a CPU's backlog queue was full.
    pub backlog: u64,
    /// Dropped because a network card's ring was full.
    pub cards: u64,
    /// Packets processed by the CPUs, excluding the dropped ones.
    pub taken: u64,
    /// How often a CPU stopped processing packets because its budget was used up.
    pub squeezes: u64,
}

impl EarlyDropTotals {
    /// Reads the counters. Unreadable ones count as 0.
    pub fn of_this_machine() -> Self {
        let softnet = read_to_string("/proc/net/softnet_stat").unwrap_or_default();
        let devices = read_dir("/sys/class/net").into_iter().flatten().flatten();
        // Drivers use either of two counters.
        let missed = devices.map(|device| {
            let counter_value = |counter: &str| number(device.path().join("statistics").join(counter));
            counter_value("rx_missed_errors").max(counter_value("rx_fifo_errors")).unwrap_or(0)
        });
        let cards = missed.fold(0, u64::saturating_add);
        let of = |column| of_processors(&softnet, column);
        Self { backlog: of(1), cards, taken: of(0), squeezes: of(2) }
    }
}

/// CPU times since boot.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProcessorTimes(Vec<Ticks>);

/// Times of one CPU in the kernel's clock ticks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Ticks {
    number: u32,
    all: u64,
    idle: u64,
}

impl ProcessorTimes {
    /// Reads the times; CPUs that cannot be read are missing.
    pub fn now() -> Self {
        Self::read(&read_to_string("/proc/stat").unwrap_or_default())
    }

    /// Parses lines `cpuN user nice system idle iowait ...` (proc(5)).
    fn read(stat: &str) -> Self {
        let ticks = |line: &str| {
            let (number, times) = line.strip_prefix("cpu")?.split_once(' ')?;
            let times: Vec<u64> =
                times.split_whitespace().take(8).map_while(|time| time.parse().ok()).collect();
            let idle = times.get(3)?.saturating_add(*times.get(4)?);
            Some(Ticks {
                number: number.parse().ok()?,
                all: times.iter().fold(0, |a, b| a.saturating_add(*b)),
                idle,
            })
        };
        Self(stat.lines().filter_map(ticks).collect())
    }

    /// Returns the numbers of the CPUs that were idle for at least this share of the time since `before`.
    pub fn idle_since(&self, before: &Self, share: f64) -> Vec<u32> {
        let was_idle = |(now, then): &(&Ticks, &Ticks)| {
            let (all, idle) = (now.all.saturating_sub(then.all), now.idle.saturating_sub(then.idle));
            now.number == then.number && all > 0 && idle as f64 >= share * all as f64
        };
        self.0.iter().zip(&before.0).filter(was_idle).map(|(now, _)| now.number).collect()
    }
}

/// Settings in `net.core` for queues of packets that have not reached a socket; 0 if unreadable.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueueSettings {
    /// `netdev_max_backlog`
    pub backlog: u64,
    /// `netdev_budget`
    pub budget: u64,
    /// `netdev_budget_usecs`
    pub budget_usecs: u64,
}

impl QueueSettings {
    /// Reads the current settings of this machine.
    pub fn in_force() -> Self {
        let of = |name: &str| number(format!("/proc/sys/net/core/netdev_{name}")).unwrap_or(0);
        Self { backlog: of("max_backlog"), budget: of("budget"), budget_usecs: of("budget_usecs") }
    }
}

fn number(file: impl AsRef<std::path::Path>) -> Option<u64> {
    read_to_string(file).ok()?.trim().parse().ok()
}

/// Sums a column of `/proc/net/softnet_stat`, all hexadecimal, with one line per CPU: column 0 processed
/// packets, 1 dropped packets, 2 time squeezes (`softnet_seq_show` of Linux).
fn of_processors(softnet: &str, column: usize) -> u64 {
    let counter_value = |line: &str| u64::from_str_radix(line.split_whitespace().nth(column)?, 16).ok();
    softnet.lines().filter_map(counter_value).fold(0, u64::saturating_add)
}

/// Returns the CPU time of this process, including all threads.
pub fn process_cpu() -> Span {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Span::from_secs(time.tv_sec.unsigned_abs()) + Span::from_nanos(time.tv_nsec.unsigned_abs())
}

/// Returns this process's peak resident memory in bytes; `None` if `/proc` does not provide it.
pub fn peak_memory() -> Option<u64> {
    peak_of(&read_to_string("/proc/self/status").ok()?)
}

fn peak_of(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn softnet_drops_are_hexadecimal_and_summed_over_processors() {
        let softnet = "0000a9f4 00000010 00000003 00000000\n00008be1 0000000a 00000001 00000000\n";
        assert_eq!((of_processors(softnet, 1), of_processors(softnet, 2)), (26, 4));
        for strange in ["", "\n\n", "1", "1 zz 3", "1 -2 3", "1 fffffffffffffffff 3"] {
            assert_eq!(of_processors(strange, 1), 0, "{strange}");
        }
        assert_eq!(of_processors("0 ffffffffffffffff\n0 1\n", 1), u64::MAX);
    }

    #[test]
    fn idle_and_busy_processors_are_distinguished() {
        let before = ProcessorTimes::read(
            "cpu  9 9 9 9 9 9 9 9 0 0\ncpu0 100 0 0 50 0 0 0 0 0 0\ncpu2 0 0 0 70 0 0 0 0 0 0\n",
        );
        let now = ProcessorTimes::read(
            "cpu  9 9 9 9 9 9 9 9 0 0\ncpu0 119 0 0 51 0 0 0 0 0 0\ncpu2 2 0 0 80 8 0 0 0 0 0\nintr 1",
        );
        assert_eq!((now.idle_since(&before, 0.5), now.idle_since(&now, 0.5)), (vec![2], vec![]));
        for strange in ["", "cpu0", "cpu0 1 2 3", "cpux 1 2 3 4 5", "cpu0 1 2 3 z 5"] {
            assert_eq!(ProcessorTimes::read(strange), ProcessorTimes::default(), "{strange}");
        }
    }

    #[test]
    fn processor_time_grows() {
        let before = process_cpu();
        let sum = (0..2_000_000u64).fold(0, |sum, i| std::hint::black_box(sum ^ i));
        assert!(process_cpu() > before, "{sum}");
    }

    #[test]
    fn the_peak_is_read_from_the_kernels_text() {
        assert_eq!(peak_of("Name:\thaul\nVmHWM:\t  2048 kB\nVmRSS:\t 1 kB\n"), Some(2_097_152));
        assert_eq!(peak_of("Name:\thaul\n"), None);
        assert_eq!(peak_of("VmHWM: many kB\n"), None);
    }
}
