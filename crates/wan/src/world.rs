//! The two sides: namespaces, their devices, and their settings.

use std::fs;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use haul_base::{Rate, Span};

use crate::error::{WanError, While};
use crate::net::{Address, Namespace, Offloads, Tun, configure, kill_processes_in, process_name};
use crate::privilege::Privilege;

/// Prefix of namespace names: `haul-wan-<pid>-<start>-a` and `-b`, after the process that created them.
pub const PREFIX: &str = "haul-wan-";
/// Name of the device on both sides.
const DEVICE: &str = "wan0";
/// Packets (super-packets) that the kernel queues until the emulator reads them.
const DEVICE_QUEUE: u32 = 20_000;
/// Minimum TCP window limit unless configured: Linux's default for receivers.
const MIN_WINDOW: u64 = 6 << 20;
/// Maximum TCP window limit, which bounds memory.
const MAX_WINDOW: u64 = 1 << 30;

/// IPv4 addresses of sides A and B.
pub const V4: [Ipv4Addr; 2] = [Ipv4Addr::new(10, 201, 0, 1), Ipv4Addr::new(10, 201, 0, 2)];
/// IPv6 addresses of sides A and B: unique local addresses (RFC 4193).
pub const V6: [Ipv6Addr; 2] =
    [Ipv6Addr::new(0xfd00, 0x201, 0, 0, 0, 0, 0, 1), Ipv6Addr::new(0xfd00, 0x201, 0, 0, 0, 0, 0, 2)];

/// Whether namespaces get names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Names {
    /// Names known to `ip netns`. Names left by a killed process are removed by [`sweep`](crate::sweep).
    Listed,
    /// No names: the namespaces are accessible through this process, and vanish whenever it ends.
    Hidden,
}

impl From<Privilege> for Names {
    /// Names need the privilege to mount.
    fn from(privilege: Privilege) -> Self {
        match privilege {
            Privilege::Root => Self::Listed,
            Privilege::UserNamespace => Self::Hidden,
        }
    }
}

/// Limit of TCP windows.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum TcpWindow {
    /// Four bandwidth-delay products of the path: never limits a flow.
    #[default]
    Path,
    /// The kernel's default for new namespaces.
    Kernel,
    /// Number of bytes.
    Bytes(u64),
}

/// One side.
#[derive(Debug)]
pub struct Side {
    /// Namespace of its processes.
    pub namespace: Namespace,
    /// Emulator's end of its device.
    pub(crate) tun: Arc<Tun>,
}

/// Both sides. Dropping them ends all processes inside and removes the namespaces.
#[derive(Debug)]
pub struct World {
    /// Side of the clients.
    pub a: Side,
    /// Side of the servers.
    pub b: Side,
}

/// Settings of both sides.
#[derive(Debug, Clone, Copy)]
pub(crate) struct WorldOptions {
    /// MTU of the devices.
    pub mtu: u32,
    /// Whether super-packets pass whole.
    pub offload: bool,
    /// Maximum TCP window.
    pub window: TcpWindow,
    /// Rate and round-trip time of the path.
    pub path: (Rate, Span),
}

impl World {
    /// Creates both sides.
    ///
    /// # Errors
    /// If a system call fails.
    pub(crate) fn create(names: Names, options: &WorldOptions) -> Result<Self, WanError> {
        let side = |number: usize| Side::create(number, names, options);
        Ok(Self { a: side(0)?, b: side(1)? })
    }

    /// Ends all processes on both sides.
    pub fn end_processes(&self) {
        let sides = [&self.a, &self.b];
        let ids: Vec<_> = sides.iter().filter_map(|side| side.namespace.id().ok()).collect();
        kill_processes_in(&ids);
    }
}

impl Drop for World {
    fn drop(&mut self) {
        self.end_processes();
    }
}

impl Side {
    fn create(number: usize, names: Names, options: &WorldOptions) -> Result<Self, WanError> {
        let name = process_name(PREFIX, ["a", "b"][number]);
        let namespace = Namespace::create(&name, names == Names::Listed)
            .while_doing("cannot make a network namespace")?;
        let offloads = Offloads { tcp: options.offload, udp: options.offload };
        let tun = namespace.run(|| Tun::open(DEVICE, offloads)).while_doing("cannot make a TUN device")?;
        let addresses = [
            Address { ip: IpAddr::V4(V4[number]), prefix: 24 },
            Address { ip: IpAddr::V6(V6[number]), prefix: 64 },
        ];
        namespace
            .run(|| {
                disable_autoconfiguration()?;
                configure(DEVICE, options.mtu, DEVICE_QUEUE, &addresses)?;
                set_windows(options)
            })
            .while_doing("cannot set up a namespace")?;
        Ok(Self { namespace, tun: Arc::new(tun) })
    }

    /// Returns the kinds of super-packets that the kernel passes whole on this side.
    pub fn offloads(&self) -> Offloads {
        self.tun.offloads()
    }

    /// Returns the number of packets that the kernel dropped because the emulator did not read them in time.
    /// A super-packet counts as one.
    ///
    /// # Errors
    /// If the kernel's counter cannot be read.
    pub fn device_drops(&self) -> io::Result<u64> {
        self.namespace.run(|| {
            let text = fs::read_to_string("/proc/thread-self/net/dev")?;
            Ok(transmit_drops(&text, DEVICE).unwrap_or(0))
        })
    }
}

/// Returns the twelfth number after the device's name in `/proc/net/dev`: transmit drops.
fn transmit_drops(text: &str, device: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.trim().strip_prefix(device)?.strip_prefix(':'))?;
    line.split_whitespace().nth(11)?.parse().ok()
}

/// Prevents the kernel's own packets on the path: no link-local address, so no router solicitations.
fn disable_autoconfiguration() -> io::Result<()> {
    let conf = format!("/proc/sys/net/ipv6/conf/{DEVICE}");
    // Without IPv6 there is nothing to disable.
    for (key, value) in [("addr_gen_mode", "1"), ("router_solicitations", "0"), ("accept_ra", "0")] {
        match fs::write(format!("{conf}/{key}"), value) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    Ok(())
}

/// Sets TCP window limits so that windows can fill the path.
fn set_windows(options: &WorldOptions) -> io::Result<()> {
    let (rate, rtt) = options.path;
    let most = match options.window {
        TcpWindow::Kernel => return Ok(()),
        TcpWindow::Bytes(bytes) => bytes,
        // Assumes 10 Gbit/s without a rate. A factor of 2 for the kernel's accounting, and 2 for the queue.
        TcpWindow::Path => {
            (4 * rate.min(Rate::from_mbps(10_000)).bytes_in(rtt)).clamp(MIN_WINDOW, MAX_WINDOW)
        }
    };
    for key in ["tcp_rmem", "tcp_wmem"] {
        let path = format!("/proc/sys/net/ipv4/{key}");
        let present = fs::read_to_string(&path)?;
        let mut numbers = present.split_whitespace().filter_map(|n| n.parse::<u64>().ok());
        let (least, default) = (numbers.next().unwrap_or(4_096), numbers.next().unwrap_or(131_072));
        fs::write(&path, format!("{least} {} {most}", default.min(most)))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drops_are_the_twelfth_field() {
        let text = "Inter-|   Receive\n face |bytes\n    lo: 1 2 3 4 5 6 7 8 9 10 11 12\n  wan0: 1 2 3 4 5 6 7 8 9 10 11 77 13 14\n";
        assert_eq!(transmit_drops(text, "wan0"), Some(77));
        assert_eq!(transmit_drops(text, "wan1"), None);
    }
}
