//! Several laws on one bottleneck.

use haul_base::Span;

use super::{Harness, Measured, MeasuredSums};

/// Runs flows for `span` over a shared bottleneck and returns their measurements. Each path must have the
/// bottleneck's capacity and queue; the other properties (round trip, losses, receiver) are each flow's own.
/// All flows must be at the same time.
pub(crate) fn measure_together(flows: &mut [Harness], span: Span) -> Vec<Measured> {
    let until = flows[0].now + span;
    for flow in &mut *flows {
        flow.sums = MeasuredSums::default();
    }
    loop {
        let (n, at) = (flows.iter().enumerate())
            .map(|(n, flow)| (n, flow.next().0.max(flow.now)))
            .min_by_key(|&(_, at)| at)
            .expect("there are flows");
        if at > until {
            break;
        }
        flows[n].step(until);
        let free = flows[n].bottleneck_free;
        for flow in &mut *flows {
            flow.bottleneck_free = free;
        }
    }
    for flow in &mut *flows {
        flow.advance(until);
    }
    flows.iter().map(|flow| flow.measured(span)).collect()
}
