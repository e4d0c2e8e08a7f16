//! What `haul cp` does about what is at the destination already, and what it and `haul serve` say about disks.

use clap::{Args, ValueEnum};
use haul_wire::control::{
    Durability, Equal, Extraneous, Growth, Leftovers, Newer, Readback, ReceivePolicy, RunMode,
};

/// Options about what is there already.
#[derive(Debug, Clone, Default, Args)]
#[expect(clippy::struct_excessive_bools, reason = "each is a switch of the command line")]
#[command(next_help_heading = "What is there already")]
pub(crate) struct SyncArgs {
    /// Compare files of equal size by their contents, not by their times
    #[arg(short = 'c', long, conflicts_with = "ignore_times")]
    pub checksum: bool,
    /// Send files also if size and time are equal
    #[arg(short = 'I', long)]
    pub ignore_times: bool,
    /// Keep files that are newer at the destination
    #[arg(short, long)]
    pub update: bool,
    /// Remove what the sources do not have from the directories that they have, when all else has succeeded
    #[arg(long)]
    pub delete: bool,
    /// With --delete: if it would be more names than this, remove none
    #[arg(long, value_name = "N", requires = "delete")]
    pub max_delete: Option<u64>,
    /// Send files that grow meanwhile as they were found, and of those that have grown since only the rest
    #[arg(long)]
    pub growing: bool,
}

impl SyncArgs {
    /// The same for the receiver.
    pub(crate) fn receive_policy(&self, no_resume: bool, storage: &StorageArgs) -> ReceivePolicy {
        ReceivePolicy {
            equal: match (self.checksum, self.ignore_times) {
                (true, _) => Equal::Contents,
                (false, true) => Equal::Nothing,
                (false, false) => Equal::SizeAndTime,
            },
            newer: if self.update { Newer::Keep } else { Newer::Replace },
            extraneous: match (self.delete, self.max_delete) {
                (false, _) => Extraneous::Keep,
                (true, None) => Extraneous::Delete,
                (true, Some(most)) => Extraneous::DeleteAtMost(most),
            },
            leftovers: match (no_resume, self.growing) {
                (true, _) => Leftovers::Ignore,
                (false, true) => Leftovers::Extend,
                (false, false) => Leftovers::Resume,
            },
            run: RunMode::Move,
            durability: storage.sync.into(),
            readback: if storage.verify { Readback::FromDisk } else { Readback::No },
        }
    }

    /// What the sender does about files that grow.
    pub(crate) fn growth(&self) -> Growth {
        if self.growing { Growth::Accept } else { Growth::Refuse }
    }
}

/// When received files must be on the disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub(crate) enum SyncPolicy {
    /// Before each is reported
    #[default]
    Files,
    /// All at once, before the copy is reported
    End,
    /// When the kernel writes them
    None,
}

impl From<SyncPolicy> for Durability {
    fn from(policy: SyncPolicy) -> Self {
        match policy {
            SyncPolicy::Files => Self::Synced,
            SyncPolicy::End => Self::AtEnd,
            SyncPolicy::None => Self::Cached,
        }
    }
}

/// Options about the receiver's disk.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Disks")]
pub(crate) struct StorageArgs {
    /// When files must be on the receiver's disk
    #[arg(long, value_name = "WHEN", value_enum, default_value_t)]
    pub sync: SyncPolicy,
    /// Read every received file back from the disk and compare it
    #[arg(long)]
    pub verify: bool,
}
