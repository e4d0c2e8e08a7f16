//! Every law in the whole transport while feedback arrives seconds late, duplicated and out of order, and
//! afterwards.
//! `cargo test -p haul-sim --test recovery late_feedback -- --nocapture` prints the table.

#![expect(clippy::unwrap_used, reason = "test helpers: a panic fails the test")]

use haul_base::{PathId, Probability, Rate, Span, Time};
use haul_proto::{laws, presets::preset};
use haul_sim::{Distribution, JitterSpec, LinkId, Order, StageChange, StageRef, StageSpec, World};
use haul_stack::Recipe;

use crate::common::{Channel, Session};

const PATH: Rate = Rate::from_mbps(20);
const RTT: Span = Span::from_millis(20);
/// Share of object bytes in full packets.
const OBJECT_SHARE: f64 = 1_433.0 / 1_500.0;
/// Minimum share of the path's capacity to be used, before and afterwards.
const GOOD: f64 = 0.8;

const fn ms(n: u64) -> Span {
    Span::from_millis(n)
}

/// From then on reports arrive up to 2 s late, out of order, and 30 % of them twice.
const DEGRADED_AT: Span = ms(6_000);
/// From then on each takes another 1.5 s.
const LENGTHENED_AT: Span = ms(7_500);
/// From then on the return path is normal again; reports in transit still arrive, up to 3.5 s late.
const RESTORED: Span = ms(9_000);
/// Time by which the path has to be fully used again: 3 s later, more than ten round trips.
const RECOVERED: Span = ms(12_000);
const MEASURE: Span = ms(2_000);

/// `bulk` with this law, a rate below the path's for laws that need one, and chunks and windows shorter than
/// a second.
fn recipe(law: &str) -> Recipe {
    let mut recipe = preset("bulk").unwrap().unwrap();
    for (parameter, value) in [
        ("object.chunk", "2MB"),
        ("rate_control.controller", law),
        ("rate_control.cause_aware", "false"),
        ("rate_control.rate", "19.5Mbit"),
        ("rate_control.unit_window", "2MB"),
    ] {
        haul_proto::micro::registry().set(&mut recipe, parameter, value).unwrap();
    }
    recipe
}

struct Transfer {
    world: World,
    session: Session,
    back: LinkId,
}

impl Transfer {
    fn new(law: &str) -> Self {
        let mut world = World::new(1);
        let session = Session::of_recipe(&mut world, &recipe(law), 8 << 30, RTT);
        let forth = Channel { queue: ms(150), ..Channel::clean(RTT / 2, PATH) }.spec();
        let mut late = Channel::clean(RTT / 2, PATH).spec();
        late.stages.push(StageSpec::Jitter(jitter(Span::ZERO)));
        late.stages.push(StageSpec::Duplication(Probability::ZERO));
        let forward = world.add_link("there", &forth).unwrap();
        let back = world.add_link("back", &late).unwrap();
        let port = PathId::default();
        world.connect("data", (session.sender, port), (session.receiver, port), &[forward]).unwrap();
        world.connect("feedback", (session.receiver, port), (session.sender, port), &[back]).unwrap();
        Self { world, session, back }
    }

    fn change(&mut self, at: Span, stage: &str, change: StageChange) {
        let (back, stage) = (self.back, StageRef::Name(stage.to_owned()));
        self.world.at(Time::ZERO + at, move |world| world.change_link(back, &stage, &change).unwrap());
    }

    /// Returns the bytes that have arrived until then. Checks meanwhile that the rate stays above zero and
    /// below the ceiling.
    fn arrived(&mut self, until: Span) -> u64 {
        while self.world.now() < Time::ZERO + until {
            let next = (self.world.now() + ms(50)).min(Time::ZERO + until);
            self.world.run_while(next, |_| true);
            let state = self.session.sender(&self.world).rate_state();
            assert!(state.rate > Rate::ZERO && state.rate <= PATH, "{state:?} at {next:?}");
        }
        self.session.receiver(&self.world).stats().object_bytes
    }

    /// Returns the used share of the path's capacity from then on.
    fn share(&mut self, from: Span) -> f64 {
        let before = self.arrived(from);
        let bytes = self.arrived(from + MEASURE) - before;
        bytes as f64 * 8.0 / MEASURE.as_secs_f64() / PATH.as_bps() as f64 / OBJECT_SHARE
    }
}

fn jitter(most: Span) -> JitterSpec {
    JitterSpec { delay: Distribution::Uniform(most), order: Order::Free }
}

#[test]
fn every_law_recovers_from_late_duplicate_and_reordered_feedback() {
    let mut missed = Vec::new();
    for law in laws().iter().map(|law| law.name) {
        let mut run = Transfer::new(law);
        run.change(DEGRADED_AT, "jitter", StageChange::Jitter(jitter(ms(2_000))));
        run.change(DEGRADED_AT, "duplication", StageChange::Share(Probability::new(0.3).unwrap()));
        run.change(LENGTHENED_AT, "delay", StageChange::Delay(ms(1_500)));
        run.change(RESTORED, "jitter", StageChange::Jitter(jitter(Span::ZERO)));
        run.change(RESTORED, "duplication", StageChange::Share(Probability::ZERO));
        run.change(RESTORED, "delay", StageChange::Delay(RTT / 2));
        let before = run.share(DEGRADED_AT.saturating_sub(MEASURE));
        let after = run.share(RECOVERED);
        println!("TABLE {law}: {before:.2} of the path before, {after:.2} after");
        if before < GOOD || after < GOOD {
            missed.push((law, before, after));
        }
    }
    assert!(missed.is_empty(), "{missed:?}");
}
