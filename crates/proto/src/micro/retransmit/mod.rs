//! `retransmit`: keeps what was sent until it has arrived, and sends again what is lost.

mod object;
mod outstanding;

use haul_stack::{MicroProtocol, ParameterKind, ParameterSpec, Parameters, Registration, Setup};

/// The line of the registry.
pub(super) fn registration() -> Registration {
    Registration {
        parameters: &[
            ParameterSpec {
                name: "keep",
                kind: ParameterKind::Choice(&["object"]),
                default: "object",
                help: "what is sent again: `object` reads it from the object once more",
            },
            ParameterSpec {
                name: "window",
                kind: ParameterKind::Integer(64, 10_000_000),
                default: "400000",
                help: "packets between the oldest that is not acknowledged and the newest",
            },
            ParameterSpec {
                name: "probe",
                kind: ParameterKind::Flag,
                default: "true",
                help: "whether the oldest packets are sent again when nothing was acknowledged for a while",
            },
        ],
        needs: &[&["bitmap_ack"], &["sequenced_segment"]],
        ..Registration::new("retransmit", 1, "sends again what is lost", build)
    }
}

fn build(parameters: &Parameters, setup: &mut Setup) -> Result<Box<dyn MicroProtocol>, String> {
    match parameters.text("keep") {
        "object" => Ok(object::build(parameters, setup)),
        other => Err(format!("`{other}` is not known")),
    }
}
