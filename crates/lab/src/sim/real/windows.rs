//! Transmission windows of a real run, with the true cause of each loss: packets in the emulator's drop log
//! were dropped on the path, all others by the receiving host.

use std::collections::{BTreeMap, HashMap};

use haul_base::{Cause, CauseCounts};
use haul_diagnosis::{Diagnosis, Metric, Signature, read_signatures};
use haul_sim::DropReason;
use haul_stack::GENERATION_BIT;
use serde::Serialize;
use serde_json::Value;

/// Kinds of packets with object data (docs/wire-format.md): DATA, `DATA_FIN`, `DATA_PART`.
const DATA: [u8; 3] = [1, 2, 7];
/// Hexadecimal digits of the kind and packet number, in clear at the start of every packet of a session.
const KIND_AND_NUMBER: usize = 14;

/// Drop reasons of data packets dropped on the path, by packet number.
#[derive(Debug, Default)]
pub(crate) struct Dropped(HashMap<u64, DropReason>);

impl Dropped {
    /// Parses a drop log (docs/wan-emulator.md) of a path with one session, whose sender is on side A.
    ///
    /// # Errors
    /// The first invalid line.
    pub(crate) fn read(log: &str) -> Result<Self, String> {
        let mut dropped = HashMap::new();
        for (number, line) in log.lines().enumerate() {
            let words: Vec<&str> = line.split(' ').collect();
            let wrong = || format!("line {} of the drop log: `{line}`", number + 1);
            let [_, way, reason, rest @ ..] = &words[..] else { return Err(wrong()) };
            let reason =
                DropReason::ALL.into_iter().find(|known| known.name() == *reason).ok_or_else(wrong)?;
            if let (&"forth", ["udp", _, _, payload]) = (way, rest)
                && let Some(pn) = data_packet(payload)
            {
                dropped.insert(pn, reason);
            }
        }
        Ok(Self(dropped))
    }

    /// Returns the cause of a packet's loss.
    fn cause(&self, pn: u64) -> Cause {
        self.0.get(&pn).map_or(Cause::ReceiverHost, |reason| reason.cause().unwrap_or(Cause::Inconclusive))
    }
}

/// Parses the number of a data packet from the hexadecimal start of its UDP payload.
fn data_packet(payload: &str) -> Option<u64> {
    let start = u64::from_str_radix(payload.get(..KIND_AND_NUMBER)?, 16).ok()?;
    let kind = (start >> 48) as u8 & !GENERATION_BIT;
    DATA.contains(&kind).then_some(start & ((1 << 48) - 1))
}

/// Lost packets by true cause, by attributed cause, and those for which both agree.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Labels {
    #[serde(serialize_with = "by_name")]
    pub truth: CauseCounts,
    #[serde(rename = "told", serialize_with = "by_name")]
    pub attributed: CauseCounts,
    #[serde(serialize_with = "by_name")]
    pub right: CauseCounts,
}

fn by_name<S: serde::Serializer>(counts: &CauseCounts, to: S) -> Result<S::Ok, S::Error> {
    let named = Cause::ALL.map(|cause| (cause.name(), counts.of(cause)));
    named.into_iter().filter(|(_, packets)| *packets > 0).collect::<BTreeMap<_, _>>().serialize(to)
}

impl Labels {
    /// Returns the verdict of all evidence: the cause to which more than half of the packets were attributed.
    pub(crate) fn verdict(&self) -> Diagnosis {
        let share = |cause| self.attributed.of(cause) as f64 / self.attributed.total().max(1) as f64;
        let p_host = match (share(Cause::ReceiverHost), share(Cause::Congestion)) {
            (host, _) if host > 0.5 => 1.0,
            (_, queue) if queue > 0.5 => 0.0,
            _ => 0.5,
        };
        Diagnosis { metric: Some(Metric::Complexity), p_host }
    }
}

/// A transmission window of a real run with losses.
#[derive(Clone, Debug)]
pub(crate) struct RealWindow {
    /// Number assigned by the sender, which also counts windows without losses.
    pub number: u64,
    pub signature: Signature,
    pub labels: Labels,
    /// The sender's posterior from the signature, combined with previous windows if it was too short; `None`
    /// if the model cannot judge it.
    pub p_host: Option<f64>,
}

impl RealWindow {
    /// Parses the window of a trace event, if it is one.
    fn of(event: &Value, dropped: &Dropped, attributed: &HashMap<u64, Cause>) -> Option<Self> {
        let line = event["signature"].as_str().filter(|_| event["event"] == "window")?;
        let signature = read_signatures(line).ok()?.into_iter().next()?;
        let (number, first) = (event["number"].as_u64()?, event["first_pn"].as_u64()?);
        let mut labels = Labels::default();
        for position in signature.lost_positions() {
            let truth = dropped.cause(first + position);
            let cause = attributed.get(&(first + position)).copied().unwrap_or(Cause::Inconclusive);
            labels.truth.add(truth, 1);
            labels.attributed.add(cause, 1);
            labels.right.add(truth, u64::from(cause == truth));
        }
        Some(Self { number, signature, labels, p_host: event["p_host"].as_f64() })
    }

    /// Returns the sender's verdict by the signature.
    pub(crate) fn by_signature(&self) -> Option<Cause> {
        let p_host = self.p_host?;
        Some(Diagnosis { metric: None, p_host }.cause())
    }

    /// Returns all windows of a trace.
    pub(crate) fn all(events: &[Value], dropped: &Dropped) -> Vec<Self> {
        let attributed =
            events.iter().filter(|event| event["event"] == "window").flat_map(attributed_causes).collect();
        events.iter().filter_map(|event| Self::of(event, dropped, &attributed)).collect()
    }
}

/// Returns the most likely cause of each lost packet in a window.
fn attributed_causes(window: &Value) -> Vec<(u64, Cause)> {
    let losses = window["losses"].as_array().into_iter().flatten();
    let each = losses.filter_map(|losses| {
        let share = |cause: &Cause| losses[cause.name()].as_f64().unwrap_or(0.0);
        let cause = Cause::ALL.into_iter().max_by(|a, b| share(a).total_cmp(&share(b)))?;
        let (first, packets) = (losses["first_pn"].as_u64()?, losses["packets"].as_u64()?);
        Some((first..first + packets).map(move |pn| (pn, cause)))
    });
    each.flatten().collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const LOG: &str = "\
0.100000 forth queue_full udp 40000 2640 01000000000065aa
0.100000 forth red udp 40000 2640 81000000000066aa
0.200000 forth outage udp 40000 2640 02000000000068aa
0.200000 forth too_large udp 40000 2640 06000000000067aa
0.300000 back random udp 2640 40000 01000000000069aa
0.300000 forth random udp 40000 2640 0f0102030405060708
0.400000 forth random 6
";

    #[test]
    fn losses_not_dropped_by_the_path_are_the_hosts() {
        let dropped = Dropped::read(LOG).unwrap();
        let event = json!({
            "event": "window", "number": 7, "first_pn": 100, "signature": "runs 50 0+6 40", "p_host": 0.25,
            "losses": [
                { "first_pn": 100, "packets": 2, "receiver_host": 0.75, "congestion": 0.25 },
                { "first_pn": 102, "packets": 2, "congestion": 1.0 },
                { "first_pn": 140, "packets": 1, "random": 1.0 },
            ],
        });
        let windows =
            RealWindow::all(&[json!({ "event": "progress", "signature": "runs 9" }), event], &dropped);
        let [RealWindow { number, signature, labels, p_host }] = &windows[..] else { panic!("{windows:?}") };
        assert_eq!((*number, signature.packets(), *p_host), (7, 50, Some(0.25)));
        // A queue dropped 101 and 102, an outage 104; 103 belonged to a probe, and 105 to the return path.
        let of = |counts: &CauseCounts| {
            [Cause::ReceiverHost, Cause::Congestion, Cause::Outage].map(|c| counts.of(c))
        };
        assert_eq!(
            (of(&labels.truth), of(&labels.attributed), of(&labels.right)),
            ([4, 2, 1], [2, 2, 0], [1, 1, 0])
        );
        let expected = json!({ "receiver_host": 2, "congestion": 2, "random": 1, "inconclusive": 2 });
        assert_eq!(serde_json::to_value(labels).unwrap()["told"], expected);
    }

    #[test]
    fn a_malformed_drop_log_is_refused() {
        for log in ["0.1 forth", "0.1 forth magic udp 1 2 00", "hello"] {
            assert!(Dropped::read(log).unwrap_err().contains(log), "{log}");
        }
    }
}
