mod acceptor;

use std::future::poll_fn;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::thread::JoinHandle;
use std::time::Duration;

use haul_engine::{
    EngineError as Error, ListenOptions as EngineOptions, Terms, after, block_until, spawn, wait_for,
};

pub use self::acceptor::Accepted;

use self::acceptor::{Acceptor, WaitingStreams};

use crate::{AcceptError, ByteReader, Connection, Endpoint, ListenOptions};

/// A server's port. Dropping it stops listening; connections that were accepted go on.
#[derive(derive_more::Debug)]
#[debug("Listener({})", self.local_addr())]
pub struct Listener {
    engine: Arc<haul_engine::Listener>,
    endpoint: Endpoint,
    stop: Arc<AtomicBool>,
    streams: Arc<WaitingStreams>,
    thread: Option<JoinHandle<()>>,
}

impl Listener {
    /// Listens with a new certificate and a new secret.
    ///
    /// # Errors
    /// If the address or port cannot be had.
    pub fn bind(addr: SocketAddr) -> Result<Self, AcceptError> {
        Self::bind_with(ListenOptions::new(addr))
    }

    /// As [`Listener::bind`].
    pub fn bind_with(options: ListenOptions) -> Result<Self, AcceptError> {
        let mut engine = EngineOptions::new(options.addr);
        (engine.expires, engine.permit_cipher_none) = (options.expires, options.permit_cipher_none);
        let engine = Arc::new(haul_engine::Listener::bind(engine)?);
        let endpoint = Endpoint { engine: engine.endpoint().clone() };
        endpoint.engine.set_options(options.connection);
        let streams = Arc::new(WaitingStreams::new(options.loss_model));
        let stop = Arc::new(AtomicBool::new(false));
        let acceptor = Acceptor {
            engine: engine.clone(),
            terms: Terms::new(options.registry).permitting(options.permit),
            permitted: options.streams,
            streams: streams.clone(),
            stop: stop.clone(),
        };
        let thread = Some(spawn("haul-acceptor", move || acceptor.run())?);
        Ok(Self { engine, endpoint, stop, streams, thread })
    }

    /// The address and port that it listens on.
    pub fn local_addr(&self) -> SocketAddr {
        self.engine.local_addr()
    }

    /// What clients need to connect, if they reach this machine as `host`. Whoever has it is let in.
    pub fn url(&self, host: &str) -> String {
        self.engine.url(host, b"").to_string()
    }

    /// The next connection in messages. Waits for it up to `timeout` (`None`: no limit).
    ///
    /// # Errors
    /// [`AcceptError::TimedOut`]; [`AcceptError::Closed`].
    pub fn accept(&self, timeout: Option<Duration>) -> Result<Connection, AcceptError> {
        wait_for(timeout, "a connection", |context| self.poll_accept(context))
    }

    /// As [`Listener::accept`], for tasks.
    ///
    /// # Errors
    /// [`AcceptError::Closed`].
    pub async fn accept_async(&self) -> Result<Connection, AcceptError> {
        poll_fn(|context| self.poll_accept(context)).await
    }

    fn poll_accept(&self, context: &mut Context<'_>) -> Poll<Result<Connection, AcceptError>> {
        self.endpoint.engine.poll_accept(context).map_ok(Connection::of).map_err(Into::into)
    }

    /// The next client, whatever it wants; `None` if none comes within `timeout`. A stream that begins later is
    /// returned by the next call.
    ///
    /// # Errors
    /// [`AcceptError::Closed`]; how a stream could not be begun.
    pub fn accept_any(&self, timeout: Duration) -> Result<Option<Accepted>, AcceptError> {
        block_until(Some(after(timeout)), |context| self.poll_any(context)).transpose()
    }

    /// As [`Listener::accept_any`], for tasks.
    pub async fn accept_any_async(&self) -> Result<Accepted, AcceptError> {
        poll_fn(|context| self.poll_any(context)).await
    }

    fn poll_any(&self, context: &mut Context<'_>) -> Poll<Result<Accepted, AcceptError>> {
        match self.poll_accept(context) {
            Poll::Ready(connection) => Poll::Ready(connection.map(Accepted::Messages)),
            Poll::Pending => self.streams.poll_next(context),
        }
    }

    /// The next client that sends bytes.
    ///
    /// # Errors
    /// [`AcceptError::TimedOut`]; how the stream could not be begun; [`AcceptError::Failed`] if the client wants
    /// something else.
    pub fn accept_reader(&self, timeout: Duration) -> Result<ByteReader, AcceptError> {
        match self.accept_any(timeout)? {
            Some(accepted) => accepted.into_reader(),
            None => Err(Error::TimedOut { what: "a stream", seconds: timeout.as_secs_f64() }.into()),
        }
    }

    /// As [`Listener::accept_reader`], for tasks.
    ///
    /// # Errors
    /// How the stream could not be begun; [`AcceptError::Failed`] if the client wants something else.
    pub async fn accept_reader_async(&self) -> Result<ByteReader, AcceptError> {
        self.accept_any_async().await?.into_reader()
    }

    /// The endpoint of the port, which also connects to other servers.
    pub fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // A panic there has been reported by its message.
            let _ = thread.join();
        }
    }
}
