//! Load beside the traffic under test: processes that compete for the receiver's processor, and flows that
//! compete for the bottleneck.

mod background;
mod burn;
mod generator;
mod quota;

pub(crate) use background::{Background, Flow, FlowReport};
pub(crate) use burn::{BurnArgs, Burners, burn, last_cpu};
pub(crate) use generator::{Generator, LoadEvent};
pub(crate) use quota::Quota;
