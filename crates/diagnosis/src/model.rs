//! Model of the measures for each cause of loss.

use std::sync::LazyLock;

use serde::{Deserialize, Serialize};

use crate::{WORD_LENGTHS, Words};

/// A term of a [`Curve`].
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Term {
    /// Asymptotic contribution of the term.
    pub amount: f64,
    /// Loss rate at which it has reached 1 - 1/e of that.
    pub scale: f64,
}

/// Mean of a measure as a function of the loss rate `p`: the sum of `amount * (1 - exp(-p / scale))`
/// (dickens-classifier, section 3.1.6: two terms for the network, one for the host; both start at zero and
/// level off).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Curve(pub Vec<Term>);

impl Curve {
    /// Returns the mean at a loss rate.
    pub fn at(&self, loss_rate: f64) -> f64 {
        self.0.iter().map(|term| -term.amount * (-loss_rate / term.scale).exp_m1()).sum()
    }
}

/// A normal distribution.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Spread {
    /// Mean, in the unit of the variable.
    pub mean: f64,
    /// Standard deviation, above 0.
    pub deviation: f64,
}

/// Distributions of the measures for one cause.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CauseModel {
    /// Mean complexity as a function of the loss rate.
    pub complexity: Curve,
    /// Standard deviation of the complexity around it, at any loss rate.
    pub complexity_deviation: f64,
    /// Success proportion at low loss rates.
    pub success_proportion: Spread,
    /// Natural logarithm of the burst density, which the paper does not use. `None`: not used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub burst_density: Option<Spread>,
}

/// A range of loss rates, both ends included.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Range {
    /// Lowest loss rate, 0 to 1.
    pub from: f64,
    /// Highest loss rate, 0 to 1.
    pub to: f64,
}

impl Range {
    /// Whether a loss rate is in the range.
    pub fn contains(&self, loss_rate: f64) -> bool {
        (self.from..=self.to).contains(&loss_rate)
    }
}

/// Origin of a model, as text; not used in computations.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Provenance {
    /// Signatures from which it was fitted.
    pub data: String,
    /// BLAKE3 hash of the signatures, hexadecimal.
    pub data_hash: String,
    /// Seed of the [`cross_validate`](crate::cross_validate) run that evaluated the model; the fit itself is
    /// deterministic. `None`: the model predates this field.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seed: Option<u32>,
    /// Number of windows with losses of the host.
    pub host_windows: u64,
    /// Number of windows with losses of the network.
    pub network_windows: u64,
    /// System on which it was made.
    pub system: String,
    /// Date of the training, as text.
    pub date: String,
}

/// Model of the causes of loss.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Model {
    /// Version of the format.
    pub format: u32,
    /// Packets per word.
    pub word_length: u32,
    /// Range of loss rates in which the complexity is used.
    pub complexity_range: Range,
    /// Lower range of loss rates, in which the success proportion is used.
    pub success_range: Range,
    /// If the likelihood of a measured value is no higher than this for either cause, the measure is ignored.
    pub negligible: f64,
    /// Whether other measures are used beside the one selected by the loss rate. The success proportion may
    /// contradict the complexity: then the window is inconclusive. The burst density may contradict as well,
    /// and decides where the others are inconclusive. The paper uses one measure only, and attributes random
    /// losses of one in 500 to 1,000 to the host: they have as few words as one gap.
    pub both_measures: bool,
    /// Losses because the receiving host did not read in time.
    pub host: CauseModel,
    /// Losses because flows compete for the network.
    pub network: CauseModel,
    /// Origin of the model.
    pub provenance: Provenance,
}

/// Why a text is not a valid model.
#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    /// The text is not TOML of this form.
    #[error("this is no model of loss: {}", as_one_line(.0))]
    Form(#[source] Box<toml::de::Error>),
    /// The format is that of another release of Haulage.
    #[error("this model has format {0}, and this release reads format {FORMAT}: fit it anew")]
    Format(u32),
    /// A number is impossible.
    #[error("this model of loss has an impossible {0}")]
    Impossible(&'static str),
}

/// Returns the error's location and message, without the excerpt of the text between them.
fn as_one_line(error: &toml::de::Error) -> String {
    let text = error.to_string();
    let place = text.lines().next().unwrap_or_default();
    let message = error.message().lines().collect::<Vec<_>>().join("; ");
    if place == message { message } else { format!("{place}: {message}") }
}

/// The version of the format.
pub(crate) const FORMAT: u32 = 1;
/// Packets per word (dickens-classifier, section 3.1.3): longer words add little information.
pub const PAPERS_WORD: u32 = 17;
/// The paper's operating ranges, section 3.3.
pub(crate) const PAPERS_RANGES: [Range; 2] =
    [Range { from: 0.0005, to: 0.05 }, Range { from: 0.000_08, to: 0.0005 }];
/// The paper leaves "nearly no likelihood" open: five standard deviations.
pub(crate) const NEGLIGIBLE: f64 = 1e-6;

static SHIPPED: &str = include_str!("../model.toml");

#[derive(Deserialize)]
struct Versioned {
    format: u32,
}

impl Model {
    /// Returns the built-in model: `haul-lab` makes its data, `haul train` fits it (docs/diagnosis.md).
    ///
    /// # Panics
    /// Never: a test parses the built-in text.
    pub fn shipped() -> &'static Self {
        static MODEL: LazyLock<Model> =
            LazyLock::new(|| Model::read(SHIPPED).expect("a test reads the model that is compiled in"));
        &MODEL
    }

    /// Returns the text of the built-in model.
    pub fn shipped_text() -> &'static str {
        SHIPPED
    }

    /// Parses a model.
    ///
    /// # Errors
    /// If the text is not a model of this version, or its numbers are impossible.
    pub fn read(text: &str) -> Result<Self, ModelError> {
        let form = |error| ModelError::Form(Box::new(error));
        let versioned: Versioned = toml::from_str(text).map_err(form)?;
        if versioned.format != FORMAT {
            return Err(ModelError::Format(versioned.format));
        }
        let model: Self = toml::from_str(text).map_err(form)?;
        model.check()?;
        Ok(model)
    }

    /// Returns the text that [`Model::read`] parses.
    ///
    /// # Panics
    /// Never: a model consists of numbers and text.
    pub fn write(&self) -> String {
        toml::to_string(self).expect("a model has nothing that TOML cannot say")
    }

    /// Creates a counter for words of this model's length.
    ///
    /// # Panics
    /// If the length is not in [`WORD_LENGTHS`], which [`Model::read`] refuses.
    pub fn words(&self) -> Words {
        Words::of_length(self.word_length).expect("a model was checked when it was read")
    }

    fn check(&self) -> Result<(), ModelError> {
        let positive = |number: f64| number > 0.0 && number.is_finite();
        let range = |range: &Range| range.from >= 0.0 && range.to >= range.from && range.to <= 1.0;
        let cause = |cause: &CauseModel| {
            let terms = &cause.complexity.0;
            (1..=4).contains(&terms.len())
                && terms.iter().all(|term| term.amount.is_finite() && positive(term.scale))
                && positive(cause.complexity_deviation)
                && cause.success_proportion.mean.is_finite()
                && positive(cause.success_proportion.deviation)
                && cause
                    .burst_density
                    .is_none_or(|spread| spread.mean.is_finite() && positive(spread.deviation))
        };
        for (name, possible) in [
            ("word_length", WORD_LENGTHS.contains(&self.word_length)),
            ("complexity_range", range(&self.complexity_range)),
            ("success_range", range(&self.success_range)),
            ("negligible", (0.0..1.0).contains(&self.negligible)),
            ("host", cause(&self.host)),
            ("network", cause(&self.network)),
        ] {
            if !possible {
                return Err(ModelError::Impossible(name));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_curve_starts_at_zero_and_saturates() {
        let curve = Curve(vec![Term { amount: 0.3, scale: 0.001 }, Term { amount: 0.5, scale: 0.02 }]);
        assert!(curve.at(0.0).abs() < 1e-15 && (curve.at(1.0) - 0.8).abs() < 1e-12);
        let expected = 0.3 * (1.0 - (-1.0f64).exp()) + 0.5 * (1.0 - (-0.05f64).exp());
        assert!((curve.at(0.001) - expected).abs() < 1e-12);
    }

    #[test]
    fn the_shipped_model_is_read_and_written() {
        let model = Model::shipped();
        assert_eq!(Model::read(&model.write()).unwrap(), *model);
        assert_eq!(
            (model.word_length, model.host.complexity.0.len(), model.network.complexity.0.len()),
            (17, 1, 2)
        );
    }

    #[test]
    fn seeds_are_written_if_present_and_optional_when_read() {
        let mut model = Model::shipped().clone();
        assert!(model.provenance.seed.is_none() && !model.write().contains("seed"));
        model.provenance.seed = Some(u32::MAX);
        assert_eq!(Model::read(&model.write()).unwrap(), model);
    }

    #[test]
    fn invalid_models_are_refused_with_a_message() {
        let text = Model::shipped_text();
        for (wrong, word) in [
            (String::new(), "format"),
            ("0101".to_owned(), "no model"),
            (text.replacen("format = 1", "format = 7", 1), "format 7"),
            (text.replacen("word_length = 17", "word_length = 40", 1), "word_length"),
            (text.replacen("negligible = ", "negligible = -", 1), "negligible"),
            (text.replacen("deviation = ", "deviation = -", 1), "impossible"),
            (text.replacen("scale = ", "scale = 0.0 # ", 1), "impossible"),
            (text.replacen("word_length", "word_size", 1), "word_size"),
            (text.replacen("word_length = 17", "word_length", 1), "column"),
        ] {
            let error = Model::read(&wrong).unwrap_err().to_string();
            assert!(error.contains(word) && error.lines().count() == 1, "{error}");
        }
    }
}
