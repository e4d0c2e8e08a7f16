//! System calls without a safe wrapper. All unsafe code of this crate is here.
#![expect(
    unsafe_code,
    reason = "ioctl and sched_setscheduler take pointers, and unshare can take file tables apart"
)]

use std::io;
use std::os::fd::BorrowedFd;

use rustix::ioctl::{IntegerSetter, Opcode, Setter, ioctl};
use rustix::thread::UnshareFlags;

/// `TUNSETIFF` of `linux/if_tun.h`.
const TUNSETIFF: Opcode = rustix::ioctl::opcode::write::<i32>(b'T', 202);
/// `TUNSETOFFLOAD`, which takes its flags by value.
const TUNSETOFFLOAD: Opcode = rustix::ioctl::opcode::write::<u32>(b'T', 208);

/// `IFF_TUN | IFF_NO_PI | IFF_VNET_HDR`: IP packets, each behind a `virtio_net_hdr`.
const DEVICE_FLAGS: u16 = 0x0001 | 0x1000 | 0x4000;

/// Longest name of a device, without the NUL.
const MAX_NAME: usize = 15;

/// `struct ifreq`: a name and a union of 24 bytes, of which the flags use the first two.
#[repr(C)]
struct InterfaceRequest {
    name: [u8; MAX_NAME + 1],
    flags: u16,
    rest: [u8; 22],
}

/// Turns an open `/dev/net/tun` into a TUN device with virtio headers, in the namespace it was opened in.
pub(super) fn make_tun(fd: BorrowedFd<'_>, name: &str) -> io::Result<()> {
    let mut request = InterfaceRequest { name: [0; 16], flags: DEVICE_FLAGS, rest: [0; 22] };
    if name.len() > MAX_NAME {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    request.name[..name.len()].copy_from_slice(name.as_bytes());
    // SAFETY: TUNSETIFF reads and writes one `struct ifreq`, which `InterfaceRequest` is in size and layout;
    // it lives until the call returns.
    let setter = unsafe { Setter::<TUNSETIFF, InterfaceRequest>::new(request) };
    // SAFETY: as above; the kernel checks that the file is a TUN device.
    unsafe { ioctl(fd, setter) }?;
    Ok(())
}

/// Sets the offloads that the kernel may use for packets passed to us (`TUN_F_*`).
pub(super) fn set_tun_offload(fd: BorrowedFd<'_>, flags: u32) -> io::Result<()> {
    // SAFETY: TUNSETOFFLOAD takes an integer and no pointer.
    let setter = unsafe { IntegerSetter::<TUNSETOFFLOAD>::new_usize(flags as usize) };
    // SAFETY: as above.
    unsafe { ioctl(fd, setter) }?;
    Ok(())
}

/// Gives the calling thread real-time priority (`SCHED_FIFO`, lowest level).
pub(crate) fn run_before_others() -> io::Result<()> {
    let parameters = libc::sched_param { sched_priority: 1 };
    // SAFETY: the kernel reads one `sched_param`, which lives until the call returns; 0 is the calling
    // thread.
    let result = unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO, &raw const parameters) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Moves the calling thread into a new network namespace.
pub(super) fn unshare_network() -> io::Result<()> {
    // SAFETY: file descriptors stay shared, so nothing that another thread holds is lost.
    unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWNET) }?;
    Ok(())
}

/// Moves the process, which must be single-threaded, into a new user namespace.
pub(super) fn unshare_user() -> io::Result<()> {
    // SAFETY: file descriptors stay shared, so nothing that another thread holds is lost.
    unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWUSER) }?;
    Ok(())
}
