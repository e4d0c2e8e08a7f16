//! `haul ctl` for a pipe.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use haul_base::Rate;
use haul_proto::{ChosenLaw, Part};
use haul_wire::control::Fault;
use haulage::{ByteWriter, Connection, LawRequestError, LawRequests};

use crate::fault;
use crate::transfer::asked_law::LawLimits;
use crate::transfer::control_socket::{ControlSocket, Controlled, Side, unknown};

fn borrowed(changes: &[(String, String)]) -> Vec<(&str, &str)> {
    changes.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect()
}

impl Controlled for ByteWriter {
    fn change(&mut self, law: &mut Part, changes: &[(String, String)]) -> Result<(), Fault> {
        self.set_law(&borrowed(changes)).map_err(unknown)?;
        *law = self.law().cloned().unwrap_or_else(|| law.clone());
        Ok(())
    }

    fn present_law(&self) -> Option<Part> {
        self.law().cloned()
    }

    fn take_request(&mut self) -> Option<Vec<(String, String)>> {
        self.take_law_request()
    }
}

impl Controlled for LawRequests {
    fn change(&mut self, law: &mut Part, changes: &[(String, String)]) -> Result<(), Fault> {
        self.ask(&borrowed(changes)).map_err(|error| match error {
            LawRequestError::Law(error) => unknown(error),
            LawRequestError::TooLong => fault::usage(error.to_string(), "change less at a time"),
            error => fault::usage(error.to_string(), "try again"),
        })?;
        *law = self.law().cloned().unwrap_or_else(|| law.clone());
        Ok(())
    }
}

/// Either end of a connection changes the recipe of both.
impl Controlled for &Connection {
    fn change(&mut self, law: &mut Part, changes: &[(String, String)]) -> Result<(), Fault> {
        let mut changed = law.clone();
        ChosenLaw::change(&mut changed, changes).map_err(unknown)?;
        let mut recipe = self.recipe();
        for part in recipe.parts.iter_mut().filter(|part| part.name == changed.name) {
            part.clone_from(&changed);
        }
        self.reconfigure(&recipe).map_err(fault::of)?;
        *law = changed;
        Ok(())
    }

    fn present_law(&self) -> Option<Part> {
        law_of(self)
    }
}

pub(super) fn law_of(connection: &Connection) -> Option<Part> {
    connection.recipe().parts.into_iter().find(|part| part.name == "rate_control")
}

/// As often as a copy looks for `haul ctl`: not for each of a million messages a second.
const BETWEEN: Duration = Duration::from_millis(50);

/// Answers `haul ctl` for a sender, as long as it lives, and does what the receiver asks for.
pub(super) struct Controls {
    socket: Option<ControlSocket>,
    looked: Option<Instant>,
    /// The ceiling that was set on this machine holds, whatever the other side asks for.
    limits: LawLimits,
}

/// The ceiling, if there is one.
fn ceiling(law: Option<&Part>) -> Option<Rate> {
    let law = law.and_then(|law| ChosenLaw::check(law).ok());
    law.map(|law| law.rate()).filter(|&rate| rate < Rate::MAX)
}

impl Controls {
    fn of(law: Option<Part>) -> Self {
        Self { socket: ControlSocket::open(Side::Sends(law)), looked: None, limits: LawLimits::default() }
    }

    /// `brings_recipe`: what it says of the rate was set on this machine.
    pub(super) fn of_stream(writer: &ByteWriter, brings_recipe: bool) -> Self {
        let rate = ceiling(writer.law()).filter(|_| brings_recipe);
        let limits = LawLimits { rate, controller: None };
        Self { limits, ..Self::of(writer.law().cloned()) }
    }

    pub(super) fn of_messages(connection: &Connection) -> Self {
        Self::of(law_of(connection))
    }

    pub(super) fn answer(&mut self, controlled: &mut impl Controlled, moved: u64) {
        if self.looked.is_some_and(|looked| looked.elapsed() < BETWEEN) {
            return;
        }
        self.looked = Some(Instant::now());
        if let Some(socket) = &mut self.socket {
            let before = ceiling(controlled.present_law().as_ref());
            socket.answer(controlled, moved);
            let now = ceiling(controlled.present_law().as_ref());
            if now != before {
                self.limits.rate = now;
            }
        }
        // One at a time: who asks all the time gets no more work out of this side.
        if let Some(changes) = controlled.take_request() {
            self.grant(controlled, changes);
        }
    }

    fn grant(&self, controlled: &mut impl Controlled, mut changes: Vec<(String, String)>) {
        let Some(mut law) = controlled.present_law() else { return };
        if let Ok(chosen) = ChosenLaw::change(&mut law.clone(), &changes) {
            changes.extend(self.limits.beyond(&chosen));
        }
        // The law may be another one here than where it was asked for.
        match controlled.change(&mut law, &changes) {
            Ok(()) => tracing::info!(?changes, "the other side has asked for another law"),
            Err(fault) => tracing::debug!(%fault, "the other side asks for a law that cannot be"),
        }
    }
}

/// Ends the thread that answers, also where the receiver panics.
struct Ending<'a>(&'a AtomicBool, Thread);

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
        self.1.unpark();
    }
}

/// Answers `haul ctl` beside `receive`, which waits for the other side and for whoever reads stdout. `law` is that of
/// the sender, `moved` the bytes that have come.
pub(super) fn beside<T>(
    law: Option<Part>,
    controlled: &mut (impl Controlled + Send),
    moved: &AtomicU64,
    receive: impl FnOnce() -> T,
) -> T {
    let Some(mut socket) = ControlSocket::open(Side::Receives(law, None)) else { return receive() };
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
        receive()
    })
}
