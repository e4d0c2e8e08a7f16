//! What tests of several crates share. No program is built from it: it is imported by tests alone.

pub mod fuzz;

use std::path::Path;
use std::pin::pin;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;

/// Whether a test that makes network namespaces and TUN devices can run here. If not, it says on stderr that the test
/// is skipped, and why.
///
/// # Panics
/// If it cannot, and the environment has `HAUL_E2E=required`.
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

/// The same command, whatever the environment and the files of this machine configure for `haul`, with nothing on stdin.
#[must_use]
pub fn unconfigured(mut command: Command) -> Command {
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.as_encoded_bytes().starts_with(b"HAUL_")) {
        command.env_remove(name);
    }
    command.env("HAUL_CONFIG", "").stdin(Stdio::null());
    command
}

/// The smallest executor: one task, one thread.
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
