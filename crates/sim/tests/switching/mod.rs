//! Changing the control law of a running transfer loses nothing, and the new law continues from the state of
//! the old one.

#![expect(clippy::unwrap_used, reason = "test helpers: a panic fails the test")]

use haul_base::{Rate, Span, Time};
use haul_proto::{ChosenLaw, LawChange, laws, micro};
use haul_sim::{NodeId, World};
use haul_stack::{Part, Recipe};
use proptest::prelude::*;

use crate::common::{Channel, Run, SenderNode};

fn ms(n: u64) -> Span {
    Span::from_millis(n)
}

fn rate_control(parameters: &[(&str, &str)]) -> Part {
    let mut recipe = Recipe::new("x").with("rate_control");
    for (name, text) in parameters {
        micro::registry().set(&mut recipe, &format!("rate_control.{name}"), text).unwrap();
    }
    recipe.parts.remove(0)
}

/// A path with loss, duplication and reordering.
fn bad() -> Channel {
    Channel { loss: 0.02, duplicate: 0.01, reorder: 0.02, ..Channel::clean(ms(15), Rate::from_mbps(100)) }
}

fn laws_of_recipes() -> Vec<&'static str> {
    laws().iter().map(|law| law.name).collect()
}

fn switch_at(world: &mut World, sender: NodeId, at: Time, part: &Part) {
    let law = ChosenLaw::check(part).unwrap();
    world.at(at, move |world| {
        let now = world.now();
        world.node_mut::<SenderNode>(sender).unwrap().machine_mut().switch_law(now, law.clone());
    });
}

/// Returns the Mbit/s received between two times.
fn goodput(run: &mut Run, from: Span, to: Span) -> f64 {
    let mut received = |at| {
        run.run(at);
        run.session.receiver(&run.world).stats().object_bytes
    };
    let before = received(from);
    (received(to) - before) as f64 * 8.0 / to.saturating_sub(from).as_secs_f64() / 1e6
}

#[test]
fn a_new_law_continues_from_the_old_ones_rate() {
    let channel = Channel::clean(ms(20), Rate::from_mbps(200));
    for name in ["delivery", "reno", "scalable", "highspeed", "fast", "tfrc", "cubic", "udt", "sabul"] {
        let mut run = Run::new(5, 400_000_000, "delivery", None, &channel, &channel);
        let sender = run.session.sender;
        switch_at(&mut run.world, sender, Time::ZERO + ms(2_000), &rate_control(&[("controller", name)]));
        let before = goodput(&mut run, ms(1_500), ms(2_000));
        let after = goodput(&mut run, ms(2_050), ms(2_550));
        println!("delivery to {name}: {before:.0}, then {after:.0} Mbit/s");
        assert!(after > 0.8 * before, "{name}: {before} and then {after} Mbit/s");
    }
}

#[test]
fn a_ceiling_takes_effect_at_once_and_can_be_lifted() {
    let channel = Channel::clean(ms(20), Rate::from_mbps(200));
    let mut run = Run::new(7, 200_000_000, "delivery", None, &channel, &channel);
    let sender = run.session.sender;
    let delivery = rate_control(&[("controller", "delivery")]);
    let capped = rate_control(&[("controller", "delivery"), ("rate", "20Mbit")]);
    switch_at(&mut run.world, sender, Time::ZERO + ms(2_000), &capped);
    switch_at(&mut run.world, sender, Time::ZERO + ms(4_000), &delivery);
    let held = goodput(&mut run, ms(2_500), ms(4_000));
    assert!((17.0..20.0).contains(&held), "{held} Mbit/s under a ceiling of 20");
    let free = goodput(&mut run, ms(5_000), ms(6_000));
    assert!(free > 170.0, "{free} Mbit/s without it");
}

/// The law chosen by a rule is recognised by a phase that only it has.
#[test]
fn a_recipe_rule_switches_the_law_when_its_condition_holds() {
    let lossy = Channel { loss: 0.08, ..Channel::clean(ms(20), Rate::from_mbps(100)) };
    let run = |channel: &Channel, switch: &str| {
        let mut recipe = haul_proto::presets::preset("bulk").unwrap().unwrap();
        micro::registry().set(&mut recipe, "rate_control.switch", switch).unwrap();
        micro::registry().set(&mut recipe, "rate_control.rate", "60Mbit").unwrap();
        let mut run = Run::of_recipe(3, &recipe, 100_000_000, channel);
        run.run(Span::from_secs(300));
        run.assert_complete();
        let sender = run.session.sender(&run.world);
        (sender.rate_state().phase == "fixed", sender.stats().law_switches)
    };
    for (channel, switch, is_switched) in [
        (&lossy, "loss > 5% -> fixed", true),
        (&lossy, "loss > 20% -> fixed", false),
        (&Channel::clean(ms(20), Rate::from_mbps(100)), "loss > 5% -> fixed; after 3s -> fixed", true),
        (&Channel::clean(ms(20), Rate::from_mbps(100)), "rtt > 100ms -> fixed; after 900GB -> fixed", false),
    ] {
        assert_eq!(run(channel, switch), (is_switched, u64::from(is_switched)), "{switch}");
    }
}

#[test]
fn a_new_ceiling_keeps_a_rules_law_and_a_new_law_replaces_it() {
    let mut recipe = haul_proto::presets::preset("bulk").unwrap().unwrap();
    micro::registry().set(&mut recipe, "rate_control.switch", "after 1s -> cubic").unwrap();
    let part = recipe.part("rate_control").unwrap().clone();
    for (name, value, expected) in
        [("rate", "20Mbit", "cubic"), ("controller", "bbr", "bbr"), ("controller", "reno", "reno")]
    {
        let mut run = Run::of_recipe(3, &recipe, 100_000_000, &Channel::clean(ms(20), Rate::from_mbps(100)));
        run.run(ms(3_000));
        assert_eq!(run.session.sender(&run.world).stats().law.unwrap().name, "cubic");
        let (now, sender, mut part) = (run.world.now(), run.session.sender, part.clone());
        let change = LawChange::parse(&part, &[(name, value)]).unwrap();
        let law = ChosenLaw::change(&mut part, &change).unwrap();
        run.world.node_mut::<SenderNode>(sender).unwrap().machine_mut().switch_law(now, law);
        run.run(ms(4_000));
        let law = run.session.sender(&run.world).stats().law.unwrap();
        assert_eq!((law.name, law.ceiling), (expected, (name == "rate").then_some(Rate::from_mbps(20))));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// As above, with switches by rules of the recipe.
    #[test]
    fn switching_by_rule_loses_no_byte(seed: u64, laws in prop::collection::vec(any::<prop::sample::Index>(), 3)) {
        let channel = bad();
        let conditions = ["loss > 1%", "after 1500ms", "after 4MB"];
        let names: Vec<&str> = laws.iter().map(|index| *index.get(&laws_of_recipes())).collect();
        let rules = std::iter::zip(conditions, &names).map(|(when, law)| format!("{when} -> {law}"));
        let switch: Vec<String> = rules.collect();
        let mut recipe = haul_proto::presets::preset("bulk").unwrap().unwrap();
        micro::registry().set(&mut recipe, "rate_control.switch", &switch.join("; ")).unwrap();
        micro::registry().set(&mut recipe, "rate_control.switch_wait", "1s").unwrap();
        micro::registry().set(&mut recipe, "rate_control.rate", "50Mbit").unwrap();
        let mut run = Run::of_recipe(seed, &recipe, 10_000_000, &channel);
        run.run(Span::from_secs(300));
        run.assert_complete();
        // After a second the first rule applies, unless it names the recipe's law.
        let is_other = names[0] != "bbr";
        assert!(run.sent().law_switches >= u64::from(is_other), "{switch:?}: {:?}", run.sent());
    }

    /// Any law after any other, at any time, over a path with loss, duplication and reordering.
    #[test]
    fn switching_loses_no_byte(seed: u64, switches in prop::collection::vec((0u64..4_000, any::<prop::sample::Index>()), 1..12)) {
        let channel = bad();
        let mut run = Run::new(seed, 10_000_000, "delivery", None, &channel, &channel);
        let sender = run.session.sender;
        for (at, index) in switches {
            let law = index.get(&laws()).name;
            let part = rate_control(&[("controller", law), ("rate", "90Mbit")]);
            switch_at(&mut run.world, sender, Time::ZERO + ms(at), &part);
        }
        run.run(Span::from_secs(300));
        run.assert_complete();
    }
}
