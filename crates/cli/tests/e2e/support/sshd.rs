//! A real sshd with its own keys, configuration and home directory.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

use super::haul::{HAUL, LIMIT, clean};
use super::net::{Host, free_port, run as system, skip};
use super::process::{Outcome, Running, until};
use super::tree::directory;

/// Where Debian and most others install it; it must be started by its absolute path.
const SSHD: [&str; 3] = ["/usr/sbin/sshd", "/usr/bin/sshd", "/usr/local/sbin/sshd"];
/// sshd's privilege separation directory.
const EMPTY: &str = "/run/sshd";
/// The host's name in the clients' configuration.
pub(crate) const FAR: &str = "far";

/// A running sshd. Stopped when dropped.
#[derive(Debug)]
pub(crate) struct Sshd {
    place: TempDir,
    process: Running,
    address: String,
    port: u16,
}

impl Sshd {
    /// Listens on the loopback interface, on a free port; `None`, with a message on stderr, if sshd is not
    /// available. `more` are configuration lines that override the defaults.
    pub(crate) fn here(more: &str) -> Option<Self> {
        Self::start(|program| Command::new(program), "127.0.0.1", free_port(), more)
    }

    /// Listens on a host of its own, on the standard port.
    pub(crate) fn on(host: &Host, address: &str) -> Option<Self> {
        Self::start(|program| host.command(program), address, 22, "")
    }

    fn start(command: impl Fn(&str) -> Command, address: &str, port: u16, more: &str) -> Option<Self> {
        let Some(sshd) = SSHD.iter().find(|path| Path::new(path).exists()) else {
            skip("the program `sshd` is missing");
            return None;
        };
        if rustix::process::geteuid().is_root() {
            fs::create_dir_all(EMPTY).expect("root may make directories");
        }
        let place = directory();
        let at = |name: &str| place.path().join(name).display().to_string();
        for key in ["host-key", "key", "other-key"] {
            system(Command::new("ssh-keygen").args(["-q", "-t", "ed25519", "-N", "", "-f", &at(key)]));
        }
        fs::create_dir(at("home")).expect("directories can be made");
        fs::copy(at("key.pub"), at("authorized")).expect("the key has been made");
        let configuration = format!(
            "{more}\nPort {port}\nListenAddress {address}\nHostKey {}\nPidFile none\nAuthorizedKeysFile {}\nUsePAM no\n\
             StrictModes no\nPasswordAuthentication no\nKbdInteractiveAuthentication no\nMaxStartups 100\n\
             PermitRootLogin yes\nSetEnv HOME={}\nLogLevel VERBOSE\n",
            at("host-key"),
            at("authorized"),
            at("home"),
        );
        fs::write(at("sshd_config"), configuration).expect("the file can be written");
        let process = Running::start(command(sshd).args(["-D", "-e", "-f", &at("sshd_config")]));
        let mut this = Self { place, process, address: address.to_owned(), port };
        this.write_client_config("config", "key", "");
        until("sshd to listen", || {
            assert!(this.process.is_running(), "sshd has ended: {}", this.process.stderr());
            this.log().contains("Server listening")
        });
        Some(this)
    }

    /// Writes an ssh client configuration with the private key `key` and further lines for this host.
    pub(crate) fn write_client_config(&self, name: &str, key: &str, more: &str) -> PathBuf {
        let at = |name: &str| self.place.path().join(name).display().to_string();
        let text = format!("{}\n{}", self.client_config(FAR, key, more), common(&at("known")));
        fs::write(at(name), text).expect("the file can be written");
        self.place.path().join(name)
    }

    /// The ssh client configuration for this host under the name `host`.
    pub(crate) fn client_config(&self, host: &str, key: &str, more: &str) -> String {
        let key = self.place.path().join(key);
        let Self { address, port, .. } = self;
        format!("Host {host}\nHostName {address}\nPort {port}\nIdentityFile {}\n{more}\n", key.display())
    }

    /// The default ssh client configuration.
    pub(crate) fn config(&self) -> PathBuf {
        self.place.path().join("config")
    }

    /// The private key that it accepts.
    pub(crate) fn key(&self) -> PathBuf {
        self.place.path().join("key")
    }

    /// Sets a passphrase on that key.
    pub(crate) fn protect_key(&self, passphrase: &str) {
        let mut command = Command::new("ssh-keygen");
        system(command.args(["-q", "-p", "-P", "", "-N", passphrase, "-f"]).arg(self.key()));
    }

    /// The account's home directory.
    pub(crate) fn home(&self) -> PathBuf {
        self.place.path().join("home")
    }

    /// The log of sshd.
    pub(crate) fn log(&self) -> String {
        self.process.stderr()
    }

    /// Creates an executable in the home directory.
    pub(crate) fn script(&self, name: &str, text: &str) -> PathBuf {
        script(&self.home(), name, text)
    }

    /// The process id of sshd.
    pub(crate) fn id(&self) -> u32 {
        self.process.id()
    }

    /// Running `haul` processes started through it.
    pub(crate) fn hauls(&self) -> Vec<i32> {
        let mut found = Vec::new();
        for entry in fs::read_dir("/proc").expect("there is /proc").flatten() {
            let is = |link: &str, target: &Path| {
                fs::read_link(entry.path().join(link)).is_ok_and(|found| found == target)
            };
            let pid: Option<i32> = entry.file_name().to_str().and_then(|name| name.parse().ok());
            if is("exe", Path::new(HAUL)) && is("cwd", &self.home()) {
                found.extend(pid);
            }
        }
        found
    }

    /// `haul cp` through this sshd, run on this host.
    pub(crate) fn cp<I: AsRef<OsStr>>(&self, words: impl IntoIterator<Item = I>) -> Command {
        copy(Command::new(HAUL), &self.config(), words)
    }

    /// Runs `haul cp` through this sshd to its end.
    #[track_caller]
    pub(crate) fn copies<I: AsRef<OsStr>>(&self, words: impl IntoIterator<Item = I>) -> Outcome {
        Running::start(&mut self.cp(words)).wait(LIMIT)
    }
}

/// The ssh client configuration for all hosts, which comes last.
pub(crate) fn common(known: &str) -> String {
    format!(
        "Host *\nUserKnownHostsFile {known}\nGlobalKnownHostsFile none\nStrictHostKeyChecking accept-new\n\
         IdentitiesOnly yes\nIdentityAgent none\nPasswordAuthentication no\nKbdInteractiveAuthentication no\n\
         LogLevel ERROR\n"
    )
}

/// Turns `program` into a `haul cp` over ssh.
pub(crate) fn copy<I: AsRef<OsStr>>(
    mut program: Command,
    config: &Path,
    words: impl IntoIterator<Item = I>,
) -> Command {
    clean(&mut program);
    // The option overrides the environment variable.
    program.env("HAUL_REMOTE_BINARY", HAUL).args(["cp", "-F"]).arg(config).args(words);
    program
}

/// Creates a shell script in `directory`.
pub(crate) fn script(directory: &Path, name: &str, text: &str) -> PathBuf {
    let path = directory.join(name);
    haul_testing::write_script(&path, text);
    path
}
