//! The commands; what they share is in `transfer`. `agent` is what ssh starts for `haul cp` elsewhere.

pub(crate) mod agent;
pub(crate) mod bench;
pub(crate) mod clean;
pub(crate) mod completions;
pub(crate) mod cp;
pub(crate) mod ctl;
pub(crate) mod demo;
pub(crate) mod diagnose;
pub(crate) mod doctor;
mod leftovers;
pub(crate) mod man;
pub(crate) mod pipe;
pub(crate) mod presets;
pub(crate) mod serve;
pub(crate) mod status;
pub(crate) mod train;
