//! Network namespaces: a client, a server, and optionally a third host, joined by veth pairs.

use std::fs::File;
use std::io::Write;
use std::net::{TcpListener, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{LazyLock, Mutex};

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

/// Prefix of all namespace names; the test run's process id follows.
const PREFIX: &str = "haul-e2e-";
/// With the value `required`, a skipped test is a failure.
const DEMAND: &str = "HAUL_E2E";

/// Direction of a packet filter rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// Data of uploads, feedback of downloads.
    ToServer,
    /// The opposite direction.
    ToClient,
}

/// A host with its own network namespace. Removed when dropped.
#[derive(Debug)]
pub(crate) struct Host {
    name: String,
}

impl Host {
    fn new(role: &str) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        // Concurrent `ip netns add` commands can fail while they set up /run/netns.
        static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("{PREFIX}{}-{number}-{role}", std::process::id());
        let guard = ONE_AT_A_TIME.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        ip(&["netns", "add", &name]);
        drop(guard);
        let host = Self { name };
        host.ip(&["link", "set", "lo", "up"]);
        host
    }

    /// A command that runs `program` on this host.
    pub(crate) fn command(&self, program: impl AsRef<Path>) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.name]).arg(program.as_ref());
        command
    }

    fn ip(&self, arguments: &[&str]) {
        ip(&[&["-n", &self.name], arguments].concat());
    }

    /// Adds (`-A`) or deletes (`-D`) a rule for incoming packets, IPv4 and IPv6.
    pub(crate) fn firewall(&self, verb: &str, rule: &str) {
        for program in ["iptables", "ip6tables"] {
            let arguments = format!("-w {verb} INPUT {rule}");
            run(self.command(program).args(arguments.split(' ')));
        }
    }

    /// Runs `work` in a thread of this process inside this host's namespace.
    pub(crate) fn enter<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        let namespace =
            File::open(PathBuf::from("/run/netns").join(&self.name)).expect("the namespace is there");
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                move_into_link_name_space(
                    std::os::fd::AsFd::as_fd(&namespace),
                    Some(LinkNameSpaceType::Network),
                )
                .expect("root may enter its namespaces");
                work()
            });
            thread.join().expect("the work in the namespace panicked")
        })
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        remove(&self.name);
    }
}

/// The path's MTU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mtu {
    /// 1,500 bytes.
    Ethernet,
    /// 9,000 bytes.
    Jumbo,
}

/// A client and a server with one link between them.
#[derive(Debug)]
pub(crate) struct Net {
    /// Where the client runs.
    pub(crate) client: Host,
    /// Where the server runs.
    pub(crate) server: Host,
}

impl Net {
    /// The server's address on the link.
    pub(crate) const SERVER: &str = "10.77.0.2";
    /// The server's IPv6 address on the link.
    pub(crate) const SERVER_V6: &str = "fd77::2";
    /// The server's address on the link to the third host.
    pub(crate) const SERVER_FOR_STRANGERS: &str = "10.78.0.2";

    /// Two hosts; `None`, with a message on stderr, where this user or system cannot create them.
    pub(crate) fn new(mtu: Mtu) -> Option<Self> {
        if let Err(why) = &*POSSIBLE {
            skip(why);
            return None;
        }
        let net = Self { client: Host::new("c"), server: Host::new("s") };
        join(&net.client, &net.server, "10.77.0", "fd77", mtu);
        Some(net)
    }

    /// A third host with its own link to the server.
    pub(crate) fn stranger(&self) -> Host {
        let stranger = Host::new("x");
        join(&stranger, &self.server, "10.78.0", "fd78", Mtu::Ethernet);
        stranger
    }

    /// Loses packets of every kind at random, in both directions. With GSO the kernel would count a whole
    /// batch as one packet, so batches are split first and datagrams are lost one by one.
    pub(crate) fn lose(&self, share: f64) {
        for host in [&self.client, &self.server] {
            host.ip(&["link", "set", "dev", "link0", "gso_max_segs", "1"]);
            host.firewall("-A", &format!("-m statistic --mode random --probability {share} -j DROP"));
        }
    }

    /// Drops all UDP in one direction.
    pub(crate) fn block_udp(&self, way: Way) {
        self.receiving(way).firewall("-A", "-p udp -j DROP");
    }

    /// Ends [`block_udp`](Self::block_udp).
    pub(crate) fn unblock_udp(&self, way: Way) {
        self.receiving(way).firewall("-D", "-p udp -j DROP");
    }

    fn receiving(&self, way: Way) -> &Host {
        match way {
            Way::ToServer => &self.server,
            Way::ToClient => &self.client,
        }
    }
}

/// A veth pair, `link0` in `one` and the next free name in `two`; `one` has address `.1`, `two` has `.2`.
fn join(one: &Host, two: &Host, v4: &str, v6: &str, mtu: Mtu) {
    let other = if v4 == "10.77.0" { "link0" } else { "link1" };
    let mtu = if mtu == Mtu::Jumbo { "9000" } else { "1500" };
    one.ip(&["link", "add", "link0", "type", "veth", "peer", "name", other, "netns", &two.name]);
    for (host, device, last) in [(one, "link0", 1), (two, other, 2)] {
        host.ip(&["addr", "add", &format!("{v4}.{last}/24"), "dev", device]);
        host.ip(&["addr", "add", &format!("{v6}::{last}/64"), "dev", device, "nodad"]);
        host.ip(&["link", "set", "dev", device, "mtu", mtu, "up"]);
    }
}

/// Whether namespaces are available; also removes those left behind by killed test runs.
static POSSIBLE: LazyLock<Result<(), String>> = LazyLock::new(|| {
    if !rustix::process::geteuid().is_root() {
        return Err("needs root for network namespaces".to_owned());
    }
    for tool in ["ip", "iptables", "ip6tables"] {
        let found = Command::new(tool).arg("-V").output().is_ok_and(|output| output.status.success());
        if !found {
            return Err(format!("the program `{tool}` is missing"));
        }
    }
    sweep();
    let probe = format!("{PREFIX}{}-probe", std::process::id());
    let output = Command::new("ip").args(["netns", "add", &probe]).output().map_err(|e| e.to_string())?;
    if !output.status.success() {
        return Err(format!(
            "cannot create network namespaces: {}",
            String::from_utf8_lossy(&output.stderr).trim()
        ));
    }
    let rule = "-A INPUT -m statistic --mode random --probability 0.5 -j ACCEPT";
    let statistic = Command::new("ip")
        .args(["netns", "exec", &probe, "iptables", "-w"])
        .args(rule.split(' '))
        .output()
        .is_ok_and(|output| output.status.success());
    remove(&probe);
    if statistic { Ok(()) } else { Err("this kernel's iptables has no statistic match".to_owned()) }
});

/// A free port of this machine outside the kernel's ephemeral range, so that it is only taken by explicit
/// request.
pub(crate) fn free_port() -> u16 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let first = std::process::id() % 100 * 100;
    let mut ports = std::iter::repeat_with(|| {
        let number = first + NEXT.fetch_add(1, Ordering::Relaxed);
        10_000 + u16::try_from(number % 10_000).expect("it is below 10,000")
    });
    let is_free = |port: &u16| {
        TcpListener::bind(("127.0.0.1", *port)).is_ok() && UdpSocket::bind(("127.0.0.1", *port)).is_ok()
    };
    ports.by_ref().take(1_000).find(is_free).expect("there is a free port")
}

/// Whether namespaces are available; otherwise reports the test as skipped.
pub(crate) fn possible() -> bool {
    POSSIBLE.as_ref().inspect_err(|why| skip(why)).is_ok()
}

/// Reports a skipped test on stderr, bypassing the test runner's capture.
pub(crate) fn skip(why: &str) {
    let required = std::env::var(DEMAND).is_ok_and(|value| value == "required");
    assert!(!required, "{DEMAND}=required, but: {why}");
    let test = std::thread::current().name().unwrap_or("a test").to_owned();
    // Ignores a closed stderr.
    let _ = writeln!(std::io::stderr(), "\nSKIPPED {test}: {why}");
}

fn sweep() {
    let Ok(entries) = std::fs::read_dir("/run/netns") else {
        return;
    };
    for entry in entries.flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let owner = name.strip_prefix(PREFIX).and_then(|rest| rest.split('-').next());
        let stale = owner.is_some_and(|pid| !Path::new("/proc").join(pid).exists());
        if stale {
            remove(&name);
        }
    }
}

fn remove(namespace: &str) {
    // The next run removes what cannot be deleted now.
    let _ = Command::new("ip").args(["netns", "del", namespace]).output();
}

fn ip(arguments: &[&str]) {
    run(Command::new("ip").args(arguments));
}

/// Runs a command that must succeed.
pub(crate) fn run(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?} failed: {stderr}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}
