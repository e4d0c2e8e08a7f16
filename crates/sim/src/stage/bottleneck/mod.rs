//! A rate-limited link with a queue.

mod codel;
mod limit;
mod red;
mod signal;

use std::collections::VecDeque;

use haul_base::{Rate, Rng, Span, Time};
use serde::{Deserialize, Serialize};

use super::{Emitter, Stage, StageChange};
use crate::parcel::{DropReason, Parcel};
use codel::{Codel, Verdict};
use red::Red;

pub use codel::CodelSpec;
pub use limit::{Limit, StandingQueue};
pub use red::{AboveMaximum, RedSpec};
pub use signal::Signal;

/// A rate-limited link with a queue.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BottleneckSpec {
    /// Bits per second, counting whole IP packets.
    #[serde(with = "crate::text")]
    pub rate: Rate,
    /// Discipline for packets that cannot be sent immediately.
    pub queue: QueueSpec,
}

/// Queue discipline and its limit.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum QueueSpec {
    /// Accepts what fits and drops the rest.
    TailDrop(#[serde(with = "crate::text")] Limit),
    /// Random early detection.
    Red(RedSpec),
    /// Controlled delay.
    Codel(CodelSpec),
}

#[derive(Debug)]
enum Discipline {
    TailDrop,
    Red(Red),
    Codel(Codel),
}

/// A queued parcel.
#[derive(Clone, Copy, Debug)]
struct Waiting {
    parcel: Parcel,
    since: Time,
}

/// The parcel being sent.
#[derive(Clone, Copy, Debug)]
struct Serving {
    parcel: Parcel,
    done: Time,
}

/// Maximum time for which packets of a batch are served as one. A longer batch leaves in parts, each when its
/// last packet has been sent: as a whole it would arrive late, and acknowledging it all at once would make
/// the next batch as long. `haul-lab wan` splits GSO packets in the same way.
const MAX_GRANULARITY: Span = Span::from_micros(100);

/// Single server with a fixed rate and a queue. Batches are served in parts of at most [`MAX_GRANULARITY`].
#[derive(Debug)]
pub(super) struct Bottleneck {
    rate: Rate,
    /// Bytes sent in [`MAX_GRANULARITY`].
    granularity: u64,
    limit: Limit,
    discipline: Discipline,
    waiting: VecDeque<Waiting>,
    waiting_bytes: u64,
    waiting_packets: u64,
    serving: Option<Serving>,
    /// Remainder of rounding to nanoseconds in this busy period: bits x 10^9, less than `rate`.
    remainder: u64,
    rng: Rng,
}

/// A byte in units of bits x nanoseconds per second.
const BYTE: u64 = 8_000_000_000;

impl Bottleneck {
    pub(super) fn new(spec: &BottleneckSpec, rng: Rng) -> Self {
        let mut bottleneck = Self {
            rate: spec.rate,
            granularity: spec.rate.bytes_in(MAX_GRANULARITY),
            limit: Limit::Packets(1),
            discipline: Discipline::TailDrop,
            waiting: VecDeque::with_capacity(1_024),
            waiting_bytes: 0,
            waiting_packets: 0,
            serving: None,
            remainder: 0,
            rng,
        };
        bottleneck.set_queue(&spec.queue);
        bottleneck
    }

    fn set_queue(&mut self, queue: &QueueSpec) {
        (self.limit, self.discipline) = match *queue {
            QueueSpec::TailDrop(limit) => (limit, Discipline::TailDrop),
            QueueSpec::Red(spec) => (spec.limit, Discipline::Red(Red::new(spec, self.rng.clone()))),
            QueueSpec::Codel(spec) => (spec.limit, Discipline::Codel(Codel::new(spec))),
        };
    }

    /// Returns the unsent part of the parcel being sent.
    fn unsent(&self, now: Time) -> StandingQueue {
        let Some(Serving { parcel, done }) = self.serving else {
            return StandingQueue { bytes: 0, packets: 0 };
        };
        let nanos = done.since(now).as_nanos();
        let bytes = match nanos.checked_mul(self.rate.as_bps()) {
            Some(bits) => bits.div_ceil(BYTE),
            None => self.rate.bytes_in(Span::from_nanos(nanos)),
        };
        let bytes = bytes.min(parcel.bytes());
        let each = u64::from(parcel.bytes_of(0)).max(1);
        StandingQueue { bytes, packets: bytes.div_ceil(each).min(parcel.packets().into()) }
    }

    fn queue(&self, now: Time) -> StandingQueue {
        let unsent = self.unsent(now);
        StandingQueue {
            bytes: self.waiting_bytes + unsent.bytes,
            packets: self.waiting_packets + unsent.packets,
        }
    }

    /// Returns the leading packets of the parcel that fit within the limit.
    fn room(&self, mut queue: StandingQueue, parcel: &Parcel) -> u64 {
        let with_parcel = StandingQueue {
            bytes: queue.bytes + parcel.bytes(),
            packets: queue.packets + u64::from(parcel.packets()),
        };
        if self.limit.allows(with_parcel, self.rate) {
            return parcel.present();
        }
        let mut taken = 0;
        for index in parcel.indices() {
            let bytes = queue.bytes + u64::from(parcel.bytes_of(index));
            let longer = StandingQueue { bytes, packets: queue.packets + 1 };
            if self.limit.allows(longer, self.rate) {
                queue = longer;
                taken |= 1 << index;
            }
        }
        taken
    }

    fn enqueue(&mut self, now: Time, parcel: Parcel) {
        if parcel.is_empty() {
            return;
        }
        self.waiting_bytes += parcel.bytes();
        self.waiting_packets += u64::from(parcel.packets());
        self.waiting.push_back(Waiting { parcel, since: now });
    }

    /// Removes the next packets to serve: the front of the first parcel. `CoDel` examines each packet.
    fn dequeue(&mut self) -> Option<Waiting> {
        let front = self.waiting.front_mut()?;
        let most = match self.discipline {
            Discipline::Codel(_) => 1,
            _ => (self.granularity / u64::from(front.parcel.bytes_of(0)).max(1)).max(1),
        };
        let taken = if u64::from(front.parcel.packets()) > most {
            let first = front.parcel.first(most as u32);
            let taken = Waiting { parcel: first, ..*front };
            front.parcel = front.parcel.without(first.present());
            taken
        } else {
            self.waiting.pop_front()?
        };
        self.waiting_bytes -= taken.parcel.bytes();
        self.waiting_packets -= u64::from(taken.parcel.packets());
        Some(taken)
    }

    fn serve_next(&mut self, now: Time, out: &mut Emitter<'_>) {
        self.serving = None;
        while let Some(Waiting { mut parcel, since }) = self.dequeue() {
            if let Discipline::Codel(codel) = &mut self.discipline {
                match codel.decide(now, now.since(since), self.waiting_bytes, &parcel) {
                    Verdict::Send => {}
                    Verdict::Mark => {
                        out.count_marked(parcel.packets());
                        parcel = parcel.marked();
                    }
                    Verdict::Drop => {
                        out.drop(parcel, DropReason::Codel);
                        continue;
                    }
                }
            }
            let done = now + self.time_for(parcel.bytes());
            self.serving = Some(Serving { parcel, done });
            return;
        }
        self.remainder = 0;
        if let Discipline::Red(red) = &mut self.discipline {
            red.on_idle(now);
        }
    }

    /// Returns the transmission time of `bytes`, exact to the nanosecond over a busy period.
    fn time_for(&mut self, bytes: u64) -> Span {
        let rate = self.rate.as_bps().max(1);
        let Some(work) = bytes.checked_mul(BYTE).and_then(|work| work.checked_add(self.remainder)) else {
            return self.rate.time_for(bytes);
        };
        self.remainder = work % rate;
        Span::from_nanos(work / rate)
    }

    fn set_rate(&mut self, now: Time, rate: Rate) {
        let unsent_bytes = self.unsent(now).bytes;
        self.rate = rate;
        self.granularity = rate.bytes_in(MAX_GRANULARITY);
        self.remainder = 0;
        if self.serving.is_some() {
            let done = now + self.time_for(unsent_bytes);
            self.serving = self.serving.map(|serving| Serving { done, ..serving });
        }
    }
}

impl Stage for Bottleneck {
    fn admit(&mut self, now: Time, parcel: Parcel, out: &mut Emitter<'_>) {
        let queue = self.queue(now);
        let fits = self.room(queue, &parcel);
        out.drop(parcel.without(fits), DropReason::QueueFull);
        let parcel = parcel.only(fits);
        if let Discipline::Red(red) = &mut self.discipline {
            let decision = red.decide(now, queue.bytes, &parcel, self.rate);
            out.drop(parcel.only(decision.dropped), DropReason::Red);
            out.count_marked((parcel.present() & decision.marked).count_ones());
            for (part, is_marked) in parcel.without(decision.dropped).cut(decision.marked) {
                self.enqueue(now, if is_marked { part.marked() } else { part });
            }
        } else {
            self.enqueue(now, parcel);
        }
        if self.serving.is_none() {
            self.serve_next(now, out);
        }
    }

    fn next_event(&self) -> Option<Time> {
        self.serving.map(|serving| serving.done)
    }

    fn on_event(&mut self, now: Time, out: &mut Emitter<'_>) {
        if let Some(serving) = self.serving.filter(|serving| serving.done <= now) {
            out.pass(serving.parcel);
            self.serve_next(now, out);
        }
    }

    fn held(&self) -> u64 {
        self.waiting_packets + self.serving.map_or(0, |serving| u64::from(serving.parcel.packets()))
    }

    fn standing_queue(&self, now: Time) -> Option<StandingQueue> {
        Some(self.queue(now))
    }

    fn change(&mut self, now: Time, change: &StageChange) -> bool {
        match change {
            StageChange::Rate(rate) => self.set_rate(now, *rate),
            StageChange::Queue(queue) => self.set_queue(queue),
            StageChange::Bottleneck(spec) => {
                self.set_rate(now, spec.rate);
                self.set_queue(&spec.queue);
            }
            _ => return false,
        }
        true
    }
}
