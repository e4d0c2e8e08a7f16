//! Socket addresses in the kernel's form (`struct sockaddr_in`, `struct sockaddr_in6`), as plain bytes.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};

/// Size of `struct sockaddr_in6`, the larger of the two.
pub(crate) const NAME_BYTES: usize = 28;
/// Size of `struct sockaddr_in`.
const V4_BYTES: usize = 16;

/// One address passed to or from the kernel.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(8))]
pub(crate) struct Name {
    bytes: [u8; NAME_BYTES],
    len: usize,
}

impl Name {
    pub(crate) const EMPTY: Self = Self { bytes: [0; NAME_BYTES], len: 0 };

    pub(crate) fn new(addr: SocketAddr) -> Self {
        let mut bytes = [0; NAME_BYTES];
        bytes[2..4].copy_from_slice(&addr.port().to_be_bytes());
        let (family, len) = match addr {
            SocketAddr::V4(v4) => {
                bytes[4..8].copy_from_slice(&v4.ip().octets());
                (libc::AF_INET, V4_BYTES)
            }
            SocketAddr::V6(v6) => {
                bytes[4..8].copy_from_slice(&v6.flowinfo().to_ne_bytes());
                bytes[8..24].copy_from_slice(&v6.ip().octets());
                bytes[24..28].copy_from_slice(&v6.scope_id().to_ne_bytes());
                (libc::AF_INET6, NAME_BYTES)
            }
        };
        bytes[..2].copy_from_slice(&(family as u16).to_ne_bytes());
        Self { bytes, len }
    }

    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    /// Returns the whole buffer, for the kernel to write to.
    pub(crate) fn space_mut(&mut self) -> &mut [u8] {
        &mut self.bytes
    }

    /// Sets the length that the kernel has written.
    pub(crate) fn set_len(&mut self, len: usize) {
        self.len = len.min(NAME_BYTES);
    }

    /// Returns the address if it is an IPv4 or IPv6 address.
    pub(crate) fn addr(&self) -> Option<SocketAddr> {
        let bytes = self.as_bytes();
        let family = i32::from(u16::from_ne_bytes(*bytes.first_chunk()?));
        let port = u16::from_be_bytes(*bytes.get(2..)?.first_chunk()?);
        match family {
            libc::AF_INET => {
                let ip: [u8; 4] = *bytes.get(4..V4_BYTES)?.first_chunk()?;
                Some(SocketAddrV4::new(Ipv4Addr::from(ip), port).into())
            }
            libc::AF_INET6 => {
                let flow = u32::from_ne_bytes(*bytes.get(4..)?.first_chunk()?);
                let ip: [u8; 16] = *bytes.get(8..)?.first_chunk()?;
                let scope = u32::from_ne_bytes(*bytes.get(24..)?.first_chunk()?);
                Some(SocketAddrV6::new(Ipv6Addr::from(ip), port, flow, scope).into())
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn addresses_round_trip(ip in any::<u128>(), v4 in any::<bool>(), port in any::<u16>(),
                               flow in any::<u32>(), scope in any::<u32>()) {
            let addr: SocketAddr = if v4 {
                SocketAddrV4::new(Ipv4Addr::from(ip as u32), port).into()
            } else {
                SocketAddrV6::new(Ipv6Addr::from(ip), port, flow, scope).into()
            };
            let name = Name::new(addr);
            prop_assert_eq!(name.addr(), Some(addr));
            // Same bytes as another implementation.
            let other = socket2::SockAddr::from(addr);
            prop_assert_eq!(other.len() as usize, name.as_bytes().len());
            prop_assert_eq!(other.as_socket(), Some(addr));
        }

        #[test]
        fn any_bytes_can_be_read(bytes in any::<[u8; NAME_BYTES]>(), len in 0usize..40) {
            let mut name = Name::EMPTY;
            name.space_mut().copy_from_slice(&bytes);
            name.set_len(len);
            let _ = name.addr();
        }
    }
}
