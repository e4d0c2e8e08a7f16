//! What a client and a server agree on before there are connections.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use haul_base::Span;
use haul_stack::{Recipe, Registry};
use haul_wire::control::{
    Cipher, ControlMessage, Hello, MAX_HELLO_BODY, PROTOCOL_VERSION, Request, encoded_len,
};

use super::{check_accept, default_settings, dial, secure, too_long};
use crate::clock::unix_now;
use crate::control::Timing;
use crate::crypto::ResumptionSecret;
use crate::endpoint::ChannelOptions;
use crate::tls::SessionSecrets;
use crate::{Control, EngineError, HaulUrl};

/// How a client associates.
#[derive(Clone, Debug)]
pub struct AssociateOptions {
    /// Ciphers, most wanted first. [`Cipher::None`] counts only if nothing else is listed.
    pub ciphers: Vec<Cipher>,
    /// For the TCP connections to all the host's addresses together.
    pub connect_timeout: Duration,
    /// For the TLS handshake, and again for the server's answer.
    pub answer_timeout: Duration,
    /// How the connection runs.
    pub channel: ChannelOptions,
}

impl Default for AssociateOptions {
    fn default() -> Self {
        Self {
            ciphers: super::ENCRYPTED.to_vec(),
            connect_timeout: Duration::from_secs(10),
            answer_timeout: Duration::from_secs(10),
            channel: ChannelOptions::default(),
        }
    }
}

/// What was agreed on.
pub(crate) struct Agreed {
    pub(crate) server: SocketAddr,
    pub(crate) identity: u32,
    pub(crate) secret: ResumptionSecret,
    pub(crate) cipher: Cipher,
    pub(crate) round_trip: Span,
}

/// Agrees with the server of `url` on a recipe, over a control connection that is closed again.
pub(crate) fn agree(
    url: &HaulUrl,
    recipe: &Recipe,
    registry: &Registry,
    options: &AssociateOptions,
) -> Result<Agreed, EngineError> {
    if url.is_expired(unix_now()) {
        return Err(EngineError::Expired { authority: url.authority() });
    }
    let request = Request::Associate { recipe: recipe.to_toml(), versions: registry.versions(recipe) };
    let hello = |proof| {
        let (ciphers, request) = (options.ciphers.clone(), request.clone());
        Hello { version: PROTOCOL_VERSION, proof, ciphers, request, settings: default_settings() }
    };
    let len = encoded_len(&ControlMessage::Hello(hello([0; 32])));
    if len > MAX_HELLO_BODY {
        return Err(too_long(len));
    }
    let (tcp, connected) = dial::dial(&url.host, url.port, options.connect_timeout)?;
    let server = tcp
        .peer_addr()
        .map_err(|e| EngineError::system("cannot read the addresses of the TCP connection", e))?;
    let (tls, round_trip) = secure::secure(url, &tcp, Instant::now() + options.answer_timeout)?;
    let secrets = SessionSecrets::export(&tls)?;
    let control = Control::start(tls, tcp, Timing::default())?;
    let asked = Instant::now();
    control.send(ControlMessage::Hello(hello(*secrets.proof(&url.secret).as_bytes())))?;
    let accept = match control.recv(Some(options.answer_timeout))? {
        ControlMessage::Accept(accept) => accept,
        other => return Err(EngineError::protocol(format!("{} instead of accept", other.name()))),
    };
    // Where TCP had to repeat something, it took much longer than a round trip.
    let round_trip = super::round_trip(round_trip.min(asked.elapsed().into()), connected);
    check_accept(&accept, &secrets, &options.ciphers).inspect_err(|error| control.abort(error.fault()))?;
    // The association exists whether or not the close leaves.
    let _ = control.send_now(&ControlMessage::Bye);
    Ok(Agreed {
        server,
        identity: accept.session,
        secret: secrets.connection,
        cipher: accept.cipher,
        round_trip,
    })
}
