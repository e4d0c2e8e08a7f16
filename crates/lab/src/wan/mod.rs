//! `haul-lab wan`: a path between two network namespaces for the traffic of any program.

mod args;
mod change;
mod command;
mod control;
mod plan;
mod privilege;
mod report;
mod run;
mod running;
mod values;
mod world;

pub(crate) use args::WanArgs;
pub(crate) use command::{EnterArgs, enter};
pub(crate) use plan::Plan;
pub(crate) use privilege::Privilege;
pub(crate) use report::Report;
pub(crate) use run::wan;
pub(crate) use running::Running;
pub(crate) use world::{Side, V4, World};
