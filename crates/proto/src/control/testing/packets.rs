//! Packets in flight, and the state of the harness' receiver.

use haul_base::{HostSample, Time};

use crate::micro::events::ReceiverCounters;

/// A batch in flight.
#[derive(Debug)]
pub(super) struct SentRun {
    pub(super) last_pn: u64,
    /// Packets that arrive, and those of them that are marked.
    pub(super) arriving: u64,
    pub(super) marked: u64,
    pub(super) lost: Vec<u64>,
    pub(super) dropped_by_socket: u64,
    pub(super) sent_at: Time,
    /// When it arrives at the receiver's kernel, and when it is read.
    pub(super) arrives: Time,
    pub(super) read: Time,
}

/// Receiver state that is not reported yet.
#[derive(Debug, Default)]
pub(super) struct Receiving {
    pub(super) total: ReceiverCounters,
    pub(super) bytes: u64,
    pub(super) acked: u64,
    pub(super) lost: Vec<u64>,
    /// Lost after everything that has arrived: not known yet.
    pub(super) silent: Vec<u64>,
    /// Newest packet: number, and when it was sent, arrived and read.
    pub(super) newest: Option<(u64, Time, Time, Time)>,
}

/// A report in flight.
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
