//! Behind a policer, which drops packets above its rate without delaying others: losses of laws, and their
//! diagnosis.

#![expect(clippy::unwrap_used, reason = "a panic fails the test")]

use haul_base::{Bytes, Cause, PathId, Rate, Span, Time};
use haul_proto::SenderStats;
use haul_sim::{
    BottleneckSpec, BurstLossSpec, DropReason, Limit, PathSpec, PolicerSpec, QueueSpec, StageSpec, World,
};

use crate::common::Session;
use crate::senses::recipe;

/// Object bytes per byte of a full packet.
const PAYLOAD: f64 = 1_433.0 / 1_500.0;

/// A path behind a policer, or of 100 Mbit/s without one.
#[derive(Clone, Copy, Debug)]
struct Policed {
    /// Mbit/s, and the bucket's capacity in bytes.
    policer: Option<(u64, u64)>,
    rtt: u64,
    /// Loss of the medium behind the policer, and the mean length of a run of losses.
    loss: f64,
    run: f64,
    seconds: u64,
}

impl Default for Policed {
    fn default() -> Self {
        Self { policer: Some((100, 125_000)), rtt: 20, loss: 0.0, run: 1.0, seconds: 15 }
    }
}

/// Result of a transfer.
#[derive(Debug)]
struct Outcome {
    /// From 5 s on: share of lost packets, and Mbit/s of the object.
    loss_rate: f64,
    mbps: f64,
    policed: u64,
    random: u64,
    stats: SenderStats,
}

impl Outcome {
    /// Returns the F1 score.
    fn f1(&self, truth: u64, cause: Cause) -> f64 {
        let attributed = self.stats.lost_by_cause.of(cause);
        2.0 * truth.min(attributed) as f64 / (truth + attributed).max(1) as f64
    }
}

impl Policed {
    fn stages(&self) -> Vec<StageSpec> {
        let rate = if self.policer.is_some() { Rate::from_mbps(1_000) } else { Rate::from_mbps(100) };
        let queue = QueueSpec::TailDrop(Limit::Time(Span::from_millis(40)));
        let policer = self.policer.map(|(mbps, burst)| {
            StageSpec::Policer(PolicerSpec { rate: Rate::from_mbps(mbps), burst: Bytes(burst) })
        });
        let share = haul_base::Probability::new(self.loss).unwrap();
        let loss = StageSpec::BurstLoss(BurstLossSpec { share, mean_run: self.run });
        [Some(StageSpec::Mtu(1_500)), policer, Some(StageSpec::Bottleneck(BottleneckSpec { rate, queue }))]
            .into_iter()
            .chain([(self.loss > 0.0).then_some(loss), Some(self.delay())])
            .flatten()
            .collect()
    }

    fn delay(&self) -> StageSpec {
        StageSpec::Delay(Span::from_millis(self.rtt) / 2)
    }

    fn run(&self, set: &[(&str, &str)]) -> Outcome {
        let mut world = World::new(3);
        let forward = world.add_link("there", &PathSpec { stages: self.stages() }).unwrap();
        let back = world.add_link("back", &PathSpec { stages: vec![self.delay()] }).unwrap();
        let session =
            Session::of_recipe(&mut world, &recipe("bulk", set), 1 << 40, Span::from_millis(self.rtt));
        let port = PathId(0);
        let (from, to) = ((session.sender, port), (session.receiver, port));
        let data = world.connect("data", from, to, &[forward]).unwrap();
        world.connect("feedback", to, from, &[back]).unwrap();
        let mut at = |seconds| {
            world.run_until(Time::ZERO + Span::from_secs(seconds));
            (session.sender(&world).stats(), session.receiver(&world).stats().object_bytes)
        };
        let ((before, bytes), (stats, all)) = (at(5), at(self.seconds));
        let drops = world.truth(data).drops;
        let outcome = Outcome {
            loss_rate: (stats.lost - before.lost) as f64 / (stats.packets - before.packets) as f64,
            mbps: (all - bytes) as f64 * 8.0 / (self.seconds - 5) as f64 / 1e6,
            policed: drops.of(DropReason::Policed),
            random: drops.of(DropReason::GilbertElliott),
            stats,
        };
        println!(
            "TABLE {set:?}, {self:?}: {:.4} lost, {:.1} Mbit/s; {} policed, {} random, told {:?}",
            outcome.loss_rate, outcome.mbps, outcome.policed, outcome.random, outcome.stats.lost_by_cause
        );
        outcome
    }
}

/// Regression: it permanently lost 26 % of its packets, because the policer's losses were taken for the
/// path's own.
#[test]
fn bbr_finds_the_rate_of_a_policer_with_any_bucket() {
    for (mbps, burst, rtt, loss) in [
        (100, 125_000, 20, 0.0),
        (10, 10_000, 5, 0.0),
        (10, 125_000, 100, 0.0),
        (200, 100_000, 10, 0.0),
        (100, 125_000, 20, 0.01),
        (100, 5_000_000, 20, 0.01),
        (50, 500_000, 50, 0.01),
    ] {
        let path = Policed { policer: Some((mbps, burst)), rtt, loss, ..Policed::default() };
        let outcome = path.run(&[("controller", "bbr")]);
        assert!(outcome.loss_rate <= 0.03, "{path:?}: {outcome:?}");
        let offered = mbps as f64 * PAYLOAD * (1.0 - loss);
        assert!(outcome.mbps >= 0.93 * offered, "{path:?}: {outcome:?}");
    }
}

#[test]
fn policer_drops_are_congestion_for_laws_with_varying_rates() {
    for (set, seconds) in [
        (&[("controller", "bbr")][..], 15),
        (&[("controller", "cubic"), ("cause_aware", "true")], 30),
        (&[("controller", "highspeed"), ("cause_aware", "true")], 30),
    ] {
        let outcome = Policed { seconds, ..Policed::default() }.run(set);
        assert!(outcome.loss_rate <= 0.03 && outcome.mbps >= 0.75 * 100.0 * PAYLOAD, "{set:?}: {outcome:?}");
        assert!(outcome.f1(outcome.policed, Cause::Congestion) >= 0.95, "{set:?}: {outcome:?}");
    }
}

#[test]
fn policer_and_medium_losses_are_distinguished() {
    let outcome = Policed { loss: 0.01, ..Policed::default() }.run(&[("controller", "bbr")]);
    assert!(outcome.f1(outcome.policed, Cause::Congestion) >= 0.95, "{outcome:?}");
    assert!(outcome.f1(outcome.random, Cause::Random) >= 0.95, "{outcome:?}");
}

/// Without different rates, a policer cannot be distinguished from a lossy medium.
#[test]
fn a_constant_rate_gives_no_verdict_about_a_policer() {
    let outcome = Policed::default().run(&[("controller", "fixed"), ("rate", "120Mbit")]);
    assert_eq!(outcome.stats.lost_by_cause.of(Cause::Congestion), 0, "{outcome:?}");
}

/// Also where the law slows down for each loss, and while it probes. Bursts of losses that coincide with the
/// sender's own bursts can look like those of a queue, which is not tested here.
#[test]
fn medium_losses_are_random_for_any_law() {
    let single = [(0.01, 1.0), (0.08, 1.0)];
    let both = [(0.01, 1.0), (0.08, 1.0), (0.01, 10.0)];
    for (set, media) in [
        (&[("controller", "bbr")][..], &both[..]),
        (&[("controller", "cubic")], &both),
        (&[("controller", "highspeed")], &single),
        (&[("controller", "fixed"), ("rate", "80Mbit")], &single),
    ] {
        for &(loss, run) in media {
            let path = Policed { policer: None, loss, run, seconds: 20, ..Policed::default() };
            let outcome = path.run(set);
            let random = outcome.stats.lost_by_cause.of(Cause::Random) as f64;
            assert!(random >= 0.9 * outcome.random as f64, "{set:?}: {outcome:?}");
        }
    }
}
