//! A client's handshake, from the TCP connection to [`Incoming`], in a thread that serves one connection after the
//! other. Until the client's proof is right nothing else of its Hello is read.

use std::fmt::Display;
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use crossbeam_channel::TrySendError;
use haul_base::Span;
use haul_wire::control::{
    Cipher, ControlMessage, Fault, FaultCode, FrameDecoder, Hello, HelloHead, MAX_HELLO_BODY, body_len,
    encode_frame,
};
use rustls::{Connection, ServerConnection};

use super::Server;
use super::incoming::{Incoming, PROGRAM};
use super::limiter::{Handshake, WorkerPermit};
use crate::control::Timing;
use crate::endpoint::Registration;
use crate::identity::random;
use crate::tls::{
    ALPN, HandshakeError, InThread, SessionSecrets, handshake, prepare_tcp, read_exact, say_last,
};
use crate::wake::block_on;
use crate::{Clock, Control, EngineError, Role, Session};

/// How long a refused client may take to read why.
const REFUSAL_TIMEOUT: Duration = Duration::from_secs(1);

/// Serves connections, each up to the point where the application decides, as long as there are any.
pub(super) fn run(server: &Server, mut permit: WorkerPermit) {
    while let Some(client) = permit.next() {
        let peer = client.peer;
        match serve(server, client) {
            Ok(incoming) => hand_over(server, incoming),
            Err(Failure::Handshake(reason)) => {
                server.counters.failed.add_one();
                tracing::debug!(%peer, reason, "handshake failed");
            }
            Err(Failure::Told) => {}
        }
    }
}

enum Failure {
    /// The client is not told.
    Handshake(String),
    /// The client has been refused, and told why.
    Told,
}

impl From<EngineError> for Failure {
    fn from(error: EngineError) -> Self {
        Self::Handshake(error.to_string())
    }
}

/// Why a client may not come in.
enum Refusal {
    /// Its connection is of no more use.
    Broken(String),
    /// It is told.
    Fault(Fault),
}

impl From<HandshakeError> for Refusal {
    fn from(error: HandshakeError) -> Self {
        Self::Broken(format!("{error:?}"))
    }
}

/// The other side does not keep to the protocol.
fn nonsense(reason: &dyn Display) -> Refusal {
    Refusal::Fault(EngineError::protocol(reason.to_string()).fault())
}

fn serve(server: &Server, client: Handshake) -> Result<Incoming, Failure> {
    let (peer, deadline) = (client.peer, client.arrived + server.options.handshake_timeout);
    let (mut tls, round_trip) = secure(server, &client.tcp, deadline)?;
    let local = client.tcp.local_addr().map_err(|e| Failure::Handshake(e.to_string()))?;
    let secrets = SessionSecrets::export(&tls)?;
    let begun = authenticate(server, &secrets, &mut tls, &client.tcp, deadline)
        .map_err(|refusal| refused(server, peer, &mut tls, &client.tcp, refusal))?;
    // From here on challenges find the session, although it is not accepted yet.
    let registration = server.sessions.register(secrets.frame_keys(Role::Server), peer.ip(), random::<32>()?);
    let tcp = client.leave().ok_or_else(|| Failure::Handshake("closed in favour of another".to_owned()))?;
    let asked = registration.ok_or_else(|| Refusal::Fault(number_taken())).and_then(|registration| {
        Ok((
            registration,
            read_hello(begun, &mut tls, &tcp, deadline).and_then(|hello| choose(server, hello))?,
        ))
    });
    let (registration, (hello, cipher)) =
        asked.map_err(|refusal| refused(server, peer, &mut tls, &tcp, refusal))?;
    let control = Control::start(tls, tcp, Timing::default())?;
    server.counters.sessions.add_one();
    Ok(incoming(server, control, registration, secrets, hello, cipher, Ends { peer, local, round_trip }))
}

/// Notes that a client may not come in, and tells it why.
fn refused(
    server: &Server,
    peer: SocketAddr,
    tls: &mut Connection,
    tcp: &TcpStream,
    refusal: Refusal,
) -> Failure {
    let fault = match refusal {
        Refusal::Broken(reason) => return Failure::Handshake(reason),
        Refusal::Fault(fault) => fault,
    };
    server.counters.refused.add_one();
    server.refusals.note(peer, &fault);
    let mut frame = Vec::new();
    let told =
        encode_frame(&ControlMessage::Refuse(fault), &mut frame).map_err(|e| e.to_string()).and_then(|()| {
            block_on(say_last(tls, tcp, &frame, Instant::now() + REFUSAL_TIMEOUT, &InThread))
                .map_err(|e| format!("{e:?}"))
        });
    if let Err(reason) = told {
        tracing::debug!(%peer, reason, "the refusal may not have arrived");
    }
    Failure::Told
}

/// A Hello of which the beginning has come.
struct Begun {
    /// Length of its body.
    len: usize,
    /// The frame up to here.
    frame: Vec<u8>,
}

/// Reads as much as tells whether the client knows the secret, and looks whether that is so.
fn authenticate(
    server: &Server,
    secrets: &SessionSecrets,
    tls: &mut Connection,
    tcp: &TcpStream,
    deadline: Instant,
) -> Result<Begun, Refusal> {
    let mut length = [0; 4];
    block_on(read_exact(tls, tcp, &mut length, deadline, &InThread))?;
    let len = body_len(length, MAX_HELLO_BODY).map_err(|e| nonsense(&e))?;
    let mut head = [0; HelloHead::LEN];
    let head = &mut head[..len.min(HelloHead::LEN)];
    block_on(read_exact(tls, tcp, head, deadline, &InThread))?;
    let proof = match HelloHead::parse(head).map_err(|e| nonsense(&e))? {
        HelloHead::Ours { proof } => blake3::Hash::from_bytes(proof),
        HelloHead::OtherVersion(theirs) => {
            return Err(Refusal::Fault(EngineError::Version { theirs }.fault()));
        }
    };
    // The comparison of two hashes takes the same time wherever they differ.
    if secrets.proof(server.identity.secret()) != proof {
        return Err(Refusal::Fault(wrong_secret()));
    }
    if server.identity.is_expired() {
        return Err(Refusal::Fault(expired()));
    }
    Ok(Begun { len, frame: [&length[..], head].concat() })
}

fn wrong_secret() -> Fault {
    Fault::new(
        FaultCode::NotAuthorised,
        "the secret in the URL is not the server's",
        "use the URL that `haul serve` printed last, all of it",
    )
}

fn expired() -> Fault {
    Fault::new(
        FaultCode::Expired,
        "the URL has expired",
        "ask for a new URL: start `haul serve` again on the server",
    )
}

/// The whole Hello of a client that knows the secret.
fn read_hello(
    Begun { len, mut frame }: Begun,
    tls: &mut Connection,
    tcp: &TcpStream,
    deadline: Instant,
) -> Result<Hello, Refusal> {
    let begun = frame.len();
    frame.resize(len + 4, 0);
    block_on(read_exact(tls, tcp, &mut frame[begun..], deadline, &InThread))?;
    let mut decoder = FrameDecoder::new();
    decoder.feed(&frame);
    match decoder.next_message() {
        Ok(Some(ControlMessage::Hello(hello))) => Ok(hello),
        Ok(_) => Err(nonsense(&"something else instead of hello")),
        Err(error) => Err(nonsense(&error)),
    }
}

/// The cipher of the session.
fn choose(server: &Server, hello: Hello) -> Result<(Hello, Cipher), Refusal> {
    let options = &server.options;
    match choose_cipher(&hello.ciphers, &options.ciphers, options.permit_cipher_none) {
        Ok(cipher) => Ok((hello, cipher)),
        Err(fault) => Err(Refusal::Fault(fault)),
    }
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
    let session = Session {
        role: Role::Server,
        peer: ends.peer,
        control,
        request: hello.request,
        settings: hello.settings,
        program: PROGRAM.to_owned(),
        keys: secrets.connection.data_keys(secrets.session, cipher),
        round_trip: ends.round_trip,
        clock: Clock::start(),
        udp: None,
    };
    let (secret, udp_timeout) = (secrets.connection, server.options.udp_timeout);
    Incoming { session, registration, secret, local: ends.local, udp_timeout }
}

/// TLS, and that it is for this protocol.
fn secure(server: &Server, tcp: &TcpStream, deadline: Instant) -> Result<(Connection, Span), Failure> {
    prepare_tcp(tcp)?;
    let tls = ServerConnection::new(server.tls.clone()).map_err(|e| Failure::Handshake(e.to_string()))?;
    let mut tls = Connection::from(tls);
    let round_trip = block_on(handshake(&mut tls, tcp, deadline, &InThread))
        .map_err(|e| Failure::Handshake(format!("{e:?}")))?;
    if tls.alpn_protocol() != Some(ALPN) {
        return Err(Failure::Handshake("the client does not name the protocol (ALPN)".to_owned()));
    }
    Ok((tls, round_trip.into()))
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
