//! Typed parameters of the control laws.

pub use super::bbr::BbrConfig;
pub use super::cubic::CubicConfig;
pub use super::equation::Decide;
pub use super::fast::FastConfig;
pub use super::gtp::GtpConfig;
pub use super::held_rate::Mode;
pub use super::highspeed::{HighspeedConfig, LossCount};
pub use super::ledbat_plus_plus::LedbatPlusPlusConfig;
pub use super::non_aggressive::NonAggressiveConfig;
pub use super::predictor::{PredictedBy, PredictorConfig};
pub use super::proactive::{Action, ProactiveConfig};
pub use super::rapid_plus::{Iteration, LossMeasure, RapidPlusConfig};
pub use super::reaction::AsynchConfig;
pub use super::reno::RenoConfig;
pub use super::sabul::SabulConfig;
pub use super::scalable::ScalableConfig;
pub use super::state_based::StateBasedConfig;
pub use super::stop_and_go::{GuessAt, Guesser, SchedulerCase, StopAndGoConfig};
pub use super::tfrc::TfrcConfig;
pub use super::udt::UdtConfig;
