//! What the commands that move data share: a session from its start to its report.

pub(crate) mod bench;
pub(crate) mod by_ssh;
pub(crate) mod context;
pub(crate) mod control_socket;
pub(crate) mod counters;
pub(crate) mod drive;
pub(crate) mod link;
pub(crate) mod outcome;
pub(crate) mod plan;
pub(crate) mod policy;
pub(crate) mod select;
pub(crate) mod server;
pub(crate) mod session;
pub(crate) mod sessions;
pub(crate) mod watch;

pub(crate) use by_ssh::{RemoteServer, at_server, reach, with_firewall_hint};
pub(crate) use context::Context;
pub(crate) use counters::Cpu;
pub(crate) use link::{LawLimits, Sides};
pub(crate) use plan::{CopyPlan, DryRun, Negotiated, Route};
pub(crate) use policy::Policy;
pub(crate) use select::{chosen, selection};
pub(crate) use server::{answer, bind, next_client, with_local_server};
pub(crate) use session::{download, negotiate, upload, with_session};
pub(crate) use sessions::{ChangeTimer, LIMIT, Quotas, SessionProgress, Sessions};
pub(crate) use watch::REST_HINT;
