//! What is on its way, and what the receiving end of the harness knows of it.

use haul_base::{HostSample, Time};

use crate::micro::events::ReceiverCounters;

/// A batch on its way.
#[derive(Debug)]
pub(super) struct Flying {
    pub(super) last_pn: u64,
    /// Those that arrive, and those that arrive marked.
    pub(super) arriving: u64,
    pub(super) marked: u64,
    pub(super) lost: Vec<u64>,
    pub(super) dropped_by_socket: u64,
    pub(super) sent_at: Time,
    /// At the receiver's kernel, and when it is read.
    pub(super) arrives: Time,
    pub(super) read: Time,
}

/// What the receiver knows and has not told for certain.
#[derive(Debug, Default)]
pub(super) struct Receiving {
    pub(super) total: ReceiverCounters,
    pub(super) bytes: u64,
    pub(super) acked: u64,
    pub(super) lost: Vec<u64>,
    /// Lost behind everything that has arrived: not known yet.
    pub(super) silent: Vec<u64>,
    /// Newest packet: number, when it was sent, arrived and was read.
    pub(super) newest: Option<(u64, Time, Time, Time)>,
}

/// A report on its way back.
#[derive(Debug)]
pub(super) struct Report {
    pub(super) due: Time,
    pub(super) made: Time,
    pub(super) acked: u64,
    pub(super) lost: Vec<u64>,
    pub(super) newest: (u64, Time, Time, Time),
    pub(super) host: Option<HostSample>,
    pub(super) bytes: u64,
    pub(super) total: ReceiverCounters,
}
