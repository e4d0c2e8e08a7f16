//! What a client and a server agree on before there are connections.

use std::time::{Duration, Instant};

use haul_stack::{Recipe, Registry};
use haul_wire::control::{Cipher, ControlMessage, Request};

use super::{ConnectOptions, ask, check_accept, default_settings};
use crate::endpoint::{ChannelOptions, Ticket};
use crate::{EngineError, HaulUrl};

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

/// Agrees with the server of `url` on a recipe, over a control connection that is closed again.
pub(crate) fn agree(
    url: &HaulUrl,
    recipe: &Recipe,
    registry: &Registry,
    options: &AssociateOptions,
) -> Result<Ticket, EngineError> {
    let AssociateOptions { ciphers, connect_timeout, answer_timeout, .. } = options.clone();
    let request = Request::Associate { recipe: recipe.to_toml(), versions: registry.versions(recipe) };
    let options =
        ConnectOptions { request, settings: default_settings(), ciphers, connect_timeout, answer_timeout };
    let asked = ask(url, &options)?;
    let began = Instant::now();
    let accept = match asked.control.recv(Some(answer_timeout))? {
        ControlMessage::Accept(accept) => accept,
        other => return Err(EngineError::protocol(format!("{} instead of accept", other.name()))),
    };
    check_accept(&accept, &asked.secrets, &options.ciphers)
        .inspect_err(|error| asked.control.abort(error.fault()))?;
    // The association exists whether or not the close leaves.
    let _ = asked.control.send_now(&ControlMessage::Bye);
    Ok(Ticket {
        server: asked.peer,
        identity: accept.session,
        secret: asked.secrets.connection.0,
        cipher: accept.cipher,
        // Where TCP had to repeat something, it took much longer than a round trip.
        round_trip: asked.round_trip.min(began.elapsed().into()),
        last_epoch: 0,
        recipe: recipe.to_toml(),
    })
}
