//! CPU-bound processes.

use std::hint::black_box;
use std::io;
use std::process::{Child, Command, ExitCode, Stdio};

use clap::Args;
use haul_wan::die_with_parent;

/// Arguments of the hidden command.
#[derive(Debug, Args)]
pub(crate) struct BurnArgs {
    /// Processor to run on
    #[arg(long)]
    cpu: Option<usize>,
    /// Parent process, with whose end this process ends
    #[arg(long)]
    parent: i32,
}

/// CPU-bound processes, ended when dropped.
#[derive(Debug)]
pub(crate) struct Burners(Vec<Child>);

impl Burners {
    /// Starts `count` processes on `cpu`. They end with the calling thread, which must outlive them.
    ///
    /// # Errors
    /// If a process cannot be started.
    pub(crate) fn start(count: u32, cpu: usize) -> io::Result<Self> {
        let mut burners = Self(Vec::new());
        for _ in 0..count {
            let mut command = Command::new("/proc/self/exe");
            command.args(["burn", "--cpu", &cpu.to_string(), "--parent", &std::process::id().to_string()]);
            burners.0.push(command.stdin(Stdio::null()).stdout(Stdio::null()).spawn()?);
        }
        Ok(burners)
    }
}

impl Drop for Burners {
    fn drop(&mut self) {
        for child in &mut self.0 {
            // It may already have ended.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Returns the highest-numbered processor that this process may use.
pub(crate) fn last_cpu() -> usize {
    let all = rustix::thread::sched_getaffinity(None).ok();
    let last = all.and_then(|set| (0..rustix::thread::CpuSet::MAX_CPU).rev().find(|cpu| set.is_set(*cpu)));
    last.unwrap_or(0)
}

/// Computes until the process is killed.
pub(crate) fn burn(args: &BurnArgs) -> ExitCode {
    if die_with_parent(args.parent).is_err() {
        return ExitCode::FAILURE;
    }
    if let Some(cpu) = args.cpu {
        haul_wan::pin(cpu);
    }
    let mut x = 1u64;
    loop {
        x = black_box(x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407));
    }
}
