//! Modelled path of the harness, and its measurements.

use haul_base::{HostSample, Rate, Span, Time, Verdict};

use crate::control::{ControllerConfig, Limits};

/// Losses of the medium, besides those of the queue.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Loss {
    /// No loss.
    None,
    /// Exactly the last of every `n` packets.
    EachNth(u64),
    /// Each packet independently with this probability, from the model's seed.
    Random(f64),
}

/// A path and its receiver. Can be changed during a run through [`Harness::path`].
#[derive(Clone, Debug)]
pub(crate) struct PathModel {
    /// Bottleneck capacity, UDP payload.
    pub(crate) capacity: Rate,
    /// Round-trip time without a queue; half of it in each direction.
    pub(crate) rtt: Span,
    /// Maximum random extra delay of a batch; batches are not reordered.
    pub(crate) jitter: Span,
    /// Capacity of the bottleneck's queue in bytes (tail drop).
    pub(crate) queue: u64,
    pub(crate) loss: Loss,
    /// Packets that find more queued bytes than this are marked (ECN).
    pub(crate) mark_above: Option<u64>,
    /// Maximum rate at which the receiver reads.
    pub(crate) drain: Option<Rate>,
    /// In each period of the first length, the reading process has no processor for the second length at the
    /// start; requires `drain`. Host samples report it.
    pub(crate) suspended: Option<(Span, Span)>,
    /// Capacity of the socket buffer in bytes.
    pub(crate) socket_buffer: u64,
    /// Bytes of a packet, UDP payload.
    pub(crate) datagram: u64,
    /// Interval of the receiver's reports.
    pub(crate) feedback: Span,
    /// Diagnosis of all losses.
    pub(crate) verdict: Option<Verdict>,
    /// Host sample of each report, totals.
    pub(crate) host: Option<HostSample>,
    /// Bytes of a transmission window and of a chunk; also of a round, as if each were sent as a blast.
    pub(crate) unit_window: u64,
    pub(crate) chunk: u64,
    pub(crate) round: Option<u64>,
    pub(crate) seed: u64,
}

impl Default for PathModel {
    /// 1 Gbit/s, 20 ms, a queue of one bandwidth-delay product, no loss, reports every 2 ms, windows and
    /// chunks of 100 MB.
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
    /// A path without an effective bottleneck that loses one of every `n` packets, to measure responses to
    /// loss.
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

    /// Returns the processor time of the reading process until `at`, and how often and how long it had none.
    pub(crate) fn processor(&self, at: Time) -> (Span, u64, Span) {
        let Some((period, duration)) = self.suspended else { return (at.since(Time::ZERO), 0, Span::ZERO) };
        let (nanos, period) = (at.as_nanos(), period.as_nanos());
        let without = nanos / period * duration.as_nanos() + (nanos % period).min(duration.as_nanos());
        (Span::from_nanos(nanos - without), nanos / period + 1, Span::from_nanos(without))
    }

    /// Returns when it has had this much processor time.
    pub(crate) fn time_at_processor(&self, processor_time: Span) -> Time {
        let Some((period, duration)) = self.suspended else { return Time::ZERO + processor_time };
        let runs = period.saturating_sub(duration).as_nanos();
        let (periods, rest) = (processor_time.as_nanos() / runs, processor_time.as_nanos() % runs);
        Time::from_nanos(periods * period.as_nanos()) + duration + Span::from_nanos(rest)
    }

    /// Returns the receiving host's sample.
    pub(crate) fn host_at(&self, at: Time) -> Option<HostSample> {
        let Some((period, duration)) = self.suspended else { return self.host };
        let (_, switches, without) = self.processor(at);
        let at = at - Span::from_nanos(1);
        // From 800 ms down to 200 ms while it runs.
        let ran = Span::from_nanos(at.as_nanos() % period.as_nanos()).saturating_sub(duration);
        let share = ran.as_secs_f64() / period.saturating_sub(duration).as_secs_f64();
        Some(HostSample {
            run_delay: Some(without),
            involuntary_switches: Some(switches as u32),
            sleep_average: Some(Span::from_secs_f64(0.8 - 0.6 * share)),
            ..HostSample::default()
        })
    }

    /// Returns the bandwidth-delay product in packets.
    pub(crate) fn bdp_packets(&self) -> f64 {
        self.capacity.bytes_in(self.rtt) as f64 / self.datagram as f64
    }
}

/// Configuration of a law for a regular path.
pub(crate) fn config(ceiling: Option<Rate>) -> ControllerConfig {
    ControllerConfig { ceiling, initial_rtt: Span::from_millis(20), feedback_interval: Span::from_millis(2) }
}

/// A decrease of the limits from one feedback to the next.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reduction {
    pub(crate) at: Time,
    pub(crate) before: Limits,
    pub(crate) after: Limits,
}

impl Reduction {
    /// Returns the factor of the rate.
    pub(crate) fn rate_factor(&self) -> f64 {
        self.after.rate.as_bps() as f64 / self.before.rate.as_bps() as f64
    }

    /// Returns the factor of the window, if there is one.
    pub(crate) fn window_factor(&self) -> Option<f64> {
        Some(self.after.window? as f64 / self.before.window? as f64)
    }
}

/// Measurements over a period.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Measured {
    /// Rate at which the receiver has read, UDP payload.
    pub(crate) goodput: Rate,
    /// Data packets sent, and those declared lost.
    pub(crate) sent: u64,
    pub(crate) lost: u64,
    /// Time average of the permitted rate; time on hold counts as zero.
    pub(crate) mean_rate: Rate,
    /// Time average of the permitted window, packets; `None` if the law has none.
    pub(crate) mean_window: Option<f64>,
    /// Time average of packets in flight.
    pub(crate) mean_in_flight: f64,
    /// Mean of the round-trip samples.
    pub(crate) mean_rtt: Span,
    /// Share of the time on hold.
    pub(crate) held: f64,
}

impl Measured {
    /// Returns the lost packets per sent packet.
    pub(crate) fn loss_rate(&self) -> f64 {
        self.lost as f64 / self.sent.max(1) as f64
    }
}
