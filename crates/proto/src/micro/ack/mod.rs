//! Acknowledgement of the segments of messages. Receivers make it from one record of arrivals
//! ([`ReceivedSet`](super::received_set::ReceivedSet)); senders convert it to the event
//! [`ACKNOWLEDGED`](super::events::ACKNOWLEDGED), which settles the scoreboard of `retransmit`. Its modes have
//! the names of the papers:
//!
//! `positive_ack`: acknowledges every segment when it arrives; segments that arrive together share one
//! acknowledgement (wu-h-ctp section 4, "Msg"). Segments not acknowledged in time are reported to
//! `retransmit`.
//!
//! The retransmission policy is designed for thin flows, and aggressive: a segment is resent
//! `srtt + max(4 rttvar, granularity)` after each of its first `linear` transmissions; only then the timeout
//! doubles. With a steady round trip R, a granularity g and packets lost independently with probability p,
//! the mean delivery time of a one-packet message is `R/2 + sum over k >= 1 of p^k T_k`, where `T_k` is the
//! time from transmission k to the next: R + g for the first `linear` of them, hence
//! `R/2 + (R + g) p / (1 - p)` up to the contribution of p to the seventh power. Lost acknowledgements delay
//! nothing: they cost a retransmission that is dropped as a duplicate.
//!
//! `cumulative_ack`: the receiver acknowledges the sequence number below which everything has arrived, after
//! every few packets or a short delay, and at once when something is missing (RFC 5681 section 4.2). It does
//! not report what has arrived beyond a gap, so one gap is repaired per round trip: the fewest and smallest
//! acknowledgements for paths with little loss.
//!
//! `negative_ack`: the receiver reports only what is missing, or that nothing was received for a while
//! (wu-h-ctp section 4, "Sensor"); otherwise it sends nothing.
//!
//! The bitmaps of an object are another micro-protocol, [`bitmap_ack`](super::bitmap_ack).

mod arrivals;
mod bindings;
mod gaps;
mod statements;

use haul_stack::{Kind, Registration};

use self::arrivals::Acknowledging;
pub use self::arrivals::{CumulativeAckConfig, PositiveAckConfig};
use self::gaps::NegativeAck;
pub use self::gaps::NegativeAckConfig;

/// Kinds of the control packets of `positive_ack` and `cumulative_ack`.
const ACK: Kind = Kind(8);
const CUMULATIVE_ACK: Kind = Kind(11);

/// Reasons why a recipe has only one mode.
const ONE_WAY: &str = "segments are acknowledged one way or the other";
const EITHER: &str = "either arrivals or gaps are reported";

/// Returns the registry entry of each mode.
pub(super) fn registrations() -> [Registration; 3] {
    [
        Registration {
            conflicts: &[("cumulative_ack", ONE_WAY), ("negative_ack", EITHER), ("bitmap_ack", ONE_WAY)],
            ..Registration::of::<PositiveAckConfig>(
                1,
                "acknowledges every segment at once, with a timer per outstanding segment",
                |parameters, _| Ok(Box::new(Acknowledging::at_once(ACK, parameters))),
            )
        },
        Registration {
            conflicts: &[("positive_ack", ONE_WAY), ("negative_ack", EITHER), ("bitmap_ack", ONE_WAY)],
            ..Registration::of::<CumulativeAckConfig>(
                1,
                "acknowledges several segments at a time, with a timer for the oldest",
                |parameters, _| Ok(Box::new(Acknowledging::delayed(CUMULATIVE_ACK, parameters))),
            )
        },
        Registration {
            conflicts: &[("positive_ack", EITHER), ("cumulative_ack", EITHER), ("bitmap_ack", EITHER)],
            ..Registration::of::<NegativeAckConfig>(
                1,
                "reports only gaps, or that nothing has arrived for a while",
                |parameters, _| Ok(Box::new(NegativeAck::new(parameters)?)),
            )
        },
    ]
    .map(|mode| Registration { needs: &[&["sequenced_segment"], &["retransmit"]], ..mode })
}
