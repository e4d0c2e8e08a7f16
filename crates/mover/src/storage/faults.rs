//! File systems that fail, for tests.
//!
//! A rule holds for the thread that has [entered](Disk::run) it and for every thread that a job starts there, so
//! that tests beside each other do not disturb each other.

use std::cell::RefCell;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use rustix::io::Errno;

pub use super::Call;

/// What becomes of a call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// It is made.
    Pass,
    /// It fails with this error number (errno(3)).
    Fail(i32),
    /// A write takes half of its bytes; any other call is made.
    Short,
}

type Rule = dyn Fn(u64, Call) -> Verdict + Send + Sync;

/// A disk with a mind of its own.
#[derive(Clone)]
pub struct Disk(Arc<Inner>);

struct Inner {
    calls: AtomicU64,
    rule: Box<Rule>,
}

impl fmt::Debug for Disk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Disk").field("calls", &self.calls()).finish()
    }
}

impl Disk {
    /// Asks `rule`, with the number of the call (from 0) and what it is for.
    pub fn new(rule: impl Fn(u64, Call) -> Verdict + Send + Sync + 'static) -> Self {
        Self(Arc::new(Inner { calls: AtomicU64::new(0), rule: Box::new(rule) }))
    }

    /// Reading and writing waits as long as it would take at so many bytes per second.
    pub fn slow(bytes_per_second: u64) -> Self {
        Self::taking(bytes_per_second, std::thread::sleep)
    }

    /// Reading and writing is work for the processor, which does so many bytes per second.
    pub fn laborious(bytes_per_second: u64) -> Self {
        Self::taking(bytes_per_second, |time| {
            let start = Instant::now();
            while start.elapsed() < time {
                std::hint::spin_loop();
            }
        })
    }

    fn taking(bytes_per_second: u64, take: impl Fn(Duration) + Send + Sync + 'static) -> Self {
        Self::new(move |_, call| {
            if let Call::Read(len) | Call::Write(len) = call {
                take(Duration::from_secs_f64(len as f64 / bytes_per_second as f64));
            }
            Verdict::Pass
        })
    }

    /// How many calls there were.
    pub fn calls(&self) -> u64 {
        self.0.calls.load(Ordering::Relaxed)
    }

    /// Does `work` on this disk.
    pub fn run<T>(&self, work: impl FnOnce() -> T) -> T {
        Inherited(Some(self.clone())).run(work)
    }
}

thread_local! {
    static HERE: RefCell<Option<Disk>> = const { RefCell::new(None) };
}

/// The disk of the whole process: `HAUL_DISK_RATE` is how many bytes it reads or writes in a second; with ` of work` behind it
/// the processor is what takes the time.
fn of_process() -> Option<Disk> {
    static DISK: OnceLock<Option<Disk>> = OnceLock::new();
    let parse = || {
        let value = std::env::var("HAUL_DISK_RATE").ok()?;
        match value.strip_suffix(" of work") {
            Some(rate) => Some(Disk::laborious(rate.parse().ok()?)),
            None => Some(Disk::slow(value.parse().ok()?)),
        }
    };
    DISK.get_or_init(parse).clone()
}

/// What a thread passes on to those that it starts.
#[derive(Clone, Debug)]
pub(crate) struct Inherited(Option<Disk>);

impl Inherited {
    pub(crate) fn here() -> Self {
        Self(HERE.with_borrow(Clone::clone).or_else(of_process))
    }

    pub(crate) fn run<T>(self, work: impl FnOnce() -> T) -> T {
        let before = HERE.replace(self.0);
        let done = work();
        HERE.set(before);
        done
    }
}

/// Decides about a call; of a write, how many bytes it may take.
pub(super) fn decide(call: Call) -> Result<usize, Errno> {
    let Some(disk) = HERE.with_borrow(Clone::clone).or_else(of_process) else { return Ok(usize::MAX) };
    let number = disk.0.calls.fetch_add(1, Ordering::Relaxed);
    match ((disk.0.rule)(number, call), call) {
        (Verdict::Fail(errno), _) => Err(Errno::from_raw_os_error(errno)),
        (Verdict::Short, Call::Write(len)) => Ok(len.div_ceil(2)),
        (Verdict::Pass | Verdict::Short, _) => Ok(usize::MAX),
    }
}
