//! Converts options to stages of both directions, and changes to stage changes.

use std::fs;
use std::path::Path as FilePath;

use haul_base::{Bytes, Probability, Rate, Span};
use haul_sim::{
    BottleneckSpec, BurstLossSpec, CodelSpec, CorruptionSpec, Distribution, Effect, GilbertElliottSpec,
    JitterSpec, Limit, Order, Outage, PathSpec, QueueSpec, RedSpec, ReorderingSpec, Signal, StageChange,
    StageRef, StageSpec,
};
use haul_wan::PathDirection;
use serde::{Deserialize, Serialize};

use super::args::PathArgs;
use super::change::{Change, Setting};
use super::values::{Aqm, Bursts, OutageTime, Policing, QueueSize, Reorder, Share};
use crate::problem::Problem;

/// Minimum capacity, in packets, of a queue given in bandwidth-delay products.
const MIN_QUEUE_PACKETS: u64 = 64;

/// Both directions.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Plan {
    /// From A to B.
    pub forth: PathSpec,
    /// From B to A; the same as `forth` if a file does not specify it.
    pub back: PathSpec,
}

/// Contents of a path file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct PlanFile {
    forth: PathSpec,
    back: Option<PathSpec>,
}

/// One direction as described by the options.
#[derive(Debug, Clone)]
pub(crate) struct Direction {
    /// Half of the round-trip time.
    pub delay: Span,
    /// Round-trip time.
    pub rtt: Span,
    /// Rate of the bottleneck; `Rate::MAX` for none.
    pub rate: Rate,
    /// Capacity of the bottleneck's queue.
    pub queue: QueueSize,
    /// Queue management.
    pub aqm: Option<Aqm>,
    /// Policer before the bottleneck.
    pub policer: Option<Policing>,
    /// Random loss.
    pub loss: Probability,
    /// Burst loss.
    pub bursts: Option<Bursts>,
    /// Maximum extra delay.
    pub jitter: Option<Span>,
    /// Reordering.
    pub reorder: Option<Reorder>,
    /// Duplication.
    pub duplicate: Option<Share>,
    /// Bit errors.
    pub corrupt: Option<Share>,
    /// Outages.
    pub outages: Vec<OutageTime>,
    /// MTU of the path.
    pub path_mtu: Option<u32>,
    /// MTU of the devices.
    pub mtu: u32,
}

impl Direction {
    /// Returns the direction from A to B.
    pub(crate) fn forth(args: &PathArgs, mtu: u32) -> Self {
        let share = |share: Option<Share>| share.map_or(Probability::ZERO, |Share(p)| p);
        Self {
            delay: args.rtt / 2,
            rtt: args.rtt,
            rate: args.rate,
            queue: args.queue,
            aqm: args.aqm,
            policer: args.policer,
            loss: share(args.loss),
            bursts: args.burst_loss,
            jitter: args.jitter,
            reorder: args.reorder,
            duplicate: args.duplicate,
            corrupt: args.corrupt,
            outages: args.outage.clone(),
            path_mtu: args.path_mtu,
            mtu,
        }
    }

    /// Returns the direction from B to A: equal to the other one, except for options that specify it.
    pub(crate) fn back(args: &PathArgs, mtu: u32) -> Self {
        let forth = Self::forth(args, mtu);
        Self {
            // The rest, if the number of nanoseconds is odd.
            delay: args.rtt.saturating_sub(forth.delay),
            rate: args.rate_back.unwrap_or(forth.rate),
            queue: args.queue_back.unwrap_or(forth.queue),
            aqm: args.aqm_back.or(forth.aqm),
            policer: args.policer_back.or(forth.policer),
            loss: args.loss_back.map_or(forth.loss, |Share(p)| p),
            bursts: args.burst_loss_back.or(forth.bursts),
            jitter: args.jitter_back.or(forth.jitter),
            reorder: args.reorder_back.or(forth.reorder),
            duplicate: args.duplicate_back.or(forth.duplicate),
            corrupt: args.corrupt_back.or(forth.corrupt),
            outages: if args.outage_back.is_empty() { forth.outages } else { args.outage_back.clone() },
            ..forth
        }
    }

    /// Returns the queue in front of the bottleneck.
    pub(crate) fn queue_spec(&self) -> QueueSpec {
        let least = Bytes(MIN_QUEUE_PACKETS * u64::from(self.mtu));
        let bdp = |factor| Bytes(self.rate.mul_f64(factor).bytes_in(self.rtt)).max(least);
        let limit = match self.queue {
            QueueSize::Bdp(factor) => Limit::Bytes(bdp(factor)),
            QueueSize::Bytes(bytes) => Limit::Bytes(bytes),
            QueueSize::Time(time) => Limit::Time(time),
            QueueSize::Packets(packets) => Limit::Packets(packets),
        };
        match self.aqm {
            None => QueueSpec::TailDrop(limit),
            Some(Aqm::Codel) => QueueSpec::Codel(CodelSpec {
                target: Span::from_millis(5),
                interval: Span::from_millis(100),
                limit,
                signal: Signal::Mark,
            }),
            Some(Aqm::Red) => QueueSpec::Red(self.red(limit)),
        }
    }

    /// Returns RED with thresholds at a sixth and a half of the queue. A ratio of three is Floyd's advice
    /// (1997, "RED: discussions of setting parameters").
    fn red(&self, limit: Limit) -> RedSpec {
        let bytes = match limit {
            Limit::Bytes(bytes) => bytes.0,
            Limit::Packets(packets) => packets * u64::from(self.mtu),
            Limit::Time(time) => self.rate.bytes_in(time),
        };
        RedSpec {
            min: Bytes((bytes / 6).max(1)),
            max: Bytes((bytes / 2).max(2)),
            probability: Probability::new(0.1).unwrap_or_default(),
            weight: 0.002,
            limit,
            above_max: haul_sim::AboveMaximum::Gentle,
            signal: Signal::Mark,
        }
    }

    /// Returns the stages for random loss: in bursts, or independent per packet.
    fn loss_stages(&self) -> Vec<StageSpec> {
        let share = Probability::new(self.loss.get()).unwrap_or_default();
        match self.bursts {
            None => vec![StageSpec::Loss(share)],
            Some(Bursts::Length(mean_run)) => vec![StageSpec::BurstLoss(BurstLossSpec { share, mean_run })],
            Some(Bursts::Channel { begins, ends }) => {
                let channel = GilbertElliottSpec {
                    to_bad: begins,
                    to_good: ends,
                    loss_good: Probability::ZERO,
                    loss_bad: Probability::new(1.0).unwrap_or_default(),
                };
                vec![StageSpec::GilbertElliott(channel), StageSpec::Loss(share)]
            }
        }
    }

    /// Returns jitter that is uniform from zero to `most`.
    pub(crate) fn jitter_spec(most: Span) -> JitterSpec {
        JitterSpec { delay: Distribution::Uniform(most), order: Order::Keep }
    }

    /// Returns reordering by up to the given time, or 10 % of the round-trip time (at least 1 ms).
    pub(crate) fn reordering_spec(&self, reorder: Reorder) -> ReorderingSpec {
        let extra = reorder.extra.unwrap_or((self.rtt / 10).max(Span::from_millis(1)));
        ReorderingSpec { share: reorder.share.0, extra: Distribution::Uniform(extra) }
    }

    /// Returns the stages in the order in which packets pass them. Loss and outages are always included so
    /// that they can be changed at any time; stages that process packets singly are included on request only.
    fn spec(&self) -> PathSpec {
        let mut stages = Vec::new();
        stages.extend(self.path_mtu.map(StageSpec::Mtu));
        let outages = self.outages.iter();
        let outage = |o: &OutageTime| Outage { at: o.at, length: o.length, every: o.every };
        stages.push(StageSpec::Outages(outages.map(outage).collect()));
        stages.extend(self.policer.map(|Policing(spec)| StageSpec::Policer(spec)));
        if self.rate != Rate::MAX {
            let bottleneck = BottleneckSpec { rate: self.rate, queue: self.queue_spec() };
            stages.push(StageSpec::Bottleneck(bottleneck));
        }
        stages.extend(self.loss_stages());
        let corruption =
            |share: Share| StageSpec::Corruption(CorruptionSpec { share: share.0, effect: Effect::Flip });
        stages.extend(self.corrupt.map(corruption));
        stages.push(StageSpec::Delay(self.delay));
        stages.extend(self.jitter.map(|most| StageSpec::Jitter(Self::jitter_spec(most))));
        stages.extend(self.reorder.map(|reorder| StageSpec::Reordering(self.reordering_spec(reorder))));
        stages.extend(self.duplicate.map(|share| StageSpec::Duplication(share.0)));
        PathSpec { stages }
    }
}

impl Plan {
    /// Returns the plan described by the options.
    ///
    /// # Errors
    /// If they contradict each other.
    pub(crate) fn from_args(args: &PathArgs, mtu: u32) -> Result<Self, Problem> {
        if args.rate == Rate::MAX && args.rate_back.is_none() && args.aqm.is_some() {
            return Err(Problem::usage(
                "--aqm needs a bottleneck, and there is none",
                "give --rate, for example --rate 100Mbit",
            ));
        }
        for direction in [Direction::forth(args, mtu), Direction::back(args, mtu)] {
            let is_length = matches!(direction.bursts, Some(Bursts::Length(_)));
            if is_length && direction.loss == Probability::ZERO {
                return Err(Problem::usage(
                    "--burst-loss with a mean length needs the share of the packets that are lost",
                    "give --loss too, for example --loss 1% --burst-loss 4",
                ));
            }
        }
        let (forth, back) = (Direction::forth(args, mtu).spec(), Direction::back(args, mtu).spec());
        let plan = Self { forth, back };
        let checked = plan.forth.check().and_then(|()| plan.back.check());
        checked.map_err(|error| Problem::usage(error.to_string(), "see haul-lab wan --help"))?;
        Ok(plan)
    }

    /// Reads a plan from a file.
    ///
    /// # Errors
    /// If it cannot be read or is invalid; the message has file, line and field.
    pub(crate) fn from_file(path: &FilePath) -> Result<Self, Problem> {
        let text = fs::read_to_string(path)
            .map_err(|e| Problem::usage(format!("cannot read {}: {e}", path.display()), ""))?;
        let hint = "a path file has `[forth]` and maybe `[back]`, each with `stages = [...]`; see \
                    docs/wan-emulator.md";
        let file: PlanFile = toml::from_str(&text)
            .map_err(|e| Problem::usage(format!("{}: {}", path.display(), e.to_string().trim_end()), hint))?;
        let back = file.back.unwrap_or_else(|| file.forth.clone());
        let plan = Self { forth: file.forth, back };
        for (name, spec) in [("forth", &plan.forth), ("back", &plan.back)] {
            let check = spec.check();
            check.map_err(|e| Problem::usage(format!("{}: [{name}] {e}", path.display()), hint))?;
        }
        Ok(plan)
    }
}

/// Current values of both directions, for changes that depend on several of them.
#[derive(Debug, Clone)]
pub(crate) struct Present {
    forth: Direction,
    back: Direction,
    /// Whether the queue's capacity follows the bandwidth-delay product, as specified by the options.
    queue_follows: bool,
}

/// A change of one stage.
pub(crate) type Step = (PathDirection, StageRef, StageChange);

impl Present {
    /// Returns the values at the start. `from_args`: the path is described by the options, not by a file.
    pub(crate) fn new(args: &PathArgs, mtu: u32, from_args: bool) -> Self {
        let (forth, back) = (Direction::forth(args, mtu), Direction::back(args, mtu));
        Self { forth, back, queue_follows: from_args }
    }

    /// Records a change, and returns the stages that have to change for it.
    pub(crate) fn apply(&mut self, change: &Change) -> Vec<Step> {
        let mut steps = Vec::new();
        for way in change.directions {
            let direction = match way {
                PathDirection::Forth => &mut self.forth,
                PathDirection::Back => &mut self.back,
            };
            let of = |(stage, change): (&str, StageChange)| (*way, StageRef::Name(stage.to_owned()), change);
            let follows = self.queue_follows && matches!(direction.queue, QueueSize::Bdp(_));
            steps.extend(steps_of(direction, change.setting, follows).into_iter().map(of));
        }
        steps
    }
}

/// `queue_follows`: the queue's capacity follows the bandwidth-delay product.
fn steps_of(
    direction: &mut Direction,
    setting: Setting,
    queue_follows: bool,
) -> Vec<(&'static str, StageChange)> {
    match setting {
        Setting::Rtt(rtt) => {
            direction.rtt = rtt;
            direction.delay = rtt / 2;
            vec![("delay", StageChange::Delay(direction.delay))]
        }
        Setting::Rate(rate) => {
            direction.rate = rate;
            let mut steps = vec![("bottleneck", StageChange::Rate(rate))];
            if queue_follows {
                steps.push(("bottleneck", StageChange::Queue(direction.queue_spec())));
            }
            steps
        }
        Setting::Queue(queue) => {
            direction.queue = queue;
            vec![("bottleneck", StageChange::Queue(direction.queue_spec()))]
        }
        Setting::Policer(Policing(spec)) => vec![("policer", StageChange::Policer(spec))],
        Setting::Loss(Share(share)) => {
            direction.loss = share;
            match direction.bursts {
                Some(Bursts::Length(mean_run)) => vec![burst_length(share, mean_run)],
                _ => vec![("loss", StageChange::Share(share))],
            }
        }
        Setting::Bursts(Bursts::Length(mean_run)) => {
            direction.bursts = Some(Bursts::Length(mean_run));
            vec![burst_length(direction.loss, mean_run)]
        }
        Setting::Bursts(Bursts::Channel { begins, ends }) => {
            let channel = GilbertElliottSpec {
                to_bad: begins,
                to_good: ends,
                loss_good: Probability::ZERO,
                loss_bad: Probability::new(1.0).unwrap_or_default(),
            };
            vec![("gilbert_elliott", StageChange::GilbertElliott(channel))]
        }
        Setting::Jitter(most) => vec![("jitter", StageChange::Jitter(Direction::jitter_spec(most)))],
        Setting::Reorder(reorder) => {
            vec![("reordering", StageChange::Reordering(direction.reordering_spec(reorder)))]
        }
        Setting::Duplicate(Share(share)) => vec![("duplication", StageChange::Share(share))],
        Setting::Corrupt(Share(share)) => {
            vec![("corruption", StageChange::Corruption(CorruptionSpec { share, effect: Effect::Flip }))]
        }
        Setting::Outage(length) => vec![("outages", StageChange::Outage(length))],
        Setting::PathMtu(longest) => vec![("mtu", StageChange::Mtu(longest))],
    }
}

fn burst_length(share: Probability, mean_run: f64) -> (&'static str, StageChange) {
    ("burst_loss", StageChange::BurstLoss(BurstLossSpec { share, mean_run }))
}

#[cfg(test)]
mod tests;
