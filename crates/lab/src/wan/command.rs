//! Running programs on the two sides.

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

/// Exit codes of shells for a command that cannot be run, and for one that is not there.
const CANNOT_RUN: u8 = 126;
const NOT_FOUND: u8 = 127;
/// How long to wait until the server listens.
const SERVER_TIMEOUT: Duration = Duration::from_secs(5);
const LOOK: Duration = Duration::from_millis(10);

/// What the hidden command `enter` takes.
#[derive(Debug, Args)]
pub(crate) struct EnterArgs {
    /// The namespace to enter
    #[arg(long)]
    netns: PathBuf,
    /// The processor to stay on
    #[arg(long)]
    cpu: Option<usize>,
    /// The process whose end is ours too
    #[arg(long)]
    parent: Option<i32>,
    /// What to become
    #[arg(last = true, required = true)]
    command: Vec<OsString>,
}

/// Enters a namespace and becomes another program.
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
    let own = std::env::current_exe()?;
    let mut child = Command::new(&own);
    child.arg("enter").arg("--netns").arg(side.namespace.path());
    child.arg("--parent").arg(std::process::id().to_string());
    if let Some(cpu) = cpu {
        child.arg("--cpu").arg(cpu.to_string());
    }
    let on = |side: &Side| {
        let words: [&OsStr; 5] = [
            own.as_os_str(),
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

/// Waits until something listens on the side: a TCP socket, or a UDP socket with a port. Returns whether it does;
/// false after some seconds, or when the server has ended.
pub(crate) fn wait_for_server(side: &Side, server: &mut Child) -> io::Result<bool> {
    let end = Instant::now() + SERVER_TIMEOUT;
    while Instant::now() < end {
        if side.namespace.run(listens)? {
            return Ok(true);
        }
        if server.try_wait()?.is_some() {
            return Ok(false);
        }
        sleep(LOOK);
    }
    Ok(false)
}

/// Whether anything listens in the namespace of the calling thread.
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

/// The exit code that a shell would give.
pub(crate) fn code_of(status: ExitStatus) -> u8 {
    let code = status.code().or_else(|| status.signal().map(|signal| SIGNALLED + signal));
    code.and_then(|code| u8::try_from(code).ok()).unwrap_or(1)
}
