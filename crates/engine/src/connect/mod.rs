//! The client's way from a URL to a session.

mod agree;
mod dial;
mod secure;

use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use haul_base::Span;
use haul_stack::Recipe;
use haul_udp::UdpSocket;
use haul_wire::control::{
    Accept, BenchLimit, Cipher, ControlMessage, Hello, MAX_HELLO_BODY, PROTOCOL_VERSION, Request, Settings,
    encoded_len,
};
use rustls::Connection;

use self::dial::{dial, resolve};
use crate::clock::{after, unix_now};
use crate::control::Timing;
use crate::crypto::ENCRYPTED;
use crate::endpoint::{PathProbe, send_probes};
use crate::identity::random;
use crate::session::{UdpSide, udp_options};
use crate::spawn::spawn_blocking;
use crate::tls::{InThread, Readiness, SessionSecrets};
use crate::wake::block_on;
use crate::{Clock, Control, EngineError, HaulUrl, Role, Session, recipe};

pub use agree::OpenOptions;
pub(crate) use agree::agree;

const TIMEOUT: Duration = Duration::from_secs(10);

/// What a client wants from a server, and how.
#[derive(Clone, Debug)]
pub struct ConnectOptions {
    /// What the session is for.
    pub request: Request,
    /// How it should run.
    pub settings: Settings,
    /// Ciphers, most wanted first. [`Cipher::None`] counts only if nothing else is listed.
    pub ciphers: Vec<Cipher>,
    /// For the TCP connections to all the host's addresses together, for the TLS handshake, and for the server's answer
    /// to the request: each may take so long.
    pub timeout: Duration,
}

impl ConnectOptions {
    /// What suits most clients.
    pub fn new(request: Request, settings: Settings) -> Self {
        Self { request, settings, ciphers: ENCRYPTED.to_vec(), timeout: TIMEOUT }
    }
}

/// Opens a session with the server of `url`. When it returns, the server has accepted the request, and challenges are
/// on their way: data may follow them at once.
///
/// # Errors
/// [`EngineError::Expired`] before anything is sent; [`EngineError::Resolve`], [`EngineError::Connect`],
/// [`EngineError::NotHaul`] or [`EngineError::Certificate`] if there is no such server;
/// [`EngineError::Recipe`] if the recipe does not work here;
/// [`EngineError::Peer`] if it refuses (wrong secret, expired, version, cipher, or its own reasons);
/// [`EngineError::TimedOut`] if it does not decide; [`EngineError::TooLong`] if the request names too much.
pub fn connect(url: &HaulUrl, options: ConnectOptions) -> Result<Session, EngineError> {
    let ConnectOptions { request, settings, ciphers, timeout } = options;
    // What cannot work here is said before anything is sent.
    let first = ciphers.first().copied().ok_or(EngineError::Closed)?;
    let recipe = recipe::checked(recipe::session_recipe(&settings)?, first)?;
    let hello = hello(ciphers, request, settings);
    let server = block_on(reach(url, hello, timeout, &InThread))?;
    let mut udp = Udp::open(&server)?;
    let Reached { tcp, tls, peer, secrets, round_trip, hello, .. } = server;
    let control = Control::start(tls, tcp, Timing::default())?;
    control.send(ControlMessage::Hello(hello.clone()))?;
    let accept = udp.wait_for_accept(&control, timeout)?;
    let recipe = check_accept(&accept, &secrets, &hello.ciphers)
        .and_then(|()| check_rate(&accept, &hello.settings))
        .and_then(|()| check_recipe(&accept, &hello.settings, recipe))
        .inspect_err(|error| control.abort(error.fault()))?;
    Ok(Session {
        role: Role::Client,
        peer,
        control,
        request: hello.request,
        keys: secrets.connection.data_keys(secrets.session, accept.cipher),
        settings: accept.settings,
        recipe,
        program: accept.server,
        round_trip,
        clock: udp.clock,
        udp: Some(UdpSide::Client(Box::new((Arc::new(udp.socket), udp.probe)))),
        loss_model: None,
    })
}

/// A server that has shown its certificate.
struct Reached {
    tcp: TcpStream,
    tls: Connection,
    local: SocketAddr,
    peer: SocketAddr,
    secrets: SessionSecrets,
    round_trip: Span,
    /// What to ask it for, with the proof that this client has the URL.
    hello: Hello,
}

/// Connects to the server of `url` by TCP and TLS; each may take `timeout`.
async fn reach(
    url: &HaulUrl,
    mut hello: Hello,
    timeout: Duration,
    readiness: &impl Readiness,
) -> Result<Reached, EngineError> {
    if url.is_expired(unix_now()) {
        return Err(EngineError::Expired(url.authority()));
    }
    check_length(&hello)?;
    let (tcp, connected) = dial(&url.host, &url.resolve().await?, timeout, readiness).await?;
    let failed = |e| EngineError::system("cannot read the addresses of the TCP connection", e);
    let (local, peer) = (tcp.local_addr().map_err(failed)?, tcp.peer_addr().map_err(failed)?);
    let deadline = after(timeout);
    let (tls, tls_time) = secure::secure(url, &tcp, deadline, readiness).await?;
    let secrets = SessionSecrets::export(&tls)?;
    hello.proof = *secrets.proof(&url.secret).as_bytes();
    Ok(Reached { tcp, tls, local, peer, secrets, round_trip: round_trip(tls_time, connected), hello })
}

impl HaulUrl {
    /// Every address of the host, at least one. Only a name takes a thread, as the system's resolver blocks.
    ///
    /// # Errors
    /// [`EngineError::Resolve`].
    pub async fn resolve(&self) -> Result<Vec<SocketAddr>, EngineError> {
        if let Ok(ip) = self.host.parse() {
            return Ok(vec![SocketAddr::new(ip, self.port)]);
        }
        let (host, port) = (self.host.clone(), self.port);
        spawn_blocking(move || resolve(&host, port)).await
    }
}

/// A round trip of the path, from one over TLS and the time in which TCP has connected. That has no program nor cipher in it, but
/// a machine on the way may have answered in the server's place, as satellite links do: half as long is not believed.
fn round_trip(exchanged: Span, connected: Span) -> Span {
    if connected < exchanged / 2 { exchanged } else { exchanged.min(connected) }
}

/// What a client says first; the proof follows from the TLS connection.
fn hello(ciphers: Vec<Cipher>, request: Request, settings: Settings) -> Hello {
    Hello { version: PROTOCOL_VERSION, proof: [0; 32], ciphers, request, settings }
}

/// The server does not take a longer Hello from a client that it does not know.
fn check_length(hello: &Hello) -> Result<(), EngineError> {
    let len = encoded_len(&ControlMessage::Hello(hello.clone()));
    if len <= MAX_HELLO_BODY {
        return Ok(());
    }
    Err(EngineError::TooLong(format!("the request takes {len} bytes; {MAX_HELLO_BODY} are possible")))
}

/// Settings for requests that have none of their own.
pub fn default_settings() -> Settings {
    Settings {
        chunk_bytes: 100_000_000,
        controller: "bbr".to_owned(),
        rate_bps: None,
        offload: true,
        feedback_interval_us: 2_000,
        bench_limit: BenchLimit::Unlimited,
        recipe: None,
        extra: Vec::new(),
    }
}

/// The server must keep to what was offered to it, and be at the other end of the same TLS connection.
fn check_accept(accept: &Accept, secrets: &SessionSecrets, offered: &[Cipher]) -> Result<(), EngineError> {
    let without_need = accept.cipher == Cipher::None && offered.iter().any(|&c| c != Cipher::None);
    if !offered.contains(&accept.cipher) || without_need {
        return Err(EngineError::Cipher(accept.cipher));
    }
    if accept.session != secrets.session {
        return Err(EngineError::protocol("it accepted another session than this one"));
    }
    Ok(())
}

fn not_accept(message: &ControlMessage) -> EngineError {
    EngineError::protocol(format!("{} instead of accept", message.name()))
}

/// A server may refuse a recipe; it cannot choose another one. Gives the recipe with the settings that it has chosen.
fn check_recipe(accept: &Accept, asked: &Settings, recipe: Recipe) -> Result<Recipe, EngineError> {
    if accept.settings.recipe == asked.recipe {
        let recipe = recipe::with_settings(recipe, &accept.settings)?;
        return Ok(recipe::checked(recipe, accept.cipher)?);
    }
    Err(EngineError::protocol("it accepted another recipe than the one that was asked for"))
}

/// A server may lower the ceiling of the rate; it cannot raise it.
fn check_rate(accept: &Accept, asked: &Settings) -> Result<(), EngineError> {
    let unlimited = u64::MAX;
    if accept.settings.rate_bps.unwrap_or(unlimited) <= asked.rate_bps.unwrap_or(unlimited) {
        return Ok(());
    }
    Err(EngineError::protocol("it accepted a higher rate than the one that was asked for"))
}

/// The client's UDP socket, and the challenges that it sends while the server has not decided yet.
struct Udp {
    socket: UdpSocket,
    probe: PathProbe,
    clock: Clock,
}

impl Udp {
    /// A socket from the same address, to the same address and port as the TCP connection.
    fn open(server: &Reached) -> Result<Self, EngineError> {
        let local = SocketAddr::new(server.local.ip(), 0);
        let socket = UdpSocket::connected(local, server.peer, &udp_options(&server.hello.settings, false))
            .map_err(|e| EngineError::system("cannot open a UDP socket", e))?;
        let (clock, keys) = (Clock::start(), server.secrets.frame_keys(Role::Client));
        let probe = PathProbe::new(clock.now(), keys, server.peer, u32::from_be_bytes(random()?));
        Ok(Self { socket, probe, clock })
    }

    /// Repeats challenges until the server accepts. Answers and data that come meanwhile wait in the socket.
    fn wait_for_accept(&mut self, control: &Control, timeout: Duration) -> Result<Accept, EngineError> {
        let until = after(timeout);
        let message = loop {
            let now = self.clock.now();
            self.probe.on_deadline(now);
            send_probes(&self.socket, &mut self.probe, now);
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(EngineError::timed_out("the server's answer to the request", Some(timeout)));
            }
            let wait = self.probe.next_round.map_or(left, |at| at.since(now).into()).min(left);
            if let Some(message) = control.try_recv(wait)? {
                break message;
            }
        };
        let ControlMessage::Accept(accept) = message else { return Err(not_accept(&message)) };
        self.probe.on_accepted(self.clock.now());
        Ok(accept)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_to_connect_counts_unless_somebody_on_the_way_has_answered() {
        let millis = Span::from_millis;
        assert_eq!(round_trip(millis(61), millis(60)), millis(60));
        assert_eq!(round_trip(millis(61), millis(1_060)), millis(61), "its first packet was lost");
        assert_eq!(round_trip(millis(600), millis(2)), millis(600));
    }
}
