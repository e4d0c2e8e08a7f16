//! The client's TLS handshake, and what its failures mean.

use std::net::TcpStream;
use std::sync::Arc;
use std::time::Instant;

use haul_base::Span;
use rustls::pki_types::ServerName;
use rustls::{AlertDescription, ClientConnection, Connection};

use crate::tls::{ALPN, HandshakeError, Readiness, client_config, handshake, prepare_tcp};
use crate::{EngineError, HaulUrl};

/// Completes TLS with the server whose certificate the URL names; also gives about one round trip.
pub(super) async fn secure(
    url: &HaulUrl,
    tcp: &TcpStream,
    deadline: Instant,
    readiness: &impl Readiness,
) -> Result<(Connection, Span), EngineError> {
    prepare_tcp(tcp)?;
    let failed = |e: &dyn ToString| EngineError::system("cannot set up TLS", e.to_string());
    // Not sent (no SNI) and not verified: the certificate is pinned.
    let name = ServerName::try_from("haul").map_err(|e| failed(&e))?;
    let config = Arc::new(client_config(url.fingerprint)?);
    let mut tls = Connection::from(ClientConnection::new(config, name).map_err(|e| failed(&e))?);
    match handshake(&mut tls, tcp, deadline, readiness).await {
        Ok(_) if tls.alpn_protocol() != Some(ALPN) => {
            Err(not_haul(url, "it does not speak the protocol haul/1".to_owned()))
        }
        Ok(round_trip) => Ok((tls, round_trip.into())),
        Err(error) => Err(explain(url, error)),
    }
}

fn not_haul(url: &HaulUrl, reason: String) -> EngineError {
    EngineError::NotHaul { authority: url.authority(), reason }
}

fn explain(url: &HaulUrl, error: HandshakeError) -> EngineError {
    let error = match error {
        HandshakeError::Closed => return not_haul(url, "it closes the connection".to_owned()),
        HandshakeError::TimedOut => return not_haul(url, "it is silent".to_owned()),
        HandshakeError::Io(error) => return not_haul(url, error.to_string()),
        HandshakeError::Tls(error) => error,
    };
    match &error {
        rustls::Error::InvalidCertificate(_) => EngineError::Certificate(url.authority()),
        rustls::Error::InvalidMessage(_) => {
            not_haul(url, "what it sends is not TLS (a web or ssh server?)".to_owned())
        }
        rustls::Error::PeerIncompatible(_)
        | rustls::Error::NoApplicationProtocol
        | rustls::Error::AlertReceived(
            AlertDescription::NoApplicationProtocol
            | AlertDescription::ProtocolVersion
            | AlertDescription::HandshakeFailure,
        ) => not_haul(url, format!("it speaks TLS, but not the protocol haul/1 ({error})")),
        _ => EngineError::Tls { peer: url.authority(), reason: error.to_string() },
    }
}
