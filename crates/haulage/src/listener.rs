use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use haul_base::Bytes;
use haul_engine::{
    ChannelOptions, EndpointStats, EngineError as Error, Incoming, ListenOptions as EngineOptions, Terms,
};
use haul_proto::micro::registry;
use haul_stack::{Recipe, Registry};
use haul_wire::control::{Fault, FaultCode, Request};

use crate::{ByteReader, ByteWriter, Connection};

/// How often the thread that admits clients looks whether it should end.
const LOOK: Duration = Duration::from_millis(100);
/// Streams that may wait to be accepted.
const MOST_STREAMS: usize = 64;

/// Says why a recipe is not permitted.
type Permit = Box<dyn Fn(&Recipe) -> Result<(), String> + Send + Sync>;

/// Which streams of bytes clients may open.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StreamsPermitted {
    /// In both directions.
    #[default]
    Both,
    /// Clients send.
    FromClients,
    /// Clients receive.
    ToClients,
    /// None at all.
    Neither,
}

impl StreamsPermitted {
    fn refusal(self, request: &Request) -> Option<&'static str> {
        match (self, request) {
            (Self::Both, _)
            | (Self::FromClients, Request::StreamSend)
            | (Self::ToClients, Request::StreamReceive) => None,
            (Self::Neither, _) => Some("this server carries no streams of bytes"),
            (Self::FromClients, _) => Some("this server receives and does not send"),
            (Self::ToClients, _) => Some("this server sends and does not receive"),
        }
    }
}

/// How a server listens.
pub struct ListenOptions {
    /// Address and port for both TCP and UDP; port 0 lets the system choose.
    pub addr: SocketAddr,
    /// The URL is good for so long; `None`: while the listener exists.
    pub expires: Option<Duration>,
    /// Whether a client that wants no encryption gets none.
    pub permit_cipher_none: bool,
    /// The micro-protocols that clients' recipes can name.
    pub registry: Arc<Registry>,
    /// Which recipes are permitted; a client that brings another is told the reason.
    pub permit: Permit,
    /// Whether clients may send and receive streams of bytes.
    pub streams: StreamsPermitted,
    /// Bytes of messages that may wait to be sent, for each connection.
    pub queue: Bytes,
    /// Bytes of messages that may wait to be taken, for each connection.
    pub inbox: Bytes,
    /// Largest datagram, UDP payload bytes.
    pub datagram: u16,
    /// Asks clients for a sign of life when nothing has come for so long.
    pub keep_alive: Option<Duration>,
    /// A thread that waits for a message looks for itself for so long around the moment at which it is expected, instead of
    /// sleeping; zero: never.
    pub busy_poll: Duration,
}

impl ListenOptions {
    /// What suits most servers, on this address and port.
    pub fn new(addr: SocketAddr) -> Self {
        let channel = ChannelOptions::default();
        Self {
            addr,
            expires: None,
            permit_cipher_none: false,
            registry: Arc::new(registry()),
            permit: Box::new(|_| Ok(())),
            streams: StreamsPermitted::Both,
            queue: channel.queue,
            inbox: channel.inbox,
            datagram: channel.datagram,
            keep_alive: channel.keep_alive,
            busy_poll: channel.busy_poll,
        }
    }
}

impl std::fmt::Debug for ListenOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ListenOptions").field("addr", &self.addr).finish_non_exhaustive()
    }
}

/// What a client wants.
#[derive(Debug)]
pub enum Accepted {
    /// To talk in messages.
    Messages(Connection),
    /// To send bytes.
    Reader(Box<ByteReader>),
    /// To receive bytes.
    Writer(Box<ByteWriter>),
}

/// A server's port. Dropping it stops listening; connections that were accepted go on.
#[derive(Debug)]
pub struct Listener {
    engine: Arc<haul_engine::Listener>,
    stop: Arc<AtomicBool>,
    streams: Mutex<Receiver<Incoming>>,
    thread: Option<JoinHandle<()>>,
}

impl Listener {
    /// Listens with a new certificate and a new secret.
    ///
    /// # Errors
    /// If the address or port cannot be had.
    pub fn bind(addr: SocketAddr) -> Result<Self, Error> {
        Self::bind_with(ListenOptions::new(addr))
    }

    /// As [`Listener::bind`].
    ///
    /// # Errors
    /// As [`Listener::bind`].
    pub fn bind_with(options: ListenOptions) -> Result<Self, Error> {
        let mut engine = EngineOptions::new(options.addr);
        (engine.expires, engine.permit_cipher_none) = (options.expires, options.permit_cipher_none);
        let engine = Arc::new(haul_engine::Listener::bind(engine)?);
        engine.endpoint().set_options(ChannelOptions {
            queue: options.queue,
            inbox: options.inbox,
            datagram: options.datagram,
            keep_alive: options.keep_alive,
            busy_poll: options.busy_poll,
            ..ChannelOptions::default()
        });
        let permitted = options.streams;
        let terms = Terms::new(options.registry).permitting(options.permit);
        let (waiting, streams) = sync_channel(MOST_STREAMS);
        let stop = Arc::new(AtomicBool::new(false));
        let (ours, stopped) = (engine.clone(), stop.clone());
        let thread = std::thread::Builder::new()
            .name("haul-admit".to_owned())
            .spawn(move || admit(&ours, &terms, permitted, &waiting, &stopped))
            .map_err(|e| Error::System { what: "cannot start a thread", reason: e.to_string() })?;
        Ok(Self { engine, stop, streams: Mutex::new(streams), thread: Some(thread) })
    }

    /// The address and port that it listens on.
    pub fn local_addr(&self) -> SocketAddr {
        self.engine.local_addr()
    }

    /// What clients need to connect, if they reach this machine as `host`. Whoever has it is let in.
    pub fn url(&self, host: &str) -> String {
        self.engine.url(host, b"").to_string()
    }

    /// The next conversation in messages. Waits for it up to `timeout` (`None`: no limit).
    ///
    /// # Errors
    /// [`Error::TimedOut`]; [`Error::Closed`].
    pub fn accept(&self, timeout: Option<Duration>) -> Result<Connection, Error> {
        let until = timeout.map(|timeout| Instant::now() + timeout);
        loop {
            let left = until.map_or(LOOK, |until| until.saturating_duration_since(Instant::now()));
            if let Some(channel) = self.engine.endpoint().accept(left)? {
                return Ok(Connection::of(channel));
            }
            if until.is_some_and(|until| Instant::now() >= until) {
                let seconds = timeout.unwrap_or_default().as_secs_f64();
                return Err(Error::TimedOut { what: "a connection", seconds });
            }
        }
    }

    /// The next client, whatever it wants; `None` if none comes within `timeout`.
    ///
    /// # Errors
    /// [`Error::Closed`]; how a stream could not be begun.
    pub fn accept_any(&self, timeout: Duration) -> Result<Option<Accepted>, Error> {
        /// How long one kind of client is waited for before it is the other's turn.
        const TURN: Duration = Duration::from_millis(5);
        let until = Instant::now() + timeout;
        loop {
            let stream = self.streams.lock().unwrap_or_else(PoisonError::into_inner).try_recv();
            if let Ok(incoming) = stream {
                return begin(incoming).map(Some);
            }
            let left = until.saturating_duration_since(Instant::now());
            if let Some(channel) = self.engine.endpoint().accept(left.min(TURN))? {
                return Ok(Some(Accepted::Messages(Connection::of(channel))));
            }
            if left.is_zero() {
                return Ok(None);
            }
        }
    }

    /// The next client that sends bytes.
    ///
    /// # Errors
    /// [`Error::TimedOut`]; how the stream could not be begun; [`Error::Protocol`] if the client wants something else.
    pub fn accept_reader(&self, timeout: Duration) -> Result<ByteReader, Error> {
        match self.accept_any(timeout)? {
            Some(Accepted::Reader(reader)) => Ok(*reader),
            Some(_) => Err(Error::Protocol { reason: "the client does not want to send bytes".to_owned() }),
            None => Err(Error::TimedOut { what: "a stream", seconds: timeout.as_secs_f64() }),
        }
    }

    /// What has come to the port.
    pub fn statistics(&self) -> EndpointStats {
        self.engine.endpoint().stats()
    }

    /// Clients that are known, those that may come back included.
    pub fn associations(&self) -> usize {
        self.engine.endpoint().associations()
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

fn begin(incoming: Incoming) -> Result<Accepted, Error> {
    let from_client = matches!(incoming.request(), Request::StreamSend);
    let session = incoming.accept()?;
    Ok(if from_client {
        Accepted::Reader(Box::new(ByteReader::of(session)?))
    } else {
        Accepted::Writer(Box::new(ByteWriter::of(session)?))
    })
}

/// Agrees with clients on their recipes, until the listener stops.
fn admit(
    engine: &haul_engine::Listener,
    terms: &Terms,
    permitted: StreamsPermitted,
    streams: &SyncSender<Incoming>,
    stop: &AtomicBool,
) {
    while !stop.load(Ordering::Relaxed) {
        let incoming = match engine.accept(LOOK) {
            Ok(Some(incoming)) => incoming,
            Ok(None) => continue,
            Err(_) => return,
        };
        match incoming.request() {
            // Who was refused, and why, is what the client is told.
            Request::Associate { .. } => drop(incoming.associate(engine.endpoint(), terms)),
            request @ (Request::StreamSend | Request::StreamReceive) => {
                if let Some(reason) = permitted.refusal(request) {
                    incoming.refuse(Fault::new(FaultCode::NotPermitted, reason, ""));
                    continue;
                }
                if let Err(error) = streams.try_send(incoming) {
                    let (std::sync::mpsc::TrySendError::Full(incoming)
                    | std::sync::mpsc::TrySendError::Disconnected(incoming)) = error;
                    incoming.refuse(Fault::new(FaultCode::Busy, "too many streams wait", "try again later"));
                }
            }
            _ => incoming.refuse(Fault::new(
                FaultCode::NotPermitted,
                "this server carries messages and streams, not files",
                "use a URL of `haul serve` for files",
            )),
        }
    }
}
