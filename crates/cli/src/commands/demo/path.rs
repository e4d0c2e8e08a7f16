//! The emulated path of the demo, in words and events.

use haul_base::Bytes;
use serde_json::json;

use crate::args::DemoArgs;
use crate::demo::{PathCounts, PathSpec};
use crate::transfer::context::Context;

/// The MTU of the emulated path: Ethernet's.
const MTU: u16 = 1_500;

/// The emulated path, and words about it.
pub(super) fn path(context: &Context, args: &DemoArgs) -> PathSpec {
    let spec = PathSpec { rtt: args.rtt, rate: args.path_rate, loss: args.loss, mtu: MTU, seed: args.seed };
    context.say(describe(&spec));
    context.events.write(
        "start",
        json!({
            "rtt_ms": spec.rtt.as_millis_f64(), "rate_bps": spec.rate.as_bps(), "loss": spec.loss.get(),
            "seed": spec.seed, "queue_bytes": spec.queue().0,
        }),
    );
    spec
}

fn describe(spec: &PathSpec) -> String {
    format!(
        "Path:  {}, rtt {}, {:.3} % random loss each way, queue {}, seed {}",
        spec.rate,
        spec.rtt,
        spec.loss.get() * 100.0,
        spec.queue(),
        spec.seed
    )
}

/// Says why the path is not between network namespaces.
pub(super) fn through_relay(why: &str) -> String {
    format!(
        "       through a relay on the loopback interface, which takes processor time from both ends: {why}"
    )
}

/// What the path did to the packets: the truth that the report can be held against.
pub(super) fn show_counts(context: &Context, counts: &PathCounts) {
    for (name, direction) in [("Data", &counts.up), ("Back", &counts.down)] {
        context.say(format!("{name}:  {direction}; {} delivered", Bytes(direction.delivered_bytes)));
        let mut event = json!(direction);
        event["direction"] = json!(name.to_lowercase());
        context.events.write("path", event);
    }
}
