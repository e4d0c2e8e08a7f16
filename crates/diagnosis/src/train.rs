//! Fitting a model to windows with known causes (dickens-classifier, sections 3.1.6 and 3.2).

use haul_base::Cause;

use crate::fit::fit;
use crate::model::{CauseModel, Curve, FORMAT, NEGLIGIBLE, PAPERS_RANGES, Range, Spread};
use crate::{Confusion, Model, Normality, Provenance, Sample, shapiro_wilk};

/// Minimum number of windows of one cause in one range for an estimate of the spread.
const MIN_WINDOWS: usize = 10;
/// Number of bins of the logarithm of the loss rate.
const BINS: usize = 20;
/// Distance of outliers from the quartiles, in interquartile ranges (Tukey's fences).
const FENCE_FACTOR: f64 = 1.5;
/// Minimum deviation: a measure that never varies would make every other value impossible.
const MIN_DEVIATION: f64 = 1e-3;

/// Why no model can be fitted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TrainError {
    /// Too few windows.
    #[error(
        "{cause} has {windows} windows with a loss rate of {range}, and at least {MIN_WINDOWS} are needed"
    )]
    TooFew {
        /// The cause with too few windows.
        cause: &'static str,
        /// Number of windows.
        windows: usize,
        /// The range of loss rates with too few windows.
        range: String,
    },
    /// The fit does not converge.
    #[error("no curve fits the complexity of {0}")]
    NoFit(&'static str),
}

/// Windows of one cause with similar loss rates.
#[derive(Clone, Debug, PartialEq)]
pub struct Bin {
    /// Range of their loss rates.
    pub range: Range,
    /// Number of windows.
    pub windows: usize,
    /// Mean complexity.
    pub mean: f64,
    /// Standard deviation of the complexity.
    pub deviation: f64,
    /// Value of the fitted curve in the middle of the bin.
    pub fitted: f64,
    /// Test whether the deviations from the curve are normal. `None`: too few, or all equal.
    pub normality: Option<Normality>,
    /// The same without outliers.
    pub normality_without_outliers: Option<Normality>,
}

/// A fitted model, with measures of its fit.
#[derive(Clone, Debug, PartialEq)]
pub struct Trained {
    /// The fitted model.
    pub model: Model,
    /// Share of the complexity's variance that the host's curve explains; negative if the mean alone explains
    /// more.
    pub host_r2: f64,
    /// The same for the network's curve.
    pub network_r2: f64,
    /// The host's windows by loss rate.
    pub host_bins: Vec<Bin>,
    /// The network's windows by loss rate.
    pub network_bins: Vec<Bin>,
}

/// Windows of one cause.
struct Windows<'a> {
    cause: &'static str,
    samples: &'a [Sample],
}

impl Windows<'_> {
    /// Returns the loss rate and measure of the windows in a range.
    fn points(
        &self,
        range: Range,
        measure: impl Fn(&Sample) -> Option<f64>,
    ) -> Result<Vec<(f64, f64)>, TrainError> {
        let inside = self.samples.iter().filter(|sample| range.contains(sample.loss_rate()));
        let points: Vec<_> =
            inside.filter_map(|sample| Some((sample.loss_rate(), measure(sample)?))).collect();
        if points.len() >= MIN_WINDOWS {
            return Ok(points);
        }
        let range = format!("{} to {}", range.from, range.to);
        Err(TrainError::TooFew { cause: self.cause, windows: points.len(), range })
    }

    /// Fits the distributions of the measures.
    fn fit(&self, terms: usize) -> Result<(CauseModel, Vec<(f64, f64)>), TrainError> {
        let [complexity_range, success_range] = PAPERS_RANGES;
        let points = self.points(complexity_range, |sample| sample.complexity)?;
        let complexity = fit(&points, terms).ok_or(TrainError::NoFit(self.cause))?;
        let success = self.points(success_range, |sample| sample.success_proportion)?;
        let success: Vec<f64> = success.into_iter().map(|(_, proportion)| proportion).collect();
        let deviation = deviation(&residuals(&points, &complexity), 0.0);
        let mean = mean(&success);
        let spread = Spread { mean, deviation: self::deviation(&success, mean) };
        let density = self.log_burst_density()?;
        let (complexity_deviation, success_proportion) = (deviation, spread);
        let model =
            CauseModel { complexity, complexity_deviation, success_proportion, burst_density: Some(density) };
        Ok((model, points))
    }

    /// Returns the distribution of the burst density's natural logarithm, at all loss rates in range.
    fn log_burst_density(&self) -> Result<Spread, TrainError> {
        let [complexity_range, success_range] = PAPERS_RANGES;
        let range = Range { from: success_range.from, to: complexity_range.to };
        let densities = self.points(range, |sample| sample.burst_density.map(f64::ln))?;
        let densities: Vec<f64> = densities.into_iter().map(|(_, density)| density).collect();
        let mean = mean(&densities);
        Ok(Spread { mean, deviation: deviation(&densities, mean) })
    }
}

fn mean(numbers: &[f64]) -> f64 {
    numbers.iter().sum::<f64>() / numbers.len().max(1) as f64
}

/// Returns the standard deviation around `mean`.
fn deviation(numbers: &[f64], mean: f64) -> f64 {
    let squares: f64 = numbers.iter().map(|number| (number - mean).powi(2)).sum();
    (squares / numbers.len().saturating_sub(1).max(1) as f64).sqrt().max(MIN_DEVIATION)
}

fn residuals(points: &[(f64, f64)], curve: &Curve) -> Vec<f64> {
    points.iter().map(|(p, measured)| measured - curve.at(*p)).collect()
}

fn r2(points: &[(f64, f64)], curve: &Curve) -> f64 {
    let measured: Vec<f64> = points.iter().map(|point| point.1).collect();
    let (around_mean, around_curve) = (mean(&measured), residuals(points, curve));
    let squares = |numbers: &[f64], middle: f64| numbers.iter().map(|x| (x - middle).powi(2)).sum::<f64>();
    1.0 - squares(&around_curve, 0.0) / squares(&measured, around_mean).max(f64::MIN_POSITIVE)
}

fn without_outliers(mut numbers: Vec<f64>) -> Vec<f64> {
    numbers.sort_by(f64::total_cmp);
    let at = |share: f64| numbers.get((share * numbers.len() as f64) as usize).copied().unwrap_or_default();
    let (low, high) = (at(0.25), at(0.75));
    let reach = FENCE_FACTOR * (high - low);
    numbers.retain(|number| (low - reach..=high + reach).contains(number));
    numbers
}

/// Groups windows (loss rate, complexity) into bins of the loss rate, and compares them with a curve.
pub fn bins(points: &[(f64, f64)], curve: &Curve) -> Vec<Bin> {
    let Range { from, to } = PAPERS_RANGES[0];
    let edge = |bin: usize| from * (to / from).powf(bin as f64 / BINS as f64);
    let bin = |number: usize| {
        let (low, high) = (edge(number), edge(number + 1));
        let inside: Vec<(f64, f64)> =
            points.iter().filter(|(p, _)| (low..high).contains(p)).copied().collect();
        let measured: Vec<f64> = inside.iter().map(|point| point.1).collect();
        let deviations = residuals(&inside, curve);
        let middle = mean(&measured);
        Bin {
            range: Range { from: low, to: high },
            windows: inside.len(),
            mean: middle,
            deviation: deviation(&measured, middle),
            fitted: curve.at((low * high).sqrt()),
            normality: shapiro_wilk(&deviations),
            normality_without_outliers: shapiro_wilk(&without_outliers(deviations)),
        }
    };
    (0..BINS).map(bin).filter(|bin| bin.windows > 0).collect()
}

/// Fits a model to windows whose losses all have one cause, measured with words of `word_length` packets
/// ([`WORD_LENGTHS`](crate::WORD_LENGTHS)).
///
/// # Errors
/// If there are too few windows of either cause in either range of loss rates.
pub fn train(
    host: &[Sample],
    network: &[Sample],
    word_length: u32,
    provenance: Provenance,
) -> Result<Trained, TrainError> {
    let (host_model, host_points) = Windows { cause: "the host", samples: host }.fit(1)?;
    let (network_model, network_points) = Windows { cause: "the network", samples: network }.fit(2)?;
    let [complexity_range, success_range] = PAPERS_RANGES;
    let (host_windows, network_windows) = (host.len() as u64, network.len() as u64);
    Ok(Trained {
        host_r2: r2(&host_points, &host_model.complexity),
        network_r2: r2(&network_points, &network_model.complexity),
        host_bins: bins(&host_points, &host_model.complexity),
        network_bins: bins(&network_points, &network_model.complexity),
        model: Model {
            format: FORMAT,
            word_length,
            complexity_range,
            success_range,
            negligible: NEGLIGIBLE,
            both_measures: true,
            host: host_model,
            network: network_model,
            provenance: Provenance { host_windows, network_windows, ..provenance },
        },
    })
}

/// Fits `folds` models, each to all windows but one contiguous part, and diagnoses that part with it. Returns
/// the results for the host's windows and for the network's. The parts follow the order of the windows, so
/// that those of one run mostly stay together; the first part begins at window `seed`, modulo the number of
/// windows.
///
/// # Errors
/// As [`train`], for any of the folds.
pub fn cross_validate(
    host: &[Sample],
    network: &[Sample],
    word_length: u32,
    folds: usize,
    seed: u32,
) -> Result<[Confusion; 2], TrainError> {
    let folds = folds.max(2);
    let rotated = |samples: &[Sample]| {
        let (before, from) = samples.split_at(seed as usize % samples.len().max(1));
        [from, before].concat()
    };
    let (host, network) = (rotated(host), rotated(network));
    let cut = |samples: &[Sample], fold: usize| {
        let at = |fold: usize| fold * samples.len() / folds;
        let (from, to) = (at(fold), at(fold + 1));
        (samples[from..to].to_vec(), [&samples[..from], &samples[to..]].concat())
    };
    let mut found = [Confusion::default(); 2];
    for fold in 0..folds {
        let (held_host, host) = cut(&host, fold);
        let (held_network, network) = cut(&network, fold);
        let model = train(&host, &network, word_length, Provenance::default())?.model;
        let held = [(held_host, Cause::ReceiverHost), (held_network, Cause::Congestion)];
        for ((samples, truth), confusion) in held.iter().zip(&mut found) {
            for sample in samples {
                confusion.add(*truth, &model.classify(sample));
            }
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use haul_base::Rng;

    use super::*;
    use crate::{PAPERS_WORD, Signature, WORD_LENGTHS, Words};

    const PACKETS: u64 = 20_000;

    /// Windows with single random losses.
    fn scattered(rng: &mut Rng, loss: f64) -> Signature {
        Signature::of_lost(PACKETS, (0..PACKETS).filter(|_| rng.next_f64() < loss).collect::<Vec<_>>())
    }

    /// Windows with one gap.
    fn contiguous(rng: &mut Rng, loss: f64) -> Signature {
        let lost = (loss * PACKETS as f64).ceil() as u64;
        let first = (rng.next_f64() * (PACKETS - lost) as f64) as u64;
        Signature::of_lost(PACKETS, first..first + lost)
    }

    type Make = fn(&mut Rng, f64) -> Signature;

    fn samples(seed: u64, make: Make, windows: usize) -> Vec<Sample> {
        measured(seed, make, windows, PAPERS_WORD)
    }

    fn measured(seed: u64, make: Make, windows: usize, word_length: u32) -> Vec<Sample> {
        let (mut rng, mut words) = (Rng::from_seed(seed), Words::of_length(word_length).unwrap());
        let mut window = |i: usize| {
            let loss = 0.0001 * 500f64.powf(i as f64 / windows as f64);
            Sample::of(&make(&mut rng, loss), &mut words)
        };
        (0..windows).map(&mut window).collect()
    }

    #[test]
    fn scattered_and_contiguous_losses_are_distinguished_after_training() {
        let (host, network) = (samples(1, contiguous, 400), samples(2, scattered, 400));
        let trained = train(&host, &network, PAPERS_WORD, Provenance::default()).unwrap();
        assert!(trained.network_r2 > 0.9, "{trained:?}");
        assert_eq!((trained.host_bins.len(), trained.network_bins.len()), (BINS, BINS));
        let mut confusions = [Confusion::default(); 2];
        for (samples, truth, confusion) in [
            (samples(3, contiguous, 300), Cause::ReceiverHost, 0),
            (samples(4, scattered, 300), Cause::Congestion, 1),
        ] {
            for sample in &samples {
                confusions[confusion].add(truth, &trained.model.classify(sample));
            }
        }
        // At a loss of about 1 in 500, scattered losses have as many words as one gap: both are inconclusive.
        let [host, network] = confusions;
        assert!(host.wrong == 0 && host.correct > 150, "{confusions:?}");
        assert!(network.wrong == 0 && network.correct > 280, "{confusions:?}");
    }

    #[test]
    fn a_model_of_any_word_length_reads_back_and_classifies_correctly() {
        let right = WORD_LENGTHS.map(|length| {
            let windows = |seed, make| measured(seed, make, 200, length);
            let trained =
                train(&windows(1, contiguous), &windows(2, scattered), length, Provenance::default());
            let model = Model::read(&trained.unwrap().model.write()).unwrap();
            assert_eq!(model.word_length, length);
            let mut without_bursts = model.clone();
            without_bursts.host.burst_density = None;
            [without_bursts, model].map(|model| {
                let mut confusion = Confusion::default();
                for window in windows(4, scattered) {
                    confusion.add(Cause::Congestion, &model.classify(&window));
                }
                assert_eq!(confusion.wrong, 0, "{length}: {confusion:?}");
                confusion.correct
            })
        });
        // A word of one packet is lost or not: of the paper's measures only the success proportion helps.
        let (papers, all): (Vec<u64>, Vec<u64>) = right.map(|[papers, all]| (papers, all)).unzip();
        assert!(papers[0] < 60 && papers[2..].iter().all(|&windows| windows > 170), "{papers:?}");
        assert!(all.iter().all(|&windows| windows > 170), "{all:?}");
    }

    #[test]
    fn too_few_windows_are_reported() {
        let network = samples(2, scattered, 400);
        let error = train(&[], &network, PAPERS_WORD, Provenance::default()).unwrap_err();
        assert!(error.to_string().contains("the host has 0 windows"), "{error}");
        let error = train(&network[300..], &network, PAPERS_WORD, Provenance::default()).unwrap_err();
        assert!(error.to_string().contains("0.00008 to 0.0005"), "{error}");
    }

    #[test]
    fn every_window_is_held_out_once() {
        let (host, network) = (samples(1, contiguous, 200), samples(2, scattered, 203));
        for seed in [0, 7, 200, u32::MAX] {
            let [by_host, by_network] = cross_validate(&host, &network, PAPERS_WORD, 5, seed).unwrap();
            let windows = |of: Confusion| of.in_range() + of.out_of_range;
            assert_eq!((windows(by_host), windows(by_network)), (200, 203), "{seed}");
        }
        let none = cross_validate(&[], &[], PAPERS_WORD, 5, 3).unwrap_err().to_string();
        assert!(none.contains("0 windows"), "{none}");
    }
}
