//! The kernel's sending features, probed with one batch that a loopback socket sends to itself. Setting the
//! options proves little: their limits are only checked when something is sent.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::AsFd;
use std::sync::OnceLock;

use socket2::{Domain, Socket, Type};

use crate::cmsg::Control;
use crate::sys::{self, SEND_CONTROL, push_ecn, push_segment_size};

/// Maximum segments per call in kernels (`UDP_MAX_SEGMENTS` of linux/udp.h): 128 since Linux 6.9.
const SEGMENT_LIMITS: [usize; 2] = [128, MIN_SEGMENT_LIMIT];
/// Segments per call supported by every kernel with GSO.
pub(crate) const MIN_SEGMENT_LIMIT: usize = 64;

/// Result of a probe.
#[derive(Clone, Debug)]
pub(crate) struct KernelFeatures {
    /// Maximum number of segments per call, or why there is no GSO.
    pub(crate) max_segments: Result<usize, String>,
    /// Whether the kernel accepts ECN bits with each call.
    pub(crate) ecn_per_call: bool,
}

/// Probes once per process and caches the result; the error says why the probe failed this time.
pub(crate) fn kernel_features() -> Result<KernelFeatures, String> {
    static CACHE: OnceLock<KernelFeatures> = OnceLock::new();
    if let Some(features) = CACHE.get() {
        return Ok(features.clone());
    }
    let features = try_on(Ipv4Addr::LOCALHOST.into())
        .or_else(|_| try_on(Ipv6Addr::LOCALHOST.into()))
        .map_err(|error| format!("could not be tried out on the loopback interface ({error})"))?;
    Ok(CACHE.get_or_init(|| features).clone())
}

fn try_on(ip: IpAddr) -> io::Result<KernelFeatures> {
    let socket = Socket::new(Domain::for_address(SocketAddr::new(ip, 0)), Type::DGRAM, None)?;
    socket.bind(&SocketAddr::new(ip, 0).into())?;
    socket.connect(&socket.local_addr()?)?;
    // Keeps the batch whole, so that it takes one socket buffer; without GRO it is merely segmented.
    let _ = sys::set_option(socket.as_fd(), libc::SOL_UDP, sys::UDP_GRO, 1);
    sys::send(socket.as_fd(), &[0], None, &[])?;
    Ok(KernelFeatures { max_segments: segments(&socket), ecn_per_call: ecn_per_call(&socket, ip) })
}

fn segments(socket: &Socket) -> Result<usize, String> {
    let mut control = Control::<SEND_CONTROL>::EMPTY;
    push_segment_size(&mut control, 1);
    let mut failure = String::new();
    for limit in SEGMENT_LIMITS {
        match sys::send(socket.as_fd(), &[0; SEGMENT_LIMITS[0]][..limit], None, control.as_bytes()) {
            Ok(_) => return Ok(limit),
            Err(error) => failure = format!("the kernel refuses it ({error})"),
        }
    }
    Err(failure)
}

fn ecn_per_call(socket: &Socket, ip: IpAddr) -> bool {
    let mut control = Control::<SEND_CONTROL>::EMPTY;
    push_ecn(&mut control, ip.is_ipv4(), haul_base::Ecn::Ect0);
    sys::send(socket.as_fd(), &[0], None, control.as_bytes()).is_ok()
}
