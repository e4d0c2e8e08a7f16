//! `positive_ack`: every segment is acknowledged as soon as it comes; segments that come together share one
//! acknowledgement (wu-h-ctp section 4, "Msg"). What is not acknowledged in time is reported to `retransmit`.
//!
//! The repeat policy is made for thin flows, and aggressive: a segment leaves again `srtt + max(4 rttvar, granularity)`
//! after each of its first `linear` transmissions, and only then backs off by doubling. With a steady round trip R, a
//! granularity g and packets lost independently with probability p, a message of one packet is delivered in the mean
//! after `R/2 + sum over k >= 1 of p^k T_k`, where `T_k` is the time from transmission k to the next: R + g for the
//! first `linear` of them, which is `R/2 + (R + g) p / (1 - p)` but for what p to the seventh power contributes. Lost
//! acknowledgements delay nothing: they cost a repetition that is dropped as a duplicate.

use haul_stack::{Kind, Registration};

use super::ack::{Acknowledging, PositiveAckConfig};

/// Its control packets.
const ACK: Kind = Kind(8);

pub(super) fn registration() -> Registration {
    Registration {
        needs: &[&["sequenced_segment"], &["retransmit"]],
        conflicts: &[
            ("cumulative_ack", "segments are acknowledged one way or the other"),
            ("negative_ack", "either what has come is said, or what is missing"),
            ("bitmap_ack", "segments are acknowledged one way or the other"),
        ],
        ..Registration::of::<PositiveAckConfig>(
            1,
            "acknowledges every segment at once, and times what is outstanding",
            |parameters, _| Ok(Box::new(Acknowledging::at_once(ACK, parameters))),
        )
    }
}
