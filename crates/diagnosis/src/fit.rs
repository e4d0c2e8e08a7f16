//! Curve fitting by nonlinear least squares (Levenberg and Marquardt).

use levenberg_marquardt::{LeastSquaresProblem, LevenbergMarquardt};
use nalgebra::storage::Owned;
use nalgebra::{DMatrix, DVector, Dyn};

use crate::model::{Curve, Term};

/// Initial scales, as loss rates: a fit starts from each combination and the best result is kept, since the
/// sum of exponentials has several minima.
const SCALES: [f64; 5] = [0.0001, 0.0006, 0.003, 0.015, 0.08];
/// Bounds of the scales: far outside measured loss rates.
const BOUNDS: (f64, f64) = (1e-7, 1e2);

/// Residuals of a curve over points. Scales are fitted as logarithms, so that they stay positive.
struct Problem<'a> {
    points: &'a [(f64, f64)],
    /// Amount and logarithm of the scale of each term.
    parameters: DVector<f64>,
}

impl Problem<'_> {
    fn curve(&self) -> Curve {
        let terms = self.parameters.as_slice().chunks_exact(2);
        Curve(terms.map(|term| Term { amount: term[0], scale: scale(term[1]) }).collect())
    }
}

fn scale(logarithm: f64) -> f64 {
    logarithm.exp().clamp(BOUNDS.0, BOUNDS.1)
}

impl LeastSquaresProblem<f64, Dyn, Dyn> for Problem<'_> {
    type ResidualStorage = Owned<f64, Dyn>;
    type JacobianStorage = Owned<f64, Dyn, Dyn>;
    type ParameterStorage = Owned<f64, Dyn>;

    fn set_params(&mut self, parameters: &DVector<f64>) {
        self.parameters.copy_from(parameters);
    }

    fn params(&self) -> DVector<f64> {
        self.parameters.clone()
    }

    fn residuals(&self) -> Option<DVector<f64>> {
        let curve = self.curve();
        let residuals = self.points.iter().map(|(p, measured)| curve.at(*p) - measured);
        Some(DVector::from_iterator(self.points.len(), residuals))
    }

    fn jacobian(&self) -> Option<DMatrix<f64>> {
        let terms = self.curve().0;
        Some(DMatrix::from_fn(self.points.len(), self.parameters.len(), |row, column| {
            let (p, term) = (self.points[row].0, terms[column / 2]);
            let ratio = p / term.scale;
            match column % 2 {
                0 => -(-ratio).exp_m1(),
                _ => -term.amount * ratio * (-ratio).exp(),
            }
        }))
    }
}

/// Fits a curve with `terms` terms (1 or 2) to points `(loss rate, measured)`; the terms are sorted by scale.
/// `None` if there are fewer points than parameters or no fit converges.
pub(crate) fn fit(points: &[(f64, f64)], terms: usize) -> Option<Curve> {
    if points.len() < 2 * terms || points.iter().any(|(p, y)| !p.is_finite() || !y.is_finite()) {
        return None;
    }
    let most = points.iter().map(|(_, measured)| *measured).fold(0.0, f64::max);
    let starts = (0..SCALES.len()).flat_map(|a| (a..SCALES.len()).map(move |b| [SCALES[a], SCALES[b]]));
    let starts = starts.filter(|[a, b]| (terms == 1) == (a.total_cmp(b).is_eq()));
    let fitted = starts.filter_map(|scales| {
        let start = scales[..terms].iter().flat_map(|scale| [most / terms as f64, scale.ln()]);
        let problem = Problem { points, parameters: DVector::from_iterator(2 * terms, start) };
        let (problem, report) = LevenbergMarquardt::new().minimize(problem);
        let cost = report.objective_function;
        cost.is_finite().then(|| (cost, problem.curve()))
    });
    let (_, mut best) = fitted.min_by(|a, b| a.0.total_cmp(&b.0))?;
    best.0.sort_by(|a, b| a.scale.total_cmp(&b.scale));
    Some(best)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn points(curve: &Curve, noise: f64) -> Vec<(f64, f64)> {
        let rates = (0..400).map(|i| 0.0005 * 100f64.powf(f64::from(i) / 400.0));
        rates
            .zip((1..).map(|i| (f64::from(i) * 0.618_034).fract() - 0.5))
            .map(|(p, error)| (p, curve.at(p) + noise * error))
            .collect()
    }

    #[test]
    fn fit_recovers_the_generating_curve() {
        let one = Curve(vec![Term { amount: 0.35, scale: 0.0004 }]);
        let two = Curve(vec![Term { amount: 0.3, scale: 0.0008 }, Term { amount: 0.4, scale: 0.03 }]);
        for curve in [one, two] {
            for noise in [0.0, 0.02] {
                let found = fit(&points(&curve, noise), curve.0.len()).unwrap();
                for p in [0.0005, 0.003, 0.01, 0.05] {
                    let (found, expected) = (found.at(p), curve.at(p));
                    assert!((found - expected).abs() < 1e-6 + noise / 5.0, "{p}: {found} {expected}");
                }
            }
        }
    }

    #[test]
    fn too_few_points_and_nan_are_not_fitted() {
        assert_eq!(fit(&[(0.1, 0.2)], 1), None);
        assert_eq!(fit(&[(0.1, f64::NAN), (0.2, 0.1)], 1), None);
        assert!(fit(&[(0.001, 0.3); 10], 1).is_some());
    }
}
