//! The available congestion control laws.

use super::Control;
use super::bbr::{Bbr, BbrConfig};
use super::cubic::{Cubic, CubicConfig};
use super::reno::Reno;

/// Congestion control law of a flow.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum ControlKind {
    /// RFC 5681 and RFC 6675.
    Reno,
    /// RFC 9438.
    Cubic(CubicConfig),
    /// BBR version 1.
    Bbr(BbrConfig),
}

impl ControlKind {
    /// Creates the law at the start of a flow, with a window of `initial` segments of `wire_bytes`.
    pub fn build(self, initial: u64, wire_bytes: u32) -> Box<dyn Control> {
        match self {
            Self::Reno => Box::new(Reno::new(initial)),
            Self::Cubic(config) => Box::new(Cubic::new(config, initial)),
            Self::Bbr(config) => Box::new(Bbr::new(config, initial, wire_bytes)),
        }
    }
}
