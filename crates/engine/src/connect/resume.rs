//! The client's side: opening and resuming connections.

use std::future::poll_fn;
use std::time::Duration;

use haul_proto::connection::{ResumptionError, SavedResumption, compile};
use haul_stack::{Ends, Recipe};
use haul_wire::control::FaultCode;

use super::{ConnectOptions, ResumptionFile, agree, open_session, resolve};
use crate::clock::{unix_micros, unix_now};
use crate::wake::lock;
use crate::{Channel, Endpoint, EngineError, HaulUrl, OpenOptions, Session};

impl Endpoint {
    /// Agrees on the recipe with the server of `url` and opens a connection. The endpoint's thread waits for
    /// the network; only resolving a host name needs a separate thread, as the system's resolver blocks.
    ///
    /// # Errors
    /// [`EngineError::Recipe`] if the recipe is invalid here, [`EngineError::NoCipher`] if none is listed,
    /// [`EngineError::OwnListener`] if the server is this endpoint's, [`EngineError::Peer`] if the server
    /// refuses, and the errors of [`connect`](crate::connect).
    pub async fn connect(
        &self,
        url: &HaulUrl,
        recipe: &Recipe,
        options: &OpenOptions,
        ends: Ends,
    ) -> Result<Channel, EngineError> {
        let first = options.ciphers.first().copied().ok_or(EngineError::NoCipher)?;
        // Check the recipe locally before sending anything.
        compile(&options.registry, recipe, first)?;
        let shared = &**self.shared();
        let mut saved = agree(url, recipe, options, shared).await;
        if let Ok(saved) = &saved
            && lock(&shared.table).remove_own_client(saved.identity, &saved.secret)
        {
            return Err(EngineError::OwnListener);
        }
        // The identity is random; if it is taken at either end, try once more with another.
        let is_taken = match &saved {
            Ok(saved) => lock(&shared.table).get(saved.identity).is_some(),
            Err(EngineError::Peer(fault)) => fault.code == FaultCode::Busy,
            Err(_) => false,
        };
        if is_taken {
            saved = agree(url, recipe, options, shared).await;
        }
        let mut saved = saved?;
        saved.next_epoch(unix_micros());
        self.begin(saved, recipe, options, ends)
    }

    /// Async version of [`connect`](crate::connect): the endpoint's thread waits for the network. The session
    /// has its own socket and threads, and may outlive the endpoint.
    ///
    /// # Errors
    /// As [`connect`](crate::connect).
    pub async fn connect_session(
        &self,
        url: &HaulUrl,
        options: ConnectOptions,
    ) -> Result<Session, EngineError> {
        open_session(url, options, &**self.shared()).await
    }
}

/// Timeout for resuming: a server that has forgotten the client is silent. Handshakes take no longer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(1);

impl ResumptionFile {
    /// Opens a connection to the known server without a handshake: the first packet carries messages. A
    /// server that has forgotten the client does not answer, and the channel fails with
    /// [`EngineError::UdpBlocked`] after [`OpenOptions::timeout`]; use [`Channel::poll_confirmed`] to check
    /// before sending.
    ///
    /// # Errors
    /// [`EngineError::Resumption`] if the file holds no usable state, or `options` do not list its cipher;
    /// [`EngineError::System`].
    pub fn resume(
        &self,
        endpoint: &Endpoint,
        options: &OpenOptions,
        ends: Ends,
    ) -> Result<Channel, EngineError> {
        let saved = self.take()?;
        if !options.ciphers.contains(&saved.cipher) {
            return Err(ResumptionError::Cipher(saved.cipher).into());
        }
        let recipe = saved.recipe(&options.registry)?;
        let mut channel = endpoint.begin(saved, &recipe, options, ends)?;
        channel.keep_resumption();
        Ok(channel)
    }

    /// Resumes if the state is of the server of `url`, for this recipe, and the server confirms that it knows
    /// the client. `None` if not: a handshake is needed.
    pub async fn resume_known(
        &self,
        endpoint: &Endpoint,
        url: &HaulUrl,
        recipe: &Recipe,
        options: &OpenOptions,
    ) -> Option<Channel> {
        // The server accepts every resumed connection, so only resume one that will be used.
        let known = self.peek().ok()?;
        let is_same =
            known.fingerprint == url.fingerprint && known.recipe(&options.registry).ok()?.same_stack(recipe);
        if !is_same || url.is_expired(unix_now()) || !resolve(url).await.ok()?.contains(&known.server) {
            return None;
        }
        let short = OpenOptions { timeout: options.timeout.min(ANSWER_TIMEOUT), ..options.clone() };
        let channel = self.resume(endpoint, &short, Ends::default()).ok()?;
        poll_fn(|context| channel.poll_confirmed(context)).await.ok().map(|()| channel)
    }

    /// Saves the state for resuming this channel's client later, with the round trip measured so far.
    ///
    /// # Errors
    /// [`EngineError::Resumption`] if the file cannot be written, or the channel is a server's.
    pub fn store(&self, channel: &mut Channel) -> Result<(), EngineError> {
        let saved = channel.saved().ok_or(ResumptionError::Damaged("only clients resume"))?;
        self.save(&SavedResumption { round_trip: channel.path().rtt, ..saved.clone() })?;
        channel.keep_resumption();
        Ok(())
    }
}
