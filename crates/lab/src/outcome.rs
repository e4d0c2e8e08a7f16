//! Results of a measurement that has no plan: figures, and claims to check.

use serde::Serialize;
use serde_json::{Map, Value};

/// Figures of a measurement, and claims about them.
#[derive(Debug, Default)]
pub(crate) struct Outcome {
    /// Table rows by table name.
    pub tables: Map<String, Value>,
    pub claims: Vec<Claim>,
}

/// A property that must hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Claim {
    pub name: String,
    /// The paper's values.
    pub paper: String,
    pub ours: String,
    pub is_met: bool,
    /// Known reason if the claim does not hold.
    pub why: &'static str,
}

impl Outcome {
    /// Adds a row to a table.
    pub(crate) fn row(&mut self, table: &str, row: impl Serialize) {
        let row = serde_json::to_value(row).unwrap_or(Value::Null);
        let rows = self.tables.entry(table).or_insert_with(|| Value::Array(Vec::new()));
        if let Value::Array(rows) = rows {
            rows.push(row);
        }
    }

    pub(crate) fn claim(
        &mut self,
        name: impl Into<String>,
        paper: impl Into<String>,
        ours: String,
        is_met: bool,
    ) {
        self.claims.push(Claim { name: name.into(), paper: paper.into(), ours, is_met, why: "" });
    }
}
