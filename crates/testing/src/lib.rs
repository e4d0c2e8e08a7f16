//! Helpers shared by tests of several crates. Used by tests only.

pub mod fuzz;

use std::path::Path;
use std::pin::pin;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;

/// Whether a test that needs network namespaces and TUN devices can run here. If not, prints to stderr that
/// the test is skipped, and why.
///
/// # Panics
/// If it cannot run and the environment has `HAUL_E2E=required`.
pub fn privileged(test: &str) -> bool {
    let missing = if !rustix::process::geteuid().is_root() {
        "root"
    } else if !Path::new("/dev/net/tun").exists() {
        "/dev/net/tun"
    } else {
        return true;
    };
    assert!(std::env::var("HAUL_E2E").as_deref() != Ok("required"), "{test} needs {missing}");
    eprintln!("SKIPPED {test}: needs {missing}");
    false
}

/// Returns the command without `haul` configuration from the environment or this machine's files, and with an
/// empty stdin.
#[must_use]
pub fn unconfigured(mut command: Command) -> Command {
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.as_encoded_bytes().starts_with(b"HAUL_")) {
        command.env_remove(name);
    }
    command.env("HAUL_CONFIG", "").stdin(Stdio::null());
    command
}

/// Returns the first of up to five results for which `is_expected` holds, otherwise the last one. For results
/// that a busy machine occasionally changes, such as what limited a transfer.
pub fn attempts<T>(mut attempt: impl FnMut() -> T, is_expected: impl Fn(&T) -> bool) -> T {
    for _ in 1..5 {
        let result = attempt();
        if is_expected(&result) {
            return result;
        }
    }
    attempt()
}

/// Calls `send` until it has failed four times in a row, and returns how often it succeeded. For a sender that is
/// full if sending times out: a busy machine can delay it for a single timeout.
pub fn send_until_full(mut send: impl FnMut() -> bool) -> usize {
    let (mut sent, mut failed) = (0, 0);
    while failed < 4 {
        (sent, failed) = if send() { (sent + 1, 0) } else { (sent, failed + 1) };
    }
    sent
}

/// Copies a program that is to be executed. A separate process writes the file: a child that another test is
/// just starting could hold a file descriptor of this process open for writing, and executing the file would
/// fail (`ETXTBSY`).
///
/// # Panics
/// If it cannot be copied.
pub fn copy_program(from: &Path, to: &Path) {
    let status = Command::new("cp").args([from, to]).status().expect("cp(1) is there");
    assert!(status.success(), "cannot copy {} to {}", from.display(), to.display());
}

/// Writes an executable shell script, in a separate process for the same reason as [`copy_program`].
///
/// # Panics
/// If it cannot be written.
pub fn write_script(to: &Path, text: &str) {
    let write = "printf '#!/bin/sh\n%s\n' \"$1\" >\"$0\" && chmod 755 \"$0\"";
    let status = Command::new("sh").args(["-c", write]).arg(to).arg(text).status().expect("there is a shell");
    assert!(status.success(), "cannot write {}", to.display());
}

/// Runs a future on the current thread.
pub fn block_on<T>(task: impl Future<Output = T>) -> T {
    struct Unpark(Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut task = pin!(task);
    loop {
        if let Poll::Ready(value) = task.as_mut().poll(&mut Context::from_waker(&waker)) {
            return value;
        }
        std::thread::park();
    }
}
