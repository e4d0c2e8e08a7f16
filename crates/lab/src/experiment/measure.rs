//! Quantities of a run: measures as in scenario checks, or statistics of recorded values.

use serde::{Deserialize, Deserializer};

use haul_base::{Bytes, Rate, Span};
use toml::Value;

use crate::sim::{Measure, RunReport, Subject};

/// A numeric quantity of a run.
#[derive(Clone, Debug)]
pub(super) struct Quantity {
    /// Text form as in the plan.
    pub text: String,
    kind: Kind,
}

#[derive(Clone, Debug)]
enum Kind {
    /// `session.bulk.goodput`, or `lost_share` of the run.
    Total { subject: Subject, name: String, measure: Measure },
    /// `flow.bulk.goodput`: of the session or traffic with this name.
    Flow { name: String, measures: [Measure; 2] },
    /// `goodput_bps.bulk receiver@3s..20s`: mean of the recorded values between two times.
    Between(Stretch),
    /// `most.dropped.bulk@3s..20s`: maximum.
    Most(Stretch),
    /// `falls.law_bps.bulk@0s..20s`: number of values below the previous one.
    Falls(Stretch),
}

/// Recorded values between two times: `goodput_bps.bulk receiver@3s..20s`.
#[derive(Clone, Debug)]
pub(super) struct Stretch {
    pub series: String,
    /// Seconds since the start of the run.
    from: f64,
    /// Seconds since the start of the run.
    to: f64,
}

impl Stretch {
    fn parse(series: &str, times: &str) -> Result<Self, String> {
        let seconds = |text: &str| text.parse::<Span>().map(Span::as_secs_f64).map_err(|e| e.to_string());
        let (from, to) = times.split_once("..").ok_or_else(|| format!("`{times}`: write 3s..20s"))?;
        Ok(Self { series: series.to_owned(), from: seconds(from)?, to: seconds(to)? })
    }

    /// Returns the ends of its intervals in seconds, and the values.
    pub(super) fn of<'a>(&self, run: &'a RunReport) -> Option<impl Iterator<Item = (f64, f64)> + use<'a>> {
        let (interval, values) = run.recorded(&self.series)?;
        let (from, to) = (self.from + 1e-9, self.to + 1e-9);
        let all = values.iter().enumerate();
        let timed = all.map(move |(index, value)| ((index + 1) as f64 * interval, *value as f64));
        Some(timed.filter(move |(end, _)| *end > from && *end <= to))
    }
}

impl<'de> Deserialize<'de> for Stretch {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = String::deserialize(from)?;
        let (series, times) = text
            .split_once('@')
            .ok_or_else(|| serde::de::Error::custom(format!("`{text}`: write {text}@3s..20s")))?;
        Self::parse(series, times).map_err(serde::de::Error::custom)
    }
}

const SUBJECTS: [Subject; 4] = [Subject::Session, Subject::Service, Subject::Traffic, Subject::Path];

impl Quantity {
    /// Parses a quantity. The error describes the problem.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let kind = match text.split_once('@') {
            Some((series, times)) => match series.split_once('.') {
                Some(("most", series)) => Kind::Most(Stretch::parse(series, times)?),
                Some(("falls", series)) => Kind::Falls(Stretch::parse(series, times)?),
                _ => Kind::Between(Stretch::parse(series, times)?),
            },
            None => Self::total(text)?,
        };
        Ok(Self { text: text.to_owned(), kind })
    }

    fn total(text: &str) -> Result<Kind, String> {
        if let Some((name, measure)) = text.strip_prefix("flow.").and_then(|rest| rest.split_once('.')) {
            let of = |subject| Measure::parse(subject, measure);
            let measures = [of(Subject::Session)?, of(Subject::Traffic)?];
            return Ok(Kind::Flow { name: name.to_owned(), measures });
        }
        let named = text.split_once('.').and_then(|(subject, rest)| {
            let subject = SUBJECTS.into_iter().find(|known| known.name() == subject)?;
            let (name, measure) = rest.split_once('.')?;
            Some((subject, name.to_owned(), measure))
        });
        let (subject, name, measure) = named.unwrap_or((Subject::Run, String::new(), text));
        Ok(Kind::Total { subject, name, measure: Measure::parse(subject, measure)? })
    }

    /// Returns its value in a run: bit/s, seconds, bytes, packets, a share, or 1 for true.
    pub(super) fn of(&self, run: &RunReport) -> Option<f64> {
        match &self.kind {
            Kind::Total { subject, name, measure } => run.value(*subject, name, *measure),
            Kind::Flow { name, measures: [session, traffic] } => {
                let value = run.value(Subject::Session, name, *session);
                value.or_else(|| run.value(Subject::Traffic, name, *traffic))
            }
            Kind::Between(stretch) => {
                let inside: Vec<f64> = stretch.of(run)?.map(|(_, value)| value).collect();
                (!inside.is_empty()).then(|| inside.iter().sum::<f64>() / inside.len() as f64)
            }
            Kind::Most(stretch) => stretch.of(run)?.map(|(_, value)| value).reduce(f64::max),
            Kind::Falls(stretch) => falls(stretch.of(run)?.map(|(_, value)| value)),
        }
    }
}

/// Counts values below the previous one; `None` without values.
fn falls(mut values: impl Iterator<Item = f64>) -> Option<f64> {
    let mut before = values.next()?;
    Some(values.filter(|&value| value < std::mem::replace(&mut before, value)).count() as f64)
}

impl<'de> Deserialize<'de> for Quantity {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = String::deserialize(from)?;
        Self::parse(&text).map_err(serde::de::Error::custom)
    }
}

/// Converts a swept value to a number; one with a unit to bit/s, seconds, bytes or a share.
pub(super) fn number(value: &Value) -> Option<f64> {
    let text = match value {
        Value::Integer(n) => return Some(*n as f64),
        Value::Float(x) => return Some(*x),
        Value::String(text) => text.as_str(),
        _ => return None,
    };
    let share = || text.strip_suffix('%')?.trim().parse::<f64>().ok().map(|x| x / 100.0);
    let rate = || text.parse::<Rate>().ok().map(|rate| rate.as_bps() as f64);
    let span = || text.parse::<Span>().ok().map(Span::as_secs_f64);
    let size = || text.parse::<Bytes>().ok().map(|bytes| bytes.0 as f64);
    text.parse::<f64>().ok().or_else(share).or_else(span).or_else(rate).or_else(size)
}

/// Returns a value's label in tables and diagrams.
pub(super) fn label(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_name_their_subject_or_apply_to_the_run() {
        assert!(Quantity::parse("session.bulk.lost_share").is_ok());
        assert!(Quantity::parse("session.bulk.drops.socket_buffer").is_ok());
        assert!(Quantity::parse("fairness").is_ok());
        assert!(Quantity::parse("goodput_bps.bulk receiver@3s..20s").is_ok());
        let most = Quantity::parse("most.dropped.bulk@3s..20s").unwrap();
        assert!(matches!(most.kind, Kind::Most(stretch) if stretch.series == "dropped.bulk"));
        let falls = Quantity::parse("falls.law_bps.bulk@0s..20s").unwrap();
        assert!(matches!(falls.kind, Kind::Falls(stretch) if stretch.series == "law_bps.bulk"));
        assert!(Quantity::parse("session.bulk.speed").unwrap_err().contains("goodput"));
        assert!(Quantity::parse("law_bps.bulk@3s").is_err());
    }

    #[test]
    fn each_step_down_is_a_fall() {
        assert_eq!(falls([9.0, 4.0, 4.0, 5.0, 4.5, 4.0].into_iter()), Some(3.0));
        assert_eq!((falls([1.0].into_iter()), falls(std::iter::empty())), (Some(0.0), None));
    }

    #[test]
    fn values_with_units_are_numbers() {
        let number = |text: &str| number(&Value::from(text));
        assert_eq!(number("700Mbit"), Some(7e8));
        assert_eq!(number("20ms"), Some(0.02));
        assert_eq!(number("64KiB"), Some(65_536.0));
        assert_eq!(number("0.5%"), Some(0.005));
        assert_eq!(number("asynch"), None);
    }
}
