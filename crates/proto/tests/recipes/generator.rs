//! Random recipes.

use std::sync::Arc;

use haul_base::Rng;
use haul_proto::{laws, micro};
use haul_stack::{CompiledStack, Recipe, Registration, Registry};

use crate::channel::TAG;

/// Values of parameters whose limits would otherwise not be reached in a short run.
const VALUES: &[(&str, &str, &[&str])] = &[
    ("fixed_size", "max_message", &["8KiB", "64KiB"]),
    ("fixed_size", "reassembly", &["1KiB", "4MiB"]),
    ("fixed_rate", "rate", &["2Mbit", "50Mbit", "unlimited"]),
    ("fixed_rate", "burst", &["1kB", "64KiB"]),
    ("rate_control", "rate", &["2Mbit", "50Mbit", "unlimited"]),
    ("receiver_report", "interval", &["1ms", "10ms", "200ms"]),
    ("in_order", "held", &["4", "4096"]),
    ("fec", "data", &["1", "5", "20"]),
    ("fec", "repair", &["1", "4"]),
    ("statistics", "interval", &["50ms", "1s"]),
    ("sequenced_segment", "window", &["64", "65", "1025", "262144", "16777216"]),
    ("retransmit", "window", &["1", "2", "63", "64", "1024", "32768"]),
    ("retransmit", "memory", &["0B", "1B", "3kB", "64KiB", "8MiB"]),
    ("negative_ack", "silence", &["300ms", "5s"]),
    ("negative_ack", "reordering", &["0s", "5ms", "100ms"]),
    ("negative_ack", "retention", &["2400ms", "40s", "120s"]),
    ("selective_transfer", "fields", &["", "u8", "f32, u16, i64"]),
    ("selective_transfer", "criterion", &["absolute", "relative"]),
    ("selective_transfer", "threshold", &["0", "0.5", "100"]),
    ("selective_transfer", "max_silence", &["0s", "299ms", "4s"]),
];

/// Attempts to draw consistent parameters before a recipe is given up.
const DRAWS: u32 = 8;

/// A recipe of messages and its compiled stack; `None` if no consistent one was drawn.
pub(crate) fn any_recipe(seed: u64) -> Option<(Recipe, Arc<CompiledStack>)> {
    let mut rng = Rng::from_seed(seed);
    let registry: Arc<Registry> = Arc::new(micro::registry());
    let mut names: Vec<&str> = registry.iter().map(|known| known.name).filter(|_| rng.chance(0.4)).collect();
    names.retain(|name| *name != "fixed_size" && !registry.get(name).is_some_and(concerns_objects));
    names.push("fixed_size");
    for _ in 0..4 {
        complete(&registry, &mut names, &mut rng);
    }
    shuffle(&mut names, &mut rng);
    (0..DRAWS).find_map(|_| draw(&registry, &names, &mut rng))
}

/// The same micro-protocols with other parameters, of those that can be changed while running.
pub(crate) fn other_parameters(recipe: &Recipe, seed: u64) -> Option<Recipe> {
    let mut rng = Rng::from_seed(seed);
    let registry: Arc<Registry> = Arc::new(micro::registry());
    let names: Vec<&str> = recipe.parts.iter().map(|part| part.name).collect();
    let mut new = (0..DRAWS).find_map(|_| draw(&registry, &names, &mut rng)).map(|(recipe, _)| recipe)?;
    if recipe.has("fec") {
        micro::registry()
            .set(&mut new, "fec.data", &recipe.text("fec", "data").unwrap_or("20".to_owned()))
            .ok()?;
    }
    Some(new)
}

/// Some of the same micro-protocols with the same parameters, others in addition, and all in another order.
pub(crate) fn other_company(recipe: &Recipe, seed: u64) -> Option<Recipe> {
    let mut rng = Rng::from_seed(seed);
    let registry: Arc<Registry> = Arc::new(micro::registry());
    let stays = |name: &str, rng: &mut Rng| name == "fixed_size" || rng.chance(0.8);
    let present = recipe.parts.iter().map(|part| part.name);
    let mut names: Vec<&str> = present.filter(|name| stays(name, &mut rng)).collect();
    for known in registry.iter().filter(|known| !concerns_objects(known) && known.name != "object") {
        if !names.contains(&known.name) && rng.chance(0.15) {
            names.push(known.name);
        }
    }
    complete(&registry, &mut names, &mut rng);
    shuffle(&mut names, &mut rng);
    let mut new = Recipe::new("random");
    for name in names {
        match recipe.parts.iter().find(|part| part.name == name) {
            Some(part) => new.parts.push(part.clone()),
            None => new = with(&registry, new, name, false, &mut rng),
        }
    }
    registry.compile(&new, TAG).ok().map(|_| new)
}

fn draw(
    registry: &Arc<Registry>,
    names: &[&'static str],
    rng: &mut Rng,
) -> Option<(Recipe, Arc<CompiledStack>)> {
    let carries_object = names.contains(&"object");
    let recipe = names
        .iter()
        .fold(Recipe::new("random"), |recipe, name| with(registry, recipe, name, carries_object, rng));
    let compiled = registry.compile(&recipe, TAG).ok()?;
    Some((recipe, compiled))
}

/// Values for recipes that carry an object, in addition to those above.
const OBJECT_VALUES: &[(&str, &str, &[&str])] = &[
    ("object", "chunk", &["1kB", "100kB", "100MB"]),
    ("object", "first_limit", &["1B", "64KiB", "64MiB"]),
    ("object", "gaps", &["held", "free"]),
    ("bitmap_ack", "when", &["interval", "law", "segment", "chunk", "round"]),
    ("rate_control", "mode", &["law", "window", "rate"]),
    ("bitmap_ack", "interval", &["500us", "2ms", "20ms"]),
    ("retransmit", "window", &["1", "63", "1024", "10000", "400000"]),
    ("retransmit", "probe", &["true", "false"]),
    ("rate_control", "rate", &["20Mbit", "900Mbit"]),
    ("rate_control", "max_batch", &["1", "64"]),
    ("rate_control", "debt", &["0s", "100ms"]),
    ("liveness", "silence", &["10s", "15s"]),
    ("fec", "data", &["1", "5", "20"]),
    ("fec", "repair", &["1", "4"]),
];

/// A recipe that carries an object, and its compiled stack.
pub(crate) fn any_object_recipe(seed: u64) -> Option<(Recipe, Arc<CompiledStack>)> {
    let mut rng = Rng::from_seed(seed);
    let registry: Arc<Registry> = Arc::new(micro::registry());
    let mut names = vec!["sequenced_segment", "object", "bitmap_ack", "retransmit", "rate_control"];
    let others: Vec<&str> =
        registry.iter().map(|known| known.name).filter(|name| !names.contains(name)).collect();
    for other in others.into_iter().filter(|_| rng.chance(0.5)) {
        names.push(other);
        let bare = names.iter().fold(Recipe::new("random"), |recipe, name| recipe.with(*name));
        if registry.compile(&bare, TAG).is_err() {
            names.pop();
        }
    }
    shuffle(&mut names, &mut rng);
    (0..DRAWS).find_map(|_| draw(&registry, &names, &mut rng))
}

/// Whether it is useless for messages.
fn concerns_objects(known: &Registration) -> bool {
    known.name == "object" || known.needs.iter().any(|needs| *needs == ["object"])
}

/// Adds what is needed, and removes what conflicts with something before it.
fn complete(registry: &Registry, names: &mut Vec<&'static str>, rng: &mut Rng) {
    let mut at = 0;
    while at < names.len() {
        let Some(known) = registry.get(names[at]) else { return };
        for alternatives in known.needs {
            if !alternatives.iter().any(|name| names.contains(name)) {
                let fits = |name: &&&str| !registry.get(name).is_some_and(concerns_objects);
                let fitting: Vec<&&str> = alternatives.iter().filter(fits).collect();
                names.push(fitting[rng.below(fitting.len() as u64) as usize]);
            }
        }
        let excluded = |other: &str| known.conflicts.iter().any(|(conflict, _)| *conflict == other);
        names.retain(|name| !excluded(name) || *name == "fixed_size");
        at += 1;
    }
    names.retain(|name| registry.get(name).is_some());
}

fn shuffle(names: &mut [&str], rng: &mut Rng) {
    for at in (1..names.len()).rev() {
        names.swap(at, rng.below(at as u64 + 1) as usize);
    }
}

fn with(
    registry: &Registry,
    recipe: Recipe,
    name: &'static str,
    carries_object: bool,
    rng: &mut Rng,
) -> Recipe {
    let mut parameters = Vec::new();
    let values = if carries_object { OBJECT_VALUES } else { VALUES };
    if carries_object && name == "retransmit" {
        parameters.push(("keep", "object"));
    }
    for (part, parameter, values) in values {
        if *part == name && rng.chance(0.7) {
            parameters.push((*parameter, values[rng.below(values.len() as u64) as usize]));
        }
    }
    if name == "rate_control" && rng.chance(0.9) {
        let laws = laws();
        parameters.push(("controller", laws[rng.below(laws.len() as u64) as usize].name));
    }
    let mut recipe = recipe.with(name);
    for (parameter, text) in parameters {
        registry.set(&mut recipe, &format!("{name}.{parameter}"), text).unwrap();
    }
    recipe
}

#[test]
fn most_generated_recipes_can_be_built_and_every_micro_protocol_occurs() {
    let recipes: Vec<_> = (0..600).filter_map(any_recipe).collect();
    let objects: Vec<_> = (0..600).filter_map(any_object_recipe).collect();
    assert!(recipes.len() > 240 && objects.len() > 240, "{} and {} of 600", recipes.len(), objects.len());
    for known in micro::registry().iter() {
        let uses =
            |of: &[(Recipe, Arc<CompiledStack>)]| of.iter().filter(|made| made.0.has(known.name)).count();
        let (with_messages, with_object) = (uses(&recipes), uses(&objects));
        assert!(with_messages.max(with_object) >= 50, "{}: {with_messages}, {with_object}", known.name);
    }
}
