//! Results of an experiment's runs, by combination.

use toml::Table;

use super::measure::{Quantity, label};
use crate::sim::{RecordedWindow, RunReport, Values};

/// All runs of one combination of values.
#[derive(Debug)]
pub(super) struct Cell {
    pub values: Values,
    /// Runs in the order of the seeds 1, 2, 3 ...
    pub runs: Vec<RunReport>,
}

/// All runs of an experiment.
#[derive(Debug)]
pub(super) struct Results {
    pub cells: Vec<Cell>,
}

/// Whether a combination has all of these values.
pub(super) fn matches(values: &Values, at: &Table) -> bool {
    at.iter().all(|(key, required)| values.iter().any(|(known, value)| known == key && value == required))
}

impl Cell {
    /// Returns a quantity of each run, in the order of the seeds.
    pub(super) fn of(&self, quantity: &Quantity) -> Result<Vec<f64>, String> {
        let value = |run: &RunReport| {
            quantity.of(run).ok_or_else(|| format!("no `{}` in the runs of {}", quantity.text, self.name()))
        };
        self.runs.iter().map(value).collect()
    }

    /// Returns the value of a key.
    pub(super) fn value(&self, key: &str) -> Option<&toml::Value> {
        self.values.iter().find(|(known, _)| known == key).map(|(_, value)| value)
    }

    /// Returns the values as text.
    pub(super) fn name(&self) -> String {
        self.values.iter().map(|(_, value)| label(value)).collect::<Vec<_>>().join(", ")
    }
}

impl Results {
    /// Returns the values of a key among these combinations, in the order of the runs.
    pub(super) fn values_of(&self, key: &str, at: &Table) -> Vec<toml::Value> {
        let mut known: Vec<toml::Value> = Vec::new();
        for value in self.select(at).filter_map(|cell| cell.value(key)) {
            if !known.contains(value) {
                known.push(value.clone());
            }
        }
        known
    }

    /// Returns the single combination with all of these values.
    pub(super) fn cell(&self, at: &Table) -> Result<&Cell, String> {
        let mut found = self.select(at);
        match (found.next(), found.next()) {
            (Some(cell), None) => Ok(cell),
            (None, _) => Err(format!("no run has {at}")),
            (Some(_), Some(_)) => Err(format!("more than one combination has {at}")),
        }
    }

    /// Returns the combinations with all of these values.
    pub(super) fn select<'a>(&'a self, at: &Table) -> impl Iterator<Item = &'a Cell> + use<'a> {
        let at = at.clone();
        self.cells.iter().filter(move |cell| matches(&cell.values, &at))
    }

    /// Returns the kept windows of the runs with all of these values.
    pub(super) fn windows<'a>(&'a self, at: &Table) -> impl Iterator<Item = &'a RecordedWindow> + use<'a> {
        self.select(at).flat_map(|cell| &cell.runs).flat_map(RunReport::windows)
    }

    /// Returns the problems of all runs, with the run's name.
    pub(super) fn problems(&self) -> Vec<String> {
        let of = |cell: &Cell| {
            let name = cell.name();
            let runs = cell.runs.iter().flat_map(|run| run.problems.iter().map(|text| (run.seed, text)));
            runs.map(|(seed, text)| format!("{name}, seed {seed}: {text}")).collect::<Vec<_>>()
        };
        self.cells.iter().flat_map(of).collect()
    }
}
