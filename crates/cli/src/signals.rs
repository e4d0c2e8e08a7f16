//! Ctrl-C, SIGTERM and the end of the terminal: the first asks the work to stop, a later one ends the process.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::flag;
use signal_hook::iterator::Signals;

use crate::fault::{self, Fault};

/// Exit code of an interrupted run.
pub const INTERRUPTED: u8 = 130;

/// Signals that come together count as one: `timeout(1)` sends its own to the process and then to its group, and a
/// terminal's Ctrl-C may come beside what a parent sends.
const TOGETHER: Duration = Duration::from_millis(500);

/// Whether somebody has asked to stop. Clones share the answer.
#[derive(Debug, Clone, Default)]
pub struct Cancel(Arc<AtomicBool>);

impl Cancel {
    /// Asked for by nobody yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Asks to stop.
    pub fn request(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Whether to stop.
    pub fn is_requested(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// What SIGHUP means, which comes when a terminal is closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hangup {
    /// To stop, as SIGTERM; nothing if it was ignored when the process started (`nohup`).
    Stops,
    /// Nothing: whom ssh has started learns from stdin that the connection has ended, and may need it no more.
    PassesBy,
}

/// Ties SIGINT, SIGTERM and, as `hangup` says, SIGHUP to a new [`Cancel`]; one that comes half a second after the first
/// or later ends the process at once with code 130.
///
/// # Errors
/// When the system refuses handlers or a thread.
pub fn watch(hangup: Hangup) -> Result<Cancel, Fault> {
    let cancel = Cancel::new();
    handle(&cancel, hangup).map_err(|e| fault::io("cannot install signal handlers", &e))?;
    Ok(cancel)
}

fn handle(cancel: &Cancel, hangup: Hangup) -> std::io::Result<()> {
    let mut heeded = vec![SIGINT, SIGTERM];
    match hangup {
        Hangup::PassesBy => drop(flag::register(SIGHUP, Arc::default())?),
        Hangup::Stops if is_ignored(SIGHUP) => {}
        Hangup::Stops => heeded.push(SIGHUP),
    }
    let is_late = Arc::new(AtomicBool::new(false));
    let mut first = Signals::new(&heeded)?;
    for signal in heeded {
        flag::register_conditional_shutdown(signal, i32::from(INTERRUPTED), Arc::clone(&is_late))?;
        flag::register(signal, Arc::clone(&cancel.0))?;
    }
    let wait = move || {
        if first.forever().next().is_some() {
            thread::sleep(TOGETHER);
            is_late.store(true, Ordering::Relaxed);
        }
    };
    thread::Builder::new().name("haul-signals".to_owned()).spawn(wait).map(drop)
}

/// Whether this process ignores `signal`. Where nobody says, it is left as it is, which an ignored one is by that.
fn is_ignored(signal: i32) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    // Bit 0 is signal 1 (proc_pid_status(5)).
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .is_none_or(|mask| mask >> (signal - 1) & 1 == 1)
}

/// The words that the shell would need to run this command again.
pub fn command_line(argv: &[std::ffi::OsString]) -> String {
    let words: Vec<String> = argv.iter().map(|word| quote(&word.to_string_lossy())).collect();
    words.join(" ")
}

/// `word` in single quotes if the shell would take some of its characters for itself.
pub fn quote(word: &str) -> String {
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
    fn commands_can_be_pasted_back() {
        let argv = ["haul", "cp", "a b", "it's", "haul://h:1/p?k=x&y", ""].map(std::ffi::OsString::from);
        assert_eq!(command_line(&argv), r"haul cp 'a b' 'it'\''s' 'haul://h:1/p?k=x&y' ''");
    }

    const STUBBORN: &str = "HAUL_TEST_STUBBORN";

    /// Not a test, but the process of the one below: it has the handlers, and nothing heeds the request.
    #[test]
    fn stubborn() {
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
    fn only_a_later_signal_ends_what_does_not_stop() {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "signals::tests::stubborn", "--nocapture"]).env(STUBBORN, "");
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
        let pid = Pid::from_child(&child);
        lines.find(|line| line == "ready").unwrap();
        for signal in [Signal::INT, Signal::TERM, Signal::HUP, Signal::INT] {
            kill_process(pid, signal).unwrap();
        }
        lines.find(|line| line == "requested").unwrap();
        thread::sleep(2 * TOGETHER);
        assert!(child.try_wait().unwrap().is_none(), "they came together");
        // Later ones end it, as soon as the thread has found out that they are late.
        let status = loop {
            if let Some(status) = child.try_wait().unwrap() {
                break status;
            }
            kill_process(pid, Signal::TERM).unwrap();
            thread::sleep(TOGETHER / 10);
        };
        assert_eq!(status.code(), Some(i32::from(INTERRUPTED)));
    }

    #[test]
    fn clones_share_the_request() {
        let cancel = Cancel::new();
        let other = cancel.clone();
        other.request();
        assert!(cancel.is_requested());
    }
}
