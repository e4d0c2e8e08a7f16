//! What the measures are like for each cause of loss.

use std::sync::LazyLock;

use serde::{Deserialize, Serialize};

use crate::{WORD_LENGTHS, Words};

/// One part of a [`Curve`].
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Term {
    /// What it adds in the end.
    pub amount: f64,
    /// The loss rate at which it has added 1 - 1/e of it.
    pub scale: f64,
}

/// The mean of a measure over the loss rate `p`: the sum of `amount * (1 - exp(-p / scale))` (dickens-classifier,
/// section 3.1.6: two terms for the network, one for the host; both begin at nothing and level off).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Curve(pub Vec<Term>);

impl Curve {
    /// The mean at a loss rate.
    pub fn at(&self, loss_rate: f64) -> f64 {
        self.0.iter().map(|term| -term.amount * (-loss_rate / term.scale).exp_m1()).sum()
    }
}

/// A normal distribution.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Spread {
    /// The mean, in the unit of what is distributed.
    pub mean: f64,
    /// Its standard deviation, above 0.
    pub deviation: f64,
}

/// What the measures are like for one cause.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CauseModel {
    /// The mean complexity over the loss rate.
    pub complexity: Curve,
    /// The standard deviation of the complexity around it, at any loss rate.
    pub complexity_deviation: f64,
    /// The success proportion at low loss rates.
    pub success_proportion: Spread,
    /// The natural logarithm of the burst density, which is not the paper's. `None`: it is not looked at.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub burst_density: Option<Spread>,
}

/// Loss rates, from one (included) to another.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Range {
    /// The lowest loss rate, included; 0 to 1.
    pub from: f64,
    /// The highest loss rate, excluded; 0 to 1.
    pub to: f64,
}

impl Range {
    /// Whether a loss rate lies in it.
    pub fn contains(&self, loss_rate: f64) -> bool {
        (self.from..=self.to).contains(&loss_rate)
    }
}

/// Where a model comes from, in words; nothing is computed from it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Provenance {
    /// The signatures that it was fitted to.
    pub data: String,
    /// Their BLAKE3, hexadecimal.
    pub data_hash: String,
    /// That of [`cross_validate`](crate::cross_validate), by which it was judged; the fit has nothing random. `None`:
    /// the model is of before it was written down.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seed: Option<u32>,
    /// Windows of losses by the host.
    pub host_windows: u64,
    /// Windows of losses by the network.
    pub network_windows: u64,
    /// The system on which it was made.
    pub system: String,
    /// Day of the training, as text.
    pub date: String,
}

/// What a diagnosis knows of the causes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Model {
    /// The version of this format.
    pub format: u32,
    /// Packets of a word.
    pub word_length: u32,
    /// Loss rates that the complexity tells apart.
    pub complexity_range: Range,
    /// Loss rates below these, that the success proportion tells apart.
    pub success_range: Range,
    /// A measure that is no more likely than this with either cause tells nothing.
    pub negligible: f64,
    /// Whether other measures are looked at than the one that the loss rate chooses. The success proportion may object
    /// to what the complexity tells: then neither cause is told. The burst density may object too, and tells what they
    /// do not. The paper looks at one measure alone, and takes losses at random, one in 500 to 1,000, for the host's:
    /// they have as few words as one gap.
    pub both_measures: bool,
    /// Losses because the receiving host did not read in time.
    pub host: CauseModel,
    /// Losses because flows contend for the network.
    pub network: CauseModel,
    /// Where it comes from.
    pub provenance: Provenance,
}

/// Why a text is no model.
#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    /// It is no TOML of this form.
    #[error("this is no model of loss: {}", in_one_line(.0))]
    Form(#[source] Box<toml::de::Error>),
    /// Another release of Haulage wrote it.
    #[error("this model has format {0}, and this release reads format {FORMAT}: fit it anew")]
    Format(u32),
    /// A number that no fit gives.
    #[error("this model of loss has an impossible {0}")]
    Impossible(&'static str),
}

/// Where it is wrong, and what; without the picture of the line between them.
fn in_one_line(error: &toml::de::Error) -> String {
    let text = error.to_string();
    let place = text.lines().next().unwrap_or_default();
    let message = error.message().lines().collect::<Vec<_>>().join("; ");
    if place == message { message } else { format!("{place}: {message}") }
}

/// The version of the format.
pub(crate) const FORMAT: u32 = 1;
/// Packets of a word (dickens-classifier, section 3.1.3): longer words tell little more.
pub const PAPERS_WORD: u32 = 17;
/// Its operating ranges, section 3.3.
pub(crate) const PAPERS_RANGES: [Range; 2] =
    [Range { from: 0.0005, to: 0.05 }, Range { from: 0.000_08, to: 0.0005 }];
/// What counts as "nearly no likelihood" is left open by the paper: five standard deviations.
pub(crate) const NEGLIGIBLE: f64 = 1e-6;

static SHIPPED: &str = include_str!("../model.toml");

#[derive(Deserialize)]
struct Versioned {
    format: u32,
}

impl Model {
    /// The model that comes with Haulage: `haul-lab` makes its data, `haul train` fits it (docs/diagnosis.md).
    ///
    /// # Panics
    /// Never: a test reads what is compiled in.
    pub fn shipped() -> &'static Self {
        static MODEL: LazyLock<Model> =
            LazyLock::new(|| Model::read(SHIPPED).expect("a test reads the model that is compiled in"));
        &MODEL
    }

    /// The text of the shipped model.
    pub fn shipped_text() -> &'static str {
        SHIPPED
    }

    /// Reads a model.
    ///
    /// # Errors
    /// If the text is no model of this version, or its numbers make no sense.
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

    /// The text that [`Model::read`] reads.
    ///
    /// # Panics
    /// Never: a model is numbers and text.
    pub fn write(&self) -> String {
        toml::to_string(self).expect("a model has nothing that TOML cannot say")
    }

    /// What counts words of this model's length.
    ///
    /// # Panics
    /// If that is not among [`WORD_LENGTHS`], which [`Model::read`] refuses.
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
    fn a_curve_begins_at_nothing_and_levels_off() {
        let curve = Curve(vec![Term { amount: 0.3, scale: 0.001 }, Term { amount: 0.5, scale: 0.02 }]);
        assert!(curve.at(0.0).abs() < 1e-15 && (curve.at(1.0) - 0.8).abs() < 1e-12);
        let wanted = 0.3 * (1.0 - (-1.0f64).exp()) + 0.5 * (1.0 - (-0.05f64).exp());
        assert!((curve.at(0.001) - wanted).abs() < 1e-12);
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
    fn a_seed_is_written_where_there_is_one_and_a_model_without_one_is_read() {
        let mut model = Model::shipped().clone();
        assert!(model.provenance.seed.is_none() && !model.write().contains("seed"));
        model.provenance.seed = Some(u32::MAX);
        assert_eq!(Model::read(&model.write()).unwrap(), model);
    }

    #[test]
    fn what_is_no_model_is_refused_in_words() {
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
