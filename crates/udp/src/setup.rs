//! Opening a socket and setting its options, with their results.

use std::io;
use std::net::SocketAddr;
use std::os::fd::AsFd;

use haul_base::Bytes;
use socket2::{Domain, Socket, Type};

use crate::capabilities::{BufferGrant, Capabilities, Gso, Support};
use crate::errors::SocketError;
use crate::options::{Offload, Options};
use crate::{probe, sys};

/// Level and name of a socket option.
type Opt = (i32, i32);

/// Opens a socket without binding it.
pub(crate) fn open(addr: SocketAddr, options: &Options) -> Result<(Socket, Capabilities), SocketError> {
    let socket = Socket::new(Domain::for_address(addr), Type::DGRAM.cloexec().nonblocking(), None)
        .map_err(SocketError::Open)?;
    if options.dual_stack && addr.is_ipv6() {
        socket.set_only_v6(false).map_err(SocketError::Open)?;
    }
    let capabilities = capabilities(&socket, addr.is_ipv6(), options).map_err(SocketError::Query)?;
    Ok((socket, capabilities))
}

fn capabilities(socket: &Socket, v6: bool, options: &Options) -> io::Result<Capabilities> {
    let features = probe::kernel_features();
    let ip = |v4: Opt, v6_option: Opt, value| support(set_ip(socket, v6, v4, v6_option, value));
    let option = |name| support(sys::set_option(socket.as_fd(), libc::SOL_SOCKET, name, 1));
    Ok(Capabilities {
        gso: gso(socket, options.offload, &features),
        gro: match options.offload {
            Offload::Off => Support::Off,
            Offload::Auto => support(sys::set_option(socket.as_fd(), libc::SOL_UDP, sys::UDP_GRO, 1)),
        },
        ecn_send: ecn_send(&features),
        ecn_receive: ip((libc::IPPROTO_IP, libc::IP_RECVTOS), (libc::IPPROTO_IPV6, libc::IPV6_RECVTCLASS), 1),
        timestamps: option(libc::SO_TIMESTAMPNS),
        drop_counts: option(libc::SO_RXQ_OVFL),
        dont_fragment: ip(
            (libc::IPPROTO_IP, libc::IP_MTU_DISCOVER),
            (libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER),
            libc::IP_PMTUDISC_PROBE, // the same number for IPv6
        ),
        error_queue: ip((libc::IPPROTO_IP, libc::IP_RECVERR), (libc::IPPROTO_IPV6, libc::IPV6_RECVERR), 1),
        recv_buffer: buffer(socket, options.recv_buffer, libc::SO_RCVBUFFORCE, libc::SO_RCVBUF)?,
        send_buffer: buffer(socket, options.send_buffer, libc::SO_SNDBUFFORCE, libc::SO_SNDBUF)?,
    })
}

fn support(result: io::Result<()>) -> Support {
    match result {
        Ok(()) => Support::Available,
        Err(error) => Support::Unavailable(format!("the kernel refuses it ({error})")),
    }
}

/// Sets an option of the socket's address family. An IPv6 socket also gets the IPv4 option, for IPv4-mapped
/// peers (`::ffff:a.b.c.d`); a kernel without IPv4 may reject that.
fn set_ip(socket: &Socket, v6: bool, v4_option: Opt, v6_option: Opt, value: i32) -> io::Result<()> {
    let v4_result = sys::set_option(socket.as_fd(), v4_option.0, v4_option.1, value);
    if v6 { sys::set_option(socket.as_fd(), v6_option.0, v6_option.1, value) } else { v4_result }
}

fn gso(socket: &Socket, offload: Offload, features: &Result<probe::KernelFeatures, String>) -> Gso {
    if offload == Offload::Off {
        return Gso { support: Support::Off, max_segments: 1 };
    }
    // Size 0 changes nothing; this only tests whether the kernel knows the option.
    if let Err(error) = sys::set_option(socket.as_fd(), libc::SOL_UDP, sys::UDP_SEGMENT, 0) {
        let why = format!("the kernel does not know it ({error})");
        return Gso { support: Support::Unavailable(why), max_segments: 1 };
    }
    match features.as_ref().map(|features| &features.max_segments) {
        Ok(Ok(max_segments)) => Gso { support: Support::Available, max_segments: *max_segments },
        Ok(Err(why)) => Gso { support: Support::Unavailable(why.clone()), max_segments: 1 },
        Err(why) => {
            let why = format!("{why}: {} segments assumed", probe::MIN_SEGMENT_LIMIT);
            Gso { support: Support::Limited(why), max_segments: probe::MIN_SEGMENT_LIMIT }
        }
    }
}

fn ecn_send(features: &Result<probe::KernelFeatures, String>) -> Support {
    match features {
        Ok(features) if !features.ecn_per_call => {
            Support::Limited("the kernel takes it per socket only".to_owned())
        }
        _ => Support::Available,
    }
}

/// Requests a buffer size, with privilege and then without, and reads back the result.
fn buffer(socket: &Socket, requested: Bytes, force: i32, plain: i32) -> io::Result<BufferGrant> {
    // The kernel doubles the value, as an int.
    let value = requested.0.min(i32::MAX as u64 / 2) as i32;
    if sys::set_option(socket.as_fd(), libc::SOL_SOCKET, force, value).is_err() {
        sys::set_option(socket.as_fd(), libc::SOL_SOCKET, plain, value)?;
    }
    let mut doubled = [0];
    sys::get_option(socket.as_fd(), libc::SOL_SOCKET, plain, &mut doubled)?;
    Ok(BufferGrant { requested, granted: Bytes(u64::from(doubled[0] / 2)) })
}
