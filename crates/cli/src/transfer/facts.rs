//! What this side counts of a session, and what limited it as each side sees it.

use std::net::{Ipv4Addr, SocketAddr};

use haul_base::{Cause, Rate, Span};
use haul_proto::{Limit, LimitEvidence, SenderStats, limit_of_sender};
use haul_udp::{Offload, Options, UdpSocket};
use haul_wire::control::CountedSending;
use rustix::time::{ClockId, clock_gettime};

use crate::settings::Settings;

/// Whose processor time the report gives for this side.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Cpu {
    /// The whole process, from when it had used this much.
    Process {
        /// What other work had used before.
        since: Span,
    },
    /// The data thread, as both sides share the process.
    DataThread,
}

impl Cpu {
    /// A process that does nothing else.
    pub(crate) const ALL: Self = Self::Process { since: Span::ZERO };

    /// A process that goes on after other work.
    pub(crate) fn from_now() -> Self {
        Self::Process { since: process_cpu() }
    }

    pub(crate) fn used(self, data_thread: Span) -> Span {
        match self {
            Self::Process { since } => process_cpu().saturating_sub(since),
            Self::DataThread => data_thread,
        }
    }
}

/// What this side has sent, in the words that travel; `agreed` is the ceiling that the session began with.
pub(crate) fn counted_sending(
    stats: &SenderStats,
    round_trip: Span,
    agreed: Option<Rate>,
    moving: Span,
) -> CountedSending {
    let ceiling = ceiling_of_all(stats, agreed);
    let seen = LimitEvidence { ceiling, ..LimitEvidence::of(stats, round_trip, agreed, moving) };
    let (limited_by, evidence) = limit_of_sender(&seen)
        .map(|Limit { what, evidence }| (what.to_owned(), evidence))
        .unwrap_or_default();
    CountedSending {
        packets: stats.packets,
        resent: stats.resent,
        lost: stats.lost,
        lost_by_host: stats.lost_by_cause.of(Cause::ReceiverHost),
        lost_by_congestion: stats.lost_by_cause.of(Cause::Congestion),
        lost_by_random: stats.lost_by_cause.of(Cause::Random),
        lost_by_outage: stats.lost_by_cause.of(Cause::Outage),
        min_rtt_us: stats.min_rtt.as_micros(),
        peak_delivery_bps: stats.peak_delivery_bps,
        limited_by,
        evidence,
    }
}

/// The ceiling of a whole run, `agreed` where its sender does not know it; `None` if it was changed meanwhile.
pub(crate) fn ceiling_of_all(stats: &SenderStats, agreed: Option<Rate>) -> Option<Rate> {
    stats.law.map_or(agreed, |law| law.ceiling).filter(|_| stats.ceiling_changes == 0)
}

pub(crate) fn process_cpu() -> Span {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Span::from_secs(time.tv_sec.unsigned_abs()) + Span::from_nanos(time.tv_nsec.unsigned_abs())
}

/// What this system does without although the settings ask for it, with what to do about it.
pub(crate) fn fallbacks(settings: &Settings) -> Vec<String> {
    let options = Options {
        offload: if settings.offload { Offload::Auto } else { Offload::Off },
        recv_buffer: settings.socket_buffer,
        send_buffer: settings.socket_buffer,
        ..Options::default()
    };
    let socket = UdpSocket::bind(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)), &options);
    let found = socket.map(|socket| socket.capabilities().fallbacks()).unwrap_or_default();
    found.iter().map(ToString::to_string).collect()
}

#[cfg(test)]
mod tests {
    use haul_proto::{LawNow, Waiting};

    use super::*;

    #[test]
    fn a_mean_rate_is_no_share_of_a_ceiling_that_was_changed() {
        let law = Some(LawNow { name: "bbr", ceiling: Some(Rate::from_bps(1_000)) });
        let stats = SenderStats { law, ..SenderStats::default() };
        assert_eq!(ceiling_of_all(&stats, None), Some(Rate::from_bps(1_000)));
        let stats = SenderStats { ceiling_changes: 1, ..stats };
        assert_eq!(ceiling_of_all(&stats, Some(Rate::from_mbps(9))), None);

        let waiting =
            Waiting { ceiling: Span::from_secs(3), pacer: Span::from_secs(1), ..Waiting::default() };
        let stats =
            SenderStats { waiting, datagram_bytes: 60_000_000, peak_delivery_bps: 90_000_000, ..stats };
        let found = counted_sending(&stats, Span::from_millis(1), None, Span::from_secs(5));
        assert_eq!(found.limited_by, "rate_ceiling");
        assert_eq!(found.evidence, "it was given one on the way, and 96.0 Mbit/s was sent");
    }
}

#[cfg(test)]
mod usage_tests {
    use super::*;

    #[test]
    fn processor_time_grows() {
        let before = process_cpu();
        let sum = (0..2_000_000u64).fold(0, |sum, i| std::hint::black_box(sum ^ i));
        assert!(process_cpu() > before, "{sum}");
    }
}
