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

use haul_stack::{Kind, Registration};

use super::ack::{Acknowledging, PositiveAckConfig};

/// Kind of its control packets.
const ACK: Kind = Kind(8);

pub(super) fn registration() -> Registration {
    Registration {
        needs: &[&["sequenced_segment"], &["retransmit"]],
        conflicts: &[
            ("cumulative_ack", "segments are acknowledged one way or the other"),
            ("negative_ack", "either arrivals or gaps are reported"),
            ("bitmap_ack", "segments are acknowledged one way or the other"),
        ],
        ..Registration::of::<PositiveAckConfig>(
            1,
            "acknowledges every segment at once, with a timer per outstanding segment",
            |parameters, _| Ok(Box::new(Acknowledging::at_once(ACK, parameters))),
        )
    }
}
