//! Starts the program and reads its output.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

use haul_testing::unconfigured;
use serde_json::Value;

/// The program, with neither the environment nor the files of this machine configuring it.
pub(crate) fn haul() -> Command {
    unconfigured(Command::new(env!("CARGO_BIN_EXE_haul")))
}

/// The program, with `starter` in front of it.
pub(crate) fn starting(starter: &[&str]) -> Command {
    let Some((first, rest)) = starter.split_first() else { return haul() };
    let mut command = unconfigured(Command::new(first));
    command.args(rest).arg(haul().get_program());
    command
}

pub(crate) fn run(arguments: &[&str]) -> Output {
    haul().args(arguments).output().unwrap()
}

/// Output that must be UTF-8.
pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// Output that may contain names of any bytes.
pub(crate) fn lossy(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[track_caller]
pub(crate) fn exits(output: &Output, code: i32) {
    assert_eq!(output.status.code(), Some(code), "{} {}", lossy(&output.stdout), lossy(&output.stderr));
}

#[track_caller]
pub(crate) fn object(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).unwrap_or_else(|e| panic!("{e}: {}", lossy(&output.stdout)))
}

/// A running `haul serve`, killed when dropped.
pub(crate) struct Server {
    pub(crate) child: Child,
    pub(crate) url: String,
}

impl Server {
    pub(crate) fn start(root: &Path, options: &[&str]) -> Self {
        Self::started_by(&[], root, options)
    }

    /// Starts it with `starter` in front of the program.
    pub(crate) fn started_by(starter: &[&str], root: &Path, options: &[&str]) -> Self {
        let mut command = starting(starter);
        command.args(["serve", "--listen", "127.0.0.1:0", "--root"]).arg(root).args(options);
        Self::of(command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap())
    }

    /// Takes over a started server; the URL is empty if its stdout is not a pipe.
    pub(crate) fn of(mut child: Child) -> Self {
        let mut url = String::new();
        if let Some(stdout) = child.stdout.as_mut() {
            BufReader::new(stdout).read_line(&mut url).unwrap();
        }
        Self { child, url: url.trim().to_owned() }
    }

    /// The URL of `path` below the root.
    pub(crate) fn at(&self, path: &str) -> String {
        self.url.replacen("/?k=", &format!("/{path}?k="), 1)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
