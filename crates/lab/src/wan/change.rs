//! Changes to a running path, scheduled or immediate: `loss=1%`, `rate-back=20Mbit`.

use std::str::FromStr;

use haul_base::{Rate, Span};
use haul_wan::PathDirection;

use super::values::{self, Bursts, Policing, QueueSize, Reorder, Share};

/// New value.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Setting {
    Rtt(Span),
    Rate(Rate),
    Queue(QueueSize),
    Policer(Policing),
    Loss(Share),
    Bursts(Bursts),
    Jitter(Span),
    Reorder(Reorder),
    Duplicate(Share),
    Corrupt(Share),
    Outage(Span),
    PathMtu(u32),
}

/// A change of one or both directions.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Change {
    text: String,
    pub(super) setting: Setting,
    pub(super) directions: &'static [PathDirection],
}

/// A change, and its time since the start.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Scheduled {
    pub at: Span,
    pub change: Change,
}

const KEYS: &str =
    "rtt, rate, queue, policer, loss, burst-loss, jitter, reorder, duplicate, corrupt, outage or path-mtu";

impl FromStr for Change {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (key, value) = text.split_once('=').ok_or("write KEY=VALUE, for example loss=1%")?;
        let (key, value) = (key.trim(), value.trim());
        let (name, directions): (&str, &[PathDirection]) =
            match (key.strip_suffix("-back"), key.strip_suffix("-forth")) {
                (Some(name), _) => (name, &[PathDirection::Back]),
                (_, Some(name)) => (name, &[PathDirection::Forth]),
                _ => (key, &[PathDirection::Forth, PathDirection::Back]),
            };
        let span = || value.parse::<Span>().map_err(|e| e.to_string());
        let setting = match name {
            "rtt" => Setting::Rtt(span()?),
            "rate" => Setting::Rate(values::rate(value)?),
            "queue" => Setting::Queue(value.parse()?),
            "policer" => Setting::Policer(value.parse()?),
            "loss" => Setting::Loss(value.parse()?),
            "burst-loss" => Setting::Bursts(value.parse()?),
            "jitter" => Setting::Jitter(span()?),
            "reorder" => Setting::Reorder(value.parse()?),
            "duplicate" => Setting::Duplicate(value.parse()?),
            "corrupt" => Setting::Corrupt(value.parse()?),
            "outage" => Setting::Outage(span()?),
            "path-mtu" => Setting::PathMtu(values::mtu(value)?),
            _ => {
                return Err(format!(
                    "`{key}` cannot be changed; it must be {KEYS}, with -forth or -back for one way"
                ));
            }
        };
        Ok(Self { text: text.to_owned(), setting, directions })
    }
}

impl FromStr for Scheduled {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let hint = "write AT:KEY=VALUE, for example 10s:loss=1%";
        let (at, change) = text.split_once(':').ok_or(hint)?;
        let at = at.parse().map_err(|_| hint.to_owned())?;
        Ok(Self { at, change: change.parse()? })
    }
}

impl std::fmt::Display for Change {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_name_their_direction() {
        let change: Change = "loss=1%".parse().unwrap();
        assert_eq!(change.directions, [PathDirection::Forth, PathDirection::Back]);
        assert_eq!("loss-back=1%".parse::<Change>().unwrap().directions, [PathDirection::Back]);
        assert_eq!("rate-forth=1Mbit".parse::<Change>().unwrap().directions, [PathDirection::Forth]);
    }

    #[test]
    fn scheduled_changes_have_a_time() {
        let scheduled: Scheduled = "10s:reorder=1%:5ms".parse().unwrap();
        assert_eq!(scheduled.at, Span::from_secs(10));
        assert_eq!(scheduled.change.to_string(), "reorder=1%:5ms");
    }

    #[test]
    fn impossible_values_are_refused_with_an_example() {
        for (text, hint) in
            [("loss", "loss=1%"), ("colour=red", "burst-loss"), ("loss=2", "0.1%"), ("outage=soon", "50ms")]
        {
            let error = text.parse::<Change>().unwrap_err();
            assert!(error.contains(hint), "{text}: {error}");
        }
        assert!("loss=1%".parse::<Scheduled>().unwrap_err().contains("10s:loss"));
    }
}
