//! `haul-lab wan`, from options to exit code.

use std::ffi::OsString;
use std::fs;
use std::io::{IsTerminal, stdin};
use std::process::Child;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

use haul_base::Span;
use haul_wan::{PREFIX, Privilege, V4, V6, acquire, sweep};
use signal_hook::consts::{SIGCHLD, SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use super::args::WanArgs;
use super::command::{code_of, start, wait_for_server};
use super::control::{Command, Control, Question};
use super::plan::Plan;
use super::report::Report;
use super::running::Running;
use crate::problem::{Problem, SIGNALLED, While};
use crate::selftest;

/// Interval at which the path is checked for failure.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// Event that ends a wait.
enum Event {
    Signal(i32),
    Question(Question),
}

/// Runs a path until COMMAND or the user ends it. Returns the exit code.
///
/// # Errors
/// If the options are invalid or a system call fails.
pub(crate) fn wan(args: &WanArgs) -> Result<u8, Problem> {
    let plan = match &args.path_file {
        Some(file) => Plan::from_file(file)?,
        None => Plan::from_args(&args.path, args.mtu)?,
    };
    Running::check_changes(args, &plan)?;
    let privilege = acquire()?;
    // Threads may exist from here on.
    let (sender, events) = channel();
    watch_signals(sender.clone())?;
    print_swept(args, privilege);
    if let Some(time) = args.self_test {
        return self_test(args, privilege, time);
    }
    let seed = args.seed.unwrap_or_else(random_seed);
    let mut running = Running::start(args, plan, privilege, seed)?;
    let control = args.control.as_deref().map(|path| open_control(path, sender)).transpose()?;
    print_note(args, &format!("haul-lab: seed {seed}"));
    let code = serve(args, &mut running, &events)?;
    drop(control);
    running.end_processes();
    finish(args, running.report())?;
    Ok(code)
}

/// Runs the server and COMMAND, and waits for the end.
fn serve(args: &WanArgs, running: &mut Running, events: &Receiver<Event>) -> Result<u8, Problem> {
    if let Some(server) = &args.server {
        start_server(args, running, server)?;
    }
    let mut command = match args.command.as_slice() {
        [] => {
            print_note(args, &enter_hint(running));
            None
        }
        words => {
            let started = start(running.world(), &running.world().a, args.cpu_a, words);
            Some(started.while_doing("cannot start the command")?)
        }
    };
    wait(args, running, events, command.as_mut())
}

fn start_server(args: &WanArgs, running: &Running, server: &str) -> Result<(), Problem> {
    let words = ["sh", "-c", server].map(OsString::from);
    let (world, side) = (running.world(), &running.world().b);
    let mut child = start(world, side, args.cpu_b, &words).while_doing("cannot start the server")?;
    if !wait_for_server(side, &mut child).while_doing("cannot look for the server")? {
        if let Ok(Some(status)) = child.try_wait() {
            return Err(Problem::failed(
                format!("the server `{server}` ended before the command started ({status})"),
                "it must stay in the foreground",
            ));
        }
        print_note(args, "haul-lab: the server is not listening yet; continuing");
    }
    // Processes left on side B are ended with the path.
    Ok(())
}

fn wait(
    args: &WanArgs,
    running: &mut Running,
    events: &Receiver<Event>,
    mut command: Option<&mut Child>,
) -> Result<u8, Problem> {
    let mut interrupted = false;
    loop {
        if let Some(child) = command.as_mut()
            && let Some(status) = child.try_wait().while_doing("cannot wait for the command")?
        {
            return Ok(code_of(status));
        }
        for refused in running.make_due_changes() {
            eprintln!("haul-lab: {refused}");
        }
        if let Some(error) = running.failure() {
            return Err(Problem::failed(format!("the emulated path has failed: {error}"), ""));
        }
        let timeout = running
            .until_change()
            .map_or(POLL_INTERVAL, |remaining| POLL_INTERVAL.min(Duration::from(remaining)));
        match events.recv_timeout(timeout) {
            Ok(Event::Signal(SIGCHLD)) | Err(RecvTimeoutError::Timeout) => {}
            // The terminal has sent SIGINT to the command too, which may handle it.
            Ok(Event::Signal(SIGINT)) if command.is_some() && stdin().is_terminal() && !interrupted => {
                interrupted = true;
            }
            Ok(Event::Signal(signal)) => {
                let is_end = command.is_none() && signal == SIGINT;
                print_note(args, "haul-lab: ending");
                return Ok(if is_end { 0 } else { u8::try_from(SIGNALLED + signal).unwrap_or(1) });
            }
            Ok(Event::Question(Question { command: question, answer })) => {
                // The requester may have gone.
                let _ = answer.send(running.answer(&question));
                if question == Command::Stop {
                    return Ok(0);
                }
            }
            Err(RecvTimeoutError::Disconnected) => {
                return Err(Problem::failed("the thread for signals has ended", ""));
            }
        }
    }
}

/// Writes the counters and reports at the end.
fn finish(args: &WanArgs, report: Option<Report>) -> Result<(), Problem> {
    let Some(report) = report else {
        return Err(Problem::failed("there are no counters: the emulated path has failed", ""));
    };
    print_note(args, &report.words());
    let text = || serde_json::to_string_pretty(&report).map_err(|e| Problem::failed(e.to_string(), ""));
    if let Some(file) = &args.counters {
        fs::write(file, text()? + "\n").while_doing(&format!("cannot write {}", file.display()))?;
    }
    if args.json {
        println!("{}", text()?);
    }
    Ok(())
}

/// Prints a table of measurements. Returns exit code 1 if one of them fails.
fn self_test(args: &WanArgs, privilege: Privilege, time: Span) -> Result<u8, Problem> {
    let print_line = |line: &selftest::Line| {
        let verdict = if line.ok { "ok" } else { "NOT REACHED" };
        print_note(args, &format!("{:<46} {:<34} {:<52} {verdict}", line.what, line.wanted, line.measured));
    };
    let seed = args.seed.unwrap_or_else(random_seed);
    print_note(args, &format!("haul-lab: seed {seed}"));
    let lines = selftest::run(selftest::Bench { privilege, seed, time }, print_line)?;
    if args.json {
        let text = serde_json::to_string_pretty(&lines).map_err(|e| Problem::failed(e.to_string(), ""))?;
        println!("{text}");
    }
    Ok(u8::from(!lines.iter().all(|line| line.ok)))
}

fn watch_signals(events: Sender<Event>) -> Result<(), Problem> {
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP, SIGCHLD]).while_doing("cannot watch signals")?;
    let forward = move || {
        for signal in signals.forever() {
            if events.send(Event::Signal(signal)).is_err() {
                return;
            }
        }
    };
    let started = std::thread::Builder::new().name("signals".to_owned()).spawn(forward);
    started.while_doing("cannot watch signals").map(drop)
}

fn open_control(path: &std::path::Path, events: Sender<Event>) -> Result<Control, Problem> {
    let handler = move |question| events.send(Event::Question(question)).is_ok();
    Control::open(path, handler)
}

fn print_note(args: &WanArgs, words: &str) {
    if !args.quiet {
        eprintln!("{words}");
    }
}

fn print_swept(args: &WanArgs, privilege: Privilege) {
    if privilege == Privilege::Root {
        for name in sweep(PREFIX) {
            print_note(args, &format!("haul-lab: removed {name}, left by a killed run"));
        }
    }
}

fn random_seed() -> u64 {
    // The standard library draws hash map keys from the system's random numbers. Six digits suffice for a
    // seed, and are short enough to type.
    use std::hash::{BuildHasher, Hasher};
    std::collections::hash_map::RandomState::new().build_hasher().finish() % 1_000_000
}

fn enter_hint(running: &Running) -> String {
    let sides = [(&running.world().a, "A", 0), (&running.world().b, "B", 1)];
    let mut words = vec!["haul-lab: the path is up; Ctrl-C removes it".to_owned()];
    for (side, letter, number) in sides {
        let namespace = &side.namespace;
        let enter = if namespace.is_pinned() {
            format!("ip netns exec {} bash", namespace.name())
        } else {
            let user = format!("/proc/{}/ns/user", std::process::id());
            let net = namespace.path();
            format!("nsenter --preserve-credentials --user={user} --net={} bash", net.display())
        };
        words.push(format!("  side {letter}, {} and {}:  {enter}", V4[number], V6[number]));
    }
    words.join("\n")
}
