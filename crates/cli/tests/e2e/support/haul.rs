//! Runs the program under test, as a client and as a server.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use super::net::{Host, Net};
use super::process::{Outcome, Running, until};
use super::tree::directory;

/// The binary that cargo has built.
pub(crate) const HAUL: &str = env!("CARGO_BIN_EXE_haul");
/// Time limit of every command in these tests.
pub(crate) const LIMIT: Duration = Duration::from_secs(90);
/// The server's port.
pub(crate) const PORT: u16 = 7000;

/// A command for `haul` on `host`, with none of the user's environment.
pub(crate) fn haul<I: AsRef<OsStr>>(host: &Host, arguments: impl IntoIterator<Item = I>) -> Command {
    let mut command = host.command(HAUL);
    clean(&mut command);
    command.args(arguments);
    command
}

/// Removes the user's configuration from the environment.
pub(crate) fn clean(command: &mut Command) {
    let is_haul_variable = |name: &str| name.starts_with("HAUL_") || name == "RUST_LOG";
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_str().is_some_and(is_haul_variable)) {
        command.env_remove(name);
    }
    command.env("XDG_CONFIG_HOME", "/nonexistent").env("HOME", "/nonexistent");
}

/// Runs `haul` on `host` to its end.
#[track_caller]
pub(crate) fn run<I: AsRef<OsStr>>(host: &Host, arguments: impl IntoIterator<Item = I>) -> Outcome {
    Running::start(&mut haul(host, arguments)).wait(LIMIT)
}

/// Runs `haul` in the current network namespace.
#[track_caller]
pub(crate) fn run_here<I: AsRef<OsStr>>(arguments: impl IntoIterator<Item = I>) -> Outcome {
    let mut command = Command::new(HAUL);
    clean(&mut command);
    Running::start(command.args(arguments)).wait(LIMIT)
}

/// A running `haul serve`.
#[derive(Debug)]
pub(crate) struct Server {
    /// The process.
    pub(crate) process: Running,
    /// The URL of its root.
    pub(crate) url: String,
}

impl Server {
    /// Serves `root` on IPv4, with further `options` of `haul serve`.
    #[track_caller]
    pub(crate) fn start(net: &Net, root: &Path, options: &[&str]) -> Self {
        let listen = format!("0.0.0.0:{PORT}");
        Self::start_with(net, root, &listen, Net::SERVER, options, None)
    }

    /// Serves on another port.
    #[track_caller]
    pub(crate) fn start_at(net: &Net, root: &Path, port: u16) -> Self {
        Self::start_with(net, root, &format!("0.0.0.0:{port}"), Net::SERVER, &[], None)
    }

    /// Serves on IPv6.
    #[track_caller]
    pub(crate) fn start_v6(net: &Net, root: &Path) -> Self {
        Self::start_with(net, root, &format!("[::]:{PORT}"), Net::SERVER_V6, &[], None)
    }

    /// Serves with `HAUL_FAULTS` set.
    #[cfg(feature = "faults")]
    #[track_caller]
    pub(crate) fn start_faulty(net: &Net, root: &Path, faults: &str) -> Self {
        let listen = format!("0.0.0.0:{PORT}");
        Self::start_with(net, root, &listen, Net::SERVER, &[], Some(("HAUL_FAULTS", faults)))
    }

    /// Serves from a disk that writes this many bytes per second.
    #[cfg(feature = "faults")]
    #[track_caller]
    pub(crate) fn start_slow(net: &Net, root: &Path, bytes_per_second: &str) -> Self {
        let listen = format!("0.0.0.0:{PORT}");
        Self::start_with(net, root, &listen, Net::SERVER, &[], Some(("HAUL_DISK_RATE", bytes_per_second)))
    }

    #[track_caller]
    fn start_with(
        net: &Net,
        root: &Path,
        listen: &str,
        host: &str,
        options: &[&str],
        environment: Option<(&str, &str)>,
    ) -> Self {
        let place = directory();
        let file: PathBuf = place.path().join("url");
        let mut command = haul(&net.server, ["serve", "--listen", listen, "--host", host, "--root"]);
        command.arg(root).arg("--url-file").arg(&file).args(options);
        command.envs(environment);
        let mut process = Running::start(&mut command);
        let mut url = String::new();
        until("the server's URL", || {
            assert!(process.is_running(), "the server has ended: {}", process.stderr());
            let text = std::fs::read_to_string(&file).unwrap_or_default();
            text.trim().clone_into(&mut url);
            !url.is_empty()
        });
        Self { process, url }
    }

    /// The URL of a path below the root. The path must already be percent-encoded.
    pub(crate) fn at(&self, path: &str) -> String {
        at(&self.url, path)
    }
}

/// `url` with another path.
pub(crate) fn at(url: &str, path: &str) -> String {
    let (place, key) = url.split_once('?').expect("a URL has a key");
    let (scheme, rest) = place.split_once("://").expect("a URL has a scheme");
    let authority = rest.split('/').next().unwrap_or_default();
    format!("{scheme}://{authority}/{path}?{key}")
}

/// `url` with one character of its key changed: characters 2 to 43 belong to the fingerprint, 45 to 86 to the
/// secret, and from 88 on to the expiry time.
pub(crate) fn tampered(url: &str, character: usize) -> String {
    let start = url.find("?k=").expect("a URL has a key") + 3;
    let mut bytes = url.as_bytes().to_vec();
    let byte = &mut bytes[start + character];
    *byte = if *byte == b'B' { b'C' } else { b'B' };
    String::from_utf8(bytes).expect("a URL is ASCII")
}
