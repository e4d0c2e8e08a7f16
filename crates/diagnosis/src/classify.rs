//! Bayes' rule over the two causes (dickens-classifier, section 3.3).

use haul_base::{Cause, Verdict};
use statrs::function::erf::erfc;

use crate::model::Spread;
use crate::{Model, Sample};

/// Measure by which a diagnosis was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Metric {
    /// First-order complexity: for loss rates from 0.0005 on.
    Complexity,
    /// Success proportion, the share of losses that follow another: for lower loss rates, down to 0.00008.
    SuccessProportion,
}

/// Number of bursts, each lost completely and longer than one packet, from which on a window is attributed to
/// the host. Our choice, as [`MIN_BURST_LENGTH`]: of 2,541 real windows of networks with a loss rate below
/// 0.001 nine met one of the two criteria, of 2,838 of hosts all but three.
const MIN_COMPLETE_BURSTS: usize = 4;
/// Minimum packets of the shortest burst if there are fewer bursts: a full queue rarely drops as many in a
/// row.
const MIN_BURST_LENGTH: u64 = 4;
/// Probability of that if the network loses packets: Laplace's rule of succession for these windows.
const NETWORK_PROBABILITY: f64 = 10.0 / 2_543.0;

/// Diagnosis of the losses of one transmission window.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Diagnosis {
    /// Measure used. `None` outside the model's range of loss rates, where both causes have probability 0.5.
    pub metric: Option<Metric>,
    /// Probability that the receiving host lost the packets, 0 to 1.
    pub p_host: f64,
}

impl Diagnosis {
    /// Probability from which on a cause is certain (dickens-classifier, section 2.2).
    pub const CERTAIN_PROBABILITY: f64 = 0.95;
    /// Insufficient data for a diagnosis.
    pub const NOTHING: Self = Self { metric: None, p_host: 0.5 };

    /// Returns the probability that the network lost the packets, 0 to 1.
    pub fn p_network(&self) -> f64 {
        1.0 - self.p_host
    }

    /// Returns the cause if it is certain enough.
    pub fn cause(&self) -> Cause {
        if self.p_host >= Self::CERTAIN_PROBABILITY {
            Cause::ReceiverHost
        } else if self.p_network() >= Self::CERTAIN_PROBABILITY {
            Cause::Congestion
        } else {
            Cause::Inconclusive
        }
    }

    /// Returns the verdict for a control law: the whole loss has the cause that is certain.
    pub fn verdict(&self) -> Verdict {
        Verdict::of(self.cause())
    }
}

/// Likelihood of a measured value (equation 5 and figure 7): the probability that a normal distribution is at
/// least as far from its mean.
fn likelihood(measured: f64, spread: Spread) -> f64 {
    erfc(((measured - spread.mean) / spread.deviation).abs() / std::f64::consts::SQRT_2)
}

impl Model {
    /// Diagnoses a measured window.
    pub fn classify(&self, sample: &Sample) -> Diagnosis {
        let loss_rate = sample.loss_rate();
        let by_success = self.by_success(sample);
        let diagnosis = if self.complexity_range.contains(loss_rate) {
            let diagnosis =
                sample.complexity.map(|value| self.posterior(Metric::Complexity, value, loss_rate));
            diagnosis.map(|diagnosis| self.unless_contradicted(diagnosis, by_success))
        } else if self.success_range.contains(loss_rate) {
            by_success
        } else {
            None
        };
        let with_bursts = |diagnosis| self.with_bursts(diagnosis, sample.burst_density);
        diagnosis.map_or(Diagnosis::NOTHING, with_bursts)
    }

    /// Uses the burst density to decide where the other measures are inconclusive, and to contradict them.
    fn with_bursts(&self, diagnosis: Diagnosis, density: Option<f64>) -> Diagnosis {
        let spreads = self.host.burst_density.zip(self.network.burst_density);
        let Some(((host, network), density)) = spreads.zip(density).filter(|_| self.both_measures) else {
            return diagnosis;
        };
        let by_bursts = Diagnosis { p_host: self.p_host(density.ln(), [host, network]), ..diagnosis };
        match diagnosis.cause() {
            Cause::Inconclusive => by_bursts,
            _ => self.unless_contradicted(diagnosis, Some(by_bursts)),
        }
    }

    /// Diagnoses by the success proportion. A host loses whole bursts, and with short bursts few lost packets
    /// are followed by another one. With both measures such windows are not attributed to congestion, and
    /// many or long bursts are attributed to the host.
    fn by_success(&self, sample: &Sample) -> Option<Diagnosis> {
        let diagnosis =
            self.posterior(Metric::SuccessProportion, sample.success_proportion?, sample.loss_rate());
        Some(match sample.complete_bursts.filter(|_| self.both_measures) {
            Some(bursts) if bursts.number >= MIN_COMPLETE_BURSTS || bursts.shortest >= MIN_BURST_LENGTH => {
                Diagnosis { p_host: 1.0 / (1.0 + NETWORK_PROBABILITY), ..diagnosis }
            }
            Some(_) if diagnosis.cause() == Cause::Congestion => Diagnosis { p_host: 0.5, ..diagnosis },
            _ => diagnosis,
        })
    }

    /// Returns the diagnosis by one measure, unless the other one contradicts it.
    fn unless_contradicted(&self, diagnosis: Diagnosis, other: Option<Diagnosis>) -> Diagnosis {
        let causes = [Some(diagnosis), other].map(|diagnosis| diagnosis.map(|diagnosis| diagnosis.cause()));
        let is_contradicted = matches!(
            causes,
            [Some(Cause::ReceiverHost), Some(Cause::Congestion)]
                | [Some(Cause::Congestion), Some(Cause::ReceiverHost)]
        );
        if self.both_measures && is_contradicted { Diagnosis { p_host: 0.5, ..diagnosis } } else { diagnosis }
    }

    /// Diagnoses windows together that each lost too few packets: by success proportion, at any loss rate.
    pub fn by_success_proportion(&self, windows: &Sample) -> Diagnosis {
        let diagnosis = self.by_success(windows);
        diagnosis.map_or(Diagnosis::NOTHING, |diagnosis| self.with_bursts(diagnosis, windows.burst_density))
    }

    /// Equation 3, with equal prior probabilities.
    fn posterior(&self, metric: Metric, measured: f64, loss_rate: f64) -> Diagnosis {
        let spreads = [&self.host, &self.network].map(|cause| cause.spread(metric, loss_rate));
        Diagnosis { metric: Some(metric), p_host: self.p_host(measured, spreads) }
    }

    /// Returns the probability of the host, given the distributions of the measure for host and network.
    /// Beyond a cause's mean, away from the other's, the paper's two-tailed likelihood makes a window
    /// atypical of both (the single losses of `CoDel`); with both measures it counts as typical.
    fn p_host(&self, measured: f64, [host, network]: [Spread; 2]) -> f64 {
        let likelihood = |of: Spread, other: Spread| {
            let is_extreme = (measured - of.mean) * (other.mean - of.mean) < 0.0;
            if self.both_measures && is_extreme { 1.0 } else { likelihood(measured, of) }
        };
        let (host, network) = (likelihood(host, network), likelihood(network, host));
        if host.max(network) <= self.negligible { 0.5 } else { host / (host + network) }
    }
}

impl crate::model::CauseModel {
    /// Returns the distribution of a measure at a loss rate.
    fn spread(&self, metric: Metric, loss_rate: f64) -> Spread {
        match metric {
            Metric::Complexity => {
                Spread { mean: self.complexity.at(loss_rate), deviation: self.complexity_deviation }
            }
            Metric::SuccessProportion => self.success_proportion,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::Signature;
    use crate::model::{CauseModel, Curve, Term};

    fn model() -> Model {
        let cause = |amount, mean| CauseModel {
            complexity: Curve(vec![Term { amount, scale: 1e-9 }]),
            complexity_deviation: 0.1,
            success_proportion: Spread { mean, deviation: 0.1 },
            burst_density: None,
        };
        Model {
            host: cause(0.3, 0.9),
            network: cause(0.7, 0.1),
            both_measures: false,
            ..Model::shipped().clone()
        }
    }

    fn sample(lost: u64, complexity: f64, success: f64) -> Sample {
        let (complexity, success_proportion) = (Some(complexity), Some(success));
        Sample {
            packets: 100_000,
            lost,
            complexity,
            success_proportion,
            burst_density: None,
            complete_bursts: None,
        }
    }

    #[test]
    fn the_loss_rate_selects_the_measure() {
        for (lost, metric, p_host) in [
            (7, None, 0.5),
            (8, Some(Metric::SuccessProportion), 1.0),
            (49, Some(Metric::SuccessProportion), 1.0),
            (50, Some(Metric::Complexity), 0.0),
            (5_000, Some(Metric::Complexity), 0.0),
            (5_001, None, 0.5),
        ] {
            // By the success proportion it was the host, by the complexity it was not.
            let diagnosis = model().classify(&sample(lost, 0.7, 0.9));
            assert_eq!(diagnosis.metric, metric, "{lost}");
            // Four deviations leave 6 in 100,000.
            assert!((diagnosis.p_host - p_host).abs() < 1e-4, "{lost}: {diagnosis:?}");
        }
    }

    #[test]
    fn the_posterior_follows_bayes_rule_over_both_tails() {
        // One deviation from the host's mean, three from the network's: 0.31731 and 0.0026998 lie as far out.
        let diagnosis = model().classify(&sample(1_000, 0.4, 0.0));
        let expected = 0.317_310_508 / (0.317_310_508 + 0.002_699_796);
        assert!((diagnosis.p_host - expected).abs() < 1e-6, "{diagnosis:?}");
        assert_eq!(diagnosis.cause(), Cause::ReceiverHost);
        // Half-way between both.
        let diagnosis = model().classify(&sample(1_000, 0.5, 0.0));
        assert!((diagnosis.p_host - 0.5).abs() < 1e-9);
        assert_eq!(diagnosis.cause(), Cause::Inconclusive);
    }

    #[test]
    fn one_measure_can_veto_a_sure_verdict_of_the_other() {
        let both = Model { both_measures: true, ..model() };
        for (complexity, success, alone, together) in [
            (0.3, 0.9, Cause::ReceiverHost, Cause::ReceiverHost),
            (0.3, 0.0, Cause::ReceiverHost, Cause::Inconclusive),
            (0.7, 0.1, Cause::Congestion, Cause::Congestion),
            (0.7, 0.9, Cause::Congestion, Cause::Inconclusive),
            // Half-way contradicts neither.
            (0.3, 0.5, Cause::ReceiverHost, Cause::ReceiverHost),
        ] {
            let sample = sample(1_000, complexity, success);
            assert_eq!(
                [model().classify(&sample).cause(), both.classify(&sample).cause()],
                [alone, together]
            );
        }
    }

    #[test]
    fn bursts_decide_where_the_papers_measures_do_not_and_can_veto() {
        let cause = |cause: CauseModel, mean| {
            let burst_density = Some(Spread { mean, deviation: 0.1 });
            CauseModel { burst_density, ..cause }
        };
        let papers =
            Model { host: cause(model().host, 0.0), network: cause(model().network, -3.0), ..model() };
        let all = Model { both_measures: true, ..papers.clone() };
        for (complexity, density, alone, together) in [
            (0.3, 1.0, Cause::ReceiverHost, Cause::ReceiverHost),
            (0.3, 0.05, Cause::ReceiverHost, Cause::Inconclusive),
            (0.7, 1.0, Cause::Congestion, Cause::Inconclusive),
            (0.5, 1.0, Cause::Inconclusive, Cause::ReceiverHost),
            (0.5, 0.05, Cause::Inconclusive, Cause::Congestion),
            // Typical of neither.
            (0.5, 0.3, Cause::Inconclusive, Cause::Inconclusive),
            (0.3, 0.3, Cause::ReceiverHost, Cause::ReceiverHost),
        ] {
            let sample = Sample { burst_density: Some(density), ..sample(1_000, complexity, 0.5) };
            let expected = [&papers, &all].map(|model| model.classify(&sample).cause());
            assert_eq!(expected, [alone, together], "{complexity}, {density}");
        }
    }

    #[test]
    fn short_dense_bursts_are_not_congestion_and_many_or_long_ones_are_the_hosts() {
        let bursts = |bursts: u64, from: &'static [u64]| {
            let positions = (0..bursts).flat_map(|n| from.iter().map(move |packet| n * 5_000 + packet));
            Signature::of_lost(60_000, positions)
        };
        for (signature, cause) in [
            (bursts(2, &[0, 1, 2, 3]), Cause::ReceiverHost),
            (bursts(3, &[0, 1, 2]), Cause::Inconclusive),
            (bursts(3, &[0, 1]), Cause::Inconclusive),
            (bursts(4, &[0, 1, 2]), Cause::ReceiverHost),
            (bursts(2, &[0, 1, 4, 5]), Cause::Congestion),
            (bursts(8, &[0]), Cause::Congestion),
        ] {
            let sample = Sample::of(&signature, &mut crate::Words::of_length(17).unwrap());
            let shipped = Model::shipped();
            assert_eq!(shipped.classify(&sample).cause(), cause, "{sample:?}");
            let few = Sample { packets: 1_000_000, ..sample };
            assert_eq!(shipped.by_success_proportion(&few).cause(), cause, "{few:?}");
            let papers = Model { both_measures: false, ..shipped.clone() };
            assert_eq!(papers.classify(&sample).cause(), Cause::Congestion, "{sample:?}");
        }
    }

    #[test]
    fn values_beyond_a_causes_mean_are_typical_of_it() {
        let both = Model { both_measures: true, ..model() };
        for (complexity, expected) in [(-0.25, Cause::ReceiverHost), (1.5, Cause::Congestion)] {
            let sample = sample(1_000, complexity, 0.5);
            assert_eq!(
                [model(), both.clone()].map(|model| model.classify(&sample).cause()),
                [Cause::Inconclusive, expected]
            );
        }
        // Few words, as a host's, though no loss follows another.
        assert_eq!(both.classify(&sample(1_000, 0.25, -0.5)).cause(), Cause::Inconclusive);
    }

    #[test]
    fn windows_unlike_both_causes_are_inconclusive() {
        for complexity in [-0.25, 1.5] {
            let diagnosis = model().classify(&sample(1_000, complexity, 0.0));
            assert_eq!((diagnosis.p_host, diagnosis.cause()), (0.5, Cause::Inconclusive));
        }
        let unmeasured = Sample {
            packets: 10,
            lost: 0,
            complexity: None,
            success_proportion: None,
            ..sample(0, 0.0, 0.0)
        };
        assert_eq!(model().classify(&unmeasured), Diagnosis::NOTHING);
    }

    proptest! {
        #[test]
        fn probabilities_stay_within_bounds(lost in 0u64..=100_000, complexity in 0.0f64..1.0, success in 0.0f64..1.0) {
            let lenient = Model { negligible: 0.0, host: CauseModel { complexity_deviation: 1e-9, ..model().host }, ..model() };
            let lenient = Model { network: CauseModel { complexity_deviation: 1e-9, ..model().network }, ..lenient };
            for model in [model(), lenient, Model::shipped().clone()] {
                let diagnosis = model.classify(&sample(lost, complexity, success));
                prop_assert!((0.0..=1.0).contains(&diagnosis.p_host), "{:?}", diagnosis);
            }
        }
    }
}
