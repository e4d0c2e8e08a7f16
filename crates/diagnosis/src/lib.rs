//! Loss diagnosis from the pattern of losses (dickens-classifier): the signature of a transmission window,
//! measures of it, the distribution of each measure for each cause, and Bayes' rule; and whether losses
//! depend on the delay. Pure mathematics without clocks or I/O, so that it works on a running transfer and on
//! a file alike.

mod classify;
mod complexity;
mod dependence;
mod discriminators;
mod evaluate;
mod fit;
mod joined;
mod model;
mod rate_dependence;
mod sample;
mod shapiro;
mod signature;
mod text;
mod train;

pub use classify::{Diagnosis, Metric};
pub use complexity::{WORD_LENGTHS, Words};
pub use dependence::{DelayFinding, DelayInterval, DelayScratch, Dependence};
pub use discriminators::{Classified, Discriminator, Discriminators, biaz, spike, zigzag};
pub use evaluate::{Confusion, Proportion, clopper_pearson};
pub use joined::Joined;
pub use model::{CauseModel, Curve, Model, ModelError, PAPERS_WORD, Provenance, Range, Spread, Term};
pub use rate_dependence::{RateFinding, SentInterval};
pub use sample::Sample;
pub use shapiro::{Normality, shapiro_wilk};
pub use signature::{CompleteBursts, Run, Signature};
pub use text::{SignatureError, read_signatures, write_signature};
pub use train::{Bin, TrainError, Trained, bins, cross_validate, train};
