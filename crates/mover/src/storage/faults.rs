//! Faulty file systems for tests. Without the feature `faults`, every call is passed on.
//!
//! A rule applies to the thread that [runs](Disk::run) on its disk and to threads that jobs start there, so
//! that parallel tests do not disturb each other.

#![cfg_attr(not(feature = "faults"), expect(dead_code, unreachable_pub, reason = "only tests use it"))]

use std::cell::RefCell;
use std::ffi::{CStr, CString};
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

use derive_more::Debug;
use parking_lot::Mutex;
use rustix::fs::{Dir, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

/// Kind of a file system call.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Call {
    /// `openat`, `openat2`, `dup`.
    Open,
    /// `fstat`, `fstatat`, `fstatfs`, `faccessat`, `readlinkat`, `getxattr`, `listxattr`.
    Stat,
    /// Lists the names in a directory.
    List,
    /// `lseek` for holes.
    Seek,
    /// `pread` of at most this many bytes.
    Read(usize),
    /// `write`, `pwrite`, `copy_file_range` of at most this many bytes.
    Write(usize),
    /// `fallocate`, `ftruncate`.
    Size,
    /// `mkdirat`, `symlinkat`, `linkat`.
    Make,
    /// `renameat`.
    Rename,
    /// `unlinkat`.
    Remove,
    /// `fchmod`, `fchownat`, `utimensat`, `setxattr`, `removexattr`.
    Attributes,
    /// `fsync`, `fdatasync`, `syncfs`.
    Sync,
    /// `flock`.
    Lock,
}

/// Outcome of a call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// It is executed.
    Pass,
    /// It fails with this error number (errno(3)).
    Fail(i32),
    /// A write accepts half of its bytes; other calls are executed.
    Short,
}

type Rule = dyn Fn(u64, Call) -> Verdict + Send + Sync;

/// A disk with a rule that decides the outcome of each call.
#[derive(Clone, Debug)]
#[debug("Disk {{ calls: {} }}", _0.calls.load(Ordering::Relaxed))]
pub struct Disk(Arc<Inner>);

struct Inner {
    calls: AtomicU64,
    rule: Box<Rule>,
    /// Whether it folds names. Locked from lookup to call: nothing is created in between.
    folds: Option<Mutex<()>>,
}

impl Disk {
    /// Creates a disk. `rule` receives the number of the call (from 0) and its kind.
    pub fn new(rule: impl Fn(u64, Call) -> Verdict + Send + Sync + 'static) -> Self {
        Self(Arc::new(Inner { calls: AtomicU64::new(0), rule: Box::new(rule), folds: None }))
    }

    /// Creates a disk on which names that differ only in case, or in the normalisation of `é`, are one name. An
    /// existing file keeps its spelling.
    pub fn folding() -> Self {
        let rule = Box::new(|_, _| Verdict::Pass);
        Self(Arc::new(Inner { calls: AtomicU64::new(0), rule, folds: Some(Mutex::default()) }))
    }

    /// Limits reads and writes to this many bytes per second; with `uses_cpu` they take processor time.
    pub fn slow(bytes_per_second: u64, uses_cpu: bool) -> Self {
        Self::new(move |_, call| {
            if let Call::Read(len) | Call::Write(len) = call {
                let start = Instant::now();
                let time = Duration::from_secs_f64(len as f64 / bytes_per_second as f64);
                if !uses_cpu {
                    std::thread::sleep(time);
                }
                while start.elapsed() < time {
                    std::hint::spin_loop();
                }
            }
            Verdict::Pass
        })
    }

    /// Returns the number of calls.
    pub fn calls(&self) -> u64 {
        self.0.calls.load(Ordering::Relaxed)
    }

    /// Runs `work` on this disk.
    pub fn run<T>(&self, work: impl FnOnce() -> T) -> T {
        Inherited(Some(self.clone())).run(work)
    }
}

thread_local! {
    static HERE: RefCell<Option<Disk>> = const { RefCell::new(None) };
}

/// The disk of the whole process, from the environment: `HAUL_DISK_RATE` is its speed in bytes per
/// second, followed by ` of work` if that takes processor time; `HAUL_DISK_FOLDS` makes it fold names.
static OF_PROCESS: LazyLock<Option<Disk>> = LazyLock::new(|| {
    if std::env::var_os("HAUL_DISK_FOLDS").is_some() {
        return Some(Disk::folding());
    }
    let value = std::env::var("HAUL_DISK_RATE").ok()?;
    let work = value.strip_suffix(" of work");
    Some(Disk::slow(work.unwrap_or(&value).parse().ok()?, work.is_some()))
});

/// Returns the disk of this thread, or that of the process.
#[inline]
fn here() -> Option<Disk> {
    if cfg!(feature = "faults") {
        HERE.with_borrow(Clone::clone).or_else(|| OF_PROCESS.clone())
    } else {
        None
    }
}

/// State that a thread passes on to the threads it starts.
#[derive(Clone, Debug)]
pub(crate) struct Inherited(Option<Disk>);

impl Inherited {
    pub(crate) fn here() -> Self {
        Self(here())
    }

    pub(crate) fn run<T>(self, work: impl FnOnce() -> T) -> T {
        let before = HERE.replace(self.0);
        let done = work();
        HERE.set(before);
        done
    }
}

/// Returns the number of bytes that a write may accept, or the error of the call.
pub(super) fn decide(call: Call) -> Result<usize, Errno> {
    let Some(disk) = here() else { return Ok(usize::MAX) };
    let number = disk.0.calls.fetch_add(1, Ordering::Relaxed);
    match ((disk.0.rule)(number, call), call) {
        (Verdict::Fail(errno), _) => Err(Errno::from_raw_os_error(errno)),
        (Verdict::Short, Call::Write(len)) => Ok(len.div_ceil(2)),
        (Verdict::Pass | Verdict::Short, _) => Ok(usize::MAX),
    }
}

/// Returns the path restrictions; none with `HAUL_DISK_ESCAPES`, which simulates a defect of this program.
pub(crate) fn effective_restrictions(resolve: ResolveFlags) -> ResolveFlags {
    static ESCAPES: LazyLock<bool> = LazyLock::new(|| std::env::var_os("HAUL_DISK_ESCAPES").is_some());
    if cfg!(feature = "faults") && *ESCAPES { ResolveFlags::empty() } else { resolve }
}

/// Calls `real` with `name` as it is spelled in `directory`, if the disk folds names.
pub(super) fn with_spelling<T>(directory: BorrowedFd<'_>, name: &CStr, real: impl FnOnce(&CStr) -> T) -> T {
    let disk = here();
    let Some(folds) = disk.as_ref().and_then(|disk| disk.0.folds.as_ref()) else { return real(name) };
    let _guard = folds.lock();
    let mut path = Vec::new();
    for component in name.to_bytes().split_inclusive(|&byte| byte == b'/') {
        let bare = component.strip_suffix(b"/").unwrap_or(component);
        let listed_name = same_name(directory, &path, bare).ok().flatten();
        path.extend(listed_name.as_deref().unwrap_or(bare));
        path.extend(&component[bare.len()..]);
    }
    // Names contain no NUL.
    let path = CString::new(path).ok();
    real(path.as_deref().unwrap_or(name))
}

/// Returns a name in lower case, with `é` as one character.
fn folded(name: &[u8]) -> Vec<u8> {
    let text = String::from_utf8_lossy(name).to_lowercase();
    text.replace("e\u{301}", "\u{e9}").into_bytes()
}

/// Returns the name in the directory `below` that is the same as `name`: preferably `name` itself.
fn same_name(directory: BorrowedFd<'_>, below: &[u8], name: &[u8]) -> Result<Option<Vec<u8>>, Errno> {
    let below = if below.is_empty() { b"." } else { below };
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let listed = Dir::read_from(rustix::fs::openat(directory, below, flags, Mode::empty())?)?;
    let names = listed.map(|item| Ok(item?.file_name().to_bytes().to_vec()));
    let mut same = names.collect::<Result<Vec<_>, Errno>>()?;
    same.retain(|listed_name| folded(listed_name) == folded(name));
    Ok(same.iter().find(|listed_name| *listed_name == name).or(same.last()).cloned())
}
