//! File sets over Haulage: a sender walks, reads and hashes; a receiver places, writes, verifies and commits.
//!
//! The contents of all regular files, concatenated in entry order, are one object for the transport
//! ([`haul_proto::ObjectSource`], [`haul_proto::ObjectSink`]); everything else goes over the control channel
//! ([`ControlLink`]). `docs/mover.md` describes the guarantees.

mod accounts;
mod budget;
mod entries;
mod fault;
mod identity;
mod job;
mod journal;
mod link;
mod pipe;
mod progress;
mod receive;
mod report;
mod root;
mod send;
mod storage;
mod stream;
mod tree;
mod xattrs;

pub use budget::SET_MEMORY;
pub use job::{JobHandle, Stage};
pub use journal::{
    JournalReport, JournalState, PartialFile, check, find_journals, remove_journal, subdirectories,
};
pub use link::ControlLink;
pub use pipe::{receive_stream, receive_to, send_stream};
pub use progress::{Counter, Progress, Wake};
pub use receive::{Expectations, MinFree, ReceiveJob, ReceiveOptions, create_directory, receive_files};
pub use report::{Failures, MAX_NAMED_FAILURES, MoveReport, SOME_FAILED, follows_from_directory};
pub use root::{Root, copies_content, layout_for, open_named};
pub use send::{
    BadPattern, SendJob, SendLimits, check_pattern, check_selection, has_unknown_exclusions,
    leaves_out_unseen, send_files,
};
#[cfg(feature = "faults")]
pub use storage::faults;
