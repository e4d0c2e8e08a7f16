//! TUN device with virtio headers, so that TCP and UDP super-packets pass whole.

use std::fs::{File, OpenOptions};
use std::io::{self, IoSlice};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::OpenOptionsExt;

use rustix::fs::OFlags;
use serde::Serialize;

use super::sys;

/// Device file for creating TUN devices.
pub(crate) const CLONE_DEVICE: &str = "/dev/net/tun";

/// `TUN_F_CSUM`: the kernel may leave checksums to us.
const CSUM: u32 = 0x01;
/// `TUN_F_TSO4 | TUN_F_TSO6 | TUN_F_TSO_ECN`.
const TSO: u32 = 0x02 | 0x04 | 0x08;
/// `TUN_F_USO4 | TUN_F_USO6` (Linux 6.2).
const USO: u32 = 0x20 | 0x40;

/// Kinds of super-packets that the kernel passes whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Offloads {
    /// TCP super-packets.
    pub tcp: bool,
    /// UDP super-packets.
    pub udp: bool,
}

/// An open TUN device, removed when dropped.
#[derive(Debug)]
pub(crate) struct Tun {
    file: File,
    offloads: Offloads,
}

impl Tun {
    /// Creates the device `name` in the network namespace of the calling thread.
    ///
    /// # Errors
    /// If `/dev/net/tun` is missing or inaccessible, or without `CAP_NET_ADMIN`.
    pub(crate) fn open(name: &str, requested: Offloads) -> io::Result<Self> {
        let flags = OFlags::NONBLOCK.bits().cast_signed();
        let file = OpenOptions::new().read(true).write(true).custom_flags(flags).open(CLONE_DEVICE)?;
        sys::make_tun(file.as_fd(), name)?;
        let offloads = set_offloads(file.as_fd(), requested)?;
        Ok(Self { file, offloads })
    }

    /// Returns the granted offloads: a kernel without USO passes UDP packets singly.
    pub(crate) fn offloads(&self) -> Offloads {
        self.offloads
    }

    /// Reads one packet with its header; `None` if there is none. A packet longer than `buffer` is truncated.
    pub(crate) fn read(&self, buffer: &mut [u8]) -> io::Result<Option<usize>> {
        loop {
            match rustix::io::read(&self.file, &mut *buffer) {
                Ok(len) => return Ok(Some(len)),
                Err(rustix::io::Errno::AGAIN) => return Ok(None),
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Writes one packet, header first, from pieces.
    pub(crate) fn write(&self, pieces: &[IoSlice<'_>]) -> io::Result<()> {
        loop {
            match rustix::io::writev(&self.file, pieces) {
                Ok(_) => return Ok(()),
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}

impl AsFd for Tun {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// Requests the wanted offloads, and fewer if the kernel does not support them.
fn set_offloads(fd: BorrowedFd<'_>, requested: Offloads) -> io::Result<Offloads> {
    let udp = requested.udp && requested.tcp;
    let flags = CSUM | if requested.tcp { TSO } else { 0 };
    if udp && sys::set_tun_offload(fd, flags | USO).is_ok() {
        return Ok(Offloads { tcp: requested.tcp, udp });
    }
    sys::set_tun_offload(fd, flags)?;
    Ok(Offloads { tcp: requested.tcp, udp: false })
}
