//! The two sides: namespaces, their devices, and their settings.

use std::fs;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use haul_base::{Rate, Span};

use crate::error::{WanError, While};
use crate::net::{Address, Namespace, Offloads, Tun, configure, kill_inside, own_name};
use crate::privilege::Privilege;

/// Namespaces with names are called `haul-wan-<pid>-<start>-a` and `-b`: the process that made them.
pub const PREFIX: &str = "haul-wan-";
/// What the device is called on both sides.
const DEVICE: &str = "wan0";
/// Packets (super-packets) that wait in the kernel until the emulator comes to read them.
const DEVICE_QUEUE: u32 = 20_000;
/// The least that a TCP window may become unless it is said otherwise: what Linux allows a receiver.
const MIN_WINDOW: u64 = 6 << 20;
/// The most, so that memory stays bounded.
const MAX_WINDOW: u64 = 1 << 30;

/// Addresses of side A and side B.
pub const V4: [Ipv4Addr; 2] = [Ipv4Addr::new(10, 201, 0, 1), Ipv4Addr::new(10, 201, 0, 2)];
/// The same for IPv6: unique local addresses (RFC 4193).
pub const V6: [Ipv6Addr; 2] =
    [Ipv6Addr::new(0xfd00, 0x201, 0, 0, 0, 0, 0, 1), Ipv6Addr::new(0xfd00, 0x201, 0, 0, 0, 0, 0, 2)];

/// Whether namespaces get names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Names {
    /// Names that `ip netns` knows. What a killed process leaves of them, [`sweep`](crate::sweep) removes.
    Listed,
    /// None: they are reached through this process, and gone when it is, however it ends.
    Hidden,
}

impl From<Privilege> for Names {
    /// The most that this privilege is good for: names need the right to mount.
    fn from(privilege: Privilege) -> Self {
        match privilege {
            Privilege::Root => Self::Listed,
            Privilege::UserNamespace => Self::Hidden,
        }
    }
}

/// How large TCP windows may become.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum TcpWindow {
    /// Four bandwidth-delay products of the path: they never limit a flow.
    #[default]
    Path,
    /// What the kernel gives to new namespaces.
    Kernel,
    /// So many bytes.
    Bytes(u64),
}

/// One side.
#[derive(Debug)]
pub struct Side {
    /// Where its processes are.
    pub namespace: Namespace,
    /// The emulator's end of its device.
    pub(crate) tun: Arc<Tun>,
}

/// Both sides. When this is dropped, everything inside of them is ended, and they are removed.
#[derive(Debug)]
pub struct World {
    /// Where clients run.
    pub a: Side,
    /// Where servers run.
    pub b: Side,
}

/// What the sides are like.
#[derive(Debug, Clone, Copy)]
pub(crate) struct WorldOptions {
    /// Longest packet of the devices.
    pub mtu: u32,
    /// Whether super-packets pass whole.
    pub offload: bool,
    /// Largest TCP window.
    pub window: TcpWindow,
    /// The rate and the round-trip time of the path.
    pub path: (Rate, Span),
}

impl World {
    /// Makes both sides.
    ///
    /// # Errors
    /// When the system refuses one of the many things that this takes.
    pub(crate) fn create(names: Names, options: &WorldOptions) -> Result<Self, WanError> {
        let side = |number: usize| Side::create(number, names, options);
        Ok(Self { a: side(0)?, b: side(1)? })
    }

    /// Ends everything that runs on either side.
    pub fn end_processes(&self) {
        let sides = [&self.a, &self.b];
        let ids: Vec<_> = sides.iter().filter_map(|side| side.namespace.id().ok()).collect();
        kill_inside(&ids);
    }
}

impl Drop for World {
    fn drop(&mut self) {
        self.end_processes();
    }
}

impl Side {
    fn create(number: usize, names: Names, options: &WorldOptions) -> Result<Self, WanError> {
        let name = own_name(PREFIX, ["a", "b"][number]);
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
                quieten()?;
                configure(DEVICE, options.mtu, DEVICE_QUEUE, &addresses)?;
                set_windows(options)
            })
            .while_doing("cannot set up a namespace")?;
        Ok(Self { namespace, tun: Arc::new(tun) })
    }

    /// What the kernel hands over whole at this side.
    pub fn offloads(&self) -> Offloads {
        self.tun.offloads()
    }

    /// Packets that the kernel dropped because the emulator did not read them in time. A super-packet counts as one.
    ///
    /// # Errors
    /// When the kernel does not tell.
    pub fn device_drops(&self) -> io::Result<u64> {
        self.namespace.run(|| {
            let text = fs::read_to_string("/proc/thread-self/net/dev")?;
            Ok(transmit_drops(&text, DEVICE).unwrap_or(0))
        })
    }
}

/// The twelfth number behind the device's name in `/proc/net/dev`: drops on the way out.
fn transmit_drops(text: &str, device: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.trim().strip_prefix(device)?.strip_prefix(':'))?;
    line.split_whitespace().nth(11)?.parse().ok()
}

/// No packets of the kernel's own on the path: no link-local address, so no router solicitations.
fn quieten() -> io::Result<()> {
    let conf = format!("/proc/sys/net/ipv6/conf/{DEVICE}");
    // Where there is no IPv6, there is nothing to quieten.
    for (key, value) in [("addr_gen_mode", "1"), ("router_solicitations", "0"), ("accept_ra", "0")] {
        match fs::write(format!("{conf}/{key}"), value) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    Ok(())
}

/// Lets TCP windows fill the path.
fn set_windows(options: &WorldOptions) -> io::Result<()> {
    let (rate, rtt) = options.path;
    let most = match options.window {
        TcpWindow::Kernel => return Ok(()),
        TcpWindow::Bytes(bytes) => bytes,
        // Without a rate, think of 10 Gbit/s. Twice for the kernel's own accounting, twice for the queue.
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
    fn drops_are_the_twelfth_number() {
        let text = "Inter-|   Receive\n face |bytes\n    lo: 1 2 3 4 5 6 7 8 9 10 11 12\n  wan0: 1 2 3 4 5 6 7 8 9 10 11 77 13 14\n";
        assert_eq!(transmit_drops(text, "wan0"), Some(77));
        assert_eq!(transmit_drops(text, "wan1"), None);
    }
}
