//! Textual specification of paths and changes, and its validation.

use std::fmt;

use haul_base::{Probability, Rate, Rng, Span};
use serde::{Deserialize, Serialize};

use super::bottleneck::Bottleneck;
use super::corruption::Corruption;
use super::delay::Delay;
use super::duplication::Duplication;
use super::gilbert_elliott::GilbertElliott;
use super::jitter::Jitter;
use super::loss::Loss;
use super::mtu::Mtu;
use super::outages::Outages;
use super::policer::Policer;
use super::reordering::Reordering;
use super::{
    BottleneckSpec, BurstLossSpec, CorruptionSpec, GilbertElliottSpec, JitterSpec, Outage, PolicerSpec,
    QueueSpec, ReorderingSpec, Stage, StageChange,
};

/// A path as a list of stages, the first one at the sender.
///
/// ```toml
/// stages = [
///     { bottleneck = { rate = "1Gbit", queue = { tail_drop = "1MB" } } },
///     { loss = "0.1%" },
///     { delay = "25ms" },
/// ]
/// ```
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PathSpec {
    /// Stages in the order in which packets pass them.
    pub stages: Vec<StageSpec>,
}

/// One stage.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StageSpec {
    /// Delays every packet by this time.
    Delay(#[serde(with = "crate::text")] Span),
    /// Rate limit with a queue.
    Bottleneck(BottleneckSpec),
    /// Drops packets that exceed a rate and burst.
    Policer(PolicerSpec),
    /// Independent loss with this probability.
    Loss(#[serde(with = "crate::text")] Probability),
    /// Burst loss, specified by the channel's probabilities.
    GilbertElliott(GilbertElliottSpec),
    /// Burst loss, specified by share and mean run length.
    BurstLoss(BurstLossSpec),
    /// Periods in which every packet is dropped.
    Outages(Vec<Outage>),
    /// Random delay.
    Jitter(JitterSpec),
    /// Delays some packets so that later ones overtake them.
    Reordering(ReorderingSpec),
    /// Duplicates packets with this probability.
    Duplication(#[serde(with = "crate::text")] Probability),
    /// Damages some packets.
    Corruption(CorruptionSpec),
    /// Drops IP packets longer than this, in bytes.
    Mtu(u32),
}

/// Refers to a stage by index or name: its kind, or `delay-2` and so on for further stages of a kind.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum StageRef {
    /// Index in the path, from 0.
    Index(usize),
    /// Name of the stage.
    Name(String),
}

impl fmt::Display for StageRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Index(index) => write!(f, "number {index}"),
            Self::Name(name) => write!(f, "`{name}`"),
        }
    }
}

/// Error of building or changing a path.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SpecError {
    /// A parameter of a stage is invalid.
    #[error("stage {index} ({kind}): {problem}")]
    Stage {
        /// Index of the stage in the path, from 0.
        index: usize,
        /// Kind of the stage.
        kind: &'static str,
        /// Description of the problem and the permitted values.
        problem: String,
    },
    /// No stage has that name or index; the text lists the existing names.
    #[error("this path has no stage {0}; it has: {1}")]
    NoStage(StageRef, String),
    /// The stage does not support this kind of change.
    #[error("stage `{stage}` cannot take the change `{change}`; it takes: {takes}")]
    WrongChange {
        /// Name of the stage.
        stage: String,
        /// Kind of the requested change.
        change: &'static str,
        /// Kinds of changes that the stage supports.
        takes: &'static str,
    },
    /// A parameter of the change is invalid.
    #[error("change `{change}`: {problem}")]
    Change {
        /// Kind of the requested change.
        change: &'static str,
        /// Description of the problem and the permitted values.
        problem: String,
    },
}

/// Minimum MTU of a link that carries IPv4 (RFC 791).
const MIN_MTU: u32 = 68;

impl StageSpec {
    /// Returns the name of the kind, as written in specifications.
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::Delay(_) => "delay",
            Self::Bottleneck(_) => "bottleneck",
            Self::Policer(_) => "policer",
            Self::Loss(_) => "loss",
            Self::GilbertElliott(_) => "gilbert_elliott",
            Self::BurstLoss(_) => "burst_loss",
            Self::Outages(_) => "outages",
            Self::Jitter(_) => "jitter",
            Self::Reordering(_) => "reordering",
            Self::Duplication(_) => "duplication",
            Self::Corruption(_) => "corruption",
            Self::Mtu(_) => "mtu",
        }
    }

    fn problem(&self) -> Option<String> {
        match self {
            Self::Bottleneck(spec) => rate_problem(spec.rate).or_else(|| queue_problem(&spec.queue)),
            Self::Policer(spec) => policer_problem(spec),
            Self::BurstLoss(spec) => burst_problem(spec),
            Self::Outages(schedule) => outages_problem(schedule),
            Self::Jitter(spec) => spec.delay.problem().map(str::to_owned),
            Self::Reordering(spec) => spec.extra.problem().map(str::to_owned),
            Self::Mtu(longest) => mtu_problem(*longest),
            _ => None,
        }
    }

    pub(crate) fn build(&self, seed: u64) -> Box<dyn Stage> {
        let rng = Rng::from_seed(seed);
        match self {
            Self::Delay(delay) => Box::new(Delay::new(*delay)),
            Self::Bottleneck(spec) => Box::new(Bottleneck::new(spec, rng)),
            Self::Policer(spec) => Box::new(Policer::new(*spec)),
            Self::Loss(p) => Box::new(Loss::new(*p, rng)),
            Self::GilbertElliott(spec) => Box::new(GilbertElliott::new(spec, rng)),
            Self::BurstLoss(spec) => match spec.channel() {
                Some(channel) => Box::new(GilbertElliott::new(&channel, rng)),
                None => Box::new(Loss::new(spec.share, rng)),
            },
            Self::Outages(schedule) => Box::new(Outages::new(schedule.clone())),
            Self::Jitter(spec) => Box::new(Jitter::new(*spec, rng)),
            Self::Reordering(spec) => Box::new(Reordering::new(spec, rng)),
            Self::Duplication(p) => Box::new(Duplication::new(*p, rng)),
            Self::Corruption(spec) => Box::new(Corruption::new(*spec, rng)),
            Self::Mtu(longest) => Box::new(Mtu::new(*longest)),
        }
    }

    /// Returns the changes that a stage of this kind supports.
    pub(crate) const fn takes(&self) -> &'static str {
        match self {
            Self::Delay(_) => "delay",
            Self::Bottleneck(_) => "rate, queue, bottleneck",
            Self::Policer(_) => "policer",
            Self::Loss(_) | Self::Duplication(_) => "share",
            Self::GilbertElliott(_) | Self::BurstLoss(_) => "gilbert_elliott, burst_loss",
            Self::Outages(_) => "outage, outages",
            Self::Jitter(_) => "jitter",
            Self::Reordering(_) => "share, reordering",
            Self::Corruption(_) => "share, corruption",
            Self::Mtu(_) => "mtu",
        }
    }
}

impl PathSpec {
    /// Validates the specification.
    ///
    /// # Errors
    /// [`SpecError::Stage`] for the first stage with an invalid parameter.
    pub fn check(&self) -> Result<(), SpecError> {
        for (index, stage) in self.stages.iter().enumerate() {
            if let Some(problem) = stage.problem() {
                return Err(SpecError::Stage { index, kind: stage.kind(), problem });
            }
        }
        Ok(())
    }
}

impl StageChange {
    /// Returns the name of the change, as written in specifications.
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::Delay(_) => "delay",
            Self::Rate(_) => "rate",
            Self::Queue(_) => "queue",
            Self::Bottleneck(_) => "bottleneck",
            Self::Policer(_) => "policer",
            Self::Share(_) => "share",
            Self::GilbertElliott(_) => "gilbert_elliott",
            Self::BurstLoss(_) => "burst_loss",
            Self::Outage(_) => "outage",
            Self::Outages(_) => "outages",
            Self::Jitter(_) => "jitter",
            Self::Reordering(_) => "reordering",
            Self::Corruption(_) => "corruption",
            Self::Mtu(_) => "mtu",
        }
    }

    /// Validates the parameters of the change.
    ///
    /// # Errors
    /// [`SpecError::Change`] if one is invalid.
    pub fn check(&self) -> Result<(), SpecError> {
        let problem = match self {
            Self::Rate(rate) => rate_problem(*rate),
            Self::Queue(queue) => queue_problem(queue),
            Self::Bottleneck(spec) => rate_problem(spec.rate).or_else(|| queue_problem(&spec.queue)),
            Self::Policer(spec) => policer_problem(spec),
            Self::BurstLoss(spec) => burst_problem(spec),
            Self::Outages(schedule) => outages_problem(schedule),
            Self::Jitter(spec) => spec.delay.problem().map(str::to_owned),
            Self::Reordering(spec) => spec.extra.problem().map(str::to_owned),
            Self::Mtu(longest) => mtu_problem(*longest),
            _ => None,
        };
        problem.map_or(Ok(()), |problem| Err(SpecError::Change { change: self.kind(), problem }))
    }
}

fn rate_problem(rate: Rate) -> Option<String> {
    (rate == Rate::ZERO).then(|| "the rate must be above zero; for a dead link use `outages`".to_owned())
}

fn queue_problem(queue: &QueueSpec) -> Option<String> {
    let limit = match queue {
        QueueSpec::TailDrop(limit) => limit,
        QueueSpec::Red(red) => {
            if red.min.0 == 0 || red.min >= red.max {
                return Some("RED needs 0 < min < max".to_owned());
            }
            if !(red.weight > 0.0 && red.weight <= 1.0) {
                return Some("RED's weight must be above 0 and at most 1".to_owned());
            }
            &red.limit
        }
        QueueSpec::Codel(codel) => {
            if codel.interval == Span::ZERO {
                return Some("CoDel's interval must be above zero".to_owned());
            }
            &codel.limit
        }
    };
    limit.is_zero().then(|| "the queue's limit must be above zero, or no packet can pass".to_owned())
}

/// Longest IP packet: a smaller bucket would never let it pass.
const MAX_PACKET: u64 = 1_500;

fn policer_problem(spec: &PolicerSpec) -> Option<String> {
    let has_room = spec.burst.0 >= MAX_PACKET;
    let burst = || format!("a burst must have at least {MAX_PACKET} bytes, or whole packets never pass");
    rate_problem(spec.rate).or_else(|| (!has_room).then(burst))
}

fn burst_problem(spec: &BurstLossSpec) -> Option<String> {
    if !(spec.mean_run >= 1.0 && spec.mean_run.is_finite()) {
        return Some("`mean_run` must be at least 1 packet".to_owned());
    }
    spec.channel().is_none().then(|| {
        let most = spec.mean_run / (1.0 + spec.mean_run);
        format!("with runs of {} packets at most {most:.3} of the packets can be lost", spec.mean_run)
    })
}

fn outages_problem(schedule: &[Outage]) -> Option<String> {
    let endless = |outage: &&Outage| outage.every.is_some_and(|every| every <= outage.length);
    schedule
        .iter()
        .find(endless)
        .map(|_| "`every` must be longer than `length`, or the outage never ends".to_owned())
}

fn mtu_problem(longest: u32) -> Option<String> {
    (longest < MIN_MTU).then(|| format!("an MTU must be at least {MIN_MTU} bytes"))
}
