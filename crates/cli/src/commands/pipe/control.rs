//! `haul ctl` for a pipe.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use haul_base::Rate;
use haul_proto::{ChosenLaw, LawChange, Part};
use haulage::{ByteWriter, Connection};

use crate::fault::{self, Fault};
use crate::transfer::LawLimits;
use crate::transfer::control_socket::{ControlSocket, Controlled, Side, unknown};

/// The micro-protocol that `haul ctl` changes.
pub(super) const LAW: &str = "rate_control";

impl Controlled for ByteWriter {
    fn law(&self) -> Option<Part> {
        self.law().cloned()
    }

    fn change(&mut self, change: &LawChange) -> Result<(), Fault> {
        self.set_law(change).map_err(unknown)
    }
}

/// Either end of a connection changes the recipe of both.
impl Controlled for &Connection {
    fn law(&self) -> Option<Part> {
        self.recipe().part(LAW).cloned()
    }

    fn change(&mut self, change: &LawChange) -> Result<(), Fault> {
        let mut recipe = self.recipe();
        if let Some(law) = recipe.part_mut(LAW) {
            ChosenLaw::change(law, change).map_err(unknown)?;
        }
        self.reconfigure(&recipe).map_err(fault::of)
    }
}

/// Interval of checks for `haul ctl`, so that there is not one per message.
const CHECK_INTERVAL: Duration = Duration::from_millis(50);

/// Answers `haul ctl` for a stream's sender, and applies the law changes that the receiver requests.
pub(super) struct Controls {
    socket: Option<ControlSocket>,
    last_check: Option<Instant>,
    /// Contains the ceiling set on this machine, which applies whatever the other side requests.
    limits: LawLimits,
}

fn ceiling(writer: &ByteWriter) -> Option<Rate> {
    let law = writer.law().and_then(|law| ChosenLaw::check(law).ok());
    law.map(|law| law.rate()).filter(|&rate| rate < Rate::MAX)
}

impl Controls {
    /// `brings_recipe`: whether the recipe, and with it the ceiling, was chosen on this machine.
    pub(super) fn new(writer: &ByteWriter, brings_recipe: bool) -> Self {
        let rate = ceiling(writer).filter(|_| brings_recipe);
        let limits = LawLimits { rate, controller: None };
        Self { socket: ControlSocket::open(Side::Sends), last_check: None, limits }
    }

    pub(super) fn answer(&mut self, writer: &mut ByteWriter, moved: u64) {
        if self.last_check.is_some_and(|last_check| last_check.elapsed() < CHECK_INTERVAL) {
            return;
        }
        self.last_check = Some(Instant::now());
        if let Some(socket) = &self.socket {
            let before = ceiling(writer);
            socket.answer(writer, moved);
            let now = ceiling(writer);
            if now != before {
                self.limits.rate = now;
            }
        }
        // One request per interval, so that the other side cannot cause more work.
        let (Some(request), Some(law)) = (writer.take_law_request(), writer.law()) else { return };
        let mut asked = law.clone();
        // Applied to the present law, which may differ from the one that the other side knows.
        let changed = request.and_then(|change| {
            ChosenLaw::change(&mut asked, &change)?;
            let change = change.and(LawChange::of(&asked, |law| self.limits.apply(law)));
            writer.set_law(&change).map(|()| change)
        });
        match changed {
            Ok(change) => tracing::info!(?change, "the peer requested another control law"),
            Err(error) => tracing::debug!(%error, "the peer requested an invalid control law"),
        }
    }
}

/// Answers `haul ctl` on another thread during `work`, which may block on the other side, stdin or stdout.
/// `moved` is the number of bytes so far.
pub(super) fn with_control<T>(
    side: Side,
    controlled: &mut (impl Controlled + Send),
    moved: &AtomicU64,
    work: impl FnOnce() -> T,
) -> T {
    let Some(socket) = ControlSocket::open(side) else { return work() };
    let (running, stop) = channel::<()>();
    let answer = move || {
        while stop.recv_timeout(CHECK_INTERVAL) == Err(RecvTimeoutError::Timeout) {
            socket.answer(controlled, moved.load(Ordering::Relaxed));
        }
    };
    thread::scope(|scope| {
        // Dropped at the end of the work, even if it panics: the thread that answers then ends.
        let _running = running;
        if let Err(error) = thread::Builder::new().name("haul-ctl".to_owned()).spawn_scoped(scope, answer) {
            tracing::debug!(%error, "`haul ctl` has no thread");
        }
        work()
    })
}
