//! System calls. All unsafe code of this crate is here: each function takes slices and returns a checked
//! result, and no pointer outlives its call.
#![expect(unsafe_code, reason = "sendmsg, sendmmsg, recvmsg, recvmmsg and socket options need pointers")]

use std::ffi::c_int;
use std::io;
use std::mem;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr;
use std::time::Duration;

use haul_base::Ecn;

use crate::cmsg::{Control, space};
use crate::name::Name;

/// Maximum number of messages in one `sendmmsg` or `recvmmsg`; their headers are on the stack (5 KiB).
pub(crate) const MAX_MESSAGES: usize = 64;

/// `UDP_SEGMENT` of linux/udp.h.
pub(crate) const UDP_SEGMENT: c_int = 103;
/// `UDP_GRO` of linux/udp.h.
pub(crate) const UDP_GRO: c_int = 104;

/// Space for all control messages of one received message: timestamp (16 bytes), drop count (4), TOS or
/// traffic class (4), GRO stride (4), and as much again.
pub(crate) const RECV_CONTROL: usize = 2 * (space(16) + 3 * space(4));
/// Space for a segment size and ECN bits.
pub(crate) const SEND_CONTROL: usize = space(2) + space(4);
/// Space for a `sock_extended_err` with the address after it, and the other control messages.
pub(crate) const ERROR_CONTROL: usize = space(16 + 28) + RECV_CONTROL;

/// Metadata of one received message.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Slot {
    pub(crate) name: Name,
    pub(crate) control: Control<RECV_CONTROL>,
    pub(crate) len: usize,
    pub(crate) flags: c_int,
}

impl Slot {
    pub(crate) const EMPTY: Self = Self { name: Name::EMPTY, control: Control::EMPTY, len: 0, flags: 0 };
}

fn checked(result: isize) -> io::Result<usize> {
    usize::try_from(result).map_err(|_| io::Error::last_os_error())
}

/// Sets an int option.
pub(crate) fn set_option(fd: BorrowedFd<'_>, level: c_int, name: c_int, value: c_int) -> io::Result<()> {
    let len = size_of::<c_int>() as libc::socklen_t;
    // SAFETY: the pointer and the length describe `value`, which lives until the call returns.
    let result = unsafe { libc::setsockopt(fd.as_raw_fd(), level, name, (&raw const value).cast(), len) };
    checked(result as isize).map(drop)
}

/// Reads an option that is an array of 32-bit integers; returns how many the kernel wrote.
pub(crate) fn get_option(
    fd: BorrowedFd<'_>,
    level: c_int,
    name: c_int,
    into: &mut [u32],
) -> io::Result<usize> {
    let mut len = size_of_val(into) as libc::socklen_t;
    // SAFETY: the pointer and `len` describe `into`, exclusively borrowed; any bits are valid for u32.
    let result =
        unsafe { libc::getsockopt(fd.as_raw_fd(), level, name, into.as_mut_ptr().cast(), &raw mut len) };
    checked(result as isize)?;
    Ok(len as usize / size_of::<u32>())
}

/// Returns level and name of the option for the ECN bits of sent packets.
pub(crate) fn ecn_option(v4: bool) -> (i32, i32) {
    if v4 { (libc::IPPROTO_IP, libc::IP_TOS) } else { (libc::IPPROTO_IPV6, libc::IPV6_TCLASS) }
}

/// Appends the ECN bits of a datagram.
pub(crate) fn push_ecn(control: &mut Control<SEND_CONTROL>, v4: bool, ecn: Ecn) {
    let (level, name) = ecn_option(v4);
    let fits = control.push(level, name, &(ecn as i32).to_ne_bytes());
    debug_assert!(fits, "SEND_CONTROL has room for one of each");
}

/// Appends the size at which the kernel segments a batch.
pub(crate) fn push_segment_size(control: &mut Control<SEND_CONTROL>, segment_size: usize) {
    // Never above 65,535: such a batch does not fit into one call.
    let fits = control.push(libc::SOL_UDP, UDP_SEGMENT, &(segment_size as u16).to_ne_bytes());
    debug_assert!(fits, "SEND_CONTROL has room for one of each");
}

/// Builds a message header for sending. It borrows nothing in the compiler's eyes: the caller keeps `vector`,
/// `to` and `control` alive until the system call has returned.
fn send_header(vector: *mut libc::iovec, to: Option<&Name>, control: &[u8]) -> libc::msghdr {
    // SAFETY: msghdr is made of integers and pointers, for which zero is a valid value.
    let mut header: libc::msghdr = unsafe { mem::zeroed() };
    if let Some(name) = to {
        header.msg_name = name.as_bytes().as_ptr().cast_mut().cast();
        header.msg_namelen = name.as_bytes().len() as libc::socklen_t;
    }
    header.msg_iov = vector;
    header.msg_iovlen = 1;
    if !control.is_empty() {
        header.msg_control = control.as_ptr().cast_mut().cast();
        header.msg_controllen = control.len() as _;
    }
    header
}

fn send_vector(data: &[u8]) -> libc::iovec {
    libc::iovec { iov_base: data.as_ptr().cast_mut().cast(), iov_len: data.len() }
}

/// Calls `sendmsg` without blocking; returns how many bytes the kernel accepted.
pub(crate) fn send(fd: BorrowedFd<'_>, data: &[u8], to: Option<&Name>, control: &[u8]) -> io::Result<usize> {
    let mut vector = send_vector(data);
    let header = send_header(&raw mut vector, to, control);
    // SAFETY: the header points at `vector`, `data`, `to` and `control`, all alive until the call returns;
    // sendmsg only reads through the pointers.
    checked(unsafe { libc::sendmsg(fd.as_raw_fd(), &raw const header, libc::MSG_DONTWAIT) })
}

/// Calls `sendmmsg` without blocking, for up to [`MAX_MESSAGES`] datagrams cut from `data`; returns how many
/// the kernel accepted.
pub(crate) fn send_many(
    fd: BorrowedFd<'_>,
    data: &[u8],
    segment_size: usize,
    to: Option<&Name>,
    control: &[u8],
) -> io::Result<usize> {
    // SAFETY: both types are made of integers and pointers, for which zero is a valid value.
    let (mut headers, mut vectors): ([libc::mmsghdr; MAX_MESSAGES], [libc::iovec; MAX_MESSAGES]) =
        unsafe { (mem::zeroed(), mem::zeroed()) };
    let mut count = 0;
    for ((header, vector), part) in headers.iter_mut().zip(&mut vectors).zip(data.chunks(segment_size)) {
        *vector = send_vector(part);
        header.msg_hdr = send_header(vector, to, control);
        count += 1;
    }
    // SAFETY: the first `count` headers point at vectors, data, name and control that are alive until the
    // call returns; sendmmsg writes only msg_len of these headers.
    let sent =
        unsafe { libc::sendmmsg(fd.as_raw_fd(), headers.as_mut_ptr(), count, libc::MSG_DONTWAIT as _) };
    checked(sent as isize)
}

/// Calls `recvmmsg` without blocking: message `i` is written to bytes `i * size ..` of `buffer`, and its
/// metadata to `slots[i]`. Returns how many messages were received.
pub(crate) fn recv_many(
    fd: BorrowedFd<'_>,
    buffer: &mut [u8],
    size: usize,
    slots: &mut [Slot],
) -> io::Result<usize> {
    // SAFETY: both types are made of integers and pointers, for which zero is a valid value.
    let (mut headers, mut vectors): ([libc::mmsghdr; MAX_MESSAGES], [libc::iovec; MAX_MESSAGES]) =
        unsafe { (mem::zeroed(), mem::zeroed()) };
    let mut count = 0;
    let parts = buffer.chunks_exact_mut(size).zip(slots.iter_mut());
    for ((header, vector), (part, slot)) in headers.iter_mut().zip(&mut vectors).zip(parts) {
        *vector = libc::iovec { iov_base: part.as_mut_ptr().cast(), iov_len: part.len() };
        point_at(&mut header.msg_hdr, &mut slot.name, slot.control.space_mut());
        header.msg_hdr.msg_iov = vector;
        header.msg_hdr.msg_iovlen = 1;
        count += 1;
    }
    // SAFETY: the first `count` headers point at disjoint parts of `buffer` and `slots`, exclusively
    // borrowed until the call returns, and at `vectors`; all lengths are those of the parts.
    let received = unsafe {
        let flags = libc::MSG_DONTWAIT as _;
        libc::recvmmsg(fd.as_raw_fd(), headers.as_mut_ptr(), count, flags, ptr::null_mut())
    };
    let received = checked(received as isize)?;
    for (slot, header) in slots.iter_mut().zip(&headers[..received]) {
        slot.len = header.msg_len as usize;
        slot.flags = header.msg_hdr.msg_flags;
        slot.name.set_len(header.msg_hdr.msg_namelen as usize);
        slot.control.set_len(header.msg_hdr.msg_controllen as _);
    }
    Ok(received)
}

/// Points a header for receiving at the buffers for address and control messages.
fn point_at(header: &mut libc::msghdr, name: &mut Name, control: &mut [u8]) {
    let name = name.space_mut();
    header.msg_name = name.as_mut_ptr().cast();
    header.msg_namelen = name.len() as libc::socklen_t;
    header.msg_control = control.as_mut_ptr().cast();
    header.msg_controllen = control.len() as _;
}

/// Receives one message from the socket's error queue without blocking. Only its control messages are kept,
/// not the datagram that caused it.
pub(crate) fn recv_error(fd: BorrowedFd<'_>, control: &mut Control<ERROR_CONTROL>) -> io::Result<()> {
    // SAFETY: msghdr is made of integers and pointers, for which zero is a valid value.
    let mut header: libc::msghdr = unsafe { mem::zeroed() };
    let space = control.space_mut();
    header.msg_control = space.as_mut_ptr().cast();
    header.msg_controllen = space.len() as _;
    let flags = libc::MSG_ERRQUEUE | libc::MSG_DONTWAIT;
    // SAFETY: the header points at `space`, exclusively borrowed until the call returns, and at no data.
    checked(unsafe { libc::recvmsg(fd.as_raw_fd(), &raw mut header, flags) })?;
    control.set_len(header.msg_controllen as _);
    Ok(())
}

/// Waits until one of `events` (`POLLIN`, `POLLOUT`) or an error occurs; returns false if `timeout` expires
/// or a signal arrives first.
pub(crate) fn wait(fd: BorrowedFd<'_>, events: i16, timeout: Duration) -> io::Result<bool> {
    let mut poll = libc::pollfd { fd: fd.as_raw_fd(), events, revents: 0 };
    // SAFETY: timespec is made of integers, for which zero is a valid value.
    let mut until: libc::timespec = unsafe { mem::zeroed() };
    until.tv_sec = i32::try_from(timeout.as_secs()).unwrap_or(i32::MAX).into();
    until.tv_nsec = timeout.subsec_nanos() as _;
    // SAFETY: one pollfd and one timespec, both alive until the call returns; no signal mask.
    let ready = unsafe { libc::ppoll(&raw mut poll, 1, &raw const until, ptr::null()) };
    match checked(ready as isize) {
        Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(false),
        result => result.map(|ready| ready > 0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_messages_have_libcs_layout() {
        let mut control = Control::<64>::EMPTY;
        assert!(control.push(libc::SOL_UDP, UDP_SEGMENT, &7u16.to_ne_bytes()));
        // SAFETY: both only calculate from their argument.
        let (len, space) = unsafe { (libc::CMSG_LEN(2), libc::CMSG_SPACE(2)) };
        assert_eq!(control.as_bytes().len(), space as usize);
        assert_eq!(control.as_bytes()[..size_of::<usize>()], (len as usize).to_ne_bytes());
    }
}
