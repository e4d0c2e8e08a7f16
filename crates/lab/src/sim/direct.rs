//! Direct-execution simulation (dickens-classifier, section 4.1.1): the losses and the verdicts of a real transfer
//! drive a virtual one on a path of 10 Gbit/s, twice: with the diagnosis and without.

use haul_base::{Cause, Rate, Span};
use haul_proto::{DiagnosedWindow, highspeed_response};

/// The path of RFC 3649: 10 Gbit/s, packets of 1,500 bytes, a round trip of 100 ms.
const LINK: Rate = Rate::from_mbps(10_000);
const PACKET_BITS: f64 = 12_000.0;
const ROUND_TRIP: Span = Span::from_millis(100);
/// RFC 3649: `Low_Window`.
const LOW_WINDOW: f64 = 38.0;
/// Packets after which a lost one counts for 1/e in the long-term loss rate. The paper does not say how that is kept;
/// this is the default of the law `highspeed`.
const MEMORY: f64 = 1e6;

/// What the virtual transfer reaches.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Virtual {
    /// Bits per second if losses of the host are no losses.
    pub(super) with: f64,
    /// If all are losses.
    pub(super) without: f64,
}

/// A virtual transfer: at the end of each real window it has sent its own, which takes a round trip.
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

/// The virtual transfer of these windows, from the first one on that lost something: before it, both have the whole
/// path.
pub(super) fn virtual_transfer(windows: &[DiagnosedWindow]) -> Virtual {
    let (mut with, mut without) = (Transfer::default(), Transfer::default());
    for window in windows.iter().skip_while(|window| window.sample.lost == 0) {
        let (packets, lost) = (window.sample.packets, window.sample.lost);
        let heard = if window.by_signature.cause() == Cause::ReceiverHost { 0 } else { lost };
        if without.windows == 0 {
            with.loss_rate = heard as f64 / packets.max(1) as f64;
            without.loss_rate = window.sample.loss_rate();
        }
        with.on_window(packets, heard);
        without.on_window(packets, lost);
    }
    Virtual { with: with.rate(), without: without.rate() }
}

#[cfg(test)]
mod tests {
    use haul_base::CauseCounts;
    use haul_diagnosis::{Diagnosis, Metric, Sample, Signature, Words};

    use super::*;

    /// Windows of 70,000 packets, of which each `every`th loses 100, and what is said of those.
    fn windows(every: u64, p_host: f64) -> Vec<DiagnosedWindow> {
        let mut words = Words::of_length(17).unwrap();
        let window = |number| {
            let lost = if number % every == 0 { 100 } else { 0 };
            let signature = Signature::of_lost(70_000, 0..lost);
            let sample = Sample::of(&signature, &mut words);
            let by_signature = Diagnosis { metric: Some(Metric::Complexity), p_host };
            DiagnosedWindow {
                number,
                first_pn: 0,
                signature,
                sample,
                by_signature,
                counts: CauseCounts::default(),
                attributions: Vec::new(),
            }
        };
        (0..2_000).map(window).collect()
    }

    #[test]
    fn who_knows_that_it_was_the_host_has_the_whole_path_and_who_does_not_has_the_response() {
        // 100 of 280,000 packets: 0.00036.
        let Virtual { with, without } = virtual_transfer(&windows(4, 0.99));
        assert!((with / 1e10 - 1.0).abs() < 1e-3, "{with}");
        let response = highspeed_response(100.0 / 280_000.0, LOW_WINDOW) * PACKET_BITS / 0.1;
        assert!((without / response - 1.0).abs() < 0.1, "{without} {response}");
        let Virtual { with, without } = virtual_transfer(&windows(4, 0.5));
        assert!((with / without - 1.0).abs() < 0.01, "{with} {without}");
    }
}
