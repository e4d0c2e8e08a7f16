//! Signatures are evaluated with the model that the sender provides.

use std::sync::Arc;

use haul_base::Cause;
use haul_diagnosis::Model;
use haul_stack::{Part, Recipe};

use super::at;
use crate::micro::shared::DiagnosedWindows;
use crate::micro::testing::{Pair, Path, T0, object_recipe};
use crate::{ChosenLaw, DiagnosedWindow, LAW_CHOSEN, LawChange};

/// The shipped model with both causes exchanged.
fn exchanged() -> Model {
    let shipped = Model::shipped().clone();
    Model { host: shipped.network.clone(), network: shipped.host.clone(), ..shipped }
}

/// Causes by signature of windows with consecutive losses, before and after the sender's law changes: by the
/// peer's recipe, by its own user, and to other evidence and back.
fn causes_through_changes(mut pair: Pair) -> Vec<Cause> {
    let mut sent = 0;
    let mut lose = |_| {
        sent += 1;
        sent % 40_000 < 200
    };
    let mut path = Path { lose: Some(&mut lose), ..Path::default() };
    let mut recipe = by_signature();
    let mut windows = Vec::new();
    let mut next = |pair: &mut Pair, now| {
        pair.run_until(now, &mut path);
        windows.extend(std::iter::from_fn(|| DiagnosedWindows::take_from(&mut pair.a)));
    };
    pair.exchange(T0, &mut Path::default());
    // Windows are recorded from the first request on.
    next(&mut pair, T0);
    next(&mut pair, at(900));
    crate::micro::registry().set(&mut recipe, "rate_control.controller", "udt").unwrap();
    pair.a.reconfigure(at(900), &recipe).unwrap();
    next(&mut pair, at(1_000));
    let part = recipe.part_mut("rate_control").unwrap();
    let change = |part: &mut Part, name: &str, value: &str| {
        let change = LawChange::parse(part, &[(name, value)]).unwrap();
        ChosenLaw::change(part, &change).unwrap()
    };
    for (name, value) in [("controller", "fixed"), ("diagnosis", "off"), ("diagnosis", "signature")] {
        pair.a.raise(at(1_000), LAW_CHOSEN, &mut change(part, name, value));
    }
    next(&mut pair, at(2_400));
    // The window in which the evidence was changed has no signature.
    let (signed, unsigned): (Vec<_>, Vec<_>) =
        windows.iter().partition(|window: &&DiagnosedWindow| window.signature.packets() > 0);
    assert!(unsigned.len() == 1 && unsigned[0].by_signature.metric.is_none(), "{unsigned:?}");
    signed.iter().map(|window| window.by_signature.cause()).collect()
}

/// Windows of about 40,000 packets, two in a second, judged by their signatures alone.
fn by_signature() -> Recipe {
    let mut recipe = object_recipe("1Gbit");
    crate::micro::registry().set(&mut recipe, "rate_control.diagnosis", "signature").unwrap();
    crate::micro::registry().set(&mut recipe, "rate_control.unit_window", "50MB").unwrap();
    recipe
}

#[test]
fn the_senders_model_is_used_across_law_changes() {
    let shipped = causes_through_changes(Pair::of_object(&by_signature(), 1_000_000_000).0);
    let exchanged_model = Arc::new(exchanged());
    let supplied =
        causes_through_changes(Pair::of_object_with(&by_signature(), 1_000_000_000, exchanged_model).0);
    assert!(shipped.len() >= 4 && supplied.len() == shipped.len(), "{shipped:?} {supplied:?}");
    assert!(shipped.iter().all(|cause| *cause == Cause::ReceiverHost), "{shipped:?}");
    assert!(supplied.iter().all(|cause| *cause == Cause::Congestion), "{supplied:?}");
}
