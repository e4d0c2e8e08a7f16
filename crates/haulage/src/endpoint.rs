use std::net::{SocketAddr, ToSocketAddrs};
use std::time::Duration;
use std::vec;

use haul_engine::{EndpointStats, HaulUrl, TicketFile, associate};
use haul_stack::{Ends, Recipe, RecipeError};

use crate::spawn_blocking::spawn_blocking;
use crate::{Connection, OpenError, Options};

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

    /// Connects to the server that printed `url`. With [`Options::ticket`] a known server is only asked whether it
    /// still knows this client, which takes one round trip instead of three or four; if not, a full handshake follows.
    ///
    /// # Errors
    /// If the URL, the recipe or the ticket's file cannot be used, the server cannot be reached or refuses.
    pub fn connect(&self, url: &str, recipe: &Recipe, options: &Options) -> Result<Connection, OpenError> {
        let server: HaulUrl = url.parse()?;
        let ticket = options.ticket.as_ref().map(TicketFile::new);
        let known = ticket.and_then(|ticket| self.resume_known(&ticket, &server, recipe, options));
        known.map_or_else(|| self.connect_with(url, recipe, options, Ends::default()), Ok)
    }

    /// As [`Endpoint::connect`], for tasks: one of at most 16 helper threads of the process does the handshake. A
    /// server that does not answer takes one for as long as [`Options::timeout`] permits.
    ///
    /// # Errors
    /// As [`Endpoint::connect`].
    pub async fn connect_async(
        &self,
        url: &str,
        recipe: &Recipe,
        options: &Options,
    ) -> Result<Connection, OpenError> {
        let (endpoint, url, recipe, options) =
            (self.clone(), url.to_owned(), recipe.clone(), options.clone());
        spawn_blocking(move || endpoint.connect(&url, &recipe, &options)).await
    }

    /// As [`Endpoint::connect`], always with a full handshake. Messages that arrive go straight to `ends.message_sink`;
    /// those of `ends.message_source` are taken when the path can take them, and written straight into their packets.
    /// Both run on the thread that serves the socket: the endpoint's own, or one that waits on a connection. They must
    /// not block.
    ///
    /// # Errors
    /// As [`Endpoint::connect`].
    pub fn connect_with(
        &self,
        url: &str,
        recipe: &Recipe,
        options: &Options,
        ends: Ends,
    ) -> Result<Connection, OpenError> {
        let url: HaulUrl = url.parse()?;
        if recipe.has("streams") && (ends.message_sink.is_some() || ends.message_source.is_some()) {
            let message = "messages of a connection with streams take no sink and no source".to_owned();
            return Err(RecipeError::Unbuildable { protocol: "streams".to_owned(), message }.into());
        }
        let mut channel =
            associate(Some(&self.engine), &url, recipe, &options.registry, &options.associate(), ends)?;
        if let Some(path) = &options.ticket {
            TicketFile::new(path).keep(&mut channel)?;
        }
        Ok(Connection::of(channel))
    }

    /// As [`Endpoint::connect_with`], for tasks, as [`Endpoint::connect_async`].
    ///
    /// # Errors
    /// As [`Endpoint::connect`].
    pub async fn connect_with_async(
        &self,
        url: &str,
        recipe: &Recipe,
        options: &Options,
        ends: Ends,
    ) -> Result<Connection, OpenError> {
        let (endpoint, url, recipe, options) =
            (self.clone(), url.to_owned(), recipe.clone(), options.clone());
        spawn_blocking(move || endpoint.connect_with(&url, &recipe, &options, ends)).await
    }

    /// Comes back to the server of the ticket in [`Options::ticket`] without waiting for anything: what is sent now
    /// travels in the first packet. If the server does not know the ticket any more it stays silent, and the connection
    /// ends with an error after [`Options::timeout`]; what was sent is then lost. A connection of the same ticket that
    /// has not ended yet ends. Tasks may call it: it waits for no network.
    ///
    /// # Errors
    /// If there is no ticket, or it cannot be used.
    pub fn resume(&self, options: &Options) -> Result<Connection, OpenError> {
        let ticket = TicketFile::new(options.ticket.clone().unwrap_or_default());
        let ends = Ends::default();
        Ok(Connection::of(ticket.resume(Some(&self.engine), &options.registry, &options.channel(), ends)?))
    }

    /// The known server, if it is that of the URL and still knows this client by the same recipe.
    fn resume_known(
        &self,
        ticket: &TicketFile,
        url: &HaulUrl,
        recipe: &Recipe,
        options: &Options,
    ) -> Option<Connection> {
        /// A server that does not know the ticket stays silent; longer than this the handshake would not take either.
        const ANSWER: Duration = Duration::from_secs(1);
        // The server accepts every connection that begins, so none is begun that would not be used.
        let known = ticket.look().ok()?;
        let is_there =
            |mut addresses: vec::IntoIter<SocketAddr>| addresses.any(|address| address == known.server());
        if !(url.host.as_str(), url.port).to_socket_addrs().is_ok_and(is_there)
            || !known.recipe().ok()?.same_stack(recipe)
        {
            return None;
        }
        let channel =
            ticket.resume(Some(&self.engine), &options.registry, &options.channel(), Ends::default());
        let channel = channel.ok()?;
        channel.wait_confirmed(ANSWER).ok().map(|()| Connection::of(channel))
    }

    /// What has come to the socket.
    pub fn statistics(&self) -> EndpointStats {
        self.engine.stats()
    }

    /// Other sides that are known: those with a connection, and a server's clients that may come back.
    pub fn associations(&self) -> usize {
        self.engine.associations()
    }
}

impl Connection {
    /// As [`Endpoint::connect`], with an endpoint for this connection alone.
    ///
    /// # Errors
    /// As [`Endpoint::connect`].
    pub fn open(url: &str, recipe: &Recipe, options: &Options) -> Result<Self, OpenError> {
        Endpoint::client()?.connect(url, recipe, options)
    }

    /// As [`Endpoint::connect_async`], with an endpoint for this connection alone.
    ///
    /// # Errors
    /// As [`Endpoint::connect`].
    pub async fn open_async(url: &str, recipe: &Recipe, options: &Options) -> Result<Self, OpenError> {
        Endpoint::client()?.connect_async(url, recipe, options).await
    }
}
