//! Processes that only compute.

use std::hint::black_box;
use std::io;
use std::process::{Child, Command, ExitCode, Stdio};

use clap::Args;
use haul_wan::die_with_parent;

/// What the hidden command takes.
#[derive(Debug, Args)]
pub(crate) struct BurnArgs {
    /// The processor to stay on
    #[arg(long)]
    cpu: Option<usize>,
    /// The process whose end is ours too
    #[arg(long)]
    parent: i32,
}

/// Processes that compute until this is dropped.
#[derive(Debug)]
pub(crate) struct Burners(Vec<Child>);

impl Burners {
    /// Starts `count` of them on `cpu`. They end with the calling thread, so it must live as long as they should.
    ///
    /// # Errors
    /// When the system starts no more processes.
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
            // It may have ended already.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// The processor with the highest number that this process may use.
pub(crate) fn last_cpu() -> usize {
    let all = rustix::thread::sched_getaffinity(None).ok();
    let last = all.and_then(|set| (0..rustix::thread::CpuSet::MAX_CPU).rev().find(|cpu| set.is_set(*cpu)));
    last.unwrap_or(0)
}

/// Computes until somebody ends it.
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
