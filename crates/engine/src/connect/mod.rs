//! The client side: from a URL to a session, or to the state that connections start from.

mod dial;
mod resume;
mod resumption_file;

use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use haul_base::Span;
use haul_proto::connection::{
    ENCRYPTED, NotOffered, PathProbe, SavedResumption, Timing, agreed_recipe, check_accept, session_recipe,
};
use haul_stack::Recipe;
use haul_udp::UdpSocket;
use haul_wire::control::{
    Accept, Cipher, ControlMessage, Hello, MAX_HELLO_BODY, PROTOCOL_VERSION, Request, Settings, encoded_len,
};
use rustls::Connection;

use self::dial::{dial, explain, lookup, secure};
pub use self::resumption_file::ResumptionFile;
use crate::clock::{after, unix_now};
use crate::control::Pump;
use crate::endpoint::{UdpSide, send_probes};
use crate::identity::random;
use crate::session::{DataPath, udp_options};
use crate::spawn::spawn_blocking;
use crate::tls::{BlockingWait, HandshakeError, Readiness, STEP_TIMEOUT, SessionSecrets};
use crate::wake::block_on;
use crate::{Clock, Control, EngineError, HaulUrl, OpenOptions, Role, Session};

/// Options for opening a session.
#[derive(Clone, Debug)]
pub struct ConnectOptions {
    /// Purpose of the session.
    pub request: Request,
    /// Settings to propose.
    pub settings: Settings,
    /// Ciphers in order of preference. [`Cipher::None`] is used only if no other cipher is listed.
    pub ciphers: Vec<Cipher>,
    /// Timeout of each step: TCP connections (all addresses of the host together), TLS handshake, and the
    /// server's answer to the request.
    pub timeout: Duration,
}

impl ConnectOptions {
    /// Returns the default options for this request.
    pub fn new(request: Request, settings: Settings) -> Self {
        Self { request, settings, ciphers: ENCRYPTED.to_vec(), timeout: STEP_TIMEOUT }
    }
}

/// Opens a session with the server of `url`. On return, the server has accepted the request and challenges
/// have been sent; data may follow at once.
///
/// # Errors
/// [`EngineError::Expired`] before anything is sent; [`EngineError::Resolve`], [`EngineError::Connect`],
/// [`EngineError::NotHaul`] or [`EngineError::Certificate`] if the server cannot be reached or identified;
/// [`EngineError::Recipe`] if the recipe is invalid here, [`EngineError::NoCipher`] if no cipher is listed;
/// [`EngineError::Peer`] if the server refuses (secret, expiry, version, cipher, or its own reasons);
/// [`EngineError::TimedOut`] if it does not answer; [`EngineError::TooLong`] if the request is too long.
pub fn connect(url: &HaulUrl, options: ConnectOptions) -> Result<Session, EngineError> {
    block_on(open_session(url, options, &BlockingWait))
}

async fn open_session(
    url: &HaulUrl,
    options: ConnectOptions,
    readiness: &impl Readiness,
) -> Result<Session, EngineError> {
    let ConnectOptions { request, settings, ciphers, timeout } = options;
    // Check everything that can fail locally before sending anything.
    let first = ciphers.first().copied().ok_or(EngineError::NoCipher)?;
    let recipe = session_recipe(&settings, first)?;
    let hello = hello(ciphers, request, settings);
    let mut server = connect_tls(url, hello, timeout, readiness).await?;
    let (clock, udp) = (Clock::start(), udp_options(&server.hello.settings, false));
    // Same local address as the TCP connection, same remote address and port, and the same zone if
    // link-local.
    let mut local = server.local;
    local.set_port(0);
    let socket = UdpSocket::connected(local, server.peer, &udp)
        .map_err(|e| EngineError::system("cannot open a UDP socket", e))?;
    let frames = server.secrets.frame_keys(Role::Client);
    let mut probe = PathProbe::new(clock.now(), server.peer.ip(), u32::from_be_bytes(random()?));
    // Sends probes until the server has answered. Their answers and early data stay in the socket buffer.
    let repeat = || {
        let now = clock.now();
        probe.on_deadline(now);
        send_probes(&socket, &mut probe, || frames.clone());
        probe.next_round.map_or(timeout, |at| at.since(now).into())
    };
    let check = |accept: &Accept| agreed_recipe(accept, recipe);
    let (accept, recipe) = server.request(timeout, readiness, repeat, check).await?;
    probe.on_accepted(clock.now());
    let VerifiedServer { channel, peer, secrets, round_trip, hello, .. } = server;
    Ok(Session {
        role: Role::Client,
        peer,
        control: Control::served_by(channel)?,
        request: hello.request,
        settings: accept.settings,
        recipe,
        program: accept.server,
        cipher: accept.cipher,
        round_trip,
        clock,
        path: Some(DataPath {
            keys: secrets.keys(Role::Client, accept.cipher),
            frames,
            udp: UdpSide::Client(Arc::new(socket), Box::new(probe)),
        }),
        loss_model: None,
    })
}

/// Agrees on a recipe with the server of `url`, over a TLS connection that is then closed.
async fn agree(
    url: &HaulUrl,
    recipe: &Recipe,
    options: &OpenOptions,
    readiness: &impl Readiness,
) -> Result<SavedResumption, EngineError> {
    let request = Request::Connect { recipe: recipe.to_toml(), versions: options.registry.versions(recipe) };
    let hello = hello(options.ciphers.clone(), request, Settings::default());
    let mut server = connect_tls(url, hello, options.timeout, readiness).await?;
    let began = Instant::now();
    let (accept, ()) = server.request(options.timeout, readiness, || options.timeout, |_| Ok(())).await?;
    // The agreement holds even if this close is not sent.
    let _ = server.channel.send(&ControlMessage::Close);
    Ok(SavedResumption {
        server: server.peer,
        fingerprint: url.fingerprint,
        identity: accept.session,
        secret: server.secrets.connection,
        cipher: accept.cipher,
        // If TCP had to retransmit, it took much longer than a round trip.
        round_trip: server.round_trip.min(began.elapsed().into()),
        last_epoch: 0,
        recipe: recipe.to_toml(),
    })
}

struct VerifiedServer {
    channel: Pump,
    local: SocketAddr,
    peer: SocketAddr,
    secrets: SessionSecrets,
    round_trip: Span,
    /// The request, with the proof that this client has the URL.
    hello: Hello,
}

/// Connects to the server of `url` by TCP and TLS, `timeout` for each.
async fn connect_tls(
    url: &HaulUrl,
    mut hello: Hello,
    timeout: Duration,
    readiness: &impl Readiness,
) -> Result<VerifiedServer, EngineError> {
    if url.is_expired(unix_now()) {
        return Err(EngineError::Expired(url.authority()));
    }
    check_length(&hello)?;
    let (tcp, tls, round_trip) = secure_connection(url, timeout, readiness).await?;
    let failed = |e| EngineError::system("cannot read the addresses of the TCP connection", e);
    let (local, peer) = (tcp.local_addr().map_err(failed)?, tcp.peer_addr().map_err(failed)?);
    let secrets = SessionSecrets::export(&tls)?;
    hello.proof = *secrets.proof(&url.secret).as_bytes();
    let channel = Pump::new(tls, tcp, Timing::default())?;
    Ok(VerifiedServer { channel, local, peer, secrets, round_trip, hello })
}

/// Opens a TLS connection to the server of `url` and measures a round trip, with `timeout` each for TCP and
/// TLS. If TLS takes longer than half of it and than four round trips, a new connection is tried: after
/// losing its SYN, TCP retransmits further losses only after 3, 6 and 12 s (RFC 6298, section 5.7).
async fn secure_connection(
    url: &HaulUrl,
    timeout: Duration,
    readiness: &impl Readiness,
) -> Result<(TcpStream, Connection, Span), EngineError> {
    let addresses = resolve(url).await?;
    let (mut tcp, mut connected) = dial(&url.host, &addresses, timeout, readiness).await?;
    let until = after(timeout);
    loop {
        let attempt_timeout = (timeout / 2).max((connected * 4).into());
        let deadline = after(attempt_timeout).min(until);
        if let Some((tls, exchanged)) = secure(url, &tcp, deadline, readiness).await? {
            return Ok((tcp, tls, round_trip(exchanged, connected)));
        }
        let remaining = until.saturating_duration_since(Instant::now());
        if remaining.is_zero() {
            return Err(explain(url, HandshakeError::TimedOut));
        }
        tracing::debug!("the TLS handshake timed out; trying a new connection");
        (tcp, connected) = dial(&url.host, &addresses, remaining, readiness).await?;
    }
}

impl VerifiedServer {
    /// Sends the request and waits for the server's accept, which must match the offer; a server that
    /// violates it is sent an abort. Meanwhile calls `repeat`, each time after the pause that it returned.
    async fn request<T>(
        &mut self,
        timeout: Duration,
        readiness: &impl Readiness,
        mut repeat: impl FnMut() -> Duration,
        check: impl FnOnce(&Accept) -> Result<T, NotOffered>,
    ) -> Result<(Accept, T), EngineError> {
        self.channel.send(&ControlMessage::Hello(self.hello.clone()))?;
        let deadline = after(timeout);
        let answer = loop {
            let until = after(repeat()).min(deadline);
            if let Some(answer) = self.channel.recv(until, readiness).await? {
                break answer;
            }
            if deadline <= Instant::now() {
                return Err(EngineError::timed_out("the server's answer to the request", Some(timeout)));
            }
        };
        let ControlMessage::Accept(accept) = answer else {
            return Err(EngineError::protocol(format!("{} instead of accept", answer.name())));
        };
        let checked = check_accept(&accept, &self.hello, self.secrets.session).and_then(|()| check(&accept));
        let checked = checked.map_err(EngineError::from).inspect_err(|error| {
            let _ = self.channel.send(&ControlMessage::Abort(error.fault()));
        })?;
        Ok((accept, checked))
    }
}

/// Returns every address of the URL's host, at least one. A name is resolved in a thread, as that blocks.
async fn resolve(url: &HaulUrl) -> Result<Vec<SocketAddr>, EngineError> {
    if let Ok(ip) = url.host.parse() {
        return Ok(vec![SocketAddr::new(ip, url.port)]);
    }
    let (host, port) = (url.host.clone(), url.port);
    spawn_blocking(move || lookup(&host, port)).await
}

/// Estimates the path's round trip from one over TLS and the TCP connection time. The latter excludes program
/// and cipher, but a middlebox may have answered for the server (satellite links): below half, it is ignored.
fn round_trip(exchanged: Span, connected: Span) -> Span {
    if connected < exchanged / 2 { exchanged } else { exchanged.min(connected) }
}

/// Returns a Hello without its proof, which follows from the TLS connection.
fn hello(ciphers: Vec<Cipher>, request: Request, settings: Settings) -> Hello {
    Hello { version: PROTOCOL_VERSION, proof: [0; 32], ciphers, request, settings }
}

/// Checks the limit for the Hello of a client that is not authenticated yet.
fn check_length(hello: &Hello) -> Result<(), EngineError> {
    let len = encoded_len(&ControlMessage::Hello(hello.clone()));
    if len <= MAX_HELLO_BODY {
        return Ok(());
    }
    Err(EngineError::TooLong(format!("the request takes {len} bytes; {MAX_HELLO_BODY} are possible")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_connect_timeout_applies_unless_a_peer_has_answered() {
        let millis = Span::from_millis;
        assert_eq!(round_trip(millis(61), millis(60)), millis(60));
        assert_eq!(round_trip(millis(61), millis(1_060)), millis(61), "its first packet was lost");
        assert_eq!(round_trip(millis(600), millis(2)), millis(600));
    }
}
