//! `haul-lab wan`: a path between two network namespaces for the traffic of any program.

mod args;
mod change;
mod command;
mod control;
mod plan;
mod report;
mod run;
mod running;
mod values;

pub(crate) use args::WanArgs;
pub(crate) use command::{EnterArgs, enter};
pub(crate) use plan::Plan;
pub(crate) use report::Report;
pub(crate) use run::wan;
pub(crate) use running::Running;
