//! Panics of micro-protocols: a panic ends the session with the name of the micro-protocol, and does not
//! unwind into the caller.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use haul_base::Time;

use crate::event::StackEvent;
use crate::protocol::{MicroProtocol, ProtocolStats, caught, text_of};
use crate::stack::Stack;

/// Drops each micro-protocol separately: a second panic would abort the process.
impl Drop for Stack {
    fn drop(&mut self) {
        for protocol in self.slots.drain(..) {
            // Nobody is left to receive the error.
            let _ = caught(|| drop(protocol));
        }
    }
}

impl Stack {
    /// Whether a micro-protocol has failed. A failed stack does nothing any more.
    pub fn has_failed(&self) -> bool {
        self.failed.get()
    }

    /// Calls `each` with the name and the counters of every micro-protocol.
    pub fn statistics(&self, mut each: impl FnMut(&str, &dyn ProtocolStats)) {
        let telling = Cell::new(false);
        for (slot, name) in self.slots.iter().zip(self.compiled.names()) {
            let Some(protocol) = slot else { continue };
            let mut tell = |stats: &dyn ProtocolStats| {
                telling.set(true);
                each(name, stats);
                telling.set(false);
            };
            match catch_unwind(AssertUnwindSafe(|| protocol.statistics(&mut tell))) {
                Ok(()) => {}
                // The panic comes from the caller's `each`, not from the micro-protocol.
                Err(panic) if telling.get() => resume_unwind(panic),
                Err(panic) => self.fail(name.to_owned(), text_of(&*panic)),
            }
        }
    }

    /// Packets and messages that the micro-protocols hold or have in flight. One that panics counts as
    /// unfinished.
    pub(crate) fn held(&self) -> usize {
        self.sum_of(|protocol| protocol.unfinished())
    }

    /// As [`Stack::held`], only what comes from the peer.
    pub(crate) fn held_incoming(&self) -> usize {
        self.sum_of(|protocol| protocol.unfinished_incoming())
    }

    fn sum_of(&self, question: impl Fn(&dyn MicroProtocol) -> usize) -> usize {
        let slots = self.slots.iter().zip(self.compiled.names());
        let present = slots.filter_map(|(slot, name)| Some((slot.as_deref()?, name)));
        let ask = |(protocol, name): (&dyn MicroProtocol, &str)| {
            caught(|| question(protocol)).unwrap_or_else(|text| {
                self.fail(name.to_owned(), text);
                1
            })
        };
        present.map(ask).sum()
    }

    /// Runs handlers. A panic ends this stack with the name of the micro-protocol, and affects nothing else.
    pub(crate) fn guarded<R>(&mut self, now: Time, work: impl FnOnce(&mut Self, Time) -> R) -> Option<R> {
        if self.has_failed() {
            return None;
        }
        let result = caught(|| {
            let result = work(self, now);
            // A failed stack may lack parts.
            if !self.has_failed() {
                self.run_delayed(now);
            }
            result
        });
        if self.core.failure.get_mut().is_some() {
            self.failed.set(true);
        }
        let running = usize::from(self.core.running);
        result.map_err(|text| self.fail(self.compiled.tables.names[running].clone(), text)).ok()
    }

    /// Records the first failure; later ones are ignored.
    pub(crate) fn fail(&self, protocol: String, message: String) {
        if !self.failed.replace(true) {
            self.core.failure.set(Some(Box::new(StackEvent::Failed { protocol, message })));
        }
    }
}
