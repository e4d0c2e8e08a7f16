use std::collections::VecDeque;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use haul_engine::{
    ConnectionOptions, EngineError as Error, Incoming, ListenOptions as EngineOptions, Monitor, Terms, spawn,
};
use haul_proto::LossModel;
use haul_wire::control::{Fault, FaultCode, Request};

use crate::{
    AcceptError, ByteReader, ByteWriter, Connection, Endpoint, ListenOptions, Operation, Polled,
    StreamsPermitted,
};

/// Maximum number of streams being opened at once.
const MAX_STARTING: usize = 64;

/// A client accepted by [`Listener::accept_any`].
#[derive(Debug)]
pub enum Accepted {
    /// A connection that carries messages.
    Messages(Connection),
    /// A stream of bytes that the client sends.
    Reader(Box<ByteReader>),
    /// A stream of bytes that the client receives.
    Writer(Box<ByteWriter>),
}

impl Accepted {
    fn into_reader(self) -> Result<ByteReader, AcceptError> {
        match self {
            Self::Reader(reader) => Ok(*reader),
            _ => Err(Error::Protocol("the client does not request to send bytes".to_owned()).into()),
        }
    }
}

/// Requested streams that no caller has accepted yet.
#[derive(Default)]
struct StreamQueue {
    starting: usize,
    ready: VecDeque<Result<Accepted, Error>>,
}

/// A server's port. Dropping it stops listening; accepted connections stay open.
#[derive(derive_more::Debug)]
#[debug("Listener({})", self.local_addr())]
pub struct Listener {
    engine: haul_engine::Listener,
    endpoint: Endpoint,
    streams: Arc<Monitor<StreamQueue>>,
    /// For streams that this end sends.
    loss_model: Option<Arc<LossModel>>,
}

impl Listener {
    /// Binds `addr` with a new certificate and a new secret.
    ///
    /// # Errors
    /// If the address or port is not available.
    pub fn bind(addr: SocketAddr) -> Result<Self, AcceptError> {
        Self::bind_with(ListenOptions::new(addr))
    }

    /// Like [`Listener::bind`], with all options.
    ///
    /// # Errors
    /// [`AcceptError::Address`] if the address and port are not available for both TCP and UDP;
    /// [`AcceptError::Failed`] for any other system error.
    pub fn bind_with(options: ListenOptions) -> Result<Self, AcceptError> {
        let mut engine = EngineOptions::new(options.addr);
        (engine.expires, engine.permit_cipher_none) = (options.expires, options.permit_cipher_none);
        let terms = Terms::new(options.registry).permitting(options.permit);
        let admit = move |incoming: Incoming| match refusal(&incoming, options.streams, &terms) {
            Some(fault) => {
                incoming.refuse(fault);
                None
            }
            None if matches!(incoming.request(), Request::Connect { .. }) => {
                // `agree` sends the reason to a client that it refuses.
                let _ = incoming.agree(&terms);
                None
            }
            None => Some(incoming),
        };
        let engine = haul_engine::Listener::bind_admitting(engine, Box::new(admit))?;
        let endpoint = Endpoint { engine: engine.endpoint().clone() };
        let loss_model = options.loss_model.clone();
        endpoint.engine.set_options(ConnectionOptions { loss_model, ..options.connection });
        Ok(Self { engine, endpoint, streams: Arc::default(), loss_model: options.loss_model })
    }

    /// Returns the local address and port.
    pub fn local_addr(&self) -> SocketAddr {
        self.engine.local_addr()
    }

    /// Returns the URL for clients that reach this machine as `host`, a name or an address; if empty, as the
    /// bound address, or loopback if that is unspecified. Any client that has the URL is accepted.
    pub fn url(&self, host: &str) -> String {
        let own_address = match self.local_addr().ip() {
            IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
            IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
            ip => ip,
        };
        let bare = host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(host);
        let host = if bare.is_empty() { own_address.to_string() } else { bare.to_owned() };
        self.engine.url(&host, b"").to_string()
    }

    /// Waits for the next message connection.
    ///
    /// # Errors
    /// [`AcceptError::Closed`] if the listener has stopped.
    pub fn accept(&self) -> Operation<'_, impl Polled<Connection, AcceptError>> {
        Operation::new("a connection", None, |context| self.poll_accept(context))
    }

    fn poll_accept(&self, context: &mut Context<'_>) -> Poll<Result<Connection, AcceptError>> {
        self.endpoint.engine.poll_accept(context).map_ok(Connection::of).map_err(Into::into)
    }

    /// Waits for the next client, whatever it requests. A stream that opens after its caller has stopped
    /// waiting goes to the next caller.
    ///
    /// # Errors
    /// [`AcceptError::Closed`] if the listener has stopped; [`AcceptError::Failed`] if a stream failed to
    /// open.
    pub fn accept_any(&self) -> Operation<'_, impl Polled<Accepted, AcceptError>> {
        Operation::new("a client", None, |context| self.poll_any(context))
    }

    fn poll_any(&self, context: &mut Context<'_>) -> Poll<Result<Accepted, AcceptError>> {
        match self.poll_accept(context) {
            Poll::Ready(connection) => Poll::Ready(connection.map(Accepted::Messages)),
            Poll::Pending => self.poll_stream(context),
        }
    }

    /// Returns the next opened stream. A separate thread opens each client's stream, and a stream that no
    /// caller waits for stays queued. A client whose stream fails does not affect the listener.
    fn poll_stream(&self, context: &Context<'_>) -> Poll<Result<Accepted, AcceptError>> {
        if let Poll::Ready(result) = self.streams.poll(context, |streams| streams.ready.pop_front()) {
            return Poll::Ready(result.map_err(AcceptError::Failed));
        }
        if self.streams.lock().starting >= MAX_STARTING {
            return Poll::Pending;
        }
        let incoming = ready!(self.engine.poll_accept(context));
        self.streams.lock().starting += 1;
        let (queue, loss_model) = (self.streams.clone(), self.loss_model.clone());
        let started = spawn("haul-begin", move || {
            let result = open_stream(incoming, loss_model);
            queue.update(|streams| {
                streams.starting -= 1;
                streams.ready.push_back(result);
            });
        });
        let Err(error) = started else { return self.poll_stream(context) };
        self.streams.update(|streams| streams.starting -= 1);
        Poll::Ready(Err(AcceptError::Failed(error)))
    }

    /// Waits for the next client that sends bytes.
    ///
    /// # Errors
    /// As [`Listener::accept_any`]; [`AcceptError::Failed`] if the client requests anything else.
    pub fn accept_reader(&self) -> Operation<'_, impl Polled<ByteReader, AcceptError>> {
        Operation::new("a stream", None, |context| {
            self.poll_any(context).map(|accepted| accepted?.into_reader())
        })
    }

    /// Returns the endpoint of this port, which can also connect to other servers.
    pub fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }
}

/// Waits up to 3 s until the stream is open. If it fails, sends the reason to the client.
fn open_stream(incoming: Incoming, loss_model: Option<Arc<LossModel>>) -> Result<Accepted, Error> {
    let from_client = matches!(incoming.request(), Request::StreamSend);
    let mut session = incoming.accept()?;
    session.set_loss_model(loss_model);
    let control = session.control().clone();
    let result = if from_client {
        ByteReader::of(session).map(|reader| Accepted::Reader(Box::new(reader)))
    } else {
        ByteWriter::of(session).map(|writer| Accepted::Writer(Box::new(writer)))
    };
    result.inspect_err(|error| control.abort(error.fault()))
}

/// Returns the reason for refusing the client, if any.
fn refusal(incoming: &Incoming, permitted: StreamsPermitted, terms: &Terms) -> Option<Fault> {
    match incoming.request() {
        Request::Connect { .. } => None,
        Request::StreamSend | Request::StreamReceive => incoming.check(terms).err().or_else(|| {
            let reason = permitted.refusal(incoming.request())?;
            Some(Fault::new(FaultCode::NotPermitted, reason, ""))
        }),
        _ => Some(Fault::new(
            FaultCode::NotPermitted,
            "this server carries messages and streams, not files",
            "",
        )),
    }
}

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use super::*;

    /// An application that took this for the listener's end would stop serving.
    #[test]
    fn a_client_that_closes_before_its_stream_does_not_end_the_listener() {
        let listener = Listener::bind("127.0.0.1:0".parse().unwrap()).unwrap();
        listener.streams.update(|streams| streams.ready.push_back(Err(Error::Closed)));
        let next = listener.poll_stream(&Context::from_waker(Waker::noop()));
        assert!(matches!(next, Poll::Ready(Err(AcceptError::Failed(Error::Closed)))), "{next:?}");
    }
}
