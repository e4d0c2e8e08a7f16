//! Phases of the draft's state machine, with their gains.

/// draft-ietf-ccwg-bbr, section "Summary of Control Behavior in the State Machine".
pub(super) const STARTUP_PACING: f64 = 2.77;
const DRAIN_PACING: f64 = 0.5;
const DOWN_PACING: f64 = 0.9;
const UP_PACING: f64 = 1.25;
const WINDOW_GAIN: f64 = 2.0;
pub(super) const UP_WINDOW: f64 = 2.25;
/// The draft's `ProbeRTTCwndGain`.
pub(super) const PROBE_RTT_GAIN: f64 = 0.5;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    Startup,
    Drain,
    Down,
    Cruise,
    Refill,
    Up,
    ProbeRtt,
}

impl Phase {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Startup => "startup",
            Self::Drain => "drain",
            Self::Down => "down",
            Self::Cruise => "cruise",
            Self::Refill => "refill",
            Self::Up => "up",
            Self::ProbeRtt => "probe_rtt",
        }
    }

    pub(super) fn is_probe_bw(self) -> bool {
        matches!(self, Self::Down | Self::Cruise | Self::Refill | Self::Up)
    }

    /// Whether the phase sends more than is known to pass (the draft's `IsProbingBW`).
    pub(super) fn is_probing(self) -> bool {
        matches!(self, Self::Startup | Self::Refill | Self::Up)
    }

    /// Returns the pacing gain and the window gain.
    pub(super) fn gains(self) -> (f64, f64) {
        match self {
            Self::Startup => (STARTUP_PACING, WINDOW_GAIN),
            Self::Drain => (DRAIN_PACING, WINDOW_GAIN),
            Self::Down => (DOWN_PACING, WINDOW_GAIN),
            Self::Cruise | Self::Refill => (1.0, WINDOW_GAIN),
            Self::Up => (UP_PACING, UP_WINDOW),
            Self::ProbeRtt => (1.0, PROBE_RTT_GAIN),
        }
    }
}
