//! Opening a connection whose recipe and secret are agreed on.

use std::sync::Arc;
use std::time::Duration;

use haul_proto::connection::{ENCRYPTED, Peer, PeerAddress, ResumptionState, SavedResumption, compile};
use haul_proto::micro::registry;
use haul_stack::{Ends, Recipe, Registry};
use haul_wire::control::Cipher;
use haul_wire::packet::ConnectionId;

use super::connection::Connection;
use super::{Channel, Endpoint};
use crate::identity::random;
use crate::tls::STEP_TIMEOUT;
use crate::wake::lock;
use crate::{ConnectionOptions, EngineError, Role};

/// Options for opening a connection, with or without a handshake.
#[derive(Clone, Debug)]
pub struct OpenOptions {
    /// Micro-protocols that the recipe can use.
    pub registry: Arc<Registry>,
    /// Ciphers in order of preference. [`Cipher::None`] is used only if no other cipher is listed.
    pub ciphers: Vec<Cipher>,
    /// As [`ConnectOptions::timeout`](crate::ConnectOptions::timeout); also for the server's answer to the first packet.
    pub timeout: Duration,
    /// Options of the connection.
    pub connection: ConnectionOptions,
}

impl Default for OpenOptions {
    fn default() -> Self {
        Self {
            registry: Arc::new(registry()),
            ciphers: ENCRYPTED.to_vec(),
            timeout: STEP_TIMEOUT,
            connection: ConnectionOptions::default(),
        }
    }
}

impl Endpoint {
    /// Opens a connection as the client. Nothing is waited for.
    pub(crate) fn begin(
        &self,
        saved: SavedResumption,
        recipe: &Recipe,
        options: &OpenOptions,
        ends: Ends,
    ) -> Result<Channel, EngineError> {
        let resumption = ResumptionState {
            role: Role::Client,
            identity: saved.identity,
            secret: saved.secret.clone(),
            cipher: saved.cipher,
            compiled: compile(&options.registry, recipe, saved.cipher)?,
            round_trip: saved.round_trip,
        };
        let shared = self.shared();
        let mut salt = [0; 8];
        salt[2..].copy_from_slice(&random::<6>()?);
        let id = ConnectionId {
            identity: saved.identity,
            epoch: saved.last_epoch,
            salt: u64::from_be_bytes(salt),
        };
        let now = shared.clock.now();
        let peer = PeerAddress { at: shared.reachable(saved.server), moves: Some(0) };
        let connection =
            Connection::new(now, &resumption, id, peer, options.timeout, &options.connection, ends)?;
        let connection = Arc::new(connection);
        let live = Some(connection.clone());
        let known = Peer { last_epoch: id.epoch, live, ..Peer::new(resumption, now, None) };
        let old = lock(&shared.table).insert_or_begin(now, id, known);
        let old = old.map_err(|_| EngineError::protocol("the identity is taken; connect again"))?;
        if let Some(old) = old {
            old.supersede();
        }
        let mut state = connection.lock();
        // Then the endpoint has ended the connections of its table already.
        if shared.is_stopped() {
            state.end(EngineError::Closed);
        }
        connection.process(shared, &mut state, now);
        Connection::release(state);
        Ok(Channel::new(connection, self.clone(), Some(Box::new(saved))))
    }
}
