//! The rtnetlink requests that set up a namespace's device, addresses and loopback (RFC 3549).

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsFd, OwnedFd};

use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketType};

const RTM_NEWLINK: u16 = 16;
const RTM_NEWADDR: u16 = 20;
/// `NLM_F_REQUEST | NLM_F_ACK`.
const REQUEST: u16 = 0x01 | 0x04;
/// `NLM_F_CREATE | NLM_F_EXCL`.
const CREATE: u16 = 0x400 | 0x200;
const NLMSG_ERROR: u16 = 2;

const IFLA_IFNAME: u16 = 3;
const IFLA_MTU: u16 = 4;
const IFLA_TXQLEN: u16 = 13;
const IFA_ADDRESS: u16 = 1;
const IFA_LOCAL: u16 = 2;
const IFA_FLAGS: u16 = 8;
/// Disables duplicate address detection: there is no other host, and the address must work immediately.
const IFA_F_NODAD: u32 = 0x02;

const IFF_UP: u32 = 0x1;
/// Cleared so that the kernel sends no multicast reports over the path.
const IFF_MULTICAST: u32 = 0x1000;

/// An address and its prefix length.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Address {
    /// The address.
    pub ip: IpAddr,
    /// Prefix length in bits.
    pub prefix: u8,
}

/// Configures the loopback and the device `name` of the calling thread's network namespace.
pub(crate) fn configure(name: &str, mtu: u32, queue_packets: u32, addresses: &[Address]) -> io::Result<()> {
    let socket = Netlink::open()?;
    socket.link("lo", IFF_UP, IFF_UP, &[])?;
    let sizes = [(IFLA_MTU, mtu), (IFLA_TXQLEN, queue_packets)];
    socket.link(name, 0, IFF_MULTICAST, &sizes)?;
    let interface = interface_index(name)?;
    for address in addresses {
        socket.add_address(interface, *address)?;
    }
    socket.link(name, IFF_UP, IFF_UP, &[])
}

/// Returns the index of a device of the calling thread's network namespace.
fn interface_index(name: &str) -> io::Result<u32> {
    let socket = rustix::net::socket(AddressFamily::INET, SocketType::DGRAM, None)?;
    Ok(rustix::net::netdevice::name_to_index(socket, name)?)
}

struct Netlink(OwnedFd);

impl Netlink {
    fn open() -> io::Result<Self> {
        // `None` is protocol 0, NETLINK_ROUTE.
        Ok(Self(rustix::net::socket(AddressFamily::NETLINK, SocketType::RAW, None)?))
    }

    /// Changes flags (the bits in `mask`) and attributes of a device.
    fn link(&self, name: &str, flags: u32, mask: u32, attributes: &[(u16, u32)]) -> io::Result<()> {
        let mut message = Message::new(RTM_NEWLINK, REQUEST);
        // struct ifinfomsg: family, padding, type, index, flags, change.
        message.bytes(&[0; 8]).bytes(&flags.to_ne_bytes()).bytes(&mask.to_ne_bytes());
        message.attribute(IFLA_IFNAME, &[name.as_bytes(), b"\0"].concat());
        for (kind, value) in attributes {
            message.attribute(*kind, &value.to_ne_bytes());
        }
        self.send_request(message)
    }

    fn add_address(&self, interface: u32, address: Address) -> io::Result<()> {
        let mut message = Message::new(RTM_NEWADDR, REQUEST | CREATE);
        let (family, bytes) = match address.ip {
            IpAddr::V4(ip) => (AddressFamily::INET, ip_bytes_v4(ip)),
            IpAddr::V6(ip) => (AddressFamily::INET6, ip_bytes_v6(ip)),
        };
        // struct ifaddrmsg: family, prefix length, flags, scope, index.
        message.bytes(&[family.as_raw() as u8, address.prefix, 0, 0]).bytes(&interface.to_ne_bytes());
        message.attribute(IFA_LOCAL, &bytes).attribute(IFA_ADDRESS, &bytes);
        message.attribute(IFA_FLAGS, &IFA_F_NODAD.to_ne_bytes());
        self.send_request(message)
    }

    /// Sends a request and waits for the kernel's acknowledgement.
    fn send_request(&self, message: Message) -> io::Result<()> {
        rustix::net::send(self.0.as_fd(), &message.finish(), SendFlags::empty())?;
        let mut answer = [0u8; 4096];
        let (len, _) = rustix::net::recv(self.0.as_fd(), &mut answer, RecvFlags::empty())?;
        let word = |at: usize| answer.get(at..at + 4).and_then(|b| b.try_into().ok()).map(i32::from_ne_bytes);
        let is_answer = len >= 20 && answer[4..6] == NLMSG_ERROR.to_ne_bytes();
        match word(16).filter(|_| is_answer) {
            Some(0) => Ok(()),
            Some(error) => Err(io::Error::from_raw_os_error(-error)),
            None => Err(io::Error::new(io::ErrorKind::InvalidData, "no answer to a netlink request")),
        }
    }
}

fn ip_bytes_v4(ip: Ipv4Addr) -> Vec<u8> {
    ip.octets().to_vec()
}

fn ip_bytes_v6(ip: Ipv6Addr) -> Vec<u8> {
    ip.octets().to_vec()
}

/// A netlink message under construction: length, type, flags, sequence number, port ID, and payload.
struct Message(Vec<u8>);

impl Message {
    fn new(kind: u16, flags: u16) -> Self {
        let mut message = Self(vec![0; 4]);
        message.bytes(&kind.to_ne_bytes()).bytes(&flags.to_ne_bytes()).bytes(&[0; 8]);
        message
    }

    fn bytes(&mut self, bytes: &[u8]) -> &mut Self {
        self.0.extend_from_slice(bytes);
        self
    }

    fn attribute(&mut self, kind: u16, value: &[u8]) -> &mut Self {
        let len = (4 + value.len()) as u16;
        self.bytes(&len.to_ne_bytes()).bytes(&kind.to_ne_bytes()).bytes(value);
        self.0.resize(self.0.len().next_multiple_of(4), 0);
        self
    }

    fn finish(mut self) -> Vec<u8> {
        let len = self.0.len() as u32;
        self.0[..4].copy_from_slice(&len.to_ne_bytes());
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_padded_and_contain_their_length() {
        let mut message = Message::new(RTM_NEWLINK, REQUEST);
        message.attribute(IFLA_IFNAME, b"lo\0");
        let bytes = message.finish();
        assert_eq!(bytes.len(), 24);
        assert_eq!(bytes[..4], 24u32.to_ne_bytes());
        assert_eq!(bytes[16..18], 7u16.to_ne_bytes());
    }
}
