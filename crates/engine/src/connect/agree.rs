//! What a client and a server agree on before there are connections.

use std::time::{Duration, Instant};

use haul_stack::{Recipe, Registry};
use haul_wire::control::{Cipher, ControlMessage, Request};

use super::{default_settings, hello, reach};
use crate::crypto::ENCRYPTED;
use crate::endpoint::{ConnectionOptions, SavedResumption};
use crate::tls::Readiness;
use crate::{EngineError, HaulUrl};

/// How a client opens a connection.
#[derive(Clone, Debug)]
pub struct OpenOptions {
    /// Ciphers, most wanted first. [`Cipher::None`] counts only if nothing else is listed.
    pub ciphers: Vec<Cipher>,
    /// As [`ConnectOptions::timeout`](super::ConnectOptions::timeout).
    pub timeout: Duration,
    /// How the connection runs.
    pub channel: ConnectionOptions,
}

impl Default for OpenOptions {
    fn default() -> Self {
        Self { ciphers: ENCRYPTED.to_vec(), timeout: super::TIMEOUT, channel: ConnectionOptions::default() }
    }
}

/// Agrees with the server of `url` on a recipe, over a TLS connection that is closed again.
pub(crate) async fn agree(
    url: &HaulUrl,
    recipe: &Recipe,
    registry: &Registry,
    options: &OpenOptions,
    readiness: &impl Readiness,
) -> Result<SavedResumption, EngineError> {
    let request = Request::Connect { recipe: recipe.to_toml(), versions: registry.versions(recipe) };
    let hello = hello(options.ciphers.clone(), request, default_settings());
    let mut server = reach(url, hello, options.timeout, readiness).await?;
    let began = Instant::now();
    let (accept, ()) = server.ask(options.timeout, readiness, |_| Ok(())).await?;
    // It has been agreed on whether or not the last message leaves.
    let _ = server.channel.send(&ControlMessage::Bye);
    Ok(SavedResumption {
        server: server.peer,
        identity: accept.session,
        secret: server.secrets.connection,
        cipher: accept.cipher,
        // Where TCP had to repeat something, it took much longer than a round trip.
        round_trip: server.round_trip.min(began.elapsed().into()),
        last_epoch: 0,
        recipe: recipe.to_toml(),
    })
}
