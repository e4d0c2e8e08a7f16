//! What a process does to itself before it becomes something else.

use std::io;

use rustix::process::{Pid, Signal, getppid, set_parent_process_death_signal};
use rustix::thread::CpuSet;

/// Lets the kernel end this process when the thread that started it ends.
///
/// # Errors
/// When `parent` has ended already.
pub fn die_with_parent(parent: i32) -> io::Result<()> {
    set_parent_process_death_signal(Some(Signal::KILL))?;
    if getppid().map(Pid::as_raw_pid) == Some(parent) {
        return Ok(());
    }
    Err(io::Error::other("the emulator has ended"))
}

/// Asks that the calling thread be served before others. Without effect where that is not allowed.
pub fn hurry() {
    let _ = rustix::process::setpriority_process(None, -20);
}

/// Keeps the calling thread, and what it starts, on one processor. Without effect where that does not exist.
pub fn pin(cpu: usize) {
    let mut set = CpuSet::new();
    if cpu < CpuSet::MAX_CPU {
        set.set(cpu);
        let _ = rustix::thread::sched_setaffinity(None, &set);
    }
}
