//! A path that loses every n-th packet, and a transfer over it.

use haul_base::{Span, Time};
use haul_proto::presets::preset;
use haul_sim::{DropReason, Emitter, Parcel, Path, PathSpec, Stage, StageChange, StageSpec, World};

use crate::common::Session;

/// Drops the last packet of every `every`.
#[derive(Debug)]
struct EachNth {
    every: u64,
    passed: u64,
}

impl Stage for EachNth {
    fn admit(&mut self, _: Time, parcel: Parcel, out: &mut Emitter<'_>) {
        let mut lost = 0;
        for index in parcel.indices() {
            self.passed += 1;
            lost |= u64::from(self.passed.is_multiple_of(self.every)) << index;
        }
        out.drop(parcel.only(lost), DropReason::Random);
        out.pass(parcel.without(lost));
    }

    fn change(&mut self, _: Time, _: &StageChange) -> bool {
        false
    }
}

/// A transfer with one law over a path without a bottleneck: the law sees only losses and the round-trip
/// time.
#[derive(Clone, Copy, Debug)]
pub(super) struct Case<'a> {
    pub(super) preset: &'a str,
    pub(super) law: &'a str,
    /// Parameters of `rate_control`, or of the micro-protocol named before a dot.
    pub(super) set: &'a [(&'a str, &'a str)],
    /// One packet of this many is lost.
    pub(super) every: u64,
    pub(super) rtt: Span,
    /// Time before the measurement, and its length.
    pub(super) skipped: Span,
    pub(super) measured: Span,
}

impl Case<'_> {
    /// Returns the mean number of packets, data and repairs, sent per `interval`.
    pub(super) fn packets_in(&self, interval: Span) -> f64 {
        let seed = 3;
        println!("seed {seed}");
        let mut recipe = preset(self.preset).unwrap().unwrap();
        haul_proto::micro::registry().set(&mut recipe, "rate_control.controller", self.law).unwrap();
        for (key, value) in self.set {
            let path = if key.contains('.') { (*key).into() } else { format!("rate_control.{key}") };
            haul_proto::micro::registry().set(&mut recipe, &path, value).unwrap();
        }
        let mut world = World::new(seed);
        let session = Session::of_recipe(&mut world, &recipe, u64::MAX >> 20, self.rtt);
        let delay = PathSpec { stages: vec![StageSpec::Delay(self.rtt / 2)] };
        let mtu = PathSpec { stages: vec![StageSpec::Mtu(1_500), StageSpec::Delay(self.rtt / 2)] };
        let mut forward = Path::new(&mtu, seed).unwrap();
        forward.push_stage("each nth", Box::new(EachNth { every: self.every, passed: 0 }));
        let (forward, back) = (world.add_path("there", forward), world.add_link("back", &delay).unwrap());
        world.connect_pair("bulk", (session.sender, session.receiver), &[forward], &[back]).unwrap();
        world.run_until(Time::ZERO + self.skipped);
        let before = session.sender(&world).stats().packets;
        world.run_until(Time::ZERO + self.skipped + self.measured);
        let packets = session.sender(&world).stats().packets - before;
        packets as f64 * interval.as_secs_f64() / self.measured.as_secs_f64()
    }
}

/// Checks that each case sends the expected packets per `interval`, within 5 %.
#[track_caller]
pub(super) fn assert_shares(cases: &[(Case<'_>, Span, f64)]) {
    let shares = cases.iter().map(|(case, interval, expected)| {
        let found = case.packets_in(*interval);
        println!("{found:.2} of {expected:.2} packets, {:.3}: {case:?}", found / expected);
        found / expected
    });
    let shares: Vec<f64> = shares.collect();
    assert!(shares.iter().all(|share| (share - 1.0).abs() < 0.05), "{shares:.3?}");
}
