//! Conditions on the results of a run.

use haul_base::{Bytes, Rate, Span};
use haul_sim::DropReason;
use serde::Serialize;

/// Comparison operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Compare {
    AtLeast,
    AtMost,
    Above,
    Below,
    Equal,
    Unequal,
}

/// Longer operators first.
const COMPARES: [(&str, Compare); 7] = [
    (">=", Compare::AtLeast),
    ("<=", Compare::AtMost),
    ("==", Compare::Equal),
    ("!=", Compare::Unequal),
    (">", Compare::Above),
    ("<", Compare::Below),
    ("=", Compare::Equal),
];

/// Unit of a measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Unit {
    Rate,
    Time,
    Size,
    Count,
    Share,
    Truth,
}

/// All measures.
const MEASURES: [(&str, Unit); 46] = [
    ("complete", Unit::Truth),
    ("adds_up", Unit::Truth),
    ("goodput", Unit::Rate),
    ("time", Unit::Time),
    ("rtt", Unit::Time),
    ("min_rtt", Unit::Time),
    ("bytes", Unit::Size),
    ("packets", Unit::Count),
    ("resent", Unit::Count),
    ("resent_share", Unit::Share),
    ("lost_share", Unit::Share),
    ("datagram", Unit::Count),
    ("silences", Unit::Count),
    ("longest_wait", Unit::Time),
    ("told_host", Unit::Share),
    ("told_network", Unit::Share),
    ("told_nothing", Unit::Share),
    ("windows_host", Unit::Count),
    ("windows_network", Unit::Count),
    ("windows_nothing", Unit::Count),
    ("attributed", Unit::Share),
    ("put_on_host", Unit::Share),
    ("put_on_network", Unit::Share),
    ("biaz", Unit::Share),
    ("mbiaz", Unit::Share),
    ("spike", Unit::Share),
    ("zigzag", Unit::Share),
    ("zbs", Unit::Share),
    ("windows", Unit::Count),
    ("virtual_goodput", Unit::Rate),
    ("virtual_goodput_unaware", Unit::Rate),
    ("limited_by_path", Unit::Truth),
    ("limited_by_law", Unit::Truth),
    ("limited_by_ceiling", Unit::Truth),
    ("limited_by_host", Unit::Truth),
    ("limited_by_reading", Unit::Truth),
    ("limited_by_writing", Unit::Truth),
    ("limited_by_sending", Unit::Truth),
    ("limited_by_application", Unit::Truth),
    ("drops", Unit::Count),
    ("drops_back", Unit::Count),
    ("fairness", Unit::Share),
    ("inside", Unit::Count),
    ("delivered", Unit::Count),
    ("delay", Unit::Time),
    ("delay_p99", Unit::Time),
];

/// Subject of a measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Subject {
    /// A session.
    Session,
    /// A service.
    Service,
    /// Other traffic.
    Traffic,
    /// A link.
    Path,
    /// The whole run.
    Run,
}

impl Subject {
    /// Returns the name used in scenarios.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Session => "session",
            Self::Service => "service",
            Self::Traffic => "traffic",
            Self::Path => "path",
            Self::Run => "run",
        }
    }

    /// Returns the available measures; drops also by reason (`drops.random`).
    pub(crate) const fn measures(self) -> &'static [&'static str] {
        match self {
            Self::Session => &[
                "complete",
                "goodput",
                "time",
                "rtt",
                "min_rtt",
                "bytes",
                "packets",
                "resent",
                "resent_share",
                "lost_share",
                "datagram",
                "silences",
                "longest_wait",
                "told_host",
                "told_network",
                "told_nothing",
                "windows_host",
                "windows_network",
                "windows_nothing",
                "attributed",
                "put_on_host",
                "put_on_network",
                "biaz",
                "mbiaz",
                "spike",
                "zigzag",
                "zbs",
                "windows",
                "virtual_goodput",
                "virtual_goodput_unaware",
                "limited_by_path",
                "limited_by_law",
                "limited_by_ceiling",
                "limited_by_host",
                "limited_by_reading",
                "limited_by_writing",
                "limited_by_sending",
                "limited_by_application",
                "drops",
                "drops_back",
            ],
            Self::Service => &[
                "complete",
                "delivered",
                "goodput",
                "delay",
                "delay_p99",
                "packets",
                "resent",
                "lost_share",
                "drops",
                "drops_back",
            ],
            Self::Traffic => &["goodput", "packets", "lost_share", "drops"],
            Self::Path => &["packets", "lost_share", "drops", "drops_back", "inside"],
            Self::Run => &["complete", "adds_up", "goodput", "time", "fairness", "lost_share", "drops"],
        }
    }
}

/// A measure of a subject.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Measure {
    /// Name as written in conditions.
    pub name: &'static str,
    /// For drops, counts only those with this reason.
    pub reason: Option<DropReason>,
    unit: Unit,
}

impl Measure {
    /// Parses `name` or `drops.reason`. The error lists what is permitted.
    pub(crate) fn parse(subject: Subject, text: &str) -> Result<Self, String> {
        let (name, reason) = text.split_once('.').map_or((text, None), |(name, reason)| (name, Some(reason)));
        let known = MEASURES.iter().find(|(known, _)| *known == name && subject.measures().contains(known));
        let Some(&(name, unit)) = known else {
            let list = subject.measures().join(", ");
            return Err(format!("`{name}` is not available here; available: {list}"));
        };
        let reason = reason.map(|reason| {
            if !name.starts_with("drops") {
                return Err(format!("`{name}` has no parts; only drops are split, by reason"));
            }
            DropReason::ALL.into_iter().find(|known| known.name() == reason).ok_or_else(|| {
                let list = DropReason::ALL.map(DropReason::name).join(", ");
                format!("`{reason}` is no reason for a drop; there are: {list}")
            })
        });
        Ok(Self { name, reason: reason.transpose()?, unit })
    }
}

/// A parsed condition.
#[derive(Clone, Debug)]
pub(super) struct Condition {
    /// Measure to compare.
    pub measure: Measure,
    compare: Compare,
    bound: f64,
}

/// Result of a check.
#[derive(Clone, Debug, Serialize)]
pub(super) struct CheckReport {
    /// Name of the session, service, traffic or link.
    pub of: String,
    /// The condition as the scenario writes it.
    pub that: String,
    /// Measured value: bit/s, seconds, bytes, packets, a share, or true and false.
    pub was: serde_json::Value,
    /// Whether the condition held.
    pub passed: bool,
}

fn parse_share(text: &str) -> Result<f64, String> {
    let (number, scale) = text.strip_suffix('%').map_or((text, 1.0), |number| (number.trim(), 100.0));
    let value = number.parse::<f64>().ok().map(|value| value / scale).filter(|v| (0.0..=1.0).contains(v));
    value.ok_or_else(|| format!("`{text}` is no share between 0 and 1; write for example 1% or 0.01"))
}

fn parse_value(unit: Unit, text: &str) -> Result<f64, String> {
    let plain = |error: haul_base::UnitError| error.to_string();
    match unit {
        // `Rate` rejects zero, which is valid in comparisons.
        Unit::Rate if text.parse::<f64>().is_ok_and(|n| n == 0.0) => Ok(0.0),
        Unit::Rate => text.parse::<Rate>().map(|rate| rate.as_bps() as f64).map_err(plain),
        Unit::Time => text.parse::<Span>().map(Span::as_secs_f64).map_err(plain),
        Unit::Size => text.parse::<Bytes>().map(|bytes| bytes.0 as f64).map_err(plain),
        Unit::Share => parse_share(text),
        Unit::Count => {
            let count = text.parse::<u64>().map(|count| count as f64);
            count.map_err(|_| format!("`{text}` is no whole number"))
        }
        Unit::Truth => match text {
            "true" => Ok(1.0),
            "false" => Ok(0.0),
            _ => Err(format!("`{text}` is neither true nor false")),
        },
    }
}

impl Condition {
    /// Parses `measure compare value`. The error lists what is permitted.
    pub(super) fn parse(subject: Subject, text: &str) -> Result<Self, String> {
        let found = COMPARES.iter().find_map(|(sign, compare)| Some((text.split_once(sign)?, *compare)));
        let ((left, right), compare) = found
            .ok_or_else(|| format!("`{text}` is no comparison; write for example `goodput >= 800Mbit`"))?;
        let measure = Measure::parse(subject, left.trim())?;
        Ok(Self { measure, compare, bound: parse_value(measure.unit, right.trim())? })
    }

    /// Evaluates the condition; a missing value fails.
    pub(super) fn evaluate(&self, of: String, that: &str, was: Option<f64>) -> CheckReport {
        let passed = was.is_some_and(|was| match self.compare {
            Compare::AtLeast => was >= self.bound,
            Compare::AtMost => was <= self.bound,
            Compare::Above => was > self.bound,
            Compare::Below => was < self.bound,
            Compare::Equal => (was - self.bound).abs() < 1e-12,
            Compare::Unequal => (was - self.bound).abs() >= 1e-12,
        });
        let was = match (self.measure.unit, was) {
            (_, None) => serde_json::Value::Null,
            (Unit::Truth, Some(was)) => (was > 0.5).into(),
            (Unit::Count | Unit::Rate | Unit::Size, Some(was)) => (was as u64).into(),
            (Unit::Time | Unit::Share, Some(was)) => was.into(),
        };
        CheckReport { of, that: that.to_owned(), was, passed }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conditions_have_the_units_of_their_measures() {
        let passes = |that: &str, was| {
            Condition::parse(Subject::Session, that).unwrap().evaluate("s".into(), that, Some(was)).passed
        };
        assert!(passes("goodput >= 800Mbit", 8e8) && !passes("goodput > 800Mbit", 8e8));
        assert!(passes("resent_share <= 1%", 0.01) && passes("time < 2s", 1.9));
        assert!(passes("drops.random = 0", 0.0) && passes("complete = true", 1.0));
    }

    #[test]
    fn errors_list_what_is_allowed() {
        let error = |that| Condition::parse(Subject::Traffic, that).unwrap_err();
        assert!(error("complete = true").contains("available: goodput"));
        assert!(error("drops.magic = 0").contains("queue_full"));
        assert!(error("goodput >= 800").contains("800Mbit"));
        assert!(error("goodput").contains("is no comparison"));
    }
}
