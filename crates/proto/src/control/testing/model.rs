//! What a law runs over, and what is measured of it.

use haul_base::{HostSample, Rate, Span, Time, Verdict};

use crate::control::{ControllerConfig, Limits};

/// What the medium loses, besides what the queue drops.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Loss {
    /// Nothing.
    None,
    /// Exactly one packet of so many: the last of each.
    EachNth(u64),
    /// Each packet with this probability, independently, from the model's seed.
    Random(f64),
}

/// A path and the receiver behind it. Change the fields while it runs through [`Harness::path`].
#[derive(Clone, Debug)]
pub(crate) struct PathModel {
    /// Of the bottleneck, UDP payload.
    pub(crate) capacity: Rate,
    /// Round trip without a queue; half of it each way.
    pub(crate) rtt: Span,
    /// Batches take up to so much longer, by chance; none overtakes another.
    pub(crate) jitter: Span,
    /// Bytes that wait at the bottleneck at most (tail drop).
    pub(crate) queue: u64,
    pub(crate) loss: Loss,
    /// Packets that find more bytes than this waiting are marked (ECN).
    pub(crate) mark_above: Option<u64>,
    /// The receiver reads no faster.
    pub(crate) drain: Option<Rate>,
    /// The process that reads is without a processor for the second time at the start of each of the first; wants
    /// `drain`. The host's sample tells of it.
    pub(crate) suspended: Option<(Span, Span)>,
    /// Bytes that wait to be read at most.
    pub(crate) socket_buffer: u64,
    /// Bytes of a packet, UDP payload.
    pub(crate) datagram: u64,
    /// How often the receiver reports.
    pub(crate) feedback: Span,
    /// What the diagnosis says of all losses.
    pub(crate) verdict: Option<Verdict>,
    /// What the receiving host says with each report, totals.
    pub(crate) host: Option<HostSample>,
    /// Bytes of a transmission window and of a chunk; of a round as well, as if the sender blasted so much at a time.
    pub(crate) unit_window: u64,
    pub(crate) chunk: u64,
    pub(crate) round: Option<u64>,
    pub(crate) seed: u64,
}

impl Default for PathModel {
    /// 1 Gbit/s, 20 ms, a queue of one bandwidth-delay product, no loss, reports every 2 ms, windows and chunks of 100
    /// MB.
    fn default() -> Self {
        Self {
            capacity: Rate::from_mbps(1_000),
            rtt: Span::from_millis(20),
            jitter: Span::ZERO,
            queue: 2_500_000,
            loss: Loss::None,
            mark_above: None,
            drain: None,
            suspended: None,
            socket_buffer: 4_000_000,
            datagram: 1_472,
            feedback: Span::from_millis(2),
            verdict: None,
            host: None,
            unit_window: 100_000_000,
            chunk: 100_000_000,
            round: None,
            seed: 1,
        }
    }
}

impl PathModel {
    /// A path without a bottleneck that matters, which loses one packet of each `n`: for a law's response to loss.
    pub(crate) fn lossy(n: u64) -> Self {
        Self {
            capacity: Rate::from_mbps(1_000_000),
            rtt: Span::from_millis(100),
            queue: u64::MAX / 4,
            loss: Loss::EachNth(n),
            ..Self::default()
        }
    }

    /// A bottleneck with a queue of `bdp` bandwidth-delay products and no other loss.
    pub(crate) fn bottleneck(capacity: Rate, rtt: Span, bdp: f64) -> Self {
        let queue = ((capacity.bytes_in(rtt) as f64 * bdp) as u64).max(4 * 1_472);
        Self { capacity, rtt, queue, ..Self::default() }
    }

    /// How long the process that reads has had a processor until `at`, and how often and how long it had none.
    pub(crate) fn processor(&self, at: Time) -> (Span, u64, Span) {
        let Some((period, lasts)) = self.suspended else { return (at.since(Time::ZERO), 0, Span::ZERO) };
        let (nanos, period) = (at.as_nanos(), period.as_nanos());
        let without = nanos / period * lasts.as_nanos() + (nanos % period).min(lasts.as_nanos());
        (Span::from_nanos(nanos - without), nanos / period + 1, Span::from_nanos(without))
    }

    /// When it has had one for so long.
    pub(crate) fn after_processor(&self, had: Span) -> Time {
        let Some((period, lasts)) = self.suspended else { return Time::ZERO + had };
        let runs = period.saturating_sub(lasts).as_nanos();
        let (whole, rest) = (had.as_nanos() / runs, had.as_nanos() % runs);
        Time::from_nanos(whole * period.as_nanos()) + lasts + Span::from_nanos(rest)
    }

    /// What the receiving host says of itself.
    pub(crate) fn host_at(&self, at: Time) -> Option<HostSample> {
        let Some((period, lasts)) = self.suspended else { return self.host };
        let (_, switches, without) = self.processor(at);
        let at = at - Span::from_nanos(1);
        // From 800 ms down to 200 ms while it runs.
        let ran = Span::from_nanos(at.as_nanos() % period.as_nanos()).saturating_sub(lasts);
        let share = ran.as_secs_f64() / period.saturating_sub(lasts).as_secs_f64();
        Some(HostSample {
            run_delay: Some(without),
            involuntary_switches: Some(switches as u32),
            sleep_average: Some(Span::from_secs_f64(0.8 - 0.6 * share)),
            ..HostSample::default()
        })
    }

    /// Packets of the bandwidth-delay product.
    pub(crate) fn bdp_packets(&self) -> f64 {
        self.capacity.bytes_in(self.rtt) as f64 / self.datagram as f64
    }
}

/// What a law should be built with for a path without surprises.
pub(crate) fn config(ceiling: Option<Rate>) -> ControllerConfig {
    ControllerConfig { ceiling, initial_rtt: Span::from_millis(20), feedback_interval: Span::from_millis(2) }
}

/// Limits that fell from one feedback to the next.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cut {
    pub(crate) at: Time,
    pub(crate) before: Limits,
    pub(crate) after: Limits,
}

impl Cut {
    /// What the rate was multiplied by.
    pub(crate) fn rate_factor(&self) -> f64 {
        self.after.rate.as_bps() as f64 / self.before.rate.as_bps() as f64
    }

    /// What the window was multiplied by, if there is one.
    pub(crate) fn window_factor(&self) -> Option<f64> {
        Some(self.after.window? as f64 / self.before.window? as f64)
    }
}

/// One stretch of time, measured.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Measured {
    /// What the receiver has read, UDP payload.
    pub(crate) goodput: Rate,
    /// Data packets sent, and found to be lost.
    pub(crate) sent: u64,
    pub(crate) lost: u64,
    /// Mean over time of the permitted rate; time on hold counts as none.
    pub(crate) mean_rate: Rate,
    /// Mean over time of the permitted window, packets; `None` if the law has none.
    pub(crate) mean_window: Option<f64>,
    /// Mean over time of packets in flight.
    pub(crate) mean_in_flight: f64,
    /// Mean of the measured round trips.
    pub(crate) mean_rtt: Span,
    /// Share of the time on hold.
    pub(crate) held: f64,
}

impl Measured {
    /// Lost packets per sent packet.
    pub(crate) fn loss_rate(&self) -> f64 {
        self.lost as f64 / self.sent.max(1) as f64
    }
}
