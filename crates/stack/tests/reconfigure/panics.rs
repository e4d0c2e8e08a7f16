//! Micro-protocols that panic outside of handlers: the caller gets an error or the session ends, with their
//! name.

use haul_base::{Machine, Time};
use haul_stack::{Recipe, Registration, Stack, StackEvent};

use crate::parts::{Before, Boom, Fuse, KnobConfig, Pair, events, plain, recipe, setup};

fn that_panics(step: &str) -> Recipe {
    let mut recipe = recipe();
    recipe.change(|knob: &mut KnobConfig| step.clone_into(&mut knob.panics)).unwrap();
    recipe
}

fn failed(step: &str) -> Vec<StackEvent> {
    let message = format!("I do not like to {step}");
    vec![StackEvent::Failed { protocol: "knob".into(), message }]
}

#[test]
fn a_recipe_whose_micro_protocol_panics_is_refused_by_name() {
    for step in ["build", "declare", "bind", "drop"] {
        let error = std::sync::Arc::new(plain()).compile(&that_panics(step), 0).unwrap_err().to_string();
        assert_eq!(error, format!("knob: it panicked: I do not like to {step}"));
    }
}

/// A second panic while the first one unwinds would abort the process.
#[test]
fn the_first_micro_protocol_panicking_in_drop_is_named() {
    let mut registry = plain();
    let knob = registry.get("knob").unwrap().clone();
    registry.register(Registration { name: "other", ..knob });
    let mut recipe = that_panics("drop").with("other");
    registry.set(&mut recipe, "other.panics", "drop").unwrap();
    let error = std::sync::Arc::new(registry).compile(&recipe, 0).unwrap_err().to_string();
    assert_eq!(error, "knob: it panicked: I do not like to drop");
}

#[test]
fn a_micro_protocol_panicking_in_construction_is_an_error_by_name() {
    let compiled = std::sync::Arc::new(plain()).compile(&recipe(), 0).unwrap();
    let error = Stack::new(compiled, setup(true).provide(Boom)).unwrap_err().to_string();
    assert_eq!(error, "knob: it panicked: I do not like this session");
}

#[test]
fn a_panic_while_dropping_a_stack_is_contained() {
    let compiled = std::sync::Arc::new(plain()).compile(&recipe(), 0).unwrap();
    drop(Stack::new(compiled, setup(true).provide(Fuse)).unwrap());
}

#[test]
fn a_panic_while_building_a_new_recipe_refuses_it() {
    let mut pair = Pair::new();
    let error = pair.a.reconfigure(pair.now, &that_panics("bind")).unwrap_err().to_string();
    assert_eq!(error, "knob: it panicked: I do not like to bind");
    pair.assert_at_rest();
}

#[test]
fn a_panic_while_setting_parameters_ends_the_session_by_name() {
    let mut pair = Pair::new();
    assert!(pair.a.reconfigure(pair.now, &that_panics("change")).is_err());
    assert!(pair.a.has_failed());
    assert_eq!(events(&mut pair.a), failed("change"));
    assert!(pair.a.reconfigure(pair.now, &recipe()).is_err());
}

#[test]
fn a_panic_while_reading_counters_ends_the_session_by_name() {
    let compiled = |step| std::sync::Arc::new(plain()).compile(&that_panics(step), 0).unwrap();
    let mut stack = Stack::new(compiled("count"), setup(true)).unwrap();
    let mut counters = Vec::new();
    stack.statistics(|part, stats| counters.push((part.to_owned(), stats.to_arc())));
    let [(part, before)] = &counters[..] else { panic!("{counters:?}") };
    assert_eq!((&part[..], before.of()), ("knob", Some(&Before(1))));
    assert!(stack.has_failed() && stack.deadline().is_none());
    assert_eq!(events(&mut stack), failed("count"));
    assert_eq!(stack.poll_transmit(Time::ZERO, &mut [0; 2_000]), None);
    let mut stack = Stack::new(compiled("finish"), setup(true)).unwrap();
    assert_eq!(stack.unfinished(), 1, "nobody knows");
    assert_eq!(events(&mut stack), failed("finish"));
}

#[test]
#[should_panic(expected = "the caller's own")]
fn a_panic_of_the_counters_reader_is_propagated() {
    Pair::new().a.statistics(|part, _| assert!(part != "knob", "the caller's own"));
}

#[test]
fn a_panic_during_a_pending_change_ends_the_session_by_name() {
    let mut pair = Pair::new();
    pair.a.reconfigure(pair.now, &that_panics("finish").with("extra")).unwrap();
    pair.exchange(haul_base::Span::from_secs(1));
    pair.a.reconfigure(pair.now, &recipe()).unwrap();
    pair.exchange(haul_base::Span::from_secs(1));
    assert!(events(&mut pair.b).ends_with(&failed("finish")));
}
