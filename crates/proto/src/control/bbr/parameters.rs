//! Parameters of the law.

use haul_base::Span;
use haul_stack::configuration;

use crate::control::window::initial_window;

configuration! {
    /// Parameters of `bbr`.
    pub struct BbrConfig: "bbr" {
        initial_window: u64 = initial_window;
        loss_threshold: f64 in (0.0, 1.0) = "0.02",
            "loss rate above the path's random loss that ends a probe (the draft: 0.02)";
        tolerates: f64 in (0.0, 0.9) = "0.25",
            "loss rate up to which losses without queueing count as random losses of the path; the draft: 0";
        beta: f64 in (0.1, 0.99) = "0.7",
            "minimum factor of bandwidth and window after a round trip with congestion (the draft: 0.7)";
        headroom: f64 in (0.0, 0.9) = "0.15",
            "fraction of the highest safe window left to others between probes (the draft: 0.15)";
        probe_wait: Span in (Span::from_millis(10), Span::from_secs(600)) = "2s",
            "time between bandwidth probes, randomly up to half more; at most 63 round trips (the draft: 2 to 3 s)";
        probe_rtt_interval: Span in (Span::from_millis(100), Span::from_secs(600)) = "5s",
            "time without a shorter round trip after which one is probed with half the window (the draft: 5 s)";
        rtt_rise: f64 in (0.0, 100.0) = "1.25",
            "round trip above this factor of the minimum for 0.4 s starts such a probe; 0: never, as in the draft";
    }
}
