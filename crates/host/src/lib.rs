//! Samples of a Linux host's load, as [`HostSample`]s.
//!
//! A receiver loses packets when its program does not read the socket in time. The kernel knows why: the
//! thread waited for a CPU, other tasks wait for one or for a disk, or the hypervisor has taken it away.
//! [`Sensors`] read this for their thread.
//!
//! | field | source |
//! |---|---|
//! | `run_delay` | `/proc/thread-self/schedstat`, second number |
//! | `involuntary_switches` | `getrusage(RUSAGE_THREAD)`, `ru_nivcsw` |
//! | `cpu_pressure`, `disk_pressure` | `/proc/pressure/cpu` and `/proc/pressure/io`, `some avg10` |
//! | `steal` | `/proc/stat`, first line, eighth number |
//! | `early_drops` | `/proc/net/softnet_stat`; the interface's `rx_{dropped,missed_errors,fifo_errors}` |
//!
//! [`HostDrops`] separates damaged datagrams from drops, by `InCsumErrors` of `/proc/net/snmp` and
//! `Udp6InCsumErrors` of `/proc/net/snmp6`.
//!
//! `socket_fill` is left to the owner of the socket (`haul_udp::SocketMemory`); no kernel since Linux 2.6.22
//! provides `sleep_average`.
//!
//! Files stay open and are re-read with `pread`. Sampling costs at most a thousandth of a core on any
//! machine: each sample measures its own CPU time and delays the next one accordingly.

#[cfg(not(target_os = "linux"))]
compile_error!("haul-host reads what Linux has in /proc");

mod damaged;
mod early;
mod parse;
mod schedule;
mod since_boot;
mod source;

use std::fmt;
use std::marker::PhantomData;
use std::net::IpAddr;

use haul_base::{HostSample, Span, Time};
use nix::sys::resource::{UsageWho, getrusage};
use rustix::time::{ClockId, clock_gettime};

use early::EarlyDrops;
use schedule::SampleSchedule;
use source::Source;

pub use damaged::HostDrops;
pub use since_boot::{EarlyDropTotals, ProcessorTimes, QueueSettings, peak_memory, process_cpu};
pub use source::SensorError;

/// Interval at which pressures and steal are read: the kernel updates the former every 2 s and counts the
/// latter in units of 10 ms, and generating `/proc/stat` is slow on machines with many cores.
const SLOW_INTERVAL: Span = Span::from_secs(1);

/// Sensors of one thread and its host. Totals count from the creation of the sensors.
pub struct Sensors {
    schedstat: Option<Source>,
    slow: SlowSensors,
    early: EarlyDrops,
    /// Totals when the sensors were created.
    start: HostSample,
    schedule: SampleSchedule,
    /// Makes the type `!Send`: other threads have other counters.
    of_one_thread: PhantomData<*const ()>,
}

impl fmt::Debug for Sensors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sensors")
            .field("start", &self.start)
            .field("schedule", &self.schedule)
            .finish_non_exhaustive()
    }
}

impl Sensors {
    /// Creates sensors of the calling thread and, if `local` is known, of the interface with that address.
    /// What the kernel lacks or does not permit to read is no error: its field of each sample is `None`.
    ///
    /// # Errors
    /// If an existing file cannot be opened, for example because the process has too many open files.
    pub fn of_this_thread(local: Option<IpAddr>) -> Result<Self, SensorError> {
        let mut sensors = Self {
            schedstat: Source::open("/proc/thread-self/schedstat")?,
            slow: SlowSensors::open()?,
            early: EarlyDrops::of_interface_with(local)?,
            start: HostSample::default(),
            schedule: SampleSchedule::new(HostSample::INTERVAL),
            of_one_thread: PhantomData,
        };
        sensors.slow.read();
        sensors.start = sensors.totals();
        Ok(sensors)
    }

    /// Whether the next sample is due.
    pub fn is_due(&self, now: Time) -> bool {
        self.schedule.is_due(now)
    }

    /// Takes a sample; call it on the thread that created the sensors. Pressures and steal are up to 1 s old.
    pub fn sample(&mut self, now: Time) -> HostSample {
        let started = thread_time();
        let totals = self.totals();
        let read = thread_time();
        self.schedule.on_sample(now, read.saturating_sub(started));
        if self.slow.schedule.is_due(now) {
            self.slow.read();
            self.slow.schedule.on_sample(now, thread_time().saturating_sub(read));
        }
        if self.early.schedule.is_due(now) {
            let started = thread_time();
            self.early.read();
            self.early.schedule.on_sample(now, thread_time().saturating_sub(started));
        }
        let sample = HostSample { steal: self.slow.known.steal, ..totals }.since(&self.start);
        // This counts from the start already.
        HostSample { early_drops: self.early.known, ..sample }
    }

    /// Reads the values that change fast, and adds the last known others.
    fn totals(&mut self) -> HostSample {
        let switches = getrusage(UsageWho::RUSAGE_THREAD).ok();
        HostSample {
            run_delay: self.schedstat.as_mut().and_then(|file| file.read(parse::run_delay)),
            // The kernel's long; the low half wraps as the field does.
            involuntary_switches: switches.map(|usage| usage.involuntary_context_switches() as u32),
            ..self.slow.known
        }
    }
}

/// Sensors whose values change slowly or are expensive to read.
struct SlowSensors {
    cpu_pressure: Option<Source>,
    disk_pressure: Option<Source>,
    stat: Option<Source>,
    /// Unit of the times in `/proc/stat`.
    tick: Span,
    known: HostSample,
    schedule: SampleSchedule,
}

impl SlowSensors {
    fn open() -> Result<Self, SensorError> {
        let ticks_per_second = rustix::param::clock_ticks_per_second().max(1);
        Ok(Self {
            cpu_pressure: Source::open("/proc/pressure/cpu")?,
            disk_pressure: Source::open("/proc/pressure/io")?,
            stat: Source::open("/proc/stat")?,
            tick: Span::from_secs(1) / ticks_per_second,
            known: HostSample::default(),
            schedule: SampleSchedule::new(SLOW_INTERVAL),
        })
    }

    fn read(&mut self) {
        let read = |file: &mut Option<Source>| file.as_mut().and_then(|file| file.read(parse::pressure));
        self.known.cpu_pressure = read(&mut self.cpu_pressure);
        self.known.disk_pressure = read(&mut self.disk_pressure);
        let ticks = self.stat.as_mut().and_then(|file| file.read(parse::steal_ticks));
        self.known.steal = ticks.map(|ticks| Span::from_nanos(self.tick.as_nanos().saturating_mul(ticks)));
    }
}

/// CPU time of this thread.
fn thread_time() -> Span {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Span::from_nanos(time.tv_sec.unsigned_abs() * 1_000_000_000 + time.tv_nsec.unsigned_abs())
}
