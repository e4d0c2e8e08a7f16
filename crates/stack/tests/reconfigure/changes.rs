//! Conflicting and refused changes: both ends always end up with the same recipe.

use haul_base::{Ecn, Machine, Span};
use haul_stack::{Recipe, RecipeError, SendOptions, StackEvent};

use crate::parts::{Pair, at, events, hear, recipe, said};

const SECOND: Span = Span::from_secs(1);
const OUTAGE: Span = Span::from_secs(50);

fn is_refused(event: &StackEvent) -> bool {
    matches!(event, StackEvent::Refused(_))
}

/// Both request a change at once; that of the end that opened the session wins.
fn both_at_once(of_a: &Recipe, of_b: &Recipe) {
    let mut pair = Pair::new();
    for stack in [&mut pair.a, &mut pair.b] {
        stack.send(pair.now, b"before", SendOptions::default()).unwrap();
    }
    pair.a.reconfigure(pair.now, of_a).unwrap();
    pair.b.reconfigure(pair.now, of_b).unwrap();
    pair.exchange(SECOND * 10);
    pair.assert_at_rest();
    assert!(pair.a.recipe().same_stack(of_a));
    assert_eq!(events(&mut pair.a), [StackEvent::Reconfigured]);
    let at_b = events(&mut pair.b);
    assert!(is_refused(&at_b[0]) && at_b[1..] == [StackEvent::Reconfigured], "{at_b:?}");
}

#[test]
fn concurrent_changes_of_parameters_and_micro_protocols_have_one_winner() {
    both_at_once(&at(11), &recipe().with("extra"));
    both_at_once(&recipe().with("extra"), &at(22));
}

#[test]
fn concurrent_changes_of_one_kind_have_one_winner() {
    both_at_once(&at(11), &at(22));
    both_at_once(&recipe().with("extra"), &recipe().without("knob").with("extra"));
}

#[test]
fn a_losing_proposal_is_ignored_even_if_late() {
    let mut pair = Pair::new();
    pair.b.reconfigure(pair.now, &at(22)).unwrap();
    let late = said(&mut pair.b, pair.now);
    pair.a.reconfigure(pair.now, &at(11)).unwrap();
    pair.exchange(SECOND);
    hear(&mut pair.a, pair.now, &late);
    pair.exchange(SECOND);
    assert_eq!(pair.a.recipe().text("knob", "at").as_deref(), Some("11"));
    pair.assert_at_rest();
}

#[test]
fn a_late_repeat_of_an_older_change_changes_nothing() {
    let mut pair = Pair::new();
    pair.a.reconfigure(pair.now, &at(1)).unwrap();
    let late = said(&mut pair.a, pair.now);
    hear(&mut pair.b, pair.now, &late);
    pair.exchange(SECOND);
    pair.a.reconfigure(pair.now, &at(2)).unwrap();
    pair.exchange(SECOND);
    hear(&mut pair.b, pair.now, &late);
    pair.exchange(SECOND);
    assert_eq!(pair.b.recipe().text("knob", "at").as_deref(), Some("2"));
    pair.assert_at_rest();
}

#[test]
fn a_late_repeat_of_an_older_proposal_changes_nothing() {
    let mut pair = Pair::new();
    pair.a.reconfigure(pair.now, &recipe().with("extra")).unwrap();
    let late = said(&mut pair.a, pair.now);
    hear(&mut pair.b, pair.now, &late);
    pair.exchange(SECOND);
    pair.a.reconfigure(pair.now, &recipe()).unwrap();
    pair.exchange(SECOND);
    hear(&mut pair.b, pair.now, &late);
    pair.exchange(SECOND);
    pair.assert_at_rest();
}

#[test]
fn a_lost_answer_is_repeated() {
    let mut pair = Pair::new();
    pair.a.reconfigure(pair.now, &at(1)).unwrap();
    let asked = said(&mut pair.a, pair.now);
    hear(&mut pair.b, pair.now, &asked);
    assert_eq!(said(&mut pair.b, pair.now).len(), 1, "and it is lost");
    // The peer has answered, and requests a change itself.
    pair.b.reconfigure(pair.now, &at(2)).unwrap();
    pair.exchange(SECOND);
    assert_eq!(pair.a.recipe().text("knob", "at").as_deref(), Some("2"));
    assert_eq!(events(&mut pair.a), [StackEvent::Reconfigured, StackEvent::Reconfigured]);
    assert_eq!(events(&mut pair.b), [StackEvent::Reconfigured, StackEvent::Reconfigured]);
    pair.assert_at_rest();
}

#[test]
fn parameters_refused_by_the_peer_are_reverted() {
    let mut pair = Pair::with_narrow_b();
    pair.a.reconfigure(pair.now, &at(60)).unwrap();
    pair.exchange(SECOND);
    let at_a = events(&mut pair.a);
    assert!(at_a.len() == 1 && is_refused(&at_a[0]), "{at_a:?}");
    assert_eq!(events(&mut pair.b), []);
    pair.assert_at_rest();
}

#[test]
fn an_invalid_proposal_does_not_win() {
    let mut pair = Pair::with_narrow_b();
    pair.a.reconfigure(pair.now, &at(60)).unwrap();
    pair.b.reconfigure(pair.now, &at(20)).unwrap();
    pair.exchange(SECOND);
    assert_eq!(pair.a.recipe().text("knob", "at").as_deref(), Some("20"));
    let at_a = events(&mut pair.a);
    assert!(is_refused(&at_a[0]) && at_a[1..] == [StackEvent::Reconfigured], "{at_a:?}");
    assert_eq!(events(&mut pair.b), [StackEvent::Reconfigured]);
    pair.assert_at_rest();
}

#[test]
fn unconfirmed_parameters_are_reverted_at_both_ends() {
    for heard in [false, true] {
        let mut pair = Pair::new();
        pair.a.reconfigure(pair.now, &at(1)).unwrap();
        let asked = said(&mut pair.a, pair.now);
        if heard {
            hear(&mut pair.b, pair.now, &asked);
        }
        pair.outage(OUTAGE);
        let at_a = events(&mut pair.a);
        assert!(at_a.len() == 1 && is_refused(&at_a[0]), "{at_a:?}");
        pair.exchange(SECOND * 20);
        pair.assert_at_rest();
        assert_eq!(pair.b.recipe().text("knob", "at"), None);
        assert_eq!(events(&mut pair.a), []);
    }
}

#[test]
fn an_unanswered_proposal_is_reverted_at_both_ends() {
    for heard in [false, true] {
        let mut pair = Pair::new();
        pair.a.reconfigure(pair.now, &recipe().with("extra")).unwrap();
        let asked = said(&mut pair.a, pair.now);
        if heard {
            hear(&mut pair.b, pair.now, &asked);
        }
        pair.outage(OUTAGE);
        let at_a = events(&mut pair.a);
        assert!(at_a.len() == 1 && is_refused(&at_a[0]), "{at_a:?}");
        pair.exchange(SECOND * 20);
        pair.assert_at_rest();
        assert!(!pair.b.recipe().has("extra"));
    }
}

#[test]
fn the_wait_for_a_busy_end_is_bounded() {
    let mut pair = Pair::with_clinging_b();
    pair.a.reconfigure(pair.now, &recipe().with("extra")).unwrap();
    pair.exchange(OUTAGE);
    let at_a = events(&mut pair.a);
    assert!(at_a.len() == 1 && is_refused(&at_a[0]), "{at_a:?}");
    pair.assert_at_rest();
}

/// Otherwise the ends would change to it from different recipes, and keep the state of different parts.
#[test]
fn a_proposal_that_crosses_an_undo_is_refused() {
    let mut pair = Pair::new();
    pair.b.reconfigure(pair.now, &at(1)).unwrap();
    let asked = said(&mut pair.b, pair.now);
    hear(&mut pair.a, pair.now, &asked);
    assert_eq!(said(&mut pair.a, pair.now).len(), 1, "DONE, which is lost");
    pair.outage(SECOND * 31);
    let positions = |pair: &Pair| [&pair.a, &pair.b].map(|end| end.recipe().text("knob", "at"));
    assert_eq!(positions(&pair), [Some("1".to_owned()), None]);
    pair.a.reconfigure(pair.now, &at(1).with("extra")).unwrap();
    pair.exchange(SECOND * 20);
    let at_a = events(&mut pair.a);
    let [StackEvent::Reconfigured, refused, StackEvent::Reconfigured] = &at_a[..] else {
        panic!("its own change comes between the peer's and the undo: {at_a:?}")
    };
    assert!(is_refused(refused));
    assert_eq!(positions(&pair), [None, None]);
    pair.assert_at_rest();
    pair.a.reconfigure(pair.now, &recipe().with("extra")).unwrap();
    pair.exchange(SECOND);
    assert!(pair.b.recipe().has("extra"));
    pair.assert_at_rest();
}

#[test]
fn a_started_change_finishes_after_any_outage() {
    let mut pair = Pair::new();
    pair.a.reconfigure(pair.now, &recipe().with("extra")).unwrap();
    let proposal = said(&mut pair.a, pair.now);
    hear(&mut pair.b, pair.now, &proposal);
    let ready = said(&mut pair.b, pair.now);
    hear(&mut pair.a, pair.now, &ready);
    assert!(pair.a.recipe().has("extra") && !pair.b.recipe().has("extra"));
    pair.outage(OUTAGE);
    pair.exchange(SECOND * 20);
    assert_eq!(events(&mut pair.a), [StackEvent::Reconfigured]);
    assert_eq!(events(&mut pair.b), [StackEvent::Reconfigured]);
    assert!(pair.b.recipe().has("extra"));
    pair.assert_at_rest();
}

#[test]
fn packets_of_older_recipes_are_recognised_by_their_numbers() {
    let mut pair = Pair::new();
    pair.a.send(pair.now, b"old", SendOptions::default()).unwrap();
    let old = said(&mut pair.a, pair.now);
    pair.a.reconfigure(pair.now, &recipe().with("extra")).unwrap();
    pair.exchange(SECOND);
    // Now both ends are ready to switch, and an old packet has the bit of the next recipe.
    pair.a.reconfigure(pair.now, &recipe()).unwrap();
    let proposal = said(&mut pair.a, pair.now);
    hear(&mut pair.b, pair.now, &proposal);
    assert_eq!(said(&mut pair.b, pair.now).len(), 1, "READY");
    hear(&mut pair.b, pair.now, &old);
    assert!(pair.b.recipe().has("extra"), "an old packet triggered the switch");
    pair.exchange(SECOND);
    hear(&mut pair.b, pair.now, &old);
    assert_eq!(pair.b.waiting_messages(), 0);
    pair.assert_at_rest();
}

/// A driver finds the connection of a packet by an attribute in clear.
#[test]
fn attributes_in_clear_cannot_change() {
    let mut pair = Pair::new();
    for changed in [Recipe::new("test").with("label").with("whole").with("knob"), recipe().with("label")] {
        let refused = pair.a.reconfigure(pair.now, &changed);
        assert_eq!(refused, Err(RecipeError::Fixed("clear attributes")));
    }
    pair.assert_at_rest();
}

#[test]
fn packets_are_ecn_capable_only_while_the_recipe_has_the_micro_protocol_that_makes_them() {
    let mut pair = Pair::new();
    let first = Recipe::new("test").with("extra").with("whole").with("knob");
    for (changed, expected) in
        [(first, Ecn::Ect0), (recipe().with("extra"), Ecn::Ect0), (recipe(), Ecn::NotEct)]
    {
        pair.a.reconfigure(pair.now, &changed).unwrap();
        pair.exchange(SECOND);
        pair.a.send(pair.now, b"marked", SendOptions::default()).unwrap();
        let sent = pair.a.poll_transmit(pair.now, &mut vec![0; 65_536]).unwrap();
        assert_eq!(sent.ecn, expected, "{changed:?}");
    }
}
