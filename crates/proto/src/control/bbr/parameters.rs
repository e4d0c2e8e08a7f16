//! What the law can be told.

use haul_base::Span;
use haul_stack::{ParameterKind, ParameterSpec};

use super::Bbr;
use crate::control::LawRegistration;
use crate::control::window::INITIAL_WINDOW;

/// The line of the registry.
pub(in crate::control) static LAW: LawRegistration = LawRegistration {
    name: "bbr",
    version: 1,
    summary: "sends at the bandwidth that the path has shown, and probes for more and for its least round trip",
    source: "BBR, version 3 (draft-ietf-ccwg-bbr)",
    parameters: PARAMETERS,
    build: |parameters, config| Ok(Box::new(Bbr::new(parameters, config))),
};

const PARAMETERS: &[ParameterSpec] = &[
    INITIAL_WINDOW,
    ParameterSpec {
        name: "loss_threshold",
        kind: ParameterKind::Number(0.0, 1.0),
        default: "0.02",
        help: "share of packets, beyond what the path loses by itself, whose loss ends a probe (the draft: 0.02)",
    },
    ParameterSpec {
        name: "tolerates",
        kind: ParameterKind::Number(0.0, 0.9),
        default: "0.25",
        help: "loss rate up to which losses without a queue, that do not grow with the rate, are taken for the path's own; 0: \
               every loss is congestion, as in the draft",
    },
    ParameterSpec {
        name: "beta",
        kind: ParameterKind::Number(0.1, 0.99),
        default: "0.7",
        help: "what bandwidth and window are multiplied by after a round trip with congestion, at least (the draft: 0.7)",
    },
    ParameterSpec {
        name: "headroom",
        kind: ParameterKind::Number(0.0, 0.9),
        default: "0.15",
        help: "share of the highest safe window that is left to others between probes (the draft: 0.15)",
    },
    ParameterSpec {
        name: "probe_wait",
        kind: ParameterKind::SpanIn(Span::from_millis(10), Span::from_secs(600)),
        default: "2s",
        help: "time between probes for bandwidth, up to half of it longer by chance; 63 round trips or those of the window in \
               packets if that is sooner (the draft: 2 to 3 s)",
    },
    ParameterSpec {
        name: "probe_rtt_interval",
        kind: ParameterKind::SpanIn(Span::from_millis(100), Span::from_secs(600)),
        default: "5s",
        help: "time without a shorter round trip after which one is looked for, with half the window (the draft: 5 s)",
    },
    ParameterSpec {
        name: "rtt_rise",
        kind: ParameterKind::Number(0.0, 100.0),
        default: "1.25",
        help: "factor above the least round trip from which that is looked into at once; 0: never, as in the draft",
    },
];
