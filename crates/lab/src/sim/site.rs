//! A world under construction, with its links and hosts by name.

use std::collections::BTreeMap;

use haul_base::{PathId, Span};
use haul_proto::{micro, presets};
use haul_sim::{HostId, LinkId, NodeId, World};
use haul_stack::Recipe;

use super::locate::Fault;

/// Both directions of a link.
#[derive(Debug)]
pub(super) struct Duplex {
    pub name: String,
    /// Towards the receivers.
    pub forward: LinkId,
    /// Towards the senders.
    pub back: LinkId,
    /// Total delay of the delay stages of both directions.
    pub delay: Span,
    /// Whether a stage damages packets.
    pub damages: bool,
}

/// Returns a list of valid names for an error message.
pub(super) fn known<'a>(names: impl Iterator<Item = &'a str>) -> String {
    let list = names.collect::<Vec<_>>().join(", ");
    if list.is_empty() { "none".to_owned() } else { list }
}

/// A world under construction.
#[derive(Debug)]
pub(super) struct Site<'a> {
    pub world: &'a mut World,
    pub links: &'a [Duplex],
    pub hosts: &'a [(String, HostId)],
}

impl Site<'_> {
    /// Returns the links with these names, in order, for an entry of a list.
    pub(super) fn route(&self, names: &[String], list: &str, index: usize) -> Result<Vec<&Duplex>, Fault> {
        if names.is_empty() {
            return Err(Fault::of(list, index, "path", "needs at least one path"));
        }
        let find = |name: &String| {
            self.links.iter().find(|link| link.name == *name).ok_or_else(|| {
                let list_of = known(self.links.iter().map(|link| link.name.as_str()));
                Fault::of(list, index, "path", format!("there is no path `{name}`; there are: {list_of}"))
            })
        };
        names.iter().map(find).collect()
    }

    /// Places a node on the host named by `key` of an entry.
    pub(super) fn place(
        &mut self,
        node: NodeId,
        host: Option<&String>,
        (list, index, key): (&str, usize, &str),
    ) -> Result<(), Fault> {
        let Some(name) = host else { return Ok(()) };
        let Some((_, id)) = self.hosts.iter().find(|(known, _)| known == name) else {
            let hosts = known(self.hosts.iter().map(|(name, _)| name.as_str()));
            return Err(Fault::of(
                list,
                index,
                key,
                format!("there is no host `{name}`; there are: {hosts}"),
            ));
        };
        self.world.place(node, *id).map_err(|error| Fault::of(list, index, key, error.to_string()))
    }
}

/// Returns settings of recipes from the field `set`, with the field's name.
pub(super) fn set_of(set: &BTreeMap<String, String>) -> impl Iterator<Item = (&'static str, &str, String)> {
    set.iter().map(|(key, value)| ("set", key.as_str(), value.clone()))
}

/// Returns the preset recipe with this name and overridden parameters, each from a field of the entry of a
/// list.
pub(super) fn recipe_of<'s>(
    name: &str,
    settings: impl Iterator<Item = (&'static str, &'s str, String)>,
    (list, index): (&str, usize),
) -> Result<Recipe, Fault> {
    let fault = |field: &str, message: String| Fault::of(list, index, field, message);
    let preset = presets::preset(name).ok_or_else(|| {
        let list_of = known(presets::PRESETS.iter().map(|preset| preset.0));
        fault("recipe", format!("there is no recipe `{name}`; there are: {list_of}"))
    })?;
    let mut recipe = preset.map_err(|error| fault("recipe", error.to_string()))?;
    let registry = micro::registry();
    for (field, key, value) in registry.in_order(settings, |(_, key, _)| key) {
        registry.set(&mut recipe, key, &value).map_err(|error| fault(field, error.to_string()))?;
    }
    Ok(recipe)
}

/// Port of all machines.
pub(super) const PORT: PathId = PathId(0);

/// Returns the links of a route towards the receivers, and of the way back in reverse order.
pub(super) fn directions_of(route: &[&Duplex]) -> (Vec<LinkId>, Vec<LinkId>) {
    (route.iter().map(|l| l.forward).collect(), route.iter().rev().map(|l| l.back).collect())
}
