//! Direct-execution simulation (dickens-classifier, section 4.1.1): the losses and verdicts of a real
//! transfer drive a virtual one on a path of 10 Gbit/s, with and without the diagnosis.

use haul_base::{Cause, Rate, Span};
use haul_proto::{DiagnosedWindow, highspeed_response};

use super::real::RealWindow;

/// The path of RFC 3649: 10 Gbit/s, packets of 1,500 bytes, a round-trip time of 100 ms.
const LINK: Rate = Rate::from_mbps(10_000);
const PACKET_BITS: f64 = 12_000.0;
const ROUND_TRIP: Span = Span::from_millis(100);
/// RFC 3649: `Low_Window`.
const LOW_WINDOW: f64 = 38.0;
/// Packets after which a loss has a weight of 1/e in the long-term loss rate. The paper does not specify
/// this; the value is the default of the law `highspeed`.
const MEMORY: f64 = 1e6;

/// Goodput of the virtual transfer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Virtual {
    /// Bits per second if host losses are ignored.
    pub(super) with: f64,
    /// Bits per second if all losses count.
    pub(super) without: f64,
}

/// A transmission window that drives a virtual transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Drive {
    packets: u64,
    lost: u64,
    /// Cause of the losses according to the signature.
    cause: Cause,
}

impl Drive {
    pub(super) fn simulated(window: &DiagnosedWindow) -> Self {
        let DiagnosedWindow { sample, by_signature, .. } = window;
        Self { packets: sample.packets, lost: sample.lost, cause: by_signature.cause() }
    }

    /// Returns the windows of a real run. Its trace has only windows with losses; the ones between are
    /// assumed to have as many packets as the previous one.
    pub(super) fn real(windows: &[RealWindow]) -> Vec<Self> {
        let mut drives = Vec::new();
        let mut next = windows.first().map_or(0, |window| window.number);
        for window in windows {
            if let Some(Self { packets, .. }) = drives.last().copied() {
                let between = window.number.saturating_sub(next) as usize;
                let without_loss = Self { packets, lost: 0, cause: Cause::Inconclusive };
                drives.extend(std::iter::repeat_n(without_loss, between));
            }
            let (packets, lost) =
                (window.signature.packets(), window.signature.lost_positions().count() as u64);
            let cause = window.by_signature().unwrap_or(Cause::Inconclusive);
            drives.push(Self { packets, lost, cause });
            next = window.number + 1;
        }
        drives
    }
}

/// A virtual transfer: at the end of each real window it has sent one of its own, which takes a round trip.
#[derive(Debug, Default)]
struct Transfer {
    loss_rate: f64,
    packets: f64,
    windows: u64,
}

impl Transfer {
    fn on_window(&mut self, packets: u64, lost: u64) {
        let most = LINK.as_bps() as f64 / PACKET_BITS * ROUND_TRIP.as_secs_f64();
        let window = if self.loss_rate > 0.0 {
            highspeed_response(self.loss_rate, LOW_WINDOW).min(most)
        } else {
            most
        };
        self.packets += window;
        self.windows += 1;
        let kept = (-(packets as f64) / MEMORY).exp();
        self.loss_rate = self.loss_rate * kept + lost as f64 / packets.max(1) as f64 * (1.0 - kept);
    }

    fn rate(&self) -> f64 {
        self.packets * PACKET_BITS / (self.windows.max(1) as f64 * ROUND_TRIP.as_secs_f64())
    }
}

/// Runs the virtual transfers from the first window with losses on: before it, both have the whole path.
pub(super) fn virtual_transfer(windows: impl IntoIterator<Item = Drive>) -> Virtual {
    let (mut with, mut without) = (Transfer::default(), Transfer::default());
    for Drive { packets, lost, cause } in windows.into_iter().skip_while(|window| window.lost == 0) {
        let reported = if cause == Cause::ReceiverHost { 0 } else { lost };
        if without.windows == 0 {
            let share = |lost: u64| lost as f64 / packets.max(1) as f64;
            (with.loss_rate, without.loss_rate) = (share(reported), share(lost));
        }
        with.on_window(packets, reported);
        without.on_window(packets, lost);
    }
    Virtual { with: with.rate(), without: without.rate() }
}

#[cfg(test)]
mod tests {
    use haul_diagnosis::Signature;

    use super::*;
    use crate::sim::real::Labels;

    /// Returns windows of 70,000 packets; every `every`th one loses 100 and is diagnosed as `cause`.
    fn windows(every: u64, cause: Cause) -> impl Iterator<Item = Drive> {
        (0..2_000).map(move |number| {
            let lost = if number % every == 0 { 100 } else { 0 };
            Drive { packets: 70_000, lost, cause }
        })
    }

    #[test]
    fn with_the_diagnosis_the_whole_path_is_used_and_without_it_the_response_function_applies() {
        // 100 of 280,000 packets: 0.00036.
        let Virtual { with, without } = virtual_transfer(windows(4, Cause::ReceiverHost));
        assert!((with / 1e10 - 1.0).abs() < 1e-3, "{with}");
        let response = highspeed_response(100.0 / 280_000.0, LOW_WINDOW) * PACKET_BITS / 0.1;
        assert!((without / response - 1.0).abs() < 0.1, "{without} {response}");
        let Virtual { with, without } = virtual_transfer(windows(4, Cause::Inconclusive));
        assert!((with / without - 1.0).abs() < 0.01, "{with} {without}");
    }

    #[test]
    fn windows_missing_from_a_trace_have_no_losses() {
        let window = |number, packets, lost, p_host| RealWindow {
            number,
            signature: Signature::of_lost(packets, 0..lost),
            labels: Labels::default(),
            p_host,
        };
        let drives = Drive::real(&[window(3, 70_000, 9, Some(0.99)), window(6, 60_000, 5, None)]);
        let of = |drive: &Drive| (drive.packets, drive.lost, drive.cause == Cause::ReceiverHost);
        let expected = [(70_000, 9, true), (70_000, 0, false), (70_000, 0, false), (60_000, 5, false)];
        assert_eq!(drives.iter().map(of).collect::<Vec<_>>(), expected);
        assert_eq!(Drive::real(&[]), []);
    }
}
