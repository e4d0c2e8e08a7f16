//! Guarantees of the micro-protocols, tested with random recipes on random paths.

use haul_base::{Rng, Span, Time};
use haul_proto::config::NegativeAckConfig;
use haul_stack::Recipe;
use proptest::prelude::*;

use crate::channel::{Change, Impairments, Interruptions, Order, Run, WRAP};
use crate::generator::{any_recipe, other_parameters};

/// Long enough for every retransmission: where only the oldest segment is retransmitted, and that after a
/// minute at high loss, hours pass. Pauses of the application take as long.
const CAP: Time = Time::from_nanos(1_000_000_000_000_000);
/// Longer than a sender without acknowledgements keeps anything; its receiver never stops requesting.
const CAP_WITHOUT_ACKS: Time = Time::from_nanos(1_000_000_000_000);
/// Shorter than the time for which a sender without acknowledgements keeps segments.
const MAX_INTERRUPTION: Span = Span::from_secs(3);

fn cap(recipe: &Recipe) -> Time {
    if recipe.has("negative_ack") { CAP_WITHOUT_ACKS } else { CAP }
}

fn orders(seed: u64) -> Vec<Order> {
    let mut rng = Rng::from_seed(seed ^ 0x5EED);
    let count = 5 + rng.below(60);
    // All at once, or one by one.
    let stretch = if rng.chance(0.5) { 1_000_000_000 } else { 20_000_000 };
    let mut pause = 0;
    (0..count)
        .map(|_| {
            if rng.chance(0.02) {
                // The application pauses until timestamps wrap, or are half through.
                pause += (WRAP / 2 * (1 + rng.below(3))).as_nanos() - rng.below(100_000_000);
            }
            let longest = if rng.chance(0.3) { 8_000 } else { 200 };
            let mut body = vec![0; 12 + rng.below(longest) as usize];
            rng.fill(&mut body);
            Order { at: Time::from_nanos(pause + rng.below(stretch)), end: rng.below(2) as usize, body }
        })
        .collect()
}

fn has_any(recipe: &Recipe, names: &[&str]) -> bool {
    names.iter().any(|name| recipe.has(name))
}

/// Whether every message arrives, whatever the path does: nothing is dropped on purpose, or before it could
/// be requested often enough.
pub(crate) fn delivers_all(recipe: &Recipe) -> bool {
    let asks: Option<NegativeAckConfig> = recipe.configuration();
    let gives_up = asks.is_some_and(|asks| asks.retention < asks.silence * 20);
    recipe.has("retransmit") && !has_any(recipe, &["deadline", "selective_transfer"]) && !gives_up
}

fn check(recipe: &Recipe, run: &Run, clean: bool) -> Result<(), TestCaseError> {
    for end in 0..2 {
        let (sent, got) = (&run.sent[1 - end], &run.got[end]);
        let stats = run.ends[end].stats();
        prop_assert!(!run.ends[end].has_failed(), "{:?}", run.ends[end]);
        prop_assert_eq!(stats.violations, 0);
        for message in got {
            prop_assert!(sent.contains(message), "message {} is not what was sent", message.0);
        }
        let mut ids: Vec<u64> = got.iter().map(|message| message.0).collect();
        if recipe.has("in_order") {
            prop_assert!(ids.windows(2).all(|pair| pair[0] <= pair[1]), "{:?}", ids);
        }
        ids.sort_unstable();
        let delivered = ids.len();
        ids.dedup();
        if recipe.has("sequenced_segment") || clean {
            prop_assert_eq!(ids.len(), delivered, "delivered twice");
        }
        let on_purpose = has_any(recipe, &["deadline", "selective_transfer"]);
        if delivers_all(recipe) || clean && !on_purpose {
            prop_assert_eq!(ids.len(), sent.len(), "{:?}", run.ends[end].stats());
        }
    }
    Ok(())
}

fn run(seed: u64, impairments: Impairments, cuts: Interruptions) -> Option<(Recipe, Run)> {
    let (recipe, compiled) = any_recipe(seed)?;
    // Only recipes that seal packets detect damage; elsewhere the kernel's checksum does.
    let damage = if recipe.has("seal") { impairments.damage } else { 0.0 };
    let mut run = Run::new(&compiled, Impairments { damage, ..impairments }, seed);
    run.cuts = cuts;
    run.run(orders(seed), cap(&recipe));
    Some((recipe, run))
}

/// As [`run`], but one end changes parameters at some time. Both recipes must hold their guarantees.
fn run_with_change(seed: u64, impairments: Impairments) -> Option<(Recipe, Recipe, Run)> {
    let (recipe, compiled) = any_recipe(seed)?;
    let new = other_parameters(&recipe, !seed)?;
    let mut run = Run::new(&compiled, Impairments { damage: 0.0, ..impairments }, seed);
    run.cuts = Interruptions::any(!seed, MAX_INTERRUPTION);
    let mut rng = Rng::from_seed(seed ^ 0x7E57);
    let at = Time::from_nanos(rng.below(2_000_000_000));
    run.changes.push(Change::to(at, rng.below(2) as usize, new.clone()));
    run.run(orders(seed), cap(&recipe));
    Some((recipe, new, run))
}

/// This number of cases, or `PROPTEST_CASES`.
pub(crate) fn cases(number: u32) -> ProptestConfig {
    let requested = std::env::var("PROPTEST_CASES").ok().and_then(|text| text.parse().ok());
    let number = requested.unwrap_or(number);
    ProptestConfig { max_global_rejects: 10 * number, ..ProptestConfig::with_cases(number) }
}

proptest! {
    #![proptest_config(cases(128))]

    #[test]
    fn recipes_keep_their_guarantees_on_bad_paths(
        seed: u64, loss in 0.0..0.3, duplicate in 0.0..0.3, spread in 0u64..20, damage in 0.0..0.1,
    ) {
        let impairments = Impairments { loss, duplicate, spread: Span::from_millis(spread), damage, ..Impairments::default() };
        let Some((recipe, run)) = run(seed, impairments, Interruptions::default()) else {
            return Err(TestCaseError::reject("no recipe"))
        };
        check(&recipe, &run, false).map_err(|e| TestCaseError::fail(format!("{e}\nwith {}", recipe.to_toml())))?;
    }

    #[test]
    fn guarantees_hold_during_outages_suspensions_and_full_sockets(
        seed: u64, loss in 0.0..0.3, duplicate in 0.0..0.3, spread in 0u64..20,
    ) {
        let impairments = Impairments { loss, duplicate, spread: Span::from_millis(spread), ..Impairments::default() };
        let Some((recipe, run)) = run(seed, impairments, Interruptions::any(seed, MAX_INTERRUPTION)) else {
            return Err(TestCaseError::reject("no recipe"))
        };
        check(&recipe, &run, false)
            .map_err(|e| TestCaseError::fail(format!("{e}\n{:?} with {}", run.cuts, recipe.to_toml())))?;
    }

    #[test]
    fn on_a_perfect_path_every_message_arrives_once(seed: u64) {
        let Some((recipe, run)) = run(seed, Impairments::default(), Interruptions::default()) else {
            return Err(TestCaseError::reject("no recipe"))
        };
        check(&recipe, &run, true).map_err(|e| TestCaseError::fail(format!("{e}\nwith {}", recipe.to_toml())))?;
    }

    #[test]
    fn guarantees_hold_while_one_end_changes_parameters(
        seed: u64, loss in 0.0..0.3, duplicate in 0.0..0.3, spread in 0u64..20,
    ) {
        let impairments = Impairments { loss, duplicate, spread: Span::from_millis(spread), ..Impairments::default() };
        let Some((old, new, run)) = run_with_change(seed, impairments) else { return Err(TestCaseError::reject("no recipe")) };
        let reliable_recipe = if delivers_all(&old) { &new } else { &old };
        check(reliable_recipe, &run, false).map_err(|e| {
            TestCaseError::fail(format!("{e}\nfrom {}\nto {}\n{:?}", old.to_toml(), new.to_toml(), run.events))
        })?;
    }

    #[test]
    fn equal_seeds_give_equal_traces(seed: u64) {
        let impairments = Impairments { loss: 0.1, duplicate: 0.1, spread: Span::from_millis(5), damage: 0.02, mtu: 0 };
        let Some((_, first)) = run(seed, impairments, Interruptions::default()) else {
            return Err(TestCaseError::reject("no recipe"))
        };
        let (_, second) = run(seed, impairments, Interruptions::default()).unwrap();
        prop_assert_eq!((first.trace, &first.got), (second.trace, &second.got));
    }
}
