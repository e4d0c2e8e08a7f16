//! A haul process started on another machine over ssh, or why it did not start.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, ChildStderr, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::{Duration, Instant};

use haul_base::printable_bytes;
use parking_lot::Mutex;
use rustix::process::{Pid, Signal, kill_process};
use serde::Serialize;

use super::command::wait;
use super::messages::{Scanned, scan_output};
use super::{Announcement, SshCommand};
use crate::fault::{self, Fault, FaultCode};
use crate::output::eprint_lines;
use crate::signals::Cancel;

/// Interval of checks for an interruption or the end of ssh.
const TICK: Duration = Duration::from_millis(20);
/// Timeout for ssh to connect, including questions to the user.
const READY_TIMEOUT: Duration = Duration::from_secs(10 * 60);
/// Timeout for the remote side to end, for ssh to exit, and for the rest of its stderr.
const GRACE: Duration = Duration::from_secs(2);
/// Bytes of stderr kept for error messages, and maximum length of its lines.
const TAIL: usize = 4 << 10;
/// Maximum length of a line from the remote haul, in bytes.
const LONGEST_LINE: u64 = 4 << 20;
/// Capacity of the queue, lines.
const QUEUE: usize = 64;

/// The remote haul and the ssh process connected to it. Dropping this ends both.
#[derive(Debug)]
pub(crate) struct Remote {
    pub(crate) command: SshCommand,
    child: Child,
    stdin: Option<ChildStdin>,
    /// Lines behind the announcement; disconnected when the remote side ends.
    lines: Receiver<String>,
    has_ended: bool,
    /// End of stderr.
    tail: Arc<Mutex<Vec<u8>>>,
    /// Disconnected at the end of stderr.
    errors: Receiver<()>,
    pub(crate) announcement: Announcement,
}

impl Remote {
    /// Runs `started`, which `command` has made, and waits until the remote haul is ready.
    pub(crate) fn start(command: &SshCommand, mut started: Command, cancel: &Cancel) -> Result<Self, Fault> {
        started.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = started.spawn().map_err(|e| ssh_missing(command, &e))?;
        let (stdin, stdout, stderr) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let tail = Arc::new(Mutex::new(Vec::new()));
        let (found, scanned) = sync_channel(1);
        let (sender, lines) = sync_channel(QUEUE);
        let (closed, errors) = sync_channel(0);
        let (shared_tail, name) = (Arc::clone(&tail), command.host.name().to_owned());
        let read = move || stdout.map(|stdout| forward_stdout(BufReader::new(stdout), &found, &sender));
        fault::spawn("haul-ssh-out", read)?;
        fault::spawn("haul-ssh-err", move || {
            if let Some(stderr) = stderr {
                forward_stderr(stderr, &name, &shared_tail);
            }
            drop(closed);
        })?;
        let (command, announcement) = (command.clone(), Announcement::ours());
        let mut remote = Self { command, child, stdin, lines, has_ended: false, tail, errors, announcement };
        remote.announcement = remote.wait_for_announcement(&scanned, cancel)?;
        Ok(remote)
    }

    fn wait_for_announcement(
        &mut self,
        scanned: &Receiver<Scanned>,
        cancel: &Cancel,
    ) -> Result<Announcement, Fault> {
        let until = Instant::now() + READY_TIMEOUT;
        while !cancel.is_requested() {
            if Instant::now() >= until {
                let (host, minutes) = (&self.command.host, READY_TIMEOUT.as_secs() / 60);
                let message =
                    format!("haul on {host} was not ready within {minutes} minutes: waited for ssh");
                let hint = "answer the questions of ssh, and check that ssh alone can connect";
                return Err(Fault::new(FaultCode::Unreachable, message, hint));
            }
            match scanned.recv_timeout(TICK) {
                Ok(Scanned::Announced(json)) => return Announcement::read(&json, &self.command.host),
                Ok(Scanned::TooMuch(line)) => return Err(too_much_output(&self.command, line.as_deref())),
                Ok(Scanned::End(stdout)) => return Err(self.end_fault(stdout.as_deref(), cancel)),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return Err(self.end_fault(None, cancel)),
            }
        }
        Err(self.interrupted())
    }

    fn end_fault(&mut self, stdout: Option<&str>, cancel: &Cancel) -> Fault {
        self.has_ended = true;
        let status = wait(&mut self.child, GRACE);
        // A lingering ssh master connection may keep stderr open.
        let _ = self.errors.recv_timeout(GRACE);
        // Ctrl-C at a terminal reaches ssh as well.
        if cancel.is_requested() {
            return self.interrupted();
        }
        let tail = self.tail.lock();
        let stderr = String::from_utf8_lossy(&tail).into_owned();
        exit_fault(status, stdout, &stderr, &self.command)
    }

    fn interrupted(&self) -> Fault {
        let message = format!("interrupted while ssh was connecting to {}", self.command.host);
        Fault::new(FaultCode::Interrupted, message, "run the same command again")
    }

    pub(crate) fn send(&mut self, what: &impl Serialize) -> Result<(), Fault> {
        let write = |stdin: Option<&mut ChildStdin>| {
            let stdin = stdin.ok_or(io::ErrorKind::BrokenPipe)?;
            let mut line = serde_json::to_vec(what)?;
            line.push(b'\n');
            stdin.write_all(&line).and_then(|()| stdin.flush())
        };
        write(self.stdin.as_mut()).map_err(|error: io::Error| {
            let message = format!("the ssh connection to {} was lost: {error}", self.command.host);
            Fault::new(FaultCode::ControlLost, message, "run the same command again")
        })
    }

    /// Closes the remote side's stdin, which requests it to stop.
    pub(crate) fn close_stdin(&mut self) {
        self.stdin = None;
    }

    /// Returns the next line behind the announcement; disconnected when the remote side or ssh has ended.
    pub(crate) fn next_line(&mut self, timeout: Duration) -> Result<String, RecvTimeoutError> {
        let next = self.lines.recv_timeout(timeout);
        self.has_ended |= next == Err(RecvTimeoutError::Disconnected);
        next
    }

    /// Describes how ssh ended, if ssh itself failed.
    pub(crate) fn early_end(&mut self) -> Option<String> {
        let status = self.child.try_wait().ok().flatten()?;
        // Any other code is that of the remote haul, which reports its failures itself.
        let how = match status.code() {
            Some(255) => "with code 255".to_owned(),
            Some(_) => return None,
            None => "by a signal".to_owned(),
        };
        Some(format!("the ssh connection to {} ended early ({how})", self.command.host))
    }
}

impl Drop for Remote {
    fn drop(&mut self) {
        self.close_stdin();
        let until = Instant::now() + GRACE;
        while !self.has_ended && Instant::now() < until {
            let _ = self.next_line(TICK);
        }
        // After the end of the remote side, an ssh that serves other connections goes on.
        if !self.has_ended && matches!(self.child.try_wait(), Ok(None)) {
            // It is an unreaped child, so its PID cannot have been reused.
            let _ = kill_process(Pid::from_child(&self.child), Signal::TERM);
        }
        wait(&mut self.child, GRACE);
    }
}

/// Searches for the announcement, then forwards lines, as long as somebody receives them.
fn forward_stdout(mut stdout: impl BufRead, found: &SyncSender<Scanned>, to: &SyncSender<String>) {
    let scanned = scan_output(&mut stdout);
    let is_ready = matches!(scanned, Scanned::Announced(_));
    let mut is_open = found.send(scanned).is_ok() && is_ready;
    let mut line = Vec::new();
    while is_open && matches!(stdout.by_ref().take(LONGEST_LINE).read_until(b'\n', &mut line), Ok(1..)) {
        is_open = to.send(String::from_utf8_lossy(&line).into_owned()).is_ok();
        line.clear();
    }
}

/// Forwards stderr line by line, prefixed with the machine's name, and keeps its end.
fn forward_stderr(stderr: ChildStderr, name: &str, tail: &Mutex<Vec<u8>>) {
    let (mut stderr, mut line) = (BufReader::new(stderr), Vec::new());
    while matches!(stderr.by_ref().take(TAIL as u64).read_until(b'\n', &mut line), Ok(1..)) {
        let text = line.trim_ascii_end();
        if !text.is_empty() {
            eprint_lines(format_args!("{name}: {}", printable_bytes(text)));
        }
        let mut tail = tail.lock();
        tail.append(&mut line);
        let surplus = tail.len().saturating_sub(TAIL);
        tail.drain(..surplus);
    }
}

/// Exit code of ssh if ssh itself failed.
const SSH_FAILED: i32 = 255;
/// Exit codes of the remote shell if it does not find the program, or cannot execute it.
const NOT_FOUND: i32 = 127;
const NOT_EXECUTABLE: i32 = 126;

const AUTH_ERRORS: [&str; 7] = [
    "Permission denied",
    "Host key verification failed",
    "Too many authentication failures",
    "No more authentication methods",
    "REMOTE HOST IDENTIFICATION HAS CHANGED",
    "host key is known for",
    "Authentication failed",
];

/// Returns the fault for an ssh process that has ended; `stdout` is the first nonblank line of the remote side.
fn exit_fault(status: Option<ExitStatus>, stdout: Option<&str>, stderr: &str, command: &SshCommand) -> Fault {
    let SshCommand { host, binary, .. } = command;
    let (version, last) = (command.version(), last_line(stderr));
    let code = status.and_then(|status| status.code());
    let is_unknown = code == Some(NOT_FOUND) || stderr.contains("ommand not found") && code != Some(0);
    match code {
        Some(SSH_FAILED) => ssh_failed(stderr, &last, command),
        _ if is_unknown => not_found(command),
        Some(2) if stderr.contains("--for-ssh") => {
            let ours = env!("CARGO_PKG_VERSION");
            let message = format!(
                "`{binary}` on {host} is older than haul here ({ours}) and does not support copies over ssh"
            );
            let hint = "upgrade it there, or name another haul with --remote-binary";
            Fault::new(FaultCode::VersionMismatch, message, hint)
        }
        Some(NOT_EXECUTABLE) => unusable(
            format!("`{binary}` on {host} cannot be executed"),
            "check its permissions (chmod +x), and that it was built for that machine",
        ),
        Some(0) => {
            let printed = stdout.map_or("nothing".to_owned(), |line| format!("`{line}`"));
            unusable(
                format!("{host} did not start haul (it printed {printed})"),
                format!(
                    "`{version}` should print a version; a forced command or restricted shell may prevent it"
                ),
            )
        }
        Some(code) => unusable(
            format!("haul on {host} ended with code {code} before it was ready{last}"),
            format!("check with `{version}` whether it starts there"),
        ),
        None => {
            let signal = status.and_then(|status| status.signal());
            let how = signal.map(|signal| format!("was killed by signal {signal}"));
            let how = how.as_deref().unwrap_or("closed its output");
            let message = format!("ssh to {host} {how} before haul was ready there");
            Fault::new(FaultCode::ControlLost, message, "run the same command again")
        }
    }
}

fn ssh_failed(stderr: &str, last: &str, command: &SshCommand) -> Fault {
    let (ssh, host) = (command.shown(), &command.host);
    if AUTH_ERRORS.iter().any(|words| stderr.contains(words)) {
        let message = format!("ssh authentication to {host} failed{last}");
        let advice = "without a terminal ssh cannot ask for a password: use a key or an agent";
        let hint = format!("make `{ssh} true` work first; {advice}");
        return Fault::new(FaultCode::NotAuthorised, message, hint);
    }
    let hint = format!("make `{ssh} true` work first; -P, -J, -o and the ssh configuration apply");
    Fault::new(FaultCode::Unreachable, format!("ssh could not connect to {host}{last}"), hint)
}

/// Returns the last line of stderr that is neither blank nor a hint, preceded by a colon.
fn last_line(stderr: &str) -> String {
    let mut lines = stderr.lines().map(str::trim);
    let line = lines.rfind(|line| !line.is_empty() && !line.starts_with("hint:"));
    line.map_or(String::new(), |line| format!(": {}", line.chars().take(200).collect::<String>()))
}

/// Returns the fault if there was more output than of a login shell.
fn too_much_output(command: &SshCommand, first_line: Option<&str>) -> Fault {
    let (ssh, start) = (command.shown(), first_line.map(|line| format!(", starting with `{line}`")));
    unusable(
        format!("{} printed too much before haul started there{}", command.host, start.unwrap_or_default()),
        format!("`{ssh} true` should print nothing: check the shell's start-up files there"),
    )
}

fn ssh_missing(command: &SshCommand, error: &io::Error) -> Fault {
    unusable(
        format!("cannot run `{}`: {error}", command.program.display()),
        "install an ssh client (for example the package openssh-client), or name another with --ssh",
    )
}

fn not_found(command: &SshCommand) -> Fault {
    let local_binary = std::env::current_exe().map_or("haul".to_owned(), |path| path.display().to_string());
    unusable(
        format!("`{}` was not found on {}", command.binary, command.host),
        format!(
            "install haul there: the binary is enough, `{}` if the machines are alike; if it is not in PATH, use --remote-binary ./haul (relative to the home directory)",
            command.install(&local_binary)
        ),
    )
}

/// Creates a fault that a retry does not help.
fn unusable(message: String, hint: impl Into<String>) -> Fault {
    Fault { retryable: false, ..Fault::new(FaultCode::Unreachable, message, hint) }
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;

    use super::*;
    use crate::args::SshArgs;
    use crate::ssh::address;

    fn fault(raw: i32, stdout: &str, stderr: &str) -> Fault {
        let host = address::parse(OsStr::new("me@far:x")).unwrap().unwrap().0;
        let command = SshCommand::new(&SshArgs::default(), &host).unwrap();
        let (status, stdout) = (ExitStatus::from_raw(raw), Some(stdout).filter(|text| !text.is_empty()));
        exit_fault(Some(status), stdout, stderr, &command)
    }

    #[test]
    fn each_end_of_ssh_has_its_message_exit_code_and_hint() {
        let exit = |code: i32| code << 8;
        for (raw, stdout, stderr, code, needle) in [
            (exit(255), "", "me@far: Permission denied (publickey).\r\n", 6, "Permission denied (publickey)"),
            (exit(255), "", "Host key verification failed.\n", 6, "Host key"),
            (exit(255), "", "ssh: Could not resolve hostname far\n", 5, "Could not resolve"),
            (exit(255), "", "", 5, "could not connect to me@far"),
            (exit(127), "", "sh: 1: haul: not found\n", 5, "`haul` was not found"),
            (exit(1), "", "haul: Command not found.\n", 5, "`haul` was not found"),
            (exit(126), "", "", 5, "cannot be executed"),
            (exit(2), "", "error: unexpected argument '--for-ssh' found", 1, "older"),
            (exit(0), "Welcome!", "", 5, "`Welcome!`"),
            (exit(3), "", "error: odd\n hint: think\n", 5, "code 3 before it was ready: error: odd"),
            (9, "", "", 5, "signal 9"),
        ] {
            let fault = fault(raw, stdout, stderr);
            assert_eq!(fault.code.exit_code(), code, "{fault}");
            assert!(fault.message.contains(needle), "{fault}");
            assert!(!fault.hint.is_empty(), "{fault}");
        }
    }

    #[test]
    fn the_hint_for_a_missing_program_says_how_to_install_it() {
        let fault = fault(127 << 8, "", "");
        assert!(fault.hint.contains("scp ") && fault.hint.contains("--remote-binary"), "{fault}");
        assert!(!fault.retryable);
    }
}
