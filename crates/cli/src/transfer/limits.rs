//! "Limited by", as a receiver sees it; a sender knows more (`haul_proto::limit_of_sender`).

use haul_base::Rate;
use haul_proto::{CEILING_SHARE, HOST_DROPS_SHARE};

use crate::output::LimitedBy;

/// What a receiver says that has seen nothing of the limit.
pub(crate) const NOT_SEEN_HERE: &str = "path_or_sender";

/// Names the limit of a run as its receiver saw it, which does not know where the sender's time went.
pub(crate) fn of_receiver(
    goodput: Rate,
    ceiling: Option<Rate>,
    packets: u64,
    socket_drops: u64,
) -> LimitedBy {
    if socket_drops as f64 / packets.max(1) as f64 >= HOST_DROPS_SHARE {
        return limit(
            "receiver_host",
            format!("this machine's kernel dropped {socket_drops} socket buffers"),
        );
    }
    if let Some(ceiling) = ceiling.filter(|&ceiling| goodput >= ceiling.mul_f64(CEILING_SHARE)) {
        return limit("rate_ceiling", format!("{ceiling} was asked for and {goodput} arrived"));
    }
    let words =
        format!("{goodput} arrived, none of it was dropped here, and the rest shows only at the sender");
    limit(NOT_SEEN_HERE, words)
}

fn limit(what: &str, evidence: String) -> LimitedBy {
    LimitedBy { what: what.to_owned(), evidence }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_receiver_says_only_what_it_can_know() {
        let (goodput, ceiling) = (Rate::from_mbps(95), Some(Rate::from_mbps(100)));
        assert_eq!(of_receiver(goodput, ceiling, 1_000, 0).what, "rate_ceiling");
        assert_eq!(of_receiver(goodput, ceiling, 1_000, 10).what, "receiver_host");
        assert_eq!(of_receiver(goodput, None, 1_000, 0).what, "path_or_sender");
    }
}
