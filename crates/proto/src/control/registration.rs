//! What a control law brings to the registry, and what it is built from.

use haul_base::{Rate, Span};
use haul_stack::{ParameterSpec, Parameters, Part, RecipeError};

use super::RateController;

/// Makes a law from its checked parameters.
pub type BuildLaw = fn(&Parameters, &ControllerConfig) -> Result<Box<dyn RateController>, ControllerError>;

/// One line of the registry of control laws. Help texts, tables and checks come from it.
#[derive(Clone, Copy, Debug)]
pub struct LawRegistration {
    /// Its name in recipes and with `--controller`.
    pub name: &'static str,
    /// Changes whenever the law behaves differently with equal parameters.
    pub version: u16,
    /// A line for people: what it does, without a full stop.
    pub summary: &'static str,
    /// Where it is from: a paper, an RFC, a draft.
    pub source: &'static str,
    /// What it can be told, in `[rate_control]` of a recipe. The names of `rate_control`'s own parameters are taken.
    pub parameters: &'static [ParameterSpec],
    /// Makes one.
    pub build: BuildLaw,
}

impl LawRegistration {
    /// Checks parameters that are given as text; those not given have their defaults.
    ///
    /// # Errors
    /// [`ControllerError::Parameter`] names the law's parameters, or what the value may be.
    pub fn parameters(&self, given: &[(&str, &str)]) -> Result<Parameters, ControllerError> {
        Parameters::check(&Part::new(self.name, given), self.parameters, "")
            .map_err(|error| ControllerError::Parameter(Box::new(error)))
    }

    /// Makes one with these parameters.
    ///
    /// # Errors
    /// If a parameter or the configuration does not suit it.
    pub fn build(
        &self,
        given: &[(&str, &str)],
        config: &ControllerConfig,
    ) -> Result<Box<dyn RateController>, ControllerError> {
        self.build_checked(&self.parameters(given)?, config)
    }

    /// The same, with parameters that have been checked.
    pub(crate) fn build_checked(
        &self,
        parameters: &Parameters,
        config: &ControllerConfig,
    ) -> Result<Box<dyn RateController>, ControllerError> {
        if config.ceiling == Some(Rate::ZERO) {
            return Err(ControllerError::ZeroRate);
        }
        (self.build)(parameters, config)
    }
}

/// What every controller is built from, whatever its parameters.
#[derive(Clone, Copy, Debug)]
pub struct ControllerConfig {
    /// Ceiling that is never exceeded; also the rate of `fixed`.
    pub ceiling: Option<Rate>,
    /// First guess of the round-trip time.
    pub initial_rtt: Span,
    /// The recipe's report interval; [`crate::FeedbackSample::report_interval`] has the one in force.
    pub feedback_interval: Span,
}

/// Why a controller cannot be built, registered or go on.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ControllerError {
    /// No controller has this name.
    #[error("there is no controller named `{name}`; known are: {known}")]
    Unknown {
        /// The name that was asked for.
        name: String,
        /// All names.
        known: String,
    },
    /// The controller needs a rate.
    #[error("controller `{0}` needs a rate, for example rate=950Mbit (--rate 950Mbit)")]
    NeedsRate(&'static str),
    /// Nothing can be sent at a rate of 0.
    #[error("a rate must be more than nothing, for example 950Mbit")]
    ZeroRate,
    /// A parameter that it does not have, or a value that it cannot have.
    #[error(transparent)]
    Parameter(Box<RecipeError>),
    /// Parameters that are possible singly and not together.
    #[error("controller `{law}`: {message}")]
    Unsuitable {
        /// Name of the law.
        law: &'static str,
        /// What is wrong, and what is wanted instead.
        message: String,
    },
    /// Rules of exchange that cannot be: what is wrong, in words.
    #[error("rate_control.switch: {0}")]
    Rules(String),
    /// A law of this name is registered already, or one of its parameters has the name of one of `rate_control`.
    #[error("the controller `{law}` cannot be registered: {message}")]
    Taken {
        /// Name of the law.
        law: &'static str,
        /// What is taken.
        message: String,
    },
    /// It sends nothing and says no time at which it will: that ends the session.
    #[error("the controller `{0}` would send nothing for ever")]
    HoldsForEver(String),
}
