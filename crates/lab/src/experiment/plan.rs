//! Experiment plans: a scenario, varied values, diagrams and checks.

use std::collections::BTreeMap;
use std::fs;
use std::num::NonZeroU32;
use std::path::Path;

use serde::Deserialize;
use toml::{Table, Value};

use super::check::CheckSpec;
use super::measure::{Quantity, Stretch};
use super::results::{Cell, Results};
use crate::emulator::Emulator;
use crate::problem::Problem;
use crate::sim::real::RealJob;
use crate::sim::{self, Axis, RunReport, Values};

/// The shipped plans. A new one needs an entry here.
const PLANS: &[(&str, &str)] = &[
    ("datta-3", include_str!("../../plans/datta-3.toml")),
    ("datta-4", include_str!("../../plans/datta-4.toml")),
    ("datta-8", include_str!("../../plans/datta-8.toml")),
    ("datta-9", include_str!("../../plans/datta-9.toml")),
    ("datta-cases", include_str!("../../plans/datta-cases.toml")),
    ("asynch-1", include_str!("../../plans/asynch-1.toml")),
    ("asynch-2", include_str!("../../plans/asynch-2.toml")),
    ("asynch-3", include_str!("../../plans/asynch-3.toml")),
    ("asynch-4", include_str!("../../plans/asynch-4.toml")),
    ("asynch-6", include_str!("../../plans/asynch-6.toml")),
    ("asynch-9", include_str!("../../plans/asynch-9.toml")),
    ("dickens-1", include_str!("../../plans/dickens-1.toml")),
    ("dickens-t2", include_str!("../../plans/dickens-t2.toml")),
    ("dickens-classifier", include_str!("../../plans/dickens-classifier.toml")),
    ("direct-execution", include_str!("../../plans/direct-execution.toml")),
    ("signatures", include_str!("../../plans/signatures.toml")),
    ("discriminators", include_str!("../../plans/discriminators.toml")),
    ("moving", include_str!("../../plans/moving.toml")),
    ("neighbours", include_str!("../../plans/neighbours.toml")),
    ("bottleneck", include_str!("../../plans/bottleneck.toml")),
    ("laws", include_str!("../../plans/laws.toml")),
    ("laws-order", include_str!("../../plans/laws-order.toml")),
    ("real-network", include_str!("../../plans/real-network.toml")),
    ("real-signatures", include_str!("../../plans/real-signatures.toml")),
    ("real-rates", include_str!("../../plans/real-rates.toml")),
    ("real-few", include_str!("../../plans/real-few.toml")),
    ("real-bottleneck", include_str!("../../plans/real-bottleneck.toml")),
    ("real-direct", include_str!("../../plans/real-direct.toml")),
    ("real-red", include_str!("../../plans/real-red.toml")),
    ("real-many", include_str!("../../plans/real-many.toml")),
    ("real-host", include_str!("../../plans/real-host.toml")),
    ("host-boundary", include_str!("../../plans/host-boundary.toml")),
    ("cause-aware", include_str!("../../plans/cause-aware.toml")),
    ("laws-real", include_str!("../../plans/laws-real.toml")),
];

/// A plan file.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Plan {
    /// Description for users.
    pub about: String,
    /// Name of the paper, or `ours`.
    pub paper: String,
    /// Figures and tables of the paper; empty for our own experiments.
    #[serde(default)]
    pub figures: String,
    /// Differences from the paper, with reasons.
    #[serde(default)]
    pub notes: String,
    /// Where the runs are made.
    #[serde(default)]
    pub runner: Runner,
    /// Runs by default.
    pub quick: Profile,
    /// Runs with `--full`; the same as `quick` if absent.
    pub full: Option<Profile>,
    /// Scenario, as in a file of `haul-lab sim`.
    pub scenario: Table,
    /// Named settings that can be swept like a key: name of the axis, name of the value, keys and their
    /// values. A key ending in a plus sign (`traffic+`) adds entries to a list.
    #[serde(default)]
    pub variants: BTreeMap<String, BTreeMap<String, Table>>,
    #[serde(default)]
    pub plot: Vec<PlotSpec>,
    /// Expected results.
    pub check: Vec<CheckSpec>,
}

/// Where the runs of a plan are made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Runner {
    /// In virtual time.
    #[default]
    Simulator,
    /// By the built `haul` on an emulated path.
    Emulator,
    /// Each combination in either; the key `runner` selects.
    Both,
}

/// Where one run is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum World {
    Simulator,
    Emulator,
}

impl Runner {
    pub(super) const fn worlds(self) -> &'static [World] {
        match self {
            Self::Simulator => &[World::Simulator],
            Self::Emulator => &[World::Emulator],
            Self::Both => &[World::Simulator, World::Emulator],
        }
    }

    /// Returns the name for users.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Simulator => "simulator",
            Self::Emulator => "emulator",
            Self::Both => "both",
        }
    }
}

/// The key that selects the world with [`Runner::Both`].
const RUNNER: &str = "runner";

/// Extent of the runs.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Profile {
    /// Number of seeds per combination: 1, 2, 3 ...
    pub seeds: NonZeroU32,
    /// Keys, or names of variants, and their values; if absent in `full`, those of `quick`.
    #[serde(default)]
    pub sweep: Table,
}

/// A diagram.
#[derive(Clone, Debug, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub(super) enum PlotSpec {
    /// Means over the seeds, with their scatter, as a function of a key.
    Curve(CurveSpec),
    /// Quantities over time in the run of the first seed, one diagram above the other.
    OverTime(OverTimeSpec),
    /// Quantities over time in the run of the first seed, with a small panel for each value of a key.
    Grid(GridSpec),
    /// Means as a function of two keys, as a heat map.
    Heat(HeatSpec),
    /// Transmission windows of all runs with `windows = true` in their sessions.
    Windows(WindowsSpec),
}

impl PlotSpec {
    /// Returns the key whose values each have a separate file, and the selected combinations.
    pub(super) fn file_each(&self) -> Option<(&str, &Table)> {
        match self {
            Self::OverTime(spec) => Some((spec.file.as_deref()?, &spec.at)),
            Self::Grid(spec) => Some((spec.file.as_deref()?, &spec.at)),
            Self::Curve(_) | Self::Heat(_) | Self::Windows(_) => None,
        }
    }

    /// Restricts the diagram to combinations in which a key has this value.
    pub(super) fn only(&self, key: &str, value: Value) -> Self {
        let mut one = self.clone();
        let at = match &mut one {
            Self::OverTime(spec) => &mut spec.at,
            Self::Grid(spec) => &mut spec.at,
            Self::Curve(spec) => &mut spec.at,
            Self::Heat(spec) => &mut spec.at,
            Self::Windows(spec) => &mut spec.at,
        };
        at.insert(key.to_owned(), value);
        one
    }
}

/// See [`PlotSpec::Windows`].
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct WindowsSpec {
    /// View to draw.
    pub show: WindowView,
    /// Key whose values have separate colours.
    pub series: Option<String>,
    /// Selected combinations.
    #[serde(default)]
    pub at: Table,
}

/// A view of windows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum WindowView {
    /// Positions of lost packets in the first window of each run of the first seed.
    Positions,
    /// Complexity over the loss rate, one point per window, with the curves of the shipped model.
    Complexity,
    /// Mean complexity per bin of the loss rate, with its deviation.
    MeanComplexity,
    /// Distribution of the success proportion: share of the windows in each bin of 1 %.
    SuccessProportion,
    /// Number of different words in the first window up to each packet; the complexity is computed from it.
    Words,
    /// Share of windows lost by the host over the posterior probability; both causes have equal weight.
    Reliability,
}

/// See [`PlotSpec::Curve`].
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct CurveSpec {
    /// Quantity to draw.
    pub measure: Quantity,
    /// Key along the x axis.
    pub x: String,
    /// Key whose values have separate lines.
    pub series: Option<String>,
    /// Selected combinations.
    #[serde(default)]
    pub at: Table,
}

/// See [`PlotSpec::OverTime`].
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct OverTimeSpec {
    /// Recorded quantities: `law_bps.bulk`, `dropped.bulk`, `host_load.rx`.
    pub over_time: Vec<String>,
    /// Key whose values have separate lines.
    pub series: Option<String>,
    /// Key whose values have separate files.
    pub file: Option<String>,
    /// Selected combinations.
    #[serde(default)]
    pub at: Table,
}

/// See [`PlotSpec::Grid`].
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct GridSpec {
    /// Recorded quantities with times: `law_bps.bulk@0s..6s`; each has its own lines.
    pub grid: Vec<Stretch>,
    /// Key whose values have separate panels.
    pub each: String,
    /// Key whose values have separate files.
    pub file: Option<String>,
    /// Key whose values have separate lines.
    pub series: Option<String>,
    /// Selected combinations.
    #[serde(default)]
    pub at: Table,
}

/// See [`PlotSpec::Heat`].
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct HeatSpec {
    /// Quantity to draw.
    pub heat: Quantity,
    /// Value that is drawn as 1.
    #[serde(default = "one")]
    pub per: f64,
    /// Key of the columns.
    pub columns: String,
    /// Key of the rows.
    pub rows: String,
    /// Selected combinations.
    #[serde(default)]
    pub at: Table,
}

fn one() -> f64 {
    1.0
}

impl Profile {
    /// Returns all combinations of the swept values, without seeds.
    pub(super) fn combinations(&self) -> Result<Vec<Values>, String> {
        let mut swept = Table::from_iter([("sweep".to_owned(), Value::Table(self.sweep.clone()))]);
        let axes: Vec<Axis> =
            sim::take_axes(&mut swept).map_err(|(key, message)| format!("sweep `{key}`: {message}"))?;
        sim::combinations(&axes).ok_or_else(|| "the sweep has too many combinations".to_owned())
    }
}

impl Plan {
    /// Parses a plan. Errors name the position.
    fn parse(text: &str) -> Result<Self, String> {
        let mut plan: Self = toml::from_str(text).map_err(|error| error.to_string())?;
        if let Some(full) = plan.full.as_mut().filter(|full| full.sweep.is_empty()) {
            full.sweep.clone_from(&plan.quick.sweep);
        }
        Ok(plan)
    }

    /// Returns the shipped plan with this name, or reads the plan from this file (`mine.toml`).
    pub(super) fn named(name: &str) -> Result<Self, Problem> {
        if Path::new(name).extension().is_some_and(|end| end == "toml") {
            let text = fs::read_to_string(name).map_err(|error| {
                Problem::usage(
                    format!("{name}: {error}"),
                    "give the path of a plan, or a name of `haul-lab list`",
                )
            })?;
            return Self::parse(&text).map_err(|error| {
                Problem::usage(format!("{name}: {error}"), "docs/experiments.md describes plans")
            });
        }
        let found = PLANS.iter().find(|(known, _)| *known == name);
        let (_, text) = found.ok_or_else(|| {
            let message = format!("there is no experiment `{name}`");
            Problem::usage(message, "`haul-lab list` shows all experiments")
        })?;
        Self::parse(text).map_err(|error| Problem::failed(format!("plan {name}: {error}"), ""))
    }

    /// Returns the names of all plans, in listing order.
    pub(super) fn names() -> impl Iterator<Item = &'static str> {
        PLANS.iter().map(|(name, _)| *name)
    }

    /// Returns the full or the quick profile.
    pub(super) fn profile(&self, is_full: bool) -> &Profile {
        self.full.as_ref().filter(|_| is_full).unwrap_or(&self.quick)
    }

    /// Overrides the number of seeds in each profile.
    pub(super) fn set_seeds(&mut self, seeds: Option<NonZeroU32>) {
        let Some(seeds) = seeds else { return };
        self.full.iter_mut().chain([&mut self.quick]).for_each(|profile| profile.seeds = seeds);
    }

    /// Returns all combinations, with the world of each.
    pub(super) fn combinations(&self, profile: &Profile) -> Result<Vec<(World, Values)>, String> {
        let combinations = profile.combinations()?;
        let of = |world: World| {
            let mut all = combinations.clone();
            if self.runner == Runner::Both {
                let name = if world == World::Simulator { "simulator" } else { "emulator" };
                for values in &mut all {
                    values.push((RUNNER.to_owned(), Value::from(name)));
                }
            }
            all.into_iter().map(move |values| (world, values))
        };
        Ok(self.runner.worlds().iter().copied().flat_map(of).collect())
    }

    /// Returns the scenario with one combination and one seed.
    pub(super) fn scenario(&self, values: &Values, seed: u32) -> Result<Table, String> {
        let mut table = self.scenario.clone();
        table.insert("seed".to_owned(), Value::from(seed));
        for (key, value) in values.iter().filter(|(key, _)| key != RUNNER) {
            let Some(variants) = self.variants.get(key) else {
                sim::set(&mut table, key, value)?;
                continue;
            };
            let chosen = value.as_str().and_then(|name| variants.get(name)).ok_or_else(|| {
                let known = variants.keys().cloned().collect::<Vec<_>>().join(", ");
                format!("`{key}` has no variant {value}; there are: {known}")
            })?;
            for (key, value) in chosen {
                match key.strip_suffix('+') {
                    Some(list) => extend(&mut table, list, value)?,
                    None => sim::set(&mut table, key, value)?,
                }
            }
        }
        Ok(table)
    }

    /// Runs a profile: simulated runs on several threads, real ones one at a time.
    pub(super) fn run(
        &self,
        profile: &Profile,
        threads: usize,
        emulator: Option<&Emulator>,
    ) -> Result<Results, Problem> {
        let bad = |message: String| Problem::failed(format!("the plan cannot be run: {message}"), "");
        let combinations = self.combinations(profile).map_err(bad)?;
        let (mut jobs, mut real) = (Vec::new(), Vec::new());
        for (world, values) in &combinations {
            for seed in 1..=profile.seeds.get() {
                let table = self.scenario(values, seed).map_err(bad)?;
                match world {
                    World::Simulator => jobs.push(sim::prepare(table, values.clone()).map_err(bad)?),
                    World::Emulator => real.push(sim::real::prepare(table, values.clone()).map_err(bad)?),
                }
            }
        }
        let mut reports = sim::run_all(jobs, threads);
        reports.extend(run_real(&real, emulator)?);
        let mut reports = reports.into_iter();
        let seeds = profile.seeds.get() as usize;
        let cell = |(_, values)| Cell { values, runs: reports.by_ref().take(seeds).collect() };
        Ok(Results { cells: combinations.into_iter().map(cell).collect() })
    }
}

fn run_real(jobs: &[RealJob], emulator: Option<&Emulator>) -> Result<Vec<RunReport>, Problem> {
    let Some(emulator) = emulator else { return Ok(Vec::new()) };
    let haul = sim::real::haul()?;
    let run = |(number, job): (usize, &RealJob)| {
        eprintln!("haul-lab: run {} of {} on the emulator", number + 1, jobs.len());
        job.run(emulator, &haul)
    };
    jobs.iter().enumerate().map(run).collect()
}

/// Adds entries to a list of the scenario, which is created if absent.
fn extend(table: &mut Table, list: &str, entries: &Value) -> Result<(), String> {
    let known = table.entry(list).or_insert_with(|| Value::Array(Vec::new()));
    let (Value::Array(known), Value::Array(new)) = (known, entries) else {
        return Err(format!("`{list}+` adds entries to a list"));
    };
    known.extend(new.iter().cloned());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_experiment_laws_contains_every_law() {
        let plan = Plan::named("laws").unwrap();
        let swept = plan.quick.sweep["law"].as_array().unwrap();
        let mut swept: Vec<&str> = swept.iter().filter_map(Value::as_str).collect();
        let mut known = haul_proto::law_names();
        swept.sort_unstable();
        known.sort_unstable();
        assert_eq!(swept, known);
    }

    #[test]
    fn every_shipped_plan_parses_and_all_its_runs_can_be_built() {
        for (name, text) in PLANS {
            let plan = Plan::parse(text).unwrap_or_else(|error| panic!("{name}: {error}"));
            for profile in [Some(&plan.quick), plan.full.as_ref()].into_iter().flatten() {
                let combinations = plan.combinations(profile).unwrap();
                assert!(!combinations.is_empty(), "{name}");
                for (world, values) in &combinations {
                    let table = plan.scenario(values, 1).unwrap_or_else(|error| panic!("{name}: {error}"));
                    let prepared = match world {
                        World::Simulator => sim::prepare(table, values.clone()).map(drop),
                        World::Emulator => sim::real::prepare(table, values.clone()).map(drop),
                    };
                    prepared.unwrap_or_else(|error| panic!("{name}, {values:?}: {error}"));
                }
                for check in &plan.check {
                    for cell in check.cells() {
                        let found = combinations
                            .iter()
                            .any(|(_, values)| super::super::results::matches(values, cell));
                        assert!(found, "{name}, check `{}`: no run has {cell}", check.name);
                    }
                }
            }
            assert!(plan.about.len() > 20 && !plan.check.is_empty(), "{name}");
        }
    }
}
