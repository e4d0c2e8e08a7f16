//! Reads `TCP_INFO` of all connections in this network namespace by `sock_diag` (`linux/inet_diag.h`):
//! without unsafe code, and with one request for all flows.

use std::io;
use std::os::fd::AsFd;

use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketType, netlink};

const SOCK_DIAG_BY_FAMILY: u16 = 20;
/// `NLM_F_REQUEST | NLM_F_ROOT | NLM_F_MATCH`.
const DUMP: u16 = 0x01 | 0x100 | 0x200;
const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
const HEADER: usize = 16;
/// `IPPROTO_TCP`.
const TCP: u8 = 6;
/// `INET_DIAG_INFO`: the attribute, and the bit that requests it.
const INFO: u16 = 2;
/// Established connections only (`1 << TCP_ESTABLISHED`).
const ESTABLISHED: u32 = 1 << 1;
/// Lengths of `struct inet_diag_req_v2` and `struct inet_diag_msg`.
const REQUEST: usize = 56;
const MESSAGE: usize = 72;

/// The fields read from `struct tcp_info`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Info {
    /// Local port of the connection.
    pub port: u16,
    /// `tcpi_rtt`, microseconds.
    pub srtt_us: u32,
    /// `tcpi_snd_cwnd`, segments.
    pub window: u32,
    /// `tcpi_total_retrans`, segments.
    pub repeated: u32,
    /// `tcpi_data_segs_out`, segments.
    pub sent: u32,
    /// `tcpi_delivered`, segments, including the SYN.
    pub delivered: u32,
}

/// Returns all established TCP connections over IPv4.
///
/// # Errors
/// If the kernel has no `sock_diag`, or refuses the request.
pub(super) fn connections() -> io::Result<Vec<Info>> {
    let socket = rustix::net::socket(AddressFamily::NETLINK, SocketType::RAW, Some(netlink::SOCK_DIAG))?;
    rustix::net::send(socket.as_fd(), &request(), SendFlags::empty())?;
    let mut found = Vec::new();
    let mut answer = vec![0; 1 << 16];
    loop {
        let (len, _) = rustix::net::recv(socket.as_fd(), &mut answer[..], RecvFlags::empty())?;
        if take(&answer[..len], &mut found)? {
            return Ok(found);
        }
    }
}

fn request() -> Vec<u8> {
    let mut bytes = Vec::with_capacity(HEADER + REQUEST);
    bytes.extend(((HEADER + REQUEST) as u32).to_ne_bytes());
    bytes.extend(SOCK_DIAG_BY_FAMILY.to_ne_bytes());
    bytes.extend(DUMP.to_ne_bytes());
    bytes.extend([0; 8]);
    bytes.extend([AddressFamily::INET.as_raw() as u8, TCP, 1 << (INFO - 1), 0]);
    bytes.extend(ESTABLISHED.to_ne_bytes());
    bytes.resize(HEADER + REQUEST, 0);
    bytes
}

/// Parses the messages of one answer. Returns whether it was the last.
fn take(mut rest: &[u8], found: &mut Vec<Info>) -> io::Result<bool> {
    let unexpected = || io::Error::new(io::ErrorKind::InvalidData, "unexpected answer from sock_diag");
    while rest.len() >= HEADER {
        let len = word(rest, 0).ok_or_else(unexpected)? as usize;
        let message = rest.get(HEADER..len).ok_or_else(unexpected)?;
        match half(rest, 4) {
            Some(NLMSG_DONE) => return Ok(true),
            Some(NLMSG_ERROR) => {
                let code = word(message, 0).ok_or_else(unexpected)?.cast_signed();
                return Err(io::Error::from_raw_os_error(code.saturating_neg()));
            }
            Some(SOCK_DIAG_BY_FAMILY) => found.extend(connection(message)),
            _ => {}
        }
        rest = rest.get(len.next_multiple_of(4)..).unwrap_or_default();
    }
    Ok(false)
}

fn connection(message: &[u8]) -> Option<Info> {
    // The local port follows four bytes, big-endian.
    let port = u16::from_be_bytes(*message.get(4..)?.first_chunk()?);
    let mut attributes = message.get(MESSAGE..)?;
    loop {
        let (len, kind) = (usize::from(half(attributes, 0)?), half(attributes, 2)?);
        let value = attributes.get(4..len)?;
        if kind == INFO {
            return info(port, value);
        }
        attributes = attributes.get(len.next_multiple_of(4)..)?;
    }
}

/// Offsets from linux/tcp.h; kernels before 4.18 have no `tcpi_delivered`.
fn info(port: u16, tcp_info: &[u8]) -> Option<Info> {
    Some(Info {
        port,
        srtt_us: word(tcp_info, 68)?,
        window: word(tcp_info, 80)?,
        repeated: word(tcp_info, 100)?,
        sent: word(tcp_info, 156)?,
        delivered: word(tcp_info, 192)?,
    })
}

fn half(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(*bytes.get(at..)?.first_chunk()?))
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};

    use super::*;

    #[test]
    fn sock_diag_reports_a_loopback_connection() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut forward = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut here, _) = listener.accept().unwrap();
        forward.write_all(&vec![7; 100_000]).unwrap();
        here.read_exact(&mut vec![0; 100_000]).unwrap();
        let port = forward.local_addr().unwrap().port();
        let info = match connections() {
            Ok(all) => all.into_iter().find(|info| info.port == port).unwrap(),
            Err(error) => return println!("SKIPPED: this kernel does not answer sock_diag: {error}"),
        };
        assert!(info.window >= 2 && info.sent >= 2, "{info:?}");
        assert!(info.delivered <= info.sent + 1 && info.repeated <= info.sent, "{info:?}");
    }

    #[test]
    fn malformed_answers_are_errors_and_never_panic() {
        let mut found = Vec::new();
        let done = [&20u32.to_ne_bytes()[..], &NLMSG_DONE.to_ne_bytes(), &[0; 14]].concat();
        assert!(take(&done, &mut found).unwrap());
        let refused =
            [&20u32.to_ne_bytes()[..], &NLMSG_ERROR.to_ne_bytes(), &[0; 10], &(-1i32).to_ne_bytes()].concat();
        assert_eq!(take(&refused, &mut found).unwrap_err().raw_os_error(), Some(1));
        assert!(take(&[0; 16], &mut found).is_err());
        assert!(take(&[255; 64], &mut found).is_err());
        let short = [&60u32.to_ne_bytes()[..], &SOCK_DIAG_BY_FAMILY.to_ne_bytes(), &[0; 54]].concat();
        assert!(!take(&short, &mut found).unwrap());
        assert!(found.is_empty());
    }
}
