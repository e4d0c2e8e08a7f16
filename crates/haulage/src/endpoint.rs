use std::future::poll_fn;
use std::time::Duration;

use haul_engine::{EndpointStats, HaulUrl, OpenOptions, ResumptionError, ResumptionFile, resolve};
use haul_stack::{Ends, Recipe, RecipeError};

use crate::operation::of_future;
use crate::{Connection, OpenError, Operation, Options, Polled};

/// A UDP socket and a thread for any number of connections. Clones are the same endpoint; it ends with the last of them
/// and of its connections.
///
/// A server's is that of its [`Listener`](crate::Listener), and may connect to other servers too. An endpoint without a
/// listener has no certificate and no URL, so nobody can connect to it.
#[derive(Clone, Debug)]
pub struct Endpoint {
    pub(crate) engine: haul_engine::Endpoint,
}

impl Endpoint {
    /// An endpoint for clients, on a port that the system chooses. It reaches IPv4 and IPv6 addresses.
    ///
    /// # Errors
    /// If the system has no socket or no thread for it.
    pub fn client() -> Result<Self, OpenError> {
        Ok(Self { engine: haul_engine::Endpoint::client()? })
    }

    /// Connects to the server that printed `url`. With [`Options::resumption`] a known server is only asked whether it
    /// still knows this client, which takes one round trip instead of three or four; if not, a full handshake follows.
    ///
    /// # Errors
    /// If the URL, the recipe or the file cannot be used, the server cannot be reached or refuses.
    pub fn connect(
        &self,
        url: &str,
        recipe: &Recipe,
        options: &Options,
    ) -> Operation<'static, impl Polled<Connection, OpenError> + use<>> {
        let (endpoint, url) = (self.clone(), url.parse::<HaulUrl>());
        let (recipe, options) = (recipe.clone(), options.clone());
        of_future("the server's answer", async move {
            let url = url?;
            if let Some(file) = options.resumption.as_ref().map(ResumptionFile::new)
                && let Some(known) = endpoint.resume_known(&file, &url, &recipe, &options).await
            {
                return Ok(known);
            }
            endpoint.shake_hands(url, recipe, options, Ends::default()).await
        })
    }

    /// As [`Endpoint::connect`], always with a full handshake. Messages that arrive go straight to `ends.message_sink`;
    /// those of `ends.message_source` are taken when the path can take them, and written straight into their packets.
    /// Both run on the thread that serves the socket: the endpoint's own, or one that waits on a connection. They must
    /// not block, nor use the connection: it is locked meanwhile.
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
            let message = "messages of a connection with streams take no sink and no source".to_owned();
            return Err(RecipeError::Unbuildable { protocol: "streams".to_owned(), message }.into());
        }
        let mut channel = self.engine.connect(&url, &recipe, &options.open(), ends).await?;
        if let Some(path) = &options.resumption {
            ResumptionFile::new(path).keep(&mut channel)?;
        }
        Ok(Connection::of(channel))
    }

    /// Comes back to the server of [`Options::resumption`] without waiting for anything: what is sent now
    /// travels in the first packet. If the server does not know this client any more it stays silent, and the
    /// connection ends with an error after [`Options::timeout`]; what was sent is then lost. A connection of the same
    /// file that has not ended yet ends. Tasks may call it: it waits for no network.
    ///
    /// # Errors
    /// If none is named, there is no such file, or it cannot be used.
    pub fn resume(&self, options: &Options) -> Result<Connection, OpenError> {
        let path = options.resumption.as_ref().ok_or(ResumptionError::NoFile)?;
        let channel = ResumptionFile::new(path).resume(&self.engine, &options.open(), Ends::default())?;
        Ok(Connection::of(channel))
    }

    /// The known server, if it is that of the URL and still knows this client by the same recipe.
    async fn resume_known(
        &self,
        file: &ResumptionFile,
        url: &HaulUrl,
        recipe: &Recipe,
        options: &Options,
    ) -> Option<Connection> {
        /// A server that does not know the client stays silent; longer than this the handshake would not take either.
        const ANSWER: Duration = Duration::from_secs(1);
        // The server accepts every connection that begins, so none is begun that would not be used.
        let known = file.peek().ok()?;
        let is_there = resolve(url).await.is_ok_and(|addresses| addresses.contains(&known.server));
        if !is_there || !known.recipe().ok()?.same_stack(recipe) {
            return None;
        }
        let short = OpenOptions { timeout: options.timeout.min(ANSWER), ..options.open() };
        let channel = file.resume(&self.engine, &short, Ends::default()).ok()?;
        poll_fn(|context| channel.poll_confirmed(context)).await.ok().map(|()| Connection::of(channel))
    }

    /// What has come to the socket.
    pub fn statistics(&self) -> EndpointStats {
        self.engine.stats()
    }

    /// Other sides that are known: those with a connection, and a server's clients that may come back.
    pub fn known_peers(&self) -> usize {
        self.engine.known_peers()
    }
}

impl Connection {
    /// As [`Endpoint::connect`], with an endpoint for this connection alone.
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
