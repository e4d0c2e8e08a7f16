//! What the commands that move data share: a session from its start to its report.

pub(crate) mod asked_law;
pub(crate) mod bench;
pub(crate) mod by_ssh;
pub(crate) mod context;
pub(crate) mod control_socket;
pub(crate) mod counters;
pub(crate) mod drive;
pub(crate) mod facts;
pub(crate) mod link;
pub(crate) mod outcome;
pub(crate) mod plan;
pub(crate) mod policy;
pub(crate) mod quota;
pub(crate) mod select;
pub(crate) mod server;
pub(crate) mod session;
pub(crate) mod sessions;
pub(crate) mod watch;
