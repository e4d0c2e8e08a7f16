//! Runs programs on the two sides.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::PathBuf;
use std::process::{Child, Command, ExitCode, ExitStatus};
use std::thread::sleep;
use std::time::{Duration, Instant};

use clap::Args;

use haul_wan::{Side, V4, V6, World, die_with_parent, pin};

use crate::problem::SIGNALLED;

/// Exit codes of shells for a command that cannot be executed, and for one that is not found.
const CANNOT_RUN: u8 = 126;
const NOT_FOUND: u8 = 127;
/// Time to wait until the server listens.
const SERVER_TIMEOUT: Duration = Duration::from_secs(5);
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// Arguments of the hidden command `enter`.
#[derive(Debug, Args)]
pub(crate) struct EnterArgs {
    /// Namespace to enter
    #[arg(long)]
    netns: PathBuf,
    /// Processor to run on
    #[arg(long)]
    cpu: Option<usize>,
    /// Parent process, with whose end this process ends
    #[arg(long)]
    parent: Option<i32>,
    /// Command to execute
    #[arg(last = true, required = true)]
    command: Vec<OsString>,
}

/// Enters a namespace and executes another program.
pub(crate) fn enter(args: &EnterArgs) -> ExitCode {
    let EnterArgs { netns, cpu, parent, command } = args;
    let prepared = parent.map_or(Ok(()), die_with_parent).and_then(|()| haul_wan::enter(netns));
    if let Err(error) = prepared {
        eprintln!("haul-lab: cannot enter {}: {error}", netns.display());
        return ExitCode::from(CANNOT_RUN);
    }
    if let Some(cpu) = cpu {
        pin(*cpu);
    }
    let (program, arguments) = command.split_first().map_or((OsStr::new(""), &[][..]), |(p, a)| (p, a));
    let error = Command::new(program).args(arguments).exec();
    eprintln!("haul-lab: cannot run {}: {error}", program.display());
    ExitCode::from(if error.kind() == io::ErrorKind::NotFound { NOT_FOUND } else { CANNOT_RUN })
}

/// Starts `command` on a side. It ends with the calling thread.
pub(crate) fn start(
    world: &World,
    side: &Side,
    cpu: Option<usize>,
    command: &[OsString],
) -> io::Result<Child> {
    let program = std::env::current_exe()?;
    let mut child = Command::new(&program);
    child.arg("enter").arg("--netns").arg(side.namespace.path());
    child.arg("--parent").arg(std::process::id().to_string());
    if let Some(cpu) = cpu {
        child.arg("--cpu").arg(cpu.to_string());
    }
    let on = |side: &Side| {
        let words: [&OsStr; 5] = [
            program.as_os_str(),
            "enter".as_ref(),
            "--netns".as_ref(),
            &side.namespace.path().into_os_string(),
            "--".as_ref(),
        ];
        words.join(OsStr::new(" "))
    };
    child
        .env("HAUL_WAN_A", V4[0].to_string())
        .env("HAUL_WAN_B", V4[1].to_string())
        .env("HAUL_WAN_A6", V6[0].to_string())
        .env("HAUL_WAN_B6", V6[1].to_string())
        .env("HAUL_WAN_NETNS_A", world.a.namespace.name())
        .env("HAUL_WAN_NETNS_B", world.b.namespace.name())
        .env("HAUL_WAN_ON_A", on(&world.a))
        .env("HAUL_WAN_ON_B", on(&world.b));
    child.arg("--").args(command).spawn()
}

/// Waits until a process on the side listens on a TCP socket or has bound a UDP socket. Returns false if none
/// does within some seconds, or if the server has ended.
pub(crate) fn wait_for_server(side: &Side, server: &mut Child) -> io::Result<bool> {
    let end = Instant::now() + SERVER_TIMEOUT;
    while Instant::now() < end {
        if side.namespace.run(listens)? {
            return Ok(true);
        }
        if server.try_wait()?.is_some() {
            return Ok(false);
        }
        sleep(POLL_INTERVAL);
    }
    Ok(false)
}

/// Whether any socket listens in the calling thread's namespace.
fn listens() -> io::Result<bool> {
    for (table, state) in [("tcp", "0A"), ("tcp6", "0A"), ("udp", "07"), ("udp6", "07")] {
        let text = match fs::read_to_string(format!("/proc/thread-self/net/{table}")) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            text => text?,
        };
        if text.lines().skip(1).any(|line| line.split_whitespace().nth(3) == Some(state)) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Returns the exit code that a shell would return.
pub(crate) fn code_of(status: ExitStatus) -> u8 {
    let code = status.code().or_else(|| status.signal().map(|signal| SIGNALLED + signal));
    code.and_then(|code| u8::try_from(code).ok()).unwrap_or(1)
}
