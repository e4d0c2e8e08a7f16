//! Diagnosis of an ssh that ended before the remote haul was ready.

use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;

use haul_wire::control::{Fault, FaultCode};

use super::{SshCommand, SshHost};

/// Exit code of ssh if ssh itself failed.
const SSH_FAILED: i32 = 255;
/// Exit codes of the remote shell if it does not find the program, or cannot execute it.
const NOT_FOUND: i32 = 127;
const NOT_EXECUTABLE: i32 = 126;

const NOT_LET_IN: [&str; 7] = [
    "Permission denied",
    "Host key verification failed",
    "Too many authentication failures",
    "No more authentication methods",
    "REMOTE HOST IDENTIFICATION HAS CHANGED",
    "host key is known for",
    "Authentication failed",
];

/// What is known of an ssh process that has ended.
#[derive(Debug)]
pub(super) struct Ended {
    pub(super) status: Option<ExitStatus>,
    /// First nonblank line of the remote side's stdout.
    pub(super) stdout: Option<String>,
    /// End of stderr.
    pub(super) stderr: String,
}

impl Ended {
    pub(super) fn fault(&self, command: &SshCommand, host: &SshHost) -> Fault {
        let code = self.status.and_then(|status| status.code());
        let is_unknown = self.stderr.contains("ommand not found") && code != Some(0);
        match code {
            Some(SSH_FAILED) => self.of_ssh(command, host),
            Some(NOT_FOUND) => not_found(command, host),
            _ if is_unknown => not_found(command, host),
            Some(2) if self.stderr.contains("--for-ssh") => Fault::new(
                FaultCode::VersionMismatch,
                format!(
                    "`{}` on {host} is older than haul here ({}) and does not support copies over ssh",
                    command.binary,
                    env!("CARGO_PKG_VERSION")
                ),
                "upgrade it there, or name another haul with --remote-binary",
            ),
            Some(code) => self.of_program(command, host, code),
            None => self.killed(host),
        }
    }

    fn of_ssh(&self, command: &SshCommand, host: &SshHost) -> Fault {
        let (ssh, last) = (command.shown(host), self.last_line());
        if NOT_LET_IN.iter().any(|words| self.stderr.contains(words)) {
            let message = format!("ssh authentication to {host} failed{last}");
            let asked = "without a terminal ssh cannot ask for a password: use a key or an agent";
            let hint = format!("make `{ssh} true` work first; {asked}");
            return Fault::new(FaultCode::NotAuthorised, message, hint);
        }
        let hint = format!("make `{ssh} true` work first; -P, -J, -o and the ssh configuration apply");
        Fault::new(FaultCode::Unreachable, format!("ssh could not connect to {host}{last}"), hint)
    }

    /// Returns the fault if haul, or another program in its place, ended.
    fn of_program(&self, command: &SshCommand, host: &SshHost, code: i32) -> Fault {
        let version = command.version(host);
        match code {
            NOT_EXECUTABLE => unusable(
                format!("`{}` on {host} cannot be executed", command.binary),
                "check its permissions (chmod +x), and that it was built for that machine",
            ),
            0 => {
                let printed = self.stdout.as_ref().map_or("nothing".to_owned(), |line| format!("`{line}`"));
                unusable(
                    format!("{host} did not start haul (it printed {printed})"),
                    format!(
                        "`{version}` should print a version; a forced command or restricted shell may prevent it"
                    ),
                )
            }
            _ => unusable(
                format!("haul on {host} ended with code {code} before it was ready{}", self.last_line()),
                format!("check with `{version}` whether it starts there"),
            ),
        }
    }

    fn killed(&self, host: &SshHost) -> Fault {
        let signal = self.status.and_then(|status| status.signal());
        let how =
            signal.map_or("closed its output".to_owned(), |signal| format!("was killed by signal {signal}"));
        let message = format!("ssh to {host} {how} before haul was ready there");
        Fault::new(FaultCode::ControlLost, message, "run the same command again")
    }

    /// Returns the last line of stderr that is neither blank nor a hint, preceded by a colon.
    fn last_line(&self) -> String {
        let mut lines = self.stderr.lines().map(str::trim);
        let line = lines.rfind(|line| !line.is_empty() && !line.starts_with("hint:"));
        line.map_or(String::new(), |line| format!(": {}", line.chars().take(200).collect::<String>()))
    }
}

/// Returns the fault if there was more output than of a login shell.
pub(super) fn flood(command: &SshCommand, host: &SshHost, first_line: Option<&str>) -> Fault {
    let (ssh, start) = (command.shown(host), first_line.map(|line| format!(", starting with `{line}`")));
    unusable(
        format!("{host} printed too much before haul started there{}", start.unwrap_or_default()),
        format!("`{ssh} true` should print nothing: check the shell's start-up files there"),
    )
}

pub(super) fn no_ssh(command: &SshCommand, error: &std::io::Error) -> Fault {
    unusable(
        format!("cannot run `{}`: {error}", command.program.display()),
        "install an ssh client (for example the package openssh-client), or name another with --ssh",
    )
}

fn not_found(command: &SshCommand, host: &SshHost) -> Fault {
    let own_path = std::env::current_exe().map_or("haul".to_owned(), |path| path.display().to_string());
    unusable(
        format!("`{}` was not found on {host}", command.binary),
        format!(
            "install haul there: the binary is enough, `{}` if the machines are alike; if it is not in PATH, use --remote-binary ./haul (relative to the home directory)",
            command.install(host, &own_path)
        ),
    )
}

/// Creates a fault that a retry does not help.
fn unusable(message: String, hint: impl Into<String>) -> Fault {
    Fault { retryable: false, ..Fault::new(FaultCode::Unreachable, message, hint) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::SshArgs;
    use crate::ssh::SshPath;
    use std::ffi::OsStr;

    fn fault(raw: i32, stdout: &str, stderr: &str) -> Fault {
        let host = SshPath::parse(OsStr::new("me@far:x")).unwrap().unwrap().host;
        let command = SshCommand::new(&SshArgs::default()).unwrap();
        let ended = Ended {
            status: Some(ExitStatus::from_raw(raw)),
            stdout: Some(stdout.to_owned()).filter(|text| !text.is_empty()),
            stderr: stderr.to_owned(),
        };
        ended.fault(&command, &host)
    }

    #[test]
    fn each_end_has_its_name_exit_code_and_hint() {
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
    fn a_missing_program_says_how_to_install_it() {
        let fault = fault(127 << 8, "", "");
        assert!(fault.hint.contains("scp ") && fault.hint.contains("--remote-binary"), "{fault}");
        assert!(!fault.retryable);
    }
}
