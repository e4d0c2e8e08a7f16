//! Guarantees of recipes that carry an object: it arrives complete and identical, whatever the path does.

use std::sync::{Arc, Mutex};

use haul_base::{Rng, Span, Time};
use haul_stack::{CompiledStack, Ends, Recipe, Stack, StackEvent};
use proptest::prelude::*;

use crate::channel::{Change, Impairments, Interruptions, Run};
use crate::common::{PatternSource, Shared, SinkState};
use crate::generator::{any_object_recipe, other_parameters};
use crate::promises::cases;

/// Longer than any object takes: TFRC sends a quarter of a packet per round trip at a loss rate of 0.3.
const CAP: Time = Time::from_nanos(2_000_000_000_000);
/// Three of them together are shorter than any silence that ends a session.
const MAX_INTERRUPTION: Span = Span::from_secs(1);

fn len(rng: &mut Rng) -> u64 {
    match rng.below(8) {
        0 => rng.below(2),
        1 => 2_500_000,
        _ => rng.below(300_000),
    }
}

struct Outcome {
    run: Run,
    sink_state: Arc<Mutex<SinkState>>,
    len: u64,
}

fn carry(
    recipes: &[&Recipe],
    compiled: &Arc<CompiledStack>,
    impairments: Impairments,
    seed: u64,
    change: Option<Change>,
    cuts: Interruptions,
) -> Outcome {
    let mut rng = Rng::from_seed(seed ^ 0x0B1E_C700);
    // A window of one packet takes a round trip per packet.
    let narrow =
        |recipe: &&Recipe| recipe.text("retransmit", "window").is_some_and(|window| window.len() < 3);
    let len = if recipes.iter().any(narrow) { rng.below(50_000) } else { len(&mut rng) };
    let sink_state = Arc::new(Mutex::new(SinkState { limit: u64::MAX, ..SinkState::default() }));
    let source = PatternSource { len, released: Arc::default() };
    let sends = Ends { object_source: Some(Box::new(source)), ..Ends::default() };
    let takes = Ends { object_sink: Some(Box::new(Shared(sink_state.clone()))), ..Ends::default() };
    // Either end may be the one that sends.
    let ends = if rng.chance(0.5) { [sends, takes] } else { [takes, sends] };
    let damage = if recipes[0].has("seal") { impairments.damage } else { 0.0 };
    let mut run = Run::with_ends(compiled, Impairments { damage, mtu: 1_400, ..impairments }, seed, ends);
    run.changes.extend(change);
    run.cuts = cuts;
    let has_event =
        |run: &Run, is_expected: fn(&StackEvent) -> bool| run.events.iter().flatten().any(is_expected);
    run.run_until(Vec::new(), CAP, |run| {
        let complete = |event: &StackEvent| matches!(event, StackEvent::Complete(_));
        run.changes.is_empty()
            && has_event(run, |event| *event == StackEvent::Delivered)
            && has_event(run, complete)
    });
    Outcome { run, sink_state, len }
}

fn check(outcome: &Outcome) -> Result<(), TestCaseError> {
    let Outcome { run, sink_state, len } = outcome;
    for end in &run.ends {
        prop_assert!(!end.has_failed(), "{:?}", run.events);
        prop_assert_eq!(end.stats().violations, 0, "{:?} {:?}", end, run.events);
    }
    let sink_state = sink_state.lock().unwrap();
    let state = (sink_state.complete, sink_state.delivered, sink_state.wrong);
    prop_assert_eq!(
        state,
        (Some(*len), *len, 0),
        "{:?} {:?}",
        run.events,
        run.ends.each_ref().map(Stack::stats)
    );
    prop_assert!(
        run.events.iter().flatten().any(|event| *event == StackEvent::Delivered),
        "{:?}",
        run.events
    );
    Ok(())
}

proptest! {
    #![proptest_config(cases(96))]

    #[test]
    fn every_object_arrives_complete_and_identical(
        seed: u64, loss in 0.0..0.3, duplicate in 0.0..0.3, spread in 0u64..20, damage in 0.0..0.1,
    ) {
        let Some((recipe, compiled)) = any_object_recipe(seed) else { return Err(TestCaseError::reject("no recipe")) };
        let impairments = Impairments { loss, duplicate, spread: Span::from_millis(spread), damage, mtu: 0 };
        let outcome = carry(&[&recipe], &compiled, impairments, seed, None, Interruptions::default());
        check(&outcome).map_err(|e| TestCaseError::fail(format!("{e}\nwith {}", recipe.to_toml())))?;
    }

    #[test]
    fn every_object_arrives_despite_outages_suspensions_and_full_sockets(
        seed: u64, loss in 0.0..0.3, duplicate in 0.0..0.3, spread in 0u64..20,
    ) {
        let Some((recipe, compiled)) = any_object_recipe(seed) else { return Err(TestCaseError::reject("no recipe")) };
        let impairments = Impairments { loss, duplicate, spread: Span::from_millis(spread), ..Impairments::default() };
        let outcome = carry(&[&recipe], &compiled, impairments, seed, None, Interruptions::any(seed, MAX_INTERRUPTION));
        check(&outcome).map_err(|e| {
            TestCaseError::fail(format!("{e}\n{:?} with {}", outcome.run.cuts, recipe.to_toml()))
        })?;
    }

    #[test]
    fn every_object_arrives_while_one_end_changes_parameters(
        seed: u64, loss in 0.0..0.3, duplicate in 0.0..0.3, spread in 0u64..20,
    ) {
        let Some((recipe, compiled)) = any_object_recipe(seed) else { return Err(TestCaseError::reject("no recipe")) };
        let Some(mut new) = other_parameters(&recipe, !seed) else { return Err(TestCaseError::reject("no other")) };
        // These are fixed for the life of a session.
        haul_proto::micro::registry().set(&mut new, "bitmap_ack.when", &recipe.text("bitmap_ack", "when").unwrap_or("interval".to_owned())).unwrap();
        haul_proto::micro::registry().set(&mut new, "object.gaps", &recipe.text("object", "gaps").unwrap_or("held".to_owned())).unwrap();
        let mut rng = Rng::from_seed(seed ^ 0x7E57);
        let at = Time::from_nanos(rng.below(500_000_000));
        let change = Change::to(at, rng.below(2) as usize, new.clone());
        let impairments = Impairments { loss, duplicate, spread: Span::from_millis(spread), ..Impairments::default() };
        let cuts = Interruptions::any(!seed, MAX_INTERRUPTION);
        let outcome = carry(&[&recipe, &new], &compiled, impairments, seed, Some(change), cuts);
        check(&outcome).map_err(|e| {
            TestCaseError::fail(format!("{e}\nfrom {}\nto {}", recipe.to_toml(), new.to_toml()))
        })?;
    }
}
