//! A stream of equal UDP packets.

use haul_base::{Ecn, PathId, Rate, Rng, Span, Time};
use serde::{Deserialize, Serialize};

use super::Spacing;
use crate::stage::{Distribution, exponential};
use crate::world::{Arrival, Node, Outbox};

/// Arrival pattern.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Pattern {
    /// At equal intervals.
    #[default]
    Constant,
    /// At random (exponential intervals), `rate` on average.
    Poisson,
    /// In bursts of equal intervals, with pauses; `rate` is the rate within a burst.
    OnOff {
        /// Length of a burst.
        on: Distribution,
        /// Length of a pause.
        off: Distribution,
    },
}

/// A stream of UDP packets.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct UdpSourceSpec {
    /// Bits per second, counting whole IP packets.
    #[serde(with = "crate::text")]
    pub rate: Rate,
    /// Bytes of each IP packet.
    #[serde(default = "default_packet")]
    pub packet: u32,
    /// Arrival pattern.
    #[serde(default)]
    pub pattern: Pattern,
    /// Start of the stream.
    #[serde(with = "crate::text", default)]
    pub start: Span,
    /// Duration; endless if absent.
    #[serde(with = "crate::text::optional", default, skip_serializing_if = "Option::is_none")]
    pub length: Option<Span>,
}

pub(super) fn default_packet() -> u32 {
    1_500
}

impl UdpSourceSpec {
    /// Returns an endless constant stream of 1,500-byte packets.
    pub fn constant(rate: Rate) -> Self {
        let (packet, pattern) = (default_packet(), Pattern::Constant);
        Self { rate, packet, pattern, start: Span::ZERO, length: None }
    }
}

/// Sends such a stream on port 0.
#[derive(Debug)]
pub struct UdpSource {
    spec: UdpSourceSpec,
    spacing: Spacing,
    rng: Rng,
    next: Time,
    burst_ends: Option<Time>,
}

impl UdpSource {
    /// Creates a source whose random times follow from `seed`.
    pub fn new(spec: UdpSourceSpec, seed: u64) -> Self {
        let mut rng = Rng::from_seed(seed);
        let start = Time::ZERO + spec.start;
        let burst_ends = match spec.pattern {
            Pattern::OnOff { on, .. } => Some(start + on.draw(&mut rng)),
            _ => None,
        };
        let spacing = Spacing::new(spec.packet, spec.rate);
        let mut source = Self { spec, spacing, rng, next: start, burst_ends };
        if spec.pattern == Pattern::Poisson {
            source.step();
        }
        source
    }

    /// Schedules the next packet after the due one has been sent.
    fn step(&mut self) {
        self.next = match self.spec.pattern {
            Pattern::Constant | Pattern::OnOff { .. } => self.next + self.spacing.next(),
            Pattern::Poisson => self.next + self.spacing.mean().mul_f64(exponential(&mut self.rng)),
        };
        let Pattern::OnOff { on, off } = self.spec.pattern else {
            return;
        };
        while let Some(end) = self.burst_ends.filter(|end| self.next >= *end) {
            let start = end + off.draw(&mut self.rng);
            // At least 1 ns, or zero-length pauses and bursts would loop forever.
            self.burst_ends = Some((start + on.draw(&mut self.rng)).max(end + Span::from_nanos(1)));
            self.next = self.next.max(start);
        }
    }
}

impl Node for UdpSource {
    fn on_arrival(&mut self, _: Time, _: &mut Arrival<'_>, _: &mut Outbox<'_>) {}

    fn on_deadline(&mut self, now: Time, out: &mut Outbox<'_>) {
        while self.deadline().is_some_and(|at| at <= now) {
            out.send(PathId::default(), self.spec.packet, 1, Ecn::NotEct, &[]);
            self.step();
        }
    }

    fn deadline(&self) -> Option<Time> {
        let end = self.spec.length.map(|length| Time::ZERO + self.spec.start + length);
        end.is_none_or(|end| self.next < end).then_some(self.next)
    }
}
