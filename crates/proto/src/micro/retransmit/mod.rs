//! `retransmit`: keeps what is outstanding and sends it again (wu-h-ctp section 4). *When* is said by others, with
//! [`ACKNOWLEDGED`](super::events::ACKNOWLEDGED) and `RETRANSMIT_TIMEOUT`; *what from* is said by `keep`.

mod copies;
mod messages;
mod object;
mod sent_packets;
#[cfg(test)]
mod tests;

use haul_stack::{
    MicroProtocol, ParameterKind, ParameterSpec, Parameters, PeerProtocols, Registration, Setup,
};

pub(super) fn registration() -> Registration {
    Registration {
        parameters: &[
            ParameterSpec {
                name: "keep",
                kind: ParameterKind::Choice(&["copies", "object"]),
                default: "copies",
                help: "what segments are sent again from",
            },
            ParameterSpec {
                name: "window",
                kind: ParameterKind::Integer(1, 10_000_000),
                default: "1024",
                help: "packets between the oldest outstanding and the newest; with copies at most 32768",
            },
            ParameterSpec {
                name: "memory",
                kind: ParameterKind::Bytes,
                default: "8MiB",
                help: "bytes of copies",
            },
            ParameterSpec {
                name: "attempts",
                kind: ParameterKind::Integer(0, 65_535),
                default: "0",
                help: "transmissions after which a message is given up (with copies); 0: never",
            },
            ParameterSpec {
                name: "probe",
                kind: ParameterKind::Flag,
                default: "true",
                help: "whether silence repeats the oldest packets (with the object); false only with bitmap_ack.when = segment, \
                       chunk or round",
            },
        ],
        needs: &[&["positive_ack", "cumulative_ack", "negative_ack", "bitmap_ack"], &["sequenced_segment"]],
        compare,
        ..Registration::new("retransmit", 1, "keeps what is outstanding and sends it again", build)
    }
}

/// That the last packets of an object are lost shows at the end of a round, or when they are sent again unasked.
fn compare(parameters: &Parameters, peers: &PeerProtocols<'_>) -> Result<(), (&'static str, String)> {
    let is_object = parameters.text("keep") == "object";
    match peers.parameters("bitmap_ack").map(|reports| reports.text("when")) {
        Some("interval" | "law") if is_object && !parameters.flag("probe") => {
            let wanted = "true is wanted with `bitmap_ack.when` = `interval` or `law`, or nobody notices that the last packets \
                          are lost; set it to true, or bitmap_ack.when to segment, chunk or round";
            Err(("probe", wanted.to_owned()))
        }
        _ => Ok(()),
    }
}

fn build(parameters: &Parameters, setup: &mut Setup) -> Result<Box<dyn MicroProtocol>, String> {
    match parameters.text("keep") {
        "copies" => Ok(Box::new(copies::KeepCopies::new(parameters)?)),
        "object" => Ok(object::build(parameters, setup)),
        other => Err(format!("segments cannot be kept as `{other}`")),
    }
}
