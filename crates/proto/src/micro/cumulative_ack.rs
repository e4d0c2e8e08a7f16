//! `cumulative_ack`: the receiver acknowledges the sequence number below which everything has arrived, after
//! every few packets or a short delay, and at once when something is missing (RFC 5681 section 4.2). It does
//! not report what has arrived beyond a gap, so one gap is repaired per round trip: the fewest and smallest
//! acknowledgements for paths with little loss.

use haul_stack::{Kind, Registration};

use super::ack::{Acknowledging, CumulativeAckConfig};

/// Kind of its control packets.
const CUMULATIVE_ACK: Kind = Kind(11);

pub(super) fn registration() -> Registration {
    Registration {
        needs: &[&["sequenced_segment"], &["retransmit"]],
        conflicts: &[
            ("positive_ack", "segments are acknowledged one way or the other"),
            ("negative_ack", "either arrivals or gaps are reported"),
            ("bitmap_ack", "segments are acknowledged one way or the other"),
        ],
        ..Registration::of::<CumulativeAckConfig>(
            1,
            "acknowledges several segments at a time, with a timer for the oldest",
            |parameters, _| Ok(Box::new(Acknowledging::now_and_then(CUMULATIVE_ACK, parameters))),
        )
    }
}
