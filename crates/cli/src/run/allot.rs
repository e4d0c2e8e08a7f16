//! Many to one: what a receiver can take is divided among those who send to it at the same time.

use std::num::NonZeroU32;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use haul_base::{Rate, Span};
use haul_engine::{Control, Counters, Transfer};
use haul_proto::group::{Allotter, SenderId};
use haul_wire::control::ControlMessage;

/// A round lasts so long: some round trips of any path, so that what is measured was sent at the new rate.
const ROUND: Duration = Duration::from_millis(500);

/// Somebody who sends.
#[derive(Debug)]
struct Member {
    id: SenderId,
    control: Control,
    transfer: Weak<Transfer>,
    /// Object bytes that had come from it when the last round ended.
    bytes: u64,
    /// What it was told.
    told: Option<Rate>,
}

#[derive(Debug)]
struct Table {
    allotter: Allotter,
    members: Vec<Member>,
    since: Instant,
}

/// See the module's text. Without a capacity everybody sends as fast as its path permits.
#[derive(Clone, Debug, Default)]
pub struct Allotments(Option<Arc<Mutex<Table>>>);

/// A sender's part, until this is dropped.
#[derive(Debug)]
pub(super) struct Part {
    table: Arc<Mutex<Table>>,
    id: SenderId,
}

fn lock(table: &Mutex<Table>) -> MutexGuard<'_, Table> {
    table.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Allotments {
    /// Of what is received at `capacity` altogether, UDP payload.
    pub(super) fn new(capacity: Option<Rate>) -> Self {
        Self(capacity.map(|capacity| {
            let allotter = Allotter::new(capacity);
            Arc::new(Mutex::new(Table { allotter, members: Vec::new(), since: Instant::now() }))
        }))
    }

    /// Another sender. From now on all have less.
    pub(super) fn join(&self, control: &Control, transfer: &Arc<Transfer>) -> Option<Part> {
        let table = self.0.clone()?;
        let mut open = lock(&table);
        let id = open.allotter.add(NonZeroU32::MIN);
        let (control, transfer) = (control.clone(), Arc::downgrade(transfer));
        open.members.push(Member { id, control, transfer, bytes: 0, told: None });
        open.share();
        drop(open);
        Some(Part { table, id })
    }
}

impl Part {
    /// Ends a round if it is time to. To be called often.
    pub(super) fn look(&self) {
        let mut table = lock(&self.table);
        if table.since.elapsed() >= ROUND {
            table.end_round();
        }
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        let mut table = lock(&self.table);
        table.allotter.remove(self.id);
        table.members.retain(|member| member.id != self.id);
        table.share();
    }
}

impl Table {
    /// Somebody has come or gone: until it is known who wants what, all count alike.
    fn share(&mut self) {
        self.since = Instant::now();
        for member in &mut self.members {
            member.bytes = member.received();
        }
        self.allotter.round(|_| Rate::MAX);
        self.tell();
    }

    fn end_round(&mut self) {
        let elapsed = Span::from(self.since.elapsed());
        self.since = Instant::now();
        let mut used = Vec::with_capacity(self.members.len());
        for member in &mut self.members {
            let bytes = member.received();
            used.push((member.id, Rate::from_transfer(bytes.saturating_sub(member.bytes), elapsed)));
            member.bytes = bytes;
        }
        let measured = |id| used.iter().find(|(known, _)| *known == id).map_or(Rate::ZERO, |(_, rate)| *rate);
        self.allotter.round(measured);
        self.tell();
    }

    fn tell(&mut self) {
        for member in &mut self.members {
            member.tell(self.allotter.allotted(member.id));
        }
    }
}

impl Member {
    fn received(&self) -> u64 {
        match self.transfer.upgrade().and_then(|transfer| transfer.counters()) {
            Some(Counters::Receiving(stats)) => stats.object_bytes,
            _ => self.bytes,
        }
    }

    fn tell(&mut self, rate: Option<Rate>) {
        if let Some(rate) = rate.filter(|_| self.told != rate) {
            self.told = Some(rate);
            // A session that has ended needs no rate.
            let _ = self.control.send(ControlMessage::Allot { rate_bps: rate.as_bps() });
        }
    }
}
