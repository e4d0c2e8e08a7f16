//! SIGINT, SIGTERM and SIGHUP: the first one requests a graceful stop, a later one ends the process.

use std::ffi::OsStr;
use std::fmt::Write as _;
use std::os::unix::ffi::OsStrExt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::Duration;

use haul_base::printable_bytes;
use haul_engine::Role;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGXFSZ};
use signal_hook::flag;
use signal_hook::iterator::SignalsInfo;
use signal_hook::iterator::exfiltrator::WithOrigin;
use signal_hook::iterator::exfiltrator::origin::Origin;
use signal_hook::low_level::signal_name;

use crate::fault::{self, Fault, FaultCode};

/// Exit code of an interrupted run, as a shell's for SIGINT.
pub(crate) const INTERRUPTED: u8 = 130;

/// Signals within this time count as one: `timeout(1)` signals the process and then its group, and a
/// terminal's Ctrl-C may coincide with a parent's signal.
const COALESCING_TIME: Duration = Duration::from_millis(500);

static READS_INPUT: AtomicBool = AtomicBool::new(false);

/// Reads input, for which it may wait; the first signal meanwhile ends the process, which has nothing to stop.
pub(crate) fn ended_by_signals<T>(read: impl FnOnce() -> T) -> T {
    READS_INPUT.store(true, Ordering::Relaxed);
    let result = read();
    READS_INPUT.store(false, Ordering::Relaxed);
    result
}

/// Request to stop: set once, with the signal if it was one. Clones share it.
#[derive(Debug, Clone, Default)]
pub(crate) struct Cancel(Arc<OnceLock<Option<Stop>>>);

#[derive(Debug, derive_more::Display)]
#[display("{signal}{}", sender.as_ref().map_or_else(String::new, |sender| format!(" from {sender}")))]
struct Stop {
    signal: &'static str,
    /// `None` for the kernel, which sends a terminal's signals.
    sender: Option<String>,
}

impl Cancel {
    pub(crate) fn request(&self) {
        let _ = self.0.set(None);
    }

    pub(crate) fn is_requested(&self) -> bool {
        self.0.get().is_some()
    }

    /// Fails if a stop was requested.
    pub(crate) fn check(&self, hint: &str) -> Result<(), Fault> {
        if self.is_requested() { Err(self.fault(hint)) } else { Ok(()) }
    }

    /// Returns the fault of an interrupted run, for this side's user.
    pub(crate) fn fault(&self, hint: &str) -> Fault {
        let by = self.0.get().and_then(Option::as_ref);
        let by = by.map_or_else(String::new, |stop| format!(" by {stop}"));
        Fault::new(FaultCode::Interrupted, format!("interrupted{by}"), hint)
    }

    /// Like [`fault`](Self::fault) for the peer, without the sender; `role` is this side's role.
    pub(crate) fn fault_for_peer(&self, role: Role, hint: &str) -> Fault {
        let role = if role == Role::Client { "client" } else { "server" };
        let by = self.0.get().and_then(Option::as_ref);
        let by = by.map_or_else(String::new, |stop| format!(" by {}", stop.signal));
        Fault::new(FaultCode::Interrupted, format!("the {role} was stopped{by}"), hint)
    }

    /// Returns this side's interruption if there is one and the peer reports one, otherwise `fault`: a
    /// terminal's Ctrl-C reaches both sides of a local run.
    pub(crate) fn interruption_or(&self, fault: Fault, hint: &str) -> Fault {
        if self.is_requested() && fault.code == FaultCode::PeerStopped { self.fault(hint) } else { fault }
    }

    fn take(&self, origin: &Origin) {
        let signal = signal_name(origin.signal).unwrap_or("a signal");
        let sender = origin.process.map(|process| sender(process.pid, process.uid));
        let stop = Stop { signal, sender };
        if stop.sender.is_some() {
            tracing::warn!("stopping: {stop}");
        } else {
            tracing::info!("stopping: {stop}");
        }
        let _ = self.0.set(Some(stop));
    }
}

/// Describes a process, with its program's name if it still runs.
fn sender(pid: i32, user: u32) -> String {
    let program = std::fs::read_to_string(format!("/proc/{pid}/comm"));
    let program = program.map_or_else(|_| String::new(), |name| format!(" ({})", name.trim_end()));
    format!("process {pid}{program} of user {user}")
}

/// Handling of SIGHUP, which is sent when a terminal is closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Hangup {
    /// Stops as SIGTERM does, unless it was ignored when the process started (`nohup`).
    Stops,
    /// Ignored: a process started by ssh learns from stdin that ssh has ended, and may not need ssh any more.
    Ignores,
}

/// Connects SIGINT, SIGTERM and, depending on `hangup`, SIGHUP to a new [`Cancel`]; a signal later than
/// [`COALESCING_TIME`] after the first ends the process. Catches SIGXFSZ (`ulimit -f`), so that writes fail instead.
pub(crate) fn watch(hangup: Hangup) -> Result<Cancel, Fault> {
    handle(hangup).map_err(|e| fault::io("cannot install signal handlers", &e))
}

fn handle(hangup: Hangup) -> std::io::Result<Cancel> {
    flag::register(SIGXFSZ, Arc::default())?;
    let mut handled = vec![SIGINT, SIGTERM];
    match hangup {
        Hangup::Ignores => drop(flag::register(SIGHUP, Arc::default())?),
        Hangup::Stops if is_ignored(SIGHUP) => {}
        Hangup::Stops => handled.push(SIGHUP),
    }
    let is_late = Arc::new(AtomicBool::new(false));
    let mut signals = SignalsInfo::<WithOrigin>::new(&handled)?;
    for signal in handled {
        flag::register_conditional_shutdown(signal, i32::from(INTERRUPTED), Arc::clone(&is_late))?;
    }
    let cancel = Cancel::default();
    let requested = cancel.clone();
    let wait = move || {
        if let Some(first) = signals.forever().next() {
            requested.take(&first);
            for _ in 0..20 {
                if READS_INPUT.load(Ordering::Relaxed) {
                    std::process::exit(INTERRUPTED.into());
                }
                thread::sleep(COALESCING_TIME / 20);
            }
            is_late.store(true, Ordering::Relaxed);
        }
    };
    thread::Builder::new().name("haul-signals".to_owned()).spawn(wait).map(|_| cancel)
}

/// Whether this process ignores `signal`, also if that is unknown: the signal is then left alone.
fn is_ignored(signal: i32) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    // Bit 0 is signal 1 (proc_pid_status(5)).
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .is_none_or(|mask| mask >> (signal - 1) & 1 == 1)
}

pub(crate) fn command_line(words: impl IntoIterator<Item = impl AsRef<OsStr>>) -> String {
    let quoted = words.into_iter().map(|word| quote_bytes(word.as_ref().as_bytes()));
    quoted.collect::<Vec<_>>().join(" ")
}

/// Like [`quote`], with control characters and non-UTF-8 bytes in `$'...'` (POSIX.1-2024, section 2.2.4).
fn quote_bytes(word: &[u8]) -> String {
    let shown = printable_bytes(word);
    if shown.as_bytes() == word {
        return quote(&shown);
    }
    let mut quoted = "$'".to_owned();
    for &byte in word {
        match byte {
            b'\'' | b'\\' => quoted.extend(['\\', char::from(byte)]),
            b' '..=b'~' => quoted.push(char::from(byte)),
            // Always three digits. Writing to a String cannot fail.
            _ => drop(write!(quoted, "\\{byte:03o}")),
        }
    }
    quoted + "'"
}

/// Puts `word` in single quotes if it contains characters special to the shell.
pub(crate) fn quote(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "@%+=:,./-_".contains(c);
    if !word.is_empty() && word.chars().all(is_plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader};
    use std::process::{Command, Stdio};

    use rustix::process::{Pid, Signal, kill_process};

    use super::*;

    #[test]
    fn shown_commands_can_be_pasted_into_a_shell() {
        let argv = ["haul", "cp", "a b", "it's", "haul://h:1/p?k=x&y", ""].map(std::ffi::OsString::from);
        assert_eq!(command_line(&argv), r"haul cp 'a b' 'it'\''s' 'haul://h:1/p?k=x&y' ''");
        let odd: [&[u8]; 4] = [b"a\nb", b"\xff7", b"'\\x\x1b'", "größe\u{202e}".as_bytes()];
        let argv = odd.map(|word| OsStr::from_bytes(word).to_owned());
        let line = command_line(&argv);
        assert!(!line.contains(haul_base::is_unprintable), "{line}");
        let output = Command::new("bash").args(["-c", &format!("printf '%s\\0' {line}")]).output().unwrap();
        assert_eq!(output.stdout, [odd.join(&0), vec![0]].concat(), "{line}");
    }

    const STUBBORN: &str = "HAUL_TEST_STUBBORN";

    /// Not a test, but the process of the one below: it has the handlers, and nothing heeds the request.
    #[test]
    fn child_that_ignores_the_request() {
        if std::env::var_os(STUBBORN).is_some() {
            let cancel = watch(Hangup::Stops).unwrap();
            println!("\nready");
            while !cancel.is_requested() {
                thread::sleep(Duration::from_millis(1));
            }
            println!("requested");
            thread::sleep(Duration::from_secs(60));
        }
    }

    #[test]
    fn only_a_later_signal_ends_a_process_that_does_not_stop() {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command
            .args(["--exact", "signals::tests::child_that_ignores_the_request", "--nocapture"])
            .env(STUBBORN, "");
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
        let pid = Pid::from_child(&child);
        lines.find(|line| line == "ready").unwrap();
        for signal in [Signal::INT, Signal::TERM, Signal::HUP, Signal::INT] {
            kill_process(pid, signal).unwrap();
        }
        lines.find(|line| line == "requested").unwrap();
        thread::sleep(2 * COALESCING_TIME);
        assert!(child.try_wait().unwrap().is_none(), "they came together");
        // Later ones end it, as soon as the thread has found out that they are late.
        let status = loop {
            if let Some(status) = child.try_wait().unwrap() {
                break status;
            }
            kill_process(pid, Signal::TERM).unwrap();
            thread::sleep(COALESCING_TIME / 10);
        };
        assert_eq!(status.code(), Some(i32::from(INTERRUPTED)));
    }

    #[test]
    fn clones_share_the_request() {
        let cancel = Cancel::default();
        let other = cancel.clone();
        other.request();
        assert!(cancel.is_requested());
        assert_eq!(cancel.fault("again").message, "interrupted");
    }

    #[test]
    fn the_sender_of_a_signal_is_named_locally_but_not_to_the_peer() {
        let cancel = Cancel::default();
        let comm = std::fs::read_to_string("/proc/self/comm").unwrap();
        let pid = i32::try_from(std::process::id()).unwrap();
        cancel.0.set(Some(Stop { signal: "SIGTERM", sender: Some(sender(pid, 7)) })).unwrap();
        let by = format!("SIGTERM from process {pid} ({}) of user 7", comm.trim_end());
        let local_fault = cancel.fault("again");
        assert_eq!(local_fault.message, format!("interrupted by {by}"));
        let peer_fault = cancel.fault_for_peer(Role::Server, "again");
        assert_eq!(peer_fault.message, "the server was stopped by SIGTERM");
        let fault_of_peer = peer_fault.from_peer();
        assert_eq!(cancel.interruption_or(fault_of_peer.clone(), "again"), local_fault);
        assert_eq!(Cancel::default().interruption_or(fault_of_peer.clone(), "again"), fault_of_peer);
    }
}
