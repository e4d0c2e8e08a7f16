//! Registration of a control law, and its configuration.

use haul_base::{Rate, Span};
use haul_stack::{ParameterSpec, Part, RecipeError};

use super::RateController;

/// Builds a law from its checked parameters, all of which are explicit.
pub type BuildLaw = fn(&Part, &ControllerConfig) -> Result<Box<dyn RateController>, ControllerError>;

/// Entry of a control law in the registry. Help texts, tables and checks are generated from it.
#[derive(Clone, Copy, Debug)]
pub struct LawRegistration {
    /// Name in recipes and for `--controller`.
    pub name: &'static str,
    /// To be increased whenever the law's behaviour changes with equal parameters.
    pub version: u16,
    /// One-line description for users, without a full stop.
    pub summary: &'static str,
    /// Source: a paper, an RFC or a draft.
    pub source: &'static str,
    /// Parameters, in `[rate_control]` of a recipe. The names of `rate_control`'s own parameters are taken.
    pub parameters: &'static [ParameterSpec],
    /// Builds the law.
    pub build: BuildLaw,
}

impl LawRegistration {
    /// Parses parameters given as text; the others get their defaults.
    ///
    /// # Errors
    /// [`ControllerError::Parameter`] lists the law's parameters, or the permitted values.
    pub fn parameters(&self, given: &[(&str, &str)]) -> Result<Part, ControllerError> {
        let mut part = Part::from(self.name);
        for (name, text) in given {
            part.parse(self.parameters, name, text)?;
        }
        Ok(part.complete(self.parameters)?)
    }

    /// Builds the law with these parameters.
    ///
    /// # Errors
    /// If a parameter or the configuration does not suit it.
    pub fn build(
        &self,
        settings: &[(&str, &str)],
        config: &ControllerConfig,
    ) -> Result<Box<dyn RateController>, ControllerError> {
        self.build_checked(&self.parameters(settings)?, config)
    }

    /// As `build`, with checked parameters.
    pub(crate) fn build_checked(
        &self,
        parameters: &Part,
        config: &ControllerConfig,
    ) -> Result<Box<dyn RateController>, ControllerError> {
        if config.ceiling == Some(Rate::ZERO) {
            return Err(ControllerError::ZeroRate);
        }
        (self.build)(parameters, config)
    }
}

/// Configuration of every controller, independent of its parameters.
#[derive(Clone, Copy, Debug)]
pub struct ControllerConfig {
    /// Rate ceiling, never exceeded; also the rate of `fixed`.
    pub ceiling: Option<Rate>,
    /// Initial guess of the round-trip time.
    pub initial_rtt: Span,
    /// Report interval of the recipe; [`crate::FeedbackSample::report_interval`] has the current one.
    pub feedback_interval: Span,
}

impl From<RecipeError> for ControllerError {
    fn from(error: RecipeError) -> Self {
        Self::Parameter(Box::new(error))
    }
}

/// Error when building, registering or running a controller.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ControllerError {
    /// No controller has this name.
    #[error("there is no controller `{name}`; the controllers are: {known}")]
    Unknown {
        /// The requested name.
        name: String,
        /// All known names.
        known: String,
    },
    /// The controller needs a rate.
    #[error("controller `{0}` needs a rate, for example rate=950Mbit (--rate 950Mbit)")]
    NeedsRate(&'static str),
    /// The rate is 0.
    #[error("a rate must be above zero, for example 950Mbit")]
    ZeroRate,
    /// An unknown parameter, or a value out of its range.
    #[error(transparent)]
    Parameter(Box<RecipeError>),
    /// Parameters that are valid one by one but not together.
    #[error("controller `{law}`: {message}")]
    Unsuitable {
        /// Name of the law.
        law: &'static str,
        /// Explanation and remedy.
        message: String,
    },
    /// Invalid rules for switching laws, with an explanation.
    #[error("rate_control.switch: {0}")]
    Rules(String),
    /// A law of this name exists already, or one of its parameters has the name of one of `rate_control`.
    #[error("the controller `{law}` cannot be registered: {message}")]
    Taken {
        /// Name of the law.
        law: &'static str,
        /// The name that is taken.
        message: String,
    },
    /// The law holds without a valid time to resume, which ends the session.
    #[error("the controller `{0}` would never send")]
    PermanentPause(String),
}
