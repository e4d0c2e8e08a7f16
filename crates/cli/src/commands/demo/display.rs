//! What both demos show: their path, what it did to the packets, and the lines of a table.

use haul_base::Rate;
use haul_wire::control::Fault;
use serde_json::json;

use super::path::{EmulatedPath, Namespaces, PathSpec, told};
use crate::args::DemoArgs;
use crate::output::percent;
use crate::transfer::Context;

/// The emulated path, and words about it.
pub(super) fn planned(context: &Context, args: &DemoArgs) -> PathSpec {
    let spec = PathSpec { rtt: args.rtt, rate: args.path_rate, loss: args.loss, seed: args.seed };
    let (loss, queue) = (spec.loss.get(), spec.queue());
    context.say(format!(
        "Path:  {}, rtt {}, {:.3} % random loss each way, queue {queue}, seed {}",
        spec.rate,
        spec.rtt,
        loss * 100.0,
        spec.seed
    ));
    context.events.write(
        "start",
        json!({
            "rtt_ms": spec.rtt.as_millis_f64(), "rate_bps": spec.rate.as_bps(), "loss": loss,
            "seed": spec.seed, "queue_bytes": queue.0,
        }),
    );
    spec
}

/// Makes the path, and says why if it is not between network namespaces.
pub(super) fn start(
    context: &Context,
    spec: &PathSpec,
    namespaces: &Namespaces,
) -> Result<EmulatedPath, Fault> {
    let path = EmulatedPath::start(spec, namespaces)?;
    if let Some(why) = path.why_relay() {
        context.say(format!(
            "       through a relay on the loopback interface, which takes processor time from both ends: {why}"
        ));
    }
    Ok(path)
}

/// What the path did to the packets: the truth that the report can be held against.
pub(super) fn show_counts(context: &Context, path: &EmulatedPath) -> Result<(), Fault> {
    for (name, way) in ["Data", "Back"].into_iter().zip(&path.counts()?) {
        let (words, mut event) = told(way);
        context.say(format!("{name}:  {words}"));
        event["direction"] = json!(name.to_lowercase());
        context.events.write("path", event);
    }
    Ok(())
}

/// A line of a table: who, at what goodput, and its share of the rate `whole`.
pub(super) fn row(who: &str, goodput: Rate, whole: Rate, remark: &str) -> String {
    let share = goodput.as_bps() as f64 / whole.as_bps().max(1) as f64;
    format!("  {who:<22}  {:<13}  {:<7}{remark}", goodput.to_string(), percent(share)).trim_end().to_owned()
}
