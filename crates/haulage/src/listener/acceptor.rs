//! The thread that accepts clients, and the streams that wait for the application to accept them.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use haul_engine::{EngineError as Error, Incoming, Monitor, Terms, spawn};
use haul_proto::LossModel;
use haul_wire::control::{Fault, FaultCode, Request};

use crate::{AcceptError, ByteReader, ByteWriter, Connection, StreamsPermitted};

/// How often the thread that accepts clients checks whether it should end.
const LOOK: Duration = Duration::from_millis(100);
/// Streams that may wait to be accepted.
const MOST_STREAMS: usize = 64;

/// What a client asks for.
#[derive(Debug)]
pub enum Accepted {
    /// A connection in messages.
    Messages(Connection),
    /// To send bytes.
    Reader(Box<ByteReader>),
    /// To receive bytes.
    Writer(Box<ByteWriter>),
}

impl Accepted {
    pub(super) fn into_reader(self) -> Result<ByteReader, AcceptError> {
        match self {
            Self::Reader(reader) => Ok(*reader),
            _ => Err(Error::Protocol { reason: "the client does not want to send bytes".to_owned() }.into()),
        }
    }
}

/// Streams that clients ask for, and the tasks that wait for them.
pub(super) struct WaitingStreams {
    state: Monitor<State>,
    /// Of those that this end sends.
    loss_model: Option<Arc<LossModel>>,
}

#[derive(Default)]
struct State {
    pending: VecDeque<Incoming>,
    beginning: usize,
    begun: VecDeque<Result<Accepted, Error>>,
}

impl WaitingStreams {
    pub(super) fn new(loss_model: Option<Arc<LossModel>>) -> Self {
        Self { state: Monitor::default(), loss_model }
    }

    /// Queues a client; gives it back if too many wait.
    fn offer(&self, incoming: Incoming) -> Option<Incoming> {
        let mut state = self.state.lock();
        if state.pending.len() + state.beginning + state.begun.len() >= MOST_STREAMS {
            return Some(incoming);
        }
        state.pending.push_back(incoming);
        Monitor::release(state);
        None
    }

    /// The next stream that has begun. A thread of its own waits for that, and the stream stays here if nobody asks
    /// again. However one client's fails, the listener goes on.
    pub(super) fn poll_next(self: &Arc<Self>, context: &Context<'_>) -> Poll<Result<Accepted, AcceptError>> {
        let mut state = self.state.lock();
        if let Some(begun) = state.begun.pop_front() {
            return Poll::Ready(begun.map_err(AcceptError::Failed));
        }
        state.wake_later(context.waker());
        let Some(incoming) = state.pending.pop_front() else { return Poll::Pending };
        state.beginning += 1;
        drop(state);
        let ours = self.clone();
        let started = spawn("haul-begin", move || {
            let begun = begin(incoming, ours.loss_model.clone());
            ours.state.update(|state| {
                state.beginning -= 1;
                state.begun.push_back(begun);
            });
        });
        let Err(error) = started else { return Poll::Pending };
        self.state.update(|state| state.beginning -= 1);
        Poll::Ready(Err(AcceptError::Failed(error)))
    }
}

/// Waits until a stream has begun, up to three seconds.
fn begin(incoming: Incoming, loss_model: Option<Arc<LossModel>>) -> Result<Accepted, Error> {
    let from_client = matches!(incoming.request(), Request::StreamSend);
    let mut session = incoming.accept()?;
    session.set_loss_model(loss_model);
    Ok(if from_client {
        Accepted::Reader(Box::new(ByteReader::of(session)?))
    } else {
        Accepted::Writer(Box::new(ByteWriter::of(session)?))
    })
}

pub(super) struct Acceptor {
    pub(super) engine: Arc<haul_engine::Listener>,
    pub(super) terms: Terms,
    pub(super) permitted: StreamsPermitted,
    pub(super) streams: Arc<WaitingStreams>,
    pub(super) stop: Arc<AtomicBool>,
}

impl Acceptor {
    /// Agrees with clients on their recipes, until the listener stops.
    pub(super) fn run(&self) {
        while !self.stop.load(Ordering::Relaxed) {
            match self.engine.accept(LOOK) {
                // A panic, say in the application's policy, ends one client's attempt and not the listener.
                Ok(Some(incoming)) => drop(catch_unwind(AssertUnwindSafe(|| self.accept(incoming)))),
                Ok(None) => {}
                Err(_) => return,
            }
        }
    }

    fn accept(&self, incoming: Incoming) {
        match incoming.request() {
            // A client that is refused is told why.
            Request::Connect { .. } => drop(incoming.agree(self.engine.endpoint(), &self.terms)),
            Request::StreamSend | Request::StreamReceive => match self.refusal(&incoming) {
                Some(fault) => incoming.refuse(fault),
                None => {
                    if let Some(incoming) = self.streams.offer(incoming) {
                        let fault = Fault::new(FaultCode::Busy, "too many streams wait", "try again later");
                        incoming.refuse(fault);
                    }
                }
            },
            _ => incoming.refuse(Fault::new(
                FaultCode::NotPermitted,
                "this server carries messages and streams, not files",
                "use a URL of `haul serve` for files",
            )),
        }
    }

    /// Why a stream is refused, if it is.
    fn refusal(&self, incoming: &Incoming) -> Option<Fault> {
        if let Some(reason) = self.permitted.refusal(incoming.request()) {
            return Some(Fault::new(FaultCode::NotPermitted, reason, ""));
        }
        self.terms.check(incoming.settings()).err()
    }
}

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use super::*;

    /// Whoever takes that for the end of the listener serves nobody any more.
    #[test]
    fn a_client_that_closes_before_its_stream_begins_does_not_end_the_listener() {
        let streams = Arc::new(WaitingStreams::new(None));
        streams.state.update(|state| state.begun.push_back(Err(Error::Closed)));
        let next = streams.poll_next(&Context::from_waker(Waker::noop()));
        assert!(matches!(next, Poll::Ready(Err(AcceptError::Failed(Error::Closed)))), "{next:?}");
    }
}
