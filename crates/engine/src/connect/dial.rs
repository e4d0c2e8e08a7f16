//! Connecting from a host name to TLS, and explaining the failures on the way.

use std::io;
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::sync::Arc;
use std::time::{Duration, Instant};

use haul_base::Span;
use haul_proto::connection::MIN_DATAGRAM;
use rustix::event::PollFlags;
use rustix::io::Errno;
use rustls::pki_types::ServerName;
use rustls::{AlertDescription, ClientConnection, Connection};
use socket2::{Domain, Socket, Type};

use crate::clock::after;
use crate::tls::{ALPN, HandshakeError, Readiness, client_config, handshake, prepare_tcp, wait_for};
use crate::{EngineError, HaulUrl};

/// Largest segment of the control channel, with its TCP options: its IP packet is as long as that of the
/// 1,200-byte UDP payload that the path must carry. On a path that drops longer packets silently (RFC 2923,
/// section 2.1), TCP would retransmit them until the channel counts as lost.
const MAX_SEGMENT: u32 = MIN_DATAGRAM as u32 + UDP_HEADER - TCP_HEADER;
const UDP_HEADER: u32 = 8;
const TCP_HEADER: u32 = 20;

/// Connects to the first address that answers, and returns how long that took: a round trip between kernels,
/// without any program or cipher, but longer if a packet was lost. Each address gets an equal share of the
/// remaining time, so that a dead one leaves enough for the next.
pub(super) async fn dial(
    host: &str,
    addresses: &[SocketAddr],
    timeout: Duration,
    readiness: &impl Readiness,
) -> Result<(TcpStream, Span), EngineError> {
    let until = after(timeout);
    let mut last = io::Error::new(io::ErrorKind::TimedOut, "no time left");
    for (index, address) in addresses.iter().enumerate() {
        let others = (addresses.len() - index) as u32;
        let started = Instant::now();
        let share = until.saturating_duration_since(started) / others;
        if share.is_zero() {
            break;
        }
        match connect(*address, started + share, readiness).await {
            Ok(tcp) => return Ok((tcp, started.elapsed().into())),
            Err(error) => {
                tracing::debug!(%address, %error, "cannot connect");
                last = error;
            }
        }
    }
    let authority = addresses.first().map_or_else(String::new, |a| describe(host, *a));
    Err(EngineError::Connect { authority, source: last.into() })
}

async fn connect(address: SocketAddr, until: Instant, readiness: &impl Readiness) -> io::Result<TcpStream> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, None)?;
    socket.set_nonblocking(true)?;
    // The SYN carries it, so the peer keeps to it too.
    if let Err(error) = socket.set_tcp_mss(MAX_SEGMENT) {
        tracing::debug!(%error, "TCP segments are as long as the system wants");
    }
    let connecting = socket.connect(&address.into());
    let tcp = TcpStream::from(socket);
    match connecting {
        Err(error) if error.raw_os_error() == Some(Errno::INPROGRESS.raw_os_error()) => {}
        connecting => return connecting.map(|()| tcp),
    }
    match wait_for(&tcp, PollFlags::OUT, until, readiness).await {
        Err(HandshakeError::Io(error)) => Err(error),
        Err(_) => Err(io::ErrorKind::TimedOut.into()),
        Ok(()) => tcp.take_error()?.map_or(Ok(tcp), Err),
    }
}

/// Returns every address of the host, at least one. Blocks in the system's resolver.
pub(super) fn lookup(host: &str, port: u16) -> Result<Vec<SocketAddr>, EngineError> {
    let failed = |error: io::Error| EngineError::Resolve { host: host.to_owned(), source: error.into() };
    let addresses: Vec<_> = (host, port).to_socket_addrs().map_err(failed)?.collect();
    if addresses.is_empty() { Err(failed(io::Error::other("it has no address"))) } else { Ok(addresses) }
}

/// Formats the address with the host name that it was resolved from.
fn describe(host: &str, address: SocketAddr) -> String {
    if host.parse() == Ok(address.ip()) { address.to_string() } else { format!("{host} ({address})") }
}

/// Completes TLS with the server whose certificate the URL pins; also returns about one round trip. `None` if
/// `deadline` expires.
pub(super) async fn secure(
    url: &HaulUrl,
    tcp: &TcpStream,
    deadline: Instant,
    readiness: &impl Readiness,
) -> Result<Option<(Connection, Span)>, EngineError> {
    prepare_tcp(tcp)?;
    // Not sent (no SNI) and not verified: the certificate is pinned.
    let name = ServerName::try_from("haul").map_err(|e| EngineError::system_other("cannot set up TLS", e))?;
    let config = Arc::new(client_config(url.fingerprint)?);
    let tls =
        ClientConnection::new(config, name).map_err(|e| EngineError::system_other("cannot set up TLS", e))?;
    let mut tls = Connection::from(tls);
    match handshake(&mut tls, tcp, deadline, readiness).await {
        Ok(_) if tls.alpn_protocol() != Some(ALPN) => {
            Err(not_haul(url, "it does not speak the protocol haul/1".to_owned()))
        }
        Ok(round_trip) => Ok(Some((tls, round_trip.into()))),
        Err(HandshakeError::TimedOut) => Ok(None),
        Err(error) => Err(explain(url, error)),
    }
}

fn not_haul(url: &HaulUrl, reason: String) -> EngineError {
    EngineError::NotHaul { authority: url.authority(), reason }
}

pub(super) fn explain(url: &HaulUrl, error: HandshakeError) -> EngineError {
    let error = match error {
        HandshakeError::Closed => return not_haul(url, "it closed the connection".to_owned()),
        HandshakeError::TimedOut => return not_haul(url, "it does not respond".to_owned()),
        HandshakeError::Io(error) => return not_haul(url, error.to_string()),
        HandshakeError::Tls(error) => error,
    };
    match &error {
        rustls::Error::InvalidCertificate(_) => EngineError::Certificate(url.authority()),
        rustls::Error::InvalidMessage(_) => {
            not_haul(url, "its data is not TLS (a web or ssh server?)".to_owned())
        }
        rustls::Error::PeerIncompatible(_)
        | rustls::Error::NoApplicationProtocol
        | rustls::Error::AlertReceived(
            AlertDescription::NoApplicationProtocol
            | AlertDescription::ProtocolVersion
            | AlertDescription::HandshakeFailure,
        ) => not_haul(url, format!("it speaks TLS but not the protocol haul/1 ({error})")),
        _ => EngineError::Tls { peer: url.authority(), reason: error.to_string() },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tls::BlockingWait;
    use crate::wake::block_on;

    fn dialled(host: &str, port: u16) -> Result<(TcpStream, Span), EngineError> {
        block_on(dial(host, &lookup(host, port)?, Duration::from_secs(5), &BlockingWait))
    }

    #[test]
    fn every_address_of_a_host_is_tried() {
        // `localhost` usually has two addresses; the server has one of them.
        for addr in ["127.0.0.1:0", "[::1]:0"] {
            let listener = std::net::TcpListener::bind(addr).unwrap();
            let port = listener.local_addr().unwrap().port();
            let host = listener.local_addr().unwrap().ip().to_string();
            assert!(dialled(&host, port).is_ok());
        }
    }

    #[test]
    fn a_closed_port_is_refused_and_an_unknown_name_not_found() {
        let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let error = dialled("127.0.0.1", free).unwrap_err();
        let refused = io::ErrorKind::ConnectionRefused;
        assert!(matches!(&error, EngineError::Connect { source, .. } if source.kind() == refused), "{error}");
        let error = dialled("no-such-host.invalid", 7000).unwrap_err();
        assert!(matches!(&error, EngineError::Resolve { .. }), "{error}");
        assert!(error.to_string().contains("no-such-host.invalid"));
    }
}
