//! Moving one object: a thread per session that runs the sender or receiver machine on the session's socket.

mod driver;
#[cfg(feature = "faults")]
mod faults;
mod faulty_socket;
mod host;
mod shared;
mod start;

use std::num::NonZero;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::Duration;

use haul_base::{HostSample, Rate, Span, Time};
use haul_proto::{ChosenLaw, Receiver, ReceiverEvent, Sender, SenderEvent};
use haul_udp::{Capabilities, UdpSocket};
use rustix::time::{ClockId, clock_gettime};

use crate::{EngineError, Waker};
use driver::{Driven, Driver, Flow, Peer};
use shared::Shared;

pub use shared::{Counters, Sending};
pub use start::{FIRST_LIMIT, controller_for};

/// A transfer that runs on a thread of its own. Dropping it stops the thread.
#[derive(Debug)]
pub struct Transfer {
    shared: Arc<Shared>,
    waker: Waker,
    capabilities: Capabilities,
    thread: Option<JoinHandle<()>>,
}

impl Transfer {
    fn spawn<M: Driven + Send + 'static>(
        name: &str,
        machine: M,
        socket: UdpSocket,
        peer: Peer,
        waker: Waker,
    ) -> Result<Self, EngineError> {
        let shared = Arc::new(Shared::new());
        let (ours, wake) = (shared.clone(), waker.clone());
        let capabilities = socket.capabilities().clone();
        let run = move || {
            // Without this, Linux rounds waits up by 50 us. Harmless where it is refused.
            let _ = rustix::thread::set_current_timer_slack(NonZero::new(1));
            let mut driver = Driver::new(machine, &socket, peer, wake, &ours);
            ours.set_ended(driver.run());
            // The application's ends go last: whom they wake finds how it has ended.
            drop(driver);
        };
        let thread = std::thread::Builder::new()
            .name(name.to_owned())
            .spawn(run)
            .map_err(|error| EngineError::system("cannot start a thread", error))?;
        Ok(Self { shared, waker, capabilities, thread: Some(thread) })
    }

    /// What the socket can do, and what it has to do without.
    pub fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    /// The counters, at most a twentieth of a second old; `None` before the first.
    pub fn counters(&self) -> Option<Counters> {
        self.shared.counters()
    }

    /// CPU time of the data thread.
    pub fn cpu(&self) -> Span {
        self.shared.cpu()
    }

    /// The other side assigns this one a rate, UDP payload; for a receiver it means nothing.
    pub fn set_quota(&self, rate: Rate) {
        self.shared.quota.store(rate.as_bps(), Ordering::Relaxed);
        self.waker.wake();
    }

    /// Another control law, or other parameters of the present one, from now on (`haul_proto::Sender::switch_law`); for
    /// a receiver it means nothing.
    pub fn switch_law(&self, law: ChosenLaw) {
        self.shared.choose_law(law);
        self.waker.wake();
    }

    /// Wakes the data thread.
    pub fn waker(&self) -> Waker {
        self.waker.clone()
    }

    /// Why the data thread has ended, if it has failed.
    pub fn failure(&self) -> Option<EngineError> {
        self.shared.failure()
    }

    /// Waits until every byte has arrived. `Ok(false)` if that takes longer than `timeout`.
    ///
    /// # Errors
    /// What ended the data thread.
    pub fn wait_delivered(&self, timeout: Duration) -> Result<bool, EngineError> {
        self.shared.wait_delivered(timeout)
    }

    /// Stops the thread and returns the last counters.
    pub fn stop(mut self) -> Option<Counters> {
        self.halt();
        self.shared.counters()
    }

    fn halt(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        self.waker.wake();
        if let Some(thread) = self.thread.take() {
            // A panic there has already been reported by its message; the session ends either way.
            let _ = thread.join();
        }
    }
}

impl Drop for Transfer {
    fn drop(&mut self) {
        self.halt();
    }
}

fn thread_cpu() -> Span {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Span::from_nanos(time.tv_sec.unsigned_abs() * 1_000_000_000 + time.tv_nsec.unsigned_abs())
}

impl Driven for Sender {
    const LOOKS_AT_HOST: bool = false;

    fn publish(&self, shared: &Shared) {
        let state = self.rate_state();
        let sending = Sending {
            stats: self.stats(),
            rate: state.rate,
            phase: state.phase,
            in_flight: self.in_flight(),
        };
        shared.set_counters(&Counters::Sending(sending), thread_cpu());
    }

    fn on_event(&mut self, event: SenderEvent, shared: &Shared) -> Result<Flow, EngineError> {
        match event {
            SenderEvent::Delivered => {
                self.publish(shared);
                shared.set_delivered();
                Ok(Flow::Done)
            }
            SenderEvent::PathMtu(size) => {
                tracing::debug!(size, "path MTU: larger datagrams");
                Ok(Flow::GoOn)
            }
            SenderEvent::Silent(span) => Err(silent("a sign that UDP packets arrive at the receiver", span)),
            SenderEvent::Failed(words) => Err(EngineError::Transport(words)),
        }
    }

    fn on_too_large(&mut self, now: Time, size: usize) {
        Sender::on_too_large(self, now, size);
    }

    fn on_size_passed(&mut self, now: Time, size: u16) {
        Sender::on_size_passed(self, now, size);
    }

    fn on_quota(&mut self, now: Time, rate: Rate) {
        self.set_quota(now, rate);
    }

    fn on_law(&mut self, now: Time, law: ChosenLaw) {
        self.switch_law(now, law);
    }
}

impl Driven for Receiver {
    const LOOKS_AT_HOST: bool = true;

    fn publish(&self, shared: &Shared) {
        shared.set_counters(&Counters::Receiving(self.stats()), thread_cpu());
    }

    fn on_event(&mut self, event: ReceiverEvent, shared: &Shared) -> Result<Flow, EngineError> {
        match event {
            ReceiverEvent::Complete(_) => {
                self.publish(shared);
                shared.set_delivered();
                Ok(Flow::GoOn)
            }
            // A sender that has everything acknowledged, or that waits for its disk, says nothing.
            ReceiverEvent::Silent(_) => Ok(Flow::GoOn),
            ReceiverEvent::Failed(words) => Err(EngineError::Transport(words)),
        }
    }

    fn on_host_sample(&mut self, now: Time, host: HostSample) {
        Receiver::on_host_sample(self, now, host);
    }
}

fn silent(what: &'static str, span: Span) -> EngineError {
    EngineError::Silent { what, seconds: span.as_secs_f64() }
}
