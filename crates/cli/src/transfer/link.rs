//! The engine's control channel as the mover wants it. Beside the mover's messages it carries what each side has
//! counted, so that either side's report has both.

use std::collections::HashSet;
use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use haul_base::Rate;
use haul_engine::{Control, EngineError, Session, Transfer};
use haul_mover::ControlLink;
use haul_wire::control::{ControlMessage, Counted, Fault, Host};
use parking_lot::Mutex;

use crate::fault;
use crate::transfer::facts::{Cpu, Facts, counted};

/// Faults that are remembered: more than a report names.
const MOST_TOLD: usize = 10_000;

/// The control channel, what this side will tell of itself, and what the other side has told.
#[derive(Debug)]
pub(crate) struct Sides {
    pub(crate) control: Control,
    pub(crate) facts: Facts,
    started: Instant,
    state: Mutex<State>,
    hasher: RandomState,
}

#[derive(Debug, Default)]
struct State {
    transfer: Weak<Transfer>,
    theirs: Option<Counted>,
    /// What the receiver has assigned before there was a transfer.
    quota: Option<Rate>,
    /// Faults that this side has told the other one, of the first so many, by their hashes: a receiver says of an entry
    /// that the sender could not read why it failed.
    told: HashSet<u64>,
}

impl Sides {
    /// Of a session that begins now; `other` is the other machine.
    pub(crate) fn new(session: &Session, cpu: Cpu, other: &impl ToString) -> Arc<Self> {
        let facts = Facts::of(session, cpu, other);
        let (control, state) = (session.control().clone(), Mutex::default());
        Arc::new(Self { control, facts, started: Instant::now(), state, hasher: RandomState::new() })
    }

    /// Names the transfer that counts.
    pub(crate) fn watch(&self, transfer: &Arc<Transfer>) {
        let mut state = self.state.lock();
        state.transfer = Arc::downgrade(transfer);
        if let Some(rate) = state.quota {
            transfer.set_quota(rate);
        }
    }

    pub(crate) fn ours(&self) -> Counted {
        let transfer = self.state.lock().transfer.upgrade();
        transfer.map_or_else(Counted::default, |t| counted(&self.facts, &t, self.started.elapsed().into()))
    }

    /// Keeps the other side's numbers, or gives the message back if it is another one.
    pub(crate) fn take(&self, message: ControlMessage) -> Option<ControlMessage> {
        match message {
            ControlMessage::Counted(theirs) => {
                self.state.lock().theirs = Some(theirs);
                None
            }
            ControlMessage::Quota { rate_bps } => {
                let rate = Rate::from_bps(rate_bps);
                let transfer = {
                    let mut state = self.state.lock();
                    state.quota = Some(rate);
                    state.transfer.upgrade()
                };
                if let Some(transfer) = transfer {
                    transfer.set_quota(rate);
                }
                None
            }
            other => Some(other),
        }
    }

    /// An error of the session; one that the other side has told happened there.
    pub(crate) fn fault(&self, error: EngineError) -> Fault {
        let is_theirs = matches!(error, EngineError::Peer(_));
        let mut fault = fault::of(error);
        if is_theirs {
            self.place(&mut fault);
        }
        fault
    }

    /// A fault that the other side has told, with the machine that it happened on.
    pub(crate) fn place(&self, fault: &mut Fault) {
        let Some(other) = &self.facts.other else { return };
        let told = &self.state.lock().told;
        if told.contains(&self.hash(fault)) {
            fault.host = Some(Host::Here);
        } else if told.len() < MOST_TOLD {
            fault.host = Some(Host::Named(other.clone()));
        }
    }

    fn hash(&self, fault: &Fault) -> u64 {
        self.hasher.hash_one((fault.code, &fault.message, &fault.hint))
    }

    fn note(&self, mut message: ControlMessage) -> ControlMessage {
        let told = &mut self.state.lock().told;
        for fault in message.faults() {
            if told.len() < MOST_TOLD {
                told.insert(self.hash(fault));
            }
        }
        message
    }

    /// The other side's numbers, if it has told them.
    pub(crate) fn theirs(&self) -> Option<Counted> {
        self.state.lock().theirs.clone()
    }
}

impl ControlLink for Sides {
    fn send(&self, message: ControlMessage) -> Result<(), Fault> {
        if matches!(message, ControlMessage::Finish(_) | ControlMessage::Bye) {
            self.control.send(ControlMessage::Counted(self.ours())).map_err(|error| self.fault(error))?;
        }
        let noted = self.note(message);
        self.control.send(noted).map_err(|error| self.fault(error))
    }

    fn recv(&self, timeout: Duration) -> Result<Option<ControlMessage>, Fault> {
        let received = self.control.try_recv(timeout).map_err(|error| self.fault(error))?;
        let Some(mut message) = received else { return Ok(None) };
        message.faults().into_iter().for_each(|fault| self.place(fault));
        Ok(self.take(message))
    }
}
