//! What `haul cp` and `haul serve` say about disks.

use clap::{Args, ValueEnum};
use haul_wire::control::{Durability, Readback};

/// When received files must be on the disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub enum SyncPolicy {
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
pub struct StorageArgs {
    /// When files must be on the receiver's disk
    #[arg(long, value_name = "WHEN", value_enum, default_value_t)]
    pub sync: SyncPolicy,
    /// Read every received file back from the disk and compare it
    #[arg(long)]
    pub verify: bool,
}

impl StorageArgs {
    /// Whether files are read back.
    pub fn readback(&self) -> Readback {
        if self.verify { Readback::FromDisk } else { Readback::No }
    }
}
