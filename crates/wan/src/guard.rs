//! Process settings made before running another program.

use std::io;

use rustix::process::{Pid, Signal, getppid, set_parent_process_death_signal};
use rustix::thread::CpuSet;

/// Makes the kernel kill this process when the thread that started it ends.
///
/// # Errors
/// If `parent` has already ended.
pub fn die_with_parent(parent: i32) -> io::Result<()> {
    set_parent_process_death_signal(Some(Signal::KILL))?;
    if getppid().map(Pid::as_raw_pid) == Some(parent) {
        return Ok(());
    }
    Err(io::Error::other("the emulator has ended"))
}

/// Raises the priority of the calling thread. No effect without the privilege.
pub fn end_soon() {
    let _ = rustix::process::setpriority_process(None, -20);
}

/// Pins the calling thread, and what it starts, to one processor. No effect if that processor does not exist.
pub fn pin(cpu: usize) {
    let mut set = CpuSet::new();
    if cpu < CpuSet::MAX_CPU {
        set.set(cpu);
        let _ = rustix::thread::sched_setaffinity(None, &set);
    }
}
