//! "Limited by": names the part of the chain that limited a transfer, from where the sender spent its time.

use std::borrow::Cow;
use std::fmt::Write;

use haul_base::{Cause, CauseCounts, Rate, Span};
use serde::{Deserialize, Serialize};

use crate::bulk::SenderStats;
use crate::micro::shared::Waiting;

/// A sender that is working or runnable without a processor for this share of its time is itself the limit.
/// Our choice: simulated senders short of processor time had 0.85 and more, one that filled its path beside
/// another process 0.54.
const BUSY_SHARE: f64 = 0.6;
/// The ceiling counts as reached from this share of it on.
const CEILING_SHARE: f64 = 0.9;
/// A run of fewer round trips is mostly start and end.
const FEW_ROUND_TRIPS: f64 = 12.0;
/// Share of packets dropped at the receiver from which on drops are reported.
const HOST_DROPS_SHARE: f64 = 0.001;
/// A shorter run without a measured delivery rate is all set-up and end, and allows no conclusion.
const MIN_CONCLUSIVE: Span = Span::from_secs(1);
/// A sender below the first share of the peak delivery rate did not fill the path; below the second one, its
/// law is the limit: at a full queue a law halves its rate at most. Our choice.
const FILLED_SHARE: f64 = 0.85;
const HALVED_SHARE: f64 = 0.5;
/// Round trips for start and end, in which hardly anything is sent under any law. Our choice.
const FILL_ROUND_TRIPS: f64 = 20.0;
/// Share of random losses from which on they are reported. Our choice: one overflow at the start of a law
/// that then collapses loses about sixty times as many packets.
const RANDOM_SHARE: f64 = 0.01;

/// If the sender has waited for the receiver's requests for more round trips than this in total, the path is
/// not the reason: the receiver was comparing files. Our choice: a file set takes one or two requests of a
/// few round trips.
const MAX_REQUEST_RTTS: u64 = 10;

/// Limit reported for a sender that waited for its controller.
const PATH: &str = "path";

/// The limit of a transfer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limit {
    /// One or two words for scripts, for example `path` or `rate_ceiling`.
    pub what: Cow<'static, str>,
    /// Explanation for users.
    pub evidence: String,
}

/// The sender's measurements at the end of a transfer.
#[derive(Debug, Clone, Copy, Default)]
pub struct LimitEvidence {
    /// Time spent waiting, by reason.
    pub waiting: Waiting,
    /// Total of the periods of two seconds or more without an acknowledgement.
    pub silent: Span,
    /// Smallest round-trip time.
    pub min_rtt: Span,
    /// Time from the first packet until everything was written and verified.
    pub elapsed: Span,
    /// UDP payload rate over `elapsed`, retransmissions included.
    pub sent: Rate,
    /// Highest delivery rate measured.
    pub peak_delivery: Rate,
    /// Requested rate ceiling.
    pub ceiling: Option<Rate>,
    /// Data packets sent.
    pub packets: u64,
    /// Packets lost.
    pub lost: u64,
    /// Lost packets by diagnosed cause.
    pub lost_by_cause: CauseCounts,
    /// Socket buffers dropped by the receiver's kernel.
    pub receiver_drops: u64,
    /// Time for which the receiver's thread was runnable without a processor or lagged behind its socket, as
    /// reported by the receiver ([`PeerHost::waited`](crate::PeerHost::waited)).
    pub receiver_waited: Span,
}

impl LimitEvidence {
    /// Takes a sender's measurements over `elapsed`; `round_trip` and `ceiling` are used if it has none.
    pub fn of(stats: &SenderStats, round_trip: Span, ceiling: Option<Rate>, elapsed: Span) -> Self {
        Self {
            waiting: stats.waiting,
            silent: stats.silent,
            min_rtt: if stats.min_rtt > Span::ZERO { stats.min_rtt } else { round_trip },
            elapsed,
            sent: Rate::from_transfer(stats.datagram_bytes, elapsed),
            peak_delivery: Rate::from_bps(stats.peak_delivery_bps),
            ceiling: stats.law.map_or(ceiling, |law| law.ceiling),
            packets: stats.packets,
            lost: stats.lost,
            lost_by_cause: stats.lost_by_cause,
            receiver_drops: u64::from(stats.receiver_drops),
            receiver_waited: stats.receiver_host.waited(),
        }
    }

    /// Returns the evidence for the part of the run after `before`; the peak delivery rate stays that of the
    /// whole run. `None` if that part is too short to judge.
    pub fn since(&self, before: &Self) -> Option<Self> {
        let elapsed = self.elapsed.saturating_sub(before.elapsed);
        if elapsed < MIN_CONCLUSIVE || elapsed < self.min_rtt.mul_f64(FEW_ROUND_TRIPS) {
            return None;
        }
        let bytes = |of: &Self| of.sent.bytes_in(of.elapsed);
        Some(Self {
            waiting: self.waiting.since(&before.waiting),
            silent: self.silent.saturating_sub(before.silent),
            elapsed,
            sent: Rate::from_transfer(bytes(self).saturating_sub(bytes(before)), elapsed),
            packets: self.packets.saturating_sub(before.packets),
            lost: self.lost.saturating_sub(before.lost),
            lost_by_cause: self.lost_by_cause.since(&before.lost_by_cause),
            receiver_drops: self.receiver_drops.saturating_sub(before.receiver_drops),
            receiver_waited: self.receiver_waited.saturating_sub(before.receiver_waited),
            ..*self
        })
    }
}

/// Names the limit of a run as seen by its sender; `None` if hardly anything was measured.
pub fn limit_of_sender(evidence: &LimitEvidence) -> Option<Limit> {
    let has_rate = evidence.peak_delivery > Rate::ZERO;
    let mut found = most_time(evidence);
    if evidence.silent > Span::ZERO {
        let _ =
            write!(found.evidence, "; nothing was acknowledged for {:.1} s", evidence.silent.as_secs_f64());
    }
    let is_conclusive =
        if found.what == PATH { has_rate } else { has_rate || evidence.elapsed >= MIN_CONCLUSIVE };
    is_conclusive.then_some(found)
}

/// Limit reported by a receiver that saw no evidence of one.
pub const UNSEEN_LIMIT: &str = "path_or_sender";

/// Names the limit of a run as seen by its receiver, which does not know how the sender spent its time
/// ([`limit_of_sender`] knows more).
pub fn limit_of_receiver(goodput: Rate, ceiling: Option<Rate>, packets: u64, socket_drops: u64) -> Limit {
    let is_at = |ceiling: &Rate| goodput >= ceiling.mul_f64(CEILING_SHARE);
    if socket_drops as f64 / packets.max(1) as f64 >= HOST_DROPS_SHARE {
        return limit(
            "receiver_host",
            format!("this machine's kernel dropped {socket_drops} socket buffers"),
        );
    }
    if let Some(ceiling) = ceiling.filter(is_at) {
        return limit("rate_ceiling", format!("{ceiling} was requested and {goodput} arrived"));
    }
    let seen = "nothing was dropped here; other causes are visible only at the sender";
    limit(UNSEEN_LIMIT, format!("{goodput} arrived, {seen}"))
}

/// Names the limit by what took most of the time.
fn most_time(evidence: &LimitEvidence) -> Limit {
    let Waiting { ceiling, quota, receiver, source, acknowledgement, requests, busy, .. } = evidence.waiting;
    let path = for_path(&evidence.waiting);
    let sending = [path, ceiling, quota, receiver, source, acknowledgement, requests, busy];
    let sending = sending.into_iter().fold(Span::ZERO, |a, b| a + b);
    let settling = evidence.elapsed.saturating_sub(sending);
    let share = |span: Span| span.as_secs_f64() / (sending + settling).as_secs_f64().max(1e-9);
    let most = [path, ceiling, quota, receiver, source, requests, busy, settling, acknowledgement];
    let most = most.into_iter().max().unwrap_or_default();
    let found =
        |what, span, words: &str| limit(what, format!("{words} for {} of the time", percent(share(span))));
    match most {
        Span::ZERO => of_path(evidence),
        _ if most == path || most == ceiling => of_path(evidence),
        _ if most == quota => {
            found("receiver_share", quota, "the receiver divides its capacity and assigned no more")
        }
        _ if most == receiver => found("receiver_storage", receiver, "writing was behind"),
        _ if most == source => found("sender_storage", source, "reading was behind"),
        _ if most == requests && requests <= evidence.min_rtt * MAX_REQUEST_RTTS => {
            found("round_trips", requests, "the sender waited for the receiver's next request")
        }
        _ if most == requests => {
            found("receiver_storage", requests, "the receiver was comparing files, and requested nothing,")
        }
        _ if most == settling => found(
            "receiver_storage",
            settling,
            "all bytes had arrived and were being written out and verified",
        ),
        _ if most == acknowledgement => {
            found("round_trips", acknowledgement, "everything was sent and awaited acknowledgement")
        }
        _ if share(busy) >= BUSY_SHARE && !has_reached_ceiling(evidence) => {
            found("sender_cpu", busy, "the sender was busy or waited for a processor,")
        }
        _ => of_path(evidence),
    }
}

/// Time for which the controller permitted no more and only the path could be the reason.
fn for_path(waiting: &Waiting) -> Span {
    waiting.pacer + waiting.window
}

/// Names the limit of a sender that mostly waited for its controller.
fn of_path(evidence: &LimitEvidence) -> Limit {
    if let Some(words) = lost_at_host(evidence).filter(|_| !has_arrived(evidence)) {
        return limit("receiver_host", words);
    }
    if let Some(ceiling) = evidence.ceiling.filter(|&ceiling| is_reached(ceiling, evidence)) {
        return limit("rate_ceiling", format!("{ceiling} was requested and {} was sent", evidence.sent));
    }
    if evidence.ceiling.is_none() && evidence.waiting.ceiling > for_path(&evidence.waiting) {
        return limit("rate_ceiling", format!("it was given one on the way, and {} was sent", evidence.sent));
    }
    if let Some(words) = late_receiver(evidence) {
        return limit("receiver_host", words);
    }
    let round_trips = evidence.elapsed.as_secs_f64() / evidence.min_rtt.as_secs_f64().max(1e-6);
    if round_trips < FEW_ROUND_TRIPS {
        return limit("start_up", format!("it took {round_trips:.0} round trips, too few to fill the path"));
    }
    match limited_by_law(evidence, round_trips) {
        Some(words) => limit("law", words),
        None => limit(PATH, path_evidence(evidence)),
    }
}

/// Explains why the law is the limit, not the path: it lowered its rate for losses without a queue.
fn limited_by_law(evidence: &LimitEvidence, round_trips: f64) -> Option<String> {
    let lost = evidence.lost.max(1) as f64;
    let at_random = evidence.lost_by_cause.of(Cause::Random) as f64 / lost;
    let max_law_rate =
        (1.0 - FILL_ROUND_TRIPS / round_trips).max(0.0) * evidence.peak_delivery.as_bps().max(1) as f64;
    let sent = evidence.sent.as_bps() as f64 / max_law_rate;
    let is_held =
        (at_random >= 0.5 && sent < FILLED_SHARE) || (at_random >= RANDOM_SHARE && sent < HALVED_SHARE);
    is_held.then(|| {
        format!(
            "{} of the losses were random, without queueing, and the control law sent {} where up to {} was delivered",
            percent(at_random),
            evidence.sent,
            evidence.peak_delivery
        )
    })
}

/// Describes the receiving host's losses if there are enough to report.
fn lost_at_host(evidence: &LimitEvidence) -> Option<String> {
    let is_significant = |count: u64| share_of_packets(count, evidence) >= HOST_DROPS_SHARE;
    if is_significant(evidence.receiver_drops) {
        Some(format!("its kernel dropped {} socket buffers", evidence.receiver_drops))
    } else if is_significant(evidence.lost_by_cause.of(Cause::ReceiverHost)) {
        let share = evidence.lost_by_cause.of(Cause::ReceiverHost) as f64 / evidence.lost.max(1) as f64;
        Some(format!("{} of the losses occurred in the receiving host, by their pattern", percent(share)))
    } else {
        None
    }
}

/// Describes a receiver that lagged behind for most of the time. Its socket buffer may prevent losses, but it
/// acknowledges late. The path is not the limit of the sending rate if it once delivered more.
fn late_receiver(evidence: &LimitEvidence) -> Option<String> {
    let share = evidence.receiver_waited.as_secs_f64() / evidence.elapsed.as_secs_f64().max(1e-9);
    let is_late = share >= BUSY_SHARE && evidence.sent < evidence.peak_delivery.mul_f64(FILLED_SHARE);
    is_late.then(|| {
        format!("it lacked a processor or read packets late for {} of the time", percent(share.min(1.0)))
    })
}

/// Whether the mean rate reached the ceiling: then nothing else was the limit, however busy the sender was.
fn has_reached_ceiling(evidence: &LimitEvidence) -> bool {
    evidence.ceiling.is_some_and(|ceiling| evidence.sent >= ceiling.mul_f64(CEILING_SHARE))
}

/// Whether data arrived at the ceiling: then losses did not slow the transfer.
fn has_arrived(evidence: &LimitEvidence) -> bool {
    let arrived = evidence.sent.mul_f64(1.0 - share_of_packets(evidence.lost, evidence).min(1.0));
    evidence.ceiling.is_some_and(|ceiling| arrived >= ceiling.mul_f64(CEILING_SHARE))
}

/// Whether the ceiling was reached in the mean, or held the sender for longer than the path did (a sender
/// with a temporarily lower ceiling does not reach it in the mean). A ceiling above the path's capacity is no
/// limit.
fn is_reached(ceiling: Rate, evidence: &LimitEvidence) -> bool {
    let congested = share_of_packets(evidence.lost_by_cause.of(Cause::Congestion), evidence);
    congested <= 1.0 - CEILING_SHARE
        && (evidence.sent >= ceiling.mul_f64(CEILING_SHARE)
            || evidence.waiting.ceiling > for_path(&evidence.waiting))
}

fn share_of_packets(count: u64, evidence: &LimitEvidence) -> f64 {
    count as f64 / evidence.packets.max(1) as f64
}

fn path_evidence(evidence: &LimitEvidence) -> String {
    let loss = share_of_packets(evidence.lost, evidence);
    format!(
        "it delivered at most {} and lost {:.2} % of the packets; rtt {:.1} ms",
        evidence.peak_delivery,
        loss * 100.0,
        evidence.min_rtt.as_millis_f64()
    )
}

fn limit(what: &'static str, evidence: String) -> Limit {
    Limit { what: what.into(), evidence }
}

fn percent(share: f64) -> String {
    format!("{:.0} %", share * 100.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seconds(s: f64) -> Span {
        Span::from_secs_f64(s)
    }

    fn evidence(waiting: Waiting) -> LimitEvidence {
        LimitEvidence {
            waiting,
            min_rtt: Span::from_millis(50),
            elapsed: seconds(10.0),
            sent: Rate::from_mbps(900),
            peak_delivery: Rate::from_mbps(950),
            packets: 700_000,
            lost: 700,
            ..LimitEvidence::default()
        }
    }

    #[test]
    fn part_of_a_run_has_its_own_limit() {
        let first = evidence(Waiting { source: seconds(10.0), ..Waiting::default() });
        let waiting = Waiting { source: seconds(10.1), receiver: seconds(1.9), ..Waiting::default() };
        let sent = Rate::from_bps(first.sent.as_bps() * 10 / 12);
        let second = LimitEvidence { waiting, sent, elapsed: seconds(12.0), ..first };
        assert_eq!(limit_of_sender(&second).unwrap().what, "sender_storage");
        let part = second.since(&first).unwrap();
        assert_eq!((part.sent.as_bps(), part.elapsed, part.lost), (0, seconds(2.0), 0));
        assert_eq!(limit_of_sender(&part).unwrap().what, "receiver_storage");
        assert!(second.since(&second).is_none(), "no time has passed");
    }

    #[test]
    fn a_receiver_short_of_processor_time_is_the_limit_without_losses() {
        let known = evidence(Waiting { window: seconds(9.0), ..Waiting::default() });
        let limit_of = |sent, waited| {
            let (sent, receiver_waited) = (Rate::from_mbps(sent), seconds(waited));
            limit_of_sender(&LimitEvidence { sent, receiver_waited, lost: 0, ..known }).unwrap().what
        };
        // The path once delivered 950 Mbit/s; the run lasts 10 s.
        assert_eq!(
            [limit_of(100, 8.0), limit_of(100, 4.0), limit_of(900, 8.0)],
            ["receiver_host", PATH, PATH]
        );
    }

    /// On a shared machine a slow transfer waits for a processor most of the time between two packets.
    #[test]
    fn a_reached_ceiling_is_the_limit_of_a_busy_sender() {
        let known = evidence(Waiting { busy: seconds(8.0), pacer: seconds(1.0), ..Waiting::default() });
        let limit_of = |ceiling| {
            let ceiling = Some(Rate::from_mbps(ceiling));
            limit_of_sender(&LimitEvidence { ceiling, ..known }).unwrap().what
        };
        assert_eq!([950, 2_000].map(limit_of), ["rate_ceiling", "sender_cpu"]);
    }

    #[test]
    fn the_stage_with_the_most_time_is_the_limit() {
        let name = |waiting| limit_of_sender(&evidence(waiting)).unwrap().what;
        let base = Waiting { busy: seconds(1.0), ..Waiting::default() };
        assert_eq!(name(base), "receiver_storage");
        assert_eq!(name(Waiting { receiver: seconds(6.0), pacer: seconds(3.0), ..base }), "receiver_storage");
        assert_eq!(name(Waiting { source: seconds(6.0), pacer: seconds(3.0), ..base }), "sender_storage");
        assert_eq!(name(Waiting { busy: seconds(6.0), pacer: seconds(3.0), ..base }), "sender_cpu");
        assert_eq!(name(Waiting { window: seconds(2.0), pacer: seconds(7.0), ..base }), "path");
        assert_eq!(name(Waiting { acknowledgement: seconds(9.0), ..base }), "round_trips");
        assert_eq!(name(Waiting { quota: seconds(6.0), pacer: seconds(3.0), ..base }), "receiver_share");
        assert_eq!(name(Waiting { requests: seconds(9.0), ..base }), "receiver_storage");
        let far =
            LimitEvidence { min_rtt: seconds(1.0), ..evidence(Waiting { requests: seconds(9.0), ..base }) };
        assert_eq!(limit_of_sender(&far).unwrap().what, "round_trips");
    }

    #[test]
    fn a_ceiling_counts_only_if_it_was_reached() {
        let waiting = Waiting { pacer: seconds(9.0), busy: seconds(1.0), ..Waiting::default() };
        let with = |ceiling| LimitEvidence { ceiling: Some(Rate::from_mbps(ceiling)), ..evidence(waiting) };
        assert_eq!(limit_of_sender(&with(950)).unwrap().what, "rate_ceiling");
        assert_eq!(limit_of_sender(&with(2_000)).unwrap().what, "path");
    }

    #[test]
    fn a_ceiling_is_the_limit_only_if_delivered() {
        let waiting = Waiting { pacer: seconds(9.0), busy: seconds(1.0), ..Waiting::default() };
        let limit_of = |cause, share: f64, sent| {
            let lost = (700_000.0 * share) as u64;
            let mut lost_by_cause = CauseCounts::default();
            lost_by_cause.add(cause, lost);
            let (sent, ceiling) = (Rate::from_mbps(sent), Some(Rate::from_mbps(1_000)));
            let known = LimitEvidence { sent, ceiling, lost, lost_by_cause, ..evidence(waiting) };
            limit_of_sender(&known).unwrap().what
        };
        assert_eq!(
            [0.02, 0.3].map(|share| limit_of(Cause::Congestion, share, 1_000)),
            ["rate_ceiling", PATH]
        );
        assert_eq!(limit_of(Cause::Random, 0.3, 1_000), "rate_ceiling");
        let at_host = |share, sent| limit_of(Cause::ReceiverHost, share, sent);
        assert_eq!(
            [at_host(0.02, 1_000), at_host(0.3, 1_000), at_host(0.02, 700)],
            ["rate_ceiling", "receiver_host", "receiver_host"]
        );
    }

    #[test]
    fn silence_is_reported_with_any_limit() {
        let waiting = Waiting { ceiling: seconds(5.0), window: seconds(4.0), ..Waiting::default() };
        let known =
            LimitEvidence { ceiling: Some(Rate::from_mbps(950)), silent: seconds(4.0), ..evidence(waiting) };
        let found = limit_of_sender(&known).unwrap();
        assert_eq!(found.what, "rate_ceiling");
        assert!(found.evidence.ends_with("; nothing was acknowledged for 4.0 s"), "{}", found.evidence);
    }

    #[test]
    fn a_ceiling_set_during_the_run_counts() {
        let waiting = Waiting { ceiling: seconds(8.0), pacer: seconds(1.0), ..Waiting::default() };
        assert_eq!(limit_of_sender(&evidence(waiting)).unwrap().what, "rate_ceiling");
        let waiting = Waiting { ceiling: seconds(1.0), pacer: seconds(8.0), ..Waiting::default() };
        assert_eq!(limit_of_sender(&evidence(waiting)).unwrap().what, PATH);
    }

    #[test]
    fn a_ceiling_in_force_most_of_the_time_counts_for_any_mean_rate() {
        let with = |waiting| {
            let ceiling = Some(Rate::from_mbps(2_000));
            limit_of_sender(&LimitEvidence { ceiling, ..evidence(waiting) }).unwrap().what
        };
        let base = Waiting { ceiling: seconds(5.0), busy: seconds(1.0), ..Waiting::default() };
        assert_eq!(with(Waiting { quota: seconds(4.0), ..base }), "rate_ceiling");
        assert_eq!(with(Waiting { quota: seconds(6.0), ..base }), "receiver_share");
        assert_eq!(with(Waiting { pacer: seconds(3.0), window: seconds(3.0), ..base }), "path");
        assert_eq!(with(Waiting { source: seconds(6.0), ..base }), "sender_storage");
    }

    #[test]
    fn short_runs_and_dropping_receivers_are_distinguished_from_the_path() {
        let waiting = Waiting { pacer: seconds(0.2), ..Waiting::default() };
        let short = LimitEvidence { elapsed: seconds(0.3), ..evidence(waiting) };
        assert_eq!(limit_of_sender(&short).unwrap().what, "start_up");
        let waiting = Waiting { pacer: seconds(9.0), ..Waiting::default() };
        let dropping = LimitEvidence { receiver_drops: 5_000, ..evidence(waiting) };
        assert_eq!(limit_of_sender(&dropping).unwrap().what, "receiver_host");
        assert!(limit_of_sender(&evidence(waiting)).unwrap().evidence.contains("0.10 %"));
    }

    #[test]
    fn tiny_measurements_are_no_evidence() {
        let tiny = |waiting, seconds_in_all| {
            let (elapsed, peak_delivery) = (seconds(seconds_in_all), Rate::ZERO);
            let name = |found: Limit| found.what;
            limit_of_sender(&LimitEvidence {
                elapsed,
                peak_delivery,
                packets: 1,
                lost: 0,
                ..evidence(waiting)
            })
            .map(name)
        };
        let paced = Waiting { pacer: seconds(0.05), ..Waiting::default() };
        assert_eq!(tiny(Waiting::default(), 0.1), None, "all of it was settling");
        assert_eq!((tiny(paced, 0.05), tiny(paced, 0.08)), (None, None));
        let path = Waiting { pacer: seconds(60.0), ..Waiting::default() };
        assert_eq!(tiny(path, 60.0), None, "a path of which no delivery was seen");
        // Only empty files, or a storage that needs time for one.
        assert_eq!(tiny(Waiting::default(), 3.0).as_deref(), Some("receiver_storage"));
    }

    #[test]
    fn a_law_that_takes_random_losses_for_congestion_is_the_limit_and_a_full_queue_the_path() {
        let limit_of = |cause, sent| {
            let mut lost_by_cause = CauseCounts::default();
            lost_by_cause.add(cause, 600);
            let waiting = Waiting { window: seconds(9.0), ..Waiting::default() };
            let (sent, known) = (Rate::from_mbps(sent), evidence(waiting));
            limit_of_sender(&LimitEvidence { sent, lost_by_cause, ..known }).unwrap().what
        };
        assert_eq!((limit_of(Cause::Random, 300), limit_of(Cause::Random, 900)), ("law".into(), PATH.into()));
        assert_eq!(
            (limit_of(Cause::Congestion, 300), limit_of(Cause::Inconclusive, 300)),
            (PATH.into(), PATH.into())
        );
    }

    #[test]
    fn a_law_is_not_blamed_for_start_and_end() {
        let limit_of = |elapsed, sent| {
            let mut lost_by_cause = CauseCounts::default();
            lost_by_cause.add(Cause::Random, 600);
            let waiting = Waiting { window: seconds(elapsed * 0.9), ..Waiting::default() };
            let (sent, known) = (Rate::from_mbps(sent), evidence(waiting));
            let known = LimitEvidence { sent, lost_by_cause, elapsed: seconds(elapsed), ..known };
            limit_of_sender(&known).unwrap().what
        };
        // 24 and 60 round trips, as many as a short copy and the demo take.
        assert_eq!(
            (limit_of(1.2, 380), limit_of(3.0, 670), limit_of(3.0, 400)),
            (PATH.into(), PATH.into(), "law".into())
        );
    }

    #[test]
    fn a_receiver_reports_only_limits_it_can_observe() {
        let (goodput, ceiling) = (Rate::from_mbps(95), Some(Rate::from_mbps(100)));
        assert_eq!(limit_of_receiver(goodput, ceiling, 1_000, 0).what, "rate_ceiling");
        assert_eq!(limit_of_receiver(goodput, ceiling, 1_000, 10).what, "receiver_host");
        assert_eq!(limit_of_receiver(goodput, None, 1_000, 0).what, "path_or_sender");
    }
}
