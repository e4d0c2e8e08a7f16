//! The parameters of the micro-protocols, typed.

pub use super::ack::{CumulativeAckConfig, NegativeAckConfig, PositiveAckConfig};
pub use super::bitmap_ack::{BitmapAckConfig, Over, When};
pub use super::deadline::DeadlineConfig;
pub use super::fec::FecConfig;
pub use super::fixed_rate::FixedRateConfig;
pub use super::fixed_size::FixedSizeConfig;
pub use super::in_order::InOrderConfig;
pub use super::liveness::LivenessConfig;
pub use super::object::{DiskAccess, Gaps, ObjectConfig};
pub use super::pacing::PacingConfig;
pub use super::priority::PriorityConfig;
pub use super::rate_control::RateControlConfig;
pub use super::rate_stats::RateStatsConfig;
pub use super::receiver_report::ReceiverReportConfig;
pub use super::retransmit::{Keep, RetransmitConfig};
pub use super::selective_transfer::{ByteOrder, SelectiveTransferConfig};
pub use super::sequenced_segment::SequencedSegmentConfig;
pub use super::statistics::StatisticsConfig;
pub use super::streams::StreamsConfig;
