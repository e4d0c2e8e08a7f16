//! `haul ctl` for a pipe.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use haul_base::Rate;
use haul_proto::{ChosenLaw, Part};
use haul_wire::control::Fault;
use haulage::{ByteWriter, Connection};

use crate::fault;
use crate::transfer::LawLimits;
use crate::transfer::control_socket::{ControlSocket, Controlled, Side, borrowed, unknown};

/// The micro-protocol that `haul ctl` changes.
pub(super) const LAW: &str = "rate_control";

impl Controlled for ByteWriter {
    fn law(&self) -> Option<Part> {
        self.law().cloned()
    }

    fn change(&mut self, changes: &[(String, String)]) -> Result<(), Fault> {
        self.set_law(&borrowed(changes)).map_err(unknown)
    }
}

/// Either end of a connection changes the recipe of both.
impl Controlled for &Connection {
    fn law(&self) -> Option<Part> {
        self.recipe().parts.into_iter().find(|part| part.name == LAW)
    }

    fn change(&mut self, changes: &[(String, String)]) -> Result<(), Fault> {
        let mut recipe = self.recipe();
        for law in recipe.parts.iter_mut().filter(|part| part.name == LAW) {
            ChosenLaw::change(law, changes).map_err(unknown)?;
        }
        self.reconfigure(&recipe).map_err(fault::of)
    }
}

/// As often as a copy looks for `haul ctl`: not for each of a million messages a second.
const BETWEEN: Duration = Duration::from_millis(50);

/// Answers `haul ctl` for a stream's sender, as long as it lives, and does what the receiver asks for.
pub(super) struct Controls {
    socket: Option<ControlSocket>,
    looked: Option<Instant>,
    /// The ceiling that was set on this machine holds, whatever the other side asks for.
    limits: LawLimits,
}

/// The ceiling, if there is one.
fn ceiling(writer: &ByteWriter) -> Option<Rate> {
    let law = writer.law().and_then(|law| ChosenLaw::check(law).ok());
    law.map(|law| law.rate()).filter(|&rate| rate < Rate::MAX)
}

impl Controls {
    /// `brings_recipe`: what it says of the rate was set on this machine.
    pub(super) fn new(writer: &ByteWriter, brings_recipe: bool) -> Self {
        let rate = ceiling(writer).filter(|_| brings_recipe);
        let limits = LawLimits { rate, controller: None };
        Self { socket: ControlSocket::open(Side::Sends), looked: None, limits }
    }

    pub(super) fn answer(&mut self, writer: &mut ByteWriter, moved: u64) {
        if self.looked.is_some_and(|looked| looked.elapsed() < BETWEEN) {
            return;
        }
        self.looked = Some(Instant::now());
        if let Some(socket) = &self.socket {
            let before = ceiling(writer);
            socket.answer(writer, moved);
            let now = ceiling(writer);
            if now != before {
                self.limits.rate = now;
            }
        }
        // One at a time: who asks all the time gets no more work out of this side.
        let (Some(mut changes), Some(law)) = (writer.take_law_request(), writer.law()) else { return };
        if let Ok(chosen) = ChosenLaw::change(&mut law.clone(), &changes) {
            changes.extend(self.limits.beyond(&chosen));
        }
        // The law may be another one here than where it was asked for.
        match writer.change(&changes) {
            Ok(()) => tracing::info!(?changes, "the peer requested another control law"),
            Err(fault) => tracing::debug!(%fault, "the peer requested an invalid control law"),
        }
    }
}

/// Ends the thread that answers, also where the work panics.
struct Ending<'a>(&'a AtomicBool, Thread);

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
        self.1.unpark();
    }
}

/// Answers `haul ctl` beside `work`, which waits for the other side and for whoever is at stdin or stdout; `moved` are
/// the bytes so far.
pub(super) fn beside<T>(
    side: Side,
    controlled: &mut (impl Controlled + Send),
    moved: &AtomicU64,
    work: impl FnOnce() -> T,
) -> T {
    let Some(socket) = ControlSocket::open(side) else { return work() };
    let is_over = AtomicBool::new(false);
    let answer = || {
        while !is_over.load(Ordering::Acquire) {
            socket.answer(controlled, moved.load(Ordering::Relaxed));
            thread::park_timeout(BETWEEN);
        }
    };
    thread::scope(|scope| {
        let answering = thread::Builder::new().name("haul-ctl".to_owned()).spawn_scoped(scope, answer);
        let answering = answering.inspect_err(|error| tracing::debug!(%error, "`haul ctl` has no thread"));
        let _ending = answering.ok().map(|thread| Ending(&is_over, thread.thread().clone()));
        work()
    })
}
