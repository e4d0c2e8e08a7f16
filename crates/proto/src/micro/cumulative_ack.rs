//! `cumulative_ack`: the receiver says below which sequence number all has come, after every few packets or a short
//! while, and at once when something is missing (RFC 5681 section 4.2). What has come beyond a gap is not said, so one
//! gap is mended per round trip: the fewest and smallest acknowledgements for paths that lose little.

use haul_stack::{Kind, Registration};

use super::ack::{Acknowledging, CumulativeAckConfig};

/// Its control packets.
const CUMULATIVE_ACK: Kind = Kind(11);

pub(super) fn registration() -> Registration {
    Registration {
        needs: &[&["sequenced_segment"], &["retransmit"]],
        conflicts: &[
            ("positive_ack", "segments are acknowledged one way or the other"),
            ("negative_ack", "either what has come is said, or what is missing"),
            ("bitmap_ack", "segments are acknowledged one way or the other"),
        ],
        ..Registration::of::<CumulativeAckConfig>(
            1,
            "acknowledges several segments at a time, and times the oldest",
            |parameters, _| Ok(Box::new(Acknowledging::now_and_then(CUMULATIVE_ACK, parameters))),
        )
    }
}
