use haul_engine::{EndpointStats, HaulUrl, ResumptionError, ResumptionFile};
use haul_stack::{Ends, Recipe, RecipeError};

use crate::operation::of_future;
use crate::{Connection, OpenError, Operation, Options, Polled};

/// A UDP socket and a thread that serve any number of connections. Clones share them; both are closed when
/// the last clone and the last connection are dropped.
///
/// A server's endpoint belongs to its [`Listener`](crate::Listener) and can also connect to other servers. An
/// endpoint without a listener has no certificate and no URL, so it accepts no connections.
#[derive(Clone, Debug)]
pub struct Endpoint {
    pub(crate) engine: haul_engine::Endpoint,
}

impl Endpoint {
    /// Creates a client endpoint on a port chosen by the system. It can connect over IPv4 and IPv6.
    ///
    /// # Errors
    /// If the socket or its thread cannot be created.
    pub fn client() -> Result<Self, OpenError> {
        Ok(Self { engine: haul_engine::Endpoint::client()? })
    }

    /// Connects to the server that printed `url`. With [`Options::resumption`], first tries to resume with a
    /// known server, in one round trip instead of three or four; if that fails, does a full handshake.
    ///
    /// # Errors
    /// If the URL, recipe or resumption file is invalid, or the server is unreachable or refuses.
    pub fn connect(
        &self,
        url: &str,
        recipe: &Recipe,
        options: &Options,
    ) -> Operation<'static, impl Polled<Connection, OpenError> + use<>> {
        let (endpoint, url) = (self.clone(), url.parse::<HaulUrl>());
        let (recipe, options) = (recipe.clone(), options.clone());
        of_future("the server's answer", async move {
            let (url, open) = (url?, options.open());
            if let Some(file) = options.resumption.as_ref().map(ResumptionFile::new)
                && let Some(known) = file.resume_known(&endpoint.engine, &url, &recipe, &open).await
            {
                return Ok(Connection::of(known));
            }
            endpoint.shake_hands(url, recipe, options, Ends::default()).await
        })
    }

    /// Like [`Endpoint::connect`], but always does a full handshake. Received messages are passed directly to
    /// `ends.message_sink`; messages to send are read from `ends.message_source`, directly into their
    /// packets, when the path has capacity. Both run on the thread that serves the socket: the endpoint's
    /// own, or one that waits on a connection. They must neither block nor use the connection, which is
    /// locked meanwhile.
    pub fn connect_with(
        &self,
        url: &str,
        recipe: &Recipe,
        options: &Options,
        ends: Ends,
    ) -> Operation<'static, impl Polled<Connection, OpenError> + use<>> {
        let (endpoint, url) = (self.clone(), url.parse::<HaulUrl>());
        let (recipe, options) = (recipe.clone(), options.clone());
        of_future(
            "the server's answer",
            async move { endpoint.shake_hands(url?, recipe, options, ends).await },
        )
    }

    async fn shake_hands(
        &self,
        url: HaulUrl,
        recipe: Recipe,
        options: Options,
        ends: Ends,
    ) -> Result<Connection, OpenError> {
        if recipe.has("streams") && (ends.message_sink.is_some() || ends.message_source.is_some()) {
            let message = "a connection with streams cannot have a message sink or source".to_owned();
            return Err(RecipeError::Unbuildable { protocol: "streams".to_owned(), message }.into());
        }
        let mut channel = self.engine.connect(&url, &recipe, &options.open(), ends).await?;
        if let Some(path) = &options.resumption {
            ResumptionFile::new(path).store(&mut channel)?;
        }
        Ok(Connection::of(channel))
    }

    /// Resumes the connection to the server of [`Options::resumption`] without a round trip: the first packet
    /// already carries data. A server that no longer knows this client does not answer; the connection then
    /// fails after [`Options::timeout`] and what was sent is lost. A connection still open from the same file
    /// is ended. May be called from async tasks: it does not wait for the network.
    ///
    /// # Errors
    /// If no file is named, it does not exist, or it cannot be used.
    pub fn resume(&self, options: &Options) -> Result<Connection, OpenError> {
        let path = options.resumption.as_ref().ok_or(ResumptionError::NoFile)?;
        let channel = ResumptionFile::new(path).resume(&self.engine, &options.open(), Ends::default())?;
        Ok(Connection::of(channel))
    }

    /// Returns the counters of the socket.
    pub fn statistics(&self) -> EndpointStats {
        self.engine.stats()
    }

    /// Returns the number of known peers: those with a connection, and clients that may resume.
    pub fn known_peers(&self) -> usize {
        self.engine.known_peers()
    }
}

impl Connection {
    /// Like [`Endpoint::connect`], with an endpoint used by this connection only.
    pub fn open(
        url: &str,
        recipe: &Recipe,
        options: &Options,
    ) -> Operation<'static, impl Polled<Self, OpenError> + use<>> {
        let (url, recipe, options) = (url.to_owned(), recipe.clone(), options.clone());
        of_future(
            "the server's answer",
            async move { Endpoint::client()?.connect(&url, &recipe, &options).await },
        )
    }
}
