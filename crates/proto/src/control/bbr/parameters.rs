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
        help: "loss beyond the path's own that ends a probe (the draft: 0.02)",
    },
    ParameterSpec {
        name: "tolerates",
        kind: ParameterKind::Number(0.0, 0.9),
        default: "0.25",
        help: "loss rate up to which losses without a queue count as the path's own; the draft: 0",
    },
    ParameterSpec {
        name: "beta",
        kind: ParameterKind::Number(0.1, 0.99),
        default: "0.7",
        help: "least factor of bandwidth and window after a round trip with congestion (the draft: 0.7)",
    },
    ParameterSpec {
        name: "headroom",
        kind: ParameterKind::Number(0.0, 0.9),
        default: "0.15",
        help: "share of the highest safe window left to others between probes (the draft: 0.15)",
    },
    ParameterSpec {
        name: "probe_wait",
        kind: ParameterKind::SpanIn(Span::from_millis(10), Span::from_secs(600)),
        default: "2s",
        help: "time between probes for bandwidth, at random up to half more; at most 63 round trips (the draft: 2 to 3 s)",
    },
    ParameterSpec {
        name: "probe_rtt_interval",
        kind: ParameterKind::SpanIn(Span::from_millis(100), Span::from_secs(600)),
        default: "5s",
        help: "time without a shorter round trip after which one is probed with half the window (the draft: 5 s)",
    },
    ParameterSpec {
        name: "rtt_rise",
        kind: ParameterKind::Number(0.0, 100.0),
        default: "1.25",
        help: "factor above the least round trip for 0.4 s that starts such a probe; 0: never, as in the draft",
    },
];
