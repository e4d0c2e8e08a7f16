//! How times and rates of a [`RunReport`](super::RunReport) travel from the machine that made it to the one
//! that shows it: as whole numbers, so that nothing is lost.

use haul_base::{Cause, CauseCounts, Rate, Span};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// The names that a capacity can have.
const CAPACITIES: [&str; 3] = ["path", "ceiling", "measured path"];

/// A time, in nanoseconds.
pub(super) mod span {
    use super::{Deserialize, Deserializer, Serializer, Span};

    #[expect(clippy::trivially_copy_pass_by_ref, reason = "the form that serde calls")]
    pub(in super::super) fn serialize<S: Serializer>(span: &Span, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_u64(span.as_nanos())
    }

    pub(in super::super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Span, D::Error> {
        u64::deserialize(from).map(Span::from_nanos)
    }
}

/// A time that may be unknown.
pub(super) mod maybe_span {
    use super::{Deserialize, Deserializer, Serialize, Serializer, Span};

    #[expect(clippy::ref_option, reason = "the form that serde calls")]
    pub(in super::super) fn serialize<S: Serializer>(span: &Option<Span>, to: S) -> Result<S::Ok, S::Error> {
        span.map(Span::as_nanos).serialize(to)
    }

    pub(in super::super) fn deserialize<'de, D: Deserializer<'de>>(
        from: D,
    ) -> Result<Option<Span>, D::Error> {
        Ok(Option::<u64>::deserialize(from)?.map(Span::from_nanos))
    }
}

/// A rate, in bits per second.
pub(super) mod rate {
    use super::{Deserialize, Deserializer, Rate, Serializer};

    #[expect(clippy::trivially_copy_pass_by_ref, reason = "the form that serde calls")]
    pub(in super::super) fn serialize<S: Serializer>(rate: &Rate, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_u64(rate.as_bps())
    }

    pub(in super::super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Rate, D::Error> {
        u64::deserialize(from).map(Rate::from_bps)
    }
}

/// Lost packets by cause, in the order of the causes.
pub(super) mod causes {
    use super::{Cause, CauseCounts, Deserialize, Deserializer, Serialize, Serializer};

    pub(in super::super) fn serialize<S: Serializer>(lost: &CauseCounts, to: S) -> Result<S::Ok, S::Error> {
        Cause::ALL.map(|cause| lost.of(cause)).serialize(to)
    }

    pub(in super::super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<CauseCounts, D::Error> {
        let packets = <[u64; Cause::ALL.len()]>::deserialize(from)?;
        Ok(Cause::ALL.into_iter().zip(packets).collect())
    }
}

/// A rate with its name.
pub(super) mod capacity {
    use super::{CAPACITIES, Deserialize, Deserializer, Rate, Serialize, Serializer};

    type Capacity = Option<(Rate, &'static str)>;

    pub(in super::super) fn serialize<S: Serializer>(capacity: &Capacity, to: S) -> Result<S::Ok, S::Error> {
        capacity.map(|(rate, name)| (rate.as_bps(), name)).serialize(to)
    }

    /// A name that is not known here leaves the capacity out.
    pub(in super::super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Capacity, D::Error> {
        let read = Option::<(u64, String)>::deserialize(from)?;
        Ok(read.and_then(|(bps, name)| {
            let name = CAPACITIES.into_iter().find(|known| *known == name)?;
            Some((Rate::from_bps(bps), name))
        }))
    }
}

#[cfg(test)]
mod tests {
    use haul_base::{Cause, Rate, Span};

    use crate::fault;
    use crate::output::{CpuSeconds, FileFailure, LimitedBy, Name, Packets, RunReport};

    #[test]
    fn a_report_arrives_as_it_was() {
        let report = RunReport {
            bytes: u64::MAX,
            elapsed: Span::from_nanos(1_234_567_891),
            goodput: Rate::from_bps(987_654_321),
            rtt: Some(Span::from_nanos(50_000_001)),
            packets: Packets { sent: 5, resent: 1 },
            lost: Cause::ALL.into_iter().zip(1..).collect(),
            capacity: Some((Rate::from_mbps(5), "measured path")),
            limited_by: Some(LimitedBy { what: "path".to_owned(), evidence: "seen".to_owned() }),
            digest: Some("00ff".to_owned()),
            cpu: CpuSeconds { sender: Some(0.1), receiver: None },
            failed: vec![FileFailure {
                machine: None,
                path: Name(b"x\xff".to_vec()),
                fault: fault::usage("no", "yes"),
                below: 7,
            }],
            failed_files: 1,
            files_exit_code: Some(8),
            error: Some(fault::usage("a", "b")),
            ..RunReport::default()
        };
        let json = serde_json::to_string(&report).unwrap();
        assert_eq!(serde_json::from_str::<RunReport>(&json).unwrap(), report);
        assert_eq!(serde_json::from_str::<RunReport>("{}").unwrap(), RunReport::default());
    }

    #[test]
    fn a_capacity_of_another_version_is_left_out() {
        let report: RunReport = serde_json::from_str(r#"{"capacity":[5,"odd"]}"#).unwrap();
        assert_eq!(report.capacity, None);
    }
}
