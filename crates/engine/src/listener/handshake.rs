//! The server side of a client's handshake, from the TCP connection to [`Incoming`], in a worker thread that
//! serves one client after the other. Until the proof is verified, only the head of the Hello is parsed.

use std::fmt::Display;
use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::sync::Arc;
use std::time::{Duration, Instant};

use haul_base::Span;
use haul_proto::connection::{Timing, choose_cipher, server_recipe};
use haul_stack::{Recipe, caught};
use haul_wire::control::{
    Cipher, ControlMessage, Fault, FaultCode, FrameDecoder, Hello, HelloHead, MAX_HELLO_BODY, Request,
    body_len, encode_frame,
};
use rustls::{Connection, ServerConnection};

use super::incoming::{Incoming, PROGRAM};
use super::limiter::{Handshake, WorkerPermit};
use super::server::Server;
use crate::endpoint::{PendingSession, UdpSide};
use crate::identity::random;
use crate::session::DataPath;
use crate::tls::{
    ALPN, BlockingWait, HandshakeError, SessionSecrets, flush, handshake, prepare_tcp, receive, wait,
};
use crate::wake::block_on;
use crate::{Clock, Control, EngineError, Role, Session};

/// Time in which a refused client may read the reason.
const REFUSAL_TIMEOUT: Duration = Duration::from_secs(1);
/// Maximum number of bytes read from a refused client and discarded.
const MAX_DISCARDED: usize = 256 << 10;

/// Serves connections, each up to the application's decision, until none is left.
pub(super) fn run(server: &Server, mut permit: WorkerPermit) {
    while let Some(handshake) = permit.next() {
        let peer = handshake.peer;
        match serve(server, handshake) {
            Ok(incoming) => queue_incoming(server, incoming),
            Err(Refusal::Broken(reason)) => {
                server.counters.failed.add_one();
                tracing::debug!(%peer, reason, "handshake failed");
            }
            Err(Refusal::Fault(_)) => {}
        }
    }
}

#[derive(derive_more::From)]
enum Refusal {
    /// The connection is unusable; nothing can be sent.
    Broken(String),
    /// This fault is sent to the client.
    Fault(#[from] Fault),
}

impl From<EngineError> for Refusal {
    fn from(error: EngineError) -> Self {
        Self::Broken(error.with_causes())
    }
}

impl From<HandshakeError> for Refusal {
    fn from(error: HandshakeError) -> Self {
        Self::Broken(format!("{error:?}"))
    }
}

fn protocol_violation(reason: impl Display) -> Refusal {
    EngineError::protocol(reason.to_string()).fault().into()
}

fn serve(server: &Server, handshake: Handshake) -> Result<Incoming, Refusal> {
    let mut client = Client::secure(server, handshake)?;
    let admitted = client.admit().inspect_err(|refusal| client.refuse(refusal))?;
    client.begin(admitted)
}

/// A client whose TLS handshake is complete.
struct Client<'s> {
    server: &'s Server,
    handshake: Handshake,
    tls: Connection,
    deadline: Instant,
    round_trip: Span,
    secrets: SessionSecrets,
}

struct AuthenticatedClient {
    pending: Arc<PendingSession>,
    hello: Hello,
    cipher: Cipher,
}

impl<'s> Client<'s> {
    /// Completes TLS and checks that the client names this protocol.
    fn secure(server: &'s Server, waiting: Handshake) -> Result<Self, Refusal> {
        let deadline = waiting.at + server.options.handshake_timeout;
        prepare_tcp(&waiting.tcp)?;
        let tls = ServerConnection::new(server.tls.clone()).map_err(HandshakeError::Tls)?;
        let mut tls = Connection::from(tls);
        let round_trip = block_on(handshake(&mut tls, &waiting.tcp, deadline, &BlockingWait))?.into();
        if tls.alpn_protocol() != Some(ALPN) {
            return Err(Refusal::Broken("the client does not name the protocol (ALPN)".to_owned()));
        }
        let secrets = SessionSecrets::export(&tls)?;
        Ok(Self { server, handshake: waiting, tls, deadline, round_trip, secrets })
    }

    /// Reads the client's request, once it has proved that it knows the secret.
    fn admit(&mut self) -> Result<AuthenticatedClient, Refusal> {
        let server = self.server;
        let (frame, len) = self.authenticate()?;
        // From here on challenges find the session, although it is not accepted yet.
        let (keys, peer) = (self.secrets.frame_keys(Role::Server), self.handshake.peer);
        let is_taken = || Fault::new(FaultCode::Busy, "the session's number is taken", "");
        let pending = server.sessions.register(keys, peer, random::<32>()?).ok_or_else(is_taken)?;
        let hello = self.read_hello(frame, len)?;
        let options = &server.options;
        let cipher = choose_cipher(&hello.ciphers, &options.ciphers, options.permit_cipher_none)?;
        // Not before the request is read: evicting a client that stalls must free its thread.
        if !self.handshake.free_slot() {
            return Err(Refusal::Broken("closed in favour of another".to_owned()));
        }
        Ok(AuthenticatedClient { pending, hello, cipher })
    }

    /// Reads the head of the Hello and verifies the proof. Returns the frame read so far and its total
    /// length.
    fn authenticate(&mut self) -> Result<(Vec<u8>, usize), Refusal> {
        let mut length = [0; 4];
        self.read_exact(&mut length)?;
        let len = body_len(length, MAX_HELLO_BODY).map_err(protocol_violation)?;
        let mut head = [0; HelloHead::LEN];
        let head = &mut head[..len.min(HelloHead::LEN)];
        self.read_exact(head)?;
        let proof = match HelloHead::parse(head).map_err(protocol_violation)? {
            HelloHead::ThisVersion { proof } => blake3::Hash::from_bytes(proof),
            HelloHead::OtherVersion(theirs) => return Err(EngineError::Version(theirs).fault().into()),
        };
        // Comparing two hashes takes constant time.
        if self.secrets.proof(&self.server.identity.secret) != proof {
            let message = "the secret in the URL is not the server's";
            return Err(Fault::new(FaultCode::NotAuthorised, message, "").into());
        }
        if self.server.identity.is_expired() {
            return Err(Fault::new(FaultCode::Expired, "the URL has expired", "").into());
        }
        Ok(([&length[..], head].concat(), length.len() + len))
    }

    /// Reads the rest of the Hello of an authenticated client.
    fn read_hello(&mut self, mut frame: Vec<u8>, len: usize) -> Result<Hello, Refusal> {
        let read = frame.len();
        frame.resize(len, 0);
        self.read_exact(&mut frame[read..])?;
        let mut decoder = FrameDecoder::new();
        decoder.feed(&frame);
        match decoder.next_message() {
            Ok(Some(ControlMessage::Hello(hello))) => Ok(hello),
            Ok(_) => Err(protocol_violation("another message instead of hello")),
            Err(error) => Err(protocol_violation(error)),
        }
    }

    fn begin(self, admitted: AuthenticatedClient) -> Result<Incoming, Refusal> {
        let AuthenticatedClient { pending, hello, cipher } = admitted;
        let Self { server, handshake, tls, round_trip, secrets, .. } = self;
        let peer = handshake.peer;
        let tcp = handshake.into_tcp().ok_or(EngineError::Closed)?;
        let local = tcp.local_addr().map_err(HandshakeError::from)?;
        let recipe = match &hello.request {
            // Its recipe is that of its connections.
            Request::Connect { .. } => Ok(Recipe::default()),
            _ => server_recipe(&hello.settings, cipher),
        };
        let recipe_error = recipe.as_ref().err().cloned();
        let session = Session {
            role: Role::Server,
            peer,
            control: Control::start(tls, tcp, Timing::default())?,
            request: hello.request,
            settings: hello.settings,
            recipe: recipe.unwrap_or_default(),
            program: PROGRAM.to_owned(),
            cipher,
            round_trip,
            clock: Clock::start(),
            path: Some(DataPath {
                keys: secrets.keys(Role::Server, cipher),
                frames: secrets.frame_keys(Role::Server),
                udp: UdpSide::Server(pending.clone()),
            }),
            loss_model: None,
        };
        let (secret, udp_timeout) = (secrets.connection, server.options.udp_timeout);
        let port = server.port.clone();
        Ok(Incoming { session, recipe_error, pending, secret, local, port, udp_timeout })
    }

    /// Counts and logs the refusal, and sends the client the reason.
    fn refuse(&mut self, refusal: &Refusal) {
        let (Refusal::Fault(fault), peer) = (refusal, self.handshake.peer) else { return };
        self.server.counters.refused.add_one();
        self.server.refusals.log(peer, fault);
        if let Err(error) = self.send_final(&ControlMessage::Refuse(fault.clone())) {
            tracing::debug!(%peer, ?error, "the refusal may not have arrived");
        }
    }

    fn wait(&self, deadline: Instant) -> Result<(), HandshakeError> {
        block_on(wait(&self.tls, &self.handshake.tcp, deadline, &BlockingWait))
    }

    /// Fills `into`. Later bytes stay in the connection, unread.
    fn read_exact(&mut self, mut into: &mut [u8]) -> Result<(), HandshakeError> {
        while !into.is_empty() {
            match self.tls.reader().read(into) {
                Ok(0) => return Err(HandshakeError::Closed),
                Ok(len) => into = &mut into[len..],
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                    self.wait(self.deadline)?;
                    receive(&mut self.tls, &self.handshake.tcp)?;
                }
                Err(e) => return Err(e.into()),
            }
        }
        Ok(())
    }

    /// Sends the last message and waits for the peer to close: closing a socket with unread bytes resets the
    /// connection, and a reset can overtake the last bytes sent.
    fn send_final(&mut self, message: &ControlMessage) -> Result<(), HandshakeError> {
        let deadline = Instant::now() + REFUSAL_TIMEOUT;
        let mut frame = Vec::new();
        encode_frame(message, &mut frame).map_err(io::Error::other)?;
        self.tls.writer().write_all(&frame)?;
        self.tls.send_close_notify();
        flush(&mut self.tls, &self.handshake.tcp)?;
        while self.tls.wants_write() {
            self.wait(deadline)?;
            flush(&mut self.tls, &self.handshake.tcp)?;
        }
        self.handshake.tcp.shutdown(Shutdown::Write)?;
        let (mut buffer, mut discarded) = ([0; 4096], 0);
        while discarded < MAX_DISCARDED {
            self.wait(deadline)?;
            match (&*self.handshake.tcp).read(&mut buffer) {
                Ok(0) => break,
                Ok(len) => discarded += len,
                Err(e) if matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {}
                Err(e) => return Err(e.into()),
            }
        }
        Ok(())
    }
}

/// Queues a client for acceptance, if `admit` passes it on.
fn queue_incoming(server: &Server, incoming: Incoming) {
    let Ok(Some(incoming)) = caught(|| (server.admit)(incoming)) else { return };
    let too_many = server.waiting.update(|waiting| {
        if waiting.len() >= server.options.max_waiting {
            return Some(incoming);
        }
        // Counted under the lock: a counted session is in the queue.
        server.counters.sessions.add_one();
        waiting.push_back(incoming);
        None
    });
    if let Some(incoming) = too_many {
        server.counters.refused.add_one();
        incoming.refuse(Fault::new(FaultCode::Busy, "too many clients are waiting for the server", ""));
    }
}
