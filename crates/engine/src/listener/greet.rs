//! A client's way from the TCP connection to [`Incoming`], in a thread of its own.

use std::net::{SocketAddr, TcpStream};
use std::time::Instant;

use crossbeam_channel::TrySendError;
use haul_base::Span;
use haul_wire::control::{Cipher, ControlMessage, Fault, FaultCode, Hello, PROTOCOL_VERSION};
use rustls::{Connection, ServerConnection};

use super::Server;
use super::gate::Admission;
use super::incoming::Incoming;
use super::table::Registration;
use crate::control::Timing;
use crate::tls::{ALPN, SessionSecrets, handshake, prepare_tcp};
use crate::{Control, EngineError, Role};

/// Serves one connection up to the point where the application decides.
pub(super) fn run(server: &Server, tcp: TcpStream, peer: SocketAddr, admission: Admission) {
    let deadline = Instant::now() + server.options.handshake_timeout;
    let greeted = greet(server, tcp, peer, deadline);
    drop(admission);
    match greeted {
        Ok(incoming) => hand_over(server, incoming),
        Err(Failure::Handshake(reason)) => {
            server.counters.failed.add_one();
            tracing::debug!(%peer, reason, "handshake failed");
        }
        Err(Failure::Refused(control, fault)) => {
            server.counters.refused.add_one();
            tracing::info!(%peer, %fault, "client refused");
            control.end_with(&ControlMessage::Refuse(fault));
        }
    }
}

enum Failure {
    /// The client is not even told.
    Handshake(String),
    /// It is told.
    Refused(Control, Fault),
}

impl From<EngineError> for Failure {
    fn from(error: EngineError) -> Self {
        Self::Handshake(error.to_string())
    }
}

fn greet(server: &Server, tcp: TcpStream, peer: SocketAddr, deadline: Instant) -> Result<Incoming, Failure> {
    let (tls, round_trip) = secure(server, &tcp, deadline)?;
    let local = tcp.local_addr().map_err(|e| Failure::Handshake(e.to_string()))?;
    let secrets = SessionSecrets::export(&tls)?;
    // From here on HELLO packets find the session, although it is not accepted yet.
    let opener = secrets.hello_keys.opener(Role::Server);
    let registration = server.table.register(secrets.session, opener);
    let control = Control::start(tls, tcp, Timing::default())?;
    let registration = registration.ok_or_else(|| Failure::Refused(control.clone(), number_taken()))?;
    let hello = match control.recv(Some(deadline.saturating_duration_since(Instant::now())))? {
        ControlMessage::Hello(hello) => hello,
        other => return Err(Failure::Handshake(format!("{} instead of hello", other.name()))),
    };
    let cipher = match examine(server, &secrets, &hello) {
        Ok(cipher) => cipher,
        Err(fault) => return Err(Failure::Refused(control, fault)),
    };
    control.trust();
    server.counters.sessions.add_one();
    Ok(incoming(server, control, registration, secrets, hello, cipher, Ends { peer, local, round_trip }))
}

/// The addresses of a connection, and how long a round trip takes.
#[derive(Clone, Copy)]
struct Ends {
    peer: SocketAddr,
    local: SocketAddr,
    round_trip: Span,
}

fn incoming(
    server: &Server,
    control: Control,
    registration: Registration,
    secrets: SessionSecrets,
    hello: Hello,
    cipher: Cipher,
    ends: Ends,
) -> Incoming {
    Incoming {
        control,
        registration,
        keys: secrets.data_keys(cipher),
        hello_keys: secrets.hello_keys,
        ticket: secrets.ticket,
        request: hello.request,
        settings: hello.settings,
        peer: ends.peer,
        local: ends.local,
        round_trip: ends.round_trip,
        udp_timeout: server.options.udp_timeout,
    }
}

/// TLS, and that it is for this protocol.
fn secure(server: &Server, tcp: &TcpStream, deadline: Instant) -> Result<(Connection, Span), Failure> {
    prepare_tcp(tcp)?;
    let tls = ServerConnection::new(server.tls.clone()).map_err(|e| Failure::Handshake(e.to_string()))?;
    let mut tls = Connection::from(tls);
    let round_trip = handshake(&mut tls, tcp, deadline).map_err(|e| Failure::Handshake(format!("{e:?}")))?;
    if tls.alpn_protocol() != Some(ALPN) {
        return Err(Failure::Handshake("the client does not name the protocol (ALPN)".to_owned()));
    }
    Ok((tls, round_trip.into()))
}

/// Whether the client may come in, and with which cipher.
fn examine(server: &Server, secrets: &SessionSecrets, hello: &Hello) -> Result<Cipher, Fault> {
    if hello.version != PROTOCOL_VERSION {
        return Err(EngineError::Version { theirs: hello.version }.fault());
    }
    // The comparison of two hashes takes the same time wherever they differ.
    if secrets.proof(server.identity.secret()) != blake3::Hash::from_bytes(hello.proof) {
        return Err(Fault::new(
            FaultCode::NotAuthorised,
            "the secret in the URL is not the server's",
            "use the URL that `haul serve` printed last, all of it",
        ));
    }
    if server.identity.is_expired() {
        return Err(Fault::new(
            FaultCode::Expired,
            "the URL has expired",
            "ask for a new URL: start `haul serve` again on the server",
        ));
    }
    choose_cipher(&hello.ciphers, &server.options.ciphers, server.options.permit_cipher_none)
}

/// The first of the client's ciphers that the server permits; none at all only if the client wants nothing
/// else and the server permits it.
fn choose_cipher(wanted: &[Cipher], permitted: &[Cipher], permit_none: bool) -> Result<Cipher, Fault> {
    let only_none = !wanted.is_empty() && wanted.iter().all(|&c| c == Cipher::None);
    if only_none && permit_none {
        return Ok(Cipher::None);
    }
    if only_none {
        return Err(Fault::new(
            FaultCode::NotPermitted,
            "the server does not permit sessions without encryption",
            "leave out `--set crypto=none`, or start the server with `haul serve --set crypto=none`",
        ));
    }
    let chosen = wanted.iter().find(|&&c| c != Cipher::None && permitted.contains(&c));
    chosen.copied().ok_or_else(|| {
        let names = |list: &[Cipher]| list.iter().map(|c| c.as_str()).collect::<Vec<_>>().join(", ");
        let message = format!("the server permits none of the ciphers {}", names(wanted));
        Fault::new(FaultCode::NotPermitted, message, format!("choose one of {}", names(permitted)))
    })
}

fn number_taken() -> Fault {
    Fault::new(FaultCode::Busy, "the session's number is taken", "run the same command again")
}

fn hand_over(server: &Server, incoming: Incoming) {
    let Err(error) = server.waiting.try_send(incoming) else {
        return;
    };
    server.counters.refused.add_one();
    if let TrySendError::Full(incoming) = error {
        incoming.refuse(Fault::new(
            FaultCode::Busy,
            "too many clients are waiting for the server",
            "run the same command again in a while",
        ));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [Cipher; 3] = [Cipher::Aes128Gcm, Cipher::Aes256Gcm, Cipher::ChaCha20Poly1305];

    #[test]
    fn the_clients_order_decides_among_what_is_permitted() {
        let wanted = [Cipher::ChaCha20Poly1305, Cipher::Aes128Gcm];
        assert_eq!(choose_cipher(&wanted, &ALL, false), Ok(Cipher::ChaCha20Poly1305));
        assert_eq!(choose_cipher(&wanted, &[Cipher::Aes128Gcm], false), Ok(Cipher::Aes128Gcm));
        let fault = choose_cipher(&wanted, &[Cipher::Aes256Gcm], true).unwrap_err();
        assert_eq!(fault.code, FaultCode::NotPermitted);
        assert!(fault.hint.contains("aes-256-gcm"), "{fault}");
    }

    #[test]
    fn no_encryption_needs_both_sides_to_want_it_and_nothing_else() {
        assert_eq!(choose_cipher(&[Cipher::None], &ALL, true), Ok(Cipher::None));
        let mixed = [Cipher::None, Cipher::Aes256Gcm];
        assert_eq!(choose_cipher(&mixed, &ALL, true), Ok(Cipher::Aes256Gcm));
        let fault = choose_cipher(&[Cipher::None], &ALL, false).unwrap_err();
        assert!(fault.code == FaultCode::NotPermitted && fault.hint.contains("crypto=none"), "{fault}");
        assert!(choose_cipher(&[], &ALL, true).is_err());
        assert!(choose_cipher(&mixed, &[], true).is_err());
    }
}
