//! Changes of a running recipe from both ends, at random times, over paths that lose, duplicate, delay and
//! reorder packets: every change ends, both recipes are equal at the end, and every message arrives once.

use std::sync::Arc;

use haul_base::{Rate, Rng, Span, Time};
use haul_proto::config::{FixedRateConfig, RetransmitConfig};
use haul_proto::micro;
use haul_stack::{Recipe, RecipeError, StackEvent};
use proptest::prelude::*;

use crate::channel::{Change, Impairments, Order, Run, TAG};
use crate::generator;
use crate::promises::{cases, delivers_all};

/// Everything must be finished by then.
const CAP: Time = Time::from_nanos(3_000_000_000_000);
/// Changes start until then, while messages are in flight.
const LAST_CHANGE_MS: u64 = 10_000;

/// Recipes that can be changed into one another; all of them deliver every message once.
fn any_recipe(rng: &mut Rng, sealed: bool) -> Recipe {
    let ack = ["positive_ack", "cumulative_ack", "negative_ack"][rng.below(3) as usize];
    let rate = Rate::from_mbps([5, 11, 22][rng.below(3) as usize]);
    let window = [256, 1_024][rng.below(2) as usize];
    let mut recipe = Recipe::new("random");
    if sealed {
        recipe = recipe.with("transport_driver");
    }
    recipe = recipe
        .with("fixed_size")
        .with("sequenced_segment")
        .with(FixedRateConfig { rate, ..FixedRateConfig::default() })
        .with(RetransmitConfig { window, ..RetransmitConfig::default() })
        .with(ack);
    for part in ["in_order", "pacing", "rate_stats", "statistics", "fec", "rate_feedback"] {
        if rng.chance(0.3) {
            recipe = recipe.with(part);
        }
    }
    if recipe.has("fec") {
        micro::registry().set(&mut recipe, "fec.delay", ["5ms", "300ms"][rng.below(2) as usize]).unwrap();
    }
    if sealed { recipe.with("seal") } else { recipe }
}

/// Other parameters of the same micro-protocols.
fn other_parameters(mut recipe: Recipe, rng: &mut Rng) -> Recipe {
    let rate = ["6Mbit", "12Mbit", "24Mbit"][rng.below(3) as usize];
    micro::registry().set(&mut recipe, "fixed_rate.rate", rate).unwrap();
    if rng.chance(0.5) {
        let window = ["300", "900"][rng.below(2) as usize];
        micro::registry().set(&mut recipe, "retransmit.window", window).unwrap();
    }
    recipe
}

/// Times, ends and recipes of changes; some are made by both ends at the same time.
fn changes(rng: &mut Rng, ends: &[usize], sealed: bool) -> Vec<Change> {
    let mut changes = Vec::new();
    for _ in 0..=rng.below(6) {
        let at = Time::from_nanos(rng.below(LAST_CHANGE_MS) * 1_000_000);
        let together = rng.chance(0.6);
        for &end in ends {
            if together || rng.chance(0.5) {
                let late = Span::from_millis(rng.below(if together { 30 } else { 1_000 }));
                let requested = (rng.chance(0.5)).then(|| any_recipe(rng, sealed));
                let seed = rng.below(u64::MAX);
                let to = Box::new(move |present: &Recipe| {
                    requested
                        .clone()
                        .unwrap_or_else(|| other_parameters(present.clone(), &mut Rng::from_seed(seed)))
                });
                changes.push(Change { at: at + late, end, to });
            }
        }
    }
    changes
}

/// Messages that are sent while recipes change.
fn orders(rng: &mut Rng) -> Vec<Order> {
    let mut order = || {
        let mut body = vec![0; 12 + rng.below(3_000) as usize];
        rng.fill(&mut body);
        let at = Time::from_nanos(rng.below(LAST_CHANGE_MS + 2_000) * 1_000_000);
        Order { at, end: rng.below(2) as usize, body }
    };
    (0..80).map(|_| order()).collect()
}

fn run(seed: u64, impairments: Impairments, ends: &[usize], outage: Span) -> Run {
    let mut rng = Rng::from_seed(seed);
    let sealed = rng.chance(0.5);
    let compiled = Arc::new(micro::registry()).compile(&any_recipe(&mut rng, sealed), TAG).unwrap();
    let mut run = Run::new(&compiled, impairments, seed);
    run.changes = changes(&mut rng, ends, sealed);
    let begins = Time::from_nanos(rng.below(LAST_CHANGE_MS) * 1_000_000);
    run.cuts.outage = begins..begins + outage;
    run.run(orders(&mut rng), CAP);
    run
}

/// How many changes this end started, how many were refused, and how often its recipe changed.
fn count_changes(run: &Run, end: usize) -> (usize, usize, usize) {
    let count = |which: fn(&StackEvent) -> bool| run.events[end].iter().filter(|&e| which(e)).count();
    let refused = count(|event| matches!(event, StackEvent::Refused(_)));
    (run.begun[end], refused, count(|event| *event == StackEvent::Reconfigured))
}

fn check_ends(run: &mut Run, outage: bool) -> Result<(), TestCaseError> {
    let [a, b] = [0, 1].map(|end| run.ends[end].recipe().clone());
    prop_assert!(a.same_stack(&b), "the ends differ:\n{}\n{}", a.to_toml(), b.to_toml());
    for end in 0..2 {
        prop_assert!(!run.ends[end].has_failed(), "{:?}", run.events[end]);
        prop_assert_eq!(run.ends[end].stats().violations, 0);
        let (begun, refused, changed) = count_changes(run, end);
        let others = count_changes(run, 1 - end);
        prop_assert!(refused <= begun, "{refused} of {begun} refused");
        // A change that the other end had to undo changed its recipe twice.
        let (done, theirs) = (begun - refused, if outage { 2 * others.0 } else { others.0 - others.1 });
        prop_assert!((done..=done + theirs).contains(&changed), "{changed} of {done} and {theirs}");
        // Nothing is in progress any more: the next change may start.
        let busy = run.ends[end].reconfigure(CAP, &a) == Err(RecipeError::Busy);
        prop_assert!(!busy, "a change is still in progress at {end}: {:?}", run.events[end]);
    }
    Ok(())
}

fn check(run: &mut Run, outage: bool) -> Result<(), TestCaseError> {
    check_ends(run, outage)?;
    for end in 0..2 {
        let mut got: Vec<_> = run.got[end].clone();
        got.sort();
        let sent = &run.sent[1 - end];
        prop_assert_eq!(got.len(), sent.len(), "messages that end {} got, {:?}", end, run.ends[1 - end]);
        prop_assert!(got == *sent, "other messages than were sent");
    }
    Ok(())
}

/// `recipe` with those of `base`'s parts that are fixed in a session.
fn with_fixed_of(base: &Recipe, recipe: Recipe) -> Recipe {
    let mut fixed = if base.has("transport_driver") {
        Recipe::new("fixed").with("transport_driver")
    } else {
        Recipe::new("free")
    };
    fixed.parts.extend(recipe.without("transport_driver").without("seal").parts);
    if base.has("seal") { fixed.with("seal") } else { fixed }
}

/// Runs changes by both ends from any recipe to others that `next` makes of it and a seed; returns whether
/// all of these deliver every message.
fn run_any(
    seed: u64,
    impairments: Impairments,
    next: fn(&Recipe, u64) -> Option<Recipe>,
) -> Option<(Run, bool)> {
    let (base, compiled) = generator::any_recipe(seed)?;
    let mut rng = Rng::from_seed(seed);
    let mut run = Run::new(&compiled, impairments, seed);
    let mut deliver = delivers_all(&base);
    for _ in 0..=rng.below(9) {
        let Some(recipe) = next(&base, rng.below(u64::MAX)) else { continue };
        deliver &= delivers_all(&recipe);
        let (recipe, end) = (with_fixed_of(&base, recipe), rng.below(2) as usize);
        let at = Time::from_nanos(rng.below(LAST_CHANGE_MS / 20) * 20_000_000);
        run.changes.push(Change { at, end, to: Box::new(move |_| recipe.clone()) });
    }
    run.run(orders(&mut rng), CAP);
    Some((run, deliver))
}

fn check_any(run: Option<(Run, bool)>) -> Result<(), TestCaseError> {
    let Some((mut run, deliver)) = run else { return Err(TestCaseError::reject("no recipe")) };
    if deliver {
        return check(&mut run, false);
    }
    check_ends(&mut run, false)?;
    for end in 0..2 {
        let sent = &run.sent[1 - end];
        prop_assert!(run.got[end].iter().all(|message| sent.contains(message)));
    }
    Ok(())
}

#[test]
fn concurrent_changes_occur_and_some_lose() {
    let impairments =
        Impairments { loss: 0.1, duplicate: 0.1, spread: Span::from_millis(20), damage: 0.0, mtu: 0 };
    let runs: Vec<Run> = (0..50).map(|seed| run(seed, impairments, &[0, 1], Span::ZERO)).collect();
    let counts = runs.iter().flat_map(|run| [count_changes(run, 0), count_changes(run, 1)]);
    let (begun, refused) = counts.fold((0, 0), |sum, (begun, refused, _)| (sum.0 + begun, sum.1 + refused));
    assert!(begun > 200 && (20..begun / 2).contains(&refused), "{refused} of {begun} lost");
}

proptest! {
    #![proptest_config(cases(64))]

    #[test]
    fn any_recipe_can_follow_on_any_other(
        seed: u64, loss in 0.0..0.3, duplicate in 0.0..0.3, spread in 0u64..80,
    ) {
        let impairments = Impairments { loss, duplicate, spread: Span::from_millis(spread), damage: 0.0, mtu: 0 };
        check_any(run_any(seed, impairments, |_, seed| Some(generator::any_recipe(seed)?.0)))?;
    }

    #[test]
    fn kept_micro_protocols_work_in_any_other_recipe(
        seed: u64, loss in 0.0..0.3, duplicate in 0.0..0.3, spread in 0u64..80,
    ) {
        let impairments = Impairments { loss, duplicate, spread: Span::from_millis(spread), damage: 0.0, mtu: 0 };
        check_any(run_any(seed, impairments, generator::other_company))?;
    }

    #[test]
    fn changes_from_both_ends_finish_without_losses(
        seed: u64, loss in 0.0..0.3, duplicate in 0.0..0.3, spread in 0u64..80,
    ) {
        let impairments = Impairments { loss, duplicate, spread: Span::from_millis(spread), damage: 0.0, mtu: 0 };
        check(&mut run(seed, impairments, &[0, 1], Span::ZERO), false)?;
    }

    #[test]
    fn changes_from_both_ends_have_one_winner_on_a_perfect_path(seed: u64) {
        let mut run = run(seed, Impairments::default(), &[0, 1], Span::ZERO);
        check(&mut run, false)?;
        let refused = count_changes(&run, 0).1;
        prop_assert_eq!(refused, 0, "the end that opened the session wins");
    }

    #[test]
    fn changes_finish_without_losses_across_an_outage(
        seed: u64, loss in 0.0..0.2, duplicate in 0.0..0.2, spread in 0u64..80, lasts in 100u64..90_000,
    ) {
        let impairments = Impairments { loss, duplicate, spread: Span::from_millis(spread), damage: 0.0, mtu: 0 };
        check(&mut run(seed, impairments, &[0, 1], Span::from_millis(lasts)), true)?;
    }

    #[test]
    fn all_changes_from_one_end_are_applied(
        seed: u64, end in 0usize..2, loss in 0.0..0.3, duplicate in 0.0..0.3, spread in 0u64..80,
    ) {
        let impairments = Impairments { loss, duplicate, spread: Span::from_millis(spread), damage: 0.0, mtu: 0 };
        let mut run = run(seed, impairments, &[end], Span::ZERO);
        check(&mut run, false)?;
        prop_assert_eq!(count_changes(&run, end).1, 0);
    }
}
