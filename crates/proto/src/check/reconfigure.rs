//! Checks of the negotiation of a new recipe, with a stack that carries messages.

use std::sync::Arc;

use haul_base::Span;
use haul_stack::{Kind, Recipe, SendOptions, Setup, Stack, StackEvent};
use haul_wire::check::Steps;

use super::machine::{Driven, Plain};
use crate::{micro, presets};

/// A packet of the negotiation: kind, control word, number of the change, last number received, text.
fn negotiation(body: &[u8]) -> Vec<u8> {
    let field = |at: usize| body.get(at).copied().unwrap_or_default();
    let mut packet = vec![Kind::RECONFIGURE.0, field(0)];
    for number in [field(1), field(2)] {
        packet.extend(u32::from(number).to_be_bytes());
    }
    match recipe_at(field(3)) {
        Some(recipe) => packet.extend(recipe.to_toml().bytes()),
        None => packet.extend(body.get(4..).unwrap_or_default()),
    }
    packet
}

/// One of the recipes that a negotiation is likely to use; half of the bytes select none.
fn recipe_at(which: u8) -> Option<Recipe> {
    let name = ["msg", "viz", "sensor", "bulk"].get(usize::from(which / 8))?;
    let mut recipe = presets::preset(name)?.ok()?.without("transport_driver");
    for (bit, key, value) in [
        (1, "fixed_rate.rate", "7Mbit"),
        (2, "retransmit.window", "99"),
        (4, "fixed_size.max_message", "5kB"),
    ] {
        let part = key.split('.').next().unwrap_or_default();
        if which & bit != 0 && recipe.has(part) {
            micro::registry().set(&mut recipe, key, value).ok()?;
        }
    }
    Some(recipe)
}

fn stack(initiator: bool) -> Stack {
    let recipe = recipe_at(0).expect("it is compiled in");
    let compiled = Arc::new(micro::registry()).compile(&recipe, 0).expect("it is shipped");
    let mut setup = Setup::new(haul_base::Time::ZERO);
    setup.initiator = initiator;
    setup.keys = Some((Box::new(Plain), Box::new(Plain)));
    setup.initial_rtt = Span::from_millis(10);
    Stack::new(compiled, setup).expect("nothing is missing")
}

fn step(driven: &mut Driven<Stack>, kind: u8, body: &[u8]) {
    let now = driven.now;
    match kind % 6 {
        0 => driven.receive(&negotiation(body)),
        1 => driven.receive(body),
        2 => driven.pass(body),
        3 => driven.transmit(),
        4 => {
            if let Some(recipe) = body.first().and_then(|&which| recipe_at(which)) {
                // Refused while another change is in progress.
                let _ = driven.machine.reconfigure(now, &recipe);
            }
        }
        _ => {
            // Refused if it is longer than the recipe permits.
            let _ = driven.machine.send(now, body, SendOptions::default());
        }
    }
}

/// Checks the negotiation of a new recipe: whatever arrives, the current recipe is one that compiles, no
/// micro-protocol fails, and nothing continues for ever. The first of the arbitrary bytes selects the end,
/// the others are [`Steps`]: the peer's messages, packets, time, and this end's own changes and messages.
/// Returns true if a packet of the negotiation was understood.
///
/// # Panics
/// If a rule is violated.
pub fn reconfigure(bytes: &[u8]) -> bool {
    let Some((&which, steps)) = bytes.split_first() else { return false };
    let mut driven = Driven::new(stack(which % 2 == 1));
    for (kind, body) in Steps::new(steps).take(64) {
        step(&mut driven, kind, body);
        while let Some((_, message)) = driven.machine.recv() {
            driven.machine.recycle(message);
        }
        for event in driven.events() {
            let StackEvent::Failed { protocol, message } = event else { continue };
            assert_eq!(protocol, "recipe", "a micro-protocol has failed: {message}");
        }
    }
    driven.transmit();
    let compiled = Arc::new(micro::registry()).compile(driven.machine.recipe(), 0);
    assert!(compiled.is_ok(), "{:?} is in force: {:?}", driven.machine.recipe(), compiled.err());
    let stats = driven.machine.stats();
    stats.control_received > stats.violations
}
